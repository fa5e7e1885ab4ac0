"""Problems of classes and files: names that mean the same, few images, equal files with different labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural, printable
from packer.model.annotation_columns import Ragged
from packer.model.fields import LISTS, Field
from packer.repack.index_columns import RecordGroups, equal_files, items_of
from packer.stats.columns import digests, other_ids, value_columns
from packer.stats.problems.problem import (
    CHECK,
    EXAMPLES,
    NOTE,
    WRONG,
    DataProblem,
    Example,
    ProblemColumns,
    distinct,
    list_text,
    usual,
)

RARE = 10
"""Objects below which a class is rare, if it has less than a quarter of the mean, too."""
FEWEST = 30
PUNCTUATION = re.compile(r"(?P<sign>[+#*%]|^-(?=\d)|(?<=^\w)-$)|(?P<between>(?<=\d)[\W_]+(?=\d))|[\W_]")
SIZE_FACTOR, ASPECT_FACTOR, DEVIATIONS = 3.0, 3.0, 6.0


def class_problems(columns: ProblemColumns) -> Iterator[DataProblem]:
    """Yield the problems of classes."""
    if not columns.classes or not {"label", "box_labels"} & columns.fields:
        return
    counts = np.stack([_counts(columns, *bounds) for bounds in _bounds(columns)])
    total = counts.sum(axis=0)
    names = [f"{name} ({count:,})" for name, count in zip(columns.classes, total.tolist(), strict=True)]
    yield from _other_ids(columns)
    yield from _alike(columns, total, names)
    yield from _missing(columns, counts)
    masked = {printable(name) for facts in columns.pack.manifest.masks.values() for name in facts.classes}
    empty = [i for i in np.flatnonzero(total == 0).tolist() if columns.classes[i] not in masked]
    rare = np.flatnonzero((total > 0) & (total < RARE) & (total < total.mean() / 4))
    if len(rare):
        rare = rare[np.argsort(total[rare], kind="stable")]
        yield columns.problem(
            ("rare-class", NOTE, "Classes with very few objects"),
            f"{plural(len(rare), 'class has', 'classes have')} fewer than {RARE} objects, where the mean is "
            f"{total.mean():,.0f}: {list_text([names[i] for i in rare.tolist()])}. Add more, merge them with another "
            "class, or draw them more often (BalancedSampler).",
            _records_of(columns, rare), len(rare), partial(_classes_text, columns, set(rare.tolist())),
        )  # fmt: skip
    if empty:
        yield columns.problem(
            ("empty-class", NOTE, "Classes without objects"),
            f"{len(empty):,} of {plural(len(columns.classes), 'class', 'classes')} never "
            f"{'occurs' if len(empty) == 1 else 'occur'}: {list_text([columns.classes[i] for i in empty], 12)}.",
            np.zeros(0, np.int64), len(empty),
        )  # fmt: skip


def _bounds(columns: ProblemColumns) -> list[tuple[int, int]]:
    """Return the first record of each pack, and the end."""
    ends = np.cumsum([len(pack) for pack in columns.pack.packs]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _counts(columns: ProblemColumns, first: int, stop: int) -> NDArray[np.int64]:
    """Return the number of images and boxes of each class in a range of records."""
    found = np.zeros(len(columns.classes), np.int64)
    if "label" in columns.fields:
        labels = columns.labels[first:stop]
        found += np.bincount(labels[(labels >= 0) & (labels < len(found))], minlength=len(found))
    if "box_labels" in columns.fields:
        labels = columns.box_classes[int(columns.firsts[first]) : int(columns.firsts[stop])]
        found += np.bincount(labels[labels >= 0], minlength=len(found))
    return found


def _records_of(columns: ProblemColumns, ids: NDArray[Any]) -> NDArray[np.int64]:
    """Return the records that have any of these classes."""
    records = []
    if "label" in columns.fields:
        records.append(np.flatnonzero(np.isin(columns.labels, ids)))
    if "box_labels" in columns.fields:
        records.append(columns.records_of(np.flatnonzero(np.isin(columns.box_classes, ids))))
    return distinct(np.concatenate(records))


def _classes_text(columns: ProblemColumns, ids: set[int], record: int) -> str:
    annotation = columns.pack.annotation(record)
    labels = [] if annotation.box_labels is None else annotation.box_labels.tolist()
    return list_text([columns.classes[i] for i in dict.fromkeys([annotation.label, *labels]) if i in ids], 3)


def plain_name(name: str) -> str:
    """Return a name without case, spaces, punctuation and the ending of a plural.

    Signs stay (A+ and A-, C and C++, 3 and -3), and what divides numbers (1.1 and 11).
    """
    plain = PUNCTUATION.sub(lambda found: found["sign"] or ("." if found["between"] else ""), name.strip()).casefold()
    if len(plain) > 4 and plain.endswith("ies"):
        return plain[:-3] + "y"
    return plain[:-1] if len(plain) > 3 and plain.endswith("s") and not plain.endswith("ss") else plain


def _alike(columns: ProblemColumns, total: NDArray[np.int64], names: list[str]) -> Iterator[DataProblem]:
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(columns.classes):
        if plain := plain_name(name):
            groups.setdefault(plain, []).append(i)
    alike = [sorted(ids, key=lambda i: -total[i]) for ids in groups.values() if len(ids) > 1]
    if alike:
        rarer = {i for ids in alike for i in ids[1:]}
        pairs = [" = ".join(names[i] for i in ids) for ids in alike]
        yield columns.problem(
            ("class-names", WRONG, "Classes whose names differ only in spelling"),
            f"{'; '.join(pairs[:6])}{'; ...' if len(pairs) > 6 else ''}: case, spaces, punctuation or the plural. "
            "If they mean the same, give them one name. Shown are the records of the rarer names.",
            _records_of(columns, np.array([*rarer])), len(alike), partial(_classes_text, columns, rarer),
        )  # fmt: skip


def _other_ids(columns: ProblemColumns) -> Iterator[DataProblem]:
    """Yield the names that are numbered differently by two packs: what is learned of one is wrong for the other."""
    found = other_ids([pack.classes for pack in columns.pack.packs])
    if not found:
        return
    parts = []
    for name, ids in found.items():
        numbers = ", ".join(f"{i} in {pack}" for pack, i in zip(columns.pack_names, ids, strict=True) if i is not None)
        parts.append(f"{printable(name)} is {numbers}")
    records = _records_of(columns, np.array([columns.pack.classes.index(name) for name in found]))
    yield columns.problem(
        ("class-ids", WRONG, "Other ids of the same names"),
        f"{list_text(parts)}. A model that is trained on one pack is measured with the ids of the other. Build them "
        "again with one class list: packer build packs all splits of SRC, --classes PACK takes the ids of PACK.",
        records, len(found),
    )  # fmt: skip


def _missing(columns: ProblemColumns, counts: NDArray[np.int64]) -> Iterator[DataProblem]:
    """Yield classes that one of several packs has, and another does not."""
    if len(counts) < 2:
        return
    labeled = np.array([bool({"label", "box_labels"} & {*pack.manifest.fields}) for pack in columns.pack.packs])
    lacking = (counts == 0) & (counts.sum(axis=0) > 0) & labeled[:, None]  # a pack without labels says nothing
    ids = np.flatnonzero(lacking.any(axis=0))
    if not len(ids):
        return
    parts = []
    for name, row in zip(columns.pack_names, lacking, strict=True):
        if row.any():
            parts.append(f"{name} lacks {list_text([columns.classes[i] for i in np.flatnonzero(row).tolist()])}")
    yield columns.problem(
        ("class-in-one-pack", CHECK, "Classes that not all packs have"),
        f"{'; '.join(parts)}. A class that is only in the pack for validation cannot be learned; one that is only in "
        "the pack for training is not measured.",
        _records_of(columns, ids), len(ids), partial(_classes_text, columns, set(ids.tolist())),
    )  # fmt: skip


def image_problems(columns: ProblemColumns) -> Iterator[DataProblem]:
    """Yield images without objects, and images of an unusual size or shape."""
    lists = [field.name for field in LISTS if field.moves and field.name in columns.fields]
    bare = np.ones(len(columns.pack), np.bool_)
    for name in lists:
        bare &= np.asarray(columns.ragged(name).lengths) == 0
    if "label" in columns.fields:
        bare &= columns.labels < 0
    if "tags" in columns.fields:
        tags = columns.ragged("tags")
        flags = np.asarray(tags.flat()).reshape(-1, max(1, len(columns.pack.manifest.tags)))
        bare[np.flatnonzero(tags.lengths)[flags.any(axis=1)]] = False  # a record may lack tags, and then has no flags
    if (lists or columns.fields) and bare.any() and not bare.all():
        records = np.flatnonzero(bare)
        title = "Images without objects" if "boxes" in lists else "Images without labels"
        yield columns.problem(
            ("no-object", NOTE, title),
            f"{plural(len(records), 'image has', 'images have')} no label at all ({len(records) / len(bare):.1%}). "
            "Good as background; if objects can be seen in them, their labels are missing.",
            records,
        )  # fmt: skip
    yield from _sizes(columns)


def _sizes(columns: ProblemColumns) -> Iterator[DataProblem]:
    width, height = columns.sizes
    if columns.pack.manifest.shape is not None or len(width) < FEWEST:
        return
    wide, high = np.log(np.maximum(width, 1)), np.log(np.maximum(height, 1))
    away = np.zeros(len(width), np.float32)
    for values, factor in (((wide + high) / 2, SIZE_FACTOR), (wide - high, ASPECT_FACTOR)):
        median, limit = usual(values, factor, DEVIATIONS)
        np.maximum(away, np.abs(values - median) / limit, out=away)
    found = np.flatnonzero(away > 1)
    if len(found):
        found = found[np.argsort(-away[found], kind="stable")]
        yield columns.problem(
            ("image-size", CHECK, "Images of an unusual size or shape"),
            f"{plural(len(found), 'image')} of a size or a width / height far from the median of all "
            f"({np.median(width):.0f} x {np.median(height):.0f} px). Often an icon, a screenshot or a panorama.",
            found, None, lambda i: f"{width[i]:.0f} x {height[i]:.0f} px",
        )  # fmt: skip


SAME_PLACE = 0.01
"""Boxes and points that differ by less, as a share of the image's sides, count as equal."""
FAR = 1e9
"""Stands for infinity, whose square cannot be computed with."""


def file_problems(columns: ProblemColumns) -> Iterator[DataProblem]:
    """Yield the problems of equal files."""
    equal = equal_files(digests(columns.pack))
    if not equal.groups:
        return
    kinds, places = differences(columns, equal)
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


def _of_groups(equal: RecordGroups, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    return equal.records[chosen[equal.group_of]]


def _conflicts(
    columns: ProblemColumns, equal: RecordGroups, kinds: NDArray[np.bool_], places: NDArray[np.bool_]
) -> DataProblem:
    groups = np.concatenate([np.flatnonzero(kinds), np.flatnonzero(places & ~kinds)])
    has_values, has_classes = "value" in columns.fields, bool({"label", "tags", "box_labels"} & columns.fields)
    what = " or ".join(["classes"] * (has_classes or not has_values) + ["values"] * has_values)
    parts = [plural(int(kinds.sum()), "file has", "files have") + f" different {what}"] if kinds.any() else []
    if (moved := int((places & ~kinds).sum())) > 0:
        parts.append(plural(moved, "file has", "files have") + " equal classes in different places")
    examples = []
    for group in groups[:EXAMPLES].tolist():
        members = equal.listed(group)
        texts = list(dict.fromkeys(label_text(columns, record) for record in members))
        others = members[1:]
        detail = " / ".join(texts[:4]) if len(texts) > 1 else f"{texts[0]}, in different places"
        paths = list_text([columns.example(record, "").path for record in others], 2)
        examples.append(columns.example(members[0], f"{detail} (equal to {paths})"))
    return DataProblem(
        "label-conflict", WRONG, "Equal images with different labels",
        f"The same file was packed more than once, and its labels contradict each other: {', '.join(parts)}. At most "
        "one version is right: correct the labels, or exclude the wrong ones.",
        len(groups), equal.records[items_of(equal.starts, groups)], tuple(examples),
    )  # fmt: skip


def label_text(columns: ProblemColumns, record: int) -> str:
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
    if annotation.value is not None:
        parts += [f"{number:.6g}" for number in annotation.value.tolist()]
    return list_text(parts, 4) or "no label"


def _leaks(
    columns: ProblemColumns, equal: RecordGroups, leaked: NDArray[np.bool_], pack_of: NDArray[np.int64]
) -> DataProblem:
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
    return DataProblem(
        "leak", WRONG, "Images in more than one pack",
        f"{plural(int(leaked.sum()), 'file is', 'files are')} in several of the packs: {', '.join(shares)}. If one "
        "pack is for training and another for validation, results look better than they are: exclude the images from "
        "one of them.",
        int(leaked.sum()), _of_groups(equal, leaked), tuple(examples),
    )  # fmt: skip


def _share(count: int, of: int) -> str:
    return f"{count / of:.1%}" if count * 1000 >= of else "below 0.1%"


def _duplicates(columns: ProblemColumns, equal: RecordGroups, chosen: NDArray[np.bool_], surplus: int) -> DataProblem:
    examples: list[Example] = []
    for group in np.flatnonzero(chosen)[:EXAMPLES].tolist():
        members = equal.listed(group)
        others = list_text([columns.example(record, "").path for record in members[1:]], 3)
        examples.append(columns.example(members[0], f"equal to {others}"))
    groups = int(chosen.sum())
    return DataProblem(
        "duplicate", CHECK, "Images packed more than once",
        f"{plural(groups, 'file was', 'files were')} packed more than once, with equal labels: "
        f"{plural(surplus, 'record')} too many. Such images count more than others, and a random split puts "
        "copies into both parts.",
        groups, _of_groups(equal, chosen), tuple(examples),
    )  # fmt: skip


def differences(columns: ProblemColumns, equal: RecordGroups) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the groups whose records differ in classes or values, and those that differ in places in the image.

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
    for values in value_columns(columns.pack).values():
        records, firsts, groups = _having(columns, equal, "value")
        numbers = np.nan_to_num(values[records], nan=np.inf)
        classes[groups[numbers != numbers[firsts]]] = True
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
    columns: ProblemColumns, equal: RecordGroups, field: Field, weights: NDArray[np.float64]
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
    columns: ProblemColumns, equal: RecordGroups, field: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the records of packs with a field, the place of the first of each one's group, and its group."""
    has = np.array([field in pack.manifest.fields for pack in columns.pack.packs])
    chosen = has[columns.pack_numbers(equal.records)]
    groups = equal.group_of[chosen]
    return equal.records[chosen], np.searchsorted(groups, groups), groups


def _items(offsets: NDArray[Any], records: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the items of these records, and the place among the records that each belongs to."""
    return items_of(offsets, records), np.repeat(np.arange(len(records)), np.diff(offsets)[records])


def _one_size(columns: ProblemColumns, records: NDArray[np.int64], firsts: NDArray[np.int64]) -> NDArray[np.bool_]:
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
