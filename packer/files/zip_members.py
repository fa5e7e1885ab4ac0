"""Lists the members of a zip, with the place of each one's bytes."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from packer.errors import UsageError
from packer.files.tar_members import GET_AGAIN, Files, Member, Read, ReadAhead

LOCAL = struct.Struct("<4s5H3L2H")
LOCAL_MARK = b"PK\x03\x04"
ENCRYPTED, UTF8 = 0x1, 0x800
DOS, UNIX = 0, 3
LONGEST_TARGET = 4096
ENTRY = (
    "mark:u4 version:u1 system:u1 needed:u1 reserved:u1 flags:u2 method:u2 time:u4 crc:u4 packed:u4 size:u4 name:u2"
    " extra:u2 comment:u2 disk:u2 internal:u2 attributes:u2 mode:u2 start:u4"
)
"""Fields of an entry of the central directory, little-endian; its name, extra fields and comment follow."""
ENTRY_BYTES, ENTRY_MARK = 46, 0x02014B50
LENGTHS, LENGTHS_AT = struct.Struct("<3H"), 28
"""Of name, extra fields and comment, in an entry."""
END = struct.Struct("<4s8x2L2x")
LOCATOR = struct.Struct("<4sLQL")
END64 = struct.Struct("<4s36x2Q")
EXTRA = struct.Struct("<2H")
LOCAL_LENGTHS = struct.Struct("<4s22x2H")
NEWEST, MOST_32 = 63, 0xFFFFFFFF
UNICODE_PATH = 0x7075


def zip_members(file: IO[bytes], read: Read, size: int, name: str) -> Iterator[Member | Files]:
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
    files = plain_files(read, size)
    if files is not None:
        yield files
    else:
        yield from members_by_zipfile(file, read, size, name)


def members_by_zipfile(file: IO[bytes], read: Read, size: int, name: str) -> Iterator[Member]:
    """Yield the members one by one. Take and raise what `zip_members` does."""
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


def plain_files(read: Read, size: int) -> Files | None:
    """Return the members of an ordinary zip; None if `zipfile` has to look at it.

    For a member zipfile needs ten times as long, more than it takes to pack a small image.
    """
    import numpy as np

    directory = _directory(read, size)
    starts, names = _entries(directory)
    if not starts or not _are_plain(names):
        return None
    fields = np.dtype([(name, f"<{kind}") for name, kind in (field.split(":") for field in ENTRY.split())])
    data = np.frombuffer(directory, np.uint8)
    entries = np.lib.stride_tricks.sliding_window_view(data, ENTRY_BYTES)[starts].view(fields)[:, 0]
    is_folder = data[np.array(starts) + ENTRY_BYTES - 1 + entries["name"]] == ord("/")
    if _are_unusual(entries, is_folder).any():
        return None
    order = np.argsort(entries["start"], kind="stable")
    entries, names = entries[order], [names[i] for i in order.tolist()]
    offsets = _data_offsets(names, entries["start"].tolist(), entries["packed"].tolist(), read, size)
    if offsets is None:
        return None
    packed = np.where(entries["method"] == zipfile.ZIP_DEFLATED, entries["packed"].astype(np.int64), -1)
    return Files(names, np.column_stack((offsets, entries["size"], packed, entries["crc"])).astype(np.int64))


def _directory(read: Read, size: int) -> bytes:
    """Return the central directory; b"" if there is a comment behind it, or anything before the archive."""
    at = size - END.size
    end = read(END.size, at) if at >= 0 else b""
    if end[:4] != b"PK\5\6" or end[-2:] != b"\0\0":
        return b""
    _, length, start = END.unpack(end)
    locator = read(LOCATOR.size, at - LOCATOR.size) if at >= LOCATOR.size else b""
    if locator[:4] == b"PK\6\7":
        at -= LOCATOR.size + END64.size
        end = read(END64.size, at) if at >= 0 else b""
        _, disk, where, disks = LOCATOR.unpack(locator)
        if end[:4] != b"PK\6\6" or (disk, where) != (0, at) or disks > 1:
            return b""
        _, length, start = END64.unpack(end)
    return read(length, start) if start + length == at else b""


def _entries(directory: bytes) -> tuple[list[int], list[bytes]]:
    """Return where each entry begins, and its name; nothing if one ends elsewhere, or has unusual extra fields."""
    starts, names, at = [], [], 0
    while at <= len(directory) - ENTRY_BYTES:
        name, extra, comment = LENGTHS.unpack_from(directory, at + LENGTHS_AT)
        starts.append(at)
        at += ENTRY_BYTES + name
        names.append(directory[at - name : at])
        after = at + extra
        while after - at >= EXTRA.size:
            kind, length = EXTRA.unpack_from(directory, at) if after <= len(directory) else (0, 0)
            at += EXTRA.size + length
            if at > after or kind == UNICODE_PATH:
                return [], []
        at = after + comment
    return (starts, names) if at == len(directory) else ([], [])


def _are_plain(names: list[bytes]) -> bool:
    """Return whether all names are UTF-8 with no backslashes, so that they mean the same to every archiver."""
    try:
        joined = b"/".join(names).decode()
    except UnicodeDecodeError:
        return False
    return all(names) and "\\" not in joined


def _are_unusual(entries: Any, is_folder: Any) -> Any:
    """Return for each entry whether zipfile refuses it, or `_member` does not take it for a file or folder."""
    kind, method = entries["mode"] >> 12, entries["method"]
    is_plain = (entries["system"] != UNIX) | (kind == 0) | (kind == stat.S_IFREG >> 12) | is_folder
    is_copied = (method == zipfile.ZIP_STORED) & (entries["packed"] == entries["size"])
    unusual = ~is_plain | ~(is_copied | (method == zipfile.ZIP_DEFLATED)) | (entries["flags"] & ENCRYPTED != 0)
    for name in ("packed", "size", "start"):  # in an extra field of zip64
        unusual |= entries[name] == MOST_32
    return unusual | (entries["mark"] != ENTRY_MARK) | (entries["needed"] > NEWEST)


def _data_offsets(names: list[bytes], starts: list[int], packed: list[int], read: Read, size: int) -> list[int] | None:
    """Return where the data of each member begins; None if a header is damaged, or members overlap."""
    ahead, end, offsets = ReadAhead(read), 0, []
    for name, start, length in zip(names, starts, packed, strict=True):
        header = ahead(LOCAL.size + len(name), start)
        if start < end or header[LOCAL.size :] != name:
            return None
        mark, written, extra = LOCAL_LENGTHS.unpack_from(header)
        offsets.append(start + LOCAL.size + written + extra)
        end = offsets[-1] + length
        if mark != LOCAL_MARK or written != len(name) or end > size:
            return None
    return offsets
