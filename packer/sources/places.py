"""Where the bytes of a source file are: in its own file, or in a range of an archive. All of a source is read here.

Nothing is unpacked: a worker opens the archive and reads the range. Every read checks that the archive is still the one
that was listed.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import mmap
import os
import stat
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, NamedTuple

from packer.errors import BadImage, PackerError, UsageError, printable, size_text
from packer.sources.store_files import AT_REST, FileView, SmallFiles, SourceObject
from packer.stores import is_url
from packer.system import PORTABLE, READ_FLAGS, expect_random_reads, read_at
from packer.system.storage import storage_errors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

NONE = -1
AT_ONCE_BYTES = 64 * 1024
PART_BYTES = AT_ONCE_BYTES * 16
MOST_INFLATED_BYTES = 1 << 30
"""No image file is larger; a few bytes of a deflated member may stand for any number."""

MOST_HELD = 16  # a process may have some 1,000 files open
Scratch = Callable[[str], str]
"""Takes the name of a compressed file, and returns the path of the file to decompress it to."""


class Archive(NamedTuple):
    """An archive of the source, or the plain tar that a compressed one was decompressed to."""

    path: bytes
    """Absolute, or a URL."""
    size: int
    mtime_ns: int
    descriptor: int = NONE
    """Of the open file, if it is held open."""
    etag: str = ""
    """Of an object of a store."""

    @classmethod
    def of(cls, path: bytes) -> Archive:
        """Return the archive as it is now. Raise OSError if there is none."""
        if is_url(path):
            file = SourceObject(path)
            return cls(path, file.size, 0, etag=file.etag)
        facts = os.stat(path)
        return cls(path, facts.st_size, facts.st_mtime_ns)


@contextmanager
def held_open(archives: tuple[Archive, ...]) -> Iterator[tuple[Archive, ...]]:
    """Hold a few archives open for many reads: to open and close one takes longer than to read a small image."""
    held = list(archives)
    # the fallback of `read_at` moves the one place of an open file, which the threads of a worker would share
    is_held = len(archives) <= MOST_HELD and not PORTABLE
    try:
        for number, archive in enumerate(archives if is_held else ()):
            if is_url(archive.path):
                continue
            with suppress(OSError):  # whoever reads from it says so
                held[number] = archive._replace(descriptor=os.open(archive.path, READ_FLAGS))
        yield tuple(held)
    finally:
        for descriptor in {archive.descriptor for archive in held} - {NONE}:
            os.close(descriptor)


class Place(NamedTuple):
    """The bytes of a file of the source; by default those of a file of its own."""

    archive: int = NONE
    """Number of the archive."""
    offset: int = 0
    size: int = NONE
    packed: int = NONE
    """Bytes in the archive if they are deflated."""
    crc: int = NONE
    """CRC-32 of the content, as zip stores it."""


OWN_FILE = Place()


class SourceFile:
    """A file of the source, open for reading. A context manager."""

    __slots__ = ("_object", "_place", "_start", "descriptor", "is_held", "size")

    def __init__(
        self,
        path: bytes,
        place: Place = OWN_FILE,
        archives: Sequence[Archive] = (),
        opened: SourceObject | None = None,
    ) -> None:
        """Open the file.

        Args:
            path: Its absolute path or URL, unless it is in an archive.
            place: Where its bytes are.
            archives: The archives of the source.
            opened: Reads the object of a store in which its bytes are, if there is one already.

        Raises:
            BadImage: It is not a regular file, or its archive has changed.
            OSError: It cannot be opened.
        """
        archive = archives[place.archive] if place.archive >= 0 else None
        self._place, self._start = place, place.offset
        where = path if archive is None else archive.path
        if where[:1] != b"/" and is_url(where):
            self._object: SourceObject | None = opened or (
                SourceObject(where, place.size) if archive is None else SourceObject(where, archive.size, archive.etag)
            )
            self.is_held, self.descriptor = True, NONE
            self.size = self._object.size if archive is None else place.size
            return
        self._object = None
        held = NONE if archive is None else archive.descriptor
        self.is_held = held >= 0
        self.descriptor = held if self.is_held else os.open(where, READ_FLAGS)
        try:
            facts = os.fstat(self.descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise BadImage("", "is not a regular file", AT_REST)
            if archive is not None and (facts.st_size, facts.st_mtime_ns) != archive[1:3]:
                raise BadImage("", f"{printable(archive.path)} changed while the source was being read", AT_REST)
        except BaseException:
            self.__exit__()
            raise
        self.size = facts.st_size if archive is None else place.size

    def __enter__(self) -> SourceFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_held:
            os.close(self.descriptor)

    @property
    def is_deflated(self) -> bool:
        """Whether it is compressed in its archive."""
        return self._place.packed >= 0

    @property
    def stored_bytes(self) -> int:
        """The bytes that it takes where it is."""
        return self._place.packed if self.is_deflated else self.size

    @property
    def is_plain(self) -> bool:
        """Whether its bytes are on the disk as they are."""
        return not self.is_deflated and self._object is None

    def read(self, size: int, start: int = 0) -> bytes:
        """Return up to `size` bytes from `start`, fewer only at the end of the file.

        Raises:
            BadImage: The member is damaged.
            OSError: The disk cannot read it.
        """
        data = self._read(size, start)
        if start == 0 and len(data) == self.size:
            self._check(data)
        return data

    def _check(self, data: Buffer) -> None:
        if self._place.crc != NONE:
            self._check_crc(zlib.crc32(data))

    def _check_crc(self, crc: int) -> None:
        if self._place.crc not in (NONE, crc):
            raise BadImage("", "is damaged in its archive: wrong CRC-32", "get the archive again")

    def _read(self, size: int, start: int) -> bytes:
        if self._place.packed >= 0:
            return self._inflated(start + size)[start:]
        left = max(0, self.size - start)
        start += self._start
        # one more than there should be shows that a file has grown; a member ends where the next one begins
        size = min(size, left + (self._place.archive < 0))
        if self._object is not None:
            return self._object.read(size, start)
        data = read_at(self.descriptor, size, start)
        # one read of a network file, or of 2 GB, may return less
        while 0 < len(data) < min(size, left) and (
            more := read_at(self.descriptor, size - len(data), start + len(data))
        ):
            data += more
        return data

    def content(self, size: int) -> bytes:
        """Return the whole file, which must have `size` bytes.

        Raises:
            BadImage: It has another size, or it is damaged.
            OSError: The disk cannot read it.
        """
        data = self.read(size + 1)
        if len(data) != size:
            problem = f"changed while the source was being read ({size} bytes planned, {len(data)} or more now)"
            raise BadImage("", problem, AT_REST)
        return data

    def _inflated(self, size: int) -> bytes:
        """Return the first `size` bytes of a deflated member."""
        if min(size, self.size) > MOST_INFLATED_BYTES:
            raise BadImage("", f"is deflated from {self.size} bytes, more than are read", "unpack the archive")
        data = bytearray()
        for part in self._parts(min(size, self.size)):
            data += part
        return bytes(data)

    def chunks(self) -> Iterator[bytes]:
        """Yield the whole file in pieces. Raise what `read` raises."""
        at = crc = 0
        parts = self._parts(self.size) if self.is_deflated else iter(lambda: self._read(PART_BYTES, at), b"")
        for part in parts:
            crc = zlib.crc32(part, crc) if self._place.crc != NONE else NONE
            at += len(part)
            yield part
        self._check_crc(crc)

    def mapped(self) -> tuple[mmap.mmap | bytes, int]:
        """Return a buffer that ends with this file, and where the file begins in it; mapped if it can be.

        Raises:
            BadImage: The member is damaged.
            OSError: It cannot be read.
            ValueError: It is empty.
        """
        if not self.size:
            raise ValueError("is empty")
        if not self.is_plain:
            return self.read(self.size), 0
        first = self._start % mmap.ALLOCATIONGRANULARITY
        view = mmap.mmap(self.descriptor, first + self.size, access=mmap.ACCESS_READ, offset=self._start - first)
        self._check(memoryview(view)[first:])
        return view, first

    def _parts(self, size: int) -> Iterator[bytes]:
        """Yield the first `size` bytes of a deflated member in pieces."""
        stream, at, packed = zlib.decompressobj(-zlib.MAX_WBITS), 0, b""
        try:
            while size > 0 and not stream.eof:
                if not packed:
                    packed = self._packed(min(AT_ONCE_BYTES, self._place.packed - at), self._start + at)
                    at += len(packed)
                part = stream.decompress(packed, min(size, PART_BYTES))
                size -= len(part)
                if part:
                    yield part
                elif not packed:
                    break
                packed = stream.unconsumed_tail
        except zlib.error as error:
            raise BadImage("", f"is damaged in its archive: {error}", "get the archive again") from None
        if size > 0:
            raise BadImage("", f"is damaged in its archive: {size} bytes are missing", "get the archive again")

    def _packed(self, size: int, start: int) -> bytes:
        return read_at(self.descriptor, size, start) if self._object is None else self._object.read(size, start)

    def view(self) -> bytes | FileView:
        """Return the bytes by index, for a parser that needs few of them. Raise what `read` raises."""
        if self._place.packed >= 0:
            return self.read(self.size)
        if not self.is_held:  # for others, too
            expect_random_reads(self.descriptor)
        return FileView(self.read, self.size)


@dataclass(frozen=True, slots=True, eq=False)
class MemberPlaces:
    """The places of the files of a source that are in archives or in a store."""

    archives: tuple[Archive, ...]
    paths: Sequence[bytes]
    """Relative to the root of the source, in byte order."""
    places: NDArray[np.int64]
    """(n, 5): the fields of `Place`."""
    scratch: Scratch | None = None
    copies: dict[bytes, str] = field(default_factory=dict)
    """The files that were decompressed."""
    etags: Sequence[str] = ()
    """Of the files, if they are objects of a store."""
    small: SmallFiles | None = None
    """Reads the small ones of a store."""

    opened: dict[bytes, SourceObject] = field(default_factory=dict)
    """The archives in a store whose members were opened: those that follow each other are read together."""

    def open(self, file: bytes, path: bytes) -> SourceFile:
        """Open a file, given by its absolute path or URL, and its path in the source; from one thread.

        Raises:
            BadImage: Its archive has changed.
            OSError: It cannot be opened.
        """
        row = bisect_left(self.paths, path)
        if row == len(self.paths) or self.paths[row] != path:
            return SourceFile(file)
        place = Place(*self.places[row].tolist())
        opened = None
        if self.etags:
            content = self.small.content(row) if self.small else b""
            opened = SourceObject(file, place.size, self.etags[row], content)
        elif is_url(archive := (found := self.archives[place.archive]).path):
            if archive not in self.opened:
                self.opened[archive] = SourceObject(archive, found.size, found.etag)
            opened = self.opened[archive]
        return SourceFile(file, place, self.archives, opened)

    def rows(self, paths: Sequence[bytes]) -> list[int]:
        """Return the numbers of files that all have a place, in byte order of their paths."""
        first, last = (bisect_left(self.paths, path) for path in (paths[0], paths[-1]))
        row_of = {path: row for row, path in enumerate(self.paths[first : last + 1], first)}
        return [row_of[path] for path in paths]


MARKS = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zst"}
"""The first bytes of compressed files."""
COPIED_BYTES = 1 << 20
MOST_RATIO = 100
"""An archive of labels becomes 10 to 40 times as large, one of images hardly larger; a bomb 1,000 times or more."""
ALLOWED_BYTES = 256 << 20
"""What a compressed file may become in any case."""


class Bytes(io.RawIOBase):
    """A file of the source as a file object."""

    def __init__(self, file: SourceFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill a buffer with the next bytes; return how many there were."""
        view = memoryview(buffer)
        data = self._file.read(len(view), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset."""
        place = offset + (0, self._at, self._file.size)[whence]
        if place < 0:
            raise OSError(22, os.strerror(22))
        self._at = place
        return place

    def tell(self) -> int:
        """Return the offset."""
        return self._at


class _Parts(io.RawIOBase):
    """The pieces of a file as a file object."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._parts, b""))
        view = memoryview(buffer)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def stream_of(file: SourceFile) -> IO[bytes]:
    """Return a file of the source as a file object to be read once, from its beginning, also if it is deflated."""
    return io.BufferedReader(_Parts(file.chunks()))


def compression_of(head: bytes) -> str | None:
    """Return how a file that begins with `head` is compressed; None if it is not."""
    return next((name for mark, name in MARKS.items() if head.startswith(mark)), None)


def most_bytes(size: int) -> int:
    """Return how many bytes a compressed file of `size` bytes may become: a small one must not fill the disk."""
    return max(ALLOWED_BYTES, MOST_RATIO * size)


def decompress(file: SourceFile, compression: str | None, name: str, target: str, most: int) -> int:
    """Write the content of a compressed file to a new file, and return its size.

    Args:
        file: The file.
        compression: Its `compression_of`; None copies the content of a deflated member.
        name: Its name, for errors.
        target: Path of the new file.
        most: Its maximum size (`most_bytes`).

    Raises:
        UsageError: It is damaged or truncated, or would be larger; then there is no new file.
        StorageError: The new file cannot be written.
        OSError: The file cannot be read.
    """
    written = 0
    try:
        with open(target, "xb") as output:
            for data in file.chunks() if compression is None else _decompressed(file, compression):
                written += len(data)
                if written > most:
                    break
                with storage_errors(target):
                    output.write(data)
        if written <= most:
            return written
        os.unlink(target)
        step = "if it should be so large, decompress it and give the result"
        raise UsageError(name, f"becomes more than {size_text(most)}, too much for its size", step)
    except PackerError:
        raise
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        raise UsageError(name, f"cannot be decompressed: {error}", "get the archive again") from None


def _decompressed(file: SourceFile, compression: str) -> Iterator[bytes]:
    with _stream(Bytes(file), compression) as stream:
        while data := stream.read(COPIED_BYTES):
            yield data


def _stream(file: Bytes, compression: str) -> IO[bytes]:
    if compression == "zst":
        import pyarrow as pa

        found: IO[bytes] = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
        return found
    opened: IO[bytes] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}[compression](file)  # type: ignore[operator]
    return opened
