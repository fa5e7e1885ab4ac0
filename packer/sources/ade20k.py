"""The full ADE20K, of 2017 and 2020: ``1_seg.png`` beside ``1.jpg``, with the names of its objects in a text or JSON.

The class of a pixel is red // 10 * 256 + green, and blue is the number of the object, 0 where there is none. Pictures
of parts, ``1_parts_1.png``, and of single objects, ``1/instance_000_1.png``, are no images. (Format: ADE20K,
``loadAde20K.m`` and ``utils_ade20k.py``.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from packer.errors import BadLabel, BadMask
from packer.sources.paths import as_text
from packer.sources.source import Tree
from packer.sources.tree import MIB, lines_of, read_file

SEG = b"_seg.png"
OTHER_PICTURE = re.compile(rb"(.+)(?:_parts_[0-9]+\.png|/instance_[0-9]+_[^/]+\.png)", re.DOTALL)
ATR_CELLS = 5
"""Number, level of the part, occluded, class, name; further ones are attributes."""
MOST_BYTES = 16 * MIB


def names_file(files: Collection[bytes], path: bytes) -> bytes | None:
    """Return the file of the names of the objects in a picture, ``1_atr.txt`` or ``1.json``; None without."""
    stem = path[: -len(SEG)]
    return next((name for name in (stem + b"_atr.txt", stem + b".json") if name in files), None)


def is_ade20k(tree: Tree, masks: Collection[bytes]) -> bool:
    """Return whether pictures are those of ADE20K by the files beside them."""
    pictures = [path for path in masks if path.endswith(SEG)]
    files = {*tree.files} if pictures else set[bytes]()
    return any(names_file(files, path) is not None for path in pictures)


def other_pictures(paths: Collection[bytes]) -> list[bytes]:
    """Return the pictures of parts and of single objects, beside those of all objects."""
    there = {path[: -len(SEG)] for path in paths if path.endswith(SEG)}
    return [path for path in paths if there and (match := OTHER_PICTURE.fullmatch(path)) and match[1] in there]


def objects_in(tree: Tree, path: bytes, file: bytes | None, codes: list[int]) -> dict[int, tuple[str, int]]:
    """Return the classes of the objects in a picture.

    Args:
        tree: The source.
        path: The picture.
        file: Its `names_file`.
        codes: Its colors, r << 16 | g << 8 | b.

    Returns:
        Color of each object -> its class, and 0, because it is no crowd.

    Raises:
        BadMask: There is no file of names, or an object has no name in it.
        BadLabel: The file cannot be read.
    """
    if file is None:
        raise BadMask(path, "has no file of the names of its objects (_atr.txt, or .json)", "add it")
    data = read_file(tree, file, MOST_BYTES)
    names = _of_json(data, file) if file.endswith(b".json") else _of_text(data, file)
    found = {}
    for code in codes:
        red, green, number = code >> 16, code >> 8 & 255, code & 255
        if number:
            key = red // 10 * 256 + green if file.endswith(b".json") else number
            if key not in names:
                problem = f"has object {number} in ({red}, {green}, {number}), which {as_text(file)} does not name"
                raise BadMask(path, problem, "correct one of them")
            found[code] = (names[key], 0)
    return found


def _of_text(data: bytes, file: bytes) -> dict[int, str]:
    """Return number -> class of whole objects, of lines such as ``001 # 0 # 1 # sky # sky # ""``."""
    names = {}
    for number, line in enumerate(lines_of(data), 1):
        cells = [cell.strip() for cell in line.decode("latin-1").split("#")]
        if line.strip() and (len(cells) < ATR_CELLS or not (cells[0].isdecimal() and cells[1].isdecimal())):
            raise BadLabel(f"{as_text(file)}:{number}", "is not an object of ADE20K", "fix the line")
        if line.strip() and int(cells[1]) == 0:
            names[int(cells[0])] = cells[3]
    return names


def _of_json(data: bytes, file: bytes) -> dict[int, str]:
    """Return number of a class -> class."""
    try:
        objects = json.loads(data.decode("latin-1"))["annotation"]["object"]
        return {one["name_ndx"]: str(one["name"]) for one in objects}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadLabel(file, f"is not as ADE20K has it: {error!r}", "get the file again") from None
