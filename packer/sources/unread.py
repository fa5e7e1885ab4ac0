"""Finds labels that ``--labels auto`` must not ignore: files that packer cannot read, and masks beside their images."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations

from packer.errors import BadLabel, printable
from packer.sources.base import Tree
from packer.sources.paths import (
    IMAGE_FOLDERS,
    LABEL_FOLDERS,
    SPLIT_FOLDER,
    extension_of,
    folder_of,
    is_number,
    named,
    quoted,
    spread,
    stem_of,
)
from packer.sources.tree import IMAGE_EXTENSIONS, MIB, lines_of, read_head
from packer.sources.yolo_config import NAME_FILES

TABLES = frozenset(b".txt .csv .tsv .lst .list".split())
TREES = frozenset(b".json .jsonl .ndjson .xml .yaml .yml".split())
LABEL_EXTENSIONS = TABLES | TREES | frozenset(b".pts .mat .npy .npz .pkl .asf .cat .ann .bbox .lms".split())
LOOKED_AT_A_FOLDER, MOST_LOOKED_AT = 4, 64
"""Maximum number of files to open: of one extension in one folder, and in total."""
MOST_LINES, MOST_CELLS = 4096, 128
SEVERAL = 2
"""Number of images that must be named: one may be an example in a text."""
ID_CHARACTERS = 6
"""A shorter stem may occur in any file: 1, 2007, cat."""
STRINGS = re.compile(rb"[^\"'<>\r\n\t]+")
CELL_ENDS = (re.compile(rb"[,;\t|]"), re.compile(rb"[,;\s|]+"))

MASK_FOLDERS = LABEL_FOLDERS | frozenset(
    b"mask masks gt groundtruth ground_truth ground-truth anno annos seg segs segmentation segmentations"
    b" segmentationclass segmentationobject depth depths target targets trimap trimaps matte mattes".split()
)
"""Folders with a second picture of each image (compared in lower case), which are not classes."""
MASK_ENDING = re.compile(rb"[-_. ](?:mask|gt|seg|segmentation|labels?|annotation|depth|target|matte)\Z", re.IGNORECASE)
MOST_FOLDERS, MOST_SIBLINGS = 10_000, 8


def unread_labels(tree: Tree) -> str | None:
    """Describe the files that seem to be labels of several images, in a tree that no source fits; None without any.

    Look at names, and at the first MiB of a few files.
    """
    stems = {stem_of(image) for image in tree.images}
    beside: dict[bytes, list[bytes]] = defaultdict(list)
    """Extension -> the files that have an image's name, such as 1.pts and 1.jpg.json."""
    for path in tree.files:
        # the inner stem is that of an image whose own extension was kept
        if (ending := extension_of(path)) in LABEL_EXTENSIONS and {stem_of(path), _plain(stem_of(path))} & stems:
            beside[ending].append(path)
    found = []
    for ending, paths in sorted(beside.items()):
        if len(paths) >= SEVERAL:
            found.append(f"{len(paths)} {printable(ending)} files have names of images ({named(paths)})")
        else:
            del beside[ending]
    files = [path for path in _looked_at(tree) if extension_of(path) not in beside]
    naming = [path for path in files if extension_of(path) in TABLES and _is_table_of(tree, path, stems)]
    says = {path: _strings(tree, path, stems) for path in files if extension_of(path) in TREES}
    if _tell(set().union(*says.values()), stems):
        naming += [path for path, strings in says.items() if strings]
    if naming:
        found.append(f"{named(naming)} {'names' if len(naming) == 1 else 'name'} images")
    return "; ".join(found) or None


def _plain(name: bytes) -> bytes:
    """Return the stem of an image's file name, and other names unchanged."""
    return stem_of(name) if extension_of(name) in IMAGE_EXTENSIONS else name


def _looked_at(tree: Tree) -> list[bytes]:
    """Return a few files of each folder and extension, those near the root first."""
    groups: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
    for path in tree.files:
        if extension_of(path) in TABLES | TREES and path.rpartition(b"/")[2].lower() not in NAME_FILES:
            groups[folder_of(path), extension_of(path)].append(path)
    few = [path for paths in groups.values() for path in spread(paths, LOOKED_AT_A_FOLDER)]
    return sorted(few, key=lambda path: path.count(b"/"))[:MOST_LOOKED_AT]


def _read(tree: Tree, path: bytes, ends: bool = False) -> bytes:
    try:
        data = read_head(tree, path, MIB // 2, MIB // 2) if ends else read_head(tree, path, MIB)
    except BadLabel:
        return b""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").encode()
    return data


def _base(text: bytes) -> bytes:
    """Return the last part of a path with slashes or backslashes, without surrounding blanks."""
    return text.strip(b" \t\"'").replace(b"\\", b"/").rpartition(b"/")[2]


def _strings(tree: Tree, path: bytes, stems: set[bytes]) -> set[bytes]:
    """Return the names and stems of images in quotes or tags, or after a YAML key."""
    found = STRINGS.findall(_read(tree, path, ends=True))  # COCO may put the names of its images last
    bases = (_base(text.rpartition(b": ")[2].removeprefix(b"- ")) for text in found)
    return {base for base in bases if _plain(base) in stems}


def _images_of(words: Iterable[bytes], stems: set[bytes]) -> set[bytes]:
    """Return the stems of the images whose file names are among the words, whatever their extension."""
    return {stem for word in words if (stem := _plain(word)) != word and stem in stems}


def _ids(words: set[bytes]) -> set[bytes]:
    """Return the words that can only be the name of one image."""
    return {word for word in words if len(word) >= ID_CHARACTERS and re.search(rb"\d", word)}


def _tell(strings: set[bytes], stems: set[bytes]) -> bool:
    """Return whether strings refer to images: several file names, several ids, or most stems that are words."""
    words = {word for word in strings & stems if not word.isdigit()}
    return (
        len(_images_of(strings, stems)) >= min(SEVERAL, len(stems))
        or len(_ids(strings & stems)) >= SEVERAL
        or len(words) >= max(SEVERAL, len(stems) / 2)
    )


def _is_table_of(tree: Tree, path: bytes, stems: set[bytes]) -> bool:
    """Return whether most lines are image labels: a file name in any column, or a stem in the first.

    A list of images without other columns is a split. A line of numbers belongs to the image in a line above it, as in
    the lists of WIDER FACE.
    """
    lines = [line for line in lines_of(_read(tree, path))[:MOST_LINES] if line.strip()]
    by_name: set[bytes] = set()
    by_stem: set[bytes] = set()
    data = columns = 0
    for line in lines:
        splits = [[_base(cell) for cell in pattern.split(line.strip())[:MOST_CELLS]] for pattern in CELL_ENDS]
        whole = _base(line)
        files, firsts = _images_of([whole, *splits[0], *splits[1]], stems), {whole, splits[0][0], splits[1][0]} & stems
        by_name |= files
        by_stem |= firsts
        data += bool(files or firsts) or all(map(is_number, splits[1]))
        columns += len(splits[1]) > 1 and _plain(whole) not in stems
    if 2 * data < len(lines) or 4 * columns < len(lines):
        return False
    return (
        len(by_name) >= min(SEVERAL, len(stems))
        or len(_ids(by_stem)) >= SEVERAL
        or len(by_stem) >= max(SEVERAL + 1, len(stems) / 2)  # 1, 2, 3 may be classes as well
    )


def paired_folders(tree: Tree) -> str | None:
    """Describe two folders with pictures of the same things, such as images/ and masks/; None if there are none.

    Class folders may number their images alike (cat/001.jpg, dog/001.jpg). Two folders are a pair if one is named like
    a folder of masks or images, or if they are the only two and the names they share are more than numbers.
    """
    folders = sorted({folder_of(image) for image in tree.images})[:MOST_FOLDERS]
    pairs = list(_pairs(folders))
    stems: dict[bytes, set[bytes]] = {folder: set() for first, second, _ in pairs for folder in (first, second)}
    endings: dict[bytes, set[bytes]] = defaultdict(set)
    for image in tree.images if pairs else ():
        if (folder := folder_of(image)) in stems:
            stems[folder].add(MASK_ENDING.sub(b"", stem_of(image)))
            endings[folder].add(extension_of(image))
    for first, second, is_named in pairs:
        one, other = stems[first], stems[second]
        if is_named:
            alike = 2 * len(one & other) >= min(len(one), len(other))
        else:
            alike = one == other and len(one) >= SEVERAL
            alike = alike and (not endings[first] & endings[second] or not _is_count(one))
        if alike:
            return f"{quoted(first + b'/')} and {quoted(second + b'/')} hold images of the same names"
    return None


def _pairs(folders: list[bytes]) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield pairs of folders whose paths differ in one part: named as a pair (True), or the only two (False)."""
    there = set(folders)
    siblings: dict[tuple[bytes, bytes], list[tuple[bytes, bytes]]] = defaultdict(list)
    for folder in folders:
        parts = folder.split(b"/")
        for i, part in enumerate(parts):
            siblings[b"/".join(parts[:i]), b"/".join(parts[i + 1 :])].append((part, folder))
        if parts[-1].lower() in MASK_FOLDERS and folder_of(folder) in there:
            yield folder_of(folder), folder, True
    for group in siblings.values():
        if len(group) > MOST_SIBLINGS:
            continue
        for (name, first), (other, second) in combinations(group, 2):
            is_named = bool({name.lower(), other.lower()} & (MASK_FOLDERS | IMAGE_FOLDERS))
            are_splits = SPLIT_FOLDER.fullmatch(name) and SPLIT_FOLDER.fullmatch(other)
            if not are_splits and (is_named or len(group) == 2):
                yield first, second, is_named


def _is_count(stems: set[bytes]) -> bool:
    """Return whether the stems are just numbered, such as img_001, img_002, img_003."""
    found = [re.fullmatch(rb"(\D*)(\d{1,18})(\D*)", stem) for stem in stems]
    matches = [match for match in found if match]
    if len(matches) < len(found) or len({(match[1], match[3]) for match in matches}) > 1:
        return False
    numbers = [int(match[2]) for match in matches]
    return max(numbers) - min(numbers) < 2 * len(numbers)
