"""Reads the headers of many source files, in a worker process or in this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from packer.errors import BadImage, BadInput, NotAnImage, StorageError
from packer.images.base import Header, OnAnimation
from packer.images.header import IncompleteHeader, check_header, read_header, read_header_leniently
from packer.sources.archives.file_view import AT_REST
from packer.sources.archives.objects import at_once
from packer.sources.archives.places import OWN_FILE, Archive, Place, SourceFile, held_open
from packer.stores import is_url
from packer.system.child import Decoding, Report, unmarked

HEAD_BYTES = 16 * 1024  # enough for the header of nearly every image; the others are read whole
READ_WHOLE_BYTES = 256 * 1024


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
    archives: tuple[Archive, ...] = ()
    places: NDArray[np.int64] | None = None
    """(n, 5): the fields of the `Place` of each image, if there are archives or a store."""

    def place(self, number: int) -> tuple[bytes, Place, tuple[Archive, ...]]:
        """Return the arguments of `SourceFile` for an image."""
        place = OWN_FILE if self.places is None else Place(*self.places[number].tolist())
        return self.root + b"/" + self.paths[number], place, self.archives


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
    with held_open(job.archives) as archives:
        return _read_headers(replace(job, archives=archives), decoding)


def _read_headers(job: HeaderJob, decoding: Decoding) -> Headers:
    rows: list[tuple[int, int, int, int]] = []
    bad: dict[int, BadInput] = {}
    unmarked_read = nullcontext()

    def facts(number: int) -> tuple[int, int, int, int] | BadInput:
        try:
            if number in job.refused:
                raise job.refused[number]
            with decoding(number) if job.threads else unmarked_read:
                header, size = _read_file_header(*job.place(number), lenient=job.lenient)
            check_header(header, job.max_pixels, job.on_animation)
            return size, header.width, header.height, header.code
        except BadInput as error:
            return error

    numbers = range(len(job.paths))
    waits = is_url(job.root) and not job.threads  # each for the answer of a store
    for number, found in enumerate(at_once(facts, numbers) if waits else map(facts, numbers)):
        if isinstance(found, BadInput):
            bad[number] = found
        rows.append((0, 0, 0, 0) if isinstance(found, BadInput) else found)
    return Headers(np.array(rows, np.int64).reshape(-1, 4), bad)


def _read_file_header(
    path: bytes, place: Place = OWN_FILE, archives: Sequence[Archive] = (), lenient: bool = False
) -> tuple[Header, int]:
    try:
        with SourceFile(path, place, archives) as file:
            try:
                return _header_of(file), file.size
            except NotAnImage:
                raise
            except BadImage:
                if not lenient:
                    raise
                return read_header_leniently(file.read(file.size)), file.size
    except OSError as error:
        raise unreadable(error) from None


def _header_of(file: SourceFile) -> Header:
    size = file.size
    head = file.read(min(HEAD_BYTES, size))
    try:
        return read_header(head, size <= len(head), size)
    except IncompleteHeader:
        if size < READ_WHOLE_BYTES:
            return read_header(file.read(size))
        # a PNG's orientation may follow its pixels, which are not read from the disk
        return read_header(cast(bytes, file.view()))


def unreadable(error: OSError) -> BadImage:
    """Return the error for a source file that cannot be opened or read. Raise it if it ends the build."""
    if isinstance(error, FileNotFoundError):
        return BadImage("", "vanished while the source was being read", AT_REST)
    if isinstance(error, StorageError):
        raise error  # the store cannot be reached: no fault of this image
    return BadImage("", f"cannot be read: {error.strerror or error}", "check the file's permissions and the disk")
