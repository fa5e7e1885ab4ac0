"""Small formats of labels, each a file for all images: Create ML, VoTT, WIDER FACE, and the formats of Datumaro."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from numpy import asarray

from packer.errors import BadLabel, NotInstalled, UsageError, option, printable
from packer.sources.by_name import (
    MASK,
    VISIBLE,
    Bitmap,
    ByNameSource,
    ImageEntry,
    LabelledObjects,
    NamedFilesSource,
    read_json,
    whole_size,
)
from packer.sources.datumaro_json import datumaro_entries, datumaro_files
from packer.sources.paths import as_bytes, coordinate, folder_of, name_in, number, some_paths, spread
from packer.sources.source import LOOKS, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, lines_of, needed, read_file, read_head
from packer.system.machine import install_command


def _createml_entries(tree: Tree, path: bytes) -> Iterator[ImageEntry]:
    with needed(path):
        items = read_json(tree, path)
    if not isinstance(items, list):
        raise UsageError(path, "is not a list of images", "export it again")
    return (_createml_entry(path, i, item) for i, item in enumerate(items, 1))


def _createml_entry(path: bytes, number: int, item: Any) -> ImageEntry:
    origin = f"{printable(path)}: image {number}"
    name = b""
    objects: LabelledObjects | BadLabel = (boxes := LabelledObjects())
    try:
        name = as_bytes(item["image"] if "image" in item else item["imagefilename"])
        for box in item["annotations"] if "annotations" in item else item["annotation"]:
            place = box["coordinates"]
            x, y, w, h = (coordinate(place[key]) for key in ("x", "y", "width", "height"))
            boxes.add(name_in(box["label"]), (x - w / 2, y - h / 2, x + w / 2, y + h / 2))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        objects = BadLabel(origin, f"is not as Create ML writes it: {error!r}", "fix the entry")
    return ImageEntry(origin, name, objects, folder_of(path))


class CreateMlSource(NamedFilesSource):
    """JSON files of Create ML."""

    kind, ending, words = "createml", b".json", (b'"image', b'"annotation', b'"coordinates"', b'"label"')
    are = "has boxes of Create ML", "have boxes of Create ML"
    read = staticmethod(_createml_entries)


def _vott_entries(tree: Tree, path: bytes) -> Iterator[ImageEntry]:
    try:
        with needed(path):
            assets = read_json(tree, path)["assets"].items()
    except (KeyError, TypeError, AttributeError):
        raise UsageError(path, "has no assets, so VoTT did not write it", "export it again") from None
    for key, item in assets:
        origin = f"{printable(path)}: asset {printable(key)}"
        name, size = b"", None
        objects: LabelledObjects | BadLabel = (regions := LabelledObjects())
        try:
            asset = item["asset"]
            name = as_bytes(asset["name"])
            size = whole_size(asset.get("size", {}).get("width"), asset.get("size", {}).get("height"))
            for region in item["regions"]:
                _add_vott_region(regions, region)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            objects = BadLabel(origin, f"is not as VoTT writes it: {error!r}", "fix the entry")
        yield ImageEntry(origin, name, objects, folder_of(path), None, size)


def _add_vott_region(objects: LabelledObjects, region: dict[str, Any]) -> None:
    for tag in region["tags"] or [None]:  # VoTT's own exporters write an object for each tag, too
        _add_vott_object(objects, region, None if tag is None else name_in(tag))


def _add_vott_object(objects: LabelledObjects, region: dict[str, Any], name: str | None) -> None:
    if region.get("type", "RECTANGLE") in ("RECTANGLE", "SQUARE"):
        left, top, width, height = (
            coordinate(region["boundingBox"][key]) for key in ("left", "top", "width", "height")
        )
        objects.add(name, (left, top, left + width, top + height))
    else:
        objects.add(name, polygon=[(point["x"], point["y"]) for point in region["points"]])


class VottSource(NamedFilesSource):
    """JSON exports of VoTT, by the name that it gives them."""

    kind, ending = "vott", b"-export.json"
    are = "is an export of VoTT", "are exports of VoTT"
    read = staticmethod(_vott_entries)


FIELDS = ("blur", "expression", "illumination", "invalid", "occlusion", "pose")
FACE = "face"
MOST_BYTES = 256 * MIB
SPLIT = re.compile(rb"wider_face_([a-z]+)_bbx_gt\.txt")


# WIDER FACE's lists: the path of an image, the number of its faces, and a line for each face.
#
# ``x y w h blur expression illumination invalid occlusion pose``; an image without faces has one line of zeros.


def _widerface_entries(tree: Tree, path: bytes) -> Iterator[ImageEntry]:
    with needed(path):
        lines = lines_of(read_file(tree, path, MOST_BYTES))
    match = SPLIT.fullmatch(path.rpartition(b"/")[2])
    split = match[1].decode() if match else None
    i = 0
    while i < len(lines):
        name, where = lines[i].strip(), f"{printable(path)}:{i + 1}"
        i += 1
        if not name:
            continue
        count = lines[i].strip() if i < len(lines) else b""
        if not re.fullmatch(rb"[0-9]{1,6}", count):
            raise UsageError(f"{printable(path)}:{i + 1}", "is not the number of faces", "fix the list")
        rows = lines[i + 1 : i + 1 + max(1, int(count))]
        if int(count) == 0 and rows and b"." in rows[0]:
            rows = []  # the line of zeros is missing: this is the next image
        i += 1 + len(rows)
        objects: LabelledObjects | BadLabel = (faces := LabelledObjects())
        try:
            for row in rows[: int(count)]:
                _add_widerface_row(faces, row)
        except ValueError as error:
            objects = BadLabel(where, str(error), "fix the list")
        yield ImageEntry(where, name, objects, folder_of(path), split)


def _add_widerface_row(objects: LabelledObjects, row: bytes) -> None:
    values = [number(token) for token in row.split()]
    if len(values) not in (4, 4 + len(FIELDS)):
        raise ValueError(f"a face has {len(values)} numbers, not 4 or {4 + len(FIELDS)}")
    x, y, w, h = values[:4]
    fields = dict(zip(FIELDS, map(int, values[4:]), strict=False))
    if fields:
        fields["ignore"] = int(fields["invalid"] != 0)
    objects.add(FACE, (x, y, x + w, y + h), fields=fields)


class WiderFaceSource(NamedFilesSource):
    """The lists of WIDER FACE, by their names."""

    kind, ending = "widerface", b"_bbx_gt.txt"
    are = "lists faces", "list faces"
    read = staticmethod(_widerface_entries)


FORMATS = {
    "lfw": ("annotations/pairs.txt",),
    "vgg_face2": ("bb_landmark/loose_bb_",),
    "celeba": ("anno/identity_celeba.txt",),
    "align_celeba": ("anno/list_landmarks_align_celeba.txt",),
    "mpii": ("mpii_human_pose_v1_u12_1.mat",),
    "mpii_json": ("mpii_annotations.json",),
    "datumaro": ("annotations/",),
    "imagenet_txt": ("synsets.txt",),
    "mot_seq": ("gt/gt.txt",),
}
"""Name of a Datumaro format -> parts of the lower-case paths of files by which it is recognized."""
WORDS = {"datumaro": re.compile(rb'"categories"\s*:\s*\{\s*"(?:label|points|mask)"')}
"""Name of a format whose files have no names of their own -> what is in the first KiB of one."""
MOVED = {
    "dota": "dota", "kitti_detection": "kitti", "icdar_text_localization": "icdar", "open_images": "openimages",
    "label_me": "labelme",
}  # fmt: skip
"""Those that packer reads itself -> its kind."""
OWN = "datumaro"
"""Its own format, which needs no library."""
OF_MPII = frozenset(("mpii", "mpii_json"))
"""The sets that say of a joint whether it is visible, which Datumaro leaves as it is: COCO's numbers are others."""
NO_FIELD = {"polyline": "line", "caption": "caption", "ellipse": "ellipse", "cuboid_3d": "cuboid"}


# Formats that Datumaro reads (``pip install datumaro``), which packer has no source of its own for.
#
# Datumaro holds the whole set in memory, and so does this source. Its importers for formats that packer reads itself
# are not used: some of them lose or move annotations. Those that unpickle files are not used either.


class DatumaroSource(ByNameSource):
    """A dataset that Datumaro reads: ``--labels datumaro:FORMAT``, or ``--labels datumaro`` to let it find the format.

    Raises:
        NotInstalled: Datumaro is not installed.
        UsageError: The format is unknown or does not fit, or Datumaro cannot read the set.
    """

    takes_file = "optional"

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        if options.file in (None, OWN) and (files := datumaro_files(tree)):
            super().__init__(tree, options, datumaro_entries(tree, files, options.instance_masks), files)
            return
        if tree.members is not None:
            problem = "cannot be read by Datumaro, which reads no archives and no object stores"
            raise UsageError(tree.root, problem, "give it as a folder on this machine")
        name = options.file or _only_format(tree)
        if name not in FORMATS:
            step = f"choose one of {', '.join(sorted(FORMATS))}"
            if name in MOVED:
                step = f"packer reads it itself: {option('labels', MOVED[name])}"
            raise UsageError(option("labels", f"datumaro:{name}"), "is not a format for Datumaro", step)
        if importlib.util.find_spec("datumaro") is None:
            step = f"{install_command('datumaro')}, then pass --labels=datumaro:{name}"
            raise NotInstalled("", f"Datumaro, which reads {name}, is not installed", step)
        super().__init__(tree, options, _datumaro_entries(tree, name, options.instance_masks), _files_of(tree, name))

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return the formats whose files are there, by their names; its own JSON by its content."""
        if files := datumaro_files(tree):
            return [Choice("datumaro", f"{some_paths(files)} {'is' if len(files) == 1 else 'are'} JSON of Datumaro")]
        return [
            Choice(f"datumaro:{name}", f"{printable(files[0])} is a file of {name}, which Datumaro reads")
            for name in FORMATS
            if (files := _files_of(tree, name))
        ]


def _files_of(tree: Tree, name: str) -> list[bytes]:
    parts = [part.encode() for part in FORMATS[name]]
    found = [path for path in tree.files if any(part in b"/" + path.lower() for part in parts)]
    if (words := WORDS.get(name)) is None:
        return found
    found = [path for path in found if path.lower().endswith(b".json")]
    return found if any(words.search(read_head(tree, path, 1024)) for path in spread(found, LOOKS)) else []


def _only_format(tree: Tree) -> str:
    found = [choice.spec.partition(":")[2] for choice in DatumaroSource.recognize(tree)]
    if len(found) == 1:
        return found[0]
    choices = ", ".join(found or sorted(FORMATS))
    problem = f"{len(found) or 'none'} of its formats fit" if len(found) != 1 else ""
    raise UsageError(option("labels", "datumaro"), problem, f"name one of them, --labels=datumaro:FORMAT: {choices}")


def _datumaro_entries(tree: Tree, name: str, masks: bool) -> Iterator[ImageEntry]:
    from datumaro import Dataset

    try:
        dataset = Dataset.import_from(os.fsdecode(tree.root), name)
        items = list(dataset)
    except Exception as error:  # its importers raise whatever they meet
        problem = f"Datumaro cannot read it as {name}: {', because of '.join(_causes(error))}"
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        step = f"pip install {lacks}" if lacks else "choose another kind of --labels"
        raise UsageError(tree.root, problem, step) from None
    categories = dataset.categories()
    labels = next((value for key, value in categories.items() if key.name == "label"), ())
    names = [label.name for label in labels]
    most = max((sum(a.type.name == "points" for a in item.annotations) for item in items), default=0)
    for item in items:
        path = getattr(item.media, "path", None)
        written = as_bytes(path) if path and os.path.isfile(path) else as_bytes(item.id)
        origin = f"{name}: {printable(item.id)}"
        objects = LabelledObjects(with_masks=masks)
        _add_datumaro_objects(objects, item, names, most == 1, name in OF_MPII)
        yield ImageEntry(origin, written, objects, split=_split_of(item.subset))


def _causes(error: BaseException | None) -> Iterator[str]:
    """Yield an error and what caused it, which Datumaro's own errors do not say."""
    while error is not None:
        yield f"{type(error).__name__}: {printable(str(error))}".rstrip(": .")
        error = error.__cause__


def _split_of(subset: str | None) -> str | None:
    return None if subset in (None, "default") else subset


def _add_datumaro_objects(objects: LabelledObjects, item: Any, names: list[str], one_set: bool, of_mpii: bool) -> None:
    """Map the annotations of an item.

    A point set is the landmarks of its image if no image has two of them; otherwise it is keypoints, of the box in its
    group if there is one. Those of MPII always are keypoints, because they say what is visible.
    """
    one_set = one_set and not of_mpii
    points_in = partial(_points, of_mpii=of_mpii)
    annotations = sorted(item.annotations, key=lambda a: a.type.name not in ("points", "skeleton"))
    points_of = {} if one_set else {a.group: a for a in annotations if a.type.name == "points" and a.group}
    boxed = {a.group for a in annotations if a.type.name == "bbox" and a.group in points_of}
    for annotation in annotations:
        kind, label = annotation.type.name, getattr(annotation, "label", None)
        name = names[label] if label is not None and label < len(names) else None
        fields = {key: _plain(value) for key, value in annotation.attributes.items()}
        if kind == "label":
            objects.labels.append(name or str(label))
        elif kind == "bbox":
            x, y, w, h = annotation.get_bbox()
            of_box = points_of.get(annotation.group) if annotation.group in boxed else None
            objects.add(name, (x, y, x + w, y + h), keypoints=points_in(of_box), fields=fields)
        elif kind == "polygon":
            objects.add(name, polygon=_pairs(annotation.points), fields=fields)
        elif kind == "rotated_bbox":
            objects.add(name, obb=annotation.as_polygon(), fields=fields)
        elif kind == MASK:
            image = annotation.image
            objects.add_mask(name, Bitmap(partial(asarray, image), (0, 0), image.shape[::-1]), fields)
        elif kind == "points" and one_set:
            objects.landmarks = tuple(_pairs(annotation.points))
        elif kind == "points":
            if annotation.group not in boxed:
                objects.add(name, keypoints=points_in(annotation), fields=fields)
        elif kind == "skeleton":
            points = [point for element in annotation.elements for point in points_in(element)]
            objects.add(name, keypoints=points, fields=fields)
        else:
            objects.no_field[NO_FIELD.get(kind, kind)] += 1
    objects.extras = {key: _plain(value) for key, value in item.attributes.items()}


def _pairs(points: Iterable[float]) -> list[tuple[float, float]]:
    values = [float(value) for value in points]
    return list(zip(values[::2], values[1::2], strict=True))


def _points(points: Any, of_mpii: bool = False) -> list[tuple[float, float, float]]:
    """Return (x, y, visibility) of a point set; Datumaro's visibilities are those of COCO, but for MPII 0 or 1."""
    if points is None:
        return []
    pairs = [(x, y, float(v.value)) for (x, y), v in zip(_pairs(points.points), points.visibility, strict=True)]
    if not of_mpii:
        return pairs
    return [(x, y, VISIBLE if v else float(x > 0 or y > 0)) for x, y, v in pairs]


def _plain(value: Any) -> Any:
    """Return an attribute as JSON can hold it."""
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float | str) or value is None else str(value)
