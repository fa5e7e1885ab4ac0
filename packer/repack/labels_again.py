"""The labels of a source, read again for a pack of its images: what a new build would say of each record.

The source is read as a build reads it, with the options that made the pack. Files of images are read only to see that
they are those that were packed, and nothing is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packer.errors import BadInput, TooManyBad, UsageError, as_options, option, plural, printable
from packer.format.lists import Listing
from packer.format.manifest import Manifest, Rejected
from packer.images.image_headers import Header
from packer.images.resize import TargetSize
from packer.model.annotation import Int64, Progress
from packer.model.annotation_columns import Annotations, column
from packer.model.fields import BY_NAME, FIELD_NAMES, INSTANCES, annotation_arrays, texts_of
from packer.packing.bad_inputs import REMEDIES
from packer.packing.build_options import BuildOptions
from packer.packing.build_steps import local_pool, run_in
from packer.packing.input_table import Inputs
from packer.packing.make_record import PART_COLUMN, Headers, Recipe, resize_annotation, rows_of
from packer.packing.option_table import LABEL_OPTIONS, LABELS, OPTIONS
from packer.packing.partition import map_table, rows_at
from packer.packing.plan import InputSizes, recipe_of
from packer.packing.recorded import RESIZED_TWICE, options_like
from packer.packing.resume import recorded_options
from packer.packing.scan import Listed, list_source, read_inputs
from packer.repack.index_columns import label_array
from packer.repack.labels_of import NewLabels, identities, partners
from packer.repack.links import Source
from packer.sources.archives import add_folder
from packer.sources.paths import folder_of
from packer.sources.places import held_open
from packer.sources.walk import Run, run_here
from packer.system.child import Decoding, Report, unmarked

RECORDED = ("label_files", *(row.name for row in OPTIONS if row.section == LABELS))
"""The options that a pack has of its new labels."""
MASKS = "masks"
"""The kind of labels whose pictures are in the shards."""
SET = "extras: "
"""Begins a note on fields that `packer edit` has set."""
SHOWN = 8
ANY_IMAGE = Header("jpeg", 1, 1, 3, 8).code
"""Code of the header of an image of which only the size counts."""
ROWS_A_JOB = 1024
CHANGED_MEANWHILE = b"\xff" * 16
"""In place of the digest of a file that cannot be read: that of no image."""


def options_again(
    pack: Source, folder: str, labels: Sequence[str] = (), reading: Mapping[str, Any] | None = None
) -> BuildOptions:
    """Return the options that made a pack, to read the labels of a source again.

    Args:
        pack: The pack.
        folder: The source.
        labels: The kinds of labels. None given: those of the pack.
        reading: Other options that differ, by the names of `BuildOptions`.

    Raises:
        UsageError: An option does not fit, or a file that the pack was made with is not recorded.
    """
    given = {name: value for name, value in (reading or {}).items() if value not in (None, (), [], False)}
    if "classes" not in pack.manifest.options:  # ids are those of a new build, too
        given.setdefault("classes", None)
    if labels:
        recorded = pack.manifest.options.get("labels", [])
        kinds = {spec.partition(":")[0] for spec in labels}
        # pictures of masks are no images, whoever reads the labels beside them
        more = (MASKS,) if MASKS in recorded and not kinds & {"auto", MASKS} else ()
        given["labels"] = (*labels, *more)
    return options_like(pack.path, folder, **given)


def labels_again(pack: Source, options: BuildOptions, progress: Progress | None = None) -> NewLabels:
    """Read a source as a build does, and return its labels as they would be in the pack.

    Args:
        pack: The pack, whose images are not read.
        options: How to read the source (`options_again`).
        progress: Receives the images that were read, and compared.

    Raises:
        UsageError: The source cannot be read, has no labels, or the pack does not say how its images were resized.
        TooManyBad: A label of an image of the pack is bad.
    """
    told = progress or Progress()
    with TemporaryDirectory(prefix="packer-plan-") as scratch, local_pool(options) as pool:

        def unpacked(name: str) -> str:
            told.note(f"note: decompressing {printable(name)} once, to {printable(scratch)}")
            return os.path.join(scratch, f"{len(os.listdir(scratch))}.tar")

        told.stage("reading")
        run = run_in(pool)
        listed = list_source(options, run, unpacked)
        has_images = bool(listed.tree.images)
        inputs = read_inputs(options, told, run, unpacked, None, listed if has_images else _with_images(pack, listed))
        return labels_of_inputs(pack, options, inputs, run, told, has_images)


def labels_of_inputs(
    pack: Source,
    options: BuildOptions,
    inputs: Inputs,
    run: Run = run_here,
    progress: Progress | None = None,
    has_images: bool = True,
) -> NewLabels:
    """Return the labels of a source that was read as they would be in a pack.

    Args:
        pack: The pack, whose images are not read.
        options: How the source was read.
        inputs: What was found.
        run: Runs jobs that read files of images, to compare them with the digests in the pack.
        progress: Receives the images that were compared.
        has_images: Whether the source has images. If not, those of the pack count, by their paths.

    Raises:
        UsageError: There are no labels, or the pack does not say how its images were resized.
        TooManyBad: A label of an image of the pack is bad.
    """
    paths, digests = mine = identities(pack.tables)
    _check_resized(pack, inputs, has_images)
    hints = [*inputs.all_notes, *_bad_elsewhere(options, inputs, paths), *_of_parts(pack.manifest, options, inputs)]
    hints += _new_ids(pack, inputs.classes)
    if not has_images:
        hints.append(f"{printable(options.source)} has no images: labels are joined to records by path alone")
    hints += [f"{note}: not in the new labels" for note in pack.manifest.notes if note.startswith(SET)]
    left_out = {os.fsencode(row.path): row.reason for row in inputs.skipped}
    here = np.asarray(pc.is_in(inputs.table.column("path"), value_set=paths))
    work = _RowReader(options, inputs, run, progress or Progress(), has_images and digests.null_count < len(digests))
    tables, cropped = work.read(np.flatnonzero(here))
    others = _paths_without(tables, mine)
    new = int((~here).sum())
    if new and _lacks_any(mine, tables, left_out):  # files may have been moved
        more, count = work.read(np.flatnonzero(~here))
        tables, cropped, new = [*tables, *more], cropped + count, len(_paths_without(more, mine))
    if new:
        hints.append(f"{plural(new, 'image')} of {printable(options.source)} not in the pack: packer update adds them")
    known = set(paths.to_pylist()) if inputs.changed else set()
    return NewLabels(
        path=options.source,
        manifest=_manifest(pack.manifest, options, inputs, cropped),
        tables=tables,
        options=RECORDED,
        changed=[row for row in inputs.changed if os.fsencode(row.path) in known],
        hints=hints,
        left_out=left_out,
        others=frozenset(others),
        lacks="has no image {}",
        reason="its image is not in the source of its new labels",
        fitting="the pack was made with another size or fit than it records: build it again",
    )


def _lacks_any(mine: tuple[Any, Any], tables: Sequence[Any], left_out: Mapping[bytes, str]) -> bool:
    """Return whether a record has no label among these, and was not left out on purpose."""
    if not tables:
        return True
    missing = mine[0].filter(pa.array(partners(mine, identities(tables)) < 0))
    return any(path not in left_out for path in missing.to_pylist())


def _paths_without(tables: Sequence[Any], mine: tuple[Any, Any]) -> list[bytes]:
    """Return the paths of images that are none of the pack."""
    if not tables:
        return []
    theirs = identities(tables)
    found: list[bytes] = theirs[0].filter(pa.array(partners(theirs, mine) < 0)).to_pylist()
    return found


def _new_ids(pack: Source, classes: Sequence[str]) -> list[str]:
    """Return a note on the classes of the pack that have another id now, which a trained model would mistake."""
    old, names = pack.manifest.classes, {name: number for number, name in enumerate(classes)}
    moved = [
        f"{name} {number} -> {names[name]}" for number, name in enumerate(old) if names.get(name, number) != number
    ]
    gone = [name for name in old if name not in names]
    if not moved and not (gone and classes):
        return []
    what = [f"other ids: {_few(moved)}"] if moved else []
    what += [f"not in the labels: {_few(gone)}"] if gone else []
    return [printable(f"classes: {'; '.join(what)} ({as_options(option('classes', pack.path))} keeps all ids)")]


def _few(names: Sequence[str]) -> str:
    return ", ".join((*names[:SHOWN], *(("...",) if len(names) > SHOWN else ())))


def _with_images(pack: Source, listed: Listed) -> Listed:
    """Return the files of a source without images, with those of the pack as images, in their sizes there."""
    paths, _ = identities(pack.tables)
    widths, heights = (np.concatenate([np.asarray(column(t, n)) for t in pack.tables]) for n in ("width", "height"))
    ordered, first = np.unique(np.array(paths.to_pylist(), object), return_index=True)
    sizes = dict(zip(ordered.tolist(), zip(widths[first].tolist(), heights[first].tolist(), strict=True), strict=True))
    folders = set(listed.tree.folders)
    for path in ordered.tolist():
        add_folder(folders, folder_of(path))

    def headers(asked: Sequence[bytes]) -> Headers:
        return Headers(np.array([(0, *sizes[path], ANY_IMAGE) for path in asked], np.int64), {})

    return listed._replace(
        tree=replace(listed.tree, images=ordered.tolist(), folders=sorted(folders), image_folders=None), headers=headers
    )


def _check_resized(pack: Source, inputs: Inputs, has_images: bool) -> None:
    """Raise UsageError if labels have to move with the pixels, and it is not known how those were moved."""
    options = pack.manifest.options
    if not has_images and options.get("resize") is not None and (inputs.rejected or _moving(inputs.fields)):
        problem = "was resized, so that places in its images need their old sizes, but the source has no images"
        raise UsageError(pack.path, problem, "give the folder with the images and the labels")
    if RESIZED_TWICE in options and _moving(inputs.fields):
        problem = "was resized by a build, and again by packer convert: where its labels belong is not recorded"
        raise UsageError(pack.path, problem, "edit the pack that was converted, and convert that one")


def _moving(names: Iterable[str]) -> list[str]:
    """Return those of these fields that move with the pixels."""
    return [name for name in names if name in BY_NAME and (BY_NAME[name].moves or name == INSTANCES.name)]


def _bad_elsewhere(options: BuildOptions, inputs: Inputs, paths: Any) -> list[str]:
    """Return a note on bad inputs that are no images of the pack. Raise TooManyBad if others are."""
    if not inputs.rejected:
        return []
    known = set(paths.to_pylist())
    ours = [row for row in inputs.rejected if os.fsencode(row.path) in known]
    if ours:
        raise _bad_labels(options, Listing(Rejected, ours))
    first = next(iter(inputs.rejected))
    count = plural(len(inputs.rejected), "bad input", "bad inputs")
    return [f"{count} of no image of the pack, for example {printable(first.path)}: {first.problem}"]


def _bad_labels(options: BuildOptions, ours: Listing[Rejected]) -> TooManyBad:
    images = plural(len(ours), "image of the pack", "images of the pack")
    steps = ["correct it" if len(ours) == 1 else "correct them"]
    for reason, (what, given) in REMEDIES.items():
        if ours.counts[reason] and {name.replace("-", "_") for name in given} <= {*LABEL_OPTIONS, "missing_labels"}:
            steps.append(f"{what} with {' '.join(starmap(option, given.items()))}")
    reasons = [(reason, count, ours.examples[reason]) for reason, count in ours.counts.most_common()]
    error = TooManyBad(options.source, f"{images} cannot be labelled", ", or ".join(steps), tuple(ours), reasons)
    error.listed_by = (option("json"),)
    return error


def _of_parts(old: Manifest, options: BuildOptions, inputs: Inputs) -> list[str]:
    """Return notes on files of parts, which stay as they are in the shards. Raise UsageError if there is nothing else.

    Raises:
        UsageError: The source has no labels but these.
    """
    if not inputs.fields:
        problem, step = "has no labels of these images", f"name their kind and file: {option('labels', 'KIND:FILE')}"
        if inputs.parts:
            problem = f"has no labels but the files of {' and '.join(inputs.parts)}, which are in the shards"
            step = "build the pack again; packer attach adds masks and the like to a pack as it is"
        raise UsageError(options.source, problem, step)
    new = [name for name in inputs.parts if name not in old.parts]
    notes = [f"{' and '.join(old.parts)}: as in the pack: what is in files is not read again"] if old.parts else []
    return notes + ([f"{' and '.join(new)}: not in the pack; packer build packs them"] if new else [])


def _manifest(old: Manifest, options: BuildOptions, inputs: Inputs, cropped: int) -> Manifest:
    """Return the manifest of a pack with what a build of the same images says of their labels."""
    recorded, had_masks = recorded_options(options, inputs), MASKS in old.options.get("labels", ())
    kinds, files = recorded["labels"], recorded.get("label_files") or [""] * len(recorded["labels"])
    kept = [(kind, file) for kind, file in zip(kinds, files, strict=True) if kind != MASKS or had_masks]
    recorded["labels"] = [kind for kind, _ in kept]
    if "label_files" in recorded:
        recorded["label_files"] = [file for _, file in kept]
    counts = {name: count for name, count in inputs.counts.items() if count or name != "missing_labels"}
    kept_notes = [note for note in old.notes if note.startswith("skipped ")]  # all others are of what is read again
    return replace(
        old,
        classes=inputs.classes,
        fields=inputs.fields,
        tags=inputs.tags,
        flip_index=inputs.flip_index,
        counts={**counts, **({"boxes_cropped": cropped} if "boxes" in inputs.fields else {})},
        options=recorded,
        notes=tuple(dict.fromkeys((*inputs.all_notes, *kept_notes))),
    )


@dataclass(frozen=True, slots=True)
class RowsJob:
    """Some rows of a table of inputs, whose labels are to be moved as their images were."""

    table: str
    """Path of the mapped table."""
    numbers: Int64
    recipe: Recipe
    compared: bool
    """Whether to read the files for their digests; else these are zeros, which means that they are not known."""
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _RowReader:
    """Reads rows of a table of inputs as records of a pack."""

    options: BuildOptions
    inputs: Inputs
    run: Run
    progress: Progress
    compared: bool

    def read(self, numbers: Int64) -> tuple[list[Any], int]:
        """Return rows with the labels that a build stores, as tables, and the number of boxes that a crop leaves."""
        recipe = recipe_of(self.options, replace(self.inputs, parts={}))
        parts = [numbers[start : start + ROWS_A_JOB] for start in range(0, len(numbers), ROWS_A_JOB)]
        jobs = [RowsJob(self.inputs.file, part, recipe, self.compared) for part in parts]
        self.progress.stage("comparing", len(numbers))
        found: dict[int, tuple[Any, int]] = {}
        for number, made in self.run(labels_of_rows, jobs):
            found[number] = made
            self.progress.advance(len(parts[number]))
        ordered = [found[number] for number in sorted(found)]
        return [pa.Table.from_batches([batch]) for batch, _ in ordered], sum(cropped for _, cropped in ordered)


def labels_of_rows(job: RowsJob, report: Report | None = None, decoding: Decoding = unmarked) -> tuple[Any, int]:
    """Return rows with the labels that a build stores, as a record batch, and the number of boxes that a crop leaves.

    Its columns are path, digest of the file, height and width of the packed image, and those of annotations.
    """
    table = map_table(job.table)
    names = [name for name in table.column_names if not name.endswith(PART_COLUMN)]
    rows = rows_at(table.select(names), job.numbers)
    sizes = InputSizes(rows, job.recipe.resize)
    fields, cropped = _moved(rows, job.recipe.resize)
    digests = list(_digests(job.recipe, rows)) if job.compared else [bytes(16)] * len(rows)
    columns = {
        "path": rows.column("path").combine_chunks(),
        "source_xxh3": pa.array(digests, pa.binary(16)),
        "height": pa.array(sizes.height, pa.int32()),
        "width": pa.array(sizes.width, pa.int32()),
        **fields,
    }
    return pa.RecordBatch.from_pydict(columns), cropped


def _digests(recipe: Recipe, rows: Any) -> Iterator[bytes]:
    with held_open(recipe.archives) as archives:
        for _, read in replace(recipe, archives=archives).reads(rows_of(rows)):
            try:
                yield read().digest
            except BadInput:
                yield CHANGED_MEANWHILE


def _moved(rows: Any, resize: TargetSize | None) -> tuple[dict[str, Any], int]:
    """Return the columns of annotations in the frame of the resized images, and how many boxes a crop leaves out."""
    there = [name for name in FIELD_NAMES if name in rows.column_names]
    if resize is None or not _moving(there):
        columns = {name: rows.column(name).combine_chunks() for name in there}
        return columns if "label" in columns else {"label": label_array(np.full(len(rows), -1)), **columns}, 0
    before, moved, cropped = Annotations(rows), [], 0
    for number, (width, height) in enumerate(
        zip(*(rows.column(n).to_pylist() for n in ("width", "height")), strict=True)
    ):
        old = before[number]
        new = resize_annotation(old, resize, (width, height))
        if old.boxes is not None and new.boxes is not None:
            cropped += len(old.boxes) - len(new.boxes)
        moved.append(new)
    arrays = annotation_arrays(moved, list(map(texts_of, moved)))
    return dict(zip(FIELD_NAMES, arrays, strict=True)), cropped
