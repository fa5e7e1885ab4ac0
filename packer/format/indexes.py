"""The indexes of a pack. Each is opened when first needed, and verified against its checksum before use.

All are mapped into one range of addresses, one after another, as the shards are (packer/format/mmap.py). Numbers of any
records are then read with one lookup in a view of that range, without a Python loop over shards and without a copy of a
column: a pack of 100 million records takes no memory for each of them.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import DamagedPack, StorageError
from packer.format.digests import crc32c_of
from packer.format.index import DTYPES, ENCODINGS, read_index
from packer.format.manifest import Manifest, ShardEntry
from packer.format.mmap import MANY_FILES, Region, check_files, map_file, map_files
from packer.model.annotation import COLUMNS, MISSING, Int64, column_of, names_in
from packer.model.annotation_columns import Annotations, Ragged, column, present
from packer.model.fields import CLASS_IDS, LISTS, OF_BOXES, Lists
from packer.model.tiles import WINDOW
from packer.stores.waiting import all_of, pool
from packer.system import PORTABLE

# Whether the values of an index fit its manifest and each other: ranges of numbers, lengths of lists.
#
# Checksums prove that an index is as it was written, Arrow that it can be read; a pack that was made elsewhere may
# still hold class ids without a class, or two boxes with one label. Columns are compared as wholes: a few passes over
# them.


def value_problems(table: Any, manifest: Manifest) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) of the first row of each kind whose values do not fit. No text is read.

    Args:
        table: The index, which Arrow has validated.
        manifest: The manifest of its pack.
    """
    if (parts := names_in(table.column_names)) != sorted(manifest.parts):
        has, wanted = (", ".join(["image", *names]) for names in (parts, sorted(manifest.parts)))
        yield 0, f"has the parts {has}, but the pack has {wanted}"
    for name in parts:
        if (found := _first(np.asarray(column(table, f"{name}_size")) < MISSING[1])) is not None:
            yield found, f"has a size of {name} that is none"
    yield from _facts(table, manifest)
    lists: dict[str, Any] = {f.name: column(table, f.name) for f in LISTS if f.name in table.column_names}
    for field in LISTS:
        name = field.name
        if (rows := lists.get(name)) is None or (
            table.column(name).null_count == len(table) and int(rows.offsets[0]) == int(rows.offsets[-1])
        ):
            continue
        there = present(table, name)
        values = _flat(rows)
        if _has_nulls(table, name):
            yield 0, f"has items without a value in {name}, or another record has"
        elif (found := _first(~there & (rows.lengths > 0))) is not None:
            yield found, f"has {name} that are marked as missing"
        elif values.dtype.kind == "f" and values.size and not np.isfinite([values.min(), values.max()]).all():
            wrong = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
            yield _row_of_point(rows, int(wrong.argmax())), f"has {name} with a number that is not finite"
        elif field in OF_BOXES and (found := _first(there & (rows.lengths != lists["boxes"].lengths))) is not None:
            yield found, f"has {rows.lengths[found]} {name}, but {lists['boxes'].lengths[found]} boxes"
    yield from _ids(lists["box_labels"], len(manifest.classes))
    for field in LISTS:
        if isinstance(field.kind, Lists) and field.kind.alike and field.name in lists:
            yield from _alike(lists[field.name], field.name, field.kind.count)
    if "tags" in lists:
        yield from _tags(lists["tags"], len(manifest.tags), present(table, "tags"))


def _facts(table: Any, manifest: Manifest) -> Iterator[tuple[int, str]]:
    """Compare shape, dtype, encoding and class of each image."""
    for place, name in enumerate(("height", "width", "channels")):
        side = np.asarray(column(table, name))
        wanted = None if manifest.shape is None else manifest.shape[place]
        if (found := _first(side < 1 if wanted is None else side != wanted)) is not None:
            expected = "which is not a size" if wanted is None else f"but the pack has {wanted}"
            yield found, f"has the {name} {side[found]}, {expected}"
    for name, names, value in (("dtype", DTYPES, manifest.dtype), ("encoding", ENCODINGS, manifest.encoding)):
        codes = np.asarray(column(table, name))
        if value in names and (found := _first(codes != names.index(value))) is not None:
            yield found, f"has the {name} {names[codes[found]]}, but the pack has {value}"
    yield from _raw_sizes(table, manifest)
    labels, classes = np.asarray(column(table, "label")), len(manifest.classes)
    if (found := _first((labels < -1) | (labels >= classes))) is not None:
        yield found, f"has class {labels[found]}, but the pack has {classes:,} classes"


def _raw_sizes(table: Any, manifest: Manifest) -> Iterator[tuple[int, str]]:
    if manifest.encoding not in ("raw", "copy"):
        return
    names = ("size", "encoding", "dtype", "height", "width", "channels")
    sizes, codes, dtypes, *sides = (np.asarray(column(table, name)) for name in names)
    raw = codes == ENCODINGS.index("raw")
    if raw.any():
        # as float64, which no product of sides overflows
        wanted = np.multiply.reduce([(dtypes + 1).astype(np.float64), *sides])
        if (found := _first(raw & (sizes != wanted))) is not None:
            yield found, f"has {sizes[found]} bytes, but its pixels have {wanted[found]:.0f}"


def _ids(rows: Ragged, classes: int) -> Iterator[tuple[int, str]]:
    ids = rows.flat()
    if ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < classes):
        place = int(((ids < 0) | (ids >= classes)).argmax())
        yield _row(rows, place), f"has a box of class {ids[place]}, but the pack has {classes:,} classes"


def _alike(rows: Ragged, name: str, count: int) -> Iterator[tuple[int, str]]:
    """Compare the number of points of the objects of an image, with `count` unless it is 0."""
    lengths = rows.flat().lengths
    if count and (found := _first(lengths != count)) is not None:
        yield _row(rows, found), f"has {name} of {lengths[found]} points, not of {count}"
    elif len(lengths) and int(lengths.min()) != int(lengths.max()):
        first = np.zeros(len(lengths) + 1, np.bool_)
        first[np.asarray(rows.offsets) - int(rows.offsets[0])] = True
        if (found := _first((lengths[1:] != lengths[:-1]) & ~first[1:-1])) is not None:
            yield _row(rows, found + 1), f"has objects with other numbers of {name}"


def _tags(rows: Ragged, tags: int, there: NDArray[np.bool_]) -> Iterator[tuple[int, str]]:
    if (found := _first(there & (rows.lengths != tags))) is not None:
        yield found, f"has {rows.lengths[found]} tags, but the pack has {tags}"
    elif (flags := rows.flat()).size and int(flags.max()) > 1:
        yield _row(rows, int(flags.argmax())), f"has the tag {flags.max()}, which must be 0 or 1"


def _flat(rows: Any) -> NDArray[Any]:
    return _flat(rows.flat()) if isinstance(rows, Ragged) else np.asarray(rows)


def _has_nulls(table: Any, name: str) -> bool:
    """Return whether an item of a list, or of a list in it, is null."""
    array = table.column(name).chunk(0)
    while hasattr(array, "values"):
        array = array.values
        if array.null_count:
            return True
    return False


def _row(rows: Any, place: int) -> int:
    """Return the row that has the item `place` of all rows."""
    return int(np.searchsorted(np.asarray(rows.offsets) - int(rows.offsets[0]), place, "right")) - 1


def _row_of_point(rows: Ragged, place: int) -> int:
    objects = rows.flat()
    return _row(rows, _row(objects, place) if isinstance(objects, Ragged) else place)


def _first(wrong: NDArray[np.bool_]) -> int | None:
    """Return the first row that is wrong."""
    return int(wrong.argmax()) if wrong.any() else None


Content = NDArray[np.uint8]
Column = NDArray[Any] | Ragged
FETCHED_AT_ONCE = 32
RESTORE = "run packer verify, and restore the file or build the pack again"
NUMBERS = {
    "offset": np.int64, "size": np.int64, "crc32c": np.uint32, "height": np.int32, "width": np.int32,
    "channels": np.int8, "dtype": np.int8, "encoding": np.int8, "label": np.int32,
}  # fmt: skip
"""Columns of numbers, which `Indexes.values` reads."""
KEY_BOUNDS = "bounds of keys"


class IndexFiles(NamedTuple):
    """The files of a pack's indexes.

    Attributes:
        folder: The pack.
        shards: Its shards.
        manifest: Its manifest, which the values of each index must fit. None: they have been compared before.
        content: Fetches an index, again if its second argument is true: returns the bytes of one that is not a file,
            else None when its file is there. None: the files are not fetched.
        class_ids: What class ids of the pack are to be read as, and -1 at the end; None: as they are.
    """

    folder: str
    shards: Sequence[ShardEntry]
    manifest: Manifest | None = None
    content: Callable[[int, bool], Content | None] | None = None
    class_ids: NDArray[Any] | None = None

    def path_of(self, name: str) -> str:
        """Return the path of one of the files."""
        return os.path.join(self.folder, name) if self.manifest is None else self.manifest.path_of(self.folder, name)


class Indexes:
    """The indexes of all shards, by shard number. Thread-safe: two threads that open one at once get equal results."""

    def __init__(self, *packs: IndexFiles) -> None:
        """Check only the files. Raise DamagedPack if one is missing or (unless they are many) has another size.

        Args:
            packs: The pack, or several, whose shards follow one another.
        """
        self._packs = packs
        self._begins = [0, *accumulate(len(pack.shards) for pack in packs)]
        self._shards = shards = [*chain.from_iterable(pack.shards for pack in packs)]
        self._tables: OrderedDict[int, Any] = OrderedDict()
        self._annotations: OrderedDict[int, Annotations] = OrderedDict()
        self._columns: dict[str, Column] = {}
        self._parts: dict[str, dict[int, Column]] = {}
        self._found: dict[int, int] = {}
        """Checksums of indexes that were read and not opened yet."""
        self._verified = np.zeros(len(shards), np.bool_)
        files = [(self.path(number), shard.index.bytes) for number, shard in enumerate(shards)]
        self._mapped = all(pack.folder for pack in packs) and not PORTABLE
        for pack, begin in zip(packs, self._begins, strict=False):
            if pack.folder and pack.content is None:
                check_files(files[begin : begin + len(pack.shards)])
        if self._mapped:
            self._region, self._starts = map_files(files, late=True, check=False)
        else:
            self._region, self._starts = in_memory([size for _, size in files])
        for shard, (path, size) in zip(shards, files, strict=True):
            if shard.records > size:  # checked before anything is allocated per record
                raise DamagedPack(path, f"has {size} bytes, too few for {shard.records} rows", RESTORE)
        self._bytes = self._region.parts[0]
        self._base = self._bytes.ctypes.data
        parts = () if packs[0].manifest is None else tuple(packs[0].manifest.parts)  # joined packs have the same
        self._numbers = NUMBERS | {column_of(part, what): NUMBERS[what] for part in parts for what in COLUMNS}
        self._views = {name: self._bytes.view(kind) for name, kind in self._numbers.items()}
        self._views[KEY_BOUNDS] = self._bytes.view(np.int32)
        self._firsts = np.cumsum([0, *(shard.records for shard in shards)])[:-1]
        # by how much the place of a record's number in a view differs from the number of the record
        self._shifts = {name: np.zeros(len(shards), np.int64) for name in self._views}
        self._keys = np.zeros(len(shards), np.int64)
        self.spans = np.zeros((len(shards), 2), np.int64)
        """Where the first record of each shard that `prepare` has opened begins in its container, and the last ends."""

    def _pack_of(self, number: int) -> tuple[IndexFiles, int]:
        """Return the pack of a shard, and the number of the shard there."""
        pack = bisect_right(self._begins, number) - 1
        return self._packs[pack], number - self._begins[pack]

    def path(self, number: int) -> str:
        """Return the file of a shard's index."""
        return self._pack_of(number)[0].path_of(self._shards[number].index.name)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Any:
        """Return the table of a shard. Raise DamagedPack if the file was altered."""
        if (table := self._tables.get(number)) is None:
            try:
                table = self._tables[number] = self._open(number)
            except DamagedPack as error:
                error.with_location(self._pack_of(number)[0].folder, self._shards[number].container.name)
                raise
            _forget_first(self._tables)
        return table

    def _open(self, number: int) -> Any:
        path, shard, (pack, _) = self.path(number), self._shards[number], self._pack_of(number)
        known = bool(self._verified[number])
        if not known:
            found = self._found.pop(number, None)
            found = self._read(number) if found is None else found
            if found != shard.index.crc32c and pack.content is not None:
                found = self._read(number, again=True)
            if found != shard.index.crc32c:
                raise DamagedPack(path, "was altered: it does not match its checksum", RESTORE)
        table = read_index(path, self._data(number), known)
        if len(table) != shard.records:
            raise DamagedPack(path, f"has {len(table)} rows, but the pack says {shard.records}", RESTORE)
        for row, problem in () if known or pack.manifest is None else value_problems(table, pack.manifest):
            keys: Any = column(table, "key")
            key = bytes(keys[row]).decode("ascii", "backslashreplace")
            raise DamagedPack(path, f"record {key} (row {row}) {problem}", RESTORE)
        self._verified[number] = True
        return table

    def read(self, number: int) -> None:
        """Read an index from the disk, or fetch it, before it is opened."""
        if not self._verified[number]:
            with suppress(DamagedPack):  # raised again when it is opened
                self._found[number] = self._read(number)

    def _read(self, number: int, again: bool = False) -> int:
        """Map an index, `again` if its file is to be replaced, and return its checksum."""
        data, path, (pack, own) = self._data(number), self.path(number), self._pack_of(number)
        content = None if pack.content is None else pack.content(own, again)
        if self._mapped:
            self._region.map(number, again)
            # not from the map: an error of the disk is then an exception, and does not kill the process
            try:
                return crc32c_of(path)
            except FileNotFoundError:
                raise DamagedPack(path, "is missing", "restore it or build the pack again") from None
            except OSError as error:
                raise StorageError(path, error.strerror or str(error)) from None
        data[:] = map_file(path, len(data)) if content is None else content
        return int(crc32c(data))

    def _data(self, number: int) -> Content:
        """Return the content of an index, in the range of all."""
        start = int(self._starts[number])
        return self._bytes[start : start + self._shards[number].index.bytes]

    def annotations(self, number: int) -> Annotations:
        """Return the annotations of a shard."""
        if (found := self._annotations.get(number)) is None:
            found = self._annotations[number] = Annotations(self[number], self.path(number))
            _forget_first(self._annotations)
        return found

    def offsets(self, number: int, record_bytes: int | None = None) -> Int64:
        """Return where the records of a shard begin in its container, int64 (n,); checked for bounds and overlap.

        With `record_bytes`, all must be of this size.
        """
        shard, table = self._shards[number], self[number]
        offsets, sizes = np.asarray(column(table, "offset")), np.asarray(column(table, "size"))
        outside, overlaps = bad_ranges(table, shard.container.bytes)
        if outside.any() or overlaps.any():
            problem = "has offsets outside its shard" if outside.any() else "has overlapping records"
            error = DamagedPack(self.path(number), problem, RESTORE)
            raise error.with_location(self._pack_of(number)[0].folder, shard.container.name)
        for row in () if record_bytes is None else np.flatnonzero(sizes != record_bytes)[:1].tolist():
            raise DamagedPack(self.path(number), f"row {row} is of {sizes[row]} bytes, not of {record_bytes}", RESTORE)
        return offsets

    # -- records, in shards that `prepare` has opened

    def prepare(self, number: int, record_bytes: int | None) -> None:
        """Open a shard for the methods below. Raise DamagedPack if it was altered, or as `offsets` does."""
        table = self[number]
        self.offsets(number, record_bytes)
        starts, sizes = all_ranges(table)
        self.spans[number] = starts.min(initial=1 << 62), (starts + sizes).max(initial=0)
        for name in self._numbers:
            self._shift(name, number, column(table, name))
        keys: Any = column(table, "key")
        self._shift(KEY_BOUNDS, number, keys.offsets)
        self._keys[number] = self._place(keys.values)
        self._tables.pop(number, None)  # it is needed no more, and 10,000 of them take much memory

    def _shift(self, name: str, number: int, values: Any) -> None:
        place = self._place(values)
        inside = 0 <= place <= len(self._bytes) - values.nbytes
        if not inside or place % values.itemsize or values.dtype != self._views[name].dtype:
            raise DamagedPack(self.path(number), f"has a column {name} that is not aligned", RESTORE)
        self._shifts[name][number] = place // values.itemsize - self._firsts[number]

    def _place(self, values: NDArray[Any]) -> int:
        return int(values.__array_interface__["data"][0]) - self._base if values.size else 0

    def values(self, name: str, shards: Int64, records: Int64) -> NDArray[Any]:
        """Return the numbers of `records`, which are in these `shards`, in a column of numbers, (n,)."""
        found: NDArray[Any] = self._views[name].take(self._shifts[name].take(shards) + records)
        if name in CLASS_IDS:
            for number, pack in enumerate(self._packs):
                if pack.class_ids is not None:
                    its = (shards >= self._begins[number]) & (shards < self._begins[number + 1])
                    found[its] = pack.class_ids[found[its]]
        return found

    def value(self, name: str, shard: int, record: int) -> int:
        """Return the number of one record in a column of numbers."""
        return int(self._views[name][record + self._shifts[name][shard]])

    def keys(self, shards: Int64, records: Int64) -> list[memoryview]:
        """Return the keys of `records`, which are in these `shards`."""
        places = self._shifts[KEY_BOUNDS].take(shards) + records
        bounds, before, data = self._views[KEY_BOUNDS], self._keys.take(shards), self._bytes.data
        starts, stops = before + bounds.take(places), before + bounds.take(places + 1)
        return [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]

    # -- whole columns

    def part(self, name: str, number: int) -> Column:
        """Return the column of a shard (`packer.model.annotation_columns.column`), mapped, not copied."""
        parts = self._parts.setdefault(name, {})
        if (found := parts.get(number)) is None:
            found = parts[number] = self._here(column(self[number], name))
        return found

    def _here(self, part: Column) -> Column:
        """Return the same views without the objects of Arrow that hold them, which take twice as much memory."""
        if isinstance(part, Ragged):
            return Ragged(self._here(part.values), np.asarray(self._here(part.offsets)))
        start = self._place(part)
        if not 0 < start <= len(self._bytes) - part.nbytes:
            return part  # nothing, or what an index need not have
        return self._bytes[start : start + part.nbytes].view(part.dtype).reshape(part.shape)

    def with_class_ids(self, name: str, number: int, values: Any) -> Any:
        """Return values of a column of a shard; class ids as those that they are read as."""
        ids = self._pack_of(number)[0].class_ids
        if ids is None or name not in CLASS_IDS:
            return values
        if isinstance(values, Ragged):
            return Ragged(self.with_class_ids(name, number, values.values), values.offsets)
        return ids[values].astype(values.dtype)

    def parts(self, name: str) -> Iterator[Column]:
        """Yield the column of each shard (`part`)."""
        return (self.with_class_ids(name, number, self.part(name, number)) for number in range(len(self)))

    def column(self, name: str) -> Column:
        """Return a column over all shards (`packer.model.annotation_columns.column`)."""
        found = self._columns.get(name)
        if found is None:
            from_stores = [n for n in np.flatnonzero(~self._verified).tolist() if self._pack_of(n)[0].content]
            if from_stores:  # many at a time
                with pool(FETCHED_AT_ONCE) as threads:
                    all_of([threads.submit(self.read, number) for number in from_stores])
            found = joined_column([*self.parts(name)])
            if not isinstance(found, Ragged):
                found.flags.writeable = False  # all callers share it
            self._columns[name] = found
        return found


def joined_column(parts: Sequence[Column]) -> Column:
    """Return the columns of several shards as one."""
    if ragged := [part for part in parts if isinstance(part, Ragged)]:
        return Ragged.concat(ragged)
    return np.concatenate(parts) if len(parts) > 1 else np.asarray(parts[0])


def in_memory(sizes: Sequence[int]) -> tuple[Region, Int64]:
    """Return memory for files of these sizes instead of maps: a region of zeros, and where each file begins in it."""
    starts = np.cumsum([0, *(-(-size // 64) * 64 for size in sizes)], dtype=np.int64)
    return Region([np.zeros(int(starts[-1]), np.uint8)], [0]), starts[:-1]


def _forget_first(kept: OrderedDict[int, Any]) -> None:
    if len(kept) > MANY_FILES:
        kept.popitem(last=False)


def all_ranges(table: Any) -> tuple[Int64, Int64]:
    """Return where the images of an index begin, and their sizes, and those of its parts after them: int64 (k n,) each.

    A part that a record lacks is where its image begins, without bytes.
    """
    offsets, sizes = np.asarray(column(table, "offset")), np.asarray(column(table, "size"))
    ranges = [(offsets, sizes)]
    for name in names_in(table.column_names):
        its = np.asarray(column(table, f"{name}_size"))
        starts = np.asarray(column(table, f"{name}_offset"))
        ranges.append((np.where(its == MISSING[1], offsets, starts), np.where(its == MISSING[1], 0, its)))
    if len(ranges) == 1:
        return offsets, sizes
    return np.concatenate([starts for starts, _ in ranges]), np.concatenate([its for _, its in ranges])


def bad_ranges(table: Any, limit: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which images and parts of an index lie outside a file of `limit` bytes, and which overlap another one.

    Both are bool (k, n): the images first, then each part.
    """
    offsets, sizes = all_ranges(table)
    outside = (offsets < 0) | (sizes < 0) | (sizes > limit) | (offsets > limit - sizes)  # which no value overflows
    among = ~outside if len(offsets) == len(table) else ~outside & (sizes > 0)
    shape = (-1, len(table)) if len(table) else (1, 0)
    return outside.reshape(shape), overlapping(offsets, sizes, among, WINDOW in table.column_names).reshape(shape)


def overlapping(
    offsets: NDArray[Any], sizes: NDArray[Any], among: NDArray[np.bool_], shared: bool = False
) -> NDArray[np.bool_]:
    """Return which ranges overlap one that begins earlier, bool (n,). Only the ranges in `among` are compared.

    Those of tiles may be `shared`: equal ranges do not overlap then.
    """
    wrong = np.zeros(len(offsets), np.bool_)
    rows = np.flatnonzero(among)
    if shared:
        _, firsts = np.unique(np.stack([offsets[rows], sizes[rows]]), axis=1, return_index=True)
        rows = rows[np.sort(firsts)]
    starts = offsets[rows]
    if np.any(starts[1:] < starts[:-1]):  # rare: every container but LMDB writes its records in order
        rows = rows[np.argsort(starts, kind="stable")]
        starts = offsets[rows]
    ends = np.maximum.accumulate(starts + sizes[rows])
    wrong[rows[1:][starts[1:] < ends[:-1]]] = True
    return wrong
