"""Reads a pack: the bytes of a record, its annotation, and whole columns; the same code for every container.

It uses only the manifest, the indexes and the mapped bytes, and imports neither a container's library nor torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.errors import AnyPath, BadImage, DamagedPack, plural, printable
from packer.format.index import DTYPES, ENCODINGS
from packer.format.indexes import RESTORE, Indexes
from packer.format.manifest import Manifest, ShardEntry, read_manifest
from packer.format.mmap import map_files
from packer.format.ragged import Ragged
from packer.types import Annotation, Image, Int64, Sample

if TYPE_CHECKING:
    from packer.images.decode import Decoder
    from packer.images.header import Mode

__all__ = ["RESTORE", "Pack", "open_pack"]


def open_pack(path: AnyPath) -> Pack:
    """Open the pack in the directory `path`; the cost does not depend on the number of records.

    An index is verified against its checksum when it is first needed, a record when it is first read.

    Args:
        path: The directory of the pack.

    Raises:
        PackNotFound: The directory is not a pack.
        DamagedPack: The manifest was altered, or a file is missing or has another size.
    """
    return Pack(path)


class Pack:
    """An open pack. Records are numbered from 0 in packing order.

    It can be shared between threads and forked processes, because it holds memory maps and no handles. It is
    pickled as its path; if the pack has been replaced since, unpickling raises DamagedPack.

    Args:
        path: The directory of the pack.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = os.path.abspath(os.fsdecode(path))
        try:
            self.manifest: Manifest = read_manifest(self.path)
            self.shards: tuple[ShardEntry, ...] = self.manifest.shards
            files = [(self._file(s.container.name), s.container.bytes) for s in self.shards]
            self.region, self._starts = map_files(files)
            """The bytes of all container files, and the offset at which each begins."""
            self._indexes = Indexes(self.path, self.shards)
        except DamagedPack as error:
            error.with_location(self.path, self._shard_at(error.where))
            raise
        self._firsts = np.cumsum([0, *(shard.records for shard in self.shards)])
        self._checked = np.zeros(len(self), np.bool_)

    def _file(self, name: str) -> str:
        return self.manifest.path_of(self.path, name)

    def _shard_at(self, file: AnyPath) -> str | None:
        """Return the shard that a file of this pack belongs to; None for the manifest."""
        name = os.path.basename(os.fsdecode(file))
        names = (s.container.name for s in getattr(self, "shards", ()) if name in (s.container.name, s.index.name))
        return next(names, None)

    def __len__(self) -> int:
        return self.manifest.records

    def __repr__(self) -> str:
        how = f"{self.manifest.container} {self.manifest.encoding}"
        return f"<Pack {printable(self.path)}: {plural(len(self), 'record')}, {how}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.manifest.digest)

    # -- where things lie

    @cached_property
    def offsets(self) -> Int64:
        """Where each record begins in `region`, int64 (n,); checked for bounds and overlap."""
        starts = self._starts.tolist()
        return np.concatenate([self._indexes.offsets(number) + start for number, start in enumerate(starts)])

    @cached_property
    def sizes(self) -> Int64:
        """Bytes of each record, int64 (n,)."""
        return self._scalars("size")

    @cached_property
    def record_bytes(self) -> int | None:
        """Bytes per record if all are raw images of one shape, else None."""
        shape, manifest = self.manifest.shape, self.manifest
        if manifest.encoding != "raw" or shape is None or manifest.dtype is None:
            return None
        size = math.prod(shape) * np.dtype(manifest.dtype).itemsize
        wrong = np.flatnonzero(self.sizes != size)
        if len(wrong):
            number, row = self.locate(int(wrong[0]))
            shard = self.shards[number]
            problem = f"row {row} is of {self.sizes[wrong[0]]} bytes, not of {size}"
            raise DamagedPack(self._file(shard.index.name), problem, RESTORE).with_location(
                self.path, shard.container.name
            )
        return size

    def locate(self, i: int) -> tuple[int, int]:
        """Return (number of its shard, row in that shard) of record `i`."""
        self._require(i)
        shard = int(np.searchsorted(self._firsts, i, side="right")) - 1
        return shard, i - int(self._firsts[shard])

    def _require(self, i: int) -> None:
        if not 0 <= i < len(self):
            raise IndexError(f"record {i} of {len(self)}")

    # -- records

    def record(self, i: int) -> memoryview:
        """Return the bytes of record `i`, mapped and read-only.

        Raises:
            DamagedPack: They do not match their checksum, which is verified when this process first reads the record.
        """
        self._require(i)
        if not self._checked[i]:
            self._check_unseen(np.array([i]))
        start = int(self.offsets[i])
        data: memoryview = self.region.data[start : start + int(self.sizes[i])]
        return data

    def check(self, records: Int64) -> None:
        """Verify the checksums of `records`, int64 (n,), unless this process has already done so."""
        seen = self._checked[records]
        if np.count_nonzero(seen) < len(seen):
            self._check_unseen(records[~seen])

    def _check_unseen(self, records: Int64) -> None:
        data, keys = self.region.data, self._keys
        key_data = keys.values.data
        rows = (self.offsets, self.sizes, keys.offsets, keys.offsets[1:], self._crcs)
        # lists of Python numbers: this loop takes most of the first epoch, and numpy scalars would double its time
        for i, start, size, key, key_end, crc in zip(
            records.tolist(), *(numbers[records].tolist() for numbers in rows), strict=True
        ):
            if crc32c(data[start : start + size], crc32c(key_data[key:key_end])) != crc:
                self._damaged(i, "does not match its checksum")
        self._checked[records] = True

    def damage(self, i: int, problem: str) -> DamagedPack:
        """Return the error that record `i` has this `problem`."""
        number, row = self.locate(i)
        shard, key = self.shards[number].container.name, self.key(i)
        error = DamagedPack(self._file(shard), f"record {key} (row {row}) {problem}", RESTORE)
        return error.with_location(self.path, shard, key)

    def _damaged(self, i: int, problem: str) -> NoReturn:
        raise self.damage(i, problem)

    def shape_of(self, i: int) -> tuple[int, int, int]:
        """Return (height, width, channels) of the decoded image of record `i`."""
        if self.manifest.shape is not None:
            return self.manifest.shape
        height, width, channels = (int(self._scalars(name)[i]) for name in ("height", "width", "channels"))
        return height, width, channels

    def dtype_of(self, i: int) -> str:
        """Return the dtype of the decoded image of record `i`, uint8 or uint16."""
        return self.manifest.dtype or self._named("dtype", DTYPES, i)

    def encoding_of(self, i: int) -> str:
        """Return the encoding of record `i`: raw, or the format of an image file."""
        encoding = self.manifest.encoding
        return encoding if encoding != "copy" else self._named("encoding", ENCODINGS, i)

    def _named(self, name: str, names: tuple[str, ...], i: int) -> str:
        code = int(self._scalars(name)[i])
        if not 0 <= code < len(names):
            self._damaged(i, f"has no valid {name} in the index")
        return names[code]

    def image(self, i: int, decoder: str = "auto") -> Image:
        """Return the image of record `i`, (height, width, channels); a read-only view if it is stored raw.

        Args:
            i: Number of the record.
            decoder: JPEG decoder: auto, simplejpeg, opencv or jpeg4py.

        Raises:
            DamagedPack: The record does not match its checksum or its row in the index.
        """
        data, shape, dtype = self.record(i), self.shape_of(i), self.dtype_of(i)
        if self.encoding_of(i) != "raw":
            return self._decoded(i, bytes(data), shape, decoder)
        if min(shape) < 1 or len(data) != np.dtype(dtype).itemsize * shape[0] * shape[1] * shape[2]:
            self._damaged(i, f"has {len(data)} bytes, which is not {dtype} pixels of shape {shape}")
        return np.frombuffer(data, dtype).reshape(shape)

    def _decoded(self, i: int, data: bytes, shape: tuple[int, int, int], decoder: str) -> Image:
        from packer.images.decode import decode
        from packer.images.opencv import quiet_opencv

        mode, decoder = cast("Mode", self.manifest.mode), "lenient" if self.manifest.lenient else decoder
        try:
            # the build has already limited the number of pixels
            with quiet_opencv():
                return decode(data, mode, cast("Decoder", decoder), max_pixels=shape[0] * shape[1])
        except BadImage as error:
            self._damaged(i, f"matches its checksum, but cannot be decoded: {error.problem}")

    def sample(self, i: int, decoder: str = "auto") -> Sample:
        """Return image and annotation of record `i`; `decoder` as in `image`."""
        return Sample(self.image(i, decoder), self.annotation(i))

    # -- annotations

    def annotation(self, i: int) -> Annotation:
        """Return the annotation of record `i`; its arrays are read-only views of the index."""
        shard, row = self.locate(i)
        try:
            return self._indexes.annotations(shard)[row]
        except DamagedPack as error:
            error.with_location(self.path, self.shards[shard].container.name, self.key(i))
            raise

    def column(self, name: str) -> NDArray[Any] | Ragged:
        """Return the column `name` of the index over all shards, without reading images.

        It is joined once, and read-only. docs/formats.md lists the columns.

        Returns:
            Numbers: array (n,); `label` is -1 if an image has none. Lists (boxes, box_labels, landmarks, ...): Ragged,
            in which row i is the array of record i.
        """
        return self._indexes.column(name)

    def parts(self, name: str) -> list[Any]:
        """Return the column `name` of each shard, not copied."""
        return self._indexes.parts(name)

    def rows(self, names: Sequence[str], records: Int64) -> list[list[Any]]:
        """Return the rows of `records` in each column of lists in `names` (boxes, landmarks, ...), not copied."""
        shards = np.searchsorted(self._firsts, records, side="right") - 1
        places = list(zip(shards.tolist(), (records - self._firsts[shards]).tolist(), strict=True))
        # not parts[shard][row], whose checks would be half of the time
        cuts = ([(part.values, part.offsets) for part in self.parts(name)] for name in names)
        return [[cut[s][0][cut[s][1][row] : cut[s][1][row + 1]] for s, row in places] for cut in cuts]

    def _scalars(self, name: str) -> NDArray[Any]:
        return np.asarray(self.column(name))

    @property
    def _crcs(self) -> NDArray[Any]:
        return self._scalars("crc32c")

    @property
    def _keys(self) -> Any:
        return self.column("key")

    def key(self, i: int) -> str:
        """Return the key of record `i`: ``00000042``."""
        return bytes(self._keys[i]).decode("ascii", "replace")

    @cached_property
    def keys(self) -> list[str]:
        """All keys, in order."""
        return [bytes(key).decode("ascii", "replace") for key in self._keys]

    @cached_property
    def paths(self) -> list[bytes]:
        """The path of each record's source file, relative to the source, as bytes."""
        return [bytes(path) for path in self.column("path")]

    @property
    def classes(self) -> list[str]:
        """Class names in id order."""
        return list(self.manifest.classes)


def _reopen(path: str, digest: str) -> Pack:
    pack = Pack(path)
    if pack.manifest.digest != digest:
        raise DamagedPack(path, "was replaced by another pack since it was opened", "open it again").with_location(path)
    return pack
