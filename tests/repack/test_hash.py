"""The digest of a pack's content: the same for the same records, another for any others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import edit_index, flip, vouch
from drawn import draw_voc
from packs import WIDE, MakePack
from running import good, refused

from packer import BuildOptions, build_pack
from packer.format.content import content_digest, deep_digest
from packer.format.indexes import Indexes, IndexFiles
from packer.format.manifest import read_manifest
from packer.format.pack import open_pack


def both(pack: Path) -> tuple[str, str]:
    """The content by the indexes, and by all bytes."""
    return content_digest(open_pack(pack).reader.indexes, read_manifest(pack)), deep_digest(open_pack(pack))


@pytest.mark.parametrize("kind", ["raw", "jpeg", "boxes", "copy"])
def test_the_same_in_every_container(kind: str, make_pack: MakePack) -> None:
    assert len({both(make_pack(kind, container)) for container in WIDE}) == 1


def test_shards_do_not_matter(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    packs = [tmp_path / f"{size}.lmdb" for size in (4000, 9000, None)]
    for pack, size in zip(packs, (4000, 9000, None), strict=True):
        build_pack(BuildOptions(str(source), str(pack), labels=("voc",), shard_bytes=size, workers=1))
    assert len({len(read_manifest(pack).shards) for pack in packs}) == 3
    assert len({both(pack) for pack in packs}) == 1


CHANGES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "label": lambda values: [1 if value != 1 else 0 for value in values],
    "boxes": lambda rows: [[] if row is None else None for row in rows],  # no box is not the same as no label
    "box_labels": lambda rows: [[0, 0] for _ in rows],
    "landmarks": lambda rows: [[[1.0, 2.0]] for _ in rows],
    "extras": lambda rows: ['{"a": 1}' for _ in rows],
    "height": lambda values: [value + 1 for value in values],
    "key": lambda values: [f"1{value[1:]}" for value in values],
    "crc32c": lambda values: [value ^ 1 for value in values],
}


@pytest.mark.parametrize("name", CHANGES)
def test_any_change_shows(name: str, make_pack: MakePack, copied: MakePack) -> None:
    pack = copied("raw", "tfrecord")
    edit_index(pack / read_manifest(pack).shards[1].index.name, name, CHANGES[name])
    vouch(pack)
    manifest = read_manifest(pack)
    unchecked = Indexes(IndexFiles(str(pack), manifest.shards))  # some changes do not fit the rest of the pack
    assert content_digest(unchecked, manifest) != both(make_pack("raw", "tfrecord"))[0]


def test_a_path_is_not_content(make_pack: MakePack, copied: MakePack) -> None:
    pack = copied("raw", "tfrecord")
    edit_index(pack / read_manifest(pack).shards[0].index.name, "path", lambda paths: [b"x" for _ in paths])
    vouch(pack)
    assert both(pack) == both(make_pack("raw", "tfrecord"))


def test_commands(make_pack: MakePack, copied: MakePack) -> None:
    pack = make_pack("boxes", "hdf5")
    shallow, deep = both(pack)
    assert good("hash", pack).out == f"{shallow}  {pack}\n"
    assert good("hash", pack, "--deep").out == f"{deep}  {pack}\n"
    assert json.loads(good("hash", pack, "--json").out) == {
        "path": str(pack), "deep": False, "by_path": False, "content": shallow, "records": 9,
    }  # fmt: skip
    assert json.loads(good("info", pack, "--json").out)["content"] == shallow


def test_only_deep_sees_damaged_images(copied: MakePack) -> None:
    pack = copied("raw", "tfrecord")
    opened = open_pack(pack)
    flip(pack / opened.reader.shards[0].container.name, opened.reader.span(0)[0] + 3)
    good("hash", pack)
    assert "does not match its checksum" in refused(4, "hash", pack, "--deep")
    flip(pack / opened.reader.shards[0].index.name, 900)
    assert "was altered" in refused(4, "hash", pack)
    assert json.loads(good("info", pack, "--json").out)["content"] is None
