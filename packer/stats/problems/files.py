"""Equal files: with different labels, in two packs, or packed more than once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural, printable
from packer.model.fields import LISTS, Field
from packer.model.ragged import Ragged
from packer.stats.duplicates import EqualFiles, digests, equal_files
from packer.stats.problems.base import CHECK, EXAMPLES, WRONG, Columns, Example, Problem, items_of, list_text

SAME_PLACE = 0.01
"""Boxes and points that differ by less, as a share of the image's sides, count as equal."""
FAR = 1e9
"""Stands for infinity, whose square cannot be computed with."""


def file_problems(columns: Columns) -> Iterator[Problem]:
    """Yield the problems of equal files."""
    equal = equal_files(digests(columns.pack))
    if not equal.groups:
        return
    kinds, places = _differences(columns, equal)
    conflicting = kinds | places
    pack_of = columns.pack_numbers(equal.records)
    first, last = (by.reduceat(pack_of, equal.starts[:-1]) for by in (np.minimum, np.maximum))
    if conflicting.any():
        yield _conflicts(columns, equal, kinds, places)
    if (leaked := first != last).any():
        yield _leaks(columns, equal, leaked, pack_of)
    # in one pack: those of a leak count if a pack has several of them
    repeated = np.zeros(equal.groups, np.bool_)
    same = (pack_of[1:] == pack_of[:-1]) & (equal.group_of[1:] == equal.group_of[:-1])
    repeated[equal.group_of[1:][same]] = True
    if (repeated & ~conflicting).any():
        yield _duplicates(columns, equal, repeated & ~conflicting, int((same & ~conflicting[equal.group_of[1:]]).sum()))


def _of_groups(equal: EqualFiles, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    return equal.records[chosen[equal.group_of]]


def _conflicts(columns: Columns, equal: EqualFiles, kinds: NDArray[np.bool_], places: NDArray[np.bool_]) -> Problem:
    groups = np.concatenate([np.flatnonzero(kinds), np.flatnonzero(places & ~kinds)])
    parts = [plural(int(kinds.sum()), "file has", "files have") + " different classes"] if kinds.any() else []
    if (moved := int((places & ~kinds).sum())) > 0:
        parts.append(plural(moved, "file has", "files have") + " equal classes in different places")
    examples = []
    for group in groups[:EXAMPLES].tolist():
        members = equal.listed(group)
        texts = list(dict.fromkeys(_label_text(columns, record) for record in members))
        others = members[1:]
        detail = " / ".join(texts[:4]) if len(texts) > 1 else f"{texts[0]}, in different places"
        paths = list_text([columns.example(record, "").path for record in others], 2)
        examples.append(columns.example(members[0], f"{detail} (equal to {paths})"))
    return Problem(
        "label-conflict", WRONG, "Equal images with different labels",
        f"The same file was packed more than once, and its labels contradict each other: {', '.join(parts)}. At most "
        "one version is right: correct the labels, or exclude the wrong ones.",
        len(groups), equal.records[items_of(equal.starts, groups)], tuple(examples),
    )  # fmt: skip


def _label_text(columns: Columns, record: int) -> str:
    """Return the classes of a record: ``cat``, or ``2 car, 1 bus``."""
    annotation = columns.pack.annotation(record)
    parts = [] if annotation.label is None else [columns.class_name(annotation.label)]
    if annotation.box_labels is not None:
        ids, counts = np.unique(annotation.box_labels, return_counts=True)
        parts += [f"{many} {columns.class_name(i)}" for i, many in zip(ids.tolist(), counts.tolist(), strict=True)]
    elif annotation.boxes is not None:
        parts.append(plural(len(annotation.boxes), "box"))
    if annotation.tags is not None:
        names = columns.pack.manifest.tags
        parts += [printable(name) for name, has in zip(names, annotation.tags.tolist(), strict=True) if has]
    return list_text(parts, 4) or "no label"


def _leaks(columns: Columns, equal: EqualFiles, leaked: NDArray[np.bool_], pack_of: NDArray[np.int64]) -> Problem:
    packs, names = columns.pack.packs, columns.pack_names
    inside = leaked[equal.group_of]
    counts = np.bincount(pack_of[inside], minlength=len(packs)).tolist()
    shares = [
        f"{plural(count, 'record')} of {name} ({_share(count, len(pack))})"
        for count, name, pack in zip(counts, names, packs, strict=True)
        if count
    ]
    examples = []
    for group in np.flatnonzero(leaked)[:EXAMPLES].tolist():
        members = equal.listed(group)
        other = next(i for i in members if columns.pack_numbers(np.array([i])) != pack_of[equal.starts[group]])
        number = int(columns.pack_numbers(np.array([other]))[0])
        detail = f"also in {names[number]}, as {columns.example(other, '').path}"
        examples.append(columns.example(members[0], detail))
    return Problem(
        "leak", WRONG, "Images in more than one pack",
        f"{plural(int(leaked.sum()), 'file is', 'files are')} in several of the packs: {', '.join(shares)}. If one "
        "pack is for training and another for validation, results look better than they are: exclude the images from "
        "one of them.",
        int(leaked.sum()), _of_groups(equal, leaked), tuple(examples),
    )  # fmt: skip


def _share(count: int, of: int) -> str:
    return f"{count / of:.1%}" if count * 1000 >= of else "below 0.1%"


def _duplicates(columns: Columns, equal: EqualFiles, chosen: NDArray[np.bool_], surplus: int) -> Problem:
    examples: list[Example] = []
    for group in np.flatnonzero(chosen)[:EXAMPLES].tolist():
        members = equal.listed(group)
        others = list_text([columns.example(record, "").path for record in members[1:]], 3)
        examples.append(columns.example(members[0], f"equal to {others}"))
    groups = int(chosen.sum())
    return Problem(
        "duplicate", CHECK, "Images packed more than once",
        f"{plural(groups, 'file was', 'files were')} packed more than once, with equal labels: "
        f"{plural(surplus, 'record')} too many. Such images count more than others, and a random split puts "
        "copies into both parts.",
        groups, _of_groups(equal, chosen), tuple(examples),
    )  # fmt: skip


def _differences(columns: Columns, equal: EqualFiles) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the groups whose records differ in classes, and those that differ in places in the image.

    Records of a pack without a field say nothing about it. The objects of a record are compared in any order, by sums
    over them in which each class has a random weight.
    """
    classes, places = np.zeros(equal.groups, np.bool_), np.zeros(equal.groups, np.bool_)
    if "label" in columns.fields:
        records, firsts, groups = _having(columns, equal, "label")
        labels = columns.labels[records]
        classes[groups[labels != labels[firsts]]] = True
    if "tags" in columns.fields:
        records, firsts, groups = _having(columns, equal, "tags")
        tags = columns.ragged("tags")
        flags = np.asarray(tags.flat()).reshape(-1, max(1, len(columns.pack.manifest.tags)))
        row = np.where(tags.lengths > 0, np.cumsum(tags.lengths > 0) - 1, len(flags))[records]  # the last: no tags
        flags = np.concatenate([flags, np.zeros_like(flags[:1])])
        classes[groups[(flags[row] != flags[row[firsts]]).any(axis=1)]] = True
    weights = np.random.default_rng(0).uniform(1, 2, len(columns.classes) + 1)
    if {"boxes", "box_labels"} <= columns.fields:
        records, firsts, groups = _having(columns, equal, "box_labels")
        items, owners = _items(columns.firsts, records)
        sums = np.bincount(owners, weights[columns.box_classes[items]], len(records))
        classes[groups[_one_size(columns, records, firsts) & (np.abs(sums - sums[firsts]) > 1e-9 * (1 + sums))]] = True
        if not all("box_labels" in pack.manifest.fields for pack in columns.pack.packs):
            weights[:] = 1
    for field in LISTS:
        if field.moves and field.name in columns.fields:
            places[_in_other_places(columns, equal, field, weights)] = True
    return classes, places


def _in_other_places(
    columns: Columns, equal: EqualFiles, field: Field, weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the groups whose records differ in where a field's boxes or points are."""
    records, firsts, groups = _having(columns, equal, field.name)
    column = columns.ragged(field.name)
    values: Any = column.values
    items, owners = _items(column.offsets, records)
    turn = _turns(owners)
    weight = np.ones(len(items))
    if field.per_box:
        weight = weights[columns.box_classes[columns.firsts[records[owners]] + turn]]
    if isinstance(values, Ragged):
        sizes = np.diff(values.offsets)[items]
        items, objects = items_of(values.offsets, items), np.repeat(np.arange(len(items)), sizes)
        owners, weight, turn, values = owners[objects], weight[objects], _turns(objects), values.values
    if field.flips:  # the order of points matters
        weight = weight * (1 + np.modf(0.618 * turn)[0])
    points = np.asarray(values)[items].astype(np.float64)
    for axis in range(0, points.shape[1] - 1, 2):  # x and y, of the other corner of a box too
        points[:, axis : axis + 2] /= columns.sizes[:, records].T[owners]
    return groups[_one_size(columns, records, firsts) & _differ(points, owners, weight, firsts)]


def _turns(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each item among those of its owner; owners ascend."""
    return np.arange(len(owners)) - np.searchsorted(owners, owners)


def _having(
    columns: Columns, equal: EqualFiles, field: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the records of packs with a field, the place of the first of each one's group, and its group."""
    has = np.array([field in pack.manifest.fields for pack in columns.pack.packs])
    chosen = has[columns.pack_numbers(equal.records)]
    groups = equal.group_of[chosen]
    return equal.records[chosen], np.searchsorted(groups, groups), groups


def _items(offsets: NDArray[Any], records: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the items of these records, and the place among the records that each belongs to."""
    return items_of(offsets, records), np.repeat(np.arange(len(records)), np.diff(offsets)[records])


def _one_size(columns: Columns, records: NDArray[np.int64], firsts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which images have the size of the first one: boxes of one that was cropped otherwise may differ."""
    sizes = columns.sizes[:, records]
    return np.asarray((sizes == sizes[:, firsts]).all(axis=0))


def _differ(
    values: NDArray[Any], owners: NDArray[Any], weights: NDArray[Any], firsts: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return which rows differ from the first of their group in the sums of values, or of their squares."""
    count = np.bincount(owners, minlength=len(firsts))
    found = np.asarray(count != count[firsts])
    finite = np.nan_to_num(values.astype(np.float64), posinf=FAR, neginf=-FAR)
    for column in finite.T:
        for power in (column, column * column):
            sums = np.bincount(owners, power * weights, len(firsts))
            found |= np.abs(sums - sums[firsts]) > SAME_PLACE
    return found
