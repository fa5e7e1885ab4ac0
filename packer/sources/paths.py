"""Names, paths and numbers in annotation files: stems, folders, paths as text, strict decimals; long lists of paths.

Python's ``float`` also accepts ``1_0``, ``nan``, ``1e400`` and full-width digits, which are not coordinates.
"""

from __future__ import annotations

import mmap
import os
import posixpath
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar, overload

from packer.errors import UsageError, option, printable
from packer.sources.places import Archive
from packer.sources.source import Tree
from packer.stores import clean_url, is_url, joined
from packer.stores.store import NoObject
from packer.system.storage import Spill

T = TypeVar("T")
IMAGE_EXTENSIONS = frozenset(
    b".jpg .jpeg .jpe .jfif .png .apng .bmp .dib .gif .webp .tif .tiff .ppm .pgm .pbm .pnm"
    b" .jp2 .j2k .j2c .jpc .jpf .jpx .avif .avifs"
    # packer cannot decode these, but they are images: they must be rejected, not overlooked
    b" .heic .heif".split()
)
LIST_EXTENSIONS = frozenset({b".txt", b".csv", b".tsv", b".lst", b".list"})
IMAGE_FOLDERS = frozenset({b"images", b"image", b"imgs", b"img", b"jpegimages"})
"""Image folders of VOC and YOLO datasets (compared in lower case), which are never a class."""
LABEL_FOLDERS = frozenset(b"annotations annotation labels label xml xmls labeltxt annfiles".split())
"""Annotation folders of such datasets (compared in lower case)."""
MASK_NAMES = (
    "mask", "masks", "segmentation_mask", "semantic_mask", "segmentation", "semantic_segmentation", "seg", "seg_mask",
    "segmap", "semantic", "annotation", "annotations", "gt", "ground_truth", "label", "labels", "target",
)  # fmt: skip
"""Names of columns and members with masks, the likeliest first."""
NEVER_CLASSES = IMAGE_FOLDERS | frozenset(
    b"annotations annotation labels xmls anno annos masks groundtruth ground_truth ground-truth segmentations"
    b" segmentationclass segmentationobject trimaps mattes gtfine gtcoarse leftimg8bit imgsfine imgscoarse semantic"
    b" semantic_rgb instance instances image_2 image_3 label_2 rgb depth hr lr upsampled".split()
)
"""Folders that are not classes unless the user says so (compared in lower case)."""
SPLIT_FOLDER = re.compile(
    rb"(?:train|trainval|training|val|valid|validate|validation|test|testing)(?:[-_]?[0-9]{4})?", re.IGNORECASE
)
"""Folders of splits: train, val, test2017."""
NUMBERED = re.compile(rb"-[0-9]{5}-of-[0-9]{5}\Z")
"""The end of the names of files of which there are several."""


ARCHIVE_NAME = re.compile(
    rb"(.*[^/])\.(?:zip|parquet|tar|(?:tar\.|t)(?:gz|bz2|bz|xz|zst|zstd))", re.IGNORECASE | re.DOTALL
)
MOST_CLASSES = 65536
"""Class ids are 0..65535; a larger one is a typing error, and must not cost memory."""

NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
WHOLE = re.compile(rb"[0-9]+")
LONGEST = 64  # characters; 17 digits write every float64
LARGEST = 1e9
"""No image is that large, and larger sums could exceed float32."""


def as_text(path: bytes) -> str:
    """Return a path or name as text that converts back to the same bytes, in any locale."""
    return path.decode("utf-8", "surrogateescape")  # os.fsdecode would depend on the locale


def is_utf8(text: bytes) -> bool:
    """Return whether bytes are text in UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def as_bytes(path: str) -> bytes:
    """Return the inverse of `as_text`; also for arguments of the shell in a UTF-8 locale."""
    return path.encode("utf-8", "surrogateescape")


def is_text(name: str) -> bool:
    """Return whether `as_bytes` has bytes for a name: JSON may have half of a surrogate pair."""
    try:
        as_bytes(name)
    except UnicodeEncodeError:
        return False
    return True


def folder_of(path: bytes) -> bytes:
    """Return the folder of a relative path, b"" for the root."""
    return path.rpartition(b"/")[0]


def stem_of(path: bytes) -> bytes:
    """Return the file name without folder and last extension: ``a/b.c.jpg`` -> ``b.c``."""
    name = path.rpartition(b"/")[2]
    stem, dot, _ = name.rpartition(b".")
    return stem if dot and stem else name


def image_stem(name: bytes) -> bytes:
    """Return the stem of a file name with the extension of an image, and other names unchanged."""
    return stem_of(name) if extension_of(name) in IMAGE_EXTENSIONS else name


def extension_of(path: bytes) -> bytes:
    """Return the last extension in lower case with its dot, b"" for none: ``a/b.JPG`` -> ``.jpg``."""
    name = path.rpartition(b"/")[2]
    stem, dot, extension = name.rpartition(b".")
    return (dot + extension).lower() if dot and stem else b""


def archive_stem(path: bytes) -> bytes | None:
    """Return the path of an archive without its extension; None if it has none of an archive."""
    match = ARCHIVE_NAME.fullmatch(path)
    return match[1] if match else None


def archive_of(path: bytes) -> tuple[bytes, bytes]:
    """Return the archive that an absolute path leads into, and the folder in it with a final slash; b"" without one.

    In a folder an archive may be named without its extension, as in the paths of what it holds.
    """
    archive, inside = path, b""
    while archive and not os.path.lexists(archive):
        archive, _, name = archive.rpartition(b"/")
        inside = name + b"/" + inside
    if inside and os.path.isdir(archive):
        name, _, inside = inside.partition(b"/")
        stem = archive + b"/" + name
        places = (archive + b"/" + entry for entry in sorted(os.listdir(archive)))
        archive = next((place for place in places if archive_stem(place) == stem), b"")
    return (archive, inside) if os.path.isfile(archive) else (b"", b"")


def file_of(tree: Tree, kind: str, file: str, of_option: str = "labels") -> bytes:
    """Return the absolute path or URL of the FILE of ``--labels KIND:FILE``, or of another option.

    It is relative to the working directory, or else to the source, which may be an archive or in a store.

    Raises:
        UsageError: There is no such file.
    """
    if is_url(file):
        path = as_bytes(clean_url(file))
        with suppress(NoObject):
            Archive.of(path)
            return path
    else:
        path = os.path.realpath(as_bytes(file)) if file else b""
        if os.path.isfile(path):
            return path
    for inside in (tree.below(path), posixpath.normpath(as_bytes(file))):
        if inside in tree.files:
            return joined(tree.root, inside)
    step = "name the file, relative to this folder or to the source"
    raise UsageError(option(of_option, f"{kind}:{file}"), "there is no such file", step)


def files_beside(tree: Tree, folder: bytes) -> list[bytes]:
    """Return the absolute paths of the files in a folder: those of the tree if it is in the source."""
    top = tree.root.rstrip(b"/") + b"/"
    if (folder + b"/").startswith(top):
        return [top + path for path in tree.files if folder_of(top + path) == folder]
    if is_url(folder):
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.path for entry in entries if entry.is_file())


def split_folders(tree: Tree, split: str | None) -> tuple[bytes, ...]:
    """Return the folders called ``--split``, wherever they are, with a final slash; (b"",) without ``--split``.

    Raises:
        UsageError: No folder of that name holds images.
    """
    if split is None:
        return (b"",)
    ending = b"/" + as_bytes(split).strip(b"/") + b"/"
    folders = {b"/" + folder_of(image) + b"/" for image in tree.images}
    found = {folder[1 : folder.index(ending) + len(ending)] for folder in folders if ending in folder}
    if not found:
        there = sorted({part for folder in folders for part in folder.split(b"/") if SPLIT_FOLDER.fullmatch(part)})
        next_step = f"the splits are: {some_paths(there, 10)}" if there else "leave out --split"
        raise UsageError(tree.root, f"no folder of images for --split={split}", next_step)
    return tuple(sorted(found))


def splits_of(tree: Tree) -> list[bytes]:
    """Return the names of the folders such as train/ and val/ that hold images and lie side by side; [] for one."""
    beside: dict[bytes, set[bytes]] = {}
    for folder in {folder_of(image) for image in tree.images}:
        parts = [NUMBERED.sub(b"", part) for part in folder.split(b"/")]
        for i, part in enumerate(parts):
            if SPLIT_FOLDER.fullmatch(part):
                beside.setdefault(b"/".join(parts[:i]), set()).add(part)
                break
    names = {name for group in beside.values() if len(group) > 1 for name in group}
    return sorted(names, key=lambda name: (not name.lower().startswith(b"train"), name))


def some_paths(paths: Iterable[bytes], limit: int = 3) -> str:
    """Return some of these paths, for a message: ``a.xml, b.xml and 4 more``."""
    every = list(paths)
    text = ", ".join(printable(path) for path in every[:limit])
    return f"{text} and {len(every) - limit} more" if len(every) > limit else text


def spread(paths: Sequence[T], limit: int) -> Sequence[T]:
    """Return at most `limit` items, evenly spaced."""
    return paths[:: max(1, len(paths) // limit)][:limit]


def quoted_value(value: bytes | str) -> str:
    """Return a value from a file for a message: printable, at most 40 characters, in quotes."""
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    text = printable(text if len(text) <= 40 else text[:37] + "...")
    return f'"{text}"'


def is_number(token: bytes) -> bool:
    """Return whether `number` accepts the token."""
    return len(token) <= LONGEST and bool(NUMBER.fullmatch(token)) and abs(float(token)) <= LARGEST


def number(token: bytes) -> float:
    """Return the token as a number, -1e9..1e9. Raise ValueError if it is not one."""
    if not is_number(token):
        why = ": it has a decimal comma" if token.count(b",") == 1 else ""
        raise ValueError(f"{quoted_value(token)} is not a number{why}")
    return float(token)


def coordinate(value: Any) -> float:
    """Return a value of a JSON file as a number, -1e9..1e9. Raise ValueError if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        raise ValueError(f"{json_text(value)} is not a coordinate")
    return float(value)


def name_in(value: Any) -> str:
    """Return the name of a class in a JSON file, which may be a number. Raise ValueError if it is neither."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{json_text(value)} is not a name")
    return str(value)


def json_text(value: Any) -> str:
    """Return a value of a JSON file for a message."""
    try:
        return quoted_value(value) if isinstance(value, str) else quoted_value(str(value))[1:-1]
    except RecursionError:
        return "a deep list"


def exact_number(token: bytes) -> int | float:
    """Return the same as `number`, but an int if the token is written as one, to store it unchanged."""
    value = number(token)
    return int(token) if re.fullmatch(rb"[+-]?[0-9]{1,15}", token) else value


def class_id(token: bytes) -> int | None:
    """Return the token as a class id 0..65535; None if it is not one."""
    if len(token) > LONGEST or not WHOLE.fullmatch(token):
        return None
    value = int(token)
    return value if value < MOST_CLASSES else None


SIDES = re.compile(r"left|right|(?<![a-z])[lr](?![a-z])")
MOST_KEYPOINTS = 1 << 18
"""Of an image."""
OPPOSITE = {"left": "right", "right": "left", "l": "r", "r": "l"}


def check_count(objects: int, points: int) -> None:
    """Raise ValueError for more keypoints than an image has: a short file may give each object those of all others."""
    if objects * points > MOST_KEYPOINTS:
        raise ValueError(f"has {objects} objects with {points} keypoints each, more than {MOST_KEYPOINTS}")


def flip_index_of(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the index of the mirror image of each point: (1, 0, 2) for left_eye, right_eye, nose.

    Args:
        names: The names of the points, in order; left and right as words or parts of them, or as a single l or r.

    Returns:
        The indices, or None if the names have no sides, repeat, or lack an opposite.
    """
    lower = [name.strip().lower() for name in names]
    places = {name: i for i, name in enumerate(lower)}
    mirrored = [SIDES.sub(lambda match: OPPOSITE[match[0]], name) for name in lower]
    if len(places) < len(lower) or mirrored == lower or not places.keys() >= set(mirrored):
        return None
    return tuple(places[name] for name in mirrored)


SPLIT_WORD = re.compile(
    rb"(?<![a-z])(trainval|train(?:ing)?|val(?:id(?:ation)?)?|test(?:ing)?)(?:[-_]?([0-9]{4}))?(?![a-z0-9])"
)
SPLIT_NAMES = {b"training": b"train", b"valid": b"val", b"validation": b"val", b"testing": b"test"}

Split = tuple[bytes, bytes]
"""train, val, test or trainval, and a year or b""."""


def splits_in(path: bytes) -> set[Split]:
    """Return the splits in a path: {(train, 2017)} for ``annotations/instances_train2017.json``."""
    found = {(SPLIT_NAMES.get(word, word), year) for word, year in SPLIT_WORD.findall(path.lower())}
    return found | {(word, year) for name, year in found if name == b"trainval" for word in (b"train", b"val")}


def is_of_split(path: bytes, split: bytes) -> bool:
    """Return whether a file or folder belongs to a split by its name: that very word, or one that means the same."""
    wanted = splits_in(split)
    if wanted:
        return any(word == name and year in (b"", other) for word, year in wanted for name, other in splits_in(path))
    return re.search(rb"(?<![a-z0-9])%b(?![a-z0-9])" % re.escape(split.lower()), path.lower()) is not None


def folder_splits(tree: Tree, *_: object) -> tuple[str, ...]:
    """Return the splits whose folders lie side by side, such as ``images/train`` and ``images/val``; () for one."""
    return in_order(map(as_text, splits_of(tree)))


def file_splits(paths: Sequence[bytes]) -> tuple[str, ...]:
    """Return the splits that files are named after, one for each: ``train.csv``, ``val.csv``; () if one is not."""
    words = [SPLIT_WORD.findall(path.lower()) for path in paths]
    if any(len({*found}) != 1 for found in words):
        return ()
    names = {word for ((word, _), *_) in words}
    with_year = len({*(found[0] for found in words)}) > len(names)
    return in_order(as_text(b"".join(found[0]) if with_year else found[0][0]) for found in words)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of splits that may be packed one by one: train first, and none that others are parts of."""
    every = {*names}
    for whole, part in (("trainval", "train"), ("val", "trainval")):
        if part in every:
            every.discard(whole)
    ranks = {name: next((i for i, word in enumerate(("train", "val", "test")) if name.lower().startswith(word)), 3)
             for name in every}  # fmt: skip
    return tuple(sorted(every, key=lambda name: (ranks[name], name))) if len(every) > 1 else ()


def are_splits(names: Iterable[str]) -> bool:
    """Return whether names, as of subsets, are all those of splits."""
    return all(SPLIT_FOLDER.fullmatch(as_bytes(name)) for name in names)


class FolderSplit:
    """A split by the folders of its images.

    Raises:
        UsageError: No folder is of that split.
    """

    def __init__(self, tree: Tree, split: str) -> None:
        self._name = as_bytes(split)
        if not any(self._fits(folder) for folder in tree.folders):
            problem = f"{option('split', printable(split))} fits no folder"
            raise UsageError(tree.root, problem, f"its folders are: {some_paths(tree.folders, 10)}")

    @classmethod
    def of(cls, tree: Tree, split: str | None) -> FolderSplit | None:
        """Return the split of ``--split``; None without it."""
        return None if split is None else cls(tree, split)

    def in_split(self, image: bytes) -> bool:
        """Return whether the folder of an image is of the split."""
        return self._fits(folder_of(image))

    def _fits(self, folder: bytes) -> bool:
        return self._name in folder.split(b"/") or is_of_split(folder, self._name)


AT_ONCE = 4096


class PathList(Sequence[bytes]):
    """Paths in ascending order, of which there may be more than fit in the memory as objects."""

    def __init__(self, data: bytes | mmap.mmap, starts: bytes | mmap.mmap) -> None:
        """Read what a `PathWriter` has written.

        Args:
            data: The paths, a zero byte behind each.
            starts: Where each begins, and the end of the last one, int64.
        """
        self._data = data
        self._starts = memoryview(starts).cast("q")

    @classmethod
    def of(cls, paths: Iterable[bytes]) -> PathList:
        """Return these paths, which are in ascending order."""
        writer = PathWriter()
        for path in paths:
            writer.append(path)
        return writer.finish()

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        starts = self._starts
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            return self._data[starts[start] : starts[max(start, stop)]].split(b"\0")[:-1]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._data[starts[index] : starts[index + 1] - 1]

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), AT_ONCE):
            yield from self[start : start + AT_ONCE]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def buffers(self) -> tuple[Any, bytes | mmap.mmap]:
        """Return what it was made from: where each path begins, int64 (n + 1,), and the bytes of all."""
        import numpy as np

        return np.frombuffer(self._starts, np.int64), self._data

    def __reduce__(self) -> tuple[type[PathList], tuple[bytes, bytes]]:
        return PathList, (self._data[:], self._starts.tobytes())

    def __contains__(self, path: Any) -> bool:
        place = bisect_left(self, path)
        return place < len(self) and self[place] == path


class PathWriter:
    """Collects the paths of a `PathList`, in their order."""

    def __init__(self) -> None:
        self._data, self._starts = Spill(), Spill()
        self._starts.append(bytes(8))
        self._end = 0
        self._waiting: list[bytes] = []

    def append(self, path: bytes) -> None:
        """Append a path, which has no zero byte."""
        self.extend((path,))

    def extend(self, paths: Iterable[bytes]) -> None:
        """Append paths."""
        self._waiting += paths
        if len(self._waiting) >= AT_ONCE:
            self._flush()

    def join(self, more: PathList) -> None:
        """Append paths."""
        import numpy as np

        self._flush()
        starts = np.frombuffer(more._starts, np.int64)
        self._data.append(more._data[: starts[-1]])
        self._starts.append((starts[1:] + self._end).tobytes())
        self._end += int(starts[-1])

    def _flush(self) -> None:
        import numpy as np  # a command that fails early does not wait for it

        if waiting := self._waiting:
            self._data.append(b"\0".join(waiting) + b"\0")
            ends = np.cumsum(np.fromiter(map(len, waiting), np.int64, len(waiting)) + 1) + self._end
            self._starts.append(ends.tobytes())
            self._end, self._waiting = int(ends[-1]), []

    def finish(self) -> PathList:
        """Return all paths."""
        self._flush()
        return PathList(self._data.finish(), self._starts.finish())
