"""Classes and images: names that mean the same, classes without or with few objects, images without any."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural, printable
from packer.model.fields import LISTS
from packer.stats.columns import other_ids
from packer.stats.problems.base import CHECK, EXAMPLES, NOTE, WRONG, Columns, Problem, distinct, list_text, usual

RARE = 10
"""Objects below which a class is rare, if it has less than a quarter of the mean, too."""
FEWEST = 30
PUNCTUATION = re.compile(r"(?P<sign>[+#*%]|^-(?=\d)|(?<=^\w)-$)|(?P<between>(?<=\d)[\W_]+(?=\d))|[\W_]")
SIZE_FACTOR, ASPECT_FACTOR, DEVIATIONS = 3.0, 3.0, 6.0


def class_problems(columns: Columns) -> Iterator[Problem]:
    """Yield the problems of classes."""
    if not columns.classes or not {"label", "box_labels"} & columns.fields:
        return
    counts = np.stack([_counts(columns, *bounds) for bounds in _bounds(columns)])
    total = counts.sum(axis=0)
    names = [f"{name} ({count:,})" for name, count in zip(columns.classes, total.tolist(), strict=True)]
    yield from _other_ids(columns)
    yield from _alike(columns, total, names)
    yield from _missing(columns, counts)
    empty = np.flatnonzero(total == 0).tolist()
    rare = np.flatnonzero((total > 0) & (total < RARE) & (total < total.mean() / 4))
    if len(rare):
        rare = rare[np.argsort(total[rare], kind="stable")]
        records = _records_of(columns, rare)
        chosen = records[:EXAMPLES].tolist()
        yield Problem(
            "rare-class", NOTE, "Classes with very few objects",
            f"{plural(len(rare), 'class has', 'classes have')} fewer than {RARE} objects, where the mean is "
            f"{total.mean():,.0f}: {list_text([names[i] for i in rare.tolist()])}. Add more, merge them with another "
            "class, or draw them more often (BalancedSampler).",
            len(rare), records,
            tuple(columns.example(i, _classes_text(columns, i, set(rare.tolist()))) for i in chosen),
        )  # fmt: skip
    if empty:
        yield Problem(
            "empty-class", NOTE, "Classes without objects",
            f"{len(empty):,} of {plural(len(columns.classes), 'class', 'classes')} never "
            f"{'occurs' if len(empty) == 1 else 'occur'}: {list_text([columns.classes[i] for i in empty], 12)}.",
            len(empty), np.zeros(0, np.int64), (),
        )  # fmt: skip


def _bounds(columns: Columns) -> list[tuple[int, int]]:
    """Return the first record of each pack, and the end."""
    ends = np.cumsum([len(pack) for pack in columns.pack.packs]).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _counts(columns: Columns, first: int, stop: int) -> NDArray[np.int64]:
    """Return the number of images and boxes of each class in a range of records."""
    found = np.zeros(len(columns.classes), np.int64)
    if "label" in columns.fields:
        labels = columns.labels[first:stop]
        found += np.bincount(labels[(labels >= 0) & (labels < len(found))], minlength=len(found))
    if "box_labels" in columns.fields:
        labels = columns.box_classes[int(columns.firsts[first]) : int(columns.firsts[stop])]
        found += np.bincount(labels[labels >= 0], minlength=len(found))
    return found


def _records_of(columns: Columns, ids: NDArray[Any]) -> NDArray[np.int64]:
    """Return the records that have any of these classes."""
    records = []
    if "label" in columns.fields:
        records.append(np.flatnonzero(np.isin(columns.labels, ids)))
    if "box_labels" in columns.fields:
        records.append(columns.records_of(np.flatnonzero(np.isin(columns.box_classes, ids))))
    return distinct(np.concatenate(records))


def _classes_text(columns: Columns, record: int, ids: set[int]) -> str:
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


def _alike(columns: Columns, total: NDArray[np.int64], names: list[str]) -> Iterator[Problem]:
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(columns.classes):
        if plain := plain_name(name):
            groups.setdefault(plain, []).append(i)
    alike = [sorted(ids, key=lambda i: -total[i]) for ids in groups.values() if len(ids) > 1]
    if alike:
        records = _records_of(columns, np.array([i for ids in alike for i in ids[1:]]))
        rarer = {i for ids in alike for i in ids[1:]}
        pairs = [" = ".join(names[i] for i in ids) for ids in alike]
        yield Problem(
            "class-names", WRONG, "Classes whose names differ only in spelling",
            f"{'; '.join(pairs[:6])}{'; ...' if len(pairs) > 6 else ''}: case, spaces, punctuation or the plural. "
            "If they mean the same, give them one name. Shown are the records of the rarer names.",
            len(alike), records,
            tuple(columns.example(i, _classes_text(columns, i, rarer)) for i in records[:EXAMPLES].tolist()),
        )  # fmt: skip


def _other_ids(columns: Columns) -> Iterator[Problem]:
    """Yield the names that are numbered differently by two packs: what is learned of one is wrong for the other."""
    found = other_ids([pack.classes for pack in columns.pack.packs])
    if not found:
        return
    parts = []
    for name, ids in found.items():
        numbers = ", ".join(f"{i} in {pack}" for pack, i in zip(columns.pack_names, ids, strict=True) if i is not None)
        parts.append(f"{printable(name)} is {numbers}")
    records = _records_of(columns, np.array([columns.pack.classes.index(name) for name in found]))
    yield Problem(
        "class-ids", WRONG, "Other ids of the same names",
        f"{list_text(parts)}. A model that is trained on one pack is measured with the ids of the other. Build them "
        "again with one class list: packer build packs all splits of SRC, --classes PACK takes the ids of PACK.",
        len(found), records, tuple(columns.example(i, "") for i in records[:EXAMPLES].tolist()),
    )  # fmt: skip


def _missing(columns: Columns, counts: NDArray[np.int64]) -> Iterator[Problem]:
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
    records = _records_of(columns, ids)
    yield Problem(
        "class-in-one-pack", CHECK, "Classes that not all packs have",
        f"{'; '.join(parts)}. A class that is only in the pack for validation cannot be learned; one that is only in "
        "the pack for training is not measured.",
        len(ids), records,
        tuple(columns.example(i, _classes_text(columns, i, set(ids.tolist()))) for i in records[:EXAMPLES].tolist()),
    )  # fmt: skip


def image_problems(columns: Columns) -> Iterator[Problem]:
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
        yield Problem(
            "no-object", NOTE, title,
            f"{plural(len(records), 'image has', 'images have')} no label at all ({len(records) / len(bare):.1%}). "
            "Good as background; if objects can be seen in them, their labels are missing.",
            len(records), records, tuple(columns.example(i, "") for i in records[:EXAMPLES].tolist()),
        )  # fmt: skip
    yield from _sizes(columns)


def _sizes(columns: Columns) -> Iterator[Problem]:
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
        yield Problem(
            "image-size", CHECK, "Images of an unusual size or shape",
            f"{plural(len(found), 'image')} of a size or a width / height far from the median of all "
            f"({np.median(width):.0f} x {np.median(height):.0f} px). Often an icon, a screenshot or a panorama.",
            len(found), found,
            tuple(columns.example(i, f"{width[i]:.0f} x {height[i]:.0f} px") for i in found[:EXAMPLES].tolist()),
        )  # fmt: skip
