"""The cache of remote packs: several processes, eviction, full disks; nothing is removed that is not its own."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from damage import forge
from packs import needs_cache
from served import Served, all_of, settle, shuffled

from packer import open_pack
from packer.errors import StorageError
from packer.stores.blocks import BlockLayout, MemoryBlocks
from packer.stores.cache import Cache, cache_at
from packer.stores.fetch import OTHERS_S, Fetcher
from packer.system import atomic, storage

pytestmark = needs_cache
READER = """
import sys
from packer.stores.blocks import BlockLayout
BlockLayout.BLOCK_BYTES, BlockLayout.EXTENT_BLOCKS = 512, 4
from packer import open_pack
pack = open_pack(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for i in range(len(pack)):  # backwards: nothing is read ahead
    pack.record((int(sys.argv[2]) - i) % len(pack))
print("done", flush=True)
"""


OPENER = """
import sys
from packer import open_pack
print("ready", flush=True)
sys.stdin.readline()
print(len(open_pack(sys.argv[1])))
"""


def reader(url: str, first: int) -> subprocess.Popen:
    """A process that reads all records, one at a time and from this one on, as soon as it is told to."""
    command = [sys.executable, "-c", READER, url, str(first)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_share_a_cache_and_one_is_killed(home: Path, server: Served):
    server.fault = lambda name, start, stop: time.sleep(0.002)
    names = ["victim", "b", "c"]
    found = {name: reader(server.url, 8 * n) for n, name in enumerate(names)}
    for process in found.values():
        assert process.stdout.readline() == "ready\n"
    server.clear()
    for process in found.values():
        process.stdin.write("go\n")
        process.stdin.flush()
    while len(server.answers) < 9 and found["b"].poll() is None:
        time.sleep(0.001)
    found["victim"].kill()
    found["victim"].communicate()
    assert found["victim"].returncode in (-signal.SIGKILL, 0)
    assert [found[name].communicate()[0] for name in ("b", "c")] == ["done\n"] * 2
    counts = server.blocks()
    twice = {block for block, count in counts.items() if count > 1}
    assert len(twice) <= 4  # what it was about to write: one request
    assert max(counts.values()) <= 2
    asked = len(server.asked)
    assert all_of(open_pack(server.url)) == all_of(open_pack(home))
    assert len(server.asked) == asked + 1  # pack.json


def test_of_processes_that_open_a_pack_at_once_one_fetches_each_index(home: Path, server: Served):
    server.fault = lambda name, start, stop: time.sleep(0.05) if name.endswith(".arrow") else None
    command = [sys.executable, "-c", OPENER, server.url]
    found = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in found:
        assert process.stdout.readline() == "ready\n"
    for process in found:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in found] == [f"{len(open_pack(home))}\n"] * 4
    indexes = Counter(name for name, _, _ in server.asked if name.endswith(".arrow"))
    assert indexes == Counter(path.name for path in home.glob("*.arrow"))


def filled(url: str, **options) -> Path:
    pack = open_pack(url, **options)
    all_of(pack)
    settle(pack)
    return Path(pack.reader.folder)


def holes(path: Path) -> int:
    return path.stat().st_size - 512 * path.stat().st_blocks


def test_the_least_recently_used_goes_first(make_pack, monkeypatch):
    folders = []
    for age, kind in ((100, "raw"), (300, "jpeg"), (200, "ragged")):
        monkeypatch.setattr(time, "time", lambda age=age: 10_000.0 - age)
        folders.append(filled(make_pack(kind, "tfrecord").as_uri()))
    cache = Cache(os.environ["PACKER_CACHE"])
    total = {Path(pack.folder): pack.here_bytes() for pack in cache.packs()}
    assert cache.evict(1) > 0
    left = {Path(pack.folder): pack.here_bytes() for pack in cache.packs()}
    assert left[folders[1]] < total[folders[1]]
    assert left[folders[0]] == total[folders[0]]
    assert cache.evict(1 << 40) == sum(left.values())
    assert all(file.read_bytes().strip(b"\0") == b"" for folder in folders for file in folder.glob("*.tfrecord"))
    for kind in ("raw", "jpeg", "ragged"):
        assert all_of(open_pack(make_pack(kind, "tfrecord").as_uri())) == all_of(open_pack(make_pack(kind, "tfrecord")))


def test_what_is_in_use_stays(home: Path):
    pack = open_pack(home.as_uri())
    expected = all_of(pack)
    settle(pack)
    cache = Cache(os.environ["PACKER_CACHE"])
    records = np.arange(4)
    with pack.reader.held(records):
        assert cache.evict(1 << 40) > 0
        assert [bytes(pack.reader._record(i)) for i in range(4)] == [data for data, _ in expected[:4]]
        blocks = pack.reader.remote.blocks_of(*pack.reader.places(records))
        assert pack.reader.remote.blocks.states[blocks].all()
    held = pack.reader.remote.all_pinned()
    assert cache.evict(1 << 40) == 0
    held.close()
    assert cache.evict(1 << 40) > 0
    assert not pack.reader.remote.blocks.states.any()
    assert all_of(pack) == expected


def test_what_is_dropped_while_something_is_pinned_is_released():
    """The collector of garbage drops at any moment; so do threads."""
    blocks = MemoryBlocks(BlockLayout([4 * BlockLayout.BLOCK_BYTES] * 2), [0, 1 << 20])
    first, second, given = np.array([0]), np.array([1]), []
    pid = blocks.pin(first)
    blocks._take = lambda _: blocks.unpin(pid, first)
    blocks._give = lambda extents: given.extend(extents.tolist())
    blocks.pin(second)
    assert given == [0]


def test_who_waits_for_blocks_that_another_process_fetches_does_not_ask_all_the_time(monkeypatch):
    blocks, pauses = MemoryBlocks(BlockLayout([BlockLayout.BLOCK_BYTES]), [0]), []
    others = iter([True] * 3)

    @contextmanager
    def claimed(first, number):
        yield [] if next(others, False) else [(first, number)]

    monkeypatch.setattr(blocks, "claimed", claimed)
    pausing = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)  # not time.sleep, which is everybody's
    monkeypatch.setattr("packer.stores.fetch.time", pausing)
    fetcher = Fetcher(blocks, lambda file, start, stop: bytes(stop - start), Cache(""))
    fetcher.need(np.array([0]))
    assert blocks.states.all() and pauses == [OTHERS_S] * 3


@pytest.mark.parametrize("which", ["*", "packs/*/shard-*"])
def test_a_cache_that_is_removed_while_it_is_open_is_made_again(home: Path, which):
    pack, root = open_pack(home.as_uri()), Path(os.environ["PACKER_CACHE"])
    pack.record(0)
    for path in root.glob(which):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(StorageError, match="was removed while it was in use; open the pack again"):
        pack.record(len(pack) - 1)
    again = open_pack(home.as_uri())
    assert all_of(again) == all_of(open_pack(home))


def test_nothing_is_removed_that_is_not_the_caches(home: Path, tmp_path):
    folder = filled(home.as_uri())
    cache = Cache(os.environ["PACKER_CACHE"])
    shards = sorted(folder.glob("*.tfrecord"))
    content = [shard.read_bytes() for shard in shards]
    os.link(shards[0], tmp_path / "second name")  # somebody keeps it
    shutil.move(shards[1], tmp_path / "only copy")
    shards[1].symlink_to(tmp_path / "only copy")
    own = folder.parent / "own"
    shutil.copytree(home, own)  # a pack of the user's own, by mistake in the cache
    (own / "blocks").write_bytes((folder / "blocks").read_bytes())
    before = {file: file.read_bytes() for file in own.iterdir()}
    assert cache.evict(1 << 40) > 0
    assert (tmp_path / "second name").read_bytes() == content[0]
    assert (tmp_path / "only copy").read_bytes() == content[1]
    assert {file: file.read_bytes() for file in own.iterdir()} == before
    (folder / "origin.json").write_text('{"what": "something else"}')
    assert cache.packs() == []
    assert cache.evict(1 << 40) == 0


@pytest.mark.parametrize("text", ["", "[]", '{"files": [["../../x", 5]]}', '{"what": 1, "url": "u", "files": []}'])
def test_an_origin_that_does_not_say_it_is_the_caches(home: Path, text):
    folder = filled(home.as_uri())
    (folder / "origin.json").write_text(text)
    assert Cache(os.environ["PACKER_CACHE"]).packs() == []


def test_an_origin_cannot_name_files_elsewhere(home: Path):
    folder = filled(home.as_uri())
    text = (folder / "origin.json").read_text()
    (folder / "origin.json").write_text(text.replace("shard-00000.tfrecord", "../victim.tfrecord"))
    assert Cache(os.environ["PACKER_CACHE"]).packs() == []


def test_a_limit_is_kept_while_records_are_read(home: Path, server: Served):
    expected = all_of(open_pack(home))
    others = sum(file.stat().st_size for file in home.iterdir() if file.suffix != ".tfrecord") + 8192
    pack = open_pack(server.url, cache_bytes=others + 12 * BlockLayout.BLOCK_BYTES)
    cache = cache_at(os.environ["PACKER_CACHE"], None)
    for seed in range(3):
        for i in shuffled(pack, seed):
            assert pack.record(i) == expected[i][0]
            assert cache.used() <= cache.limit
    assert max(server.blocks().values()) > 1


def test_small_shards_count_as_what_they_are(home: Path, server: Served, monkeypatch):
    monkeypatch.setattr(BlockLayout, "BLOCK_BYTES", 1 << 20)
    shards = sum(file.stat().st_size for file in home.glob("*.tfrecord"))
    pack = open_pack(server.url, cache_bytes="1MB")
    all_of(pack)
    cache = Cache(os.environ["PACKER_CACHE"])
    assert cache.used() == shards + cache.kept() < 1 << 20
    assert pack.reader.remote.fits()
    assert cache.evict(1 << 40) == shards


def test_a_mirror_does_not_fill_the_folder_of_another_url(home: Path, server: Served, copied):
    mirror = copied("raw", "tfrecord")
    local = open_pack(home)
    forge(local, mirror)  # the same pack.json, other pixels, the same checksums
    with Served(mirror) as other:
        fooled = all_of(open_pack(other.url))
    assert fooled != all_of(local)
    assert all_of(open_pack(server.url)) == all_of(local)
    assert all_of(open_pack(server.url.replace("/pack", "/other"))) == all_of(local)


def test_only_its_user_can_read_a_cache_that_packer_makes(home: Path, tmp_path, monkeypatch):
    given = tmp_path / "given"
    own = tmp_path / "home" / "packer"  # of an earlier version
    for folder in (given, own):
        folder.mkdir(parents=True)
        folder.chmod(0o755)  # whatever the umask
    monkeypatch.setenv("XDG_CACHE_HOME", str(own.parent))
    for cache_dir, mode in ((given, 0o755), (tmp_path / "new" / "made", 0o700)):
        open_pack(home.as_uri(), cache_dir=cache_dir)
        assert stat.S_IMODE(cache_dir.stat().st_mode) == mode
    monkeypatch.delenv("PACKER_CACHE")
    open_pack(home.as_uri())
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_evicted_while_others_read(home: Path):
    expected = [data for data, _ in all_of(open_pack(home))]
    pack, ended, wrong = open_pack(home.as_uri()), threading.Event(), []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not ended.is_set():
            records = rng.integers(0, len(pack), 3)
            with pack.reader.held(records):
                pack.reader.check(records)
                for i in records.tolist():
                    if bytes(pack.reader.region.data[slice(*pack.reader.span(i))]) != expected[i]:
                        wrong.append(i)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    cache = Cache(os.environ["PACKER_CACHE"])
    evicted = 0
    while any(thread.is_alive() for thread in threads) and (
        evicted < 30 or pack.reader.remote.blocks.generations.max() < 2
    ):
        evicted += cache.evict(1 << 40) > 0
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert evicted >= 30


@pytest.fixture
def disk(monkeypatch):
    """A disk that is full: the bytes that may still be written to containers, in a list."""
    left, write = [1 << 40], os.pwrite

    def pwrite(descriptor: int, data: object, offset: int) -> int:
        if len(data) >= 256:
            if len(data) > left[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            left[0] -= len(data)
        return write(descriptor, data, offset)

    monkeypatch.setattr(storage.os, "pwrite", pwrite)
    punch = storage.punch_hole

    def punched(descriptor: int, start: int, size: int) -> None:
        left[0] += size
        punch(descriptor, start, size)

    monkeypatch.setattr("packer.stores.sparse.punch_hole", punched)
    return left


def test_a_full_disk_evicts_and_else_is_an_error(make_pack, home: Path, disk, monkeypatch):
    filled(make_pack("ragged", "tfrecord").as_uri())
    pack = open_pack(home.as_uri())
    disk[0] = 0
    assert all_of(pack) == all_of(open_pack(home))  # in place of the other pack
    disk[0] = -1 << 40
    settle(pack)
    Cache(os.environ["PACKER_CACHE"]).evict(1 << 40)
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="the disk is full"):
        patch.setattr("packer.stores.cache.ROOM_WAIT_S", 0.01)
        pack.record(0)
    disk[0] = 1 << 40
    assert all_of(pack) == all_of(open_pack(home))


def test_of_threads_that_find_the_disk_full_one_makes_room_for_all(make_pack, home: Path, disk, monkeypatch):
    filled(make_pack("ragged", "tfrecord").as_uri())
    pack, meet, when_full, numbers = open_pack(home.as_uri()), threading.Barrier(2), Cache.when_full, count(1)

    def together(*arguments: object) -> None:
        both = next(numbers) <= 2
        if both:
            meet.wait()
        try:
            when_full(*arguments)
        finally:
            if both:
                meet.wait()

    monkeypatch.setattr(Cache, "when_full", together)
    disk[0] = 0
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda i=i: found.append(bytes(pack.record(i)))) for i in (0, len(pack) - 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(bytes(open_pack(home).record(i)) for i in (0, len(pack) - 1))


def test_a_limit_that_others_use_up_is_an_error(make_pack, home: Path, monkeypatch):
    monkeypatch.setattr("packer.stores.cache.ROOM_WAIT_S", 0.01)
    other = open_pack(make_pack("ragged", "tfrecord").as_uri())
    all_of(other)
    with other.reader.remote.all_pinned():
        pack = open_pack(home.as_uri(), cache_bytes=2000)
        with pytest.raises(StorageError, match=r"may hold 2\.0 KB, all of which is in use"):
            pack.record(0)


def test_a_network_drive_is_refused(home: Path, monkeypatch):
    monkeypatch.setattr("packer.stores.cache.file_system", lambda path: "nfs4")
    with pytest.raises(Exception, match="is on a network drive"):
        open_pack(home.as_uri())


def test_the_type_of_a_file_system():
    assert storage.file_system("/proc/self") == "proc"


def test_the_type_of_a_file_system_at_any_place(tmp_path, monkeypatch):
    """A mount point may have spaces, which the list escapes, and any letters."""
    inside = tmp_path / "Ünsere Bilder" / "x"
    inside.mkdir(parents=True)
    place = str(inside.parent).replace(" ", r"\040")
    (tmp_path / "mounts").write_text(f"/dev/sda / ext4 rw 0 0\nnas:/data {place} nfs4 rw 0 0\n", "utf-8")
    monkeypatch.setattr(storage, "MOUNTS", str(tmp_path / "mounts"))
    assert storage.file_system(str(inside)) == "nfs4" and storage.file_system(str(tmp_path)) == "ext4"


def test_locks_end_with_their_descriptor(tmp_path):
    path = str(tmp_path / "file")
    one, two = atomic.open_own(path), atomic.open_own(path)
    assert storage.lock_bytes(one, 5, 2)
    assert not storage.lock_bytes(two, 6, 1)
    assert storage.lock_bytes(two, 7, 1, shared=True)
    assert storage.lock_bytes(one, 7, 1, shared=True)
    storage.unlock_bytes(one, 6, 1)
    assert storage.lock_bytes(two, 6, 1)
    os.close(one)
    assert storage.lock_bytes(two, 5, 1)
    os.close(two)
