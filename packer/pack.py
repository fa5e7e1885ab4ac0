"""Reads a pack: the bytes of a record, its annotation, and whole columns; the same code for every container.

Only the manifest, the indexes and the mapped bytes are used, never a container's library. Nothing here
imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from packer.columns import Annotations, column
from packer.errors import AnyPath, DamagedPack, shown
from packer.index import DTYPES, ENCODINGS, read_index
from packer.manifest import Manifest, ShardEntry, read_manifest
from packer.mapping import map_files
from packer.ragged import Ragged
from packer.sample import Annotation, Image, Int64, Sample

if TYPE_CHECKING:
    from packer.ops.decode import Decoder
    from packer.ops.header import Mode


def open_pack(path: AnyPath) -> Pack:
    """Open the pack in the directory `path`; the cost does not depend on the number of records.

    Raises UsageError where there is no pack, DamagedPack where a file is missing, of another size than the
    manifest says, or not what it should be.
    """
    return Pack(path)


class Pack:
    """An open pack. Records are numbered from 0 in the order in which they were packed.

    Safe to share between threads and forked processes: it holds memory maps and no handle. Pickles as its
    path; where the pack was replaced in between, unpickling raises DamagedPack.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = os.path.abspath(os.fsdecode(path))
        self.manifest: Manifest = read_manifest(self.path)
        self.shards: tuple[ShardEntry, ...] = self.manifest.shards
        files = [(self._file(s.container.name), s.container.bytes) for s in self.shards]
        self.region, self._starts = map_files(files)
        """All container files one after another, uint8, read-only; and where each begins."""
        self._tables = [self._open_index(shard) for shard in self.shards]
        self._firsts = np.cumsum([0, *(shard.records for shard in self.shards)])
        self._checked = np.zeros(len(self), np.bool_)

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _open_index(self, shard: ShardEntry) -> Any:
        path = self._file(shard.index.name)
        data, _ = map_files([(path, shard.index.bytes)])
        table = read_index(path, data[: shard.index.bytes])
        if len(table) != shard.records:
            raise DamagedPack(path, f"has {len(table)} rows where the pack says {shard.records}", "build it again")
        return table

    def __len__(self) -> int:
        return self.manifest.records

    def __repr__(self) -> str:
        return f"<Pack {shown(self.path)}: {len(self)} records, {self.manifest.container} {self.manifest.encoding}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.manifest.digest)

    # -- where things lie

    @cached_property
    def offsets(self) -> Int64:
        """Where each record's bytes begin in `region`, int64 (n,); checked to lie inside its own file."""
        parts = []
        for shard, table, start in zip(self.shards, self._tables, self._starts.tolist(), strict=True):
            offsets, sizes = np.asarray(column(table, "offset")), np.asarray(column(table, "size"))
            limit = shard.container.bytes
            if np.any((offsets < 0) | (sizes < 0) | (sizes > limit) | (offsets > limit - sizes)):
                raise DamagedPack(
                    self._file(shard.index.name), "names bytes outside of its shard", "build the pack again"
                )
            parts.append(offsets + start)
        return np.concatenate(parts)

    @cached_property
    def sizes(self) -> Int64:
        """Bytes of each record, int64 (n,)."""
        return self._scalars("size")

    @cached_property
    def record_bytes(self) -> int | None:
        """Bytes of every record where all are raw images of one shape, else None."""
        shape, manifest = self.manifest.shape, self.manifest
        if manifest.encoding != "raw" or shape is None or manifest.dtype is None:
            return None
        size = int(np.prod(shape)) * np.dtype(manifest.dtype).itemsize
        if (self.sizes != size).any():
            raise DamagedPack(self.path, f"has raw records that are not of {size} bytes", "build the pack again")
        return size

    def locate(self, i: int) -> tuple[int, int]:
        """(number of its shard, row in that shard) of record `i`."""
        shard = int(np.searchsorted(self._firsts, i, side="right")) - 1
        return shard, i - int(self._firsts[shard])

    # -- records

    def record(self, i: int) -> memoryview:
        """The bytes of record `i`, mapped, not copied; read-only.

        Raises DamagedPack where they do not match their checksum, which is looked at the first time that
        this process touches the record.
        """
        self.check((i,))
        start = int(self.offsets[i])
        return self.region.data[start : start + int(self.sizes[i])]

    def check(self, records: Iterable[int]) -> None:
        """Hold the bytes of these records against their checksums, those not yet seen by this process."""
        checked, view = self._checked, self.region.data
        for i in records:
            if checked[i]:
                continue
            start, size = int(self.offsets[i]), int(self.sizes[i])
            if crc32c(view[start : start + size], crc32c(self._keys[i])) != self._crcs[i]:
                self._damaged(i)
            checked[i] = True

    def check_all(self, records: Int64) -> None:
        """As `check`, for an array of record numbers; nearly free where all were seen before."""
        unseen = records[~self._checked[records]]
        if len(unseen):
            self.check(unseen.tolist())

    def _damaged(self, i: int) -> None:
        shard, row = self.locate(i)
        raise DamagedPack(
            self._file(self.shards[shard].container.name),
            f"record {self.key(i)} (row {row}) does not match its checksum",
            "run packer verify, and restore the file or build the pack again",
        )

    def shape_of(self, i: int) -> tuple[int, int, int]:
        """(height, width, channels) of the decoded image of record `i`."""
        if self.manifest.shape is not None:
            return self.manifest.shape
        return tuple(int(self._scalars(name)[i]) for name in ("height", "width", "channels"))  # type: ignore[return-value]

    def dtype_of(self, i: int) -> str:
        """uint8 or uint16: of the decoded image of record `i`."""
        return self.manifest.dtype or DTYPES[int(self._scalars("dtype")[i])]

    def encoding_of(self, i: int) -> str:
        """raw, or the format of the image file that record `i` holds."""
        encoding = self.manifest.encoding
        return encoding if encoding != "copy" else ENCODINGS[int(self._scalars("encoding")[i])]

    def image(self, i: int, decoder: str = "auto") -> Image:
        """The image of record `i`, (height, width, channels); a read-only view where it is stored raw."""
        data = self.record(i)
        if self.encoding_of(i) == "raw":
            return np.frombuffer(data, self.dtype_of(i)).reshape(self.shape_of(i))
        from packer.ops.decode import decode

        return decode(bytes(data), cast("Mode", self.manifest.mode), cast("Decoder", decoder))

    def sample(self, i: int, decoder: str = "auto") -> Sample:
        """Image and annotation of record `i`."""
        return Sample(self.image(i, decoder), self.annotation(i))

    # -- annotations

    def annotation(self, i: int) -> Annotation:
        """The annotation of record `i`; its arrays are read-only views of the index."""
        shard, row = self.locate(i)
        return self._annotations[shard][row]

    @cached_property
    def _annotations(self) -> list[Annotations]:
        return [Annotations(table) for table in self._tables]

    def column(self, name: str) -> NDArray[Any] | Ragged:
        """A column of the index over all shards, no image touched (docs/formats.md lists the columns).

        Numbers: array (n,), `label` -1 where an image has none. Lists (boxes, box_labels, landmarks, ...):
        Ragged, row i being the array of record i.
        """
        parts = [column(table, name) for table in self._tables]
        ragged = [part for part in parts if isinstance(part, Ragged)]
        if ragged:
            return Ragged.concat(ragged)
        return np.concatenate([np.asarray(part) for part in parts]) if len(parts) > 1 else parts[0]

    def _scalars(self, name: str) -> NDArray[Any]:
        values = self._cache.get(name)
        if values is None:
            values = self._cache[name] = np.asarray(self.column(name))
        return values

    @cached_property
    def _cache(self) -> dict[str, NDArray[Any]]:
        return {}

    @cached_property
    def _crcs(self) -> NDArray[Any]:
        return self._scalars("crc32c")

    @cached_property
    def _keys(self) -> Any:
        return self.column("key")

    def key(self, i: int) -> str:
        """The key of record `i`: ``00000042``."""
        return bytes(self._keys[i]).decode("ascii", "replace")

    @cached_property
    def keys(self) -> list[str]:
        """All keys, in order."""
        return [bytes(key).decode("ascii", "replace") for key in self._keys]

    @cached_property
    def paths(self) -> list[bytes]:
        """The path of each record's source file, relative to the source, in its own bytes."""
        return [bytes(path) for path in self.column("path")]

    @property
    def classes(self) -> list[str]:
        """Class names in id order."""
        return list(self.manifest.classes)


def _reopen(path: str, digest: str) -> Pack:
    pack = Pack(path)
    if pack.manifest.digest != digest:
        raise DamagedPack(path, "was replaced by another pack since it was opened", "open it again")
    return pack
