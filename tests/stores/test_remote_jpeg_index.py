"""The index of JPEGs of a pack at a URL: each file is fetched once, into the cache, when its shard is read."""

from __future__ import annotations

import ctypes
import gc
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from damage import flip
from indexing import fast
from packs import needs_cache
from running import forked, good
from served import Served

from packer import open_pack
from packer.errors import DamagedPack, StorageError
from packer.format import jpeg_index
from packer.format.jpeg_index import open_jpeg_indexes
from packer.format.jpeg_index_list import JPEG_INDEX_NAME
from packer.repack.index_jpegs import index_jpegs
from packer.stores.obstore import ObstoreStore

__all__ = ["fast"]
FIRST = "jpeg-index.shard-00000.arrow"
pytestmark = [needs_cache, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.fixture
def home(copied: Any, fast: ModuleType) -> Path:
    """A pack of copied files of three formats, with an index of its JPEGs."""
    pack: Path = copied("copy", "tfrecord")
    index_jpegs(pack, workers=1)
    return pack


def content(pack: Any, records: Any = range(24)) -> list[bytes]:
    found = open_jpeg_indexes(pack)
    assert found is not None
    where = zip(*(numbers.tolist() for numbers in found.places(np.array(records))), strict=True)
    return [ctypes.string_at(address, size) if address else b"" for address, size in where]


def warned(pack: Any) -> bytes:
    """The warning with which a pack is read without its index."""
    with pytest.warns(UserWarning) as caught:
        assert open_jpeg_indexes(pack) is None
    return str(caught[0].message).encode()


def fetched(server: Served) -> list[str]:
    return sorted(name for name, _, _ in server.asked if name.startswith("jpeg-index.shard"))


@pytest.mark.parametrize("many_files", [1, 1024])
def test_each_file_is_fetched_once(home: Path, server: Served, many_files: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(jpeg_index, "MANY_FILES", many_files)
    pack, local = open_pack(server.url), open_pack(home)
    right, shards = content(local), len(local.reader.shards)
    assert shards > 2 and sum(map(bool, right)) == 9
    assert content(pack, [0]) == right[:1] and fetched(server) == [FIRST]
    assert content(pack) == content(open_pack(server.url)) == right
    assert fetched(server) == [f"jpeg-index.shard-{number:05d}.arrow" for number in range(shards)]
    assert content(open_pack(server.url, cache_bytes=0)) == right
    assert len(fetched(server)) == 2 * shards
    assert forked(partial(warned, pack)).startswith(b"JPEGs are decoded without an index, if there is one: store: cann")
    del pack
    gc.collect()
    good("cache", "--clear", server.url, "--yes")
    assert content(open_pack(server.url)) == right


def test_what_is_wrong_in_the_cache_is_fetched_again(home: Path, server: Served) -> None:
    right = content(open_pack(home))
    pack = open_pack(server.url)
    assert content(pack) == right
    flip(Path(pack.reader.folder) / FIRST, 700)
    assert content(pack) == right and fetched(server).count(FIRST) == 2
    index_jpegs(home, "4", workers=1)  # the same pack with another index
    assert content(open_pack(server.url)) == content(open_pack(home)) != right


def test_what_is_wrong_in_the_store_is_an_error(home: Path, server: Served) -> None:
    flip(home / FIRST, 700)
    with pytest.raises(DamagedPack, match=rf"{FIRST}: was altered: .*; make it again in a copy, and s") as caught:
        content(open_pack(server.url))
    assert caught.value.pack == server.url
    (home / FIRST).unlink()
    with pytest.raises(DamagedPack, match=f"{FIRST}: is missing"):
        content(open_pack(server.url))
    flip(home / JPEG_INDEX_NAME, 60)
    with pytest.raises(DamagedPack, match=f"{JPEG_INDEX_NAME}: does not match its own digest"):
        content(open_pack(server.url))
    (home / JPEG_INDEX_NAME).unlink()
    assert open_jpeg_indexes(open_pack(server.url)) is None


def test_packs_are_read_without_it(home: Path, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache is too small for both, and where a store does not say whether there is one."""
    size = sum(shard.container.bytes for shard in open_pack(home).reader.shards)
    assert open_jpeg_indexes(open_pack(server.url, cache_bytes=size)) is None
    assert open_jpeg_indexes(open_pack(server.url, cache_bytes=2 * size + 200_000)) is not None
    pack = open_pack(server.url)

    def refuse(store: ObstoreStore, name: str) -> Any:
        raise StorageError(name, "access denied")

    monkeypatch.setattr(ObstoreStore, "read", refuse)
    assert warned(pack).endswith(b": jpeg-index.json: access denied")
