"""Reads the tables that are attached to a pack: which column is meant, and the values in it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import BadInput, UsageError, option, printable
from packer.format.sidecar_list import ITEM_BYTES
from packer.model.strict_json import read_json
from packer.sources.list_meaning import MEANING, words_of
from packer.sources.paths import quoted_value

DTYPES = f"save it as one of {', '.join(ITEM_BYTES)}, or as texts: astype(str)"
AN_ARRAY = ("an array", "numpy.save")


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
    classes: str | None = None
    frame: str | None = None


@contextmanager
def saved_by_numpy(path: str, what: str, how: str) -> Iterator[None]:
    """Say that a file is not what numpy saves."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # numpy's readers, and those of zips, raise many kinds
        reason = str(error).partition("\n")[0] or type(error).__name__
        step = DTYPES if "bject" in reason else f"write it with {how}"  # of Python: these numpy pickles
        raise BadInput(path, f"is not {what}: {reason}", step) from None


@dataclass(frozen=True)
class Table:
    """The columns of a file."""

    columns: Mapping[str, Callable[[str | None], Any]]
    """Name -> what reads the column as one of this kind, or of any: an array, an Arrow column or a list."""
    place: Callable[[int], str] = lambda row: f"row {row + 1}"
    """Says where a row is."""


def _npz(path: str) -> Table:
    opened = partial(saved_by_numpy, path, "a file of arrays", "numpy.savez")

    def read(name: str, kind: str | None) -> Any:
        with opened(), open(path, "rb") as file, np.lib.npyio.NpzFile(file) as arrays:
            return values_of(np.atleast_1d(arrays[name]))

    with opened(), open(path, "rb") as file, np.lib.npyio.NpzFile(file) as arrays:
        return Table({name: partial(read, name) for name in arrays.files})


def _parquet(path: str) -> Table:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)

    def read(name: str, kind: str | None) -> Any:
        column = file.read([name]).column(0)
        tests = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_decimal)
        if not any(is_one(column.type) for is_one in tests):
            return column
        if kind != "text":
            problem = f"has values in {printable(name)} that JSON cannot hold: {column.type}"
            raise BadInput(path, problem, f"pass {option('kind', 'text')}")
        return column.cast(pa.string())

    return Table({name: partial(read, name) for name in file.schema_arrow.names})


def _csv(delimiter: str, path: str) -> Table:
    from pyarrow import csv as arrow_csv

    form = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    place = partial(_line_of, path, delimiter)

    def column(name: str, types: Mapping[str, pa.DataType]) -> pa.ChunkedArray:
        convert = arrow_csv.ConvertOptions(include_columns=[name], column_types=types)
        with _in_utf8(path):
            return arrow_csv.read_csv(path, parse_options=form, convert_options=convert).column(0)

    def read(name: str, kind: str | None) -> Any:
        texts = column(name, {name: pa.string()})  # 00000042 is a key, not a number
        if kind == "text":
            return texts
        found = column(name, {})
        if (is_number := _is_number(found.type)) or pa.types.is_null(found.type):
            return _exact(path, name, found, texts) if is_number else found
        if kind is None:
            return texts
        return [_parsed(path, name, text, place, row) for row, text in enumerate(texts.to_pylist())]

    with _in_utf8(path), open(path, "rb") as file:
        head = file.readline().decode("utf-8")
    if other := [sign for sign in ";\t," if sign in head and delimiter not in head]:
        problem = f"has columns that are separated by {other[0]!r}, not {delimiter!r}"
        raise BadInput(path, problem, "save it with commas as .csv, or with tabs as .tsv")
    with _in_utf8(path), arrow_csv.open_csv(path, parse_options=form) as opened:
        return Table({name: partial(read, name) for name in opened.schema.names}, place)


@contextmanager
def _in_utf8(path: str) -> Iterator[None]:
    """Say that a file is not UTF-8."""
    try:
        yield
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in str(error):
            raise BadInput(path, "is not UTF-8", "save it as UTF-8") from None
        raise


def _line_of(path: str, delimiter: str, row: int) -> str:
    """Return the line in which a row of a CSV begins: cells may have line breaks."""
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        reader, begin = csv.reader(file, delimiter=delimiter), 1
        for cells in reader:
            if cells and (row := row - 1) == -2:
                break
            begin = reader.line_num + 1
    return f"line {begin}"


def _parsed(path: str, name: str, text: str, place: Callable[[int], str], row: int) -> Any:
    """Return the value of JSON that is written in a cell; None if the cell is empty."""
    try:
        return read_json(text.encode()) if text else None
    except ValueError:
        problem = f"has a cell in {printable(name)} that is not JSON, in {place(row)}: {quoted_value(text)}"
        raise BadInput(path, problem, f"correct it, or pass {option('kind', 'text')}") from None


def _exact(path: str, name: str, found: pa.ChunkedArray, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the numbers that Arrow made of the texts of a column. Raise BadInput if those would be other numbers."""
    from pyarrow import compute

    is_float = pa.types.is_floating(found.type)
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


def _jsonl(path: str) -> Table:
    rows: dict[int, Any] = {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                rows |= {number: read_json(line)} if line.strip() else {}
            except ValueError as error:
                raise BadInput(f"{path}:{number}", f"is not JSON: {error}", "correct the line") from None
    lines, values = list(rows), list(rows.values())
    if wrong := [number for number, row in rows.items() if not isinstance(row, dict)]:
        step = "write an object with a key or path on each line"
        raise BadInput(f"{path}:{wrong[0]}", "is not an object", step)
    names = dict.fromkeys(name for row in values for name in row)
    columns = {name: lambda _, name=name: [row.get(name) for row in values] for name in names}
    return Table(columns, lambda row: f"line {lines[row]}")


TABLES: dict[str, Callable[[str], Table]] = {
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
    """Return a column as an array if it has numbers, each row of one shape, else as a list."""
    if isinstance(column, np.ndarray):
        return column.tolist() if column.dtype.kind == "U" else column
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


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _numbers_of(array: Any) -> NDArray[Any] | None:
    """Return an Arrow array of numbers, or of lists of as many numbers, as an array; None if it is another."""
    kind = array.type
    if array.null_count or not len(array):
        return None
    if _is_number(kind):
        found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return found
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    inner = _numbers_of(array.flatten())
    if inner is None or len(array.value_lengths().unique()) != 1:
        return None
    return inner.reshape(len(array), -1, *inner.shape[1:])
