"""Commands on the URL of a pack: they say what they say of the folder, and name the URL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.request import urlopen

import pytest
from damage import flip
from drawn import draw_plain
from packs import needs_cache
from running import good, refused, run, signals_heard
from served import Served

from packer import BuildOptions, build_pack, open_pack
from packer.format import verify_url
from packer.stores import open_store
from packer.stores.blocks import BlockLayout


def url_of(folder: Path) -> str:
    return f"file://{folder}"


def cache_folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("packs/*"))


@needs_cache
@pytest.mark.parametrize("kind", ["raw", "jpeg", "boxes"])
def test_they_say_what_they_say_of_the_folder(make_pack, kind: str):
    folder = make_pack(kind, "lmdb")
    url = url_of(folder)
    for command in (["info"], ["info", "--json"], ["stats"], ["hash"], ["hash", "--deep"], ["verify"]):
        ran = good(*command, url)
        assert "cache" not in ran.out
        assert ran.out.replace(url, str(folder)) == good(*command, folder).out
    assert good("diff", url, folder).out == good("diff", folder, url).out == good("diff", folder, folder).out


@needs_cache
def test_a_sheet_of_a_url(make_pack, tmp_path):
    folder = make_pack("boxes", "tfrecord")
    good("view", url_of(folder), "--export", tmp_path / "url.html")
    good("view", folder, "--export", tmp_path / "folder.html")
    sheets = [(tmp_path / name).read_text() for name in ("url.html", "folder.html")]
    assert "cache" not in sheets[0]
    assert sheets[0].replace(url_of(folder), str(folder)) == sheets[1]


def test_reading_into_memory(home: Path, tmp_path):
    digest, _ = good("hash", "--deep", url_of(home), "--cache-bytes", 0).out.split()
    assert digest == good("hash", "--deep", home).out.split()[0]
    assert not (tmp_path / "cache").exists()


@needs_cache
def test_the_options_of_the_cache(home: Path, tmp_path):
    url = url_of(home)
    good("hash", "--deep", url, "--cache-dir", tmp_path / "other")
    assert cache_folders(tmp_path) == [] and list((tmp_path / "other").glob("packs/*"))
    assert refused(2, "hash", url, "--cache-bytes", "many").startswith("packer: ")


@pytest.mark.parametrize("words", [
    "sample URL", "extract PACK URL", "adopt URL -o new", "view PACK --export URL", "stats PACK --plot URL",
    "build SRC -o new --quarantine URL", "build URL -o new --classes URL", "build SRC -o s3://b/new --scratch URL",
    "build URL -o new --inventory URL", pytest.param("hash --deep URL --cache-dir URL", marks=needs_cache),
])  # fmt: skip
def test_what_must_be_local(words: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names = {"URL": url_of(home), "PACK": str(home), "SRC": str(tmp_path)}
    said = refused(2, *(names.get(word, word) for word in words.split()))
    assert f"{url_of(home)}: is a URL, and " in said and " on this machine; " in said
    assert list(tmp_path.iterdir()) == []


def test_info_of_a_url_fetches_nothing_but_the_manifest(home: Path, server: Served, tmp_path):
    good("info", server.url)
    assert [name for name, _, _ in server.asked] == ["pack.json"]
    assert not (tmp_path / "cache").exists()


@needs_cache
def test_what_is_missing(copied):
    folder = copied("raw", "tfrecord")
    gone = sorted(folder.glob("*.tfrecord"))[1]
    gone.unlink()
    assert f"missing    {gone.name}: restore the object" in good("info", url_of(folder)).out
    assert json.loads(good("info", "--json", url_of(folder)).out)["missing"] == [gone.name]


def test_what_a_server_that_cannot_list_has_not(copied, server: Served):
    folder = copied("raw", "tfrecord")
    server.upstream = folder
    assert "missing" not in good("info", server.url).out
    gone = sorted(folder.glob("*.tfrecord"))[1]
    gone.unlink()
    assert f"missing    {gone.name}: " in good("info", server.url).out


def test_lists_of_a_url(tmp_path, make_pack):
    source = tmp_path / "source"
    (source / "cat").mkdir(parents=True)
    (source / "cat" / "bad.jpg").write_bytes(b"no image")
    good_image = next((make_pack("raw", "lmdb").parent / "source").rglob("*.png"))
    (source / "cat" / "good.png").write_bytes(good_image.read_bytes())
    folder = tmp_path / "pack.lmdb"
    good("build", source, "-o", folder, "--max-bad", 1)
    assert "cat/bad.jpg: " in good("info", "--rejected", url_of(folder)).out
    listed = next(folder.glob("rejected*"))
    listed.write_bytes(listed.read_bytes().replace(b"bad.jpg", b"bed.jpg"))
    assert f"{url_of(folder)}/{listed.name}: was altered" in refused(4, "info", "--rejected", url_of(folder))


# -- verify


def test_verify_reads_every_byte_once_and_keeps_nothing(home: Path, server: Served, tmp_path, monkeypatch):
    monkeypatch.setattr(verify_url, "RANGE_BYTES", 1000)
    good("verify", server.url)
    assert not (tmp_path / "cache").exists()
    asked: dict[str, list[tuple[int, int]]] = {}
    for name, start, stop in server.asked:
        asked.setdefault(name, []).append((start, stop))
    assert set(asked) == {path.name for path in home.iterdir()}
    for name, ranges in asked.items():
        stops = [0, *(stop for _, stop in sorted(ranges))]
        assert [start for start, _ in sorted(ranges)] == stops[:-1] and stops[-1] == (home / name).stat().st_size


def test_verify_lists_what_is_wrong_with_each_object(copied, monkeypatch):
    monkeypatch.setattr(verify_url, "RANGE_BYTES", 1000)
    folder = copied("raw", "tfrecord")
    containers = sorted(folder.glob("*.tfrecord"))
    pack = open_pack(folder)
    flip(containers[0], pack.reader.span(1)[0] + 5)
    flip(containers[1], 8)  # the checksum of a length, which packer does not read
    containers[2].unlink()
    (folder / "shard-00099.tfrecord").write_bytes(b"of another build")
    ran = run("verify", url_of(folder))
    assert ran.code == 4 and "cache" not in ran.err
    lines = [line.removeprefix(f"packer: {url_of(folder)}: ") for line in ran.error_lines]
    assert lines[0] == f"{containers[0].name}: was altered: its digest does not match the manifest"
    assert lines[1] == f"{containers[0].name}: record 00000001 does not match its checksum"
    assert lines[2].startswith(f"{containers[1].name}: was altered") and "every record matches" in lines[2]
    assert lines[3] == f"{containers[2].name}: is missing"
    assert lines[4:] == ["shard-00099.tfrecord: is not part of the pack, but harmless"]


def test_verify_of_cut_objects_and_indexes(copied):
    folder = copied("raw", "tfrecord")
    container, index = sorted(folder.glob("*.tfrecord"))[0], sorted(folder.glob("*.arrow"))[1]
    container.write_bytes(container.read_bytes()[:-1])
    flip(index, 100)
    ran = run("verify", url_of(folder))
    size = container.stat().st_size
    assert ran.code == 4 and [line.removeprefix(f"packer: {url_of(folder)}: ") for line in ran.error_lines] == [
        f"{container.name}: has {size:,} bytes, but the pack says {size + 1:,}",
        f"{index.name}: was altered: its digest does not match the manifest",
    ]


def test_verify_asks_again_for_cut_answers_and_says_what_cannot_be_reached(home: Path, server: Served, monkeypatch):
    monkeypatch.setattr("packer.stores.obstore.BACKOFF_S", 0.001)
    cut: set[str] = set()

    def fault(name: str, start: int, stop: int) -> str | None:
        if name.endswith(".tfrecord") and name not in cut:
            cut.add(name)
            return "cut"
        return None

    server.fault = fault
    good("verify", server.url)
    assert cut == {path.name for path in home.glob("*.tfrecord")}


def test_verify_of_a_part_reads_only_that(copied, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = copied("raw", "tfrecord")
    with Served(folder) as server:
        for call in range(3):
            before = len(server.asked)
            ran = good("verify", server.url, "--subset", "1/3")
            names = {name for name, _, _ in server.asked[before:]}
            assert names == {"pack.json", f"shard-{call:05d}.tfrecord", f"shard-{call:05d}.index.arrow"}
            assert ("all were verified since" in ran.out) == (call == 2)
        flip(folder / "shard-00001.tfrecord", 100)
        assert [run("verify", server.url, "--subset", "1/3").code for _ in range(3)] == [0, 4, 4]
        before = len(server.asked)
        assert run("verify", server.url, "--subset", "1/3").code == 4
        names = {name for name, _, _ in server.asked[before:] if name.endswith(".tfrecord")}
        assert names == {"shard-00001.tfrecord", "shard-00000.tfrecord"}  # the bad one, and the next in turn


def test_verify_of_some_records_of_the_only_shard(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(verify_url._ObjectWindow, "ahead_bytes", 100)
    build_pack(BuildOptions(str(draw_plain(tmp_path / "src", 20)), str(tmp_path / "one"), "tfrecord", labels=("none",)))
    with Served(tmp_path / "one") as server:
        for left in (13, 6, 0):
            before = len(server.asked)
            report = verify_url.verify_url(server.url, subset="1/3")
            assert report.part is not None and report.part.left_records == left and report.part.unchecked
            sent = [(start, stop) for name, start, stop in server.asked[before:] if name.endswith(".tfrecord")]
            assert sum(stop - start for start, stop in sent) < report.part.of_bytes / 2
        place = open_pack(tmp_path / "one").reader.span(19)[0]
        flip(tmp_path / "one" / "shard-00000.tfrecord", place)
        found = [[one.record for one in verify_url.verify_url(server.url, subset="1/3").problems] for _ in range(4)]
        assert found == [[], [], ["00000019"], ["00000019"]]
        (tmp_path / "one" / "shard-00000.tfrecord").write_bytes(b"cut")
        (problem,) = verify_url.verify_url(server.url, subset="1/3").problems
        assert "has 3 bytes" in problem.problem


def test_verify_of_new_objects(copied, monkeypatch):
    folder = copied("raw", "tfrecord")
    for path in folder.iterdir():
        os.utime(path, (1_600_000_000, 1_600_000_000))
    os.utime(folder / "shard-00001.index.arrow")
    ran = good("verify", url_of(folder), "--newer-than", "1d")
    assert ran.out.startswith(f"{url_of(folder)}: good: 1 of 3 shards, ")
    (folder / "shard-00000.tfrecord").unlink()
    found = run("verify", url_of(folder), "--newer-than", "2h")
    assert found.code == 4 and "shard-00000.tfrecord: is missing" in found.err


def test_verify_of_a_part_says_which_object_that_is_left_out_is_missing(copied, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = copied("raw", "tfrecord")
    (folder / "shard-00002.tfrecord").unlink()
    ran = run("verify", url_of(folder), "--subset", "1/3")
    assert ran.code == 4 and len(ran.error_lines) == 1 and "shard-00002.tfrecord: is missing" in ran.err


def test_verify_deep_says_to_pull_first(home: Path):
    assert f"packer pull {url_of(home)} PACK" in refused(2, "verify", "--deep", url_of(home))


@pytest.mark.parametrize("command", ["info", "verify", "pull"])
@pytest.mark.parametrize("silent", ["pack.json", "shard-00000.tfrecord"])
def test_ctrl_c_while_the_store_does_not_answer(command: str, silent: str, server: Served, tmp_path):
    if (command, silent) == ("info", "shard-00000.tfrecord"):
        pytest.skip("reads no shard")
    asked, go_on = threading.Event(), threading.Event()

    def stall(name: str, start: int, stop: int) -> None:
        if name == silent:
            asked.set()
            go_on.wait()

    server.fault = stall
    program = [sys.executable, "-m", "packer", command, server.url, *([str(tmp_path / "out")] * (command == "pull"))]
    with signals_heard(), subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=50)
    go_on.set()
    assert process.returncode == 130
    assert "packer: interrupted" in said


# -- URLs that are no packs


@pytest.mark.parametrize("command", [["info"], ["stats"], ["view"], ["verify"], ["hash"], ["bench"]])
def test_a_url_without_a_pack(command, tmp_path):
    line = refused(2, *command, f"file://{tmp_path}/typo")
    assert f"file://{tmp_path}/typo: is not a pack: it has no pack.json; check the URL" in line
    assert list(tmp_path.iterdir()) == []  # and nothing was made


def test_a_url_without_a_library(home: Path, monkeypatch):
    monkeypatch.setattr("packer.stores.find_spec", lambda name: None)
    for command in ("info", "stats", "verify"):
        assert refused(2, command, url_of(home)).endswith("needs obstore; pip install obstore fsspec")


@pytest.mark.parametrize("command", [["repair"], ["split", "--parts", "a=0.5,b=0.5"], ["merge", "-o", "x", "other"]])
def test_commands_for_folders_say_what_to_do(command, home: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(2, *command[:1], "s3://bucket/imgs.lmdb", *command[1:])
    assert "s3://bucket/imgs.lmdb: is a URL" in line and "packer pull s3://bucket/imgs.lmdb PACK" in line


def test_listing_a_folder_that_is_not_there(tmp_path):
    store = open_store(f"file://{tmp_path}/none")
    assert list(store.names()) == [] and store.folders() == ([], [])
    store.write("a.txt", b"1")
    assert [found.name for found in store.names()] == ["a.txt"]


# -- view and bench


@needs_cache
def test_the_page_of_a_url(home: Path):
    from packer.view.app import Server

    with Server(open_pack(url_of(home)), 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with urlopen(f"{server.url}api/pack") as answer:
            facts = json.load(answer)
        with urlopen(f"{server.url}api/tiles?count=3") as answer:
            tiles = json.load(answer)
        server.shutdown()
        thread.join()
    assert facts["path"] == url_of(home) and facts["name"] == home.name
    assert len(tiles["tiles"]) == 3 and all("picture" in tile for tile in tiles["tiles"])


@needs_cache
def test_a_bench_of_a_url(home: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(BlockLayout, "BLOCK_BYTES", 1 << 20)  # as in the measuring processes
    monkeypatch.setattr(BlockLayout, "EXTENT_BLOCKS", 8)
    cache = ("--cache-dir", tmp_path / "cache")  # a process of other tests may measure, which has another environment
    ran = good("bench", url_of(home), *cache, "--rounds", 2, "--seconds", 0.05, "--threads", 1, "--json")
    assert json.loads(ran.out)["rows"][1]["name"] == "1 thread, batches of 16"
    assert "packer pull" in refused(2, "bench", url_of(home), "--cold")
