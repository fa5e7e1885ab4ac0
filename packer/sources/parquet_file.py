"""A Parquet file with images in a column, as Hugging Face writes it.

Its pages are compressed, so that no image can be read by itself: they are copied to the disk once, row by row.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packer.errors import BadImage, BadLabel, PackerError, UsageError, printable
from packer.files.tar_members import Member
from packer.sources.paths import MASK_NAMES, as_bytes, extension_of, json_text, name_in
from packer.sources.places import Bytes, SourceFile
from packer.sources.source import Tree
from packer.system.storage import storage_errors

if TYPE_CHECKING:
    from packer.model.annotation import Int64


PARQUET = b"PAR1"
EXTENSION = b".parquet"
ROWS_AT_ONCE = 64
BUFFER_BYTES = 1 << 20
IMAGE_COLUMNS = ("image", "img", "images", "jpg", "jpeg", "png", "webp", "picture", "photo")
"""Names of columns of images, the likeliest first."""
AGAIN = "get the file again"


def name_of(tree: Tree, path: bytes) -> str:
    """Return the name of a file of `parquet_files`, for messages."""
    return printable(path or os.path.basename(tree.root))


def parquet_files(tree: Tree) -> list[bytes]:
    """Return the Parquet files whose images are in the tree; b"" is the root."""
    if not tree.files and tree.members is not None and tree.root.lower().endswith(EXTENSION):
        return [b""]
    return [path for path in tree.files if extension_of(path) == EXTENSION and images_below(tree, stem_folder(path))[1]]


def stem_folder(path: bytes) -> bytes:
    """Return the folder that a Parquet file stands for."""
    return path[: -len(EXTENSION)] if path else b""


def images_below(tree: Tree, folder: bytes) -> tuple[int, int]:
    """Return the number of the first image in a folder, and how many are in it."""
    if not folder:
        return 0, len(tree.images)
    first = bisect_left(tree.images, folder + b"/")
    return first, bisect_left(tree.images, folder + b"0") - first  # 0 comes after /


class ParquetFile:
    """An open Parquet file. A context manager.

    Attributes:
        name: The file, for messages.
        schema: Its columns, as an Arrow schema.
        features: What Hugging Face's metadata say about each column.
        image_columns: The names of its columns of images; the first is the one that is packed.
        mask_columns: Those of the others that are called like masks, the likeliest first.
        rows: Number of rows.
    """

    def __init__(self, file: SourceFile, name: str) -> None:
        """Read the schema of an open file. Raise UsageError if that fails."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.name = name
        self._source = file
        with self._readable():
            self._file = pq.ParquetFile(pa.PythonFile(Bytes(file), "r"), buffer_size=BUFFER_BYTES)
            self.schema = self._file.schema_arrow
            self.rows: int = self._file.metadata.num_rows
        self.features = features_of(self.schema.metadata or {})
        for column, feature in self.features.items():
            self._check_classes(column, feature)
        self.image_columns, self.mask_columns = columns_of_images(self.schema, self.features)

    def _check_classes(self, column: str, feature: Any) -> None:
        """Check the names of classes in a column, or in the members of its objects."""
        try:
            class_names(feature)
            for member in members_of(feature).values():
                class_names(member)
        except ValueError as error:
            problem = f"the metadata of the column {printable(column)} are wrong: {error}"
            raise UsageError(
                self.name, problem, "correct them, or remove the metadata (the classes are then numbers)"
            ) from None

    @classmethod
    def of(cls, tree: Tree, path: bytes) -> ParquetFile:
        """Open a file of `parquet_files`. Raise UsageError if it cannot be read."""
        name = name_of(tree, path)
        try:
            file = tree.open(path)
        except BadImage as error:
            raise UsageError(name, error.problem, error.next_step) from None
        except OSError as error:
            raise UsageError(name, f"cannot be read: {error.strerror}", "check its permissions") from None
        try:
            return cls(file, name)
        except BaseException:
            file.__exit__()
            raise

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.__exit__()

    @property
    def image(self) -> str:
        """The column of images. Raise UsageError if there is none."""
        if not self.image_columns:
            columns = ", ".join(map(printable, self.schema.names))
            step = 'a column of images has the type struct<bytes: binary, path: string>, or is binary and named "image"'
            raise UsageError(self.name, f"has no column of images (columns: {columns})", step)
        first: str = self.image_columns[0]
        return first

    def names(self) -> list[bytes]:
        """Return a name for the image of each row: its path, if each row has one of its own; else the row's number."""
        import pyarrow as pa

        column = self.schema.field(self.image)
        if pa.types.is_struct(column.type) and column.type.get_field_index("path") >= 0:
            paths = [(row or {}).get("path") for row in self.read([f"{self.image}.path"]).column(0).to_pylist()]
            found = [as_bytes(path) for path in paths if isinstance(path, str) and _is_usual(path)]
            if len(set(found)) == self.rows:
                return found
        return [b"%06d" % row for row in range(self.rows)]

    def read(self, columns: list[str]) -> Any:
        """Return columns as a pyarrow.Table; ``image.path`` is a part of a column."""
        with self._readable():
            return self._file.read(columns=columns, use_threads=False)

    def copy_images(self, target: str) -> list[tuple[Int64, Int64]]:
        """Write the bytes of all images, and then of their masks, to a new file.

        Args:
            target: Path of the file.

        Returns:
            Offset and size of each, for the column of images and each of masks; a row without one has the size 0.

        Raises:
            UsageError: The file is damaged, or it has the paths of its images only.
            StorageError: The new file cannot be written.
        """
        import numpy as np

        places: list[tuple[Int64, Int64]] = []
        at = 0
        with storage_errors(target), open(target, "xb") as output:
            for name in (self.image, *self.mask_columns):
                starts, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
                for column in self._pieces(name):
                    count = len(column)
                    offsets = np.frombuffer(column.buffers()[1], np.int64, count + 1, 8 * column.offset)
                    if offsets[-1] > offsets[0]:
                        output.write(memoryview(column.buffers()[2])[offsets[0] : offsets[-1]])
                    starts.append(at + offsets[:-1] - offsets[0])
                    there = column.is_valid().to_numpy(zero_copy_only=False)
                    sizes.append(np.where(there, np.diff(offsets), 0))
                    at += int(offsets[-1] - offsets[0])
                places.append((np.concatenate(starts), np.concatenate(sizes)))
        if self.rows and not places[0][1].any():
            step = "embed the images, e.g. with push_to_hub or embed_table_storage of Hugging Face's datasets"
            raise UsageError(self.name, f'its column "{printable(self.image)}" has no bytes of images', step)
        return places

    def _pieces(self, column_name: str) -> Iterator[Any]:
        """Yield the bytes of a column of images, some rows at a time, as arrays of large_binary."""
        import pyarrow as pa
        import pyarrow.compute as pc

        is_struct = pa.types.is_struct(self.schema.field(column_name).type)
        leaf = f"{column_name}.bytes" if is_struct else column_name
        with self._readable():
            for batch in self._file.iter_batches(ROWS_AT_ONCE, columns=[leaf], use_threads=False):
                column = batch.column(0)
                yield (pc.struct_field(column, "bytes") if is_struct else column).cast(pa.large_binary())

    @contextmanager
    def _readable(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except PackerError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk
            raise UsageError(self.name, f"cannot be read as Parquet: {printable(str(error))}", AGAIN) from None


def parquet_members(file: SourceFile, name: str, target: str) -> Iterator[Member]:
    """Copy the images of an open Parquet file.

    Args:
        file: The file.
        name: Its name, for messages.
        target: Path of the new file.

    Returns:
        The images, as members of the new file; then their masks, each in a folder called as its column.

    Raises:
        UsageError: It is damaged, or has no images.
        StorageError: The new file cannot be written.
    """
    parquet = ParquetFile(file, name)
    names = parquet.names()
    prefixes = [b"", *map(mask_prefix, parquet.mask_columns)]
    columns = zip(prefixes, parquet.copy_images(target), strict=True)
    return (
        Member(prefix + path, "image", start, size)
        for prefix, (starts, sizes) in columns
        for path, start, size in zip(names, starts.tolist(), sizes.tolist(), strict=True)
        if size or not prefix
    )


def mask_prefix(column: str) -> bytes:
    """Return how the paths of the masks in a column begin, below the folder that its file stands for."""
    return as_bytes(column.replace("/", "_")) + b"/"


@dataclass(frozen=True)
class Classes:
    """A column of classes."""

    column: str
    names: tuple[str, ...] | None
    """Of the numbers in it; None: the values are the names."""

    def name_of(self, value: Any, origin: str) -> str | None:
        """Return the class of a value, None for none. Raise BadLabel if there is no such class."""
        if value is None or value == "" or (type(value) is int and value == -1):
            return None
        if self.names is None:
            return str(value)
        if type(value) is not int or not 0 <= value < len(self.names):
            given = f'"{printable(self.column)}" is {printable(str(value))}'
            problem = f"{given}, which is none of {len(self.names)} classes"
            raise BadLabel(origin, problem, "correct the class")
        return self.names[value]


def class_names(feature: Any) -> tuple[str, ...] | None:
    """Return the names of a feature of classes, also of a list of them; None if it is not one.

    Raises:
        ValueError: They are not names, or two are equal.
    """
    while isinstance(feature, list | dict):
        if isinstance(feature, list):
            feature = feature[0] if feature else None
        elif feature.get("_type") == "ClassLabel":
            names = feature.get("names")
            if not names:
                return None
            if not isinstance(names, list):
                raise ValueError(f"names of classes are {json_text(names)}, not a list")
            found = tuple(map(name_in, names))
            if again := next((name for name, times in Counter(found).items() if times > 1), None):
                raise ValueError(f"two classes are called {json_text(again)}")
            if "" in found:
                raise ValueError("a class has an empty name")
            return found
        else:
            feature = feature.get("feature")
    return None


def members_of(feature: Any) -> Mapping[str, Any]:
    """Return the features of the members of objects: a struct of lists, or a list of structs."""
    while isinstance(feature, list) or (isinstance(feature, dict) and isinstance(feature.get("_type"), str)):
        feature = (feature or [None])[0] if isinstance(feature, list) else feature.get("feature")
    return feature if isinstance(feature, dict) else {}


def features_of(metadata: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    """Return what Hugging Face's metadata say about each column."""
    try:
        found = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def columns_of_images(schema: Any, features: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of the columns of images, and of their masks: the likeliest first."""
    found = [column.name for column in schema if _holds_images(column, features.get(column.name))]
    masks = sorted(
        (name for name in found if name.lower() in MASK_NAMES), key=lambda name: MASK_NAMES.index(name.lower())
    )
    images = sorted((name for name in found if name not in masks), key=_likelihood)
    return (images, masks) if images else (masks, [])


def _holds_images(column: Any, feature: Any) -> bool:
    import pyarrow as pa

    kind = column.type
    declared = feature.get("_type") if isinstance(feature, dict) else None
    if pa.types.is_struct(kind):
        number = kind.get_field_index("bytes")
        return number >= 0 and _is_binary(kind.field(number).type) and declared in (None, "Image")
    name = column.name.lower()
    return _is_binary(kind) and (
        declared == "Image" or name in IMAGE_COLUMNS or (name in MASK_NAMES and "mask" in name)
    )


def _is_binary(kind: Any) -> bool:
    """Return whether an Arrow type holds bytes."""
    return str(kind) in ("binary", "large_binary", "binary_view")


def _likelihood(name: str) -> int:
    return IMAGE_COLUMNS.index(name.lower()) if name.lower() in IMAGE_COLUMNS else len(IMAGE_COLUMNS)


def _is_usual(path: str) -> bool:
    """Return whether a path may name an image: it is relative, and nothing in it is hidden or leads out."""
    parts = path.split("/")
    return all(part and part[0] != "." and part != "__MACOSX" for part in parts) and not {"\0", "\\"} & set(path)
