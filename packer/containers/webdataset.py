"""WebDataset shards: plain tar files; choose it for streaming, and for tools that read tar."""

from __future__ import annotations

import mmap
import tarfile
from collections.abc import Iterator
from functools import lru_cache

from packer.containers.container import (
    EXTENSIONS,
    HEADER_BYTES,
    IMAGE_EXTENSIONS,
    Entry,
    FileFormat,
    Place,
    Places,
    StreamWriter,
    image_file,
    npy_payload_offset,
)
from packer.errors import DamagedPack, UsageError
from packer.files.tar_segments import NO_BYTES, tar_files
from packer.model.annotation import EXTENSIONS as PART_EXTENSIONS
from packer.model.annotation import Record, parts_of
from packer.model.record_json import annotation_json, packer_annotation, part_sizes
from packer.system.storage import mapped

_BLOCK = tarfile.BLOCKSIZE
_END = b"\0" * (2 * _BLOCK)


class WebDatasetWriter(StreamWriter):
    """Writes the members KEY.EXT, KEY.cls (if there is a label) and KEY.json of each record."""

    def write(self, record: Record) -> None:
        text = annotation_json(record, self._classes).encode("ascii")
        header, data = image_file(record)
        start = self._member(f"{record.key}.{EXTENSIONS[record.encoding]}", header, data)
        parts = {
            name: (self._member(f"{record.key}.{name}.{PART_EXTENSIONS[part.encoding]}", part.data), len(part.data))
            for name, part in parts_of(record, self._parts).items()
        }
        self._places.add((start + len(header), len(data)), parts)
        if record.annotation.label is not None:
            self._member(f"{record.key}.cls", b"%d" % record.annotation.label)
        self._member(f"{record.key}.json", text)

    def close(self) -> Places:
        # tar ends with two empty blocks, and is padded to whole records of 20 blocks
        fill = -(self._end + len(_END)) % tarfile.RECORDSIZE
        self._file.append(_END, b"\0" * fill)
        return super().close()

    def _member(self, name: str, *parts: bytes) -> int:
        """Write a member, and return where its bytes begin."""
        start = self._end + _BLOCK
        size = sum(map(len, parts))
        fill = -size % _BLOCK
        self._file.append(member_header(name.encode("ascii"), size), *parts, b"\0" * fill)
        self._end += _BLOCK + size + fill
        return start


def scan(path: str) -> Iterator[Entry]:
    """Yield the images: members whose names have the same key, up to the first dot, belong together."""
    with mapped(path) as view:
        if len(view) % tarfile.RECORDSIZE:
            raise DamagedPack(path, "not a whole tar file")
        try:
            yield from _scan_entries(view, path)
        except (UsageError, ValueError) as error:
            problem = error.problem if isinstance(error, UsageError) else error
            raise DamagedPack(path, f"not a whole tar file: {problem}") from error


def _scan_entries(view: mmap.mmap, path: str) -> Iterator[Entry]:
    sample = ""
    members: list[tuple[str, Place]] = []
    for name, start, size in tar_files(view, path):
        key, _, extension = name.decode("utf-8", "backslashreplace").partition(".")
        if key != sample:
            yield from _images(view, sample, members)
            sample, members = key, []
        if size != NO_BYTES:
            members.append((extension, (start, size)))
    yield from _images(view, sample, members)


def _images(view: mmap.mmap, key: str, members: list[tuple[str, Place]]) -> Iterator[Entry]:
    """Yield the images of a sample, whose members are given with their extensions."""
    start, size = dict(members).get("json", (0, 0))
    text = packer_annotation(view[start : start + size])
    sizes = part_sizes(text)
    parts = {name: place for extension, place in members if (name := extension.partition(".")[0]) in sizes}
    for extension, (start, size) in members:
        if extension.partition(".")[0] not in parts and extension.rpartition(".")[2].lower() in IMAGE_EXTENSIONS:
            header = npy_payload_offset(view[start : start + min(size, HEADER_BYTES)])
            yield Entry(key, start + header, size - header, text, parts)


@lru_cache(maxsize=1)
def _template() -> bytes:
    """Return tarfile's header of an empty regular file with mode 0644, no owner and time 0."""
    return tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)


def member_header(name: bytes, size: int) -> bytes:
    """Return the ustar header of a regular file; tarfile's own takes five times as long, too slow for small images.

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


CONTAINER = FileFormat(
    "webdataset", ".tar", block_bytes=_BLOCK, overhead_bytes=2560, create=WebDatasetWriter, scan=scan
)
