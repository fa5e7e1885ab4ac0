"""What builds to a store, push, pull and clean promise: for a folder as a store in the suite, and for S3 beside it.

A class of tests takes a fixture `bucket_url`: a URL below which nothing is.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from drawn import draw_plain, draw_voc
from running import digests, good, refused

from packer import BuildOptions, build_pack, open_pack
from packer.errors import StorageError, TooManyBad, UsageError
from packer.format.lists import read_list
from packer.format.manifest import parse_manifest, read_manifest
from packer.model.annotation import Progress
from packer.packing.store_journal import BUILDS, StoreJournal
from packer.repack.url_packs import clean, find_unreferenced, pull, push
from packer.stores import open_store


class Notes(Progress):
    """The notes shown to the user."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text.removeprefix("note: "))

    def has(self, part: str) -> bool:
        return any(part in text for text in self.texts)


def objects(url: str) -> dict[str, str]:
    """Name -> digest of every object below a URL."""
    store = open_store(url)
    return {found.name: hashlib.sha256(store.read(found.name)).hexdigest() for found in store.names()}


def options(source: Path, url: str, **others: Any) -> BuildOptions:
    """Three shards or more of a few images each."""
    scratch = source.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    given = {"workers": 1, "shard_bytes": 6000, "scratch": str(scratch), "no_fingerprints": True} | others
    return BuildOptions(str(source), out=url, **given)


def reference(source: Path, **others: Any) -> dict[str, str]:
    """The objects of a build without interruption, in a folder of its own."""
    folder = source.parent / f"reference{len(list(source.parent.iterdir()))}"
    build_pack(options(source, f"file://{folder}", **others))
    return digests(folder)


def files_of(pack: Path) -> int:
    """Number of files but pack.json."""
    return len(list(pack.iterdir())) - 1


def stop_after(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """Let builds fail behind some shards, as if the store had gone."""
    record = StoreJournal.record
    numbers = count(1)  # a call of each thread

    def failing(self: StoreJournal, *arguments: Any) -> None:
        if next(numbers) > shards:
            raise StorageError(self.path, "cannot be reached")
        record(self, *arguments)

    monkeypatch.setattr("packer.packing.store_output.PAUSES_S", ())
    monkeypatch.setattr(StoreJournal, "record", failing)


class StoreOutputs:
    """Builds to a store."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        return draw_plain(tmp_path / "src", 12)

    def test_the_records_are_those_of_a_folder(self, source: Path, bucket_url: str, tmp_path: Path) -> None:
        summary = build_pack(options(source, bucket_url))
        assert summary.path == bucket_url and not list((tmp_path / "scratch").iterdir())
        build_pack(BuildOptions(str(source), out=str(tmp_path / "p"), workers=1, shard_bytes=6000))
        local = open_pack(tmp_path / "p").manifest
        there = parse_manifest("", bytes(open_store(bucket_url).read("pack.json")))
        assert there.to_json() == summary.manifest.to_json()
        assert len(there.shards) == len(local.shards) > 2
        for ours, its in zip(there.shards, local.shards, strict=True):
            assert (ours.container.sha256, ours.index.sha256) == (its.container.sha256, its.index.sha256)
            stem, tag = ours.container.name.partition(".")[0].rsplit("-", 1)
            assert its.container.name.startswith(stem) and len(tag) == 8
            assert ours.index.name == f"{stem}-{tag}.index.arrow"
        assert set(objects(bucket_url)) == {"pack.json", *(file.name for file in there.files)}

    @pytest.mark.parametrize("container", ["lmdb", "recordio", "zarr"])
    def test_every_container_comes_back(self, source: Path, bucket_url: str, container: str, tmp_path: Path) -> None:
        build_pack(options(source, bucket_url, format=container, shard_bytes=None))
        pull(bucket_url, tmp_path / "back")
        assert "good: 12 records" in good("verify", tmp_path / "back", "--deep").out
        assert digests(tmp_path / "back") == objects(bucket_url)

    def test_lists_and_what_was_changed(self, bucket_url: str, tmp_path: Path) -> None:
        source = draw_voc(tmp_path / "voc")
        (source / "broken.jpg").write_bytes(b"\xff\xd8\xff")
        (tmp_path / "names.txt").write_text("*.jpg\n")
        given = {"labels": ("voc",), "on_bad": "skip", "include": str(tmp_path / "names.txt")}
        summary = build_pack(options(source, bucket_url, **given))
        lists = summary.manifest.lists
        assert {"rejected", "include"} <= set(lists) and all(file.sha256[:8] in file.name for file in lists.values())
        assert "broken.jpg" in [row.path for row in read_list(bucket_url, "rejected", summary.manifest)]
        pull(bucket_url, tmp_path / "back")
        again = ("build", source, "--like", tmp_path / "back", "-o", tmp_path / "again", "--on-bad", "skip")
        good(*again)
        assert read_manifest(tmp_path / "again").records == summary.manifest.records

    def test_resumes_from_another_machine(
        self, source: Path, bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        notes = Notes()
        stop_after(monkeypatch, 2)
        with pytest.raises(StorageError):
            build_pack(options(source, bucket_url), notes)
        monkeypatch.undo()
        assert notes.has(f"2 finished shards are kept in {bucket_url}: run the same command to resume")
        assert not list((tmp_path / "scratch").iterdir())
        elsewhere = tmp_path / "elsewhere"
        shutil.copytree(source, elsewhere / "src")
        times = {found.name: found.modified_s for found in open_store(bucket_url).names("shard-")}
        build_pack(options(elsewhere / "src", bucket_url), notes)
        assert notes.has("2 finished shards kept")
        assert objects(bucket_url) == reference(source)
        after = {found.name: found.modified_s for found in open_store(bucket_url).names("shard-")}
        assert {name: after[name] for name in times} == times, "uploaded again"

    def test_a_source_that_changed_is_packed_again(
        self, source: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stop_after(monkeypatch, 2)
        with pytest.raises(StorageError):
            build_pack(options(source, bucket_url))
        monkeypatch.undo()
        first = min(source.iterdir())
        shutil.copy(max(source.glob("*" + first.suffix)), first)
        build_pack(options(source, bucket_url))
        manifest = parse_manifest("", bytes(open_store(bucket_url).read("pack.json")))
        assert {name: digest for name, digest in objects(bucket_url).items() if name != "pack.json"}.items() >= {
            (file.name, file.sha256) for file in manifest.files
        }
        assert objects(bucket_url).items() >= reference(source).items()

    def test_objects_that_were_replaced_are_made_again(
        self, source: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store(bucket_url)
        stop_after(monkeypatch, 3)
        with pytest.raises(StorageError):
            build_pack(options(source, bucket_url))
        monkeypatch.undo()
        first, second, *_ = sorted(found.name for found in store.names() if found.name.endswith(".lmdb"))
        store.delete([first])
        store.write(second, bytes(len(store.read(second))))
        notes = Notes()
        build_pack(options(source, bucket_url), notes)
        assert notes.has("1 finished shard kept")
        assert objects(bucket_url) == reference(source)

    def test_recheck_reads(self, source: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A store whose object has changed below it, with size and version as they were."""
        store = open_store(bucket_url)
        stop_after(monkeypatch, 2)
        with pytest.raises(StorageError):
            build_pack(options(source, bucket_url))
        monkeypatch.setattr("packer.packing.store_journal.is_same", lambda found, before: True)
        name = min(found.name for found in store.names() if found.name.endswith(".lmdb"))
        store.write(name, bytes(len(store.read(name))))
        monkeypatch.undo()
        notes = Notes()
        with monkeypatch.context() as patch:
            patch.setattr("packer.packing.store_journal.is_same", lambda found, before: True)
            build_pack(options(source, bucket_url, recheck=True), notes)
        assert notes.has("1 finished shard kept")
        assert objects(bucket_url) == reference(source)

    def test_a_store_that_is_away_for_a_while(
        self, source: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record, left = StoreJournal.record, [2]

        def failing(self: StoreJournal, *arguments: Any) -> None:
            left[0] -= 1
            if left[0] >= 0:
                raise StorageError(self.path, "cannot be reached", "run it again")
            record(self, *arguments)

        monkeypatch.setattr("packer.packing.store_output.PAUSES_S", (0.01, 0.02, 0.03))
        monkeypatch.setattr(StoreJournal, "record", failing)
        notes = Notes()
        build_pack(options(source, bucket_url), notes)
        assert notes.has(f"{bucket_url}: cannot be reached; trying again in 0 s") and left[0] < 0
        assert objects(bucket_url) == reference(source)

    def test_a_damaged_journal(self, source: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        store = open_store(bucket_url)
        stop_after(monkeypatch, 3)
        with pytest.raises(StorageError):
            build_pack(options(source, bucket_url))
        monkeypatch.undo()
        lines = sorted(found.name for found in store.names(BUILDS) if ".lmdb" in found.name)
        store.write(lines[0], bytes(store.read(lines[0]))[:-9])
        store.write(lines[1], b"")
        notes = Notes()
        build_pack(options(source, bucket_url), notes)
        assert notes.has("1 finished shard kept")
        assert objects(bucket_url) == reference(source)

    def test_other_options_begin_anew(self, source: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        stop_after(monkeypatch, 2)
        with pytest.raises(StorageError):
            build_pack(options(source, bucket_url))
        monkeypatch.undo()
        notes = Notes()
        build_pack(options(source, bucket_url, resize="8"), notes)
        assert not notes.has("finished shard")
        assert objects(bucket_url).items() > reference(source, resize="8").items(), "the other build may be running"

    def test_bad_images_lose_nothing(self, source: Path, bucket_url: str) -> None:
        (source / "zz.jpg").write_bytes(b"\xff\xd8\xff")
        notes = Notes()
        with pytest.raises(TooManyBad):
            build_pack(options(source, bucket_url), notes)
        assert "pack.json" not in objects(bucket_url)
        (source / "zz.jpg").unlink()
        build_pack(options(source, bucket_url))
        assert objects(bucket_url) == reference(source)

    def test_of_two_builds_one_wins(self, source: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        other = draw_plain(source.parent / "other", 5)
        add, once = StoreJournal.record, threading.Event()

        def meanwhile(self: StoreJournal, *arguments: Any) -> None:
            if not once.is_set():
                once.set()
                (source.parent / "scratch2").mkdir()
                build_pack(options(other, bucket_url, scratch=str(source.parent / "scratch2")))
            add(self, *arguments)

        monkeypatch.setattr(StoreJournal, "record", meanwhile)
        with pytest.raises(UsageError, match="another build has published a pack there meanwhile") as caught:
            build_pack(options(source, bucket_url))
        assert str(caught.value).startswith(bucket_url)
        assert objects(bucket_url).items() >= reference(other).items()
        notes = Notes()
        build_pack(options(source, bucket_url, overwrite=True), notes)
        assert notes.has("finished shards kept")
        assert objects(bucket_url).items() >= reference(source).items()

    def test_the_same_build_twice_at_once(self, source: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Both make the same pack, so nobody loses; nor if only the answer of the store was lost."""
        add, once = StoreJournal.record, threading.Event()

        def meanwhile(self: StoreJournal, *arguments: Any) -> None:
            if not once.is_set():
                once.set()
                (source.parent / "scratch2").mkdir()
                build_pack(options(source, bucket_url, scratch=str(source.parent / "scratch2")))
            add(self, *arguments)

        monkeypatch.setattr(StoreJournal, "record", meanwhile)
        build_pack(options(source, bucket_url))
        monkeypatch.undo()
        assert objects(bucket_url) == reference(source)

    def test_overwrite(self, source: Path, bucket_url: str) -> None:
        build_pack(options(source, bucket_url))
        old = objects(bucket_url)
        assert refused(2, "build", source, "-o", bucket_url).endswith(
            f"{bucket_url}: exists; choose another --out, or replace it with --overwrite"
        )
        etags = {found.name: found.etag for found in open_store(bucket_url).names()}
        build_pack(options(source, bucket_url, overwrite=True, resize="8"))
        new = objects(bucket_url)
        assert new["pack.json"] != old.pop("pack.json")
        assert new.items() > old.items(), "readers of the old pack have its objects"
        build_pack(options(source, bucket_url, overwrite=True))
        after = {found.name: found.etag for found in open_store(bucket_url).names()}
        assert {name: after[name] for name in old} == {name: etags[name] for name in old}, "written again"

    def test_only_where_nothing_else_is(self, source: Path, bucket_url: str) -> None:
        open_store(bucket_url).write("cats/1.jpg", b"x")
        line = refused(2, "build", source, "-o", bucket_url)
        assert "has other objects, such as cats/1.jpg" in line
        assert set(objects(bucket_url)) == {"cats/1.jpg"}

    def test_objects_that_vanish_meanwhile(
        self, source: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record = StoreJournal.record

        def vanishing(self: StoreJournal, name: str, result: Any, found: Any, companion: Any) -> None:
            record(self, name, result, found, companion)
            if "00001" in name:
                self.store.delete([found[0].name])

        monkeypatch.setattr(StoreJournal, "record", vanishing)
        with pytest.raises(StorageError, match="was removed since it was written"):
            build_pack(options(source, bucket_url))
        monkeypatch.undo()
        build_pack(options(source, bucket_url))
        assert objects(bucket_url) == reference(source)

    def test_convert(self, source: Path, bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pack = tmp_path / "p.lmdb"
        build_pack(BuildOptions(str(source), out=str(pack), workers=1, shard_bytes=6000))
        arguments = ("convert", pack, bucket_url, "--format", "tfrecord", "--scratch", tmp_path)
        stop_after(monkeypatch, 2)
        assert "cannot be reached" in refused(3, *arguments)
        monkeypatch.undo()
        assert "resumed: 2 of" in good(*arguments).out
        pull(bucket_url, tmp_path / "back")
        good("convert", pack, tmp_path / "local.tfrecord")
        local, back = read_manifest(tmp_path / "local.tfrecord"), read_manifest(tmp_path / "back")
        assert [s.container.sha256 for s in local.shards] == [s.container.sha256 for s in back.shards]
        assert (local.counts, local.class_counts) == (back.counts, back.class_counts)
        assert "good: 12 records" in good("verify", tmp_path / "back").out


class Transfers:
    """packer push, pull and clean."""

    @pytest.fixture
    def pack(self, tmp_path: Path) -> Path:
        source = draw_plain(tmp_path / "src", 12)
        build_pack(options(source, str(tmp_path / "p.rec"), scratch=None))
        return tmp_path / "p.rec"

    def test_there_and_back(self, pack: Path, bucket_url: str, tmp_path: Path) -> None:
        assert f"{bucket_url}: {files_of(pack)} files" in good("push", pack, bucket_url).out
        assert objects(bucket_url) == digests(pack)
        assert "it was there already" in good("push", pack, bucket_url).out
        open_store(bucket_url).delete([lost := min(file.name for file in pack.glob("shard-*"))])
        assert lost not in objects(bucket_url)
        assert "1 sent" in good("push", pack, bucket_url).out
        assert objects(bucket_url) == digests(pack)
        assert "every digest is good" in good("pull", bucket_url, tmp_path / "back").out
        assert digests(tmp_path / "back") == digests(pack)
        assert "exists" in refused(2, "pull", bucket_url, tmp_path / "back")
        good("pull", bucket_url, tmp_path / "back", "--overwrite")
        assert digests(tmp_path / "back") == digests(pack)

    def test_files_elsewhere_are_taken_along(self, pack: Path, bucket_url: str, tmp_path: Path) -> None:
        good("convert", pack, tmp_path / "p.tfrecord")
        shutil.copy(min((tmp_path / "p.tfrecord").glob("*.tfrecord")), tmp_path / "theirs.tfrecord")
        good("adopt", tmp_path / "theirs.tfrecord", "-o", tmp_path / "adopted")
        assert "1 file that lies elsewhere is copied along" in good("push", tmp_path / "adopted", bucket_url).out
        good("pull", bucket_url, tmp_path / "back")
        (tmp_path / "theirs.tfrecord").unlink()
        assert "good" in good("verify", tmp_path / "back").out

    def test_push_refuses(self, pack: Path, bucket_url: str, tmp_path: Path) -> None:
        good("push", pack, bucket_url)
        other = tmp_path / "o.lmdb"
        good("convert", pack, other)
        before = objects(bucket_url)
        assert "has another pack (digest " in refused(2, "push", other, bucket_url)
        assert objects(bucket_url) == before
        assert "is not a URL" in refused(2, "push", pack, tmp_path / "x")
        open_store(bucket_url + "/wds").write("shard-000000.tar", b"somebody's own, which clean must not take for ours")
        assert "has other objects, such as shard-000000.tar" in refused(2, "push", pack, bucket_url + "/wds")
        given = ("build", tmp_path / "src", "-o", bucket_url + "/wds")
        assert "has other objects, such as shard-000000.tar" in refused(2, *given)
        assert "is a URL" in refused(2, "push", bucket_url, bucket_url)
        shard = min(other.glob("*.lmdb"))
        shard.write_bytes(bytes(shard.stat().st_size))
        assert "does not match its digest" in refused(4, "push", other, bucket_url + "/deeper")
        assert "pack.json" not in objects(bucket_url + "/deeper")
        shard.unlink()
        assert "is missing; restore it, run packer repair" in refused(4, "push", other, bucket_url + "/nothing")
        assert not objects(bucket_url + "/nothing")

    def test_push_resumes(self, pack: Path, bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from packer.repack import url_packs as module

        add, numbers = module._Journal.add, count(1)

        def failing(self: Any, found: Any) -> None:
            if next(numbers) > 3:
                raise StorageError(bucket_url, "cannot be reached")
            add(self, found)

        monkeypatch.setattr(module._Journal, "add", failing)
        with pytest.raises(StorageError):
            push(pack, bucket_url)
        monkeypatch.undo()
        other = tmp_path / "o.lmdb"
        good("convert", pack, other)
        assert "has an unfinished push of another pack" in refused(2, "push", other, bucket_url)
        there, notes = len(set(objects(bucket_url)) & set(digests(pack))), Notes()
        report = push(pack, bucket_url, notes)
        assert (
            notes.has(f"3 of {files_of(pack)} files are there")
            and report.sent == files_of(pack) - there <= files_of(pack) - 3
        )
        assert objects(bucket_url) == digests(pack)

    def test_pull_resumes(self, pack: Path, bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from packer.repack import url_packs as module

        monkeypatch.setattr(module, "RANGE_BYTES", 1000)
        monkeypatch.setattr(module, "FILES", 1)
        monkeypatch.setattr(module, "IN_FLIGHT", 1)
        push(pack, bucket_url)
        kind = type(open_store(bucket_url))
        read, left = kind.read, [12]

        def failing(self: Any, name: str, *arguments: Any, **others: Any) -> Any:
            left[0] -= name != "pack.json"
            if left[0] < 0:
                raise StorageError(name, "cannot be reached")
            return read(self, name, *arguments, **others)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "read", failing)
            with pytest.raises(StorageError):
                pull(bucket_url, tmp_path / "back")
        partial = tmp_path / "back.partial" / "pack"
        assert not (tmp_path / "back").exists() and list(partial.glob("*.part"))
        (part,) = partial.glob("*.part")
        part.write_bytes(bytes(part.stat().st_size))  # the disk has lost what was written last
        whole = [file for file in partial.iterdir() if file.suffix not in (".part", ".have")]
        assert whole
        notes = Notes()
        assert pull(bucket_url, tmp_path / "back", progress=notes).resumed == len(whole)
        assert notes.has(f"{len(whole)} of {files_of(pack)} files are there")
        assert digests(tmp_path / "back") == digests(pack) and not partial.parent.exists()

    def test_pull_verifies(self, pack: Path, bucket_url: str, tmp_path: Path) -> None:
        push(pack, bucket_url)
        store = open_store(bucket_url)
        name = min(file.name for file in pack.glob("*.rec"))
        data = bytearray(store.read(name))
        data[len(data) // 2] ^= 1
        store.write(name, bytes(data))
        assert f"{bucket_url}/{name}: does not match its digest" in refused(4, "pull", bucket_url, tmp_path / "back")
        assert not (tmp_path / "back").exists()
        store.delete([name])
        assert f"{name}: is missing" in refused(4, "pull", bucket_url, tmp_path / "back")
        store.write(name, (pack / name).read_bytes())
        good("pull", bucket_url, tmp_path / "back")
        assert "has no pack.json" in refused(2, "pull", bucket_url + "/none", tmp_path / "none")

    def test_clean(self, bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = draw_plain(tmp_path / "src", 12)
        build_pack(options(source, bucket_url))
        first = set(objects(bucket_url)) - {"pack.json"}
        build_pack(options(source, bucket_url, resize="8", overwrite=True))
        needed = set(objects(bucket_url)) - first
        store = open_store(bucket_url)
        for foreign in ("notes.txt", "shard-00000.json", "old/shard-00000.lmdb"):
            store.write(foreign, b"somebody else's")
        found = find_unreferenced(bucket_url)
        assert not found.objects and {one.name for one in found.recent} == first
        assert "newer than 24 h" in good("clean", bucket_url, "--yes").out
        assert first <= set(objects(bucket_url))
        found = find_unreferenced(bucket_url, -3600)
        assert {one.name for one in found.objects} == first and not found.recent and not found.unknown
        facts = json.loads(good("clean", bucket_url, "--json").out)
        assert facts["objects"] == [] and facts["removed"] is False
        monkeypatch.setattr("packer.repack.url_packs.time.time", lambda: 4e9)
        assert f"{len(first)} objects" in good("clean", bucket_url).out
        assert first <= set(objects(bucket_url)), "only listed"
        good("clean", bucket_url, "--yes")
        assert set(objects(bucket_url)) == needed | {"notes.txt", "shard-00000.json", "old/shard-00000.lmdb"}
        assert "nothing is left over" in good("clean", bucket_url).out

    def test_clean_after_a_build_that_was_given_up(
        self, bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = draw_plain(tmp_path / "src", 12)
        stop_after(monkeypatch, 2)
        with pytest.raises(StorageError):
            build_pack(options(source, bucket_url))
        monkeypatch.undo()
        assert not find_unreferenced(bucket_url).objects
        store = open_store(bucket_url)
        named = {found.name for found in store.names("shard-0000")} & {
            name for found in store.names(BUILDS) for name in _named(bytes(store.read(found.name)))
        }
        old = find_unreferenced(bucket_url, -3600)
        assert {one.name for one in old.objects if not one.name.startswith(BUILDS)} == named and len(named) == 4
        clean(old)
        assert not list(store.names(BUILDS))

    def test_clean_never_takes_the_only_copies(
        self, pack: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        push(pack, bucket_url)
        monkeypatch.setattr("packer.repack.url_packs.time.time", lambda: 4e9)
        store = open_store(bucket_url)
        manifest = bytes(store.read("pack.json"))
        store.delete(["pack.json"])
        found = find_unreferenced(bucket_url)
        assert not found.objects and len(found.unknown) == files_of(pack)
        assert "is missing: kept" in good("clean", bucket_url, "--yes").out
        store.write("pack.json", manifest.replace(b"records", b"recorts"))
        assert "nothing is removed" in refused(4, "clean", bucket_url, "--yes")
        assert len(objects(bucket_url)) == files_of(pack) + 1


def _named(line: bytes) -> list[str]:
    content = json.loads(line[9:]) if line[:8].isalnum() and b'"objects"' in line else {"objects": []}
    return [name for name, *_ in content["objects"]]
