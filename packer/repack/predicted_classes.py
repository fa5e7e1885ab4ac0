"""What the class ids of predictions mean, and the ids of their images: those of the pack, or of a file with names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from packer.errors import StorageError, UsageError, printable
from packer.format.pack import Pack
from packer.sources.yolo_config import parse_yaml

FIRST_IDS = ("0", "1")
NAMES_STEP = (
    "name the classes: a list with one per line (from 0), data.yaml, the COCO file of the labels, or {id: name} in JSON"
)


@dataclass(frozen=True)
class NamedClasses:
    """Classes of predictions, and what else their file says."""

    names: tuple[str, ...]
    ids: Mapping[int, int]
    """Id -> number in `names`."""
    source: str
    """Who says so, for messages."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Id of an image of COCO, as text -> its file name."""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """And its width and height."""

    @classmethod
    def of_pack(cls, pack: Pack, first: int = 0) -> NamedClasses:
        """Return the classes of a pack, numbered from `first`."""
        ids = {number + first: number for number in range(len(pack.classes))}
        return cls(tuple(pack.classes), ids, f"the pack (its classes are {first} to {len(ids) - 1 + first})")


class _CocoCategory(msgspec.Struct):
    id: int
    name: str


class _CocoImage(msgspec.Struct):
    id: int | str
    file_name: str = ""
    width: int = 0
    height: int = 0


class _CocoLabels(msgspec.Struct):
    categories: list[_CocoCategory]
    images: list[_CocoImage] = []


class _Ids(msgspec.Struct):
    category_id: list[Any] = []
    image_id: int | str | None = None


def named_classes(given: str | None, pack: Pack) -> NamedClasses | None:
    """Return the classes that a user names: a file, or the id of the pack's first class. None: nothing is given.

    Raises:
        UsageError: The file gives no names.
        StorageError: It cannot be read.
    """
    if given is None:
        return None
    if given in FIRST_IDS:
        return NamedClasses.of_pack(pack, int(given))
    try:
        with open(given, "rb") as file:
            data = file.read()
    except OSError as error:
        raise StorageError(given, f"cannot be read: {error.strerror or error}", NAMES_STEP) from None
    ending, files, sizes = os.path.splitext(given)[1].lower(), {}, {}
    try:
        if ending == ".json":
            named, images = _in_json(data)
            files = {str(one.id): one.file_name for one in images if one.file_name}
            sizes = {str(one.id): (one.width, one.height) for one in images if one.width > 0 and one.height > 0}
        else:
            named = _in_yaml(data, given) if ending in (".yaml", ".yml") else _in_lines(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(given, f"gives no class names: {error}", NAMES_STEP) from None
    names = list(dict.fromkeys(named.values()))
    if not names or not all(names):
        raise UsageError(given, "gives no class names, or an empty one", NAMES_STEP)
    places = {name: place for place, name in enumerate(names)}
    ids = {number: places[name] for number, name in named.items()}
    return NamedClasses(tuple(names), ids, printable(given), files, sizes)


def _in_json(data: bytes) -> tuple[dict[int, str], Sequence[_CocoImage]]:
    shape = msgspec.json.decode(data, type=list[str] | dict[str, msgspec.Raw])
    if isinstance(shape, list):
        return dict(enumerate(shape)), ()
    if "categories" in shape:
        found = msgspec.json.decode(data, type=_CocoLabels)
        return {one.id: one.name for one in found.categories}, found.images
    return {int(key): msgspec.json.decode(name, type=str) for key, name in shape.items()}, ()


def _in_yaml(data: bytes, path: str) -> dict[int, str]:
    names = parse_yaml(data, os.fsencode(path)).get("names")
    if isinstance(names, list):
        return dict(enumerate(map(str, names)))
    if not isinstance(names, dict):
        raise ValueError("it has no names:")
    return {int(key): str(name) for key, name in names.items()}


def _in_lines(data: bytes) -> dict[int, str]:
    return dict(enumerate(data.decode("utf-8-sig").splitlines()))


def kept_ids(pack: Pack) -> NamedClasses | None:
    """Return the category ids of COCO that a pack keeps; None if it keeps none. Ids of two classes are left out."""
    if "box_fields.category_id" not in pack.manifest.fields:
        return None
    found: dict[int, int] = {}
    twice: set[int] = set()
    decode = msgspec.json.Decoder(_Ids).decode
    texts, labels = pack.column("box_fields"), pack.column("box_labels")
    for record in range(len(pack)):
        its = decode(bytes(texts[record]) or b"{}").category_id
        for number, label in zip(its, np.asarray(labels[record]).tolist(), strict=False):
            if type(number) is int and found.setdefault(number, label) != label:
                twice.add(number)
    kept = {number: label for number, label in found.items() if number not in twice}
    return NamedClasses(tuple(pack.classes), kept, "the COCO ids that the pack keeps for the classes of its objects")


def image_ids(pack: Pack) -> dict[str, int]:
    """Return the ids of COCO's images that a pack keeps, as texts -> record; {} unless all have one of their own."""
    if not any(name.partition(".")[0] == "extras" for name in pack.manifest.fields):
        return {}
    decode, texts = msgspec.json.Decoder(_Ids).decode, pack.column("extras")
    found = [decode(bytes(texts[record]) or b"{}").image_id for record in range(len(pack))]
    numbers = {str(one): record for record, one in enumerate(found) if one is not None}
    return numbers if len(numbers) == len(pack) else {}
