"""An interrupted build resumes, and makes the same pack as without interruption."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from drawn import draw_plain, draw_shots
from packs import WIDE
from running import digests, good, refused

from packer import BuildOptions, __version__, build_pack, open_pack
from packer.errors import StorageError, TooManyBad, UsageError
from packer.model.annotation import Progress
from packer.packing.journal import Journal
from packer.packing.publish import Output
from packer.system.locks import FolderLock

IMAGES = 12


class Notes(Progress):
    """The notes shown to the user."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text.removeprefix("note: "))

    @property
    def left(self) -> int:
        """Finished shards that the build said it leaves behind."""
        return next((int(text.split()[0]) for text in self.texts if " kept in " in text), 0)

    @property
    def kept(self) -> str:
        return next((text for text in self.texts if "kept" in text and " kept in " not in text), "")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return draw_plain(tmp_path / "src", IMAGES)


def options(source: Path, name: str, **others: Any) -> BuildOptions:
    """Three shards or more of a few images each."""
    return BuildOptions(str(source), out=str(source.parent / name), **{"workers": 1, "shard_bytes": 6000} | others)


@pytest.fixture
def unfinished(source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source; p.partial holds all shards but the last, whose line in the journal met a full disk."""
    lines = 0
    add = Journal.add

    def full(self: Journal, name: str, result: Any) -> None:
        nonlocal lines
        lines += 1
        if lines == 3:
            raise StorageError(self.path, "cannot write: No space left on device")
        add(self, name, result)

    monkeypatch.setattr(Journal, "add", full)
    notes = Notes()
    with pytest.raises(StorageError):
        build_pack(options(source, "p"), notes)
    assert notes.left == 2
    monkeypatch.undo()
    yield source


def fails_with(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def oracle(source: Path, **others: Any) -> dict[str, str]:
    build_pack(options(source, "oracle", **others))
    return digests(source.parent / "oracle")


def go_on(source: Path, **others: Any) -> tuple[Notes, dict[str, str]]:
    notes = Notes()
    build_pack(options(source, "p", **others), notes)
    assert not (source.parent / "p.partial").exists()
    return notes, digests(source.parent / "p")


def test_goes_on_behind_the_finished_shards(unfinished: Path) -> None:
    times = {p.name: p.stat().st_mtime_ns for p in (unfinished.parent / "p.partial" / "pack").iterdir()}
    assert len(times) == 4
    notes, made = go_on(unfinished)
    assert "resuming an unfinished build: 2 of" in notes.texts[-2] and notes.kept == "2 finished shards kept"
    assert made == oracle(unfinished)
    for name, time in times.items():
        assert (unfinished.parent / "p" / name).stat().st_mtime_ns == time, "it was made again"


@pytest.mark.parametrize("container", WIDE)
def test_every_container(source: Path, container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = oracle(source, format=container)
    monkeypatch.setattr(Output, "_take_name", fails_with(OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match="No space left"):
        build_pack(options(source, "p", format=container))
    monkeypatch.undo()
    notes, made = go_on(source, format=container)
    assert made == expected and "made again" not in notes.kept


def test_interrupted_while_all_images_are_decoded(unfinished: Path) -> None:
    class Interrupted(Notes):
        def stage(self, name: str, total: int | None = None) -> None:
            if name == "decoding":
                raise KeyboardInterrupt

    (unfinished / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(KeyboardInterrupt):
        build_pack(options(unfinished, "p"), Interrupted())
    (unfinished / "bad.jpg").unlink()
    notes, made = go_on(unfinished)
    assert notes.kept == "2 finished shards kept" and made == oracle(unfinished)


def test_with_other_workers_and_limits(unfinished: Path) -> None:
    notes, made = go_on(unfinished, workers=2, max_bad="5")
    assert notes.kept == "2 finished shards kept"
    assert made == oracle(unfinished)


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ({"resize": "16"}, "--resize none, now 16"),
        ({"resize": "16", "fit": "pad", "pad_value": 114}, "--pad-value none, now 114"),
        ({"resize": "16", "interpolation": "bilinear"}, "--interpolation none, now bilinear"),
        ({"encode": "jpeg"}, "--encode raw or copy, now jpeg"),
        ({"format": "hdf5"}, "--format lmdb, now hdf5"),
        ({"shuffle": 3}, "--shuffle none, now 3"),
        ({"labels": ("none",)}, "--labels auto, now none"),
        ({"mode": "gray", "quality": 50}, "--mode rgb, now gray"),
        ({"shard_bytes": 5000}, "--shard-size 6000, now 5000"),
    ],
)
def test_other_options_are_refused(unfinished: Path, others: dict[str, Any], what: str) -> None:
    partial = unfinished.parent / "p.partial"
    before = {p: p.read_bytes() for p in sorted((partial / "pack").iterdir())}
    with pytest.raises(Exception, match="an unfinished build with other options") as caught:
        build_pack(options(unfinished, "p", **others))
    assert what in caught.value.line and "discard it with --overwrite" in caught.value.line
    assert {p: p.read_bytes() for p in sorted((partial / "pack").iterdir())} == before
    notes, made = go_on(unfinished, **others, overwrite=True)
    assert notes.kept == "" and "starting over" in notes.texts[0]
    assert made == oracle(unfinished, **others)


def test_another_source_is_refused(unfinished: Path, tmp_path: Path) -> None:
    other = draw_plain(tmp_path / "other", IMAGES)
    line = refused(2, "build", other, "-o", tmp_path / "p", "--shard-size", "6000")
    assert f"SRC {unfinished}, now {other}" in line


def test_another_version_begins_anew(unfinished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.__version__", "9.9.9")
    notes, made = go_on(unfinished)
    assert f"was made with packer {__version__}, now 9.9.9" in notes.texts[0] and notes.kept == ""
    assert made == oracle(unfinished)


def packed_of(source: Path, shard: int) -> Path:
    """A source file that went into this shard."""
    pack = open_pack(source.parent / "oracle")
    first = int(pack.reader._firsts[shard])
    return source / os.fsdecode(pack.paths[first])


def test_an_edit_of_the_same_size_and_time_is_noticed(unfinished: Path) -> None:
    oracle(unfinished)
    file = packed_of(unfinished, 0)
    shutil.rmtree(unfinished.parent / "oracle")
    facts, data = file.stat(), bytearray(file.read_bytes())
    data[-20] ^= 1  # in the pixels or in a checksum of a PNG: the header stays
    file.write_bytes(data)
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    notes, made = go_on(unfinished, max_bad="1")
    assert notes.kept == "1 finished shard kept, 1 packed again: their inputs or files have changed"
    assert made == oracle(unfinished, max_bad="1")


def test_a_new_image_and_a_lost_one(unfinished: Path) -> None:
    images = sorted(p for p in unfinished.rglob("*") if p.is_file())
    images[1].unlink()
    shutil.copy(images[3], images[3].with_name("zz-new" + images[3].suffix))
    _, made = go_on(unfinished)
    assert made == oracle(unfinished)


@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "index flipped"])
def test_damaged_shards_are_made_again(unfinished: Path, how: str) -> None:
    shards = sorted((unfinished.parent / "p.partial" / "pack").glob("*.index.arrow" if "index" in how else "*.lmdb"))
    data = bytearray(shards[0].read_bytes())
    if how == "gone":
        shards[0].unlink()
    elif how == "cut":
        os.truncate(shards[0], len(data) // 2)
    else:
        data[len(data) // 2] ^= 4
        shards[0].write_bytes(data)
    notes, made = go_on(unfinished)
    assert notes.kept.startswith("1 finished shard kept, 1 packed again")
    assert made == oracle(unfinished)


def test_a_journal_that_was_altered_anywhere(unfinished: Path) -> None:
    """Cut at any byte, a byte flipped, a line twice: what is wrong is made again, never believed."""
    out = unfinished.parent
    expected = oracle(unfinished)
    shutil.copytree(out / "p.partial", out / "kept.partial")
    journal = (out / "p.partial" / "journal").read_bytes()
    lines = journal.splitlines(keepends=True)
    changed = [journal[:n] for n in range(0, len(journal), len(journal) // 5)]
    for at in range(7, len(journal), len(journal) // 5):
        changed.append(journal[:at] + bytes([journal[at] ^ 16]) + journal[at + 1 :])
    changed += [journal + lines[-1], journal + lines[1], lines[0] + lines[2] + lines[1], lines[1] + lines[0], b"\n" * 9]
    changed += [journal + b"00000000 {}\n", journal + lines[-1][: len(lines[-1]) // 2]]
    for text in changed:
        shutil.rmtree(out / "p", ignore_errors=True)
        shutil.copytree(out / "kept.partial", out / "p.partial", dirs_exist_ok=True)
        (out / "p.partial" / "journal").write_bytes(text)
        assert go_on(unfinished)[1] == expected


def test_every_flip_of_a_journal_is_seen(unfinished: Path) -> None:
    path = unfinished.parent / "p.partial" / "journal"
    data = path.read_bytes()
    ends = [i for i, byte in enumerate(data) if byte == 10]
    for at in range(0, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        journal = Journal(str(path))
        line = sum(end < at for end in ends)
        assert (journal.head is None) == (line == 0) and len(journal.finished) == max(0, line - 1), at
    path.write_bytes(data)


@pytest.mark.parametrize("more", [{"decoder": "lenient"}, {"resize": "16"}])
def test_what_a_failed_build_left_gives_way_to_other_options(source: Path, more: dict[str, Any]) -> None:
    """The corrected command is not refused for the shards of the one that could not succeed."""
    images = sorted(p for p in source.rglob("*") if p.is_file())
    images[-1].write_bytes(images[-1].read_bytes()[:-40])
    with pytest.raises(TooManyBad):
        build_pack(options(source, "p"), Notes())
    notes = Notes()
    build_pack(options(source, "p", max_bad="1", **more), notes)
    said = [text for text in notes.texts if text.startswith("starting over: the build that failed had other options: ")]
    assert len(said) == 1 and "=" not in said[0]  # as they are typed
    build_pack(options(source, "q", max_bad="1", **more))
    assert digests(source.parent / "p") == digests(source.parent / "q")


def test_a_failed_build_that_is_tried_again_and_killed_is_kept(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the work of a killed build then, as any."""
    images = sorted(p for p in source.rglob("*") if p.is_file())
    good_bytes = images[-1].read_bytes()
    images[-1].write_bytes(good_bytes[:-40])
    with pytest.raises(TooManyBad):
        build_pack(options(source, "p"), Notes())
    assert Journal(str(source.parent / "p.partial" / "journal")).failed
    images[-1].write_bytes(good_bytes)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        build_pack(options(source, "p"), Notes())
    with pytest.raises(UsageError, match="an unfinished build with other options"):
        build_pack(options(source, "p", resize="16"))


def test_bad_images_may_be_mended_in_between(source: Path) -> None:
    images = sorted(p for p in source.rglob("*") if p.is_file())
    good_bytes = images[-1].read_bytes()
    images[-1].write_bytes(good_bytes[:-40])
    notes = Notes()
    with pytest.raises(TooManyBad):
        build_pack(options(source, "p"), notes)
    assert notes.left >= 1 and not any("same command" in text for text in notes.texts)  # which would fail again
    images[-1].write_bytes(good_bytes)
    notes, made = go_on(source)
    assert "kept" in notes.kept and made == oracle(source)


def test_what_was_left_out_before_is_not_forgotten(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected inputs and boxes of a shard that is kept stand in the manifest all the same."""
    shots = draw_shots(source.parent / "shots")
    bad = sorted((shots / "JPEGImages").iterdir())[0] if (shots / "JPEGImages").is_dir() else None
    images = [bad] if bad else [p for p in sorted(shots.rglob("*")) if p.suffix in (".jpg", ".png")][:1]
    images[0].write_bytes(images[0].read_bytes()[:-30])
    others = {"max_bad": "1", "labels": ("voc",), "shard_bytes": 4000}
    expected = oracle(shots, **others)
    monkeypatch.setattr(Output, "publish", fails_with(StorageError("", "full")))
    with pytest.raises(StorageError):
        build_pack(options(shots, "p", **others))
    monkeypatch.undo()
    notes, made = go_on(shots, **others)
    assert made == expected and "made again" not in notes.kept
    assert len(open_pack(shots.parent / "p").manifest.rejected) == 1


def test_killed_between_the_last_two_steps_of_an_overwrite(source: Path) -> None:
    """The new pack has its name, the old one lies in p.partial: both are whole, and the next build clears up."""
    build_pack(options(source, "p"))
    build_pack(options(source, "q", resize="16"))
    out = source.parent
    (out / "p.partial").mkdir()
    shutil.move(out / "q", out / "p.partial" / "pack")
    assert len(open_pack(out / "p")) == IMAGES
    _, made = go_on(source, overwrite=True)
    assert made == oracle(source)


def test_the_command_says_what_it_does(unfinished: Path) -> None:
    out = good("build", unfinished, "-o", unfinished.parent / "p", "--shard-size", "6000", "--workers", 2).out
    assert "note: resuming an unfinished build: 2 of" in out and "note: 2 finished shards kept" in out
    assert json.loads((unfinished.parent / "p" / "pack.json").read_text())["records"] == IMAGES


def test_does_not_wait_for_the_workers_of_a_build_that_was_killed(unfinished: Path) -> None:
    """They end a moment later than it, or a long time if they are on another machine: their files have other names."""
    late = unfinished.parent / "p.partial" / "pack" / "shard-00002.lmdb.deadbeef.tmp"
    late.write_bytes(b"late")
    assert go_on(unfinished)[1] == oracle(unfinished)


def test_ctrl_c_while_a_shard_is_recorded_keeps_it(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal._append

    def interrupted(journal: Journal, content: Mapping[str, Any]) -> None:
        append(journal, content)
        if "name" in content:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Journal, "_append", interrupted)
            build_pack(options(source, "p"))
    finally:
        signal.signal(signal.SIGINT, before)
    notes, made = go_on(source)
    assert notes.kept == "1 finished shard kept" and made == oracle(source)


def test_without_locks_a_note_says_so(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLocks(FolderLock):
        works = property(lambda lock: False, lambda lock, works: None)

    monkeypatch.setattr("packer.system.locks.FolderLock", NoLocks)
    out = good("build", source, "-o", source.parent / "p", "--shard-size", "6000").out
    assert "note: {} is on a file system without locks".format(source.parent / "p.partial") in out
