"""What the values of mask files mean: from a file of the user, from the files beside the masks, or as published."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packer.errors import BadLabel, UsageError, option, printable
from packer.images.masks import LARGEST, MaskValues
from packer.sources.coco_masks import categories_of, panoptic_files, pixel_map_files
from packer.sources.paths import as_text, file_of, folder_of, quoted_value
from packer.sources.published_colors import colors_of
from packer.sources.source import Tree
from packer.sources.tree import MIB, lines_of, read_file
from packer.sources.yolo_config import NAME_FILES, read_config, yamls_with

IGNORED = 255
"""The id that means "no class" in the published sets of masks."""
FORMS = 'ids, binary, "colors:FILE", "map:FILE" or "panoptic:FILE"'
COLOR_FILES = frozenset(
    b"labelmap.txt labelmap.csv label_colors.txt class_dict.csv class_dict_seg.csv dataset_meta.json".split()
)
"""Files of colors and names, as CVAT, CamVid, Datumaro and tools for them write them (compared in lower case)."""
VISTAS = re.compile(rb"config(_v[0-9.]+)?\.json")
"""Mapillary Vistas' files of classes, in the order of their ids: one for each version, or one for all."""
KITTI_SEMANTIC = re.compile(rb"(?:\A|/)semantic/\Z")
"""KITTI's masks, beside image_2/, have the labelIds of Cityscapes."""
ROBOFLOW_NAMES = b"_classes.csv"
"""The names of the values of masks, in the folder of each split; of other labels, it has other columns."""
MASK_NAME_FILES = NAME_FILES | {b"class_names.txt", b"labels.txt"}
MASK_KEYS = frozenset(("masks_dir", "label_mapping"))
"""A data.yaml with one of these is of masks, as Ultralytics reads it; others name the boxes."""
ADE_FILES = frozenset(b"objectinfo150.txt scenecategories.txt".split())
NUMBERS = re.compile(r"[0-9]+")
HEX = re.compile(r"#([0-9a-fA-F]{6})\b")

VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""Everingham et al., The PASCAL Visual Object Classes Challenge 2012 Development Kit, section 2; ids 0 to 20."""
CITYSCAPES_CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The ids of these in labelIds: cityscapesScripts, helpers/labels.py, `trainId`; all others are ignored."""
CITYSCAPES_MOST = 33


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user says of the values of masks."""

    values: str | None = None
    """One of FORMS; None: as the files beside the masks say."""
    ignore: int | None = None
    """The id to ignore. None: 255 where no class has it."""
    alone: bool = True
    """Whether the images have no other labels, so that lists of names are those of masks wherever they are."""

    @property
    def ignored(self) -> int:
        """The id to ignore where a table has one for what is of no class."""
        return IGNORED if self.ignore is None else self.ignore


def values_in(tree: Tree, where: bytes, asked: Asked) -> MaskValues | None:
    """Return what the values of the masks in a folder mean, if that is known before one is read.

    Args:
        tree: The source.
        where: A folder of masks, or the ending of their names.
        asked: What the user says.

    Raises:
        UsageError: The user's file cannot be read.
    """
    form, colon, file = (asked.values or "").partition(":")
    if form and (form not in ("ids", "binary", "colors", "map") or bool(colon and file) != (form in ("colors", "map"))):
        raise UsageError(option("mask-values"), f"must be {FORMS}, got {printable(asked.values or '')}")
    if form == "binary":
        return MaskValues(("background", "foreground"), asked.ignore, binary=True)
    if form in ("colors", "map"):
        if form == "colors" and not os.path.exists(file) and (published := colors_of(file)) is not None:
            return with_ignored(published, asked.ignore)
        path = file_of(tree, form, file, "mask-values")
        if form == "map" and (categories := categories_of(tree, path, asked.ignored)) is not None:
            return with_ignored(categories, asked.ignore)
        try:
            lines = [as_text(line) for line in lines_of(read_file(tree, path, MIB))]
            return with_ignored((_colors if form == "colors" else _map)(lines), asked.ignore)
        except (BadLabel, ValueError) as error:
            problem = error.problem if isinstance(error, BadLabel) else str(error)
            raise UsageError(file, problem, f"{option('mask-values')} is {FORMS}") from None
    return _ids(tree, where, asked) if form == "ids" else _beside(tree, where, asked)


def _ids(tree: Tree, where: bytes, asked: Asked) -> MaskValues:
    return with_ignored(MaskValues(_names(tree, where, asked.alone)), asked.ignore)


def _beside(tree: Tree, where: bytes, asked: Asked) -> MaskValues | None:
    """Return what the files beside the masks say, or what is published of such folders; None if nothing is known."""
    place = where.lower()
    if b"gtfine" in place or b"gtcoarse" in place:
        return _cityscapes(b"trainids" in place, asked.ignored)
    if KITTI_SEMANTIC.search(place) and any(b"image_2" in folder for folder in tree.folders):
        return _cityscapes(False, asked.ignored)
    if (vistas := vistas_classes(tree, place)) is not None:
        return with_ignored(MaskValues(tuple(one["name"] for one in vistas)), asked.ignore)
    for path in _near(tree, where, COLOR_FILES):
        try:
            if (colors := _colors_in(tree, path)) is not None:
                return with_ignored(colors, asked.ignore)
        except (BadLabel, ValueError) as error:
            problem = error.problem if isinstance(error, BadLabel) else str(error)
            raise UsageError(as_text(path), problem, f"say what the values mean: {option('mask-values')}") from None
    for path in pixel_map_files(tree):
        if (categories := categories_of(tree, path, asked.ignored)) is not None:
            return with_ignored(categories, asked.ignore)
    if any(path.rpartition(b"/")[2].lower() in ADE_FILES for path in tree.files) and b"annotations" in place:
        return _scene_parsing(tree, asked.ignored)
    if yamls_with(tree, MASK_KEYS):
        return _of_yaml(tree, asked.ignored)
    if names := _names(tree, where, asked.alone):
        return with_ignored(MaskValues(names), asked.ignore)
    if b"segmentationclass" in place:
        return with_ignored(MaskValues(VOC_CLASSES), asked.ignore)
    return None


def _colors_in(tree: Tree, path: bytes) -> MaskValues | None:
    """Return what a file of colors says; None if it is one of Datumaro's without colors. Raise ValueError, BadLabel."""
    lines = lines_of(read_file(tree, path, MIB))
    if not path.lower().endswith(b".json"):
        return _colors([as_text(line) for line in lines])
    content = json.loads(b"\n".join(lines))
    if not isinstance(content, dict) or not content.get("segmentation_colors"):
        return None
    colors, names = content["segmentation_colors"], content.get("label_map") or {}
    try:
        rows = [(names[str(number)], *map(int, color)) for number, color in enumerate(colors)]
        return _colors([f"{name}:{red},{green},{blue}" for name, red, green, blue in rows])
    except (KeyError, TypeError, AttributeError):
        raise ValueError('its "label_map" and "segmentation_colors" do not fit each other') from None


def same_as_masks(tree: Tree, where: bytes) -> list[bytes]:
    """Return the files that have the objects of masks in another form: polygons and segments of Mapillary Vistas."""
    if vistas_classes(tree, where.lower()) is None:
        return []
    return [path for path in tree.files if re.search(rb"(?:\A|/)(?:polygons|panoptic)/[^/]+\.json\Z", path.lower())]


def vistas_classes(tree: Tree, place: bytes) -> list[dict[str, Any]] | None:
    """Return the classes of Mapillary Vistas for pictures in a folder (in lower case); None if it is another set."""
    if not re.search(rb"(?:\A|/)(?:labels|instances)/", place):
        return None
    for path in tree.files:
        name = VISTAS.fullmatch(path.rpartition(b"/")[2].lower())
        if name and (not name[1] or name[1][1:] in place.split(b"/")):
            try:
                found = json.loads(read_file(tree, path, MIB))["labels"]
                if all(isinstance(one["name"], str) and "instances" in one for one in found):
                    return list(found)
            except (BadLabel, ValueError, LookupError, TypeError):
                continue  # a config.json of something else
    return None


def with_ignored(values: MaskValues, ignore: int | None) -> MaskValues:
    """Return values with the id to ignore: the one given, else 255 where it is no class."""
    chosen = ignore if ignore is not None else IGNORED if len(values.classes) <= IGNORED else None
    return MaskValues(values.classes, chosen, values.ids, values.in_colors, values.binary)


def with_classes(values: MaskValues, names: tuple[str, ...]) -> MaskValues:
    """Return values with the names of ``--classes``: a class that has a name keeps its pixels, whatever its id was.

    Raises:
        UsageError: Colors or values have names that are not among these, or are more than these.
    """
    known = {name: number for number, name in enumerate(values.classes)}
    has_all = known.keys() <= set(names)
    is_same = all(names[number] == name for number, name in enumerate(values.classes[: len(names)]) if name in names)
    if is_same and (len(names) >= len(known) or not (values.ids or values.binary)):
        return replace(values, classes=names)
    if has_all and not values.binary:
        of_value = values.ids or tuple((number, number) for number in range(len(known)))
        ids = tuple(
            (value, names.index(values.classes[number]) if number != values.ignore else number)
            for value, number in of_value
        )
        return replace(values, classes=names, ids=ids)
    if not values.ids and not values.binary:
        return replace(values, classes=names)  # ids of a set of the user's own
    problem = f"names other classes than the masks have: {', '.join(map(printable, values.classes[:10]))}"
    raise UsageError(option("classes"), problem, "name all of these, or leave it out")


def renamed(values: MaskValues, new_name: Callable[[str], str | None]) -> MaskValues:
    """Return values whose classes have other names: those of one name become one, and dropped ones (None) are ignored.

    Raises:
        UsageError: There is no value for pixels that are ignored, or the pictures are black and white.
    """
    new = [new_name(name) for name in values.classes]
    names = tuple(dict.fromkeys(name for name in new if name is not None))
    if len(names) == len(new):
        return replace(values, classes=names)
    if values.binary:
        problem = "merges or drops one of the two classes of masks in black and white"
        raise UsageError(option("map"), problem, "leave out the masks, or only rename their classes")
    ignore = values.ignore
    if ignore is not None and ignore < len(new):  # it is one of the classes
        ignore = IGNORED if new[ignore] is None else names.index(new[ignore] or "")
    of_id: dict[int, int] = {}
    for number, name in enumerate(new):
        if name is None and ignore is None:
            problem = (
                f"leaves pixels of {printable(values.classes[number])}, but masks have no value for what is ignored"
            )
            raise UsageError(option("drop-class"), problem, f"name one: {option('ignore-id', IGNORED)}")
        of_id[number] = (ignore or 0) if name is None else names.index(name)
    ids = values.ids or tuple((number, number) for number in of_id)
    return replace(values, classes=names, ignore=ignore, ids=tuple((value, of_id.get(id, id)) for value, id in ids))


def _cityscapes(train_ids: bool, ignored: int) -> MaskValues:
    if train_ids:
        return MaskValues(CITYSCAPES_CLASSES, ignored)
    ids = dict.fromkeys((*range(CITYSCAPES_MOST + 1), IGNORED), ignored)
    ids |= {value: number for number, value in enumerate(CITYSCAPES_IDS)}
    return MaskValues(CITYSCAPES_CLASSES, ignored, tuple(ids.items()))


def _scene_parsing(tree: Tree, ignored: int) -> MaskValues:
    """Return the ids of ADE20K's SceneParsing: 0 is no class, class i is i + 1; the names are in objectInfo150.txt."""
    path = next((path for path in tree.files if path.rpartition(b"/")[2].lower() == b"objectinfo150.txt"), None)
    rows = [] if path is None else [as_text(line).split("\t") for line in lines_of(read_file(tree, path, MIB))]
    names = tuple(row[-1].strip() for row in rows if row[0].strip().isdigit()) or tuple(map(str, range(1, 151)))
    ids = ((0, ignored), *((number + 1, number) for number in range(len(names))))
    return MaskValues(names, ignored, ids)


def _of_yaml(tree: Tree, ignored: int) -> MaskValues:
    """Return the classes of a data.yaml, and the ids of its ``label_mapping``; other values are ids."""
    config = read_config(tree)
    names = config.names or ()
    ids = {number: number for number in range(len(names))} if config.label_mapping else {}
    ids |= {value: ignored if id is None else id for value, id in config.label_mapping.items()}
    if unknown := [id for id in ids.values() if id >= len(names) and id != ignored]:
        problem = f"label_mapping: names class {unknown[0]}, and names: has {len(names)}"
        raise UsageError(as_text(config.origin), problem, "fix the file")
    return MaskValues(names if len(names) != 1 else ("background", *names), ignored, tuple(ids.items()))


def files_of_values(tree: Tree, where: bytes, alone: bool) -> list[bytes]:
    """Return the files that may say what the values of the masks in a folder mean; the arguments are as in `Asked`."""
    is_vistas = vistas_classes(tree, where.lower()) is not None
    return [
        *(path for path in tree.files if is_vistas and VISTAS.fullmatch(path.rpartition(b"/")[2].lower())),
        *_near(tree, where, COLOR_FILES | ADE_FILES),
        *panoptic_files(tree),
        *pixel_map_files(tree),
        *yamls_with(tree, MASK_KEYS),
        *_name_files(tree, where, alone),
        *_tables_of_names(tree),
    ]


def _name_files(tree: Tree, where: bytes, alone: bool) -> list[bytes]:
    found = _near(tree, where, MASK_NAME_FILES if alone else MASK_NAME_FILES - NAME_FILES)
    inside = _near(tree, where, NAME_FILES) if where.endswith(b"/") else []
    return list(dict.fromkeys([*(path for path in inside if folder_of(path) == where[:-1]), *found]))


def _near(tree: Tree, where: bytes, names: Iterable[bytes]) -> list[bytes]:
    """Return the files of these names in the folder of the masks or above it, the nearest first."""
    wanted = frozenset(names)
    folders = {b"", where, *(where[:end] for end, letter in enumerate(where) if letter == ord("/"))}
    found = [path for path in tree.files if path.rpartition(b"/")[2].lower() in wanted and folder_of(path) in folders]
    return sorted(found, key=lambda path: -len(folder_of(path)))


def _names(tree: Tree, where: bytes, alone: bool) -> tuple[str, ...]:
    """Return the names of classes in the nearest file of names, one per line; () if there is none."""
    for path in _name_files(tree, where, alone):
        lines = [as_text(line).strip() for line in lines_of(read_file(tree, path, MIB))]
        names = [line for line in lines if line and line != "__ignore__"]
        if names and len(set(names)) == len(names):
            return tuple(names)
    tables = _tables_of_names(tree)
    return tables[next(iter(tables))] if len({*tables.values()}) == 1 else ()


def _tables_of_names(tree: Tree) -> dict[bytes, tuple[str, ...]]:
    """Return the names of classes in each table of Roboflow's, which has a line of id and name for each, from 0."""
    found = {}
    for path in tree.files:
        if path.rpartition(b"/")[2].lower() == ROBOFLOW_NAMES:
            header, *lines = [line.split(b",", 1) for line in lines_of(read_file(tree, path, MIB)) if line.strip()] or [
                []
            ]
            names = tuple(as_text(line[-1]).strip() for line in lines)
            ids = [line[0].strip() for line in lines if len(line) == 2]
            is_table = [cell.strip().lower() for cell in header] == [b"pixel value", b"class"]
            if is_table and ids == [b"%d" % number for number in range(len(names))] and len({*names}) == len(names):
                found[path] = names
    return found


def _colors(lines: Sequence[str]) -> MaskValues:
    """Return the classes of lines with a color and a name each, in any order and with any separators.

    ``road:128,64,128::``, ``64 128 64 Animal``, ``Animal,64,128,64``, ``#404040 Animal``.

    Raises:
        ValueError: A line has no color, or two have the same.
    """
    ids: dict[int, int] = {}
    names: list[str] = []
    for number, line in _content(lines):
        if (match := HEX.search(line)) is not None:
            red, green, blue = bytes.fromhex(match[1])
            name = line.replace(match[0], "")
        else:
            name, red, green, blue = _split_color(line, number)
        color = red << 16 | green << 8 | blue
        if color in ids:
            raise ValueError(f"line {number} has the color ({red}, {green}, {blue}) of {printable(names[ids[color]])}")
        ids[color] = len(names)
        names.append(name.split(":")[0].strip(" \t,;\"'") or str(len(names)))
    if not ids:
        raise ValueError("holds no colors")
    return MaskValues(tuple(names), None, tuple(ids.items()), in_colors=True)


def _split_color(line: str, number: int) -> tuple[str, int, int, int]:
    """Return the name and the color in a line."""
    cells = [cell.strip() for cell in re.split(r"[\s,;:]+", line.strip()) if cell.strip()]
    for start in (0, len(cells) - 3, *range(1, len(cells) - 3)):
        three = cells[start : start + 3] if start >= 0 else []
        if len(three) == 3 and all(NUMBERS.fullmatch(cell) and int(cell) < 256 for cell in three):
            red, green, blue = map(int, three)
            return " ".join(cells[:start] + cells[start + 3 :]), red, green, blue
    raise ValueError(f"line {number} has no color: {quoted_value(line)}; write one as 128 64 128 or #804080")


def _content(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line that is neither empty, a comment nor a header."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        is_header = number == 1 and not NUMBERS.search(text) and not HEX.search(text)
        if text and not is_header and not (text.startswith("#") and not HEX.match(text)):
            yield number, text


def _map(lines: Sequence[str]) -> MaskValues:
    """Return the ids of values, as ``7 0 road`` on a line each, or as a JSON object ``{"7": 0}``.

    Raises:
        ValueError: A line is not such a one, or an id is not that of one class.
    """
    text = "\n".join(lines).strip()
    rows: list[tuple[int, int, str]] = []
    if text.startswith(("{", "[")):
        loaded = json.loads(text)
        pairs = [*loaded.items()] if isinstance(loaded, dict) else []
        if not pairs or not all(str(key).isdigit() and type(value) is int and value >= 0 for key, value in pairs):
            raise ValueError("is not an object of whole numbers: value -> id")
        rows = [(int(key), value, "") for key, value in pairs]
    for number, line in _content(lines) if not rows else ():
        cells = [cell for cell in re.split(r"[\s,;:=>]+", line.strip(" -"), maxsplit=2) if cell]
        if len(cells) < 2 or not (NUMBERS.fullmatch(cells[0]) and NUMBERS.fullmatch(cells[1])):
            raise ValueError(f"line {number} is not VALUE ID [NAME]: {quoted_value(line)}")
        rows.append((int(cells[0]), int(cells[1]), cells[2].strip() if len(cells) > 2 else ""))
    if not rows:
        raise ValueError("maps no value")
    if any(max(value, id) > LARGEST for value, id, _ in rows):
        raise ValueError(f"has a number above {LARGEST}")
    names = {id: name for _, id, name in reversed(rows) if name}
    most = max((id for _, id, _ in rows if id != IGNORED), default=0)
    classes = tuple(names.get(id, str(id)) for id in range(most + 1))
    return MaskValues(classes, None, tuple({value: id for value, id, _ in rows}.items()))
