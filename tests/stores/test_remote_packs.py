"""A pack at a URL gives what the same pack on the disk gives, and each of its bytes is fetched once."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_proxy import Fault, FaultProxy
from packs import needs_cache
from running import forked
from served import Served, all_of, shuffled

from packer import open_pack
from packer.errors import DamagedPack, PackNotFound, StorageError, UsageError
from packer.format import remote as remote_module
from packer.stores import store as objects
from packer.stores.blocks import BlockLayout, runs
from packer.stores.cache import limit_of
from packer.stores.obstore import ObstoreStore
from packer.stores.store import NotReached

KINDS = [("raw", "lmdb"), ("ragged", "hdf5"), ("jpeg", "webdataset"), ("copy", "tfrecord"), ("boxes", "parquet")]
pytestmark = [needs_cache, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.mark.parametrize(("kind", "container"), KINDS)
def test_a_url_gives_what_the_folder_gives(make_pack, kind, container):
    home = make_pack(kind, container)
    local, pack = open_pack(home), open_pack(home.as_uri())
    assert pack.path == home.as_uri()
    assert all_of(pack) == all_of(local)
    assert np.array_equal(pack.image(3), local.image(3))
    assert all_of(pickle.loads(pickle.dumps(pack))) == all_of(local)
    assert str(home) not in pack.reader.folder
    assert home.as_uri() in repr(pack)


def test_each_block_is_fetched_once_in_any_order(home: Path, server: Served):
    local, pack = open_pack(home), open_pack(server.url)
    for i in shuffled(pack):
        assert pack.record(i) == local.record(i)
    assert set(server.blocks().values()) == {1}
    asked = len(server.asked)
    assert all_of(pack) == all_of(open_pack(server.url)) == all_of(local)
    assert server.asked[asked:] == [("pack.json", 0, len((home / "pack.json").read_bytes()))]


def test_reading_in_order_is_ahead_of_the_reader(server: Served):
    pack = open_pack(server.url)
    all_of(pack)
    requests = sum(name.endswith("tfrecord") for name, _, _ in server.asked)
    assert requests <= len(server.blocks()) / 2
    assert set(server.blocks().values()) == {1}


def test_threads_wait_for_each_others_blocks(home: Path, server: Served):
    pack, expected = open_pack(server.url), all_of(open_pack(home))
    found: list[list[bytes]] = []

    def read(seed: int) -> None:
        content = {i: bytes(pack.record(i)) for i in shuffled(pack, seed)}
        found.append([content[i] for i in range(len(pack))])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[data for data, _ in expected]] * 4
    assert set(server.blocks().values()) == {1}


@pytest.mark.parametrize("fault", ["cut", "close", "503"])
def test_what_passes_is_asked_again(home: Path, server: Served, fault, monkeypatch):
    monkeypatch.setattr("packer.stores.obstore.BACKOFF_S", 0.001)
    seen = set()

    def once(name: str, start: int, stop: int) -> object:
        first = (name, start) not in seen and name.endswith("tfrecord") and len(seen) < 4
        seen.add((name, start))
        return fault if first else None

    server.fault = once
    assert all_of(open_pack(server.url)) == all_of(open_pack(home))
    assert set(server.blocks().values()) == {1}


def test_a_store_that_is_away_in_the_middle_is_waited_for(home: Path, server: Served, monkeypatch):
    get, asked = ObstoreStore.get, Counter[str]()

    def away(store: ObstoreStore, name: str, *given: Any) -> Any:
        asked[name] += name.endswith("tfrecord")
        if 0 < asked[name] <= times:
            raise NotReached(name, "cannot be reached")
        return get(store, name, *given)

    monkeypatch.setattr(ObstoreStore, "get", away)
    monkeypatch.setattr(objects, "AWAY_PAUSE_S", 0)
    times = 3
    assert all_of(open_pack(server.url, cache_bytes=0)) == all_of(open_pack(home))
    times = 1 << 60
    monkeypatch.setattr(objects, "AWAY_S", 0)
    with pytest.raises(NotReached):
        open_pack(server.url, cache_bytes=0).record(0)


@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_a_store_that_is_away_when_a_pack_is_opened_is_waited_for(home: Path, server: Served, cache_bytes, monkeypatch):
    get, asked, times = ObstoreStore.get, Counter[str](), 3

    def away(store: ObstoreStore, name: str, *given: Any) -> Any:
        asked[name] += 1
        if asked[name] <= times:
            raise NotReached(name, "cannot be reached")
        return get(store, name, *given)

    monkeypatch.setattr(ObstoreStore, "get", away)
    monkeypatch.setattr(objects, "AWAY_PAUSE_S", 0)
    with pytest.warns(UserWarning, match=r"pack\.json cannot be reached; it is waited for"):
        pack = open_pack(server.url, cache_bytes=cache_bytes)
    assert all_of(pack) == all_of(open_pack(home))
    assert {name for name, count in asked.items() if count > times} >= {path.name for path in home.glob("*.arrow")}
    asked.clear()
    times = 1 << 60
    monkeypatch.setattr(objects, "AWAY_S", 0)
    with pytest.raises(NotReached):
        open_pack(server.url, cache_bytes=0)
    assert asked == {"pack.json": 1}


@pytest.mark.parametrize("status", [400, 404, 410])
def test_an_answer_is_not_waited_for(status: int, server: Served, monkeypatch):
    monkeypatch.setattr(server.RequestHandlerClass, "_answer", lambda self, *_: (status, self._send(status, {}, b"")))
    with pytest.raises(PackNotFound if status == 404 else StorageError) as caught:
        open_pack(server.url)
    with server.settled():
        assert not isinstance(caught.value, NotReached) and len(server.answers) == 1


@pytest.mark.parametrize("fault", ["flips", "shift"])
def test_wrong_bytes_are_fetched_again_and_then_an_error(home: Path, server: Served, fault):
    local, seen = open_pack(home), set()

    def first_time(name: str, start: int, stop: int) -> object:
        first = (name, start) not in seen and name.endswith("tfrecord") and start % BlockLayout.BLOCK_BYTES == 0
        seen.add((name, start))
        return fault if first else None

    server.fault = first_time
    assert all_of(open_pack(server.url)) == all_of(local)
    shutil.rmtree(os.environ["PACKER_CACHE"])
    server.fault = lambda name, start, stop: fault if name == "shard-00001.tfrecord" else None
    pack = open_pack(server.url)
    damaged = 0
    for i in range(len(pack)):
        try:
            assert pack.record(i) == local.record(i)
        except DamagedPack as error:
            damaged += 1
            assert (error.shard, error.key, error.pack) == ("shard-00001.tfrecord", pack.key(i), server.url)
            assert server.url in str(error)
    assert damaged > 0


def test_servers_that_answer_a_range_of_all_bytes_without_one(home: Path, monkeypatch):
    monkeypatch.setattr(BlockLayout, "BLOCK_BYTES", 1 << 20)
    with FaultProxy(home) as server:
        server.faults = [Fault("whole")]
        assert all_of(open_pack(server.url)) == all_of(open_pack(home))


def test_what_is_damaged_on_the_disk_is_fetched_again(home: Path, server: Served):
    pack = open_pack(server.url)
    expected = all_of(pack)
    for file in Path(pack.reader.folder).iterdir():
        if file.suffix in (".tfrecord", ".arrow"):
            with open(file, "r+b") as opened:
                opened.write(bytes(file.stat().st_size))
    assert all_of(open_pack(server.url)) == expected


def test_a_cut_file_of_the_cache_is_filled_again(server: Served):
    folder = open_pack(server.url).reader.folder
    expected = all_of(open_pack(server.url))
    (Path(folder) / "shard-00001.tfrecord").unlink()
    os.truncate(Path(folder) / "shard-00000.index.arrow", 5)
    assert all_of(open_pack(server.url)) == expected


def test_objects_that_are_not_what_they_were(copied, monkeypatch):
    home = copied("raw", "tfrecord")
    with Served(home) as server:
        pack = open_pack(server.url)
        pack.record(0)
        name = "shard-00000.tfrecord"
        data = (home / name).read_bytes()
        (home / name).write_bytes(data[:-1] + b"x")
        with pytest.raises(DamagedPack, match=f"{server.url}/{name}: was replaced") as caught:
            all_of(pack)
        assert caught.value.shard == name
        (home / name).write_bytes(data + b"longer")
        shutil.rmtree(os.environ["PACKER_CACHE"])
        with pytest.raises(DamagedPack, match="bytes, but the pack says"):
            all_of(open_pack(server.url))
        (home / name).unlink()
        with pytest.raises(DamagedPack, match=f"{name}: is missing"):
            all_of(open_pack(server.url))
        index = home / "shard-00001.index.arrow"
        index.write_bytes(index.read_bytes()[:-1] + b"x")
        shutil.rmtree(os.environ["PACKER_CACHE"])
        with pytest.raises(DamagedPack, match=f"{index.name}: was altered"):
            open_pack(server.url)
        (home / "pack.json").unlink()
        with pytest.raises(PackNotFound, match="is not a pack"):
            open_pack(server.url)


def test_a_store_that_does_not_answer_is_an_error(home: Path):
    with Served(home) as server:
        pack = open_pack(server.url, cache_bytes=0)
        server.fault = lambda name, start, stop: "404"
    with pytest.raises(DamagedPack), Served(home) as other:
        other.fault = lambda name, start, stop: "404" if name.endswith("tfrecord") else None
        open_pack(other.url).record(0)
    assert pack.reader.remote is not None


def test_another_pack_at_the_url_is_another_folder(make_pack, tmp_path):
    here = Path(shutil.copytree(make_pack("raw", "tfrecord"), tmp_path / "here"))
    first = open_pack(here.as_uri())
    all_of(first)
    shutil.rmtree(here)
    shutil.copytree(make_pack("jpeg", "tfrecord"), here)
    with pytest.raises(DamagedPack, match="was replaced by another pack"):
        pickle.loads(pickle.dumps(first))
    second = open_pack(here.as_uri())
    assert second.reader.folder != first.reader.folder
    assert all_of(second) == all_of(open_pack(here))


def test_in_memory_nothing_is_written(home: Path, server: Served):
    pack = open_pack(server.url, cache_bytes=0)
    assert all_of(pack) == all_of(open_pack(home))
    assert set(server.blocks().values()) == {1}
    assert not Path(os.environ["PACKER_CACHE"]).exists()
    assert forked(lambda: bytes(pack.record(1))) == bytes(pack.record(1))


def test_memory_that_does_not_suffice_is_refused(home: Path, monkeypatch):
    monkeypatch.setattr(remote_module, "available_bytes", lambda: 100)
    with pytest.raises(UsageError, match="only 100 bytes of memory is free"):
        open_pack(home.as_uri(), cache_bytes=0)


@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_a_forked_child_reads_what_is_there_and_asks_for_nothing(server: Served, cache_bytes):
    pack = open_pack(server.url, cache_bytes=cache_bytes)
    expected = bytes(pack.record(0))
    last = len(pack) - 1

    def child() -> bytes:
        try:
            pack.record(last)
        except UsageError as error:
            return bytes(pack.record(0)) + str(error).encode()
        return b""

    found = forked(child)
    assert found.startswith(expected)
    assert b"forkserver" in found
    assert bytes(pack.record(last))  # the parent goes on
    assert forked(lambda: bytes(pack.record(last))) == bytes(pack.record(last))


def test_without_the_locks_of_linux_it_is_refused(home: Path, monkeypatch):
    monkeypatch.setattr(remote_module, "HAS_BYTE_LOCKS", False)
    with pytest.raises(UsageError, match="needs the locks of Linux"):
        open_pack(home.as_uri())
    assert all_of(open_pack(home.as_uri(), cache_bytes=0)) == all_of(open_pack(home))


def test_the_folder_of_a_cache_is_no_pack(home: Path):
    with pytest.raises(UsageError, match=f"cache of a pack at a URL; open {home.as_uri()}"):
        open_pack(open_pack(home.as_uri()).reader.folder)


def test_a_folder_that_is_not_the_caches_stays(home: Path, tmp_path):
    folder = Path(open_pack(home.as_uri()).reader.folder)
    (folder / "origin.json").unlink()
    with pytest.raises(UsageError, match="is not a folder of packer's cache"):
        open_pack(home.as_uri())


def test_a_cache_folder_that_cannot_be_used(home: Path, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot be used as a cache"):
        open_pack(home.as_uri(), cache_dir=tmp_path / "file")


def test_the_cache_of_another_version_is_not_touched(home: Path):
    folder = Path(open_pack(home.as_uri()).reader.folder)
    with open(folder / "blocks", "r+b") as file:
        file.write(b"PKBLOCK9")
    with pytest.raises(StorageError, match="another version"):
        open_pack(home.as_uri())


@pytest.mark.parametrize(
    ("given", "size"),
    [(None, None), (0, 0), ("0", 0), (5, 5), ("500GB", 500 << 30), ("1.5 m", 3 << 19), ("2kb", 2048), ("1T", 1 << 40)],
)
def test_sizes_of_the_cache(given, size):
    assert limit_of(given) == size


@pytest.mark.parametrize("given", [-1, "", "GB", "many", "5 apples", True, "1e400", float("nan")])
def test_no_sizes_of_the_cache(given):
    with pytest.raises(UsageError, match="cache_bytes: must be a size"):
        limit_of(given)


def test_blocks_and_extents():
    layout = BlockLayout([0, 1, 512, 513, 512 * 9])
    assert layout.first_blocks.tolist() == [0, 0, 1, 2, 4, 13]
    assert layout.files.tolist() == [1, 2, 3, 3, *[4] * 9]
    assert layout.extents.tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5]
    assert layout.first_of_extent.tolist() == [0, 1, 2, 4, 8, 12, 13]
    assert [layout.span(b, 1) for b in (0, 3, 12)] == [(1, 0, 1), (3, 512, 513), (4, 4096, 4608)]
    assert list(runs([1, 2, 3, 7, 9, 10])) == [(1, 3), (7, 1), (9, 2)]
    assert list(runs([])) == []
