"""Converts one input to a record: read, decode, resize, encode, and transform the annotation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from packer.errors import BadImage, BadInput, NotAnImage, StorageError
from packer.format.manifest import Rejected
from packer.images.decode import Decoder, decode, decode_leniently
from packer.images.fingerprint import fingerprint_of
from packer.images.header import IncompleteHeader, Mode, check_header, decoded_shape, read_header, read_header_leniently
from packer.images.image_headers import Header, OnAnimation
from packer.images.opencv import quiet_opencv
from packer.images.parts import BY_KIND, FileFacts, PartKind, PartRecipe
from packer.images.resize import Encoding, TargetSize, encode
from packer.model.annotation import Annotation, Image, Part, PartFile, Record
from packer.model.fields import FIELDS
from packer.model.geometry import clip, move
from packer.model.rle import moved_masks
from packer.packing.decoded_once import DecodedOnce
from packer.sources.archives import FAULT
from packer.sources.places import OWN_FILE, Archive, Place, SourceFile, held_open
from packer.sources.store_files import AT_REST, SourceObject, ahead_of, at_once
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

    def place(self, number: int) -> tuple[bytes, Place]:
        """Return the path and the place of an image."""
        place = OWN_FILE if self.places is None else Place(*self.places[number].tolist())
        return self.root + b"/" + self.paths[number], place


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
    unmarked_read = nullcontext()

    def facts(number: int) -> tuple[int, int, int, int] | BadInput:
        try:
            if number in job.refused:
                raise job.refused[number]
            with decoding(number) if job.threads else unmarked_read:
                header, size = read_file_header(*job.place(number), archives, lenient=job.lenient)
            check_header(header, job.max_pixels, job.on_animation)
            return size, header.width, header.height, header.code
        except BadInput as error:
            return error

    numbers = range(len(job.paths))
    waits = is_url(job.root) and not job.threads  # each for the answer of a store
    with held_open(job.archives) as archives:
        for number, found in enumerate(at_once(facts, numbers) if waits else map(facts, numbers)):
            if isinstance(found, BadInput):
                bad[number] = found
            rows.append((0, 0, 0, 0) if isinstance(found, BadInput) else found)
    return Headers(np.array(rows, np.int64).reshape(-1, 4), bad)


def read_file_header(
    path: bytes, place: Place = OWN_FILE, archives: Sequence[Archive] = (), lenient: bool = False
) -> tuple[Header, int]:
    """Return the header and the size of a file. Raise BadImage if it cannot be read."""
    try:
        with SourceFile(path, place, archives) as file:
            try:
                return _header_of(file), file.size
            except BadImage as error:
                if not lenient or isinstance(error, NotAnImage):
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


def read_part_facts(
    path: bytes, place: Place, archives: Sequence[Archive], kind: PartKind, max_pixels: int
) -> tuple[FileFacts, int]:
    """Return what the first bytes of the file of a part say, and its size. Raise BadInput if it cannot be read."""
    try:
        with SourceFile(path, place, archives) as file:
            size = file.size
            head = file.read(min(HEAD_BYTES, size))
            try:
                return kind.facts(head, size <= len(head), size, max_pixels), size
            except IncompleteHeader:
                return kind.facts(file.read(size), True, size, max_pixels), size
    except OSError as error:
        raise unreadable(error) from None


def unreadable(error: OSError) -> BadImage:
    """Return the error for a source file that cannot be opened or read. Raise it if it ends the build."""
    if isinstance(error, FileNotFoundError):
        return BadImage("", "vanished while the source was being read", AT_REST)
    if isinstance(error, StorageError):
        raise error  # the store cannot be reached: no fault of this image
    return BadImage("", f"cannot be read: {error.strerror or error}", "check the file's permissions and the disk")


FAULTS = ("permission", "vanished", "unreadable")
"""Reasons of `find_tree` that are faults rather than choices: a folder that cannot be listed."""
PLACE_SCHEMA = pa.schema([("archive", pa.int32()), ("offset", pa.int64()), ("packed", pa.int64()), ("crc", pa.int64())])
"""More columns if the images are in archives: `Row.place`."""
UNREAD = -1
"""In place of a `Header.code`: the header is read with the image, and width and height are 1."""
ETAG_SCHEMA = pa.schema([("etag", pa.string())])
"""One more column if they are objects of a store."""


PART_FILE = pa.struct(
    [
        ("path", pa.binary()), ("bytes", pa.int64()), ("archive", pa.int32()), ("offset", pa.int64()),
        ("packed", pa.int64()), ("crc", pa.int64()), ("etag", pa.string()), ("ids", pa.list_(pa.int32())),
    ]
)  # fmt: skip
"""A column NAME.file for each part: the fields of `PartFile`; null if an image lacks it."""
PART_COLUMN = ".file"
NO_FILES: Mapping[str, PartFile] = {}


class InputRow(NamedTuple):
    """The columns of the table of inputs for one image, without its annotation."""

    path: bytes
    """Relative to the source."""
    bytes: int
    """Size of the file."""
    height: int
    """Of the upright image."""
    width: int
    code: int
    """`Header.code`, or UNREAD."""
    archive: int = OWN_FILE.archive
    """This and the following are the fields of the file's `Place`; the size is `bytes`."""
    offset: int = 0
    packed: int = OWN_FILE.packed
    crc: int = OWN_FILE.crc
    etag: str | None = None
    """Of an object of a store."""
    parts: Mapping[str, PartFile] = NO_FILES
    """The files of its parts, by name."""
    window: tuple[int, int, int, int] | None = None
    """Of a tile: x, y, width and height. None: it is the whole image, or `rows_of` has made it."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the image, or of the tile."""
        return (self.width, self.height) if self.window is None else self.window[2:]

    def tile_of(self, pixels: Any) -> Any:
        """Return the pixels of the tile, of those (height, width, ...) of the image."""
        assert self.window is not None
        x, y, width, height = self.window
        return np.ascontiguousarray(pixels[y : y + height, x : x + width])

    @property
    def place(self) -> Place:
        """Where the bytes of the file are."""
        if self.etag is not None:
            return Place(size=self.bytes)
        return Place(self.archive, self.offset, self.bytes, self.packed, self.crc) if self.archive >= 0 else OWN_FILE

    @property
    def header(self) -> Header:
        """The header of the file at the time of the scan."""
        header = Header.from_code(self.code, self.width, self.height)
        return header if header.orientation < 5 else header._replace(width=self.height, height=self.width)


def rows_of(table: Any) -> Iterator[InputRow]:
    """Yield the rows of a table of inputs; the last columns are those of an archive or a store."""
    names = [name for name in InputRow._fields[:-2] if name in table.column_names]
    parts = [name for name in table.column_names if name.endswith(PART_COLUMN)]
    for batch in table.select([*names, *parts]).to_batches(max_chunksize=1024):
        columns = [column.to_pylist() for column in batch.columns[: len(names)]]
        rows: Iterator[InputRow]
        if names[-1] == "etag":
            rows = (InputRow(*values)._replace(etag=etag) for *values, etag in zip(*columns, strict=True))
        else:
            rows = map(InputRow, *columns)
        yield from rows if not parts else map(_with_parts, rows, part_files(batch, parts))


def part_files(batch: Any, names: Sequence[str]) -> Iterator[dict[str, PartFile]]:
    """Yield the files of the parts of each row of a batch, from its columns of these names."""
    columns = [batch.column(name).to_pylist() for name in names]
    for files in zip(*columns, strict=True):
        there = zip(names, files, strict=True)
        yield {name.removesuffix(PART_COLUMN): PartFile(**file) for name, file in there if file is not None}


def _with_parts(row: InputRow, parts: Mapping[str, PartFile]) -> InputRow:
    return row._replace(parts=parts)


class InputBytes(NamedTuple):
    """The bytes of the files of an input."""

    image: bytes
    parts: Mapping[str, bytes] = MappingProxyType({})

    @property
    def digest(self) -> bytes:
        """XXH3-128 of all of them: that of the image's file, if there are no others."""
        of_image = xxh3_128_digest(self.image)
        if not self.parts:
            return of_image
        return xxh3_128_digest(of_image + b"".join(xxh3_128_digest(data) for _, data in sorted(self.parts.items())))


@dataclass(frozen=True, slots=True)
class Recipe:
    """The conversion of every image of a build."""

    root: bytes
    mode: Mode
    decoder: Decoder
    max_pixels: int
    resize: TargetSize | None
    encode: Encoding | Literal["copy"]
    quality: int
    archives: tuple[Archive, ...] = ()
    on_animation: OnAnimation = "fail"
    parts: tuple[PartRecipe, ...] = ()
    fingerprints: bool = False

    def with_header(self, row: InputRow, data: bytes) -> InputRow:
        """Return the row with what the header of the file's bytes says if it was not read before.

        Raises:
            BadImage: It cannot be packed.
        """
        if row.code != UNREAD:
            return row
        header = read_header(data)
        check_header(header, self.max_pixels, self.on_animation)
        width, height = header.upright_size
        return row._replace(width=width, height=height, code=header.code)

    def read(self, row: InputRow) -> InputBytes:
        """Return the bytes of the files of an input, which must still have the planned sizes.

        Raises:
            BadImage: A file changed, vanished or cannot be read.
            BadPart: It is that of a part.
        """
        image = self._content(self.root + b"/" + row.path, row.bytes, row.place, row.etag)
        kinds = {part.spec.name: BY_KIND[part.spec.kind] for part in self.parts}
        return InputBytes(image, {name: self._part_content(file, kinds[name]) for name, file in row.parts.items()})

    def _content(self, path: bytes, size: int, place: Place, etag: str | None) -> bytes:
        try:
            opened = None if etag is None else SourceObject(path, size, etag)
            with SourceFile(path, place, self.archives, opened) as file:
                return file.content(file.size if size < 0 else size)
        except OSError as error:
            raise unreadable(error) from None

    def _part_content(self, file: PartFile, kind: PartKind) -> bytes:
        path, place = place_of_part(self.root, file)
        try:
            return self._content(path, file.bytes, place, file.etag)
        except BadImage as error:
            raise kind.error(file.path, error.problem, error.next_step) from None

    def reads(self, rows: Iterator[InputRow]) -> Iterator[tuple[InputRow, Callable[[], InputBytes]]]:
        """Yield the rows, each with what returns or raises what `read` does; of a store, they are read ahead."""
        by_file = ([*same] for _, same in groupby(rows, lambda row: row.path))  # the tiles of an image are neighbors
        if not is_url(self.root):
            for same in by_file:
                read: Callable[[], InputBytes] = partial(self.read, same[0])
                if len(same) > 1:
                    read = cache(read)  # kept as long as one of its rows is waiting
                yield from ((row, read) for row in same)
            return
        for same, future in ahead_of(lambda same: self.read(same[0]), by_file, lambda same: same[0].bytes):
            yield from ((row, future.result) for row in same)

    def image(self, data: bytes, row: InputRow, header: Header) -> tuple[Image, str]:
        """Return the decoded, resized image of a file's bytes, and its damage if the decoder is lenient, else "".

        Raises:
            BadImage: It is damaged.
        """
        size = (row.width, row.height)
        at_least = None if self.resize is None else self.resize.at_least(*size)
        if self.decoder == "lenient":
            image, damage = decode_leniently(data, self.mode, at_least, self.max_pixels, header)
        else:
            image, damage = decode(data, self.mode, self.decoder, at_least, self.max_pixels, header), ""
        return image if self.resize is None else self.resize.apply(image, size), damage

    def tile(self, data: bytes, row: InputRow, header: Header, whole: DecodedOnce) -> tuple[Image, str]:
        """Return the resized tile that a row is of, as `image` does; `whole` keeps the image for others.

        Raises:
            BadImage: The image is damaged.
        """
        image, damage = whole.get(row.path, "", lambda: replace(self, resize=None).image(data, row, header))
        tile = row.tile_of(image)
        return (tile if self.resize is None else self.resize.apply(tile)), damage

    def record(
        self, key: str, row: InputRow, contents: InputBytes, annotation: Annotation, whole: DecodedOnce | None = None
    ) -> tuple[Record, str]:
        """Return the record of a row with the `contents` of its files, and the damage that was accepted, else "".

        That of a tile if the annotation says so; `whole` then keeps what others of the image need, too.

        Raises:
            BadImage: The image is damaged, or cannot be stored in the encoding.
            BadPart: A part is damaged, or of another size; a mask has a value that is no class.
        """
        header, data = row.header, contents.image
        if annotation.window is None:
            (image, damage), whole = self.image(data, row, header), None
        else:
            whole = DecodedOnce() if whole is None else whole
            row = row._replace(window=tuple(annotation.window[:4].tolist()))
            image, damage = self.tile(data, row, header, whole)
        if self.resize is not None:
            annotation = resize_annotation(annotation, self.resize, row.size)
        stored, encoding = (
            (data, header.format) if self.encode == "copy" else (encode(image, self.encode, self.quality), self.encode)
        )
        height, width, channels = image.shape
        record = Record(
            key, stored, encoding, height, width, channels, decoded_shape(header, self.mode)[3],
            annotation, row.path, source_digest(data, annotation),
            tuple(self._part(one, row, contents.parts, whole) for one in self.parts if one.spec.name in contents.parts),
            fingerprint_of(image) if self.fingerprints else b"",
        )  # fmt: skip
        return record, damage

    def _part(self, part: PartRecipe, row: InputRow, contents: Mapping[str, bytes], whole: DecodedOnce | None) -> Part:
        kind, data = BY_KIND[part.spec.kind], contents[part.spec.name]
        try:
            recipe = replace(part, values=part.values.of_file(row.parts[part.spec.name].ids))
            if whole is None or not kind.of_pixels:
                return kind.part(data, recipe, row.header, self.resize)
            value = whole.get(row.path, part.spec.name, lambda: kind.upright(data, recipe, row.header))
            return kind.stored_part(row.tile_of(value), recipe, self.resize)
        except BadInput as error:
            raise kind.error(row.parts[part.spec.name].path, error.problem, error.next_step) from None


def source_digest(data: bytes, annotation: Annotation) -> bytes:
    """Return `Record.source_xxh3` of the bytes of an image's file: those of its tiles differ, as tiles do."""
    digest = xxh3_128_digest(data)
    return digest if annotation.window is None else xxh3_128_digest(digest + annotation.window.astype("<i4").tobytes())


def place_of_part(root: bytes, file: PartFile) -> tuple[bytes, Place]:
    """Return the absolute path of the file of a part, and its place."""
    path = file.path if file.path.startswith(b"/") else root + b"/" + file.path
    if file.etag is not None:
        return path, Place(size=file.bytes)
    return path, Place(file.archive, file.offset, file.bytes, file.packed, file.crc) if file.archive >= 0 else OWN_FILE


def resize_annotation(annotation: Annotation, resize: TargetSize, size: tuple[int, int]) -> Annotation:
    """Return the annotation of an image of `size` (width, height) in the frame of the resized image."""
    if not any(field.moves and getattr(annotation, field.name) is not None for field in FIELDS):
        return annotation
    geometry = resize.geometry(*size)
    annotation = moved_masks(annotation, size[1], size[0], partial(resize.apply_to_mask, border=0))
    moved = move(annotation, geometry)
    # only a crop puts boxes outside; elsewhere float32 may miss the border by its last digit
    return clip(moved, geometry.width, geometry.height)


def rejected(path: bytes, error: BadInput) -> Rejected:
    """Return the entry of an input that is rejected with `error`."""
    name = os.fsdecode(path)
    about_another_file = error.where and os.fsdecode(error.where) != name
    problem = error.line if about_another_file else type(error)("", error.problem, error.next_step).line
    return Rejected(name, error.reason, problem)


def rejected_of_path(path: bytes, reason: str) -> Rejected | None:
    """Return the entry of a path that `find_tree` skipped although it may hold any number of images; else None."""
    if reason.partition(":")[0] not in FAULTS:
        return None
    if not reason.startswith(FAULT):
        return rejected(path, BadInput("", f"cannot be read: {reason}", "check its permissions"))
    return rejected(path, BadInput("", f"cannot be read: {reason.removeprefix(FAULT)}"))


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """A sample of rows, to measure their encoded size."""

    rows: tuple[InputRow, ...]
    recipe: Recipe
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Rows on which the decoder crashes or hangs."""


@quiet_opencv(in_worker=True)
def measure(job: MeasureJob, report: Report, decoding: Decoding) -> list[tuple[int, int]]:
    """Return (encoded bytes, pixel bytes) of each good image. Runs in a worker, because a decoder may crash."""
    sizes, whole = [], DecodedOnce()
    for number, row in enumerate(job.rows):
        if number in job.refused:
            continue
        assert job.recipe.encode != "copy"
        try:
            data = job.recipe.read(row).image
            with decoding(number):
                known = job.recipe.with_header(row, data)
                recipe, header = job.recipe, known.header
                is_whole = row.window is None
                image, _ = recipe.image(data, known, header) if is_whole else recipe.tile(data, known, header, whole)
                sizes.append((len(encode(image, job.recipe.encode, job.recipe.quality)), image.nbytes))
        except BadInput:
            continue  # packing will reject it with the reason
    return sizes
