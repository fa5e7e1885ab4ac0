"""Problems of near duplicates, by the fingerprints beside a pack: other labels, several packs, repeated images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural
from packer.repack.index_columns import RecordGroups, groups_of
from packer.repack.near_duplicates import Nearness, near_groups
from packer.stats.columns import digests
from packer.stats.problems.names import differences, label_text
from packer.stats.problems.problem import CHECK, EXAMPLES, SHOWN, WRONG, DataProblem, ProblemColumns, list_text


def near_problems(columns: ProblemColumns, rows: NDArray[np.void], notes: list[str]) -> Iterator[DataProblem]:
    """Yield the problems of near duplicates, without those of equal files; add what was not compared to `notes`.

    Args:
        columns: Those of the pack.
        rows: Its fingerprints, those that are not known with version 0.
        notes: Receives what could not be compared.
    """
    known = np.flatnonzero(rows["version"])
    found = near_groups(rows[known], Nearness())
    notes += found.notes
    groups = _of_other_files(columns, RecordGroups(known[found.groups.records], found.groups.starts))
    if not groups.groups:
        return
    pack_of = columns.pack_numbers(groups.records)
    first, last = (by.reduceat(pack_of, groups.starts[:-1]) for by in (np.minimum, np.maximum))
    conflict, _ = differences(columns, groups)
    heads = (
        ("near-label-conflict", CHECK, "Near duplicates with different labels"),
        ("near-leak", WRONG, "Near duplicates in more than one pack"),
        ("near-duplicate", CHECK, "Near duplicates"),
    )
    texts = (
        "images that look the same, but have different classes or values. Often one of the labels is wrong.",
        "images that look the same, and are in several of the packs. If one is for training and another for "
        "validation, results look better than they are: packer split --group near keeps them together.",
        "images that look the same: resized, encoded again, slightly cropped, or frames of a video. packer convert "
        "--keep-one near keeps one of each.",
    )
    for head, text, chosen in zip(heads, texts, (conflict, first != last, ~conflict & (first == last)), strict=True):
        if chosen.any():
            yield _problem(columns, groups, chosen, head, text)


def _of_other_files(columns: ProblemColumns, groups: RecordGroups) -> RecordGroups:
    """Return the groups that have records of different files."""
    files = digests(columns.pack)[groups.records]
    others = (files != files[groups.starts[:-1]][groups.group_of]).any(axis=1)
    mixed = np.zeros(groups.groups, np.bool_)
    mixed[groups.group_of[others]] = True
    inside = mixed[groups.group_of]
    return groups_of(groups.records[inside], np.diff(groups.group_of[inside]) != 0)


def _problem(
    columns: ProblemColumns, groups: RecordGroups, chosen: NDArray[np.bool_], head: tuple[str, str, str], text: str
) -> DataProblem:
    examples = []
    for group in np.flatnonzero(chosen)[:EXAMPLES].tolist():
        first, *others = groups.listed(group)
        others = _telling_first(columns, first, np.array(others))
        listed = [columns.example(record, "") for record in others[:3]]
        near = [f"{one.pack}: {one.path}" if one.pack else one.path for one in listed]
        near_text = ", ".join(near) + (f" and {len(others) - len(near):,} more" if len(others) > len(near) else "")
        labels = list_text(list(dict.fromkeys(label_text(columns, record) for record in [first, *others[:9]])), 4)
        detail = f"{labels} (near {near_text})" if head[0] == "near-label-conflict" else f"near {near_text}"
        examples.append(replace(columns.example(first, detail), neighbors=tuple(others[:SHOWN])))
    count = int(chosen.sum())
    records = groups.records[chosen[groups.group_of]]
    return DataProblem(*head, f"{plural(count, 'group')} of {text}", count, records, tuple(examples))


def _telling_first(columns: ProblemColumns, first: int, others: NDArray[np.int64]) -> list[int]:
    """Return records with those of other packs than the `first` in front, then those of another class."""
    numbers, labels = columns.pack_numbers(others), columns.labels
    same_pack = numbers == columns.pack_numbers(np.array([first]))[0]
    order = np.lexsort((labels[others] == labels[first], same_pack))
    found: list[int] = others[order].tolist()
    return found
