"""Several packs read as one: their records follow one another, and their classes are joined by name.

Nothing is copied. Each pack keeps its container, its maps and its cache; only the numbers of records and of classes are
those of the joined pack.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, UsageError, plural, printable
from packer.format.manifest import Manifest, Origin
from packer.format.mmap import JoinedRegion
from packer.format.pack import Pack, open_pack
from packer.model.annotation import Annotation, Image, Int64
from packer.model.fields import CLASS_IDS, FLIPS, WHOLE, with_class_ids
from packer.model.parts import IMAGE
from packer.model.ragged import Ragged

if TYPE_CHECKING:
    from packer.format.indexes import Indexes
    from packer.format.remote import Remote


def join_packs(packs: Sequence[AnyPath | Pack]) -> JoinedPack:
    """Return several packs as one, for a `PackedDataset`, a `PackedLoader` or a sampler; nothing is copied.

    The records of each pack are numbered after those of the packs before it; `JoinedPack.part_of` goes back. Class ids
    are those of the first pack, then those of the names that the next ones add. Packs of different containers,
    encodings and sizes can be joined, also with packs at URLs.

    Args:
        packs: Directories or URLs of packs, or open packs, each once.

    Raises:
        UsageError: Two packs contradict one another, or one is given twice.
        DamagedPack: As for `open_pack`.
    """
    if isinstance(packs, str | bytes | os.PathLike | Mapping | Pack):
        problem = f"must be a list of packs, got {packs!r}"
        raise UsageError("packs", problem, "pass a list; for shares, PackedLoader or MixtureSampler")
    return JoinedPack([pack if isinstance(pack, Pack) else open_pack(pack) for pack in packs])


class JoinedPack(Pack):
    """Several packs as one. `shards` are those of all packs, in order.

    Args:
        packs: Open packs, at least one.
    """

    def __init__(self, packs: Sequence[Pack]) -> None:
        self._packs = tuple(packs)
        self.path, self.folder = " + ".join(pack.path for pack in packs), ""
        self.manifest = _manifest(packs)
        self.shards = tuple(chain.from_iterable(pack.shards for pack in packs))
        self.region = self._region = JoinedRegion([pack.region for pack in packs])
        self.remote, self._is_remote = None, any(pack.is_remote for pack in packs)
        self.cache_options = None, None  # each pack has its own
        self._begins = np.cumsum([0, *(len(pack) for pack in packs)])
        self._columns: dict[str, NDArray[Any] | Ragged] = {}
        ids = {name: number for number, name in enumerate(self.manifest.classes)}
        # one more id at the end, which -1 picks: none
        self._ids = [np.array([*(ids[name] for name in pack.classes), -1]) for pack in packs]

    def __repr__(self) -> str:
        return f"<JoinedPack: {plural(len(self), 'record')} of {', '.join(map(repr, self.packs))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedPack, (self.packs,)

    @property
    def packs(self) -> tuple[Pack, ...]:
        return self._packs

    @property
    def is_remote(self) -> bool:
        return self._is_remote

    def part_of(self, i: int) -> tuple[int, int]:
        """Return (number of the pack in `packs`, number of the record in it) of record `i`."""
        self._require(i)
        number = int(np.searchsorted(self._begins, i, side="right")) - 1
        return number, i - int(self._begins[number])

    def _of(self, i: int) -> tuple[Pack, int]:
        number, record = self.part_of(i)
        return self.packs[number], record

    def by_pack(self, records: Int64) -> Iterator[tuple[Pack, Any, Int64]]:
        for number, rows, inside in self._by_number(records):
            yield self.packs[number], rows, inside

    def _by_number(self, records: Int64) -> Iterator[tuple[int, Any, Int64]]:
        ends = np.searchsorted(self._begins, records, side="right")
        for end in np.flatnonzero(np.bincount(ends)).tolist():
            rows = np.flatnonzero(ends == end)
            if not 0 < end < len(self._begins):
                self._require(int(records[rows[0]]))
            yield end - 1, rows, records[rows] - self._begins[end - 1]

    def places(self, records: Int64, name: str = IMAGE) -> tuple[Int64, Int64]:
        starts, sizes = np.empty(len(records), np.int64), np.empty(len(records), np.int64)
        for number, rows, inside in self._by_number(records):
            places, sizes[rows] = self.packs[number].places(inside, name)
            starts[rows] = self._region.moved(number, places)
        return starts, sizes

    def span(self, i: int, name: str = IMAGE) -> tuple[int, int]:
        [start], [size] = (numbers.tolist() for numbers in self.places(np.array([i]), name))
        return start, start + size

    def about(self, runs: Int64) -> tuple[Int64, Int64]:
        starts, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        numbers = (np.searchsorted(self._begins, runs[:, 0], side="right") - 1).tolist()
        for number, rows in groupby(range(len(runs)), numbers.__getitem__):
            places, its_sizes = self.packs[number].about(runs[list(rows)] - self._begins[number])
            starts.append(self._region.moved(number, places))
            sizes.append(its_sizes)
        return np.concatenate(starts), np.concatenate(sizes)

    def open_all(self) -> None:
        for pack in self.packs:
            pack.open_all()

    @property
    def indexes(self) -> Indexes:  # type: ignore[override]  # each pack has its own
        """Raise UsageError: each of `packs` has its own."""
        raise UsageError(self.path, "is joined and has no indexes of its own", "use those of its packs: pack.packs")

    @property
    def record_bytes(self) -> int | None:
        sizes = {pack.record_bytes for pack in self.packs} if self.manifest.shape is not None else {None}
        return sizes.pop() if len(sizes) == 1 else None

    def locate(self, i: int) -> tuple[int, int]:
        number, record = self.part_of(i)
        shard, row = self.packs[number].locate(record)
        return shard + sum(len(pack.shards) for pack in self.packs[:number]), row

    def record(self, i: int) -> memoryview:
        pack, record = self._of(i)
        return pack.record(record)

    def part(self, i: int, name: str) -> bytes | None:
        pack, record = self._of(i)
        return pack.part(record, name)

    def held(self, records: Int64, names: Sequence[str] = (IMAGE,)) -> AbstractContextManager[Any]:
        if not self._is_remote:
            return nullcontext()
        with ExitStack() as stack:
            for pack, _, inside in self.by_pack(records):
                stack.enter_context(pack.held(inside, names))
            return stack.pop_all()

    def note_whole(self, remote: Remote) -> bool:
        return any(pack.note_whole(remote) for pack in self.packs if pack.remote is remote)

    def check(self, records: Int64, names: Sequence[str] = (IMAGE,)) -> None:
        for pack, _, inside in self.by_pack(records):
            pack.check(inside, names)

    def damage(self, i: int, problem: str) -> DamagedPack:
        pack, record = self._of(i)
        return pack.damage(record, problem)

    def image(self, i: int, decoder: str = "auto") -> Image:
        pack, record = self._of(i)
        return pack.image(record, decoder)

    def shape_of(self, i: int) -> tuple[int, int, int]:
        pack, record = self._of(i)
        return pack.shape_of(record)

    def dtype_of(self, i: int) -> str:
        pack, record = self._of(i)
        return pack.dtype_of(record)

    def encoding_of(self, i: int) -> str:
        pack, record = self._of(i)
        return pack.encoding_of(record)

    def key(self, i: int) -> str:
        pack, record = self._of(i)
        return pack.key(record)

    def annotation(self, i: int) -> Annotation:
        number, record = self.part_of(i)
        return with_class_ids(self.packs[number].annotation(record), self._ids[number])

    def shard_columns(self, name: str) -> Iterator[Any]:
        for number, pack in enumerate(self.packs):
            for part in pack.shard_columns(name):
                yield self._renamed(name, number, part)

    def column(self, name: str) -> NDArray[Any] | Ragged:
        if (found := self._columns.get(name)) is None:
            columns = [self._renamed(name, number, pack.column(name)) for number, pack in enumerate(self.packs)]
            if isinstance(columns[0], Ragged):
                found = Ragged.concat(columns)
            else:
                found = np.concatenate(columns)
                found.flags.writeable = False  # all callers share it
            self._columns[name] = found
        return found

    def values(self, name: str, records: Int64) -> NDArray[Any]:
        found: list[tuple[Any, NDArray[Any]]] = []
        for number, rows, inside in self._by_number(records):
            found.append((rows, self._renamed(name, number, self.packs[number].values(name, inside))))
        out = np.empty(len(records), found[0][1].dtype if found else np.int64)
        for rows, values in found:
            out[rows] = values
        return out

    def rows(self, names: Sequence[str], records: Int64) -> list[list[Any]]:
        out: list[list[Any]] = [[None] * len(records) for _ in names]
        for number, places, inside in self._by_number(records):
            for name, column, rows in zip(names, out, self.packs[number].rows(names, inside), strict=True):
                for place, row in zip(places.tolist(), rows, strict=True):
                    column[place] = self._renamed(name, number, row)
        return out

    def _renamed(self, name: str, number: int, values: Any) -> Any:
        """Return values of a column of a pack, class ids as those of the joined pack."""
        if name not in CLASS_IDS:
            return values
        if isinstance(values, Ragged):
            return Ragged(self._renamed(name, number, values.values), values.offsets)
        return self._ids[number][values].astype(values.dtype)


def _manifest(packs: Sequence[Pack]) -> Manifest:
    """Return what the manifest of all packs says, apart from their files. Its digest changes with that of any pack.

    Raises:
        UsageError: The packs cannot be joined.
    """
    if not packs:
        raise UsageError("packs", "is empty: there is nothing to join", "name at least one pack")
    first, fields = packs[0], tuple(dict.fromkeys(chain.from_iterable(pack.manifest.fields for pack in packs)))
    for number, pack in enumerate(packs):
        if isinstance(pack, JoinedPack):
            raise UsageError(pack.path, "is joined already", "join all packs at once")
        if twice := next((one for one in packs[:number] if one.manifest.digest == pack.manifest.digest), None):
            raise UsageError(pack.path, f"is the same pack as {printable(twice.path)}", "name it once")
        for name, times in Counter(pack.classes).items():
            if times > 1:
                raise UsageError(pack.path, f"has two classes called {printable(name)}", "build it with --classes=FILE")
        if pack.manifest.mode != first.manifest.mode:
            problem = f"has mode {pack.manifest.mode}, but {printable(first.path)} {first.manifest.mode}"
            raise UsageError(pack.path, problem, f"build it again with --mode={first.manifest.mode}")
        if without := next((name for name in WHOLE if {name} & {*fields} - {*pack.manifest.fields}), None):
            has = next(one for one in packs if without in one.manifest.fields)
            problem = f"has no {without}, but {printable(has.path)} has: its images would count as without any"
            raise UsageError(pack.path, problem, "build it with labels, or with --missing-labels=empty")
        if pack.manifest.parts != first.manifest.parts:
            problem = f"has other parts than {printable(first.path)}: {pack.manifest.parts_text}"
            raise UsageError(pack.path, f"{problem}, not {first.manifest.parts_text}", "leave one of the packs out")
        if pack.manifest.tags != first.manifest.tags:
            problem = f"has other tags than {printable(first.path)}, or in another order"
            raise UsageError(pack.path, problem, "build both from lists with the same columns")
    manifests = [pack.manifest for pack in packs]
    pointed = {one.flip_index for one in manifests if {*FLIPS} & {*one.fields}}
    if len(pointed - {None}) > 1:
        raise UsageError(first.path, "has points in another order than the other packs", "leave one of the packs out")
    return replace(
        first.manifest,
        encoding=_common([one.encoding for one in manifests], "copy"),
        dtype=_common([one.dtype for one in manifests], None),
        shape=_common([one.shape for one in manifests], None),
        classes=tuple(dict.fromkeys(chain.from_iterable(one.classes for one in manifests))),
        fields=fields,
        records=sum(one.records for one in manifests),
        counts={},
        class_counts={},
        options={"decoder": "lenient"} if any(one.lenient for one in manifests) else {},
        shards=(),
        rejected=(),
        notes=(),
        flip_index=_common(list(pointed), None) if pointed else None,
        lists={},
        linked={},
        companions={},
        made_from=tuple(Origin("join", "", one.digest) for one in manifests),
    )


def _common(values: Sequence[Any], otherwise: Any) -> Any:
    return values[0] if all(value == values[0] for value in values) else otherwise
