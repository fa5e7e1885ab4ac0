"""WebDataset shards: plain tar files; choose it for streaming, and for tools that read tar."""

from __future__ import annotations

import mmap
import tarfile
from collections.abc import Iterator
from functools import lru_cache

from packer.containers.annotation_json import annotation_json
from packer.containers.base import Location, ShardSpec
from packer.containers.npy import EXTENSIONS, HEADER_BYTES, image_file, npy_payload_offset
from packer.containers.storage import NewFile, mapped
from packer.errors import DamagedPack
from packer.sample import Record

_BLOCK = tarfile.BLOCKSIZE
_IMAGE_EXTENSIONS = frozenset(name.encode() for name in EXTENSIONS.values())
_END = b"\0" * (2 * _BLOCK)


class WebDatasetWriter:
    """Writes the members KEY.EXT, KEY.cls (where there is a label) and KEY.json of each record."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        self._classes = spec.classes
        self._file = NewFile(path)
        self._size = 0

    def write(self, record: Record) -> None:
        text = annotation_json(record, self._classes).encode("ascii")
        self._member(f"{record.key}.{EXTENSIONS[record.encoding]}", *image_file(record))
        if record.annotation.label is not None:
            self._member(f"{record.key}.cls", b"%d" % record.annotation.label)
        self._member(f"{record.key}.json", text)

    def close(self) -> None:
        # tar ends with two empty blocks, and is padded to whole records of 20 blocks
        fill = -(self._size + len(_END)) % tarfile.RECORDSIZE
        self._file.append(_END, b"\0" * fill)
        self._file.close()

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
            for name, start, size in _members(path, view):
                key, _, extension = name.partition(b".")
                if extension in _IMAGE_EXTENSIONS:
                    header = _npy_header_bytes(path, view, start, size) if extension == b"npy" else 0
                    yield Location(key.decode("ascii"), start + header, size - header)

    def annotations(self, path: str) -> Iterator[tuple[str, bytes]]:
        """The members KEY.json."""
        with mapped(path) as view:
            for name, start, size in _members(path, view):
                key, _, extension = name.partition(b".")
                if extension == b"json":
                    yield key.decode("ascii"), view[start : start + size]


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


def _members(path: str, view: mmap.mmap) -> Iterator[tuple[bytes, int, int]]:
    """(name, start, size) of each member's data."""
    position, end = 0, len(view)
    while (header := view[position : position + _BLOCK]) != _END[:_BLOCK]:
        try:
            name, size = header[: header.index(0)], int(header[124:135], 8)
            known = header == member_header(name, size)
        except ValueError:
            known = False
        if not known:
            raise DamagedPack(path, f"no header of a member at byte {position}")
        start = position + _BLOCK
        position = start + size + -size % _BLOCK
        if position + 2 * _BLOCK > end:
            raise DamagedPack(path, f"member {name.decode('ascii', 'replace')} is cut")
        yield name, start, size


def _npy_header_bytes(path: str, view: mmap.mmap, start: int, size: int) -> int:
    try:
        return npy_payload_offset(view[start : start + min(size, HEADER_BYTES)])
    except ValueError as error:
        raise DamagedPack(path, f"a .npy member that packer did not write: {error}") from error


CONTAINER = WebDatasetContainer()
