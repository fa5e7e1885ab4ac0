"""The information about a pack and its records that the page shows, as JSON values."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from threading import Lock
from typing import Any

import numpy as np

from packer.errors import PackerError, UsageError, plural, printable, size_text
from packer.format.lists import read_list
from packer.format.manifest import of_parts
from packer.format.pack import Pack
from packer.model.annotation import Annotation, PartSpec
from packer.model.fields import BY_NAME, LISTS, OBJECTS, TEXTS, Field, only_boxes
from packer.model.geometry import Geometry, move
from packer.stats.problems import ORDER, DataProblem, Example, Problems, find_problems
from packer.view.catalog import RecordSet
from packer.view.image_figures import figures_text, offered
from packer.view.part_facts import (
    MOST_DRAWN,
    OVERLAYS,
    TILE_SIDE,
    Region,
    legend_of,
    outline_facts,
    part_facts,
    specs_of,
    target_parts,
)
from packer.view.pictures import LARGEST_SIDE, Pictures, data_uri, problem_of
from packer.view.predicted import difference_specs, equal_id, named_predictions, predicted_facts
from packer.view.windows import INNER, ValueWindow

DRAWN = tuple(field for field in LISTS if field.moves or field.classes)
"""What is drawn in an image: places, and the classes of boxes."""
VALUE = BY_NAME["value"]
MOST_POINTS = 400
"""Maximum number of points drawn of a polygon."""
MOST_REJECTED = 2000
MOST_NAMED = 100
"""Classes in the legend of a difference; where none has a name, there are 256."""

COCO_FLIPS = (0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15)
"""flip_index of the 17 points of a person in COCO, by which they are recognized: a pack does not store a skeleton."""
_SIDES = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
COCO_POINTS = ["nose", *(f"{side} {name}" for name in _SIDES for side in ("left", "right"))]
COCO_BONES = [
    (15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10),
    (1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6),
]  # fmt: skip
"""The skeleton of COCO's annotation files, with points counted from 0."""
_MARGIN = 0.1
"""Share of a box's sides that is shown around it where it is cut out."""


def pack_facts(pack: Pack) -> dict[str, Any]:
    """Return name, size, classes and fields of the pack, and the number of rejected inputs."""
    manifest, specs, differing = pack.manifest, specs_of(pack), list(difference_specs(pack).values())
    size = sum(shard.container.bytes + shard.index.bytes for shard in pack.reader.shards)
    names = [printable(os.path.basename(part.path.rstrip("/")) or part.path) for part in pack.packs]
    return {
        "name": " + ".join(names),
        "packs": [{"name": name, "records": len(part)} for name, part in zip(names, pack.packs, strict=True)],
        "path": printable(pack.path),
        "records": len(pack),
        "container": ", ".join(dict.fromkeys(part.manifest.container for part in pack.packs)),
        "encoding": manifest.encoding,
        "size": size_text(size),
        "shape": manifest.shape,
        "classes": [printable(name) for name in manifest.classes],
        "fields": list(manifest.fields),
        "overlays": [spec.name for spec in (*specs, *differing) if spec.kind in OVERLAYS],
        "masks": {
            name: {"legend": legend_of(facts), "ignore": facts.ignore, "background": facts.background}
            for name, facts in of_parts(specs)["masks"].items()
        }
        | {
            spec.name: {
                "legend": [*enumerate(spec.classes)][-MOST_NAMED:],
                "ignore": None,
                "background": equal_id(spec),
            }
            for spec in differing
        },
        "predictions": named_predictions(pack),
        "skeleton": COCO_BONES if manifest.flip_index == COCO_FLIPS else None,
        "points": COCO_POINTS if manifest.flip_index == COCO_FLIPS else None,
        "deep": manifest.dtype != "uint8",
        "maps": [spec.name for spec in specs if spec.kind == "map"],
        "rejected": sum(part.manifest.counts["rejected"] for part in pack.packs),
        "figures": offered(pack),
        "values": _most_values(pack),
    }


def _most_values(pack: Pack) -> int:
    if "value" not in pack.manifest.fields:
        return 0
    column: Any = pack.column("value")
    return int(column.lengths.max(initial=0))


def rejected_facts(pack: Pack) -> dict[str, Any]:
    """Return the first MOST_REJECTED inputs that are not in the pack, with reasons."""
    lists = chain.from_iterable(read_list(part.path, "rejected", part.manifest) for part in pack.packs)
    rejected = islice(lists, MOST_REJECTED)
    rows = [
        {"path": printable(r.path), "reason": printable(r.reason), "problem": printable(r.problem)} for r in rejected
    ]
    return {
        "total": sum(part.manifest.counts["rejected"] for part in pack.packs),
        "rejected": rows,
        "notes": [printable(note) for part in pack.packs for note in part.manifest.notes],
    }


def tile_facts(pack: Pack, record: int, side: int = TILE_SIDE, colors: ValueWindow = INNER) -> dict[str, Any]:
    """Return the content of a record's tile, without its picture; raise DamagedPack if its row is damaged."""
    height, width, _ = pack.reader.shape_of(record)
    annotation = pack.annotation(record)
    return {
        "record": record,
        "key": printable(pack.key(record)),
        **_source_names(pack, record),
        "width": width,
        "height": height,
        **drawn_facts(annotation),
        **outline_facts(pack, record, annotation, side),
        **part_facts(pack, record, side, colors=colors),
        **predicted_facts(pack, record),
    }


def _source_names(pack: Pack, record: int) -> dict[str, str]:
    path = bytes(pack.column("path")[record])
    return {"file": printable(os.path.basename(path)), "path": printable(path)}


def crop_facts(pack: Pack, record: int, box: int, colors: ValueWindow = INNER) -> tuple[dict[str, Any], Region]:
    """Return the content of the tile of one box of a record, and the region to cut out: x, y, width, height.

    Raises:
        DamagedPack: The row is damaged.
    """
    height, width, _ = pack.reader.shape_of(record)
    annotation = pack.annotation(record)
    annotation = only_boxes(annotation, np.arange(0 if annotation.boxes is None else len(annotation.boxes)) == box)
    x1, y1, x2, y2 = map(float, np.nan_to_num(annotation.boxes[0])) if annotation.boxes is not None else (0.0,) * 4
    side_x, side_y = max(2.0, _MARGIN * (x2 - x1)), max(2.0, _MARGIN * (y2 - y1))
    left, top = (int(min(max(0, low), size - 1)) for low, size in ((x1 - side_x, width), (y1 - side_y, height)))
    right, bottom = math.ceil(min(max(left + 1, x2 + side_x), width)), math.ceil(min(max(top + 1, y2 + side_y), height))
    region = (left, top, right - left, bottom - top)
    facts = {
        "record": record,
        "box": box,
        "key": printable(pack.key(record)),
        **_source_names(pack, record),
        "width": region[2],
        "height": region[3],
        **drawn_facts(move(annotation, Geometry(1, 0, -left, 0, 1, -top, region[2], region[3]))),
        **outline_facts(pack, record, annotation, TILE_SIDE, region),
        **part_facts(pack, record, TILE_SIDE, region, colors),
        **predicted_facts(pack, record, region),
    }
    return facts, region


def drawn_facts(annotation: Annotation) -> dict[str, Any]:
    """Return the parts of an annotation that are drawn, in pixels of its image."""
    facts: dict[str, Any] = {"label": annotation.label}
    if annotation.value is not None:
        facts["value"] = ", ".join(f"{number:.6g}" for number in annotation.value.tolist())
    if annotation.boxes is not None:
        facts["box_count"] = len(annotation.boxes)
    if (ignored := annotation.ignored).any():
        facts["ignored"] = ignored[:MOST_DRAWN].tolist()
    there = [(field, getattr(annotation, field.name)) for field in DRAWN]
    return facts | {field.name: _drawn(field, value) for field, value in there if value is not None}


def _drawn(field: Field, value: Any) -> Any:
    if field.per_box:
        value = value[:MOST_DRAWN]
    if field.classes:
        return value.tolist()
    return [numbers(_thin_points(one)) for one in value] if isinstance(value, tuple) else numbers(value)


def drawn_boxes(facts: Mapping[str, Any], boxes: Sequence[int]) -> dict[str, Any]:
    """Return `drawn_facts` with only these boxes and their classes."""
    only: dict[str, Any] = {field.name: [] for field in DRAWN if field.name in facts or field.name in OBJECTS}
    # outlines and predictions are in the frame of the image, and what is ignored is of all its boxes
    facts = {name: value for name, value in facts.items() if name not in ("outlines", "predictions", "ignored")}
    return {**facts, **only, **{name: [facts[name][box] for box in boxes] for name in OBJECTS if name in facts}}


def record_facts(pack: Pack, record: int, colors: ValueWindow = INNER) -> dict[str, Any]:
    """Return all fields of a record, its position and its source; raise DamagedPack if its row is damaged."""
    annotation = pack.annotation(record)
    shard, row = pack.reader.locate(record)
    height, width, channels = pack.reader.shape_of(record)
    path = pack.column("path")[record]
    stored = [
        ("key", pack.key(record)),
        ("record", f"{record:,} of {len(pack):,}"),
        ("source", printable(bytes(path))),
        ("image", f"{width} x {height}, {channels} x {pack.reader.dtype_of(record)}"),
        (
            "stored as",
            f"{pack.reader.encoding_of(record)}, {size_text(int(pack.reader.places(np.array([record]))[1][0]))}",
        ),
        ("shard", f"{pack.reader.shards[shard].container.name}, row {row:,}"),
        ("source XXH3", bytes(np.asarray(pack.column("source_xxh3")[record])).hex()),
    ]
    if len(pack.packs) > 1:
        stored.insert(0, ("pack", pack.packs[pack.part_of(record)[0]].path))
    if annotation.window is not None and (window := pack.window(record)) is not None:
        x, y, width, height, *whole = window.tolist()
        stored.append(("tile", f"{width} x {height} at {x}, {y} of {whole[0]} x {whole[1]}"))
    if figures := figures_text(pack, record):
        stored.append(("figures", figures))
    if annotation.tags is not None:
        names = [name for name, has in zip(pack.manifest.tags, annotation.tags.tolist(), strict=True) if has]
        stored.append(("tags", ", ".join(names) or "none"))
    return {
        **tile_facts(pack, record, LARGEST_SIDE, colors),
        "stored": [[name, printable(value)] for name, value in stored],
        **{field.name: _texts(field, getattr(annotation, field.name)) for field in TEXTS},
    }


def _texts(field: Field, value: Mapping[str, Any]) -> dict[str, Any]:
    if field.per_box:
        return {printable(name): [_text(one) for one in of_boxes[:MOST_DRAWN]] for name, of_boxes in value.items()}
    return {printable(name): _text(one) for name, one in value.items()}


def tag_set(pack: Pack, number: int) -> RecordSet:
    """Return the records that have a tag. Raise UsageError if there is no such tag."""
    names = pack.manifest.tags
    if number >= len(names):
        raise UsageError("set", f"tag:{number} is not one of {plural(len(names), 'tag')}")
    column: Any = pack.column("tags")
    flags = np.asarray(column.flat()).reshape(-1, len(names))[:, number]
    having = np.flatnonzero(column.lengths)  # a record may have no tags, and then no flags
    return RecordSet(printable(names[number]), having[flags.astype(np.bool_)])


def _text(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _thin_points(points: Any) -> Any:
    return points[:: -(-len(points) // MOST_POINTS)] if len(points) > MOST_POINTS else points


def numbers(values: Any) -> Any:
    """Return lists of numbers with two decimals; None for numbers that JSON does not have."""
    return _finite(np.round(np.asarray(values, np.float64), 2).tolist())


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if math.isfinite(value) else None


def target_facts(target: Any, specs: Sequence[PartSpec]) -> dict[str, Any]:
    """Return `drawn_facts` of the target of one sample of a batch, and its parts: an id, tags, a mask, or a dict."""
    if not isinstance(target, Mapping):
        shape = getattr(target, "shape", ())
        facts = {"label": None if shape or int(target) < 0 else int(target)}
        return {**facts, **target_parts({spec.name: target for spec in specs}, specs)} if len(shape) == 2 else facts
    label = target.get("label")
    values: dict[str, Any] = {
        f.name: _array(target[f.target]) for f in (*DRAWN, VALUE) if target.get(f.target) is not None
    }
    facts = drawn_facts(Annotation(label=None if label is None or label < 0 else int(label), **values))
    return {**facts, **target_parts(target, specs)}


def _array(value: Any) -> Any:
    return tuple(map(np.asarray, value)) if isinstance(value, list) else np.asarray(value)


SIDE = 240
"""Longer side of the picture of an example, pixels."""
NEIGHBOR_SIDE = 80
AROUND = 3.0
"""Side of the part of an image that an example of a box shows, in sides of the box."""
LEAST_PX = 96
"""And in pixels, at least."""
MOST_PARTS = 5000
"""Masks and maps that are read for problems: some seconds. None at a URL: their blocks would be most of the pack."""


class ProblemSets:
    """The problems of a pack, found when first asked for. Threads may share it."""

    def __init__(self, pack: Pack, pictures: Pictures, more: Callable[[], Sequence[DataProblem]] = tuple) -> None:
        """Take what returns problems that were found elsewhere, too."""
        self._pack, self._pictures, self._more = pack, pictures, more
        self._lock = Lock()
        self._problems: Problems | None = None

    @property
    def _all(self) -> Problems:
        with self._lock:
            if self._problems is None:
                is_remote = any(part.reader.remote is not None for part in self._pack.packs)
                self._problems = find_problems(self._pack, 0 if is_remote else MOST_PARTS)
        return self._problems

    @property
    def _found(self) -> list[DataProblem]:
        return sorted([*self._more(), *self._all.found], key=lambda one: ORDER.index(one.kind.partition(".")[0]))

    def facts(self) -> dict[str, Any]:
        """Return all problems, without examples."""
        found = [
            {
                "kind": one.kind, "level": one.level, "title": one.title, "text": one.text,
                "records": one.count, "objects": one.objects,
            }
            for one in self._found
        ]  # fmt: skip
        return {"problems": found, "notes": list(self._all.notes)}

    def examples(self, kind: str) -> dict[str, Any]:
        """Return the examples of a kind: tiles with a ``detail``, cut out around the boxes that they are about."""
        return {"examples": [self._example(one) for one in self._of(kind).examples]}

    def set_of(self, name: str) -> RecordSet:
        """Return the records of a kind as a set of the catalog: ``problem:leak``."""
        problem = self._of(name)
        return RecordSet(problem.title, problem.records)

    def _of(self, kind: str) -> DataProblem:
        for one in (*self._more(), *self._all.found):
            if one.kind == kind:
                return one
        raise UsageError("set", f"problem:{printable(kind[:40])} is not a kind of problem that this pack has")

    def _example(self, example: Example) -> dict[str, Any]:
        about: dict[str, Any] = {"detail": example.detail, "path": example.path, "pack": example.pack}
        side = SIDE if len(example.neighbors) == 1 else NEIGHBOR_SIDE  # one is shown as large as the example
        about["neighbors"] = [self._neighbor(record, side) for record in example.neighbors]
        try:
            facts = tile_facts(self._pack, example.record)
            if example.place is not None:
                facts = {**drawn_boxes(facts, ()), "boxes": [list(example.place)]}
            elif example.boxes and max(example.boxes) < len(facts["boxes"]):
                facts = drawn_boxes(facts, example.boxes)
            else:
                return {**facts, **problem_of(lambda: self._pictures.uri(example.record, SIDE)), **about}
            if (part := _part(facts)) is None:
                return {**facts, **problem_of(lambda: self._pictures.uri(example.record, SIDE)), **about}
            left, top, right, bottom = part
            image = self._pack.image(example.record)[top:bottom, left:right]
            facts.update(picture=data_uri(np.ascontiguousarray(image)), width=right - left, height=bottom - top)
            facts["boxes"] = numbers(np.asarray(facts["boxes"]) - [left, top, left, top])
            region = (left, top, right - left, bottom - top)
            return {**facts, **part_facts(self._pack, example.record, SIDE, region), **about}
        except PackerError as error:
            return {"record": example.record, "key": example.key, "error": str(error), **about}

    def _neighbor(self, record: int, side: int) -> dict[str, Any]:
        try:
            return {**tile_facts(self._pack, record), **problem_of(lambda: self._pictures.uri(record, side))}
        except PackerError as error:
            return {"record": record, "key": self._pack.key(record), "error": str(error)}


def _part(facts: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """Return the part of the image that shows the first box (x1, y1, x2, y2); None if that is all of it."""
    if any(None in box for box in facts["boxes"]):  # not numbers
        return None
    x1, y1, x2, y2 = facts["boxes"][0]
    width, height = facts["width"], facts["height"]
    side = max(AROUND * max(x2 - x1, y2 - y1), LEAST_PX)
    if side > 0.7 * max(width, height):
        return None
    wide, high = min(int(side), width), min(int(side), height)
    left = int(min(max((x1 + x2 - wide) / 2, 0), width - wide))
    top = int(min(max((y1 + y2 - high) / 2, 0), height - high))
    return left, top, left + wide, top + high
