"""Supervisely: a JSON file for each image, ``DATASET/img/1.jpg`` and ``DATASET/ann/1.jpg.json``.

Its SDK writes the numbers of pixels: both corners of a rectangle are inside, and points are the centers of pixels
(supervisely, geometry/rectangle.py and geometry.py). An image with fractions has coordinates as those of packer.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from packer.errors import BadInput, BadLabel, printable
from packer.images.masks import read_mask_header
from packer.images.pillow import decode_shown
from packer.model.annotation import Json, Mask, Point
from packer.sources.box_corners import extent
from packer.sources.by_name import (
    MISTAKES,
    Bitmap,
    ImageEntry,
    LabelledObjects,
    NamedFilesSource,
    files_like,
    read_json,
    whole_size,
)
from packer.sources.paths import are_splits, coordinate, folder_of, name_in, spread, stem_of
from packer.sources.source import LOOKS, Tree
from packer.sources.tree import MIB, read_head

HEAD_BYTES = 4096
WORDS = (b'"classTitle"', b'"objects"', b'"tags"', b'"size"')
MOST_PNG_BYTES = 64 * MIB
IMAGES, LABELS = b"img", b"ann"
PIXEL, CENTER = 1.0, 0.5
Shape = dict[str, Any]


class SuperviselySource(NamedFilesSource):
    """A project of Supervisely, or one of its datasets."""

    takes_file = False
    kind, ending = "supervisely", b".json"
    are = "is a label of Supervisely", "are labels of Supervisely"

    @classmethod
    def files_in(cls, tree: Tree) -> list[bytes]:
        """Return the JSON files in folders called ann, if a few of them are of Supervisely."""
        files = [path for path in files_like(tree, b".json") if folder_of(path).rpartition(b"/")[2] == LABELS]
        heads = (read_head(tree, path, HEAD_BYTES, HEAD_BYTES) for path in spread(files, LOOKS))
        return files if any(sum(word in head for word in WORDS) > 2 for head in heads) else []

    def entries(self, tree: Tree, files: Sequence[bytes]) -> Iterator[ImageEntry]:
        """Yield the entry of each file."""
        of_stem = {folder_of(image) + b"/" + stem_of(image): image for image in tree.images}
        for path in files:
            folder = folder_of(path)[: -len(LABELS)] + IMAGES
            name = folder + b"/" + stem_of(path)
            yield self._entry(tree, path, of_stem.get(name, name))  # older projects have 1.json for 1.jpg

    def _entry(self, tree: Tree, path: bytes, name: bytes) -> ImageEntry:
        objects: LabelledObjects | BadLabel = (found := LabelledObjects(with_masks=self.instance_masks))
        size, split = None, None
        try:
            content = read_json(tree, path)
            size = whole_size(content["size"]["width"], content["size"]["height"])
            is_exact = not all(float(value).is_integer() for value in _coordinates(content["objects"]))
            for thing in content["objects"]:
                _add_object(found, thing, size, (0.0, 0.0) if is_exact else (PIXEL, CENTER))
            split = _add_tags(found, content.get("tags") or ())
        except BadLabel as error:
            objects = error
        except MISTAKES as error:
            objects = BadLabel(path, f"is not as Supervisely writes it: {error!r}", "fix the label")
        return ImageEntry(printable(path), name, objects, b"", split, size)


def _coordinates(objects: Iterable[Shape]) -> Iterator[float]:
    points = (thing.get("points") or {} for thing in objects)
    rings = (ring for one in points for ring in (one.get("exterior") or (), *(one.get("interior") or ())))
    return map(coordinate, chain.from_iterable(chain.from_iterable(rings)))


def _add_object(
    objects: LabelledObjects, thing: Shape, size: tuple[int, int] | None, shift: tuple[float, float]
) -> None:
    kind, name = name_in(thing.get("geometryType") or _kind_of(thing)), name_in(thing["classTitle"])
    fields: dict[str, Json] = {key: 1 if value is None else value for key, value in _tags(thing.get("tags") or ())}
    if kind == "bitmap":
        x, y = (int(coordinate(value)) for value in thing["bitmap"]["origin"])
        objects.add_mask(name, Bitmap(partial(read_bitmap, thing["bitmap"]["data"]), (x, y), size), fields)
    elif kind == "rectangle":
        left, top, right, bottom = extent(thing["points"]["exterior"])
        objects.add(name, (left, top, right + shift[0], bottom + shift[0]), fields=fields)
    elif kind == "polygon":
        rings = [thing["points"]["exterior"], *(thing["points"].get("interior") or ())]
        objects.add_rings(name, [_moved(ring, shift[1]) for ring in rings], size, fields)
    elif kind == "point":
        (place,) = _moved(thing["points"]["exterior"], shift[1])
        objects.points.append((name, place))
    else:
        objects.no_field[kind] += 1


def _kind_of(thing: Shape) -> str:
    """Return what an object of an older project is, which does not say it."""
    return "bitmap" if thing.get("bitmap") else "rectangle" if len(thing["points"]["exterior"]) == 2 else "polygon"


def _moved(ring: Iterable[Sequence[Any]], by: float) -> list[Point]:
    return [(coordinate(x) + by, coordinate(y) + by) for x, y in ring]


def _tags(tags: Iterable[Shape]) -> Iterator[tuple[str, str | float | None]]:
    """Yield the name of each tag, and its value if it has one."""
    for tag in tags:
        value = None if tag.get("value") == "" else tag.get("value")
        yield name_in(tag["name"]), value if value is None or isinstance(value, str) else coordinate(value)


def _add_tags(objects: LabelledObjects, tags: Iterable[Shape]) -> str | None:
    """Add the tags of an image, and return the split that one of them names."""
    split = None
    for name, value in _tags(tags):
        if value is not None:
            objects.extras[name] = value
        elif are_splits([name]):
            split = name
        else:
            objects.labels.append(name)
    return split


def read_bitmap(text: str) -> Mask:
    """Return the pixels of a mask: a PNG, deflated, in base64. Raise ValueError if it cannot be read."""
    try:
        data = b64decode(text, validate=True)
        if not data.startswith(b"\x89PNG"):
            data = zlib.decompressobj().decompress(data, MOST_PNG_BYTES)
        shown: Mask = decode_shown(data, read_mask_header(data, True, len(data)))
    except (zlib.error, binascii.Error) as error:
        raise ValueError(f"its bitmap cannot be read: {error}") from None
    except BadInput as error:
        raise ValueError(f"its bitmap {error.problem}") from None
    return shown
