"""The configuration of a YOLO dataset, from data.yaml or a list of names: class names, keypoints, entries of splits."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

import yaml

from packer.errors import NoImage, UsageError, option, plural, printable
from packer.sources.paths import (
    IMAGE_FOLDERS,
    MOST_CLASSES,
    as_bytes,
    as_text,
    class_id,
    extension_of,
    flip_index_of,
    folder_of,
    quoted_value,
    some_paths,
)
from packer.sources.source import Tree
from packer.sources.tree import MIB, lines_of, needed, read_file

DEEPEST = 32
MOST_NODES = 4 * MOST_CLASSES
"""Maximum number of values in a YAML file: a number and a name per class, each twice."""

UNLABELLED = ("ignore_label", "255", "null", "~", "")
"""What ``label_mapping`` says of values of no class."""
NAME_FILES = frozenset({b"classes.txt", b"obj.names", b"classes.names", b"coco.names", b"_darknet.labels"})
"""Files of class names, one per line; never labels."""
NOT_LISTS = NAME_FILES | {b"_classes.txt", b"class_list.txt", b"labelmap.txt", b"label_map.txt"}
"""And others that say what classes there are, never which an image has."""
SUBMISSION = re.compile(rb"sample[-_ ]?submi(?:ssion|t)|submission[-_ ]?(?:sample|format|example)", re.IGNORECASE)
"""In the name of a table of Kaggle that shows how answers are written, with made-up ones."""


def is_not_a_list(path: bytes) -> bool:
    """Return whether a file has no labels of images by its name: names of classes, or a sample of a submission."""
    name = path.rpartition(b"/")[2]
    return name.lower() in NOT_LISTS or bool(SUBMISSION.search(name))


@dataclass(frozen=True, slots=True)
class YoloConfig:
    """The configuration of a dataset."""

    names: tuple[str, ...] | None = None
    """Class names in id order."""
    kpt_shape: tuple[int, int] | None = None
    """(number of points, values per point: 2 or 3)."""
    flip_index: tuple[int, ...] | None = None
    """Index of the mirror image of each point: ``flip_idx``, or from the names of the points."""
    oriented: bool = False
    """Whether ``task: obb`` says that rows of four points are oriented boxes."""
    label_mapping: dict[int, int | None] = field(default_factory=dict)
    """Value in a mask -> class id, None for what is of no class."""
    splits: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """train, val, ... -> folders or lists of images, as written."""
    path: str = ""
    """The ``path:`` entry, as written."""
    origin: bytes = b""
    """The file with these settings."""


def read_config(tree: Tree) -> YoloConfig:
    """Return the configuration in the root folder, or of the only list of names anywhere.

    Raises:
        UsageError: It is invalid, or several files differ.
    """
    yamls = yamls_with(tree, {"names", "nc"})
    if len(yamls) > 1 and b"data.yaml" not in yamls:
        raise UsageError(tree.root, f"several files give class names: {some_paths(yamls)}", "keep one, as data.yaml")
    if yamls:
        path = b"data.yaml" if b"data.yaml" in yamls else next(iter(yamls))
        return _config(yamls[path], path)
    found = _names_file(tree)
    if found.names is None:
        _refuse_names_below(tree)
    return found


def yamls_with(tree: Tree, keys: Set[str]) -> dict[bytes, dict[str, Any]]:
    """Return the YAML files in the root folder that have one of these keys."""
    paths = (path for path in tree.files if b"/" not in path and extension_of(path) in (b".yaml", b".yml"))
    return {path: loaded for path in paths if (loaded := _load(tree, path)).keys() & keys}


def _refuse_names_below(tree: Tree) -> None:
    """Raise UsageError if the class names are in a folder, as in an unpacked archive: the classes would be numbers."""
    yamls = [path for path in tree.files if path.count(b"/") == 1 and extension_of(path) in (b".yaml", b".yml")]
    folders = [folder_of(path) for path in yamls if _load(tree, path).keys() & {"names", "nc"}]
    if folders:
        problem = f"{some_paths(yamls)} {'gives' if len(yamls) == 1 else 'give'} the class names"
        raise UsageError(
            tree.root, problem, f"give {some_paths([tree.root + b'/' + f for f in folders])} as the source"
        )


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]  # C is ten times as fast
    """Creates only text, lists and mappings; aliases share their values, without copies."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "has a key that is not text", key.start_mark)
            if key.value in keys:
                problem = f"the key {quoted_value(key.value)} appears twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(data: bytes, path: bytes) -> dict[str, Any]:
    """Return the mapping in a YAML file, with every scalar as text; {} if it holds something else.

    Raises:
        UsageError: It is not YAML, is deeper than 32 levels, or has too many values or a duplicate key; the error
            names the line.
    """
    try:
        _check_size(data)
        loaded = _Loader(data).get_single_data()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        is_yaml = isinstance(error, yaml.constructor.ConstructorError)
        problem = error.problem if is_yaml else f"is not YAML: {error.problem}"
        raise UsageError(f"{printable(path)}:{line}", str(problem), "fix the line") from None
    except (yaml.YAMLError, ValueError) as error:
        problem = str(error).splitlines()[0] if str(error) else "damaged"
        raise UsageError(path, f"is not YAML: {printable(problem)}", "fix the file") from None
    return loaded if isinstance(loaded, dict) else {}


def _check_size(data: bytes) -> None:
    """Raise ConstructorError for too many or too deep values: PyYAML recurses for each level, and may crash."""
    depth = nodes = documents = 0
    for event in yaml.parse(data, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        problem = (documents > 1) * "holds a second document"
        problem = f"has more than {MOST_NODES} values" if nodes > MOST_NODES else problem
        problem = f"is deeper than {DEEPEST} levels" if depth > DEEPEST else problem
        if problem:
            raise yaml.constructor.ConstructorError(None, None, problem, event.start_mark)  # type: ignore[arg-type]


def _load(tree: Tree, path: bytes) -> dict[str, Any]:
    with needed(path):
        return parse_yaml(read_file(tree, path, MIB), path)


def _config(loaded: dict[str, Any], path: bytes) -> YoloConfig:
    try:
        kpt_shape = _points(loaded.get("kpt_shape"))
        return YoloConfig(
            names=_names(loaded.get("names"), loaded.get("nc")),
            kpt_shape=kpt_shape,
            flip_index=None if kpt_shape is None else _flip_index(loaded, kpt_shape[0]),
            oriented=kpt_shape is None and loaded.get("task") == "obb",
            label_mapping=_label_mapping(loaded.get("label_mapping")),
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


def _label_mapping(value: Any) -> dict[int, int | None]:
    """Return ``label_mapping`` of a data.yaml; values below 0 are in no mask. Raise ValueError if it is invalid."""
    if value is not None and not isinstance(value, dict):
        raise ValueError("label_mapping: is not a mapping of values to class ids")
    found: dict[int, int | None] = {}
    for key, text in (value or {}).items():
        number, ignored = class_id(key.encode("utf-8", "replace")), text in UNLABELLED
        id = None if ignored or not isinstance(text, str) else class_id(text.encode("utf-8", "replace"))
        if (number is None and not key.startswith("-")) or (id is None and not ignored):
            raise ValueError(f"label_mapping: {quoted_value(key)} has no class id, and is not ignore_label")
        if number is not None:
            found[number] = id
    return found


def _points(value: Any) -> tuple[int, int] | None:
    """Return ``kpt_shape`` of a data.yaml: the number of points, and of values per point. Raise ValueError."""
    if value is None:
        return None
    numbers = _numbers(value)
    if len(numbers) == 2 and numbers[0] > 0 and numbers[1] in (2, 3):
        return numbers[0], numbers[1]
    raise ValueError("kpt_shape: is not [points, 2] or [points, 3]")


def _flip_index(loaded: dict[str, Any], points: int) -> tuple[int, ...] | None:
    """Return ``flip_idx`` of a data.yaml, or what follows from ``kpt_names``. Raise ValueError if it is invalid."""
    value = loaded.get("flip_idx")
    if value in (None, "", []):
        names = loaded.get("kpt_names")
        lists = list(names.values()) if isinstance(names, dict) else [names]  # by class
        found = {_of_names(texts, points) for texts in lists}
        return found.pop() if len(found) == 1 else None
    numbers = _numbers(value)
    if set(numbers) != set(range(points)) or len(numbers) != points:
        raise ValueError(f"flip_idx: does not have each number from 0 to {points - 1} once")
    if any(numbers[numbers[i]] != i for i in range(points)):
        raise ValueError("flip_idx: points do not change places in pairs: where 0 has 1, 1 must have 0")
    return tuple(numbers)


def _numbers(value: Any) -> list[int]:
    """Return a list of numbers, which YAML's base loader leaves as text; -1 for any other item, [] for no list."""
    found = [class_id(item.encode("utf-8", "replace")) for item in value] if _is_texts(value) else []
    return [-1 if number is None else number for number in found]


def _of_names(names: Any, points: int) -> tuple[int, ...] | None:
    return flip_index_of(names) if _is_texts(names) and len(names) == points else None


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _names(names: Any, nc: Any) -> tuple[str, ...] | None:
    number = class_id(nc.encode("utf-8", "replace")) if isinstance(nc, str) else None
    if nc is not None and number is None:
        # show only text: a list of YAML aliases may be a thousand times as long as its file
        raise ValueError(
            f"nc: {quoted_value(nc) if isinstance(nc, str) else 'what it says'} is not a number of classes"
        )
    if names in (None, ""):
        return None if number is None else tuple(str(i) for i in range(number))
    if isinstance(names, dict):
        names = _from_mapping(names)
    if not _is_texts(names):
        raise ValueError("names: is neither a list of names nor a mapping of numbers to names")
    if number is not None and number != len(names):
        raise ValueError(f"nc: says {plural(number, 'class')}, but names: has {len(names)}")
    return _unlike(tuple(names))


def _from_mapping(names: dict[Any, Any]) -> list[Any]:
    ids = {}
    for key, name in names.items():
        number = class_id(key.encode("utf-8", "replace")) if isinstance(key, str) else None
        if number is None or number in ids:
            raise ValueError(f"names: {quoted_value(str(key))} is not a class number, or appears twice")
        ids[number] = name
    return [ids.get(i, str(i)) for i in range(max(ids, default=-1) + 1)]  # a gap keeps its number as a name


def _unlike(names: tuple[str, ...]) -> tuple[str, ...]:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            raise ValueError(f"the class name {quoted_value(name)} appears twice, for {first[name]} and {i}")
    if len(names) > MOST_CLASSES:
        raise ValueError(f"has {len(names)} classes, more than {MOST_CLASSES}")
    return names


def _names_file(tree: Tree) -> YoloConfig:
    found: dict[tuple[str, ...], list[bytes]] = {}
    for path in tree.files:
        if path.rpartition(b"/")[2].lower() in NAME_FILES:
            with needed(path):
                data = read_file(tree, path, MIB)
            lines = [as_text(line.strip()) for line in lines_of(data)]
            while lines and not lines[-1]:
                lines.pop()
            try:
                if "" in lines:
                    raise ValueError(f"line {lines.index('') + 1} is empty, so the ids after it are not clear")
                found.setdefault(_unlike(tuple(lines)), []).append(path)
            except ValueError as error:
                raise UsageError(path, str(error), "fix the file") from None
    if len(found) > 1:
        files = [path for paths in found.values() for path in paths]
        raise UsageError(
            tree.root, f"several files give different class names: {some_paths(files)}", "keep one of them"
        )
    for names, paths in found.items():
        return YoloConfig(names=names, origin=paths[0])
    return YoloConfig()


UPWARDS = re.compile(rb"\A(?:\.\./)+")
MOST_SPLIT_BYTES = 256 * MIB


@dataclass(slots=True)
class Split:
    """Folders (with their slash) and single images."""

    folders: tuple[bytes, ...] = ()
    images: set[bytes] = field(default_factory=set)
    missing: list[NoImage] = field(default_factory=list)
    """Lines in the list of the split that name no image."""

    def in_split(self, path: bytes) -> bool:
        """Return whether an image, or the path of a label's missing image, is in the split."""
        return path in self.images or path.startswith(self.folders)


def find_split(tree: Tree, config: YoloConfig, split: str) -> Split:
    """Return the split: data.yaml's entry, else the usual folder. Raise UsageError if it is missing or ambiguous."""
    result = Split()
    folders = set(tree.folders)
    files = set(tree.files)
    images: set[bytes] = set()
    for entry in config.splits.get(split, ()):
        choices = _places(tree, config, entry)
        folder = next((place for place in choices if place in folders or place == b""), None)
        listing = next((place for place in choices if place in files), None)
        if folder is not None:
            result.folders += (folder + b"/" if folder else b"",)
        elif listing is not None:
            images = images or set(tree.images)
            _read_listing(tree, listing, images, result)
        else:
            problem = f"{split}: {printable(entry)} is not a folder or file below the source"
            raise UsageError(config.origin, problem, "correct the entry, or give the folder that holds it")
    if config.splits.get(split):
        return result
    return Split((_usual_folder(tree, as_bytes(split)) + b"/",))


def _places(tree: Tree, config: YoloConfig, entry: str) -> list[bytes]:
    """Return the candidates for an entry, relative to the root: below ``path:``, below the root, or below a folder that
    the dataset was moved from (one exporter writes ``../train/images`` for ``train/images``)."""
    written = as_bytes(entry.strip().replace("\\", "/"))
    base = as_bytes(config.path.strip())
    found = []
    for place in (posixpath.join(base, written), written):
        if place.startswith(b"/"):
            if (place + b"/").startswith(tree.root + b"/"):
                found.append(posixpath.relpath(place, tree.root))
            continue
        found.append(UPWARDS.sub(b"", posixpath.normpath(place)))
    return [b"" if place == b"." else place for place in found if place != b".."]


def _read_listing(tree: Tree, listing: bytes, images: set[bytes], result: Split) -> None:
    folder = listing.rpartition(b"/")[0]
    with needed(listing):
        lines = lines_of(read_file(tree, listing, MOST_SPLIT_BYTES))
    for count, line in enumerate(lines, 1):
        name = line.strip()
        if not name:
            continue
        choices = [posixpath.normpath(name), posixpath.normpath(posixpath.join(folder, name))]
        if name.startswith(tree.root + b"/"):
            choices.append(posixpath.relpath(name, tree.root))
        image = next((choice for choice in choices if choice in images), None)
        if image is not None:
            result.images.add(image)
        else:
            where = f"{printable(listing)}:{count}"
            result.missing.append(NoImage(where, f"no image {printable(name)}", "add it, or remove the line"))


def _usual_folder(tree: Tree, split: bytes) -> bytes:
    """Return ``images/train``, ``train/images``, ``train``, or a single ``images/train2017``."""
    folders = [path for path in tree.folders if path]
    for folder in folders:
        parent, _, name = folder.rpartition(b"/")
        if (name == split and parent.lower() in IMAGE_FOLDERS) or (parent == split and name.lower() in IMAGE_FOLDERS):
            return folder
    if split in folders:
        return split
    inside = [path for path in folders if path.rpartition(b"/")[0].lower() in IMAGE_FOLDERS]
    dated = [path for path in inside if re.fullmatch(re.escape(split) + rb"[-_]?[0-9]{4}", path.rpartition(b"/")[2])]
    if len(dated) == 1:
        return dated[0]
    problem = f"{option('split', printable(split))} fits {len(dated) or 'no'} folders"
    next_step = f"its folders are: {some_paths(dated or inside or folders, 10)}"
    raise UsageError(tree.root, problem, next_step)
