"""The fingerprints of the records of a pack: those beside it, and what its images say where these are missing."""

from __future__ import annotations

from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.format.sidecar_list import FINGERPRINTS
from packer.images.fingerprint import FINGERPRINT, VERSION, fingerprint_of
from packer.images.opencv import quiet_opencv
from packer.model.annotation import Int64, Progress
from packer.packing.write_shard import ahead
from packer.system import usable_cores

ROUND_RECORDS = 256


def fingerprints_of(pack: Pack, progress: Progress | None = None) -> NDArray[np.void]:
    """Return the fingerprint of each record, `FINGERPRINT` (n,): images are read only where it is not known.

    Args:
        pack: The pack, or several that are joined.
        progress: Receives the images that are read.

    Raises:
        DamagedPack: An image or a file beside the pack is damaged.
    """
    known = [(part, stored_fingerprints(part)) for part in pack.packs]
    found = np.concatenate([np.zeros(len(part), FINGERPRINT) if rows is None else rows for part, rows in known])
    unknown = np.flatnonzero(found["version"] == 0)
    if len(unknown):
        found[unknown] = fingerprints_of_images(pack, unknown, progress)
    return found


def stored_fingerprints(pack: Pack) -> NDArray[np.void] | None:
    """Return the fingerprints that are beside a pack (n,), those that are not known with version 0; None without any.

    Raises:
        DamagedPack: They were altered.
    """
    facts = pack.sidecars.get(FINGERPRINTS)
    if facts is None or (facts.dtype, facts.shape) != ("uint8", (FINGERPRINT.itemsize,)):
        return None
    rows: NDArray[np.uint8] = pack.sidecar(FINGERPRINTS).read(np.arange(len(pack)))
    found = rows.view(FINGERPRINT).reshape(-1)
    found["version"][found["version"] != VERSION] = 0
    return found


def fingerprints_of_images(pack: Pack, records: Int64, progress: Progress | None = None) -> NDArray[np.void]:
    """Return the fingerprints of some records, for which their images are read; `fingerprints_of` says the rest."""
    progress = progress or Progress()

    @quiet_opencv()
    def work(some: Int64) -> bytes:
        return b"".join(fingerprint_of(pack.image(record)) for record in some.tolist())

    rounds = (records[start : start + ROUND_RECORDS] for start in range(0, len(records), ROUND_RECORDS))
    progress.stage("reading images", len(records))
    made = []
    with closing(ahead(work, rounds, usable_cores())) as done:
        for rows in done:
            made.append(rows)
            progress.advance(len(rows) // FINGERPRINT.itemsize)
    return np.frombuffer(b"".join(made), FINGERPRINT)
