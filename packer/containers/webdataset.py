"""WebDataset shards: plain tar files; choose it for streaming, and for tools that read tar."""

from __future__ import annotations

import mmap
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from packer.containers.annotation import annotation_json
from packer.containers.base import Places, ShardSpec
from packer.containers.npy import EXTENSIONS, HEADER_BYTES, image_file, npy_payload_offset
from packer.containers.storage import NewFile, mapped
from packer.errors import DamagedPack
from packer.types import Record

_BLOCK = tarfile.BLOCKSIZE
_IMAGE_EXTENSIONS = frozenset(EXTENSIONS.values())
_EMPTY = b"\0" * _BLOCK
_END = 2 * _EMPTY
_NAME_BYTES = 100
_SIZE, _CHECKSUM = slice(124, 135), slice(148, 156)
_PLACE_VALUES = 8 ** np.arange(5, -1, -1, dtype=np.int32)
_BLOCK_MEMBERS = 4096
"""Headers that are looked at together."""


class WebDatasetWriter:
    """Writes the members KEY.EXT, KEY.cls (where there is a label) and KEY.json of each record."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._classes = spec.classes
        self._file = NewFile(path)
        self._size = 0
        self._offsets: list[int] = []
        self._sizes: list[int] = []

    def write(self, record: Record) -> None:
        text = annotation_json(record, self._classes).encode("ascii")
        header, data = image_file(record)
        self._offsets.append(self._size + _BLOCK + len(header))
        self._sizes.append(len(data))
        self._member(f"{record.key}.{EXTENSIONS[record.encoding]}", header, data)
        if record.annotation.label is not None:
            self._member(f"{record.key}.cls", b"%d" % record.annotation.label)
        self._member(f"{record.key}.json", text)

    def close(self) -> Places:
        # tar ends with two empty blocks, and is padded to whole records of 20 blocks
        fill = -(self._size + len(_END)) % tarfile.RECORDSIZE
        self._file.append(_END, b"\0" * fill)
        self._file.close()
        return Places.of(self._offsets, self._sizes)

    def _member(self, name: str, *parts: bytes) -> None:
        size = sum(map(len, parts))
        fill = -size % _BLOCK
        self._file.append(member_header(name.encode("ascii"), size), *parts, b"\0" * fill)
        self._size += _BLOCK + size + fill


class WebDatasetContainer:
    """``--format webdataset``."""

    name = "webdataset"
    suffix = ".tar"
    block_bytes = 512
    overhead_bytes = 2560

    def create(self, path: str, spec: ShardSpec) -> WebDatasetWriter:
        return WebDatasetWriter(path, spec)

    def locate(self, path: str) -> Iterator[Location]:
        """Walks the headers; each must be, byte for byte, the one that this module writes."""
        with mapped(path) as view:
            header = b""
            for key, extension, start, size in _members(path, view):
                if extension not in _IMAGE_EXTENSIONS:
                    continue
                if extension != "npy":
                    yield Location(key, start, size)
                    continue
                if not header or view[start : start + len(header)] != header:
                    header = _npy_header(path, view, start, size)
                yield Location(key, start + len(header), size - len(header))

    def annotations(self, path: str) -> Iterator[tuple[str, bytes]]:
        """The members KEY.json."""
        with mapped(path) as view:
            for key, extension, start, size in _members(path, view):
                if extension == "json":
                    yield key, view[start : start + size]


@lru_cache(maxsize=1)
def _template() -> bytes:
    """Header of an empty regular file, mode 0644, of nobody, at time 0, written by tarfile."""
    return tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)


def member_header(name: bytes, size: int) -> bytes:
    """The ustar header of a regular file; tarfile's own takes five times as long, and small images notice.

    Fields: https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html#tag_20_92_13_06
    """
    if len(name) > 100 or size >= 8**11:
        raise ValueError(f"member {name!r} of {size} bytes does not fit a ustar header")
    template = _template()
    size_octal = b"%011o" % size
    # checksum: the sum of all bytes, its own field as spaces; the template's fields are zeros as text
    blank = _blank_sum() + sum(name) + sum(size_octal)
    return b"".join(
        (
            name.ljust(100, b"\0"),
            template[100:124],
            size_octal,
            template[135:148],
            b"%06o\0 " % blank,
            template[156:],
        )
    )


@lru_cache(maxsize=1)
def _blank_sum() -> int:
    template = _template()
    return sum(template[100:124]) + sum(template[135:148]) + sum(template[156:]) + 8 * ord(" ")


def _members(path: str, view: mmap.mmap) -> Iterator[tuple[str, str, int, int]]:
    """(key, extension, start, size) of each member's data."""
    blocks_at = np.ndarray((max(len(view) - _BLOCK, 0), _BLOCK), np.uint8, view, strides=(1, 1))
    places = _places(path, view)
    while block := list(islice(places, _BLOCK_MEMBERS)):
        headers = blocks_at[[start - _BLOCK for start, _ in block]]
        strange = np.flatnonzero(~_as_written(headers))
        if strange.size:
            raise DamagedPack(path, f"no header of a member at byte {block[strange[0]][0] - _BLOCK}")
        names = headers[:, :_NAME_BYTES].copy().view(f"S{_NAME_BYTES}")[:, 0].tolist()
        for name, (start, size) in zip(names, block, strict=True):
            key, _, extension = name.decode("ascii", "backslashreplace").partition(".")
            yield key, extension, start, size


def _places(path: str, view: mmap.mmap) -> Iterator[tuple[int, int]]:
    """(start, size) of each member's data, as far as the sizes in the headers can be believed."""
    position, end = 0, len(view)
    while view[position : position + _BLOCK] != _EMPTY:
        try:
            size = int(view[position + _SIZE.start : position + _SIZE.stop], 8)
        except ValueError:
            size = -1
        if size < 0:
            raise DamagedPack(path, f"no header of a member at byte {position}")
        start = position + _BLOCK
        position = start + size + -size % _BLOCK
        if position + 2 * _BLOCK > end:
            raise DamagedPack(path, f"the member at byte {start - _BLOCK} is cut")
        yield start, size


def _as_written(headers: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which of the headers, uint8 (n, 512), `member_header` would have written for their names and sizes."""
    template = np.frombuffer(_template(), np.uint8)
    name, size, checksum = headers[:, :_NAME_BYTES], headers[:, _SIZE], headers[:, _CHECKSUM]
    right = (name[:, 0] != 0) & (name[:, -1] == 0) & _octal(size) & _octal(checksum[:, :6])
    right &= ((name[:, :-1] != 0) | (name[:, 1:] == 0)).all(axis=1)
    for same in (slice(_NAME_BYTES, _SIZE.start), slice(_SIZE.stop, _CHECKSUM.start), slice(_CHECKSUM.stop, _BLOCK)):
        right &= (headers[:, same] == template[same]).all(axis=1)
    sums = _blank_sum() + name.sum(axis=1, dtype=np.int32) + size.sum(axis=1, dtype=np.int32)
    said = (checksum[:, :6].astype(np.int32) - ord("0")) @ _PLACE_VALUES
    return np.asarray(right & (sums == said) & (checksum[:, 6] == 0) & (checksum[:, 7] == ord(" ")))


def _octal(text: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray(((text >= ord("0")) & (text <= ord("7"))).all(axis=1))


def _npy_header(path: str, view: mmap.mmap, start: int, size: int) -> bytes:
    data = view[start : start + min(size, HEADER_BYTES)]
    try:
        return data[: npy_payload_offset(data)]
    except ValueError as error:
        raise DamagedPack(path, f"a .npy member that packer did not write: {error}") from error


CONTAINER = WebDatasetContainer()
