"""Reads a list of the objects of a source in place of listing them: S3 Inventory, a table, or lines of names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from packer.errors import UsageError, printable
from packer.stores import clean_url, is_url
from packer.stores.base import Object

NAMES = ("key", "path", "name", "url", "file", "object")
SIZES = ("size", "bytes", "content_length", "content-length", "contentlength")
ETAGS = ("e_tag", "etag")
PARQUET = (".parquet",)
TABLES = (".csv", ".tsv", ".csv.gz")
LINES = (".txt", ".lst", ".list")
QUOTED = re.compile(rb"%([0-9A-Fa-f]{2})|\+")
ETAG = re.compile(r"[0-9a-f]{32}(-\d+)?")
MOST_COLUMNS = 100
Columns = tuple[list[str], list[int | None], list[str | None]]
"""Names, sizes and ETags."""
HOW = "give a Parquet or CSV file with the columns key and size, or a text file with a name on each line"


def read_inventory(file: str, url: str) -> Sequence[Object]:
    """Return the objects that an inventory names below a URL, by their names below it; a size of -1 is unknown.

    A name is relative to the URL, or a URL, or the whole key of the object in its bucket, with or without the bucket.
    If any is one of the latter and below `url`, all are such, and those elsewhere are left out.

    Args:
        file: A local Parquet, CSV, TSV or text file.
        url: The source.

    Raises:
        UsageError: It cannot be read, or names nothing.
    """
    lower = file.lower()
    if not os.path.isfile(file):
        raise UsageError(file, "there is no such file", HOW)
    try:
        if lower.endswith(PARQUET):
            names, sizes, etags = _columns_of(_parquet(file), file)
        elif lower.endswith(TABLES):
            names, sizes, etags = _csv(file, url)
        elif lower.endswith(LINES):
            with open(file, encoding="utf-8-sig") as lines:
                names = [line.strip("\r\n") for line in lines if line.strip()]
            sizes, etags = [], []
        else:
            raise UsageError(file, "is not a kind of inventory that is known", HOW)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(file, f"cannot be read: {error.strerror or error}", HOW) from None
    except ValueError as error:  # ArrowInvalid, UnicodeError
        raise UsageError(file, f"cannot be read: {printable(str(error))}", HOW) from None
    found = _below(names, clean_url(url))
    if not found:
        raise UsageError(file, f"names nothing below {url}", HOW)
    objects = []
    for row, name in found:
        size = sizes[row] if sizes else None
        etag = etags[row] if etags else None
        objects.append(Object(name, -1 if size is None else int(size), etag and f'"{etag.strip(chr(34))}"', 0.0))
    objects.sort()
    for one, other in pairwise(objects):
        if one.name == other.name:
            raise UsageError(file, f"names {printable(one.name)} twice", "list only current versions")
    return objects


def _below(names: Sequence[str], url: str) -> list[tuple[int, str]]:
    """Return the row and the relative name of each object below the URL."""
    host_and_key = url.partition("://")[2]
    key = host_and_key.partition("/")[2]
    files = [(row, name) for row, name in enumerate(names) if name and not name.endswith("/")]  # others are folders
    for start in (f"{url}/", f"{host_and_key}/", f"{key}/" if key else ""):
        if start and (below := [(row, name[len(start) :]) for row, name in files if name.startswith(start)]):
            return below
    return [(row, name) for row, name in files if not is_url(name)]


def _parquet(file: str) -> Any:
    import pyarrow.parquet as pq

    schema = pq.read_schema(file)
    return pq.read_table(file, columns=[name for name in schema.names if name.lower() in (*NAMES, *SIZES, *ETAGS)])


def _columns_of(table: Any, file: str) -> Columns:
    """Return the columns of a table; an empty one is missing."""
    lower = {name.lower(): name for name in reversed(table.column_names)}
    found = [next((lower[name] for name in names if name in lower), None) for names in (NAMES, SIZES, ETAGS)]
    if found[0] is None:
        raise UsageError(file, f"has no column of names (columns: {', '.join(map(printable, lower))})", HOW)
    names, sizes, etags = ([] if name is None else table.column(name).to_pylist() for name in found)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(file, f"has names in the column {printable(found[0])} that are not text", HOW)
    return names, sizes, etags


def _csv(file: str, url: str) -> Columns:
    import pyarrow as pa
    from pyarrow import csv

    parse = csv.ParseOptions(delimiter="\t" if file.lower().endswith(".tsv") else ",")
    texts = csv.ConvertOptions(column_types={f"f{i}": pa.string() for i in range(MOST_COLUMNS)})
    with csv.open_csv(file, csv.ReadOptions(autogenerate_column_names=True), parse, texts) as reader:
        first = list(reader.read_next_batch().slice(0, 1).to_pylist()[0].values())
    has_names = any(name.strip().lower() in (*NAMES, *SIZES) for name in first)
    bucket = url.partition("://")[2].partition("/")[0]
    of_s3 = not has_names and len(first) > 1 and first[0] == bucket
    if has_names:
        names = [name.strip() for name in first]
    else:  # those of S3 Inventory: bucket, key, and what was asked for
        names = ["bucket"] * of_s3 + ["key"]
        rest = first[len(names) :]
        size = next((i for i, value in enumerate(rest) if re.fullmatch(r"\d+", value)), None)
        names += [
            "size" if i == size else "e_tag" if ETAG.fullmatch(value) else f"column {i}" for i, value in enumerate(rest)
        ]
    types = {name: pa.int64() if name.lower() in SIZES else pa.string() for name in names}
    wanted = [name for name in names if name.lower() in (*NAMES, *SIZES, *ETAGS)]
    table = csv.read_csv(
        file, csv.ReadOptions(column_names=names, skip_rows=int(has_names)), parse,
        csv.ConvertOptions(column_types=types, include_columns=wanted),
    )  # fmt: skip
    keys, sizes, etags = _columns_of(table, os.fspath(file))
    return list(map(_unquoted, keys)) if of_s3 else keys, sizes, etags


def _unquoted(key: str) -> str:
    """Return a key of S3 Inventory in CSV, which is written as in a URL."""
    return QUOTED.sub(lambda match: bytes((int(match[1], 16),)) if match[1] else b" ", key.encode()).decode()
