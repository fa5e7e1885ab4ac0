"""Attaches embeddings, captions, depth and the like to a pack, in files beside its shards; the pack stays as it is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.errors import AnyPath, BadInput, UsageError, option, printable
from packer.format.beside import read_beside
from packer.format.new_sidecar import new_sidecar_file
from packer.format.pack import Pack, open_pack
from packer.format.pack_paths import numbers_in
from packer.format.sidecar_list import (
    FINGERPRINTS,
    ITEM_BYTES,
    PREDICTED,
    SIDECAR_FILE,
    SidecarFacts,
    SidecarFile,
    SidecarList,
    check_sidecar_name,
    file_names,
    rows_digest,
)
from packer.format.versions import check_newest, files_of_versions, newest_number
from packer.images.parts import BY_KIND
from packer.model.annotation import OF_PIXELS, Progress
from packer.packing.publish_version import forget_list
from packer.repack.attached_predictions import read_predictions
from packer.repack.attached_rows import Attached, naming, read_attached
from packer.repack.attached_tables import DTYPES, AttachRequest
from packer.repack.index_jpegs import in_place
from packer.system import sync_path
from packer.system.atomic import remove
from packer.system.locks import growing_folder
from packer.system.pool import held_signals
from packer.system.storage import storage_errors

CHUNK_BYTES = 8 << 20
CHUNK_ROWS = 1 << 14
CHUNK_PIXELS = 1 << 6
"""Values of pixels that are made at once: each may take megabytes."""
EXTRA_ROWS = ("fail", "skip")


@dataclass(frozen=True, slots=True)
class AttachReport:
    """The result of `attach`."""

    path: str
    name: str
    kind: str
    dtype: str
    """Of an array, and of pixels; "" for texts and JSON."""
    shape: tuple[int, ...]
    """Of the array of a record; of texts (-1,) if a record has a list of them."""
    text: str
    """All of that, for a person."""
    records: int
    bytes: int
    joined: str
    """How rows and records were joined: by key, by path, in the order of the records."""
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class DetachReport:
    """The result of `detach`."""

    path: str
    name: str
    bytes: int


def attach(  # noqa: PLR0913 - what the command takes
    pack: AnyPath, where: AnyPath, name: str, kind: str | None = None, column: str | None = None,
    progress: Progress | None = None, *, mask_values: str | None = None, ignore_id: int | None = None,
    extra_rows: str = "fail", classes: str | None = None, frame: str | None = None,
) -> AttachReport:  # fmt: skip
    """Attach something for each record to a pack, which stays as it is: ``packer.attach(pack, "clip.npy", "clip")``.

    No image is read. `PackedLoader` and `PackedDataset` read it with ``parts=("clip",)``, `Pack.part` for one record.

    Args:
        pack: The folder of the pack.
        where: A .npy file in the order of the records; a table (.npz, .parquet, .csv, .tsv, .jsonl) with a column of
            keys or paths; or a folder with a .npy, .txt or .json file or a picture for each image, of its name, or a
            pattern of these with {dir}, {stem} and {name}. Of predictions, COCO results (.json), a folder of YOLO's
            .txt files, a table, or for labels a .npy file of probabilities.
        name: What to call it.
        kind: array, text, json, or of pixels mask, map or image; or of predictions boxes or labels. None: numbers are
            an array, and texts are text.
        column: The column of a table. None: the only one, the one called `name`, or that of the captions.
        progress: Receives the stage attaching, in records.
        mask_values: What the pixels of masks mean, as for a build.
        ignore_id: The value of masks that is no class, or of maps where nothing is known.
        extra_rows: What to do with rows and files of no record: "fail", or "skip" to leave them out.
        classes: What the class ids of predictions mean: a file of names (a list, data.yaml, the COCO file of the
            labels, or JSON {id: name}), or "0" or "1", the id of the pack's first class. None: the COCO ids that the
            pack keeps; in YOLO's files and tables, numbers of the pack's classes, from 0.
        frame: Of which image predicted boxes are: "source" (the file, in pixels), "packed" (the packed image, in
            pixels), or "relative" (0 to 1). None: relative in YOLO's files, else source.

    Returns:
        What was attached.

    Raises:
        UsageError: The pack is at a URL or has something of this name; or it is not clear what to take.
        BadInput: A record has no row, or more than one; a row has no record; values are of another kind.
        DamagedPack: The list of what was attached before is damaged.
        StorageError: A file cannot be read or written. The pack stays as it was.
    """
    started = time.monotonic()
    if name == FINGERPRINTS:
        problem = f"{name} is what {option('fingerprints')} attaches, which are made of the images"
        raise UsageError(option("as"), problem, "choose another name")
    progress, opened = progress or Progress(), open_local_pack(pack)
    taken = read_beside(SidecarList, opened.path, opened.manifest)
    check_name(opened, name, taken)
    if kind is not None and kind not in KINDS:
        raise UsageError(option("kind"), f"must be {' or '.join(KINDS)}, got {kind!r}")
    for given, value, kinds in (
        ("mask-values", mask_values, ("mask",)), ("ignore-id", ignore_id, ("mask", "map")),
        ("classes", classes, PREDICTED), ("frame", frame, ("boxes",)),
    ):  # fmt: skip
        if value is not None and kind not in kinds:
            raise UsageError(option(given), f"is for {option('kind')} {' or '.join(kinds)}", "leave it out")
    if extra_rows not in EXTRA_ROWS:
        raise UsageError(option("extra-rows"), f"must be {' or '.join(EXTRA_ROWS)}, got {extra_rows!r}")
    asked = AttachRequest(os.fsdecode(where), name, kind, column, mask_values, ignore_id, extra_rows, classes, frame)
    found = read_predictions(asked, opened) if kind in PREDICTED else read_attached(asked, opened)
    if found.recipe is None and not found.classes and not isinstance(found.values, list) and not _is_array(found):
        raise BadInput(where, f"has values of {found.chunk(0, 1).dtype}", DTYPES)
    kind = kind or next(name for name, one in KINDS.items() if one.takes(found))
    if not KINDS[kind].takes(found):
        raise BadInput(where, f"is not {KINDS[kind].wants}", KINDS[kind].step)
    with changing(opened) as work, naming(os.fsencode(where)):
        taken = read_beside(SidecarList, opened.path, opened.manifest)
        check_name(opened, name, taken)
        progress.stage("attaching", len(opened), "records")
        names = file_names(name, kind, newest_number(opened.path, opened.manifest))
        dtype, shape, files = KINDS[kind].write(work, names, found, len(opened), progress)
        facts = SidecarFacts(name, kind, dtype, shape, tuple(files), *_spec_facts(found))
        publish_sidecars(opened, work, (*(taken.sidecars if taken else ()), facts))
    return AttachReport(
        opened.path, name, kind, dtype, shape, facts.text, len(opened), facts.bytes, found.joined, found.notes,
        time.monotonic() - started,
    )  # fmt: skip


def _spec_facts(found: Attached) -> tuple[Any, ...]:
    if (recipe := found.recipe) is None:
        return "", found.classes
    return recipe.encode, recipe.spec.classes, recipe.spec.ignore, recipe.spec.channels


def detach(pack: AnyPath, name: str) -> DetachReport:
    """Remove what was attached to a pack under a name.

    Args:
        pack: The folder of the pack.
        name: What it is called.

    Returns:
        What was removed.

    Raises:
        UsageError: The pack is at a URL, or has nothing of this name.
        DamagedPack: The list of what was attached is damaged.
        StorageError: A file cannot be removed.
    """
    opened = open_local_pack(pack)
    with changing(opened) as work:
        taken = read_beside(SidecarList, opened.path, opened.manifest)
        facts = None if taken is None else taken.get(name)
        if taken is None or facts is None:
            has = ", ".join(one.name for one in taken.sidecars) if taken else "nothing"
            raise UsageError(opened.path, f"has no sidecar {printable(name)}", f"attached to it: {has}")
        publish_sidecars(opened, work, [one for one in taken.sidecars if one.name != name])
    return DetachReport(opened.path, name, facts.bytes)


def open_local_pack(pack: AnyPath) -> Pack:
    """Return a pack beside which something is to be. Raise UsageError if it is at a URL, or an old version."""
    return open_pack(check_newest(pack, "packer attach"))


def check_name(pack: Pack, name: str, taken: SidecarList | None) -> None:
    """Raise UsageError if a pack with the sidecars `taken` cannot have another one of this name."""
    try:
        check_sidecar_name(name, pack.manifest.parts, pack.manifest.fields)
    except ValueError as error:
        raise UsageError(option("as"), str(error), "choose another name") from None
    if taken is not None and taken.get(name) is not None:
        step = f"packer detach {printable(pack.path)} {name}, or choose another name"
        raise UsageError(pack.path, f"has a sidecar {name} already", step)


@contextmanager
def changing(pack: Pack) -> Iterator[str]:
    """Yield a folder for new files, which is removed at the end; no other process changes the sidecars meanwhile."""
    target = os.path.join(pack.path, "sidecars")
    with in_place(), storage_errors(pack.path), growing_folder(target, "attach", "attach or packer detach") as work:
        yield work


def publish_sidecars(pack: Pack, work: str, sidecars: Sequence[SidecarFacts]) -> None:
    """Move new files into the pack, write the list, and remove what is not in it."""
    listed = SidecarList(rows_digest(pack.manifest), tuple(sorted(sidecars, key=lambda one: one.name)))
    with held_signals():
        forget_list(pack.path, pack.manifest, SidecarList.NAME)
        for name in os.listdir(work):
            os.replace(os.path.join(work, name), os.path.join(pack.path, name))
        sync_path(pack.path)
        if sidecars:
            listed.write(pack.path)
        else:
            remove(os.path.join(pack.path, SidecarList.NAME))
            sync_path(pack.path)  # without the list the files are nothing, whichever of them are left
        kept = {file.name for file in listed.files} if sidecars else set()
        kept |= files_of_versions(pack.path, numbers_in(pack.path))
        gone = [name for name in os.listdir(pack.path) if SIDECAR_FILE.fullmatch(name) and name not in kept]
        for name in gone:
            remove(os.path.join(pack.path, name))
        sync_path(pack.path)


# -- kinds


def _is_array(found: Attached) -> bool:
    return not isinstance(found.values, list) and str(found.chunk(0, 1).dtype.newbyteorder("=")) in ITEM_BYTES


def _is_text(found: Attached) -> bool:
    return isinstance(found.values, list) and all(
        isinstance(text, str) for one in found.values for text in (one if isinstance(one, list) else [one])
    )


Written = tuple[str, tuple[int, ...], list[SidecarFile]]
"""dtype and shape of what a record has, and the files."""


def write_array(work: str, names: Sequence[str], found: Attached, records: int, progress: Progress) -> Written:
    """Write a .npy file."""
    first = found.chunk(0, 1)
    dtype, shape = first.dtype.newbyteorder("="), tuple(first.shape[1:])
    if not first.size:
        raise BadInput("", f"would have rows of shape {shape}, which hold nothing", "attach another array")
    values, step = found.values, max(1, CHUNK_BYTES // first.nbytes)
    is_same = (
        isinstance(values, np.memmap) and found.rows is None and values.flags.c_contiguous and first.dtype == dtype
    )
    with new_sidecar_file(work, names[0]) as file, open(values.filename if is_same else os.devnull, "rb") as source:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (records, *shape)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, records, step):
            rows = min(step, records - start)
            place = (values.offset + start * first.nbytes, rows * first.nbytes) if is_same else None
            if place is None or not file.copy(source.fileno(), *place):
                chunk = np.ascontiguousarray(found.chunk(start, start + rows), dtype)
                file.write(chunk.reshape(-1).view(np.uint8).data)
            progress.advance(rows)
        return str(dtype), shape, [file.sealed()]


def _write_lines(work: str, names: Sequence[str], found: Attached, records: int, progress: Progress) -> Written:
    """Write a file with a line of JSON for each record, and a .npy file with the place where each line begins."""
    several = _is_text(found) and any(isinstance(one, list) for one in found.values)

    def lines(start: int, stop: int) -> list[bytes]:
        values = [[one] if several and isinstance(one, str) else one for one in _as_list(found.chunk(start, stop))]
        try:
            return [BY_KIND["json"].encode(one, "json") + b"\n" for one in values]
        except (TypeError, ValueError) as error:
            of = f" in {printable(found.column)}" if found.column else ""
            problem = f"has a value{of} that JSON cannot hold: {error}"
            raise BadInput("", problem, "write it as text or numbers, or attach another column") from None

    return "", (-1,) if several else (), write_rows(work, names, records, lines, CHUNK_ROWS, progress)


def _write_pixels(work: str, names: Sequence[str], found: Attached, records: int, progress: Progress) -> Written:
    """Write a file with the bytes of each record, and a .npy file with the place where these begin."""
    assert found.recipe is not None
    return found.recipe.spec.dtype, (), write_rows(work, names, records, found.chunk, CHUNK_PIXELS, progress)


def _write_boxes(work: str, names: Sequence[str], found: Attached, records: int, progress: Progress) -> Written:
    """Write a file with the boxes of each record, which may be none, and a .npy file with the place of the first."""
    return "", (), write_rows(work, names, records, found.chunk, CHUNK_ROWS, progress)


def write_rows(
    work: str, names: Sequence[str], records: int, rows: Callable[[int, int], list[bytes]], step: int,
    progress: Progress,
) -> list[SidecarFile]:  # fmt: skip
    """Write a file with the bytes of each record, of which `rows` returns some, and one of where these begin."""
    ends = np.zeros(records + 1, np.int64)
    with new_sidecar_file(work, names[0]) as file, new_sidecar_file(work, names[1]) as offsets:
        for start in range(0, records, step):
            made = rows(start, min(start + step, records))
            file.write(b"".join(made))
            ends[start + 1 : start + 1 + len(made)] = list(map(len, made))
            progress.advance(len(made))
        np.save(offsets, np.cumsum(ends))
        return [file.sealed(), offsets.sealed()]


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else list(values.tolist())


@dataclass(frozen=True, slots=True)
class SidecarKind:
    """A kind of what is attached."""

    wants: str
    takes: Callable[[Attached], bool]
    write: Callable[[str, Sequence[str], Attached, int, Progress], Written]
    step: str = f"leave out {option('kind')}, or name another {option('column')}"
    """If the values are not of the kind."""


_PIXELS = SidecarKind(
    "a folder with a picture for each image", lambda found: found.recipe is not None, _write_pixels,
    "save one file for each image, of its name, and give their folder",
)  # fmt: skip
KINDS = {
    "array": SidecarKind("an array of numbers, the same shape for each record", _is_array, write_array),
    "text": SidecarKind("text", _is_text, _write_lines),
    "json": SidecarKind("JSON", lambda found: True, _write_lines),
    **dict.fromkeys(OF_PIXELS, _PIXELS),
    "boxes": SidecarKind("predicted boxes", lambda found: bool(found.classes), _write_boxes),
    "labels": SidecarKind("predicted classes", lambda found: bool(found.classes), write_array),
}
"""Kinds by name; the first that takes the values is that of values for which none is given."""
COMPARED = ("boxes", "labels", "mask")
"""The kinds that `packer stats` compares with labels."""
