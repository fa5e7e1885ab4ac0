"""What a YOLO set says of itself: class names, key points and splits, from data.yaml or a list of names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from packer.errors import PackerError, UsageError
from packer.sources.base import Tree
from packer.sources.files import MIB, lines_of, read_file
from packer.sources.numerals import MOST_CLASSES, class_id
from packer.sources.paths import as_text, extension_of, named, quoted
from packer.sources.yaml_file import parse_yaml

NAME_FILES = frozenset({b"classes.txt", b"obj.names", b"classes.names", b"coco.names", b"_darknet.labels"})
"""Files of class names, one a line; never labels."""


@dataclass(frozen=True, slots=True)
class YoloConfig:
    """What is known before a label is read."""

    names: tuple[str, ...] | None = None
    """Class names in id order."""
    kpt_shape: tuple[int, int] | None = None
    """(points, values a point: 2 or 3)."""
    splits: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """train, val, ... -> folders or lists of images, as written."""
    path: str = ""
    """The ``path:`` entry, as written."""
    origin: bytes = b""
    """The file that says so."""


def read_config(tree: Tree) -> YoloConfig:
    """The configuration in the root folder, or of the only list of names anywhere. Raises UsageError where
    it is wrong, and where several files differ."""
    yamls = {}
    for path in tree.files:
        if b"/" not in path and extension_of(path) in (b".yaml", b".yml"):
            loaded = _load(tree, path)
            if loaded.keys() & {"names", "nc"}:
                yamls[path] = loaded
    if len(yamls) > 1 and b"data.yaml" not in yamls:
        raise UsageError(tree.root, f"several files give class names: {named(yamls)}", "keep one, as data.yaml")
    if yamls:
        path = b"data.yaml" if b"data.yaml" in yamls else next(iter(yamls))
        return _config(yamls[path], path)
    return _names_file(tree)


def _load(tree: Tree, path: bytes) -> dict[str, Any]:
    try:
        data = read_file(tree.root, path, MIB)
    except PackerError as error:
        raise UsageError(path, error.problem, error.next_step) from None
    return parse_yaml(data, path)


def _config(loaded: dict[str, Any], path: bytes) -> YoloConfig:
    try:
        return YoloConfig(
            names=_names(loaded.get("names"), loaded.get("nc")),
            kpt_shape=_kpt_shape(loaded.get("kpt_shape")),
            splits={
                key: tuple(value if isinstance(value, list) else [value])
                for key, value in loaded.items()
                if isinstance(key, str) and (isinstance(value, str) or _is_texts(value)) and key != "path"
            },
            path=loaded["path"] if isinstance(loaded.get("path"), str) else "",
            origin=path,
        )
    except ValueError as error:
        raise UsageError(path, str(error), "fix the file") from None


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _names(names: Any, nc: Any) -> tuple[str, ...] | None:
    number = class_id(nc.encode("utf-8", "replace")) if isinstance(nc, str) else None
    if nc is not None and number is None:
        # only text is shown: a list of YAML aliases may be a thousand times as long as its file
        raise ValueError(f"nc: {quoted(nc) if isinstance(nc, str) else 'what it says'} is no number of classes")
    if names in (None, ""):
        return None if number is None else tuple(str(i) for i in range(number))
    if isinstance(names, dict):
        names = _from_mapping(names)
    if not _is_texts(names):
        raise ValueError("names: is neither a list of names nor a mapping of numbers to names")
    if number is not None and number != len(names):
        raise ValueError(f"nc: says {number} classes, and names: has {len(names)}")
    return _unlike(tuple(names))


def _from_mapping(names: dict[Any, Any]) -> list[Any]:
    ids = {}
    for key, name in names.items():
        number = class_id(key.encode("utf-8", "replace")) if isinstance(key, str) else None
        if number is None or number in ids:
            raise ValueError(f"names: {quoted(str(key))} is no class number, or stands twice")
        ids[number] = name
    return [ids.get(i, str(i)) for i in range(max(ids, default=-1) + 1)]  # a gap keeps its number as a name


def _unlike(names: tuple[str, ...]) -> tuple[str, ...]:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            raise ValueError(f"the class name {quoted(name)} stands twice, for {first[name]} and {i}")
    if len(names) > MOST_CLASSES:
        raise ValueError(f"has {len(names)} classes, more than {MOST_CLASSES}")
    return names


def _kpt_shape(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    numbers = [class_id(item.encode("utf-8", "replace")) for item in value] if _is_texts(value) else []
    if len(numbers) == 2 and numbers[0] and numbers[1] in (2, 3):
        return numbers[0], numbers[1]
    raise ValueError("kpt_shape: is not [points, 2] or [points, 3]")


def _names_file(tree: Tree) -> YoloConfig:
    found: dict[tuple[str, ...], list[bytes]] = {}
    for path in tree.files:
        if path.rpartition(b"/")[2].lower() in NAME_FILES:
            try:
                lines = [as_text(line.strip()) for line in lines_of(read_file(tree.root, path, MIB))]
                while lines and not lines[-1]:
                    lines.pop()
                if "" in lines:
                    raise ValueError(f"line {lines.index('') + 1} is empty, so the ids after it are not clear")
                found.setdefault(_unlike(tuple(lines)), []).append(path)
            except PackerError as error:
                raise UsageError(path, error.problem, error.next_step) from None
            except ValueError as error:
                raise UsageError(path, str(error), "fix the file") from None
    if len(found) > 1:
        files = [path for paths in found.values() for path in paths]
        raise UsageError(tree.root, f"several files give different class names: {named(files)}", "keep one of them")
    for names, paths in found.items():
        return YoloConfig(names=names, origin=paths[0])
    return YoloConfig()
