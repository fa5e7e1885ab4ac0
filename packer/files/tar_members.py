"""Lists the members of a plain tar, with the place of each one's bytes.

Reads what GNU tar, bsdtar and Python write: v7, ustar, GNU (long names) and pax headers. For a member tarfile needs ten
times as long, more than it takes to pack a small image, and it takes a damaged header for the end of the archive.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from packer.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK = 512
AHEAD_BYTES = 1 << 20
SMALL_MEMBER_BYTES = 16 * 1024
"""Reading on is faster than looking for the next header up to this size."""
MOST_HEADER_BYTES = 1 << 20
"""Names and pax records of one member."""
GET_AGAIN = "get the archive again"
SPARSE = "is stored as a sparse file, in pieces"


class Member(NamedTuple):
    """A member of an archive."""

    name: bytes
    kind: str
    """file, image, folder, symlink, hard link, skip, or why it cannot be read."""
    offset: int = 0
    size: int = 0
    packed: int = -1
    crc: int = -1
    target: bytes = b""
    """Of a link, as it is written."""


class Files(NamedTuple):
    """Members of an archive that are plain files, or folders if their names end with a slash: many at once."""

    names: list[bytes]
    places: NDArray[np.int64]
    """(n, 4): offset, size, packed, crc of each, as in `Member`."""

    def member(self, number: int) -> Member:
        """Return one of them."""
        name = self.names[number]
        return Member(name, "folder") if name.endswith(b"/") else Member(name, "file", *self.places[number].tolist())


def one_by_one(found: Iterator[Member | Files]) -> Iterator[Member]:
    """Yield each member of what `tar_members` and the like yield."""
    for item in found:
        yield from map(item.member, range(len(item.names))) if isinstance(item, Files) else (item,)


Read = Callable[[int, int], bytes]
"""(size, start): bytes of the archive; fewer only at its end."""

KINDS = {b"0": "file", b"\0": "file", b"7": "file", b"5": "folder", b"2": "symlink", b"1": "hard link"}
DEVICES = b"346"
PLAIN = re.compile(
    rb"(?=([^\0]{1,99})\0).{124}([0-7]{11})[\0 ].{12}([0-7]{6})(?:\0.| [\0 ])([05\0]).{188}\0.{166}", re.DOTALL
)
"""A header of a file or folder as nearly all are: name, size, checksum, kind; no name in two parts."""
MOST_AT_ONCE = 65536


def tar_members(read: Read, size: int, name: str) -> Iterator[Member | Files]:
    """Yield the members of a tar.

    Args:
        read: Reads the tar.
        size: Its size.
        name: Its name, for errors.

    Raises:
        UsageError: It is damaged, truncated, or not a tar.
        OSError: It cannot be read.
    """
    headers = _Headers(read, size, name)
    extra: dict[bytes, bytes] = {}
    every: dict[bytes, bytes] = {}
    while True:
        if not extra and not every and (files := headers.files()).names:
            yield files
        if (header := headers.next()) is None:
            return
        kind = header[156:157]
        stored = headers.number(header[124:136])
        if kind in b"xgLKV" and kind:
            data = headers.data(stored) if kind != b"V" else b""
            if kind == b"x":
                extra.update(headers.records(data))
            elif kind == b"g":
                every.update(headers.records(data))
            elif kind != b"V":  # the label of a volume
                extra[b"path" if kind == b"L" else b"linkpath"] = data.partition(b"\0")[0]
            continue
        if every:
            extra = {**every, **extra}
        yield headers.member(header, kind, stored, extra)
        if extra:
            extra = {}


class ReadAhead:
    """Reads headers that follow one another: many at once if their members are small."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._buffer, self._start = b"", 0

    def __call__(self, size: int, start: int) -> bytes:
        """Return `size` bytes from `start`; fewer only at the end."""
        at = start - self._start
        if not 0 <= at <= len(self._buffer) - size:
            near = at - len(self._buffer) <= SMALL_MEMBER_BYTES
            self._buffer, self._start, at = self._read(AHEAD_BYTES if near else size, start), start, 0
        return self._buffer[at : at + size]


class _Headers:
    """The headers of a tar, one after another."""

    def __init__(self, read: Read, size: int, name: str) -> None:
        self._read, self._size, self._name = read, size, name
        self._at = 0
        """Of the next header."""
        self._ahead = ReadAhead(read)

    def files(self) -> Files:
        """Return the plain files and folders that follow, and go past them, to a header that needs a closer look."""
        import numpy as np

        names: list[bytes] = []
        offsets: list[int] = []
        sizes: list[int] = []
        while len(names) < MOST_AT_ONCE:
            header = self._block()
            match = PLAIN.fullmatch(header)
            if match is None:
                break
            name, digits, total, kind = match.groups()
            size, start = int(digits, 8), self._at + BLOCK
            is_like_its_name = kind != b"5" or (not size and name.endswith(b"/"))
            if _sum(header) != int(total, 8) or start + size > self._size or not is_like_its_name:
                break
            names.append(name)
            offsets.append(start)
            sizes.append(size)
            self._at = start + size + -size % BLOCK
        places = np.full((len(names), 4), -1, np.int64)
        places[:, 0], places[:, 1] = offsets, sizes
        return Files(names, places)

    def next(self) -> bytes | None:
        """Return the next header, None at the end."""
        header = self._block()
        if not header.rstrip(b"\0") and header:
            self._check_end()
            return None
        if not header and self._at:
            step = "get it again; if it is whole, append 1,024 zero bytes"
            raise UsageError(self._name, "has no end mark: it may be truncated", step)
        written = header[148:156].split(b"\0")[0].strip()
        total = _sum(header)
        if len(header) < BLOCK or not written.isdigit() or not self._has_sum(header, written, total):
            what = "is truncated, in the" if len(header) < BLOCK else "has no valid"
            problem = f"{what} header at byte {self._at}" if self._at else "is not a zip or tar archive"
            raise UsageError(self._name, problem, GET_AGAIN)
        self._at += BLOCK
        return header

    def _has_sum(self, header: bytes, written: bytes, total: int) -> bool:
        try:
            value = int(written, 8)
        except ValueError:
            return False
        # some old tars add signed bytes
        return value == total or value == total - 256 * sum(b > 127 for b in header[:148] + header[156:])

    def _block(self) -> bytes:
        return self._ahead(BLOCK, self._at)

    def _check_end(self) -> None:
        """Raise UsageError if something follows the end mark: a second tar, which tar itself would not read either."""
        at = self._at
        while data := self._read(AHEAD_BYTES, at):
            if rest := data.lstrip(b"\0"):
                problem = f"has data after its end mark, at byte {at + len(data) - len(rest)}: joined archives?"
                raise UsageError(self._name, problem, "give each archive as a file of its own, or unpack it")
            at += len(data)

    def number(self, field: bytes) -> int:
        """Return a number: octal text, or binary if it is large."""
        if field[0] == 0x80:
            return int.from_bytes(field[1:], "big")
        text = field.partition(b"\0")[0].strip()
        try:
            return int(text or b"0", 8) if text.isdigit() or not text else self._raise_damaged()
        except ValueError:
            return self._raise_damaged()

    def _raise_damaged(self) -> int:
        raise UsageError(self._name, f"has an invalid header at byte {self._at - BLOCK}", GET_AGAIN)

    def data(self, size: int) -> bytes:
        """Return the data of the header before, which is part of the next one."""
        self._skip(size)
        if size > MOST_HEADER_BYTES:
            self._raise_damaged()
        return self._read(size, self._at - size - -size % BLOCK)

    def _skip(self, size: int) -> int:
        """Go to the header after `size` bytes of data, and return where the data is."""
        start = self._at
        if start + size > self._size:
            problem = f"is truncated: the member at byte {start - BLOCK} ends at byte {start + size} of {self._size}"
            raise UsageError(self._name, problem, GET_AGAIN)
        self._at += size + -size % BLOCK
        return start

    def records(self, data: bytes) -> dict[bytes, bytes]:
        """Return the records of a pax header, ``%d key=value\\n``."""
        found, at = {}, 0
        while at < len(data) and data[at]:
            length, _, _ = data[at : at + 20].partition(b" ")
            end = at + int(length) if length.isdigit() else at
            key, equals, value = data[at + len(length) + 1 : max(at, end - 1)].partition(b"=")
            if not equals or data[end - 1 : end] != b"\n":
                self._raise_damaged()
            found[key] = value
            at = end
        return found

    def member(self, header: bytes, kind: bytes, stored: int, extra: dict[bytes, bytes]) -> Member:
        """Return the member of a header, with the extended ones before it, and go to the next header."""
        name = header[:100].partition(b"\0")[0]
        if header[345] and header[257:263] == b"ustar\0":
            name = header[345:500].partition(b"\0")[0] + b"/" + name
        what = KINDS.get(kind, "")
        if extra:
            name = extra.get(b"GNU.sparse.name") or extra.get(b"path", name)
            if (size := extra.get(b"size", b"")).isdigit():
                stored = int(size)
            if any(key.startswith(b"GNU.sparse.") for key in extra):
                what = SPARSE
        if what == "file" and not name.endswith(b"/"):
            return Member(name, what, self._skip(stored), stored)
        if what in ("file", "folder"):  # v7 has no folders
            self._skip(stored if what == "file" else 0)
            return Member(name, "folder")
        if what.endswith("link"):
            return Member(name, what, target=extra.get(b"linkpath", header[157:257].partition(b"\0")[0]))
        if kind == b"S":
            more = header[482]
            while more:
                block = self._block()
                self._at += BLOCK
                more = block[504] if len(block) == BLOCK else self._raise_damaged()
            what = SPARSE
        if kind in DEVICES:
            return Member(name, "not a regular file")
        self._skip(stored)
        return Member(name, what or f"is of the unknown type {kind.decode('latin-1')!r}")


def _sum(header: bytes) -> int:
    """Return the checksum of a header: the sum of its bytes, its own field taken as spaces."""
    # Adler-32 begins with the sum and 1, modulo a number that 512 bytes of ASCII cannot reach
    total = zlib.adler32(header) - 1 & 0xFFFF if header.isascii() else sum(header)
    return total - sum(header[148:156]) + 8 * ord(" ")
