"""Reads the headers of many source files, in a worker process or in this one."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from packer.errors import BadImage, BadInput, NotAnImage
from packer.images.base import Header, OnAnimation
from packer.images.header import IncompleteHeader, check_header, read_header, read_header_leniently
from packer.system import READ_FLAGS, expect_random_reads
from packer.system.child import Decoding, Report, unmarked

AT_REST = "build again when the source no longer changes"
HEAD_BYTES = 16 * 1024  # enough for the header of nearly every image; the others are read whole
READ_WHOLE_BYTES = 256 * 1024
VIEWED_BYTES = 512


@dataclass(frozen=True, slots=True)
class HeaderJob:
    """Some images of a source."""

    root: bytes
    paths: tuple[bytes, ...]
    """Relative to `root`."""
    max_pixels: int
    on_animation: OnAnimation = "fail"
    lenient: bool = False
    threads: int = 0
    """1 on the second try, after a worker has crashed, so that the counters name the image."""
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Images whose header crashed a worker twice, by index in `paths`."""


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of the files of a job."""

    facts: NDArray[np.int64]
    """(n, 4): file size in bytes, stored width and height, `Header.code`; undefined for a bad image."""
    bad: dict[int, BadInput]
    """Why an image cannot be packed, by its index in the job."""

    def header(self, number: int) -> Header:
        """Return the header of a good image."""
        _, width, height, code = self.facts[number].tolist()
        return Header.from_code(code, width, height)


def read_headers(job: HeaderJob, report: Report | None = None, decoding: Decoding = unmarked) -> Headers:
    """Read the header of every image of the job, and check that it can be decoded."""
    rows: list[tuple[int, int, int, int]] = []
    bad: dict[int, BadInput] = {}
    at_once = nullcontext()
    for number, path in enumerate(job.paths):
        try:
            if number in job.refused:
                raise job.refused[number]
            with decoding(number) if job.threads else at_once:
                header, size = _read_file_header(job.root + b"/" + path, job.lenient)
            check_header(header, job.max_pixels, job.on_animation)
            rows.append((size, header.width, header.height, header.code))
        except BadInput as error:
            rows.append((0, 0, 0, 0))
            bad[number] = error
    return Headers(np.array(rows, np.int64).reshape(-1, 4), bad)


def _read_file_header(path: bytes, lenient: bool = False) -> tuple[Header, int]:
    try:
        descriptor = os.open(path, READ_FLAGS)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise BadImage("", "is not a regular file any more", AT_REST)
            try:
                return _header_of(descriptor, facts.st_size), facts.st_size
            except NotAnImage:
                raise
            except BadImage:
                if not lenient:
                    raise
                os.lseek(descriptor, 0, os.SEEK_SET)
                return read_header_leniently(_rest(descriptor, facts.st_size)), facts.st_size
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(error) from None


def _header_of(descriptor: int, size: int) -> Header:
    head = os.read(descriptor, HEAD_BYTES)
    try:
        return read_header(head, size <= len(head), size)
    except IncompleteHeader:
        if size < READ_WHOLE_BYTES:
            return read_header(head + _rest(descriptor, size - len(head)))
        # a PNG's orientation may follow its pixels, which are not read from the disk
        return read_header(cast(bytes, FileView(descriptor, size)))


def _rest(descriptor: int, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size and (more := os.read(descriptor, size - len(parts))):
        parts += more
    return bytes(parts)


class FileView:
    """The bytes of an open file by index and slice, like `bytes`; reads only the requested parts from the disk.

    It does not map the file, because a read error or a truncation of a mapped file kills the process.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._at, self._part = 0, b""
        expect_random_reads(descriptor)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self._size)
            return self._read(start, max(start, stop))
        if not 0 <= key < self._size:
            raise IndexError(key)
        return self._read(key, key + 1)[0]

    def _read(self, start: int, stop: int) -> bytes:
        if start < self._at or stop > self._at + len(self._part):
            os.lseek(self._descriptor, start, os.SEEK_SET)
            self._at, self._part = start, os.read(self._descriptor, max(stop - start, VIEWED_BYTES))
        part = self._part[start - self._at : stop - self._at]
        if len(part) < stop - start:
            raise BadImage("", "changed while the source was being read", AT_REST)
        return part


def unreadable(error: OSError) -> BadImage:
    """Return the error for a source file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return BadImage("", "vanished while the source was being read", AT_REST)
    return BadImage("", f"cannot be read: {error.strerror or error}", "check the file's permissions and the disk")
