"""Label Studio's JSON, its short form JSON-MIN, and its CSV: rectangles, polygons, points, brushes, choices.

Coordinates are percents of the image. A turned rectangle is given by its corner, around which it is turned.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from packer.errors import BadLabel, NoLabel, UsageError, plural, printable
from packer.model.annotation import Json, Mask, Point
from packer.sources.box_corners import turned
from packer.sources.by_name import (
    MISTAKES,
    MOST_JSON_BYTES,
    NO_CLASS,
    VISIBLE,
    Bitmap,
    ImageEntry,
    LabelledObjects,
    NamedFilesSource,
    natural,
    read_json,
    shared_json,
    whole_size,
)
from packer.sources.list_lines import OF_LABEL_STUDIO
from packer.sources.paths import IMAGE_EXTENSIONS, as_bytes, coordinate, extension_of, flip_index_of, folder_of, name_in
from packer.sources.source import Tree
from packer.sources.tree import lines_of, needed, read_file, read_head

HEAD_BYTES = 4096
WORDS = re.compile(
    rb'"(from_name|to_name|completed_by|original_width|annotation_id|lead_time|file_upload|[a-z]+labels|parentID)"\s*:'
)
UPLOAD = re.compile(rb"\A[0-9a-f]{8}-(?=.)")
"""What Label Studio puts before the name of a file that is uploaded."""
LOCAL_FILE = re.compile(r"/local-files/\?d=([^&]*)")
HOST = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]+://[^/]*/")
ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
ATTRIBUTES = ("choices", "text", "rating", "number", "taxonomy", "datetime")
"""The results that draw nothing."""
KINDS = {"rle": "brush", "points": "polygon", "radiusX": "ellipse", "height": "rectangle", "x": "point"}
"""A member of a value -> the shape that has it, and none of those before."""
NO_RESULTS = frozenset(
    ["annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement", "completed_by"]
)
"""Texts of JSON-MIN that are no results; those of the task stand before its id."""
CHANNELS = 4
HEAD_BITS, RUN_BITS, RUNS = 32, 4, 4


class LabelStudioSource(NamedFilesSource):
    """Files of Label Studio: of each task the annotation that is marked as ground truth, else the newest."""

    kind, ending = "labelstudio", (b".json", b".csv")
    are = "is of Label Studio", "are of Label Studio"

    @classmethod
    def files_in(cls, tree: Tree) -> list[bytes]:
        """Return the tables with its header, and the JSON files that have two of its words in their ends."""
        heads = {path: read_head(tree, path, HEAD_BYTES, HEAD_BYTES) for path in shared_json(tree)}
        tables = (path for path in tree.files if extension_of(path) == b".csv")
        found = [path for path in tables if OF_LABEL_STUDIO.match(read_head(tree, path, HEAD_BYTES))]
        return found + [path for path, head in heads.items() if len({*WORDS.findall(head)}) > 1]

    def entries(self, tree: Tree, files: Sequence[bytes]) -> Iterator[ImageEntry]:
        """Yield the entries of all files, when the names of all keypoints are known."""
        self._several = 0
        found = [one for path in files for one in self._entries(tree, path)]
        names = sorted(
            {name for _, task in found for points in task.points_of.values() for name in points}, key=natural
        )
        self.flip_index = flip_index_of(names) if names else None
        for entry, task in found:
            for number, points in task.points_of.items():
                task.objects.keypoints[number] = tuple(
                    (*points.get(n, (0.0, 0.0)), VISIBLE * (n in points)) for n in names
                )
            yield entry
        if self._several:
            have = plural(self._several, "image has several annotations", "images have several annotations")
            self.notes.append(f"{have}, of which none is the ground truth: the newest is read")

    def _entries(self, tree: Tree, path: bytes) -> Iterator[tuple[ImageEntry, _StudioTask]]:
        with needed(path):
            content = self._rows(tree, path) if extension_of(path) == b".csv" else read_json(tree, path)
        if not isinstance(content, list):
            raise UsageError(path, "is not a list of tasks", "export it again, as JSON or JSON-MIN")
        left_out = self._older(content)
        for number, item in enumerate(content, 1):
            if number in left_out:
                continue
            origin, name = f"{printable(path)}: task {number}", b""
            task = _StudioTask(LabelledObjects(with_masks=self.instance_masks))
            objects: LabelledObjects | BadLabel = task.objects
            try:
                name = _image_of(item)
                results = self._results(item)
                if results is None:
                    objects = NoLabel(origin, "has no annotation", "annotate the image, or remove it")
                else:
                    task.read(results)
            except MISTAKES as error:
                objects = BadLabel(origin, f"is not as Label Studio writes it: {error!r}", "fix the task")
            plain = UPLOAD.sub(b"", name.rpartition(b"/")[2])
            yield ImageEntry(origin, name, objects, folder_of(path), None, task.size, plain), task

    def _rows(self, tree: Tree, path: bytes) -> list[dict[str, Any]]:
        """Return the tasks of a table, each as JSON-MIN has it.

        Its columns are sorted, so that texts may be results or facts of the task: they are choices if they repeat.
        """
        text = b"\n".join(lines_of(read_file(tree, path, MOST_JSON_BYTES))).decode("utf-8", "surrogateescape")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        try:
            rows = [{name: _cell(value) for name, value in row.items() if name and value} for row in reader]
        except csv.Error as error:
            raise UsageError(f"{printable(path)}:{reader.line_num}", str(error), "export it again, as JSON") from None
        texts: dict[str, list[str]] = {}
        for row in rows:
            for name, value in row.items():
                if name not in NO_RESULTS and name != "id" and isinstance(value, str) and not _path_in(value):
                    texts.setdefault(name, []).append(value)
        chosen = [name for name, values in texts.items() if 2 * len({*values}) <= len(values)]
        skipped = sorted(texts.keys() - {*chosen})
        if chosen:
            self.notes.append(f"{printable(path)}: read as choices: {printable(', '.join(chosen))}")
        if skipped:
            what = f"{printable(path)}: left out, because they may be no results: {printable(', '.join(skipped))}"
            self.notes.append(f"{what}; JSON says what they are")
        results = [name for name in {**dict.fromkeys(name for row in rows for name in row)} if name not in texts]
        return [{name: row[name] for name in ("id", *NO_RESULTS, *results, *chosen) if name in row} for row in rows]

    def _older(self, content: list[Any]) -> set[int]:
        """Return the numbers of the tasks in a short form that another annotator has done later."""
        newest: dict[Any, int] = {}
        older = set()
        for number, item in enumerate(content, 1):
            if not (isinstance(item, dict) and isinstance(key := item.get("id"), int | str) and "data" not in item):
                continue
            other = newest.setdefault(key, number)
            if other == number:
                continue
            self._several += 1
            times = [str(content[i - 1].get("updated_at") or content[i - 1].get("created_at")) for i in (other, number)]
            newest[key] = number if times[1] >= times[0] else other
            older.add(other + number - newest[key])
        return older

    def _results(self, item: dict[str, Any]) -> Any:
        """Return the results of a task; None if nobody has annotated it."""
        if "annotations" not in item and "completions" not in item:
            return None if "data" in item else list(_short_results(item))
        done = item["annotations"] if "annotations" in item else item["completions"]
        done = [one for one in done if not (one.get("was_cancelled") or one.get("skipped"))]
        done = [one for one in done if one.get("ground_truth")] or done
        self._several += len(done) > 1
        newest = max(reversed(done), key=lambda one: str(one.get("updated_at") or one.get("created_at")), default=None)
        return None if newest is None else newest["result"]


def _image_of(item: dict[str, Any]) -> bytes:
    """Return the path of the image of a task: that of its URL, or of ``/data/local-files/?d=PATH``."""
    for value in item.get("data", item).values():
        if isinstance(value, str) and (path := _path_in(value)):
            return path
    raise ValueError("it names no image")


def _cell(text: str) -> Any:
    """Return what is in a cell: JSON, or a text."""
    if text[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _path_in(text: str) -> bytes | None:
    """Return the path of an image in a URL or a path; None if it is none."""
    local = LOCAL_FILE.search(text)
    path = as_bytes(HOST.sub("", local[1] if local else text))
    if extension_of(path) not in IMAGE_EXTENSIONS:
        path = path.partition(b"?")[0]
    path = ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), path)
    return path if extension_of(path) in IMAGE_EXTENSIONS else None


def _short_results(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what JSON-MIN has of a task, as the results of the long form."""
    names = list(item)
    for name in names[names.index("id") + 1 if "id" in item else 0 :]:
        values = item[name] if isinstance(item[name], list) else [item[name]]
        for value in values if name not in NO_RESULTS else ():
            if isinstance(value, dict):
                yield {**value, "from_name": name, "value": value}
            elif isinstance(value, str) and not _path_in(value):
                yield {"from_name": name, "value": {"choices": [value]}}


@dataclass(slots=True)
class _StudioRegion:
    """What the results of one id say."""

    value: dict[str, Any] = field(default_factory=dict)
    """Its shape and its labels."""
    attributes: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """Name -> which of ATTRIBUTES it is, and its value."""
    parent: Any = None

    @property
    def kind(self) -> str:
        """What it is: the members of its value tell."""
        return next((kind for key, kind in KINDS.items() if key in self.value), "region" if self.value else "image")

    @property
    def name(self) -> str | None:
        """Its class."""
        names = next((values for key, values in self.value.items() if key.endswith("labels")), None) or ()
        if len(names) > 1:
            raise ValueError(f"a region has several labels: {', '.join(map(str, names))}")
        return name_in(names[0]) if names else None

    @property
    def fields(self) -> dict[str, Json]:
        """The fields of its box."""
        return {name: value[0] if isinstance(value, list) and len(value) == 1 else value
                for name, (_, value) in self.attributes.items()}  # fmt: skip


@dataclass(slots=True)
class _StudioTask:
    """An image with its objects."""

    objects: LabelledObjects
    size: tuple[int, int] | None = None
    points_of: dict[int, dict[str, Point]] = field(default_factory=dict)
    """Number of an object -> its keypoints, by name."""

    def read(self, results: Any) -> None:
        """Add what the results say. Raise one of MISTAKES."""
        regions: dict[Any, _StudioRegion] = {}
        for number, one in enumerate(results):
            if "value" not in one:
                self.objects.no_field[name_in(one.get("type", "result"))] += 1
                continue
            if one.get("image_rotation"):
                raise ValueError("the image was turned in Label Studio, where boxes refer to the turned one")
            self.size = self.size or whole_size(one.get("original_width"), one.get("original_height"))
            region = regions.setdefault(one.get("id") or ("", number), _StudioRegion())
            region.parent = region.parent or one.get("parentID")
            value = one["value"]
            if (what := next((key for key in ATTRIBUTES if key in value), None)) is None:
                region.value.update(value.items())
            else:
                region.attributes[name_in(one.get("from_name", what))] = what, value[what]
        points = [one for one in regions.values() if one.kind == "point"]
        number_of: dict[Any, int] = {}
        for key, region in regions.items():
            number = len(self.objects.boxes)
            if region.kind != "point":
                self._add(region)
            if len(self.objects.boxes) > number:
                number_of[key] = number
        for region in points:
            self._add_point(region, number_of)

    def _add(self, region: _StudioRegion) -> None:
        value, objects, name, kind = region.value, self.objects, region.name, region.kind
        if kind == "image":
            for key, (what, found) in region.attributes.items():
                if what == "choices":
                    objects.labels += map(name_in, found)
                else:
                    objects.extras[key] = region.fields[key]
        elif kind == "brush":
            bitmap = Bitmap(partial(decode_brush, value["rle"], self._sides), (0, 0), self._sides)
            objects.add_mask(name, bitmap, region.fields)
        elif kind == "polygon":
            objects.add(name, polygon=[self._pixels(x, y) for x, y in value["points"]], fields=region.fields)
        elif kind == "rectangle":
            left, top = self._pixels(value["x"], value["y"])
            width, height = self._pixels(value["width"], value["height"])
            box, angle = (left, top, left + width, top + height), coordinate(value.get("rotation") or 0)
            obb = turned(box, angle, (left, top)) if angle else ()
            objects.add(name, None if angle else box, fields=region.fields, obb=obb)
        else:
            objects.no_field[kind] += 1

    def _add_point(self, region: _StudioRegion, number_of: dict[Any, int]) -> None:
        name, place = region.name or NO_CLASS, self._pixels(region.value["x"], region.value["y"])
        number = number_of.get(region.parent)
        if number is None:
            self.objects.points.append((name, place))
        elif self.points_of.setdefault(number, {}).setdefault(name, place) is not place:
            raise ValueError(f"an object has several points {name}")

    @property
    def _sides(self) -> tuple[int, int]:
        if self.size is None:
            raise ValueError("it has no original_width and original_height")
        return self.size

    def _pixels(self, x: Any, y: Any) -> Point:
        width, height = self._sides
        return coordinate(coordinate(x) * width / 100), coordinate(coordinate(y) * height / 100)


def decode_brush(data: Sequence[int], size: tuple[int, int]) -> Mask:
    """Return the pixels of a brush: those whose alpha is not 0.

    Its bits are packed runs (github.com/thi-ng/umbrella, packages/rle-pack): the number of values, the bits of one,
    four lengths in bits of the numbers of runs; then runs of one value, or of so many values, for red, green, blue and
    alpha of each pixel, row by row.

    Raises:
        ValueError: It is damaged, or not of an image of this size.
    """
    width, height = size
    bits = _Bits(data)
    total, word = bits.read(HEAD_BITS), bits.read(5) + 1
    if total != width * height * CHANNELS:
        raise ValueError(f"its brush has {total} values, but the image {width}x{height} pixels")
    lengths = [bits.read(RUN_BITS) + 1 for _ in range(RUNS)]
    values = np.zeros(total, np.bool_)
    at = 0
    while at < total:
        alike = bits.read(1)
        stop = min(at + 1 + bits.read(lengths[bits.read(2)]), total)
        if alike:
            values[at:stop] = bits.read(word) != 0
        else:
            values[at:stop] = bits.words(stop - at, word)
        at = stop
    return values.reshape(height, width, CHANNELS)[..., -1]


class _Bits:
    """Reads numbers of some bits, the highest first."""

    def __init__(self, data: Sequence[int]) -> None:
        self._data = bytes(iter(data)) + bytes(8)
        self._bits = np.unpackbits(np.frombuffer(self._data, np.uint8))
        self._at = 0

    def read(self, size: int) -> int:
        """Return the next number of up to 32 bits. Raise ValueError behind the end."""
        at = self._skip(size)
        window = int.from_bytes(self._data[at >> 3 : (at >> 3) + 8], "big")
        return window >> 64 - (at & 7) - size & (1 << size) - 1

    def words(self, count: int, size: int) -> Any:
        """Return which of the next numbers are not 0."""
        at = self._skip(count * size)
        return self._bits[at : self._at].reshape(count, size).any(axis=1)

    def _skip(self, size: int) -> int:
        at, self._at = self._at, self._at + size
        if self._at > len(self._bits) - 64:
            raise ValueError("its brush ends too early")
        return at
