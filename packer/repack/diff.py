"""Compares two packs: classes, records, labels, and the pixels of images whose bytes differ."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, AnyStr

import numpy as np
import pyarrow as pa

from packer.errors import AnyPath, UsageError, option
from packer.format.pack import Pack, open_pack
from packer.model.annotation import MISSING, OF_PIXELS, Progress, column_of
from packer.model.fields import BY_NAME, CLASS_IDS, FIELD_NAMES
from packer.model.strict_json import read_json
from packer.packing.input_table import line_of
from packer.packing.write_shard import ahead
from packer.repack.index_columns import annotations_of
from packer.system import usable_cores

DEFAULT_LIMIT = 10
EQUAL, ONLY_A, ONLY_B, CHANGED = b"=", b"-", b"+", b"*"
"""How a line of ``--combined`` begins."""
ROWS = 4096
"""Rows that are compared as Python values at once."""
LOSSLESS = math.inf
FACTS = ("container", "encoding", "mode")
PART_FACTS = ("kind", "classes", "ignore")
IMAGE_FACTS = ("crc32c", "size", "encoding", "height", "width", "channels", "dtype")


@dataclass(slots=True)
class Differing:
    """The records that differ in one respect: how many, and the first of them."""

    count: int = 0
    first: list[dict[str, Any]] = field(default_factory=list)

    def add(self, limit: int | None, **row: Any) -> None:
        """Count a record, and keep it if it is among the first.

        Args:
            limit: Number of records to keep. None: all.
            row: What differs, by name.
        """
        self.count += 1
        if limit is None or len(self.first) < limit:
            self.first.append(row)


@dataclass(slots=True)
class DiffReport:
    """How pack `b` differs from pack `a`."""

    a: str
    b: str
    records: tuple[int, int]
    """Number of records of each."""
    options: dict[str, tuple[Any, Any]]
    """Container, encoding and options that differ. They do not make the packs different."""
    classes: dict[str, list[str]]
    """``only_a``, ``only_b``, and ``order`` if both have the same names in another order; likewise for tags."""
    only_a: Differing = field(default_factory=Differing)
    only_b: Differing = field(default_factory=Differing)
    moved: Differing = field(default_factory=Differing)
    """Records with another path, found by the digest of their source files."""
    labels: Differing = field(default_factory=Differing)
    pixels: Differing = field(default_factory=Differing)
    """Images with other pixels, with their PSNR in dB; None if their shapes differ."""
    other_bytes: int = 0
    """Images with the same pixels in other bytes."""
    psnr: tuple[float, float] | None = None
    """The lowest and the highest."""
    parts: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """What the values of a part mean, ``depth.ignore``, where both packs have the part and it differs."""

    @property
    def equal(self) -> bool:
        """Whether the packs have the same classes, parts, records, labels and pixels."""
        found = (self.only_a, self.only_b, self.moved, self.labels, self.pixels)
        return not (self.classes or self.parts or any(part.count for part in found))


def diff(
    a: AnyPath | Pack,
    b: AnyPath | Pack,
    limit: int | None = DEFAULT_LIMIT,
    progress: Progress | None = None,
    combined: Callable[[bytes], object] | None = None,
) -> DiffReport:
    """Compare two packs. Images are decoded only where their bytes differ.

    Records belong together if they have the same path; of the others, those whose source files have the same digest.

    Args:
        a: A pack, or its path or URL.
        b: Another one.
        limit: Number of records to list in each respect. None: all.
        progress: Receives the images that were compared.
        combined: Receives a line for each record of either pack, such as the `write` of a binary file: its path after
            ``= `` (equal), ``- `` (only in `a`), ``+ `` (only in `b`) or ``* `` (in both, with other labels or pixels).
            What follows these two bytes is a line for `include` and `exclude`. A record with another path is in both
            lists, ``-`` and ``+``.

    Returns:
        The differences.

    Raises:
        DamagedPack: A record of a pack was altered.
    """
    if limit is not None and limit < 0:
        raise UsageError(option("limit"), f"must be at least 0, got {limit}")
    first, second = (pack if isinstance(pack, Pack) else open_pack(pack) for pack in (a, b))
    comparison = _Diff(first, second, limit, progress or Progress())
    report = comparison.run()
    if combined is not None:
        for lines in comparison.lines():
            combined(lines)
    return report


class _Diff:
    def __init__(self, a: Pack, b: Pack, limit: int | None, progress: Progress) -> None:
        self.a, self.b, self.limit, self.progress = a, b, limit, progress
        self.signs = np.full(len(a), EQUAL, "S1")
        self.added: list[int] = []
        """The records of `b` with a path that `a` has not."""
        before, now = a.manifest, b.manifest
        names = sorted(before.options.keys() | now.options.keys())
        changed = {name: (before.options.get(name), now.options.get(name)) for name in names}
        changed = {name: (getattr(before, name), getattr(now, name)) for name in FACTS} | changed
        self.report = DiffReport(
            a.path, b.path, (len(a), len(b)),
            {name: values for name, values in changed.items() if values[0] != values[1]},
            {**_names(before.classes, now.classes), **_names(before.tags, now.tags, "tags_")},
        )  # fmt: skip
        specs = [{spec.name: spec for spec in manifest.part_specs} for manifest in (before, now)]
        self.report.parts = {
            f"{name}.{what}": values
            for name in sorted(specs[0].keys() & specs[1].keys()) for what in PART_FACTS
            if len({*(values := (getattr(specs[0][name], what), getattr(specs[1][name], what)))}) > 1
        }  # fmt: skip

    def run(self) -> DiffReport:
        rows_a, rows_b = self._pairs()
        self._compare_labels(rows_a, rows_b)
        self._compare_images(rows_a, rows_b)
        return self.report

    def _pairs(self) -> tuple[Any, Any]:
        """Return the numbers of the records that belong together, in the order of `a`."""
        paths = self.a.paths, self.b.paths
        sources = [np.asarray(pack.column("source_xxh3")) for pack in (self.a, self.b)]
        partner, left = _match_items(paths[0], paths[1])
        alone = [number for number in range(len(self.a)) if partner[number] < 0]
        self.signs[alone], self.added = ONLY_A, left
        if alone and left:
            keys = [[bytes(row) for row in source[rows]] for source, rows in zip(sources, (alone, left), strict=True)]
            unknown = bytes(16)
            again, _ = _match_items(
                [key if key != unknown else b"a%d" % number for number, key in zip(alone, keys[0], strict=True)],
                [key if key != unknown else b"b%d" % number for number, key in zip(left, keys[1], strict=True)],
            )
            for place, other in enumerate(again):
                if other >= 0:
                    number = alone[place]
                    partner[number] = left[other]
                    self.report.moved.add(self.limit, path=paths[0][number], now=paths[1][left[other]])
            taken = {left[other] for other in again if other >= 0}
            left = [number for number in left if number not in taken]
        for number, other in enumerate(partner):
            if other < 0:
                self.report.only_a.add(self.limit, path=paths[0][number], key=self.a.key(number))
        for number in left:
            self.report.only_b.add(self.limit, path=paths[1][number], key=self.b.key(number))
        found = np.array(partner, np.int64)
        rows_a = np.flatnonzero(found >= 0)
        return rows_a, found[rows_a]

    def lines(self) -> Iterator[bytes]:
        """Yield a line for each record of either pack, many at once: first those of `a`, then what only `b` has."""
        signs = (*self.signs.tolist(), *(ONLY_B for _ in self.added))
        paths = chain(self.a.column("path"), map(self.b.column("path").__getitem__, self.added))
        lines = (b"%b %b\n" % (sign, line_of(bytes(path))) for sign, path in zip(signs, paths, strict=True))
        while block := b"".join(islice(lines, ROWS)):
            yield block

    def _is_changed(self, number: int) -> None:
        """Note that a record of `a` is another in `b`; one with another path there is listed as two."""
        if self.signs[number] == EQUAL:
            self.signs[number] = CHANGED

    # -- labels

    def _compare_labels(self, rows_a: Any, rows_b: Any) -> None:
        tables = [_annotations(pack, rows) for pack, rows in ((self.a, rows_a), (self.b, rows_b))]
        by_name = self.a.classes != self.b.classes or self.a.manifest.tags != self.b.manifest.tags
        differing: dict[int, list[str]] = defaultdict(list)
        for name in FIELD_NAMES:
            first, second = (table.column(name) for table in tables)
            named = by_name and (name in CLASS_IDS or name == "tags")
            if not named and first.equals(second):
                continue
            for start in range(0, len(rows_a), ROWS):
                try:
                    values = [
                        [_value(name, value, pack if named else None) for value in part.slice(start, ROWS).to_pylist()]
                        for pack, part in ((self.a, first), (self.b, second))
                    ]
                except ValueError:
                    for pack, rows in ((self.a, rows_a), (self.b, rows_b)):
                        for number in rows[start : start + ROWS].tolist():
                            pack.annotation(number)  # names the one that is damaged
                    raise
                for place, (one, two) in enumerate(zip(*values, strict=True), start):
                    if one != two:
                        differing[place].append(name)
        for name in sorted({*self.a.manifest.parts, *self.b.manifest.parts}):
            for place in np.flatnonzero(_parts_differ(self.a, self.b, name, rows_a, rows_b)).tolist():
                differing[place].append(name)
        for place in sorted(differing):
            number = int(rows_a[place])
            self._is_changed(number)
            self.report.labels.add(
                self.limit, path=self.a.paths[number], key=self.a.key(number), fields=differing[place]
            )

    # -- pixels

    def _compare_images(self, rows_a: Any, rows_b: Any) -> None:
        differs = self._differing(rows_a, rows_b)
        self.progress.stage("comparing", int(differs.sum()), "images")
        pairs = zip(rows_a[differs].tolist(), rows_b[differs].tolist(), strict=True)
        with closing(ahead(self._psnr, pairs, usable_cores())) as compared:  # decoders release the GIL
            for number, psnr, same_bytes in compared:
                self._count(number, psnr, same_bytes)

    def _differing(self, rows_a: Any, rows_b: Any) -> Any:
        """Return which pairs do not have the same key and checksum by the indexes, bool (n,)."""
        keys_a, keys_b = self.a.keys, self.b.keys
        pairs = zip(rows_a.tolist(), rows_b.tolist(), strict=True)
        differs = np.fromiter((keys_a[i] != keys_b[j] for i, j in pairs), np.bool_, len(rows_a))
        for name in IMAGE_FACTS:
            differs |= np.asarray(self.a.column(name))[rows_a] != np.asarray(self.b.column(name))[rows_b]
        return differs

    def _psnr(self, pair: tuple[int, int]) -> tuple[int, float | None, bool]:
        """Return the first of two images, their PSNR (None: of other shapes), and whether their bytes are the same."""
        i, j = pair
        a, b = self.a.reader, self.b.reader
        if (a.shape_of(i), a.dtype_of(i)) != (b.shape_of(j), b.dtype_of(j)):
            return i, None, False
        if a.encoding_of(i) == b.encoding_of(j) and self.a.record(i) == self.b.record(j):
            return i, LOSSLESS, True
        one, two = self.a.image(i), self.b.image(j)
        error = float(np.square(np.subtract(one, two, dtype=np.float32)).mean(dtype=np.float64))
        psnr = LOSSLESS if error == 0 else 10 * math.log10(float(np.iinfo(one.dtype).max) ** 2 / error)
        return i, psnr, False

    def _count(self, number: int, psnr: float | None, same_bytes: bool) -> None:
        self.progress.advance(1)
        if psnr == LOSSLESS:
            self.report.other_bytes += not same_bytes
            return
        if psnr is not None:
            low, high = self.report.psnr or (psnr, psnr)
            self.report.psnr = min(low, psnr), max(high, psnr)
        self._is_changed(number)
        path, key = self.a.paths[number], self.a.key(number)
        self.report.pixels.add(self.limit, path=path, key=key, psnr=psnr and round(psnr, 2))


def _names(a: Sequence[str], b: Sequence[str], prefix: str = "") -> dict[str, list[str]]:
    """Return the names that only one has; or those of `b`, if only their order differs."""
    found = {"only_a": [n for n in a if n not in set(b)], "only_b": [n for n in b if n not in set(a)]}
    if tuple(a) != tuple(b) and not any(found.values()):
        found["order"] = list(b)
    return {prefix + name: names for name, names in found.items() if names}


def _match_items(a: Sequence[AnyStr], b: Sequence[AnyStr]) -> tuple[list[int], list[int]]:
    """Return the place of each item of `a` in `b` (-1 if there is none), each used once, and the places left over."""
    places: dict[AnyStr, deque[int]] = defaultdict(deque)
    for number, item in enumerate(b):
        places[item].append(number)
    found = [places[item].popleft() if places.get(item) else -1 for item in a]
    return found, sorted(number for rest in places.values() for number in rest)


def _parts_differ(a: Pack, b: Pack, name: str, rows_a: Any, rows_b: Any) -> Any:
    """Return which pairs of records have another part, or only one of them has it, bool (n,)."""
    sizes = [_part_column(pack, name, "size", rows) for pack, rows in ((a, rows_a), (b, rows_b))]
    of_pixels = {pack.manifest.parts.get(name) for pack in (a, b)} <= {*OF_PIXELS}  # may be stored in other ways
    differ = (sizes[0] >= 0) != (sizes[1] >= 0) if of_pixels else sizes[0] != sizes[1]
    for place in np.flatnonzero(~differ & (sizes[0] >= 0)).tolist():
        i, j = int(rows_a[place]), int(rows_b[place])
        if a.reader.part(i, name) != b.reader.part(j, name):
            differ[place] = not (of_pixels and np.array_equal(a.part(i, name), b.part(j, name), equal_nan=True))
    return differ


def _part_column(pack: Pack, name: str, what: str, rows: Any) -> Any:
    if name not in pack.manifest.parts:
        return np.full(len(rows), MISSING[1])
    return np.asarray(pack.column(column_of(name, what)))[rows]


def _annotations(pack: Pack, rows: Any) -> Any:
    """Return the columns of annotations for these records."""
    indexes = pack.reader.indexes
    joined = annotations_of(indexes[number] for number in range(len(indexes)))
    in_order = len(rows) == len(joined) and bool((rows == np.arange(len(rows))).all())
    return joined if in_order else joined.take(pa.array(rows))


def _value(name: str, value: Any, pack: Pack | None) -> Any:
    """Return a value as it is compared: fields parsed, and class ids as names if the packs have other classes."""
    if value is None:
        return None
    if not BY_NAME[name].kind.is_numeric:
        return read_json(value.encode()) if value else {}
    if pack is None:
        return value
    if name == "tags":
        return {tag for tag, there in zip(pack.manifest.tags, value, strict=False) if there}
    names = pack.manifest.classes
    ids = value if isinstance(value, list) else [value]
    return [names[i] if 0 <= i < len(names) else i for i in ids]
