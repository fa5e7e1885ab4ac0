"""Reads the tables that are attached to a pack: which column is meant, and the values in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import BadInput, UsageError, option, printable
from packer.images.npy_files import NUMBERS
from packer.model.strict_json import read_json
from packer.sources.list_columns import MEANING, words_of
from packer.sources.paths import quoted_value

AN_ARRAY = ("an array", "numpy.save")
Columns = Mapping[str, Callable[[bool], Any]]
"""Name -> what reads the column, given whether it is text: an array, an Arrow column or a list."""


@dataclass(frozen=True)
class AttachRequest:
    """What to attach: `packer.repack.attach.attach` has the arguments."""

    where: str
    name: str
    kind: str | None
    column: str | None
    mask_values: str | None = None
    ignore_id: int | None = None
    extra_rows: str = "fail"


@contextmanager
def saved_by_numpy(path: str, what: str, how: str) -> Iterator[None]:
    """Say that a file is not what numpy saves."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # numpy's readers, and those of zips, raise many kinds
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise BadInput(path, f"is not {what}: {reason}", f"write it with {how}") from None


def _npz(path: str) -> Columns:
    opened = partial(saved_by_numpy, path, "a file of arrays", "numpy.savez")

    def read(name: str, is_text: bool) -> Any:
        with opened(), open(path, "rb") as file, np.lib.npyio.NpzFile(file) as arrays:
            return values_of(np.atleast_1d(arrays[name]))

    with opened(), open(path, "rb") as file, np.lib.npyio.NpzFile(file) as arrays:
        return {name: partial(read, name) for name in arrays.files}


def _parquet(path: str) -> Columns:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    return {name: lambda _, name=name: file.read([name]).column(0) for name in file.schema_arrow.names}  # type: ignore[misc]


def _csv(delimiter: str, path: str) -> Columns:
    from pyarrow import csv

    form = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def column(name: str, types: Mapping[str, pa.DataType]) -> pa.ChunkedArray:
        convert = csv.ConvertOptions(include_columns=[name], column_types=types)
        return csv.read_csv(path, parse_options=form, convert_options=convert).column(0)

    def read(name: str, is_text: bool) -> Any:
        texts = column(name, {name: pa.string()})  # 00000042 is a key, not a number
        return texts if is_text else _exact(path, name, column(name, {}), texts)

    with csv.open_csv(path, parse_options=form) as opened:
        return {name: partial(read, name) for name in opened.schema.names}


def _exact(path: str, name: str, found: pa.ChunkedArray, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the numbers that Arrow made of a column, or texts. Raise BadInput if those would be other numbers."""
    from pyarrow import compute

    is_float = pa.types.is_floating(found.type)
    if not is_float and not pa.types.is_integer(found.type):
        return found
    padded = texts.filter(compute.match_substring_regex(texts, r"^\s*[+-]?0[0-9]"))
    if len(padded):
        problem = f"has digits with leading zeros in {printable(name)}, such as {quoted_value(padded[0].as_py())}"
        raise BadInput(path, problem, f"write them as numbers, or pass {option('kind', 'text')}")
    if is_float and compute.all(compute.match_substring_regex(texts, r"^\s*[+-]?[0-9]+\s*$")).as_py():
        try:
            return texts.cast(pa.uint64())  # a float64 of 18446744073709551615 is that of another number, too
        except pa.ArrowInvalid:
            problem = f"has whole numbers in {printable(name)} that neither int64 nor uint64 can hold"
            raise BadInput(path, problem, f"pass {option('kind', 'text')}") from None
    return found


def _jsonl(path: str) -> Columns:
    rows: list[Any] = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                rows += [read_json(line)] if line.strip() else []
            except ValueError as error:
                raise BadInput(f"{path}:{number}", f"is not JSON: {error}", "correct the line") from None
    if not all(isinstance(row, dict) for row in rows):
        raise BadInput(path, "has a line that is not an object", "write an object with a key or path on each line")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: lambda _, name=name: [row.get(name) for row in rows] for name in names}  # type: ignore[misc]


TABLES: dict[str, Callable[[str], Columns]] = {
    ".npz": _npz, ".parquet": _parquet, ".csv": partial(_csv, ","), ".tsv": partial(_csv, "\t"), ".jsonl": _jsonl,
}  # fmt: skip
"""Ending of a file -> what opens it."""


def chosen_column(asked: AttachRequest, names: Sequence[str], keys: Sequence[str]) -> str:
    """Return the column that is attached."""
    if asked.column is not None:
        if asked.column not in names:
            step = f"its columns are: {', '.join(map(printable, names))}"
            raise UsageError(option("column", asked.column), "is not in the file", step)
        return asked.column
    rest = [one for one in names if one not in keys]
    texts = [one for one, word in zip(rest, words_of(rest), strict=True) if MEANING.get(word) == "text"]
    for choice in (rest, [one for one in rest if one == asked.name], texts if asked.kind in (None, "text") else []):
        if len(choice) == 1:
            return choice[0]
    problem = f"has the columns {', '.join(map(printable, names))}, any of which may be meant"
    raise UsageError(asked.where, problem, f"pass one: {option('column', 'COL')}")


def texts_of(column: Any) -> list[str | None]:
    """Return the keys or paths in a column; None for an empty one, or NaN."""
    values = column.to_pylist() if isinstance(column, pa.ChunkedArray) else list(column)
    return [None if one is None or one != one or one == "" else str(one) for one in values]  # noqa: PLR0124


def values_of(column: Any) -> Any:
    """Return a column as an array if it is of numbers, each row of one shape, else as a list."""
    if isinstance(column, np.ndarray):
        return column if column.dtype.kind in NUMBERS else column.tolist()
    try:
        chunks = [_arrow(column)] if isinstance(column, list) else column.chunks
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # of several types
        return column
    arrays = [array for chunk in chunks if (array := _numbers_of(chunk)) is not None]
    if arrays and len(arrays) == len(chunks):
        return np.concatenate(arrays)
    return column if isinstance(column, list) else column.to_pylist()


def _arrow(column: list[Any]) -> pa.Array:
    try:
        return pa.array(column)
    except OverflowError:
        return pa.array(column, pa.uint64())


def _numbers_of(array: Any) -> NDArray[Any] | None:
    """Return an Arrow array of numbers, or of lists of as many numbers, as an array; None if it is another."""
    kind = array.type
    if array.null_count or not len(array):
        return None
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return found
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    inner = _numbers_of(array.flatten())
    if inner is None or len(array.value_lengths().unique()) != 1:
        return None
    return inner.reshape(len(array), -1, *inner.shape[1:])
