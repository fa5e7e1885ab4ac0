"""The fingerprints of the records of a pack: those beside it, and what its images say where these are missing."""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from packer.errors import AnyPath, UsageError, plural, printable, size_text
from packer.format.beside import read_beside
from packer.format.new_sidecar import write_fingerprints
from packer.format.pack import Pack
from packer.format.sidecar_list import FINGERPRINTS, SidecarList
from packer.format.versions import newest_number
from packer.images.fingerprint import FINGERPRINT, VERSION, fingerprint_of
from packer.images.opencv import quiet_opencv
from packer.model.annotation import Int64, Progress
from packer.packing.write_shard import ahead
from packer.repack.attach import AttachReport, changing, check_name, open_local_pack, publish_sidecars
from packer.system import usable_cores

ROUND_RECORDS = 256
FIGURES = [name for name in FINGERPRINT.names or () if FINGERPRINT[name].kind == "f"]


def fingerprints_of(pack: Pack, progress: Progress | None = None) -> NDArray[np.void]:
    """Return the fingerprint of each record: its perceptual hash, and figures of its brightness, sharpness and color.

    Args:
        pack: The pack, or several that are joined.
        progress: Receives the images that are read: those whose fingerprint is not beside the pack.

    Returns:
        A structured array (n,), whose fields docs/formats.md explains: ``fingerprints_of(pack)["focus"]``.

    Raises:
        DamagedPack: An image or a file beside the pack is damaged.
    """
    found = known_fingerprints(pack)
    unknown = np.flatnonzero(found["version"] == 0)
    if len(unknown):
        progress = progress or Progress()
        images, size = plural(len(unknown), "image"), size_text(int(np.asarray(pack.column("size"))[unknown].sum()))
        step = f"packer attach {printable(pack.path)} --fingerprints makes them once"
        progress.note(f"note: {images} ({size}) must be read for fingerprints; {step}")
        found[unknown] = fingerprints_of_images(pack, unknown, progress)
    return found


def known_fingerprints(pack: Pack) -> NDArray[np.void]:
    """Return the fingerprint of each record of a pack or of several that are joined (n,): of version 0 if not known.

    Raises:
        DamagedPack: Those beside a pack were altered.
    """
    known = [(part, stored_fingerprints(part)) for part in pack.packs]
    return np.concatenate([np.zeros(len(part), FINGERPRINT) if rows is None else rows for part, rows in known])


def attach_fingerprints(pack: AnyPath, progress: Progress | None = None) -> AttachReport:
    """Attach the fingerprints of its images to a pack that lacks them, as a build does: ``packer.attach_fingerprints``.

    `packer stats` finds near duplicates and odd images by them without reading the images again.

    Args:
        pack: The folder of the pack.
        progress: Receives the images that are read.

    Returns:
        What was attached.

    Raises:
        UsageError: The pack is at a URL, or has them already.
        DamagedPack: An image is damaged.
        StorageError: A file cannot be read or written. The pack stays as it was.
    """
    started, progress, opened = time.monotonic(), progress or Progress(), open_local_pack(pack)
    stored = stored_fingerprints(opened)
    if stored is not None and (stored["version"] == VERSION).all():
        step = f"packer detach {printable(opened.path)} {FINGERPRINTS} removes them"
        raise UsageError(opened.path, "has fingerprints of all images already", step)
    if stored is None:
        check_name(opened, FINGERPRINTS, read_beside(SidecarList, opened.path, opened.manifest))
    rows = fingerprints_of(opened, progress).tobytes()
    with changing(opened) as work:
        facts = write_fingerprints(work, [rows], newest_number(opened.path, opened.manifest))
        taken = read_beside(SidecarList, opened.path, opened.manifest)
        others = [one for one in (taken.sidecars if taken else ()) if one.name != FINGERPRINTS]
        publish_sidecars(opened, work, [*others, facts])
    return AttachReport(
        opened.path, facts.name, facts.kind, facts.dtype, facts.shape, facts.text, len(opened), facts.bytes,
        "made of the images", (), time.monotonic() - started,
    )  # fmt: skip


def stored_fingerprints(pack: Pack, records: Int64 | None = None) -> NDArray[np.void] | None:
    """Return the fingerprints that are beside a pack (n,), those that are not known with version 0; None without any.

    Args:
        pack: One pack.
        records: The numbers of some of its records; all by default.

    Raises:
        DamagedPack: They were altered.
    """
    facts = pack.sidecars.get(FINGERPRINTS)
    if facts is None or not facts.are_fingerprints:
        return None
    rows: NDArray[np.uint8] = pack.sidecar(FINGERPRINTS).read(np.arange(len(pack)) if records is None else records)
    found = rows.view(FINGERPRINT).reshape(-1)
    unfit = found["version"] != VERSION
    for name in FIGURES:  # of a pack that somebody made by hand
        unfit |= ~((found[name] >= 0) & (found[name] < np.inf))
    found["version"][unfit] = 0
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
