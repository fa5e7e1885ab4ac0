"""Masks that a column of a list names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat

from packer.errors import UsageError, option
from packer.sources.by_stem import Matches
from packer.sources.list_source import ListSource, lists_near
from packer.sources.mask_files import MaskLayout, are_masks, layouts_of, mark_of
from packer.sources.paths import as_bytes, as_text, file_of, folder_of, some_paths, spread
from packer.sources.source import LOOKS, SourceOptions, Tree
from packer.stores import joined


def masks_in_lists(tree: Tree, specs: Sequence[str], options: SourceOptions) -> MaskLayout | None:
    """Return the masks in a column of lists, those of ``--labels`` or found by auto; None if there are no such lists.

    Raises:
        UsageError: A list that the user gives names masks, but none is there.
    """
    if "auto" in specs:
        near = (joined(tree.root, path) for path in lists_near(tree))
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
    by_name = layouts_of(path for path in tree.images if path not in set(masks))
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
