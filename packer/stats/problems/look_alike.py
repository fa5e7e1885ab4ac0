"""Problems of near duplicates, by the fingerprints beside a pack: other labels, several packs, repeated images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer.errors import plural
from packer.repack.index_columns import RecordGroups, groups_of
from packer.repack.near_duplicates import Nearness, near_groups
from packer.stats.columns import digests
from packer.stats.problems.names import differences, label_text
from packer.stats.problems.problem import CHECK, EXAMPLES, WRONG, DataProblem, ProblemColumns, list_text


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
        "images look the same, but have different classes or values. Often one of the labels is wrong.",
        "images look the same, and are in several of the packs. If one is for training and another for validation, "
        "results look better than they are: packer split --group near keeps them together.",
        "images look the same: resized, encoded again, slightly cropped, or frames of a video. packer convert "
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
        members = groups.listed(group)
        others = [columns.example(record, "") for record in members[1:4]]
        paths = [f"{one.pack}: {one.path}" if one.pack else one.path for one in others]
        near = list_text([*paths, *[""] * len(members[4:])], 3)
        labels = list_text(list(dict.fromkeys(label_text(columns, record) for record in members[:10])), 4)
        detail = f"{labels} (near {near})" if head[0] == "near-label-conflict" else f"near {near}"
        examples.append(columns.example(members[0], detail))
    count = int(chosen.sum())
    records = groups.records[chosen[groups.group_of]]
    return DataProblem(*head, f"{plural(count, 'group')} of {text}", count, records, tuple(examples))
