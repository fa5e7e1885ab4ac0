"""A shard written again has the records that its index names, and not a byte of the others, in every container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packs import MakePack
from part_packs import add_parts, bytes_of

from packer import edit, open_pack
from packer.containers import CONTAINERS
from packer.errors import DamagedPack, UsageError
from packer.format.content import content_digest
from packer.format.index import read_index
from packer.format.manifest import read_manifest
from packer.format.verify import verify
from packer.repack.compact import compact_shard, dead_records

DELETED = (1, 2, 9, 23)


def content(pack: Path) -> str:
    opened = open_pack(pack)
    return content_digest(opened.reader.indexes, opened.manifest)


def compacted(pack: Path, out: Path) -> Path:
    """The pack of all shards of a pack, each written again."""
    manifest = read_manifest(pack)
    out.mkdir()
    made = []
    for number, shard in enumerate(manifest.shards):
        stem, dot, suffix = shard.container.name.partition(".")
        names = f"{stem}.v2{dot}{suffix}", f"{stem}.v2.index.arrow"
        made.append(compact_shard(str(pack), manifest, number, str(out), names))
    companions = {one.entry.container.name: one.companion for one in made if one.companion is not None}
    shards = tuple(one.entry for one in made)
    new = replace(manifest, shards=shards, companions=companions, linked={}, lists={})
    (out / "pack.json").write_bytes(new.to_json())
    return out


@pytest.mark.parametrize("kind", ["raw", "copy", "parts", "boxes"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_what_was_deleted_is_gone(tmp_path: Path, make_pack: MakePack, container: str, kind: str) -> None:
    pack = make_pack("raw" if kind == "parts" else kind, container)
    if kind == "parts":
        pack = add_parts(pack, tmp_path / "parts")
    deleted = [number for number in DELETED if number < read_manifest(pack).records]
    with open_pack(pack) as opened:
        secrets = [bytes(opened.record(number)) for number in deleted]
    if kind == "parts":
        secrets += [data for number in deleted for data in bytes_of(number).values() if len(data) > 40]
    edit(pack, tmp_path / "edited", delete=deleted)
    before = b"".join(path.read_bytes() for path in (tmp_path / "edited").iterdir())
    new = compacted(tmp_path / "edited", tmp_path / "new")
    after = b"".join(path.read_bytes() for path in new.iterdir())
    assert all(secret in before and secret not in after for secret in secrets)
    assert content(new) == content(tmp_path / "edited") != content(pack)
    assert not verify(new, deep=kind != "parts").problems


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_is_dead_is_counted(tmp_path: Path, make_pack: MakePack, container: str) -> None:
    pack = add_parts(make_pack("raw", container), tmp_path / "parts")
    edit(pack, tmp_path / "edited", delete=DELETED)
    new = compacted(tmp_path / "edited", tmp_path / "new")
    total = []
    for folder in (pack, tmp_path / "edited", new):
        manifest = read_manifest(folder)
        tables = [(folder / shard.container.name, read_index(folder / shard.index.name)) for shard in manifest.shards]
        dead = [dead_records(str(path), container, table) for path, table in tables]
        total.append((sum(one.records for one in dead), sum(one.bytes for one in dead)))
    with open_pack(pack) as opened:
        size = sum(len(opened.record(number)) for number in DELETED)
    size += sum(len(data) for number in DELETED for data in bytes_of(number).values())
    assert total == [(0, 0), (len(DELETED), size), (0, 0)]


def test_a_shard_that_is_whole_gets_the_same_bytes(tmp_path: Path, make_pack: MakePack) -> None:
    for container in CONTAINERS:
        pack = make_pack("raw", container)
        new = compacted(pack, tmp_path / container)
        for one, other in zip(read_manifest(pack).shards, read_manifest(new).shards, strict=True):
            assert (one.container.sha256, one.index.sha256) == (other.container.sha256, other.index.sha256), container


def test_a_damaged_record_is_not_copied(tmp_path: Path, copied: MakePack) -> None:
    pack = copied("raw", "lmdb")
    shard = read_manifest(pack).shards[0]
    offset = int(np.asarray(read_index(pack / shard.index.name).column("offset"))[0])
    with open(pack / shard.container.name, "r+b") as file:
        file.seek(offset)
        file.write(b"\0\1\2\3")
    (tmp_path / "out").mkdir()
    with pytest.raises(DamagedPack, match="does not match its checksum"):
        compact_shard(str(pack), read_manifest(pack), 0, str(tmp_path / "out"), ("a.mdb", "a.index.arrow"))
    assert not [*(tmp_path / "out").iterdir()]


def test_what_cannot_be_written_again(tmp_path: Path, copied: MakePack) -> None:
    pack = copied("raw", "lmdb")
    manifest = replace(read_manifest(pack), container="mds")
    with pytest.raises(UsageError, match="which packer does not write; make a pack of its own"):
        compact_shard(str(pack), manifest, 0, str(tmp_path), ("a.mds", "a.index.arrow"))
