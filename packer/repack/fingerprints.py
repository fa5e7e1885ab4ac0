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
    found = np.zeros(len(pack), FINGERPRINT)
    first = 0
    for part in pack.packs:
        facts = part.sidecars.get(FINGERPRINTS)
        if facts is not None and facts.row_bytes == FINGERPRINT.itemsize:
            rows = part.sidecar(FINGERPRINTS).read(np.arange(len(part)))
            found[first : first + len(part)] = rows.view(FINGERPRINT).reshape(-1)
        first += len(part)
    unknown = np.flatnonzero(found["version"] != VERSION)
    if len(unknown):
        found[unknown] = fingerprints_of_images(pack, unknown, progress)
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
