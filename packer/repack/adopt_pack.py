"""The manifest and the indexes of adopted files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import packer
from packer.errors import NoLabel, UsageError, option, printable
from packer.format.index import PART_COLUMNS, batch_of, write_index
from packer.format.lists import MOST_IN_MANIFEST, Skipped
from packer.format.manifest import FileEntry, Manifest, Origin, ShardEntry, of_parts
from packer.format.pack_paths import INDEX_SUFFIX
from packer.images.masks import MaskValues
from packer.model.annotation import PartSpec
from packer.model.annotation_columns import column, present
from packer.model.fields import CLASS_IDS, FIELDS, OBJECTS
from packer.packing.build_options import BuildOptions
from packer.packing.class_map import NOTHING_LEFT, NOTHING_LEFT_STEP, ClassMap
from packer.packing.input_table import Inputs
from packer.packing.make_record import rejected
from packer.packing.partition import mark_missing_labels, no_objects, renumbered
from packer.packing.publish import Output
from packer.packing.resolve import ClassIds, similar_names
from packer.packing.resume import library_versions
from packer.repack.adopt_file import FileJob, FileResult
from packer.repack.formats import NO_MASKS
from packer.repack.index_columns import recount
from packer.repack.pack_classes import PackClasses
from packer.sources.mask_files import MASK
from packer.sources.mask_values import with_ignored
from packer.sources.paths import MOST_CLASSES, as_text


def manifest_of(
    options: dict[str, Any],
    kind: str,
    classes: tuple[str, ...],
    results: list[FileResult],
    inputs: Inputs,
    parts: Sequence[PartSpec] = (),
) -> Manifest:
    """Return the manifest without what follows from the indexes.

    Args:
        options: What affects the records.
        kind: The format of the files.
        classes: Class names in id order.
        results: What was found in each file.
        inputs: The lists of rejected, skipped and changed inputs.
        parts: What `parts_in` returns.
    """
    fields = set().union(*(result.fields for result in results))
    counts = Counter(inputs.counts)
    counts.update(rejected=len(inputs.rejected), skipped=len(inputs.skipped), found=0, packed=0)
    if inputs.changed:
        counts["changed"] = len(inputs.changed)
    return Manifest(
        container=kind,
        encoding="copy",
        mode="rgb",
        dtype=None,
        shape=None,
        classes=classes,
        fields=tuple(sorted(fields)),
        records=0,
        counts=dict(counts),
        class_counts={},
        options=dict(sorted({"labels": [kind], "encode": "copy", "mode": "rgb", **options}.items())),
        shards=(),
        rejected=tuple(islice(inputs.rejected, MOST_IN_MANIFEST)),
        notes=(*inputs.notes, *similar_names(classes)),
        tags=next((result.tags for result in results if result.tags), ()),
        packer=packer.__version__,
        libraries=library_versions(),
        **of_parts(parts),
    )


def parts_in(
    results: Sequence[FileResult], jobs: Sequence[FileJob], classes: tuple[str, ...], ignore_id: int | None
) -> tuple[PartSpec, ...]:
    """Return the masks of the images; the names are those of their ids if the images have no other labels.

    Raises:
        UsageError: They are read in some of the files only.
    """
    if not any(result.masks for result in results):
        return ()
    for result, job in zip(results, jobs, strict=True):
        for name, obstacle in result.obstacles.items() if not result.masks else ():
            problem = f"{printable(name)}: {obstacle}; masks of other files are read"
            raise UsageError(job.path, problem, f"leave all out: {option('mask', NO_MASKS)}")
    is_labeled = any(result.fields for result in results)
    values = with_ignored(MaskValues(() if is_labeled else classes), ignore_id)
    dtype = "uint16" if values.most > 255 or any(result.has_deep_masks for result in results) else "uint8"
    return (PartSpec(MASK, "mask", dtype, values.classes, values.ignore),)


def with_shards(
    manifest: Manifest, paths: list[str], results: list[FileResult], tables: list[Any], output: Output
) -> Manifest:
    """Write the indexes, and return the manifest with them."""
    shards: list[ShardEntry] = []
    linked: dict[str, str] = {}
    origins: list[Origin] = []
    names = Counter(os.path.basename(path).lower() for path in paths)
    parent = os.path.dirname(output.path)
    for number, (path, result, table) in enumerate(zip(paths, results, tables, strict=True)):
        if not len(table):
            continue
        name = os.path.basename(path)
        name = name if names[name.lower()] == 1 else f"{number:05d}-{name}"
        index_path = os.path.join(output.folder, f"shard-{number:05d}{INDEX_SUFFIX}")
        index = write_index(index_path, batch_of(index_path, table))
        shards.append(ShardEntry(len(table), FileEntry(name, result.bytes, result.sha256), index))
        below = path.startswith(f"{parent.rstrip('/')}/")
        linked[name] = os.path.relpath(path, output.path) if below else path
        origins.append(Origin("adopt", os.path.basename(path), result.sha256))
    manifest = recount(manifest, shards, (table for table in tables if len(table)))
    raw = [np.asarray(column(table, "encoding")) == 0 for table in tables]
    if any(flags.any() for flags in raw):
        if not all(flags.all() for flags in raw):
            raise UsageError(paths[0], "holds raw arrays and encoded images", "write them to files of their own")
        manifest = replace(manifest, encoding="raw", mode=_mode_of(manifest))
    return replace(manifest, linked=linked, made_from=tuple(origins))


def _mode_of(manifest: Manifest) -> str:
    """Return the mode that raw images are of."""
    if manifest.dtype != "uint8" or manifest.shape is None or manifest.shape[2] not in (1, 3):
        return "unchanged"
    return "gray" if manifest.shape[2] == 1 else "rgb"


def classes_of(
    results: Sequence[FileResult], jobs: Sequence[FileJob], fixed: bool
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Return all class names in id order, and for each file the id of each of its class names.

    Numbers stay the ids that they are in the files. Names are sorted by byte, after those that files declare in order.

    Raises:
        UsageError: Two files number classes differently.
    """
    if fixed:
        classes = jobs[0].classes or ()
        return classes, [np.array([classes.index(name) for name in result.names], np.int64) for result in results]
    declared = [result.declared for result in results if result.declared is not None]
    names = {name for result in results for name in result.names}
    numbers = all(name.isascii() and name.isdigit() and str(int(name)) == name for name in names)
    if numbers and not declared:
        titled = (number for result in results for number in result.titles)
        highest = max((*map(int, names), *titled), default=-1)
        order = {str(number): number for number in range(min(highest + 1, MOST_CLASSES))}
        classes = _titled(results, jobs, len(order))
    else:
        known = ClassIds()
        for name in sorted(names):
            known.id_of(name, jobs[0].path)
        classes, _ = known.final(declared)
        order = {name: number for number, name in enumerate(classes)}
    return classes, [np.array([order[name] for name in result.names], np.int64) for result in results]


def new_classes(options: BuildOptions, classes: tuple[str, ...], results: Sequence[FileResult]) -> PackClasses | None:
    """Return the classes that the options ask for; None if these stay.

    Raises:
        UsageError: An option names a class that no label has, or there are numbers or masks instead of names.
    """
    if (class_map := ClassMap.of(options)) is None:
        return None
    if options.classes is not None:
        problem = "is for the names in the files, but --classes says what their numbers mean"
        raise UsageError(class_map.option, problem, "leave out one of them")
    if any(result.masks for result in results) and not any(result.fields for result in results):
        step = "adopt the files without it, and convert the pack with it"
        raise UsageError(class_map.option, "changes no masks in files of other tools", step)
    class_map.check(classes)
    return PackClasses(class_map, classes, {})


def _titled(results: Sequence[FileResult], jobs: Sequence[FileJob], count: int) -> tuple[str, ...]:
    """Return the names of `count` numbered classes: those in the files, else their numbers."""
    titles: dict[int, str] = {}
    for result, job in zip(results, jobs, strict=True):
        for number, name in result.titles.items():
            if titles.setdefault(number, name) != name:
                problem = f"class {number} is {printable(name)}, but {printable(titles[number])} in another file"
                raise UsageError(job.path, problem, "pass --classes=FILE, or --columns=label=FIELD")
    classes: list[str] = []
    seen: set[str] = set()
    for number in range(count):
        name = titles.get(number, str(number))
        classes.append(name if name not in seen else f"{name} ({number})")  # ImageNet has two cranes
        seen.add(classes[-1])
    return tuple(classes)


def final_tables(
    results: Sequence[FileResult],
    jobs: Sequence[FileJob],
    ids: Sequence[Any],
    inputs: Inputs,
    missing: str,
    new: PackClasses | None = None,
) -> Iterator[Any]:
    """Yield the table of each file with the final class ids, without the images that lack a label if others have one.

    Args:
        results: What was found in each file.
        jobs: The files.
        ids: For each file, the final id of each of its classes.
        inputs: Receives the images that are left out.
        missing: What becomes of an image without a label: error, empty or skip.
        new: The classes that those are to have in place of these ids.
    """
    labels = [f.name for f in FIELDS if f.says and any(f.name in result.fields for result in results)]
    has_masks = any(result.masks for result in results)
    for job, of_file in zip(jobs, ids, strict=True):
        table = _with_final_ids(job.table, of_file)
        if new is not None and len(table):
            found, stay = new.taken(table, "empty", inputs.skipped)  # of other policies, the images are bad inputs
            table = mark_missing_labels(pa.Table.from_batches([found.batch()]).filter(pa.array(stay)).combine_chunks())
            if (emptied := found.emptied[stay]).any():
                table = _without_labels(table, ~emptied, missing, inputs, True, NOTHING_LEFT)
        if labels and len(table) and not (there := _labeled(table, labels)).all():
            table = _without_labels(table, there, missing, inputs, "boxes" in labels)
        if has_masks and len(table) and not (there := np.asarray(column(table, f"{MASK}_size")) >= 0).all():
            table = _without_labels(table, there, missing, inputs, False, "no mask")
        yield table if has_masks else table.drop_columns([f"{MASK}_{name}" for name in PART_COLUMNS])


def _with_final_ids(path: str, ids: NDArray[np.int64]) -> Any:
    """Return the table that a worker wrote, with the final class ids."""
    with pa.memory_map(os.fsencode(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    table = table.combine_chunks()
    for name in CLASS_IDS:
        place = table.schema.get_field_index(name)
        if len(table) and table.column(name).null_count < len(table):
            array = renumbered(table.column(name).chunk(0), ids)
            table = table.set_column(place, table.schema.field(place), array)
    return table


def _labeled(table: Any, fields: Sequence[str]) -> NDArray[np.bool_]:
    """Return which images have one of these fields, bool (n,)."""
    flags = [present(table, name) for name in fields]
    return np.asarray(np.logical_or.reduce(flags))


def _without_labels(
    table: Any, there: NDArray[np.bool_], policy: str, inputs: Inputs, boxes: bool, fault: str = "no label"
) -> Any:
    """Return the table without the images that have no label (or with no objects in them), which are listed."""
    missing = ~there
    inputs.counts["missing_labels"] += int(missing.sum()) if policy == "empty" else 0
    if policy == "empty":
        for name in OBJECTS if boxes else ():
            place = table.schema.get_field_index(name)
            table = table.set_column(
                place, table.schema.field(place), no_objects(table.column(name).combine_chunks(), missing)
            )
        return table
    paths: Any = column(table, "path")
    for row in np.flatnonzero(missing).tolist():
        path = bytes(paths[row])
        if policy == "skip":
            inputs.skipped.add(Skipped(as_text(path), fault))
        else:
            step = NOTHING_LEFT_STEP if fault == NOTHING_LEFT else "add it, or pass --missing-labels=skip"
            error = NoLabel("", f"has {fault}", step)
            inputs.rejected.add(rejected(path, error))
    return mark_missing_labels(table.filter(pa.array(there)).combine_chunks())
