"""Ragged: rows of different lengths behave as a list of arrays would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.model.annotation_columns import Ragged

rows_of_ints = st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=6)


def ragged(rows: list[list[int]]) -> Ragged:
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return Ragged(np.array([x for row in rows for x in row], np.int64), offsets)


@given(rows_of_ints)
def test_like_a_list(rows: list[list[int]]) -> None:
    r = ragged(rows)
    assert len(r) == len(rows) and [row.tolist() for row in r] == rows
    assert [r[i].tolist() for i in range(-len(rows), 0)] == rows
    assert r.lengths.tolist() == [len(row) for row in rows]
    with pytest.raises(IndexError):
        r[len(rows)]


@given(rows_of_ints, st.integers(-7, 7), st.integers(-7, 7))
def test_slices(rows: list[list[int]], a: int, b: int) -> None:
    part = ragged(rows)[a:b]
    assert [row.tolist() for row in part] == rows[a:b]
    assert part.flat().tolist() == [x for row in rows[a:b] for x in row]


@given(rows_of_ints.filter(bool), st.lists(st.integers(-6, 5)), st.booleans())
def test_an_array_of_rows(rows: list[list[int]], numbers: list[int], nested: bool) -> None:
    chosen = np.array([number % len(rows) - len(rows) * (number < 0) for number in numbers], np.int64)
    whole = Ragged(ragged(rows), np.arange(len(rows) + 1)) if nested else ragged(rows)
    part = whole[chosen].flat() if nested else whole[chosen]
    assert [row.tolist() for row in part] == [rows[i] for i in chosen]
    assert [row.tolist() for row in ragged(rows)[np.array([bool(row) for row in rows])]] == [r for r in rows if r]
    with pytest.raises(IndexError):
        whole[np.array([len(rows)])]


@given(st.lists(rows_of_ints, min_size=1, max_size=4))
def test_concat(parts: list[list[list[int]]]) -> None:
    joined = Ragged.concat([ragged([[7], *part])[1:] for part in parts])
    assert [row.tolist() for row in joined] == [row for part in parts for row in part]


@given(st.lists(rows_of_ints, max_size=4), st.lists(rows_of_ints, max_size=4))
def test_nested(first: list[list[list[int]]], second: list[list[list[int]]]) -> None:
    def nested(groups: list[list[list[int]]]) -> Ragged:
        return Ragged(ragged([row for g in groups for row in g]), np.cumsum([0, *map(len, groups)]))

    joined = Ragged.concat([nested(first), nested(second)])
    assert [[row.tolist() for row in group] for group in joined] == first + second


def test_array() -> None:
    same = ragged([[1, 2], [3, 4]])
    assert np.asarray(same).tolist() == [[1, 2], [3, 4]]
    assert np.asarray(same).base is not None  # a view
    assert np.asarray(same, np.float32).dtype == np.float32
    assert np.asarray(ragged([])).shape == (0, 0)
    boxes = Ragged(np.zeros((6, 4), np.float32), np.array([0, 3, 6]))
    assert np.asarray(boxes).shape == (2, 3, 4)
    with pytest.raises(ValueError, match="rows of 1 to 2"):
        np.asarray(ragged([[1], [2, 3]]))


def test_refuses() -> None:
    with pytest.raises(ValueError, match="offsets"):
        Ragged(np.zeros(0), np.zeros(0, int))
    with pytest.raises(ValueError, match="at least one"):
        Ragged.concat([])
    with pytest.raises(IndexError, match="step"):
        ragged([[1], [2]])[::2]
    assert repr(ragged([[1], [2, 3]])) == "Ragged(2 rows of 3 in all)"
