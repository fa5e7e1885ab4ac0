"""Which records of a pack only repeat another: those that `packer convert --keep-one` leaves out."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from packer.errors import UsageError, option, plural, printable
from packer.format.pack import Pack
from packer.model.annotation import Progress
from packer.repack.fingerprints import fingerprints_of
from packer.repack.index_columns import equal_files
from packer.repack.near_duplicates import NEARNESS, Nearness, surplus


def repeated(pack: Pack, what: str, progress: Progress) -> dict[int, str]:
    """Return the records that can be removed, each with the reason.

    Args:
        pack: The pack.
        what: equal, for equal source files, of which the first stays; or what `Nearness.of` takes, as `surplus` says.
        progress: Receives the images that are read for fingerprints, what is compared, and notes.

    Raises:
        UsageError: `what` is none of these.
    """
    path: Any = pack.column("path")
    if what == "equal":
        rows = np.ascontiguousarray(np.asarray(pack.column("source_xxh3"), np.uint8)).view(np.uint64)
        equal = equal_files(rows.reshape(-1, 2))
        firsts = equal.records[equal.starts[:-1]][equal.group_of]
        pairs = zip(equal.records.tolist(), firsts.tolist(), strict=True)
        return {one: f"equal to {printable(os.fsdecode(bytes(path[kept])))}" for one, kept in pairs if one != kept}
    if what.partition("=")[0] not in NEARNESS:
        problem = f"must be equal, near, near=BITS or mirrored; got {printable(what)}"
        raise UsageError(option("keep-one"), problem, "write near")
    near = Nearness.of(option("keep-one"), what)
    pixels = np.asarray(pack.column("width"), np.int64) * np.asarray(pack.column("height"), np.int64)
    removed, notes = surplus(fingerprints_of(pack, progress), near, pixels, progress)
    for note in (*notes, f"{plural(len(removed), 'near duplicate is', 'near duplicates are')} left out"):
        progress.note(f"note: {note}")
    return {one: f"near duplicate of {printable(os.fsdecode(bytes(path[kept])))}" for one, kept in removed.items()}
