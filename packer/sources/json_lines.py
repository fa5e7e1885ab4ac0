"""A line of JSON for each image: ``metadata.jsonl`` of Hugging Face's imagefolder, manifests of SageMaker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from packer.errors import BadInput, BadLabel, UsageError, printable
from packer.sources.box_forms import BoxFormat, Votes
from packer.sources.by_name import (
    MOST_JSON_BYTES,
    ImageEntry,
    LabelledObjects,
    NamedFilesSource,
    files_like,
    whole_size,
)
from packer.sources.parquet_source import BOXES, LABELS, OF_OBJECTS
from packer.sources.path_finder import ImageNames
from packer.sources.paths import as_bytes, coordinate, folder_of, name_in, some_paths, spread
from packer.sources.source import Choice, SourceOptions, Tree
from packer.sources.tree import image_size, lines_of, needed, read_file

METADATA, MANIFEST = b"metadata.jsonl", b".manifest"
PICTURE = "source-ref"
"""The member of a line of a manifest that names the image; ``NAME-metadata`` says what the member ``NAME`` is."""
JOB = "groundtruth/"
MOST_LOOKED_AT = 64
WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError)


class _Line(NamedTuple):
    origin: str
    path: bytes
    """The file."""
    item: dict[str, Any]


def _lines(tree: Tree, path: bytes) -> Iterator[_Line]:
    with needed(path):
        lines = lines_of(read_file(tree, path, MOST_JSON_BYTES))
    for number, text in enumerate(lines, 1):
        if text.strip():
            origin = f"{printable(path)}:{number}"
            try:
                item = json.loads(text)
            except (ValueError, RecursionError):
                item = None
            if not isinstance(item, dict):
                raise UsageError(origin, "is not an object in JSON", "correct the line, or export it again")
            yield _Line(origin, path, item)


class JsonLinesSource(NamedFilesSource):
    """The ``metadata.jsonl`` files and the manifests of a folder."""

    kind, ending = "jsonl", (METADATA, MANIFEST)
    are = "has a line for each image", "have a line for each image"

    @classmethod
    def recognize(cls, tree: Tree) -> list[Choice]:
        """Return this source if there are such files."""
        files = [*files_like(tree, METADATA), *files_like(tree, MANIFEST, f'"{PICTURE}"'.encode())]
        return [Choice(cls.kind, f"{some_paths(files)} {cls.are[len(files) > 1]}")] if files else []

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self._words = options.columns
        self._more: list[str] = []
        super().__init__(tree, options)
        self.notes += self._more

    def entries(self, tree: Tree, files: Sequence[bytes]) -> Iterator[ImageEntry]:
        """Return the entries of all files."""
        lines = [line for path in files for line in _lines(tree, path)]
        votes = _votes(tree, lines)
        try:
            form = votes.result(self._words, self.kind)
        except UsageError as error:
            raise UsageError(some_paths(files), error.problem, error.next_step) from None
        if votes.count:
            self._more.append(votes.describe(form))
        for line in lines:
            name = line.item.get(PICTURE, line.item.get("file_name", line.item.get("image")))
            found: LabelledObjects | BadLabel = (objects := LabelledObjects())
            size, place = None, b""
            try:
                if not isinstance(name, str):
                    raise ValueError("names no image")
                place = as_bytes(name)
                if PICTURE in line.item:
                    size = _add_manifest_line(objects, line.item)
                else:
                    size = _add_metadata_line(objects, line.item, form)
            except WRONG as error:
                found = BadLabel(line.origin, f"cannot be read: {error!r}", "fix the line")
            yield ImageEntry(line.origin, place, found, folder_of(line.path), None, size)


def _objects_in(item: dict[str, Any]) -> tuple[str, dict[str, list[Any]]] | None:
    """Return the member with boxes, and its members by name, a list for each; None if there is none."""
    for name, value in item.items():
        members = value
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            members = {key: [one.get(key) for one in value] for key in value[0]}
        if isinstance(members, dict) and not members.keys().isdisjoint(BOXES):
            return name, members
    return None


def _votes(tree: Tree, lines: Sequence[_Line]) -> Votes:
    """Count what the numbers of boxes may be, by the sizes that lines give, or of a few images."""
    votes, names = Votes(), ImageNames(tree)
    found = [(line, of[1]) for line in lines if PICTURE not in line.item and (of := _objects_in(line.item)) is not None]
    looked_at = {line.origin for line, _ in spread(found, MOST_LOOKED_AT)}
    for line, objects in found:
        boxes = objects[next(name for name in BOXES if name in objects)]
        try:
            numbers = np.array([list(map(coordinate, box)) for box in boxes if len(box) == 4]).reshape(-1, 4)
            size: Any = whole_size(line.item.get("width"), line.item.get("height"))
            if size is None and line.origin in looked_at:
                images = names.of_file(b"/".join([tree.root, line.path])).find(as_bytes(line.item["file_name"]))
                size = image_size(tree, images[0])
            sides = np.array(size or (np.inf, np.inf), np.float64)
        except (*WRONG, BadInput, OverflowError):
            continue
        votes.add(numbers, np.broadcast_to(sides, (len(numbers), 2)))
    return votes


def _add_metadata_line(objects: LabelledObjects, item: dict[str, Any], form: BoxFormat) -> tuple[int, int] | None:
    of_objects = _objects_in(item)
    label = next((name for name in LABELS if isinstance(item.get(name), int | str)), None)
    for name, value in item.items():
        if of_objects is not None and name == of_objects[0]:
            _add_objects(objects, of_objects[1], form)
        elif name == label:
            objects.labels.append(name_in(value))
        elif isinstance(value, list | dict) or (name != "file_name" and name.endswith("file_name")):
            objects.no_field[name] += 1
        elif name not in ("file_name", "image", "width", "height") and value is not None:
            objects.extras[name] = value
    return whole_size(item.get("width"), item.get("height"))


def _add_objects(objects: LabelledObjects, members: dict[str, list[Any]], form: BoxFormat) -> None:
    boxes = members[next(name for name in BOXES if name in members)]
    named = next((name for name in OF_OBJECTS if name in members), None)
    names = [None] * len(boxes) if named is None else [name_in(value) for value in members[named]]
    others = {
        name: values
        for name, values in members.items()
        if name != named and name not in BOXES and len(values) == len(boxes) and not isinstance(values[:1], str)
    }
    for i, (box, name) in enumerate(zip(boxes, names, strict=True)):
        fields = {key: values[i] for key, values in others.items() if isinstance(values[i], int | float | str)}
        objects.add(name, form.box(list(map(coordinate, box))), fields=fields)


def _add_manifest_line(objects: LabelledObjects, item: dict[str, Any]) -> tuple[int, int] | None:
    """Add what the jobs of Ground Truth have found, and return the size of the image if one says it."""
    size = None
    for name, facts in item.items():
        job = facts.get("type", "") if name.endswith("-metadata") and isinstance(facts, dict) else ""
        value = item.get(name.removesuffix("-metadata"))
        if job == JOB + "image-classification":
            objects.labels.append(name_in(facts["class-name"]))
        elif job == JOB + "object-detection" and value is not None:
            (whole,) = value["image_size"][:1]
            size = whole_size(whole["width"], whole["height"])
            for box in value["annotations"]:
                left, top, width, height = (coordinate(box[side]) for side in ("left", "top", "width", "height"))
                known = facts["class-map"][str(box["class_id"])]
                objects.add(name_in(known), (left, top, left + width, top + height))
        elif job:
            objects.no_field[PurePosixPath(job).name] += 1
    return size
