"""SA-1B, the set of Segment Anything: a JSON file for each image, with masks without classes.

``{"image": {"width", "height", ...}, "annotations": [{"bbox", "segmentation": {"size", "counts"}, ...}]}``; boxes are
x, y, width and height. (Format: the readme of segment-anything, "Dataset".)
"""

from __future__ import annotations

import json
import re
from typing import Any

from packer.errors import BadLabel, option, printable
from packer.model.annotation import RawAnnotation
from packer.sources.by_name import LabelledObjects, whole_size
from packer.sources.by_stem import ByStemSource, choice_by_stem, match_by_stem
from packer.sources.coco_objects import read_rle, rle_text
from packer.sources.paths import FolderSplit, as_text, coordinate, extension_of, folder_splits, spread
from packer.sources.source import LOOKS, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, read_file, read_head

ENDING = b".json"
HEAD = re.compile(rb'\s*\{\s*"(?:image|annotations)"\s*:\s*[{\[]')
WORDS = (b'"predicted_iou"', b'"stability_score"')
HEAD_BYTES = 1 << 18
"""The run lengths of a mask may come before what is said of its quality."""
MOST_BYTES = 256 * MIB
FIELDS = ("area", "predicted_iou", "stability_score")
MISTAKES = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


class Sa1bSource(ByStemSource):
    """The files of SA-1B. All objects have the class ``object``; masks are read with ``--instance-masks``."""

    ending = ENDING
    splits = staticmethod(folder_splits)

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        files = [path for path in tree.files if extension_of(path) == ENDING]
        super().__init__(tree, match_by_stem(tree.images, files))
        self.matches.unclaimed = [path for path in self.matches.unclaimed if _is_sa1b(tree, path)]
        self.label_files = {*self.matches.label_of.values(), *self.matches.unclaimed}
        self.of_split = FolderSplit.of(tree, options.split)
        self._with_masks = options.instance_masks
        if not self._with_masks:
            self.notes.append(f"masks are not packed, but their boxes are; {option('instance-masks')} packs them")

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return SA-1B if images have a JSON file of their name, and one of a few has its keys."""
        files = [path for path in tree.files if extension_of(path) == ENDING]
        if not files:
            return []
        matches = match_by_stem(tree.images, files)
        seen = (_is_sa1b(tree, path) for path in spread(list(matches.label_of.values()), LOOKS))
        return choice_by_stem("sa1b", "file of SA-1B", matches.fitting, len(tree.images), seen)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the objects of the image.

        Raises:
            NoLabel: No file fits the image.
            BadLabel: Several files fit equally well, or it is not as SA-1B has it.
        """
        path = self.label_file(image)
        try:
            content = json.loads(read_file(self._tree, path, MOST_BYTES))
            objects = LabelledObjects(with_masks=self._with_masks)
            for thing in content["annotations"]:
                _add(objects, thing)
            about = content["image"]
            if "image_id" in about:
                objects.extras["image_id"] = about["image_id"]
            size = whole_size(about.get("width"), about.get("height"))
            return objects.annotation(as_text(path), size, has_boxes=True)
        except MISTAKES as error:
            raise BadLabel(path, f"is not as SA-1B has it: {printable(repr(error))}", "get the file again") from None


def _is_sa1b(tree: Tree, path: bytes) -> bool:
    head = read_head(tree, path, HEAD_BYTES)
    return HEAD.match(head) is not None and all(word in head for word in WORDS)


def _add(objects: LabelledObjects, thing: dict[str, Any]) -> None:
    left, top, width, height = map(coordinate, thing["bbox"])
    if objects.with_masks:
        rows, columns, counts = read_rle(thing["segmentation"]["size"], thing["segmentation"]["counts"])
        objects.shapes[len(objects.boxes)] = {"size": [rows, columns], "counts": rle_text(counts)}
    fields = {key: thing[key] for key in FIELDS if isinstance(thing.get(key), int | float)}
    objects.add(None, (left, top, left + width, top + height), fields=fields)
