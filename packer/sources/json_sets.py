"""Sets with JSON of their own: BDD100K, also as Scalabel writes it, and CrowdHuman."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import Any

from packer.errors import BadLabel, UsageError, printable
from packer.model.annotation import IGNORED, Json, Point
from packer.sources.by_name import (
    MASK,
    MOST_JSON_BYTES,
    ImageEntry,
    LabelledObjects,
    NamedFilesSource,
    read_json,
    whole_size,
)
from packer.sources.coco_objects import FEWEST_POINTS, join_rings, mask_box, read_rle, rle_text
from packer.sources.paths import (
    as_bytes,
    as_text,
    coordinate,
    folder_of,
    json_text,
    name_in,
    splits_in,
    spread,
    stem_of,
)
from packer.sources.source import LOOKS, Tree
from packer.sources.tree import lines_of, needed, read_file, read_head

HEAD_BYTES = 1 << 16
OF_BDD = re.compile(
    rb'"(?:box2d|poly2d|box3d)"\s*:|"labels"\s*:\s*\[\s*\{[^{}\]]*"rle"\s*:|"frames"\s*:\s*\[\s*\{\s*"timestamp"'
)
NAMES = {"crowd": "iscrowd", "ignored": "ignore"}
"""What Scalabel calls the flags of ignored regions (scalabel, label/utils.py)."""
FLAGS = frozenset(("occluded", "truncated", *NAMES))
NO_FIELD = {"rle": MASK, "poly2d": "line", "box3d": "cuboid", "graph": "graph"}
"""Member of a label -> the kind of shape that it is."""
STEPS = 8
"""Lines in place of a curve."""
MISTAKES = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


def _split_in(path: bytes) -> str | None:
    """Return the split that a file, or else its folder, is named after."""
    folder, _, name = path.rpartition(b"/")
    found = {word for word, _ in splits_in(name) or splits_in(folder)}
    return as_text(found.pop()) if len(found) == 1 else None


def _bdd_entries(tree: Tree, path: bytes, with_masks: bool) -> Iterator[ImageEntry]:
    content = read_json(tree, path)
    if isinstance(content, dict) and "name" not in content:
        content = content.get("frames")
    frames = [content] if isinstance(content, dict) else content
    if not isinstance(frames, list):
        raise BadLabel(path, "is neither a list of images nor a mapping with frames", "export it again")
    split = _split_in(path)
    for i, frame in enumerate(frames, 1):
        origin = f"{printable(path)}: image {i}"
        name, size = b"", None
        objects: LabelledObjects | BadLabel = (found := LabelledObjects(with_masks=with_masks))
        try:
            name = as_bytes(frame["name"])
            size = whole_size((frame.get("size") or {}).get("width"), (frame.get("size") or {}).get("height"))
            found.extras = {key: _plain(value) for key, value in (frame.get("attributes") or {}).items()}
            for label in _bdd_labels(frame):
                _add_bdd_object(found, label)
        except MISTAKES as error:
            objects = BadLabel(origin, f"is not as BDD100K and Scalabel write it: {error!r}", "fix the entry")
        yield ImageEntry(origin, name, objects, folder_of(path), split, size)


def _bdd_labels(frame: dict[str, Any]) -> Iterable[Any]:
    """Return the objects of an image, of which the files with one image have a frame at ten seconds."""
    if "frames" not in frame:
        return frame.get("labels") or ()
    if len(frame["frames"]) > 1:
        raise ValueError(f"has {len(frame['frames'])} frames")
    return [label for one in frame["frames"] for label in one.get("objects") or ()]


def _add_bdd_object(objects: LabelledObjects, label: dict[str, Any]) -> None:
    name = name_in(label["category"])
    fields = dict(starmap(_field, (label.get("attributes") or {}).items()))
    is_lane = any(key.startswith("lane") for key in (name, *fields))
    rings = list(_rings(label.get("poly2d") or (), is_lane))
    box: Sequence[float] | None = None
    if label.get("box2d"):
        box = [coordinate(label["box2d"][edge]) for edge in ("x1", "y1", "x2", "y2")]
    drawn = {"poly2d": rings, "rle": objects.with_masks}
    objects.no_field.update(what for key, what in NO_FIELD.items() if label.get(key) and not drawn.get(key))
    if label.get("rle") and objects.with_masks:
        height, width, counts = read_rle(label["rle"]["size"], label["rle"]["counts"])
        box = box or (mask_box(height, counts) if any(counts[1::2]) else None)
        if box:
            objects.shapes[len(objects.boxes)] = {"size": [height, width], "counts": rle_text(counts)}
    if box or rings:
        objects.add(name, box, join_rings(rings) if rings else (), fields=fields)
    elif not any(label.get(key) for key in NO_FIELD):
        objects.no_field["empty object"] += 1


def _rings(polygons: Sequence[Any], is_lane: bool) -> Iterator[list[Point]]:
    """Yield the outlines of areas, which need not be marked as closed; older ones are [[x, y, "L"], ...]."""
    if polygons and isinstance(polygons[0], list):
        types = "".join(point[2] for point in polygons)
        polygons = [{"vertices": [point[:2] for point in polygons], "types": types}]
    for polygon in polygons:
        points = [(coordinate(x), coordinate(y)) for x, y in polygon["vertices"]]
        if (polygon.get("closed") or not is_lane) and len(points) >= FEWEST_POINTS:
            yield _with_curves(points, polygon.get("types") or "")


def _with_curves(points: list[Point], types: str) -> list[Point]:
    """Return an outline in which lines stand for curves: three points of type C are those of a cubic Bezier curve."""
    found: list[Point] = []
    i = 0
    while i < len(points):
        if found and types[i : i + 3] == "CCC" and i + 3 <= len(points):
            curve = [found[-1], *points[i : i + 3]]
            for step in range(1, STEPS + 1):
                t = step / STEPS
                weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
                x, y = (sum(w * p[axis] for w, p in zip(weights, curve, strict=True)) for axis in (0, 1))
                found.append((x, y))
            i += 3
        else:
            found.append(points[i])
            i += 1
    return found


def _field(key: str, value: Any) -> tuple[str, Json]:
    """Return the name and the value of an attribute; those of tracking are called Occluded, ..."""
    name = key.lower()
    return (NAMES.get(name, name), _flag(key, value)) if name in FLAGS else (key, _plain(value))


def _flag(name: str, value: Any) -> int:
    if value not in (True, False):
        raise ValueError(f"{name}: {json_text(value)} is neither true nor false")
    return int(value)


def _plain(value: Any) -> Json:
    return int(value) if isinstance(value, bool) else value


def _is_bdd(tree: Tree, path: bytes) -> bool:
    try:
        return OF_BDD.search(read_head(tree, path, HEAD_BYTES)) is not None
    except BadLabel:
        return False


class BddSource(NamedFilesSource):
    """JSON files of BDD100K and Scalabel: a file of all images, or one of each."""

    kind, ending = "bdd100k", b".json"
    are = "is JSON of BDD100K", "are JSON of BDD100K"

    @classmethod
    def files_in(cls, tree: Tree) -> list[bytes]:
        """Return the files of this format: all of them are looked at if one of a few is such."""
        files = super().files_in(tree)
        if not any(_is_bdd(tree, path) for path in spread(files, LOOKS)):
            return []
        return [path for path in files if _is_bdd(tree, path)]

    def entries(self, tree: Tree, files: Sequence[bytes]) -> Iterator[ImageEntry]:
        """Yield the entries of all files. One that cannot be read is a bad label if it is that of one image."""
        stems = {stem_of(image) for image in tree.images}
        for path in files:
            try:
                yield from _bdd_entries(tree, path, self.instance_masks)
            except BadLabel as error:
                if stem_of(path) not in stems:
                    raise UsageError(path, error.problem, error.next_step) from None
                yield ImageEntry(printable(path), stem_of(path), error, folder_of(path))


def _crowdhuman_entries(tree: Tree, path: bytes) -> Iterator[ImageEntry]:
    with needed(path):
        lines = lines_of(read_file(tree, path, MOST_JSON_BYTES))
    split = _split_in(path)
    for count, line in enumerate(lines, 1):
        if not line.strip():
            continue
        origin, name = f"{printable(path)}:{count}", b""
        objects: LabelledObjects | BadLabel = (found := LabelledObjects())
        try:
            item = json.loads(line)
            name = as_bytes(item["ID"])
            for person in item["gtboxes"]:
                _add_person(found, person)
        except MISTAKES as error:
            objects = BadLabel(origin, f"is not as CrowdHuman has it: {error!r}", "fix the line")
        yield ImageEntry(origin, name, objects, folder_of(path), split)


def _add_person(objects: LabelledObjects, item: dict[str, Any]) -> None:
    """Add an object: what is no person, as a crowd or a reflection, has the tag "mask" and is ignored."""
    extra, tag = item.get("extra") or {}, name_in(item["tag"])
    fields: dict[str, Json] = {key: [coordinate(v) for v in item[key]] for key in ("vbox", "hbox") if key in item}
    fields |= {"occluded": _flag("occ", extra.get("occ", 0)), "ignore": _flag("ignore", extra.get("ignore", 0))}
    x, y, width, height = map(coordinate, item["fbox"])
    objects.add(IGNORED if tag == MASK else tag, (x, y, x + width, y + height), fields=fields)


class CrowdHumanSource(NamedFilesSource):
    """The .odgt files of CrowdHuman: JSON, a line for each image."""

    kind, ending, words = "crowdhuman", b".odgt", (b'"gtboxes"',)
    are = "is a list of CrowdHuman", "are lists of CrowdHuman"
    read = staticmethod(_crowdhuman_entries)
