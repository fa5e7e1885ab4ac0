"""Reads the source once: its images, their sizes, their labels, and which of them are bad.

The result is one compact table, so that labels are parsed once, mistakes show before hours of packing, and workers
can share the table as a mapped file.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, cast, overload

import numpy as np

from packer.errors import BadInput, UsageError, as_options, option, printable
from packer.format.lists import Skipped
from packer.format.manifest import Rejected
from packer.format.pack_paths import MANIFEST_NAME, names_a_pack
from packer.images.image_headers import OnAnimation
from packer.model.annotation import Progress
from packer.packing.build_options import BuildOptions
from packer.packing.choose_images import choose_images, those_of
from packer.packing.class_map import ClassMap, changes_notes
from packer.packing.input_table import Inputs, InputTable, read_selection
from packer.packing.make_record import UNREAD, Headers, rejected, rejected_of_path
from packer.packing.option_table import TABLE
from packer.packing.partition import Partition, PartitionJob, make_partition, names_of, read_names, read_partition
from packer.packing.remembered import Seen
from packer.packing.resolve import ClassIds, has_only_label, read_classes, similar_names
from packer.sources import (
    NO_FILES,
    check_options,
    check_sources,
    joined,
    open_parts,
    open_source,
    recognize,
    with_masks,
)
from packer.sources.auto import left_unread, what_was_read
from packer.sources.by_stem import ByStemSource
from packer.sources.content_instead import content_instead
from packer.sources.mask_files import MaskSource
from packer.sources.part_files import mask_asked
from packer.sources.paths import as_text, file_of
from packer.sources.places import MemberPlaces, Scratch
from packer.sources.source import HAVE_COLUMNS, BaseSource, SourceOptions, Tree
from packer.sources.store_tree import find_store_tree
from packer.sources.tree import find_tree
from packer.sources.walk import Run, run_here
from packer.stores import is_url

MASK_OPTIONS = ("mask_values", "ignore_id", "mask_encode")
NO_NAMES = (
    "the masks have no names of classes: their values are taken as ids, and class_names.txt beside them would name "
    "them; if they are numbers of the objects in an image, --labels=instances packs a mask of each object instead"
)
IMAGES_A_JOB, MOST_IMAGES_A_JOB = 2048, 8192
JOBS = 256
"""From so many on, they become longer, up to MOST_IMAGES_A_JOB."""


class Listed(NamedTuple):
    """The files of a source, which the builds of all its splits share."""

    tree: Tree
    skipped: list[tuple[bytes, str]]
    names: dict[str, None]
    """The classes of all splits, if they are known: the first build reads them."""
    headers: Callable[[Sequence[bytes]], Headers] | None = None
    """Returns what stands for the headers of images whose files are not there, only their labels."""
    began_ns: int = 0
    """When the source began to be listed, in ns since the epoch."""
    only: Callable[[Sequence[BaseSource], Sequence[bytes]], Collection[bytes] | None] | None = None
    """Returns the images to read, of those that the options leave; it receives the sources, and these. None: all."""
    first: tuple[str, ...] = ()
    """Classes that come before all others."""


def list_source(
    options: BuildOptions, run: Run = run_here, scratch: Scratch | None = None, stamps: bool = False
) -> Listed:
    """List the files of the source.

    Args:
        options: What to build.
        run: Runs the jobs that list many folders.
        scratch: Where to decompress archives to. None: compressed archives are refused.
        stamps: Whether to ask for the times and sizes of files in a folder.

    Raises:
        UsageError: It cannot be listed, or is a pack.
    """
    began_ns = time.time_ns()
    if is_url(options.source):
        tree, skipped = find_store_tree(options.source, scratch, options.inventory)
        if MANIFEST_NAME.encode() in tree.files:
            raise UsageError(options.source, "is a pack, not a folder of images", "give the folder of its images")
    else:
        if names_a_pack(options.source):
            step = f"give the folder of its images; --like={printable(options.source)} takes its options"
            raise UsageError(options.source, "is a pack, not a folder of images", step)
        tree, skipped = find_tree(
            options.source, scratch=scratch, follow_links=options.follow_links, run=run, stamps=stamps
        )
    return Listed(tree, skipped, {}, began_ns=began_ns)


def read_inputs(
    options: BuildOptions,
    progress: Progress | None = None,
    run: Run = run_here,
    scratch: Scratch | None = None,
    folder: str | None = None,
    listed: Listed | None = None,
) -> Inputs:
    """Walk the source folder, read every image's header and every label.

    Args:
        options: What to build.
        progress: Receives the images that were read.
        run: Runs the jobs that list many folders, and read headers and labels; a build does it in its worker processes.
        scratch: Where to decompress archives to. None: compressed archives are refused.
        folder: Where to write the table. None: to a temporary folder that is removed with the inputs.
        listed: The files of the source. None: they are listed.

    Returns:
        The table of inputs and everything else that was found. Bad inputs are listed in `rejected`.

    Raises:
        UsageError: The source or its labels cannot be used at all.
    """
    listed = listed or list_source(options, run, scratch)
    tree, skipped, names, headers = listed[:4]
    if tree.members is not None and tree.members.scratch is not scratch:
        tree = replace(tree, members=replace(tree.members, scratch=scratch))
    members = tree.members if headers is None else None  # labels may be in an archive
    inputs = Inputs(archives=members.archives if members else ())
    inputs.in_store = members is not None and not inputs.archives
    inputs.seen = Seen.of(options.source, tree, listed.began_ns)
    faults = {path: fault for path, reason in skipped if (fault := rejected_of_path(path, reason)) is not None}
    if options.exclude is not None:
        inputs.left_out = read_selection(
            options.exclude, [*tree.images, *faults] if faults else tree.images, options.like
        )
        inputs.selections["exclude"] = inputs.left_out.content
    for path, reason in skipped:
        if path in faults:
            _reject(faults[path], inputs)
        else:
            inputs.skipped.add(Skipped(os.fsdecode(path), reason))
    if not tree.images:
        raise _no_images(options, tree, inputs)
    fixed = None if options.classes is None else read_classes(options.classes)
    class_map = ClassMap.of(options, fixed)
    tree, sources, siblings = _open_sources(tree, options, inputs, class_map)
    inputs.work_in(folder)
    table = InputTable(inputs)
    paths, others = choose_images(tree, sources, options, inputs, bool(siblings))
    if listed.only is not None:
        paths = those_of(paths, listed.only([*sources, *siblings], paths))
    inputs.images, inputs.taken = len(tree.images), len(paths)
    length = max(IMAGES_A_JOB, min(MOST_IMAGES_A_JOB, len(paths) // JOBS))
    every = range(-(-len(paths) // length))
    members = tree.members if headers is None else None  # decompressed meanwhile
    jobs = Jobs(paths, length, tree.root, members, options, fixed, class_map, table, sources, every, headers)
    _read_all(jobs, table, run, progress or Progress())
    if (fixed is None or class_map is not None) and options.one_split is not None and not names:
        elsewhere = replace(jobs, paths=others, numbers=range(-(-len(others) // length)))
        met = table.classes if class_map is None else dict.fromkeys(table.class_counts)
        names.update(met | _names_in(elsewhere, [*siblings, *sources], run))
    classes = _final_classes(jobs, names, [*sources, *siblings], inputs)
    table.finish(tuple(dict.fromkeys((*listed.first, *classes))))
    for source in sources:
        inputs.notes += source.notes
        inputs.flip_index = inputs.flip_index or source.flip_index
        inputs.tags = inputs.tags or source.tags or ()
        inputs.parts |= source.parts
    if listed.only is None:  # images that are few may have no labels
        _refuse_nothing(options, inputs, sources)
    inputs.notes += similar_names(inputs.classes)
    if options.labels == ("auto",) and inputs.notes:
        unread, inputs.chosen = left_unread(tree, sources), inputs.notes[0]
        if unread and not unread.startswith("0 "):
            inputs.chosen += f"; {unread}"
        inputs.notes[0] += what_was_read((inputs.rows, len(inputs.classes), *inputs.objects), unread)
    return inputs


def _no_images(options: BuildOptions, tree: Tree, inputs: Inputs) -> UsageError:
    """Return the error of a source that has no images."""
    also = "".join(f"; {fault.path} {fault.problem}" for fault in islice(inputs.rejected, 1))
    also = also or "".join(f"; {printable(row.path)}: {row.reason}" for row in islice(inputs.skipped, 1))
    also, step = content_instead(tree) or (also, "give the folder that holds the images")
    return UsageError(options.source, f"no images found{also}", step)


def _final_classes(jobs: Jobs, names: Iterable[str], sources: Sequence[BaseSource], inputs: Inputs) -> tuple[str, ...]:
    """Return the names of the classes in the order of their ids, and note what became of those that were renamed.

    Args:
        jobs: The jobs that have read the labels.
        names: The classes of all splits, as the labels call them.
        sources: The sources, and those of other splits.
        inputs: Receives what became of classes.

    Raises:
        UsageError: An option names a class that no label has.
    """
    class_map, met = jobs.class_map, jobs.table.classes
    lists = [source.classes for source in sources if source.classes is not None]
    if class_map is not None:
        masks = [source for source in sources if isinstance(source, MaskSource)]
        others = [source for source in sources if source.classes is not None and source not in masks]
        lists = [source.classes or () for source in others]
        known = Counter(jobs.table.class_counts)
        for of_one in (names, *lists, *(source.old_classes for source in masks)):
            known.update(dict.fromkeys(map(class_map.name_of, of_one), 0))
        if jobs.options.like is None:  # of which this source need not have all
            class_map.check({*known, *class_map.listed})
        inputs.class_changes = class_map.changes(known)
        inputs.notes += changes_notes(inputs.class_changes)
        lists = [*map(class_map.new_names, lists), *(source.classes for source in masks if source.classes is not None)]
        names = class_map.new_names(names)
    classes = ClassIds(jobs.classes)
    for name in met if jobs.classes is not None else (*met, *names):
        classes.id_of(name, "")
    return classes.final(lists)[0]


def _refuse_nothing(options: BuildOptions, inputs: Inputs, sources: Sequence[BaseSource]) -> None:
    """Raise UsageError if a kind of labels that was asked for finds no label of any image.

    A file of its own is a label of an image, even if it says that nothing is there.
    """
    of_stem = any(isinstance(source, ByStemSource) for source in sources)
    has_files = of_stem and inputs.counts["missing_labels"] < inputs.rows
    if not ({*options.labels} & {"auto", "none"} or inputs.bad or has_files or inputs.has_labels):
        kinds = " and ".join(map(printable, options.labels))
        step = f"choose another kind; {option('labels', 'none')} packs the images without labels"
        raise UsageError(option("labels", kinds), "finds no label of any image", step)


def _names_in(jobs: Jobs, sources: Sequence[BaseSource], run: Run) -> dict[str, None]:
    """Return the classes of images of other splits, of which only the labels are read.

    Class ids follow from the names of all splits, so that packs of two splits have the same.
    """
    if all(source.classes is not None for source in sources):
        return {}
    found: dict[str, None] = {}
    before = [dict(source.found or {}) for source in sources]
    for number, names in run(read_names, replace(jobs, sources=sources)):
        found |= names if names is not None else names_of(jobs[number].paths, sources)
    for source, known in zip(sources, before, strict=True):
        if source.found is not None:
            source.found = known
    return found


def _open_sources(
    tree: Tree, options: BuildOptions, inputs: Inputs, class_map: ClassMap | None
) -> tuple[Tree, list[BaseSource], list[BaseSource]]:
    """Return the tree without its masks, the sources, and those of other splits whose classes count."""
    base = SourceOptions(
        options.one_split, options.one_columns, None, options.labels == ("auto",),
        mask_values=options.mask_values, ignore_id=options.ignore_id, instance_masks=options.instance_masks,
        columns_of_lists=options.columns,
    )  # fmt: skip
    asked = mask_asked(options.mask, options.part)
    tree, parts = open_parts(options.part, tree, base, asked)
    specs, tree, masks, note, instances = with_masks(options.labels, tree, base, asked)
    others = tuple[str, ...]()
    if specs == ["auto"]:
        choice = recognize(tree, base)
        inputs.notes.append(f"{as_options(option('labels', printable(choice.spec)))}: {choice.why}")
        specs, others = [choice.spec], choice.others
    check_options(specs, base)
    sources_of = joined(specs)
    inputs.labels = tuple(spec.partition(":")[0] for spec in specs)
    files = [
        file if kind in NO_FILES else _path_as_recorded(tree, file)
        for kind, _, file in (spec.partition(":") for spec in specs)
    ]
    inputs.label_files = tuple(files) if any(files) else ()
    columns: Iterator[str | None] = iter(options.columns)
    sources: list[BaseSource] = []
    for spec, more_files in sources_of:
        of_list = (options.one_columns or next(columns, None)) if spec.partition(":")[0] in HAVE_COLUMNS else None
        source_options = replace(base, columns=of_list, more_files=more_files, rle_polygons=options.rle == "polygons")
        sources.append(open_source(spec, tree, source_options))
        if others and not getattr(sources[-1], "has_splits", True):  # the list itself is the split
            sources[-1] = open_source(spec, tree, replace(source_options, split=None, by_auto=False))
    if instances is not None:
        instances.take_classes(() if options.classes is None else read_classes(options.classes))
        inputs.labels = (*inputs.labels, "instances")
        sources.append(instances)
    if masks is not None:
        _add_masks(masks, sources, options, inputs, class_map)
    sources += parts
    for part in parts:
        if (
            class_map is not None
            and isinstance(part, MaskSource)
            and class_map.applies_to_masks(part.values.classes, False)
        ):
            part.rename(class_map.new_name)
    if inputs.label_files:  # one for each kind of labels
        inputs.label_files += ("",) * (len(inputs.labels) - len(inputs.label_files))
    inputs.mask_values = {name: one.values for one in sources if isinstance(one, MaskSource) for name in one.parts}
    has_values = inputs.mask_values or instances is not None
    given = [] if has_values else [name for name in MASK_OPTIONS if getattr(options, name) is not None]
    if given:
        of_maps = f"; of a map, {option('part')} says it: NAME=WHERE:map:N" if parts and given[0] == "ignore_id" else ""
        step = f"name them: {option('mask', 'DIR')}{of_maps}"
        raise UsageError(TABLE[given[0]].label, "is for masks, but there are none", step)
    inputs.notes += [note] if note else []
    check_sources(sources, None if others else options.one_split)
    of_all = replace(base, split=None)
    return tree, sources, [open_source(spec, tree, of_all) for spec in others]


def _add_masks(
    masks: MaskSource, sources: list[BaseSource], options: BuildOptions, inputs: Inputs, class_map: ClassMap | None
) -> None:
    """Add masks to the other sources; alone, their classes are those of the pack."""
    where, count = printable(masks.layout.where), len(masks.layout.matches.label_of)
    if options.labels == ("auto",):
        of = f"masks are those in {where}" if masks.layout.lists else as_options(option("mask", where))
        inputs.notes.insert(1 if sources else 0, f"{of}: {count:,} masks fit images")
    are_alone = masks.are_alone and "instances" not in inputs.labels
    if class_map is not None and class_map.applies_to_masks(masks.values.classes, are_alone):
        masks.rename(class_map.new_name)
    if are_alone:
        masks.take_classes(None if options.classes is None else read_classes(options.classes))
    if not masks.values.classes and options.mask_values is None:
        masks.notes.append(NO_NAMES)
    inputs.labels = (*inputs.labels, "masks")
    sources.append(masks)


def _path_as_recorded(tree: Tree, file: str) -> str:
    """Return a file as ``SRC/FILE`` if it is below the source, else its name: a pack does not say where it was made."""
    try:
        below = tree.below(file_of(tree, "", file))
    except UsageError:  # it is a format; of a missing file the source says so
        below = b""
    return f"SRC/{as_text(below)}" if below else os.path.basename(file)


@dataclass(frozen=True, slots=True)
class Jobs(Sequence[PartitionJob]):
    """The jobs that read the headers and labels of images; each is made when it is asked for."""

    paths: Sequence[bytes]
    length: int
    """Images of a job."""
    root: bytes
    members: MemberPlaces | None
    options: BuildOptions
    classes: Sequence[str] | None
    class_map: ClassMap | None
    table: InputTable
    sources: Sequence[BaseSource]
    numbers: range
    headers: Callable[[Sequence[bytes]], Headers] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> PartitionJob: ...
    @overload
    def __getitem__(self, index: slice) -> Jobs: ...
    def __getitem__(self, index: int | slice) -> PartitionJob | Jobs:
        if isinstance(index, slice):
            return replace(self, numbers=self.numbers[index])
        number, options, members = self.numbers[index], self.options, self.members
        paths = tuple(self.paths[number * self.length : (number + 1) * self.length])
        rows = [] if members is None else members.rows(paths)
        return PartitionJob(
            root=self.root,
            paths=paths,
            max_pixels=options.max_pixels,
            on_animation=cast(OnAnimation, options.on_animation),
            lenient=options.decoder == "lenient",
            archives=() if members is None else members.archives,
            places=None if members is None else members.places[rows],
            etags=tuple(members.etags[row] for row in rows) if members is not None and members.etags else None,
            options=options,
            classes=None if self.classes is None else tuple(self.classes),
            class_map=self.class_map,
            file=self.table.file_of(number),
            sources=self._sources_of(paths),
            known=None if self.headers is None else self.headers(paths),
        )

    def _sources_of(self, paths: tuple[bytes, ...]) -> tuple[BaseSource, ...] | None:
        """Return the sources with what they know of these images; None if one does not tell."""
        known = [source.for_images(paths) for source in self.sources]
        return tuple(source for source in known if source is not None) if None not in known else None


def _read_all(jobs: Jobs, table: InputTable, run: Run, progress: Progress) -> None:
    """Read the headers and labels of all images."""
    inputs, sources = table.inputs, jobs.sources
    late = 0
    while late < len(jobs) and (headers := _late(job := jobs[late], sources)) is not None:
        table.add(late, make_partition(job, headers, sources))
        progress.advance(len(job.paths))
        late += 1
    for later, answer in run(read_partition, jobs[late:]):
        number = late + later
        found = answer if isinstance(answer, Partition) else make_partition(jobs[number], answer, sources)
        for source, more in zip(sources, found.found, strict=True):
            if source.found is not None:
                source.found.update(more)
        table.add(number, found)
        progress.advance(min(jobs.length, len(jobs.paths) - number * jobs.length))
    for source in sources:
        for unmatched in source.unmatched_labels():
            _reject(rejected(os.fsencode(unmatched.where), unmatched), inputs)
    if inputs.left_out is not None and inputs.left_out.unmatched:
        inputs.notes.append(inputs.left_out.note)


def _late(job: PartitionJob, sources: Sequence[BaseSource]) -> Headers | None:
    """Return what stands for the headers of images that are opened by the shards only; None if they must be read.

    To open an object takes as long as to read it. Sizes are those of the listing, and what the shards need to know of
    the headers is the same for all images; labels must not depend on the size of the image.
    """
    if job.places is None or not is_url(job.root) or not job.options.plans_without_headers:
        return None
    if not all(_is_label_only(path, sources) for path in job.paths):
        return None
    facts = np.ones((len(job.paths), 4), np.int64)
    facts[:, 0], facts[:, 3] = job.places[:, 2], UNREAD
    return Headers(facts, {})


def _is_label_only(path: bytes, sources: Sequence[BaseSource]) -> bool:
    try:
        return has_only_label([source.annotate(path) for source in sources])
    except BadInput:
        return False


def _reject(fault: Rejected, inputs: Inputs) -> None:
    """List a bad input as rejected, or as skipped if ``--exclude`` names it."""
    if inputs.left_out is not None and inputs.left_out.names(os.fsencode(fault.path)):
        inputs.skipped.add(Skipped(fault.path, "excluded"))
    else:
        inputs.rejected.add(fault)
