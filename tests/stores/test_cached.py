"""`packer cache`: it lists, verifies and removes what was fetched, and nothing else."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from damage import forge
from packs import needs_cache
from running import good, refused, run
from served import Served, all_of

from packer import open_pack
from packer.errors import UsageError
from packer.format.cached import cached_packs, clear_cached
from packer.stores.blocks import BlockLayout
from packer.stores.cache import cache_root

pytestmark = needs_cache


@pytest.fixture(autouse=True)
def idle_threads_end(monkeypatch):
    monkeypatch.setattr("packer.stores.fetch.IDLE_S", 0.05)


def fill(folder: Path, records: Sequence[int] | None = None) -> tuple[str, Path]:
    """Read records of a pack at a URL, or fetch all of it; return the URL and the folder of the cache."""
    url = f"file://{folder}"
    pack = open_pack(url)
    if records is None:  # also the blocks without a record, which reading ahead may or may not reach
        with pack.reader.remote.held(np.arange(pack.reader.remote.blocks.layout.num_blocks)):
            pass
    for i in range(len(pack)) if records is None else records:
        pack.record(i)
    cached = Path(pack.reader.folder)
    del pack
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "packer-fetch":  # it holds the folder open
            thread.join()
    return url, cached


def listed() -> list[dict]:
    return json.loads(good("cache", "--json").out)["packs"]


def test_an_empty_cache(tmp_path):
    assert good("cache").out == f"{tmp_path / 'cache'}: 0 packs, 0 bytes\n"
    good("cache", "--verify")
    assert "is empty" in good("cache", "--clear").out


def test_the_list(make_pack):
    first, folder = fill(make_pack("raw", "tfrecord"))
    second, other = fill(make_pack("jpeg", "lmdb"), range(1))
    rows = {row["url"]: row for row in listed()}
    assert set(rows) == {first, second} and rows[first]["id"] == folder.name
    assert all(0 < row["bytes"] <= row["of"] for row in rows.values())
    assert rows[first]["of"] == sum(shard.container.bytes for shard in open_pack(first).reader.shards)
    lines = good("cache").out.splitlines()
    assert lines[0].split() == ["pack", "here", "whole", "last", "read", "id"]
    assert {line.split()[0] for line in lines[1:3]} == {first, second}
    assert len(good("cache", first).out.splitlines()) == 3 == len(good("cache", other.name[:6]).out.splitlines())
    assert "is not in the cache" in refused(2, "cache", "file:///elsewhere")
    assert "is not in the cache" in refused(2, "cache", "zz")


def test_verify_drops_what_is_wrong_and_it_is_fetched_again(make_pack):
    home = make_pack("raw", "tfrecord")
    url, folder = fill(home)
    pack = open_pack(home)
    path = sorted(folder.glob("*.tfrecord"))[1]
    shutil.copy(path, folder.parent.parent / "whole")
    data = bytearray(path.read_bytes())
    row = next(i for i in range(len(pack)) if pack.reader.locate(i)[0] == 1)
    place = int(pack.reader.indexes.offsets(1)[0])
    data[place] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    before = listed()[0]["bytes"]
    ran = run("cache", "--verify")
    assert ran.code == 4
    assert ran.err == f"packer: {url}: {path.name}: record {pack.key(row)} does not match its checksum\n"
    assert f"{url}: 24 of 24 records are here; " in ran.out and "to be fetched again" in ran.out
    assert before - 4 * BlockLayout.BLOCK_BYTES <= listed()[0]["bytes"] < before
    assert f"{url}: good: " in good("cache", "--verify").out
    assert all_of(open_pack(url)) == all_of(pack)


def test_verify_of_part_of_a_pack(make_pack):
    url, _ = fill(make_pack("raw", "tfrecord"), range(2))
    found = json.loads(good("cache", "--verify", "--json").out)
    assert found["good"] and 2 <= found["packs"][0]["records"] < found["packs"][0]["of"] == 24
    assert found["packs"][0]["url"] == url


def test_verify_says_what_it_has_proved(make_pack):
    home = make_pack("raw", "tfrecord")
    url, folder = fill(home)
    whole = "24 of 24 records are here, in whole files that match their SHA-256"
    assert good("cache", "--verify").out == f"{url}: good: {whole}\n"
    assert cached_packs(cache_root())[0].stored.evict(0) == 2048
    assert good("cache", "--verify").out == (
        f"{url}: good: 22 of 24 records are here; 16 are proved by SHA-256, 6 only by CRC-32C, which shows damage "
        f"but no forgery: 2.0 KB of their files are not here\nto verify all by SHA-256: packer pull {url} PACK\n"
    )
    fill(home)
    assert good("cache", "--verify").out == f"{url}: good: {whole}\n"
    forge(open_pack(home), folder)
    ran = run("cache", "--verify")
    names = [shard.container.name for shard in open_pack(home).reader.shards]
    assert ran.code == 4
    assert ran.err == "".join(
        f"packer: {url}: {name}: does not match its SHA-256, though its records do\n" for name in names
    )
    assert listed()[0]["bytes"] == 0
    assert all_of(open_pack(url)) == all_of(open_pack(home))


def test_verify_says_that_blocks_without_a_record_are_not_here(make_pack, tmp_path):
    home = make_pack("raw", "tfrecord")
    url, folder = fill(home, range(23, -1, -1))  # backwards: nothing is read ahead
    (pack,) = cached_packs(cache_root())
    absent = pack.whole_bytes - pack.here_bytes()
    assert absent == 3 * (2 * 512 + 7848 % 512)  # three blocks of each shard, one of which is its end
    assert good("cache", "--verify").out == (
        f"{url}: good: 24 of 24 records are here; 0 are proved by SHA-256, 24 only by CRC-32C, which shows damage "
        f"but no forgery: 3.5 KB of their files, which hold no record, are not here\n"
        f"to verify all by SHA-256: packer pull {url} PACK\n"
    )
    assert json.loads(good("cache", "--verify", "--json").out)["packs"][0]["absent_bytes"] == absent
    good("pull", url, tmp_path / "pulled.tfrecord")
    forge(open_pack(home), folder)  # without those blocks, nothing in the cache tells
    assert "24 only by CRC-32C" in good("cache", "--verify").out


def test_a_folder_of_an_earlier_version_is_listed_and_cleared(make_pack):
    home = make_pack("raw", "tfrecord")
    url, folder = fill(home)
    old = folder.rename(folder.with_name(folder.name.partition("-")[0]))
    forge(open_pack(home), old)
    _, folder = fill(home)
    assert folder != old and all_of(open_pack(url)) == all_of(open_pack(home))
    gc.collect()
    assert {row["id"] for row in listed()} == {old.name, folder.name}
    good("cache", "--clear", "--yes")
    assert not old.exists()


def test_verify_leaves_what_is_in_use(make_pack):
    url, folder = fill(make_pack("raw", "tfrecord"))
    path = sorted(folder.glob("*.tfrecord"))[0]
    data = bytearray(path.read_bytes())
    data[open_pack(url).reader.span(0)[0]] ^= 1
    path.write_bytes(data)
    pack = open_pack(url)
    with pack.reader.remote.all_pinned():
        ran = run("cache", "--verify", "--json")
    found = json.loads(ran.out)["packs"][0]
    assert ran.code == 4 and found["dropped_bytes"] == 0 < found["in_use_bytes"]


def test_verify_of_indexes_and_of_the_manifest(make_pack):
    home = make_pack("raw", "tfrecord")
    url, folder = fill(home)
    index = sorted(folder.glob("*.arrow"))[0]
    index.write_bytes(index.read_bytes()[:-1] + b"!")
    assert "does not match its digest; it was removed" in run("cache", "--verify").err
    assert not index.exists()
    assert all_of(open_pack(url)) == all_of(open_pack(home))
    (folder / "pack.json").write_bytes(b"{}")
    line = refused(4, "cache", "--verify")
    assert f"{url}: cannot be verified in the cache" in line and f"packer cache --clear {folder.name}" in line
    good("cache", "--clear", folder.name, "--yes")
    assert all_of(open_pack(url)) == all_of(open_pack(home))


# -- clear


def test_clear_asks_and_removes(make_pack, tmp_path):
    url, folder = fill(make_pack("raw", "tfrecord"))
    other, _ = fill(make_pack("jpeg", "lmdb"))
    assert "pass --yes" in refused(2, "cache", "--clear", url)
    assert "needs --clear" in refused(2, "cache", "--yes")
    assert len(listed()) == 2
    assert f"{url}: " in good("cache", "--clear", url, "--yes").out
    assert not folder.exists() and [row["url"] for row in listed()] == [other]
    assert [row["url"] for row in json.loads(good("cache", "--clear", "--yes", "--json").out)["removed"]] == [other]
    assert list((tmp_path / "cache" / "packs").iterdir()) == []


@pytest.mark.parametrize(("answer", "is_there"), [("n\n", True), ("y\n", False)])
def test_clear_at_a_terminal(make_pack, answer: str, is_there: bool, monkeypatch):
    _, folder = fill(make_pack("raw", "tfrecord"))
    monkeypatch.setattr("sys.stdin", mock.Mock(isatty=lambda: True))
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: answer.strip())
    assert run("cache", "--clear").code == (130 if is_there else 0)
    assert folder.exists() == is_there


def test_clear_leaves_what_another_process_uses(make_pack):
    url, folder = fill(make_pack("raw", "tfrecord"))
    script = "import sys, packer; p = packer.open_pack(sys.argv[1]); print('open', flush=True); sys.stdin.readline()"
    small = "from packer.stores.blocks import BlockLayout as B; B.BLOCK_BYTES, B.EXTENT_BLOCKS = 512, 4"
    lines = f"{small}; {script}"
    command = [sys.executable, "-c", lines, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        assert f"{url}: is in use" in refused(2, "cache", "--clear", "--yes")
        assert folder.exists()
        process.communicate("\n")
    good("cache", "--clear", "--yes")
    assert not folder.exists()


def test_clear_leaves_folders_that_hold_anything_else(make_pack):
    _, folder = fill(make_pack("raw", "tfrecord"))
    before = sorted(path.name for path in folder.iterdir())
    (folder / "notes.txt").write_text("mine")
    assert "holds notes.txt" in refused(2, "cache", "--clear", "--yes")
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "notes.txt"])


def test_what_is_not_the_caches_is_not_seen(make_pack, tmp_path):
    _, folder = fill(make_pack("raw", "tfrecord"))
    packs = folder.parent
    mine = shutil.copytree(make_pack("jpeg", "lmdb"), packs / "mine")
    moved = tmp_path / "moved"
    folder.rename(moved)
    (packs / folder.name).symlink_to(moved)
    assert listed() == []
    good("cache", "--clear", "--yes")
    assert (mine / "pack.json").exists() and (moved / "pack.json").exists()


def test_clear_that_was_killed_is_finished_by_the_next(make_pack, monkeypatch):
    url, folder = fill(make_pack("raw", "tfrecord"))
    (pack,) = cached_packs(cache_root())
    import os

    unlink, count = os.unlink, 0

    def fail(path):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        unlink(path)

    monkeypatch.setattr("os.unlink", fail)
    with pytest.raises(KeyboardInterrupt):
        clear_cached(pack)
    monkeypatch.undo()
    assert not folder.exists()
    left = cached_packs(str(folder.parent.parent))
    assert [one.url for one in left] == [url]
    clear_cached(left[0])
    assert list(folder.parent.iterdir()) == []


def test_a_pack_that_is_open_here_is_in_use_too(home: Path, server: Served):
    pack = open_pack(server.url)
    with pytest.raises(UsageError, match="is in use"):
        clear_cached(cached_packs(cache_root())[0])
    assert pack.record(0)


def test_the_cache_folder_is_not_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKER_CACHE", "s3://bucket/cache")
    with pytest.raises(UsageError, match="s3://bucket/cache: is a URL, and a cache is a folder on this machine"):
        cache_root()
