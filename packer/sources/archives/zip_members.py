"""Lists the members of a zip, with the place of each one's bytes."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

from packer.errors import UsageError
from packer.sources.archives.tar_members import GET_AGAIN, Member, Read, ReadAhead

LOCAL = struct.Struct("<4s5H3L2H")
LOCAL_MARK = b"PK\x03\x04"
ENCRYPTED, UTF8 = 0x1, 0x800
DOS, UNIX = 0, 3
LONGEST_TARGET = 4096


def zip_members(file: IO[bytes], read: Read, size: int, name: str) -> Iterator[Member]:
    """Yield the members of a zip: stored, or deflated; also zip64, and with sizes after the data.

    Args:
        file: The zip, for `zipfile`.
        read: Reads it.
        size: Its size.
        name: Its name, for errors.

    Raises:
        UsageError: It is damaged, encrypted, or one of several parts.
        OSError: It cannot be read.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError) as error:
        raise UsageError(name, f"is not a whole zip archive: {error}", GET_AGAIN) from None
    end, ahead = 0, ReadAhead(read)
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.flag_bits & ENCRYPTED:
            raise UsageError(name, f"is encrypted ({info.filename})", "unpack it with its password")
        written = info.orig_filename.encode("utf-8" if info.flag_bits & UTF8 else "cp437")
        start = _data_offset(info, written, ahead, name) if info.header_offset >= end else None
        if start is None or start + info.compress_size > size:
            raise UsageError(name, f"is damaged: {info.filename} overlaps another member, or the end", GET_AGAIN)
        end = start + info.compress_size
        yield _member(info, _name(info, written), start, read)


def _data_offset(info: zipfile.ZipInfo, written: bytes, read: Read, name: str) -> int:
    header = read(LOCAL.size + len(written), info.header_offset)
    if len(header) < LOCAL.size or header[:4] != LOCAL_MARK:
        problem = f"is damaged: there is no header for {info.filename} at byte {info.header_offset}"
        raise UsageError(name, problem, GET_AGAIN)
    *_, name_length, extra_length = LOCAL.unpack_from(header)
    if name_length != len(written) or header[LOCAL.size :] != written:
        raise UsageError(name, f"is damaged: the name of {info.filename} differs in its header", GET_AGAIN)
    return int(info.header_offset + LOCAL.size + name_length + extra_length)


def _name(info: zipfile.ZipInfo, name: bytes) -> bytes:
    """Return the name, given as it is written, as it would be on this disk.

    Without the flag for UTF-8 the encoding is unknown: archivers of Unix and macOS write the bytes of the disk, others
    code page 437.
    """
    if not info.flag_bits & UTF8 and info.create_system != UNIX:
        try:
            name.decode("utf-8")
        except UnicodeDecodeError:
            name = info.orig_filename.encode("utf-8")
    if info.create_system == DOS and b"/" not in name:
        name = name.replace(b"\\", b"/")
    return name


def _member(info: zipfile.ZipInfo, name: bytes, start: int, read: Read) -> Member:
    mode = info.external_attr >> 16
    if name.endswith(b"/"):
        return Member(name, "folder")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = zipfile.compressor_names.get(info.compress_type, info.compress_type)  # type: ignore[attr-defined]
        return Member(name, f"is compressed with {method}, not stored or deflated")
    packed = info.compress_size if info.compress_type == zipfile.ZIP_DEFLATED else -1
    if packed < 0 and info.compress_size != info.file_size:
        return Member(name, "is stored with two different sizes")
    if info.create_system == UNIX and stat.S_ISLNK(mode):
        target = read(min(info.compress_size, LONGEST_TARGET), start)
        if packed >= 0:
            with suppress(zlib.error):
                target = zlib.decompressobj(-zlib.MAX_WBITS).decompress(target, LONGEST_TARGET)
        return Member(name, "symlink", target=target)
    if info.create_system == UNIX and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return Member(name, "not a regular file")
    return Member(name, "file", start, info.file_size, packed, info.CRC)
