"""Reads what was attached to a pack (packer/format/sidecar_list.py): rows of arrays, lines of JSON, stored pixels."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import DamagedPack, UsageError, printable
from packer.format.beside import read_beside
from packer.format.mmap import map_files
from packer.format.pack_files import PackFiles
from packer.format.pack_objects import beside_at
from packer.format.sidecar_list import BOX_TYPE, CHECKED_BYTES, SidecarFacts, SidecarFile, SidecarList
from packer.model.annotation import Int64, PartSpec
from packer.stores import join_url


def sidecars_in(packs: Sequence[PackFiles]) -> dict[str, SidecarFacts]:
    """Return the sidecars that each of these packs has, by name, as the first one has them."""
    lists = [sidecars_of(files) for files in packs]
    names = [{one.name: one for one in listed.sidecars} if listed else {} for listed in lists]
    return {name: facts for name, facts in names[0].items() if all(name in its for its in names)}


def sidecars_of(files: PackFiles) -> SidecarList | None:
    """Return the list of the sidecars of a pack; None if it has none. Raise DamagedPack if it was altered."""
    try:
        if files.remote is not None:
            return beside_at(SidecarList, files.remote.store, files.manifest)
        return read_beside(SidecarList, files.folder, files.manifest)
    except DamagedPack as error:
        raise error.with_location(files.path) from None


def checksums_of(file: SidecarFile) -> NDArray[np.uint32]:
    """Return the checksums of a file as numbers."""
    return np.frombuffer(bytes.fromhex(file.crc32c), ">u4").astype(np.uint32)


class Sidecar:
    """A sidecar of an open pack, or of all packs that are joined in one. Threads share it.

    Args:
        packs: The files of each pack.
        name: Its name.

    Raises:
        UsageError: A pack has no such sidecar, or one of another form than the first.
        DamagedPack: A file is missing, or of another size.
    """

    def __init__(self, packs: Sequence[PackFiles], name: str) -> None:
        self._parts = [(files, _SidecarFiles(files, _facts_of(files, name))) for files in packs]
        self.name, self.facts = name, self._parts[0][1].facts
        for files, part in self._parts:
            if (part.facts.form, part.facts.spec) != (self.facts.form, self.facts.spec):
                problem = f"has {name} as {part.facts.form}, but {printable(packs[0].path)} {self.facts.form}"
                raise UsageError(files.path, problem, "attach both in one form")

    @property
    def spec(self) -> PartSpec:
        """What it would be as a part: lists of texts are JSON."""
        return self.facts.spec

    def read(self, records: Int64, params: object = None) -> Any:
        """Return the values of `records`, int64 (n,): an array (n, ...), or a list of n texts or values.

        Of masks, maps and images it is a list of (bytes, encoding), which `packer.images.parts.decode_part` takes. Of
        predicted boxes it is a list of dicts: boxes float32 (k, 4), x1, y1, x2, y2 in pixels of the packed image,
        scores float32 (k,), labels int64 (k,); predicted labels are rows of class, score and, if they are known,
        the probability of each class, float32 (n, 2 or more).

        Args:
            records: Their numbers.
            params: How their images are cut, which changes nothing here.

        Raises:
            DamagedPack: They do not match their checksum, which is verified when this process first reads them.
        """
        found = self._read(records)
        return list(map(_boxes_in, found)) if self.facts.kind == "boxes" else found

    def boxes(self, records: Int64) -> tuple[NDArray[Any], Int64]:
        """Return the predicted boxes of `records`, one record after another (`BOX_TYPE`), and how many each has.

        Raises:
            DamagedPack: As `read`.
        """
        rows = self._read(records)
        counts = np.fromiter(map(len, rows), np.int64, len(rows)) // np.dtype(BOX_TYPE).itemsize
        return np.frombuffer(b"".join(rows), BOX_TYPE), counts

    def _read(self, records: Int64) -> Any:
        if len(self._parts) == 1:
            return self._parts[0][1].read(records)
        found = np.empty(len(records), object)
        is_array = self.facts.has_rows
        if is_array:
            found = np.empty((len(records), *self.facts.shape), self.facts.dtype)
        for files, part in self._parts:
            mine = (records >= files.first_record) & (records < files.end)
            values = part.read(records[mine] - files.first_record)
            found[mine] = values if is_array else np.fromiter(values, object, len(values))
        return found if is_array else found.tolist()


def _boxes_in(row: bytes) -> dict[str, NDArray[Any]]:
    found = np.frombuffer(row, BOX_TYPE)
    return {"boxes": found["box"].copy(), "scores": found["score"].copy(), "labels": found["label"].astype(np.int64)}


def _facts_of(files: PackFiles, name: str) -> SidecarList:
    """Return the list of one sidecar of a pack. Raise UsageError if the pack has none of this name."""
    listed = sidecars_of(files)
    facts = None if listed is None else listed.get(name)
    if listed is None or facts is None:
        has = ", ".join(one.name for one in listed.sidecars) if listed else "nothing attached"
        raise UsageError(files.path, f"has no sidecar {printable(name)}", f"it has {has}; see packer attach")
    return SidecarList(listed.rows_sha256, (facts,))


class _SidecarFiles:
    """The files of a sidecar of one pack, mapped; those of a pack at a URL are fetched by blocks, as its records."""

    def __init__(self, files: PackFiles, listed: SidecarList) -> None:
        (self.facts,) = listed.sidecars
        self._pack, self._records = files, files.manifest.records
        self._remote = None if files.remote is None else files.remote.beside(listed)
        if self._remote is not None:
            self._region, self._starts = self._remote.region, self._remote.starts
        else:
            paths = [(files.manifest.path_of(files.folder, f.name), f.bytes) for f in self.facts.files]
            try:
                self._region, self._starts = map_files(paths)
            except DamagedPack as error:
                raise self._damage(os.path.basename(os.fsdecode(error.where)), error.problem) from None
        self._checksums = [checksums_of(file) for file in self.facts.files]
        self._checked = [np.zeros(len(sums), np.bool_) for sums in self._checksums]
        """Which pieces of each file this process has verified."""

    def read(self, rows: Int64) -> Any:
        """Return the values of some rows."""
        if self.facts.has_rows:
            found = self._gathered(0, rows, self.facts.row_bytes, self._records * self.facts.row_bytes)
            values: NDArray[Any] = found.view(self.facts.dtype).reshape(len(rows), *self.facts.shape)
            if self.facts.kind == "labels":
                self._check_predictions(values[:, 0], values[:, 1:])
            return values
        bounds = self._gathered(1, 8 * rows, 16, 8 * (self._records + 1), 1).view(np.int64)
        begins, ends = bounds[:, 0], bounds[:, 1]
        file = self.facts.files[0]
        sizes = ends - begins
        each = np.dtype(BOX_TYPE).itemsize if self.facts.kind == "boxes" else 0  # a record may have no box
        wrong = (sizes < 0) | (sizes % each > 0) if each else sizes <= 0
        if (wrong | (begins < 0) | (ends > file.bytes)).any():
            raise self._damage(self.facts.files[1].name, "leads out of its lines")
        with self._held(0, begins[sizes > 0], sizes[sizes > 0]) as start:
            data = self._region.data
            lines = [bytes(data[start + a : start + b]) for a, b in bounds.tolist()]
        if self.facts.kind == "boxes":
            boxes: NDArray[Any] = np.frombuffer(b"".join(lines), BOX_TYPE)
            self._check_predictions(boxes["label"], boxes["score"], boxes["box"])
            return lines
        if self.facts.encoding:
            return [(line, self.facts.encoding) for line in lines]
        try:
            return [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            raise self._damage(file.name, "has a line that is not JSON") from None

    def _check_predictions(self, classes: Any, scores: Any, boxes: Any = 0.0) -> None:
        """Raise DamagedPack unless predictions are as `packer attach` writes them: checksums do not say who made them.

        A class that has no name would be another one, or an IndexError; a number that is none is no JSON.
        """
        if not ((classes >= 0) & (classes < len(self.facts.classes))).all():
            raise self._damage(self.facts.files[0].name, "has a class that its list does not name")
        if not (((scores >= 0) & (scores <= 1)).all() and np.isfinite(boxes).all()):
            raise self._damage(self.facts.files[0].name, "has a score that is not from 0 to 1, or a box that is none")

    def _gathered(self, number: int, rows: Int64, size: int, content: int, step: int = 0) -> NDArray[np.uint8]:
        """Return `size` bytes of each row of a file, (n, size), whose last `content` bytes are rows of `step` bytes."""
        begins = self.facts.files[number].bytes - content + rows * (step or size)
        with self._held(number, begins, np.full(len(rows), size)) as start:
            if len(rows) > 1 and (np.diff(begins) == size).all():  # one copy is ten times as fast as one for each row
                data = self._region.data[start + int(begins[0]) : start + int(begins[-1]) + size]
                return np.array(np.frombuffer(data, np.uint8).reshape(-1, size))
            return self._region.gather(begins + start, size)

    @contextmanager
    def _held(self, number: int, begins: Int64, sizes: Int64) -> Iterator[int]:
        """Yield where a file begins in the region while these bytes of it are there, and verified."""
        start = int(self._starts[number])
        if self._remote is None:
            self._verify(number, begins, sizes)
            yield start
            return
        blocks = self._remote.blocks_of(begins + start, sizes)
        with self._remote.held(blocks):
            for first, stop, extent in self._remote.evicted(blocks):
                file = int(np.searchsorted(self._starts, first, "right")) - 1
                pieces = slice(*((place - int(self._starts[file])) // CHECKED_BYTES for place in (first, stop - 1)))
                self._checked[file][pieces.start : pieces.stop + 1] = False
                self._remote.seen(extent)
            self._verify(number, begins, sizes)
            yield start

    def _verify(self, number: int, begins: Int64, sizes: Int64) -> None:
        """Verify the pieces of a file in which these bytes lie, unless this process has done so."""
        pieces = begins // CHECKED_BYTES
        counts = (begins + sizes - 1) // CHECKED_BYTES - pieces + 1
        if int(counts.max(initial=1)) > 1:
            ends = np.cumsum(counts)
            pieces = np.arange(int(ends[-1])) + np.repeat(pieces - (ends - counts), counts)
        checked, file, start = self._checked[number], self.facts.files[number], int(self._starts[number])
        if not (seen := checked[pieces]).all():
            for piece in np.unique(pieces[~seen]).tolist():
                wanted, first = int(self._checksums[number][piece]), start + piece * CHECKED_BYTES
                stop = min(first + CHECKED_BYTES, start + file.bytes)
                if crc32c(self._region.data[first:stop]) != wanted and self._remote is not None:
                    self._remote.repair(first, stop, lambda data, wanted=wanted: crc32c(data) == wanted)  # type: ignore[misc]
                if crc32c(self._region.data[first:stop]) != wanted:
                    raise self._damage(file.name, "was altered: it does not match its checksums")
                checked[piece] = True

    def _damage(self, name: str, problem: str) -> DamagedPack:
        path = self._pack.path
        where = join_url(path, name) if self._remote is not None else self._pack.manifest.path_of(path, name)
        return DamagedPack(where, problem, SidecarList.again(path, name)).with_location(path)
