"""WebDataset shards: plain tar files; choose it for streaming, and for tools that read tar."""

from __future__ import annotations

import mmap
import tarfile
from collections.abc import Iterator
from functools import lru_cache

from packer.containers.base import Entry, Places, ShardSpec
from packer.containers.npy import EXTENSIONS, HEADER_BYTES, IMAGE_EXTENSIONS, image_file, npy_payload_offset
from packer.containers.storage import NewFile, mapped
from packer.errors import DamagedPack
from packer.model.annotation import Record
from packer.model.record_json import annotation_json, packer_annotation

_BLOCK = tarfile.BLOCKSIZE
_END = b"\0" * (2 * _BLOCK)


class WebDatasetWriter:
    """Writes the members KEY.EXT, KEY.cls (if there is a label) and KEY.json of each record."""

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

    def scan(self, path: str) -> Iterator[Entry]:
        """Yield the image members of any tar, sample by sample.

        A sample is a run of members with the same name up to the first dot of the file name, which is the key. Images
        are recognized by the extension. Links, folders and sparse files are ignored.
        """
        with mapped(path) as view:
            try:
                yield from _scanned(view)
            except (tarfile.TarError, ValueError, OSError) as error:  # ValueError: a seek beyond the end
                if isinstance(error, DamagedPack):
                    raise
                raise DamagedPack(path, f"not a whole tar file: {error}") from error


def _scanned(view: mmap.mmap) -> Iterator[Entry]:
    sample = ""
    images: list[Entry] = []
    text: bytes | None = None
    for member, start, size in _members(view):
        folder, slash, name = member.rpartition("/")
        stem, _, extension = name.partition(".")
        key = folder + slash + stem
        if key != sample:
            yield from (image._replace(annotation=text) for image in images)
            sample, images, text = key, [], None
        kind = extension.rpartition(".")[2].lower()
        if kind in IMAGE_EXTENSIONS:
            header = npy_payload_offset(view[start : start + min(size, HEADER_BYTES)])
            images.append(Entry(key, start + header, size - header, None))
        elif extension == "json":
            text = packer_annotation(view[start : start + size])
    yield from (image._replace(annotation=text) for image in images)


def _members(view: mmap.mmap) -> Iterator[tuple[str, int, int]]:
    """Yield (name, start, size) of the regular files, for the GNU, PAX and older formats that tarfile reads."""
    if len(view) == tarfile.RECORDSIZE and not view[:].strip(b"\0"):
        return  # no member: Python 3.10 seeks beyond the end of so short a file
    with tarfile.open(fileobj=view, mode="r:", encoding="utf-8", errors="backslashreplace") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep them all
            if member.offset_data + member.size > len(view):
                raise ValueError(f"the member {member.name!r} is truncated")
            if member.isreg() and not member.issparse():
                yield member.name, member.offset_data, member.size
        if view[tar.offset : tar.offset + _BLOCK].strip(b"\0"):  # tarfile just stops at an invalid header
            raise ValueError(f"no member header at byte {tar.offset}")


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


CONTAINER = WebDatasetContainer()
