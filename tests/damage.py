"""Damages packs on purpose: changes files, and makes manifests that vouch for the change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from packer import Pack
from packer.format.digests import crc32c_of, sha256_of
from packer.format.manifest import FileEntry, IndexEntry, Manifest, read_manifest

MULTIPLE = (0x82F63B78 << 1 | 1).to_bytes(5, "little")
"""The generator of CRC-32C as bits of a message: adding it changes no checksum."""
Edit = Callable[[Manifest], Manifest]


def shard_files(pack: Path, number: int) -> tuple[Path, Path]:
    """The container and the index of a shard."""
    shard = read_manifest(pack).shards[number]
    return pack / shard.container.name, pack / shard.index.name


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x01
    path.write_bytes(data)


def forge(pack: Pack, folder: Path) -> None:
    """Change five bytes of each record of a pack in the files of a folder, so that its checksum stays right."""
    for record, offset in enumerate(pack.column("offset").tolist()):
        path = folder / pack.reader.shards[pack.reader.locate(record)[0]].container.name
        data = bytearray(path.read_bytes())
        for place, bits in enumerate(MULTIPLE, offset):
            data[place] ^= bits
        path.write_bytes(data)


def exchange(a: Path, b: Path) -> None:
    """Let two files change places."""
    aside = a.with_name("aside")
    a.rename(aside)
    b.rename(a)
    aside.rename(b)


def vouch(pack: Path, edit: Edit = lambda manifest: manifest) -> None:
    """Write a manifest that says the files are right as they are now."""

    def entry(file: FileEntry) -> FileEntry:
        path = pack / file.name
        return FileEntry(file.name, path.stat().st_size, sha256_of(str(path)))

    def checked(file: IndexEntry) -> IndexEntry:
        path = pack / file.name
        return IndexEntry(file.name, path.stat().st_size, sha256_of(str(path)), crc32c_of(str(path)))

    manifest = edit(read_manifest(pack))
    shards = tuple(replace(s, container=entry(s.container), index=checked(s.index)) for s in manifest.shards)
    (pack / "pack.json").write_bytes(replace(manifest, shards=shards).to_json())


def edit_index(path: Path, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """Put other values into a column of an index; for `dtype` and `encoding` these are codes."""
    batch = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).get_batch(0)
    arrays = list(batch.columns)
    k = batch.schema.get_field_index(name)
    kind = batch.schema.field(k).type
    if pa.types.is_dictionary(kind):
        codes = pa.array(change(arrays[k].indices.to_pylist()), pa.int8())
        arrays[k] = pa.DictionaryArray.from_arrays(codes, arrays[k].dictionary, safe=False)
    else:
        arrays[k] = pa.array(change(arrays[k].to_pylist()), kind)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=batch.schema))
