"""Lists the objects of a source in a store: in parallel by folder, or from an inventory. None is opened for that."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from packer.errors import BadImage, UsageError, printable
from packer.sources.archives import FAULT, HIDDEN, Archives, add_folder, check_file
from packer.sources.paths import IMAGE_EXTENSIONS, archive_stem, as_bytes, extension_of, folder_of
from packer.sources.places import Archive, MemberPlaces, Place, Scratch
from packer.sources.source import NEVER_NS, Stamps, Tree
from packer.sources.store_files import (
    READS,
    SMALL_BYTES,
    SmallFiles,
    SourceObject,
    at_once,
    is_listed,
    located,
    store_at,
)
from packer.sources.tree import (
    SNIFFED_BYTES,
    begins_like_image,
    in_order,
    is_member_image,
    tree_of_archive,
    with_archives,
)
from packer.sources.walk import Skipped
from packer.stores import clean_url, is_url, join_url
from packer.stores.store import CutAnswer, NoObject, Object, Store
from packer.stores.waiting import all_of, pool

MANY_FOLDERS = 64
"""From so many on, each is listed with all that is below it, else level by level."""
NEVER_IMAGES = frozenset(
    b".txt .csv .tsv .lst .list .json .jsonl .xml .yaml .yml .pts .mat .names .data .md .rst .html .htm .pdf .log"
    b" .py .sh .npy .npz .h5 .hdf5 .pkl .pth .pt .arrow .parquet .zip .tar .tgz .gz .bz2 .xz .zst .db .lock".split()
)
"""Extensions of files that are not opened to see whether they are images: it would take a request for each."""
KNOWN_EXTENSIONS = IMAGE_EXTENSIONS | NEVER_IMAGES
UNUSABLE = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\0-\x1f\x7f]")
PAUSES_S = (0.1, 0.5, 2.0)
"""After answers that were cut; the store itself tries again after all others."""
INVENTORY = "give their names with --inventory=FILE"
T = TypeVar("T")


def find_store_tree(
    url: str, scratch: Scratch | None = None, inventory: str | None = None
) -> tuple[Tree, list[Skipped]]:
    """Return the tree of a folder or archive in a store, and the skipped paths with reasons, as `find_tree` does.

    Args:
        url: The folder or archive; or a folder in an archive.
        scratch: Where to decompress compressed archives to. None: they are refused.
        inventory: A list of the objects, in place of listing them.

    Raises:
        UsageError: There are no such objects, or they cannot be listed.
        StorageError: The store cannot be reached.
    """
    store_at.cache_clear()  # the environment may have other settings than for the last build
    url = clean_url(url)
    root = as_bytes(url)
    archives = Archives(_is_image, scratch)
    archive, inside = _archive_in(root) if inventory is None else (b"", b"")
    if archive:
        return tree_of_archive(root, archive, inside, archives)
    store, top = located(url)
    found = (
        _list_objects(store, top, url)
        if inventory is None
        else _objects_of_inventory(store, top, read_inventory(inventory, url))
    )
    tree, skipped = _tree(root, found, scratch)
    return with_archives(tree, skipped, archives)


def _archive_in(root: bytes) -> tuple[bytes, bytes]:
    """Return the archive that a URL leads into, and the folder in it with a final slash; b"" without one."""
    parts = root.split(b"/")
    for count in range(4, len(parts) + 1):
        archive = b"/".join(parts[:count])
        if archive_stem(archive):
            try:
                Archive.of(archive)
            except NoObject:  # a folder of that name
                continue
            return archive, b"".join(part + b"/" for part in parts[count:])
    return b"", b""


def _list_objects(store: Store, top: str, url: str) -> list[Object]:
    """Return all objects below a folder of a store, by their names below it."""
    if not is_listed(url):
        raise UsageError(url, "is on a web server, which does not list its files", INVENTORY)
    found: list[Object] = []
    folders = [top]
    with pool(READS) as threads:
        while 0 < len(folders) < MANY_FOLDERS:
            asked = [threads.submit(_persistently, lambda folder=folder: store.folders(folder)) for folder in folders]
            folders = []
            for inside, objects in all_of(asked):
                folders += inside
                found += objects
        rest = [
            threads.submit(_persistently, lambda folder=folder: list(store.names(f"{folder}/"))) for folder in folders
        ]
        for objects in all_of(rest):
            found += objects
    if not found:
        with suppress(NoObject):
            check_file(as_bytes(url), is_member_image)
        raise UsageError(url, "no such folder or archive", "give the folder or archive that holds the images")
    cut = len(top) + 1 if top else 0
    return [one._replace(name=one.name[cut:]) for one in found if len(one.name) > cut]


def _persistently(call: Callable[[], T]) -> T:
    """Return what `call` returns; after an answer that was cut, try again. Raise what it raises."""
    for pause in PAUSES_S:
        with suppress(CutAnswer):
            return call()
        time.sleep(pause)
    return call()


def _objects_of_inventory(store: Store, top: str, objects: Sequence[Object]) -> Iterator[Object | Skipped]:
    """Yield the objects of an inventory; ask the store for those whose size it does not tell.

    Names that are not paths are skipped as faults: clients of stores cannot ask for them.
    """

    def asked(one: Object) -> Object | Skipped:
        try:
            return store.size(join_url(top, one.name) if top else one.name)._replace(name=one.name)
        except NoObject:
            return as_bytes(one.name), f"{FAULT}the inventory names it, but there is no such object"

    for one in objects:
        if UNUSABLE.search(one.name):
            yield as_bytes(one.name), f"{FAULT}its name has //, . or .., or control characters: rename the object"
    usable = [one for one in objects if not UNUSABLE.search(one.name)]
    yield from (one for one in usable if one.size >= 0)
    yield from at_once(asked, (one for one in usable if one.size < 0))


def _tree(
    root: bytes, objects: Iterator[Object | Skipped] | list[Object], scratch: Scratch | None
) -> tuple[Tree, list[Skipped]]:
    skipped: list[Skipped] = []
    found: list[tuple[bytes, int, str]] = []
    changed_ns: dict[bytes, int] = {}
    for one in objects:
        if isinstance(one, Object):
            found.append((as_bytes(one.name), one.size, one.etag or ""))
            changed_ns[found[-1][0]] = int(one.modified_s * 1e9) or NEVER_NS
        else:
            skipped.append(one)
    found.sort()
    folders: set[bytes] = set()
    for folder in {folder_of(path) for path, *_ in found}:
        if not HIDDEN.search(folder):
            add_folder(folders, folder)
    skipped += [(path, "hidden") for path, *_ in found if HIDDEN.search(path) and _is_named_image(path)]
    # an empty object may stand for a folder
    found = [one for one in found if not HIDDEN.search(one[0]) and (one[1] or one[0] not in folders)]
    paths = [path for path, *_ in found]
    places = np.full((len(found), len(Place._fields)), -1, np.int64)
    places[:, 1], places[:, 2] = 0, [size for _, size, _ in found]
    small = SmallFiles(paths, [size for _, size, _ in found], lambda number: _read_object(root, *found[number]))
    members = MemberPlaces((), paths, places, scratch, etags=[etag for *_, etag in found], small=small)
    unknown = [one for one in found if extension_of(one[0]) not in KNOWN_EXTENSIONS]
    begun = at_once(lambda one: _is_sniffed_image(root, *one), unknown)
    images = {one[0] for one, is_image in zip(unknown, begun, strict=True) if is_image}
    images.update(filter(_is_named_image, paths))
    there = [path for path in paths if path in images]
    files = [path for path in paths if path not in images]
    sizes = {path: size for path, size, _ in found}
    of_images, of_files = (
        np.array([(changed_ns[path], sizes[path]) for path in some], np.int64).reshape(-1, 2) for some in (there, files)
    )
    stamps = Stamps(there, of_images, files, of_files)
    return Tree(root, there, files, in_order(folders), members, stamps=stamps), skipped


def _is_image(path: bytes, head: Callable[[], bytes]) -> bool:
    """Return whether a member of an archive is an image: as for objects, its name is enough if it is that of a text."""
    return extension_of(path) not in NEVER_IMAGES and is_member_image(path, head)


def _is_named_image(path: bytes) -> bool:
    return extension_of(path) in IMAGE_EXTENSIONS


def _is_sniffed_image(root: bytes, path: bytes, size: int, etag: str) -> bool:
    try:
        return begins_like_image(_read_object(root, path, size, etag, SNIFFED_BYTES))
    except (BadImage, NoObject):  # replaced or gone since it was listed: whoever needs it says so
        return False


def _read_object(root: bytes, path: bytes, size: int, etag: str, most_bytes: int = SMALL_BYTES) -> bytes:
    return SourceObject(root + b"/" + path, size, etag).read(most_bytes, 0)


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
    return list(map(_unquote_key, keys)) if of_s3 else keys, sizes, etags


def _unquote_key(key: str) -> str:
    """Return a key of S3 Inventory in CSV, which is written as in a URL."""
    return QUOTED.sub(lambda match: bytes((int(match[1], 16),)) if match[1] else b" ", key.encode()).decode()
