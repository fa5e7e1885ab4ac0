"""Masks in a column: of a list, which names them, or of Parquet, which holds them beside the images."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat

from packer.errors import UsageError, option
from packer.sources.by_stem import Matches
from packer.sources.list_source import ListSource, lists_near
from packer.sources.mask_files import MaskLayout, are_masks, layouts_of, mark_of
from packer.sources.open_images import MASKS as OBJECT_MASKS
from packer.sources.open_images import kind_of
from packer.sources.parquet_file import ParquetFile, mask_prefix, parquet_files, stem_folder
from packer.sources.parquet_source import layout_of
from packer.sources.paths import as_bytes, as_text, file_of, folder_of, some_paths, spread
from packer.sources.source import LOOKS, SourceOptions, Tree
from packer.stores import joined


def masks_in_parquet(tree: Tree, specs: Sequence[str], where: str | None) -> list[MaskLayout]:
    """Return the masks of each column of masks in Parquet files, the likeliest first; `where` before them.

    Args:
        tree: The source.
        specs: The values of ``--labels``.
        where: The value of ``--mask``.
    """
    found: dict[str, MaskLayout] = {}
    label = next((spec[len("parquet:") :] for spec in specs if spec.startswith("parquet:")), None)
    for path in parquet_files(tree) if tree.members is not None else ():
        folder = stem_folder(path) + b"/" if path else b""
        with ParquetFile.of(tree, path) as file:
            columns = file.mask_columns
            has_labels = True
            with suppress(UsageError):  # which the source raises again
                meaning = layout_of(file, label)
                has_labels = bool(meaning.label or meaning.tags or meaning.objects or meaning.values)
        for column in columns:
            prefix = folder + mask_prefix(column)
            masks = tuple(image for image in tree.images if image.startswith(prefix))
            label_of = {folder + mask[len(prefix) :]: mask for mask in masks}
            before = found.get(column, MaskLayout(as_bytes(column), (), Matches(), has_labels=has_labels))
            before.matches.label_of.update(label_of)
            found[column] = replace(before, masks=(*before.masks, *masks), first=before.first or prefix)
    every = frozenset(mask for layout in found.values() for mask in layout.masks)
    names = sorted(found, key=lambda name: name != where)
    return [
        replace(found[name], all_masks=every, others=tuple(as_bytes(other) for other in names if other != name))
        for name in names
    ]


def masks_in_lists(tree: Tree, specs: Sequence[str], options: SourceOptions) -> MaskLayout | None:
    """Return the masks in a column of lists, those of ``--labels`` or found by auto; None if there are no such lists.

    Raises:
        UsageError: A list that the user gives names masks, but none is there.
    """
    if "auto" in specs:
        near = (joined(tree.root, path) for path in lists_near(tree) if kind_of(tree, path) != OBJECT_MASKS)
        every = (_masks_in(tree, path, options, is_auto=True) for path in near)
    else:
        given: list[bytes] = []
        with suppress(UsageError):  # of a file that is not there, the source says so
            given += (file_of(tree, "list", spec[len("list:") :]) for spec in specs if spec.startswith("list:"))
        texts = chain(() if options.columns else options.columns_of_lists, repeat(options.columns))
        every = (_masks_in(tree, path, replace(options, columns=next(texts))) for path in given)
    found = [each for each in every if each is not None]
    if not found:
        return None
    matches = Matches(step="correct the list, or add the mask")
    for _, its, _ in found:
        matches.label_of |= its.label_of
        matches.refused |= its.refused
    masks = tuple(sorted({*matches.label_of.values()}))
    folder, ending = mark_of(masks[0])
    first = (folder or folder_of(masks[0])) + b"/" + (b"*" + ending if ending else b"")
    by_name = layouts_of([path for path in tree.images if path not in set(masks)])
    all_masks = frozenset(masks).union(*(layout.masks for layout in by_name)) - matches.label_of.keys()
    lists = [path for path, *_ in found]
    return MaskLayout(
        as_bytes(some_paths(lists)), masks, matches, tuple(layout.where for layout in by_name), all_masks, first,
        frozenset(lists), any(has_labels for *_, has_labels in found),
    )  # fmt: skip


def _masks_in(
    tree: Tree, path: bytes, options: SourceOptions, is_auto: bool = False
) -> tuple[bytes, Matches, bool] | None:
    """Return a list, its masks, and whether it has other labels; None if it has no column of masks."""
    columns = ListSource.columns_of(tree, path, options.columns)
    if columns is None or "mask" not in columns.head:
        return None
    try:
        found = ListSource(tree, replace(options, file=as_text(path), split=None)).masks()
    except UsageError:
        if is_auto:
            return None
        raise
    few = Matches({image: found.label_of[image] for image in spread(list(found.label_of), LOOKS)})
    if is_auto and not are_masks(tree, MaskLayout(path, (), few)):
        return None
    if not found.label_of:
        problem = next(iter(found.refused.values()), "has a column of masks, but names none")
        raise UsageError(path, f"an image {problem}", f"correct the paths, or skip it: {option('columns', 'path _')}")
    return tree.below(path) or path, found, columns.has_labels
