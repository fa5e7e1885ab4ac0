"""The packs of a source that has splits: one for each, with the same classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from packer.containers import container_of
from packer.errors import NoLabel, PackerError, UsageError, plural
from packer.format.manifest import MANIFEST_NAME, PARTIAL_SUFFIX, Manifest
from packer.packing.journal import Journal
from packer.packing.options import BuildOptions
from packer.packing.parts import parts_in
from packer.packing.plan import Plan
from packer.packing.publish import JOURNAL
from packer.packing.resume import asked_of, versions
from packer.packing.scan import Listed, list_source
from packer.packing.store_journal import StoreJournal
from packer.packing.table import Inputs
from packer.sources import splits_of_labels
from packer.sources.base import SourceOptions
from packer.sources.paths import as_bytes
from packer.sources.splits import splits_in as named_in
from packer.sources.walk import Run, run_here
from packer.stores import open_store
from packer.stores.base import NoObject

TEST = b"test"


class _NeedsScratch(Exception):
    """The source must be written out before its files are known."""


class HasSplits(Exception):
    """The source has splits, which was found while it was planned as one pack."""

    def __init__(self, splits: Sequence[str]) -> None:
        super().__init__(splits)
        self.splits = tuple(splits)


def list_with_splits(options: BuildOptions, run: Run = run_here) -> tuple[Listed | None, tuple[str, ...]]:
    """Return the files of the source, and its splits; (None, ()) if it must be decompressed before it can be listed.

    Raises:
        UsageError: It cannot be listed.
    """

    def scratch(name: str) -> str:
        raise _NeedsScratch(name)

    try:
        listed = list_source(options, run, scratch)
        return listed, splits_in(options, listed)
    except _NeedsScratch:
        return None, ()


def splits_in(options: BuildOptions, listed: Listed) -> tuple[str, ...]:
    """Return the splits of a source, two or more; () if all is one pack, as with ``--split`` and ``--like``."""
    if options.split is not None or options.like is not None or not listed.tree.images:
        return ()
    columns = options.columns[0] if len(options.columns) == 1 else None
    with suppress(PackerError):  # the build will raise it
        return splits_of_labels(
            options.labels, listed.tree, SourceOptions(None, columns, None, options.labels == ("auto",))
        )
    return ()


def is_test_without_labels(options: BuildOptions, inputs: Inputs) -> bool:
    """Return whether the images are those of a test split, which all lack a label; of other splits that is an error."""
    if options.missing_labels != "error" or inputs.rows or not inputs.bad:
        return False
    return TEST in {name for name, _ in named_in(as_bytes(options.one_split or ""))} and set(
        inputs.rejected.counts
    ) == {NoLabel.reason}


def of_each(options: BuildOptions, splits: Sequence[str]) -> list[BuildOptions]:
    """Return the options for the pack of each split: NAME-train.lmdb for ``--out NAME.lmdb``."""
    every = []
    for split in splits:
        out, quarantine = options.out, options.quarantine
        if out is not None:
            out = out.rstrip("/") or out
            stem, extension = os.path.splitext(out) if container_of(out) else (out, "")
            out = f"{stem}-{split}{extension}"
        if quarantine is not None:
            quarantine = os.path.join(quarantine, split)
        every.append(replace(options, split=split, out=out, quarantine=quarantine))
    return every


def published_before(every: Sequence[BuildOptions]) -> set[str]:
    """Return the splits whose packs an interrupted build of the same splits has published, if others are left.

    Packs of splits are published when all are packed: if the work of one is unfinished, and another one is there, the
    build was interrupted in between.
    """
    if every[0].overwrite:
        return set()
    there = {options.split or "" for options in every if _is_published(options)}
    left = [options for options in every if options.split not in there]
    return there if there and left and all(map(_is_packed, left)) else set()


def in_no_pack(plans: Sequence[Plan]) -> str:
    """Return a note on the images of the source that none of the packs of its splits takes; "" if there are none."""
    options, inputs = plans[0].options, plans[0].inputs
    count = inputs.images - sum(plan.inputs.taken for plan in plans)
    if len(plans) < 2 or count <= 0 or options.include or options.exclude:
        return ""
    return f"{plural(count, 'image is', 'images are')} in none of the splits (packer info --skipped lists them)"


def check_classes(published: Sequence[Manifest], classes: Sequence[tuple[str, ...]]) -> None:
    """Raise UsageError if the labels have changed since an interrupted build published the packs of some splits."""
    if published and {manifest.classes for manifest in published} != {*classes}:
        problem = "has other classes since its first packs were published"
        raise UsageError("SRC", problem, "build all again with --overwrite")


def _is_published(options: BuildOptions) -> bool:
    if not options.to_store:
        return os.path.isfile(os.path.join(options.output, MANIFEST_NAME))
    try:
        open_store(options.output).size(MANIFEST_NAME)
    except NoObject:
        return False
    return True


def _is_packed(options: BuildOptions) -> bool:
    """Return whether a build with these options has left finished shards."""
    head = {"asked": asked_of(options), "made_with": versions()}
    if options.to_store:
        return bool(StoreJournal(open_store(options.output), head).finished)
    partial = os.path.abspath(options.output) + PARTIAL_SUFFIX
    folders = [os.path.join(partial, part.folder) for part in parts_in(partial)] if options.finish else [partial]
    journals = [Journal(os.path.join(folder, JOURNAL)) for folder in folders]
    return any(journal.head == head and journal.finished for journal in journals)
