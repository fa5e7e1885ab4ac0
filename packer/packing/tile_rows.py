"""Rows of a table of inputs that are tiles: their sizes, and what becomes of the images that they share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.model.tiles import WINDOW
from packer.packing.make_record import InputRow, rows_of
from packer.packing.partition import ROWS_A_BATCH, map_table, pieces, rows_at, write_table
from packer.samplers.order import derive, permutation_function


def sizes_in(table: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the widths and heights of what a table of inputs, or an index, has: those of tiles if there are any."""
    if "code" in table.column_names and WINDOW in table.column_names:
        windows = np.concatenate([chunk.flatten().to_numpy() for chunk in table.column(WINDOW).chunks])
        sides = windows.reshape(-1, 6)[:, 2:4].astype(np.int64)
        return sides[:, 0], sides[:, 1]
    width, height = (table.column(name).to_numpy().astype(np.int64) for name in ("width", "height"))
    return width, height


def with_windows(table: Any) -> Iterator[InputRow]:
    """Yield the rows of a table of inputs, those that are tiles with their windows."""
    windows = table.column(WINDOW).to_pylist() if WINDOW in table.column_names else [None] * len(table)
    for row, window in zip(rows_of(table), windows, strict=True):
        yield row if window is None else row._replace(window=tuple(window[:4]))


def packing_order(file: str, shuffle: int | None, has_tiles: bool) -> tuple[tuple[int, int] | None, NDArray[np.int64]]:
    """Return in what order the rows of a table of inputs are packed, and with which the tiles of an image begin.

    Args:
        file: The table; of tiles, its images are put into the order here.
        shuffle: The seed of a random order. None: that of the table.
        has_tiles: Whether each row is a tile.

    Returns:
        The arguments of `permutation_function`, None for the order of the table; and the rows, none without tiles.

    Raises:
        StorageError: The disk does not take a table in another order.
    """
    if has_tiles and shuffle is not None:
        shuffle_images(file, derive(shuffle))
    table = map_table(file)
    if has_tiles:
        return None, first_tiles(table)
    return (None if shuffle is None or not len(table) else (len(table), derive(shuffle))), np.zeros(0, np.int64)


def first_tiles(table: Any) -> NDArray[np.int64]:
    """Return the numbers of the rows of a table of inputs with which the tiles of an image begin."""
    found, last = [], None
    for start, piece in pieces(table):
        paths = piece.column("path").combine_chunks()
        same = pc.equal(paths[1:], paths[:-1]).to_numpy(zero_copy_only=False) if len(paths) else np.ones(0, np.bool_)
        found.append(start + np.flatnonzero(~np.concatenate([[paths[0].as_py() == last], same])))
        last = paths[-1].as_py()
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def shuffle_images(file: str, seed: int) -> None:
    """Put the images of a table of inputs, of which each row is a tile, into the random order of a seed.

    The tiles of an image stay together, so that it is decoded once.

    Raises:
        StorageError: The disk does not take it.
    """
    table, shuffled = map_table(file), f"{file}.shuffled"
    firsts = first_tiles(table)
    counts = np.diff(np.append(firsts, len(table)))
    order = permutation_function(len(firsts), seed)(np.arange(len(firsts)))
    ends = np.cumsum(counts[order])
    rows = np.arange(len(table)) + np.repeat(firsts[order] - (ends - counts[order]), counts[order])

    def batches() -> Iterator[Any]:
        for start in range(0, len(rows), ROWS_A_BATCH):
            yield from rows_at(table, rows[start : start + ROWS_A_BATCH]).to_batches()

    write_table(batches(), table.schema, shuffled)
    os.replace(shuffled, file)


def shares_of_images(image_bytes: NDArray[np.int64], firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of each tile if images are stored once: the first of its tiles stands for one."""
    found = np.zeros_like(image_bytes)
    found[firsts] = image_bytes[firsts]
    return found


def whole_cuts(cuts: Sequence[int], firsts: NDArray[np.int64], rows: int) -> tuple[int, ...]:
    """Return the cuts at which shards begin, none of them inside an image."""
    ends = np.append(firsts, rows)
    return tuple(np.unique(ends[np.searchsorted(ends, cuts)]).tolist())
