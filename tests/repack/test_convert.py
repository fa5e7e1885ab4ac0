"""`packer convert`: the same records in another container, encoding or size, and nothing lost on the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import crashing_remake
import numpy as np
import pytest
from damage import edit_index, flip, vouch
from drawn import draw_plain, draw_voc, tree_state
from packs import MakePack
from running import digests, good, refused, run

import packer.repack.convert
from packer import BuildOptions, adopt, build_pack, convert, open_pack
from packer.containers import CONTAINERS, open_container
from packer.containers.container import ShardSpec
from packer.errors import DamagedPack, StorageError, UsageError
from packer.format.content import content_digest, deep_digest
from packer.format.index import IndexBuilder
from packer.format.lists import read_list
from packer.format.manifest import FileEntry, Manifest, Origin, ShardEntry, read_manifest
from packer.format.verify import verify
from packer.format.verify_records import digest_of_written
from packer.model.annotation import Annotation, Progress, Record
from packer.packing.journal import Journal
from packer.packing.publish import Output

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "0.1.0"
KINDS = ("raw", "jpeg", "ragged", "boxes", "gray16", "copy")


def files_of(pack: Path) -> dict[str, str]:
    """The digests of a pack's files, without its manifest."""
    return {name: digest for name, digest in digests(pack).items() if name != "pack.json"}


def content(pack: Path) -> str:
    return content_digest(open_pack(pack).reader.indexes, read_manifest(pack))


def round_trip(pack: Path, folder: Path) -> Path:
    """Convert a pack through every other container, and back to its own."""
    own = read_manifest(pack).container
    for name in (*(other for other in CONTAINERS if other != own), own):
        out = folder / f"there.{name}"
        convert(pack, out)
        pack = out
    return pack


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_again(kind: str, make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack(kind, "lmdb")
    before = tree_state(pack)
    back = round_trip(pack, tmp_path)
    assert files_of(back) == files_of(pack)
    first, last = read_manifest(pack), read_manifest(back)
    assert replace(last, made_from=()) == first
    assert [(one.command, one.name) for one in last.made_from] == [("convert", f"there.{CONTAINERS[-1]}")]
    assert tree_state(pack) == before


@pytest.mark.parametrize("name", ["hdf5-keypoints", "tfrecord-polygons", "webdataset-copy"])
def test_no_field_is_lost(name: str, tmp_path: Path) -> None:
    back = round_trip(GOLDEN / name, tmp_path)
    assert files_of(back) == files_of(GOLDEN / name)
    assert content(back) == content(GOLDEN / name)


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_gives_a_whole_pack(container: str, make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("boxes", "webdataset")
    report = convert(pack, tmp_path / "out", format=container)
    assert (report.container, report.records, report.rejected) == (container, 9, ())
    assert not verify(tmp_path / "out", deep=True).problems
    assert content(tmp_path / "out") == content(pack)
    assert deep_digest(open_pack(tmp_path / "out")) == deep_digest(open_pack(pack))
    assert read_manifest(tmp_path / "out").made_from == (Origin("convert", pack.name, read_manifest(pack).digest),)


def test_files_elsewhere_become_files_of_the_pack(copied: MakePack, tmp_path: Path) -> None:
    pack = copied("raw", "tfrecord")
    expected = convert(pack, tmp_path / "expected.hdf5")
    manifest, linked = read_manifest(pack), {}
    (tmp_path / "elsewhere").mkdir()
    for shard in manifest.shards:
        moved = tmp_path / "elsewhere" / f"x-{shard.container.name}"
        (pack / shard.container.name).rename(moved)
        linked[shard.container.name] = str(moved)
    (pack / "pack.json").write_bytes(replace(manifest, linked=linked).to_json())
    convert(pack, tmp_path / "out.hdf5")
    assert files_of(tmp_path / "out.hdf5") == files_of(Path(expected.path))
    assert not read_manifest(tmp_path / "out.hdf5").linked
    (tmp_path / "elsewhere" / "pack.json").write_bytes(manifest.to_json())
    with pytest.raises(UsageError, match=r"would be replaced, but .* needs its x-shard-00000\.tfrecord"):
        convert(pack, tmp_path / "elsewhere", overwrite=True)


def test_lists_are_carried_over(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    (source / "JPEGImages" / "003.jpg").write_bytes(b"no image")
    (source / "left-out.txt").write_text("001\n")
    options = {"labels": ("voc",), "max_bad": "1", "boxes": "clip", "exclude": str(source / "left-out.txt")}
    build_pack(BuildOptions(str(source), str(tmp_path / "a.lmdb"), resize="20", **options))
    lists = ("exclude.txt", "rejected.tsv", "skipped.tsv")
    made = files_of(Path(convert(tmp_path / "a.lmdb", tmp_path / "b.hdf5").path))
    assert {name: made[name] for name in lists} == {name: files_of(tmp_path / "a.lmdb")[name] for name in lists}
    first, second = read_manifest(tmp_path / "a.lmdb"), read_manifest(tmp_path / "b.hdf5")
    assert (first.counts, first.options, first.rejected) == (second.counts, second.options, second.rejected)
    flip(tmp_path / "a.lmdb" / "rejected.tsv", 30)
    with pytest.raises(DamagedPack, match=r"rejected\.tsv: was altered"):
        convert(tmp_path / "a.lmdb", tmp_path / "c.hdf5")
    # what is left out now is added to what was left out then
    (tmp_path / "more.txt").write_text("JPEGImages/005.jpg\n")
    convert(tmp_path / "b.hdf5", tmp_path / "d.hdf5", exclude=str(tmp_path / "more.txt"))
    assert (tmp_path / "d.hdf5" / "exclude.txt").read_text() == "JPEGImages/001.jpg\nJPEGImages/005.jpg\n"
    assert [row.path for row in read_list(tmp_path / "d.hdf5", "skipped")] == [
        "JPEGImages/001.jpg",
        "JPEGImages/005.jpg",
    ]


@pytest.mark.parametrize(
    "how", [{"resize": "16"}, {"resize": "24x16", "fit": "pad", "pad_value": 114}, {"resize": "16", "fit": "crop"}]
)
@pytest.mark.parametrize("encode", ["raw", "png", "jpeg"])
def test_resized_as_a_build_does(encode: str, how: dict[str, Any], tmp_path: Path) -> None:
    options = {"labels": ("voc",), "workers": 1}
    source = draw_voc(tmp_path / "src")
    build_pack(BuildOptions(str(source), str(tmp_path / "a.lmdb"), **options))
    build_pack(BuildOptions(str(source), str(tmp_path / "b.lmdb"), encode=encode, **how, **options))
    convert(tmp_path / "a.lmdb", tmp_path / "c.lmdb", encode=encode, **how)
    first, second = read_manifest(tmp_path / "b.lmdb"), read_manifest(tmp_path / "c.lmdb")
    assert content(tmp_path / "b.lmdb") == content(tmp_path / "c.lmdb")
    assert (first.options, first.shape, first.counts) == (second.options, second.shape, second.counts)
    assert files_of(tmp_path / "b.lmdb") == files_of(tmp_path / "c.lmdb")


def test_encoded_images_are_decoded_and_resized(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("copy", "hdf5")
    convert(pack, tmp_path / "raw.hdf5", encode="raw")
    before, after = open_pack(pack), open_pack(tmp_path / "raw.hdf5")
    assert all(np.array_equal(before.image(i), after.image(i)) for i in range(len(before)))
    convert(pack, tmp_path / "small.hdf5", resize="5x5")  # as a build that resizes
    assert read_manifest(tmp_path / "small.hdf5").encoding == "raw"
    assert after.manifest.encoding == "raw" and after.reader.record_bytes == 10 * 12 * 3
    assert np.array_equal(before.column("source_xxh3"), after.column("source_xxh3"))
    assert convert(pack, tmp_path / "small", encode="jpeg", quality=50, resize="6x5").container == "hdf5"
    assert open_pack(tmp_path / "small").manifest.shape == (5, 6, 3)
    assert not verify(tmp_path / "small", deep=True).problems


@pytest.mark.parametrize(
    ("option", "lines", "paths"),
    [
        ("include", ["ant/1.png", "00000009", "cat/7"], ["ant/1.png", "bee/1.png", "cat/7.png"]),
        ("include", ["bee/*", "ant/"], [f"{name}/{i}.png" for name in ("ant", "bee") for i in range(8)]),
        ("exclude", ["bee/", "cat/[1-7].png"], [*(f"ant/{i}.png" for i in range(8)), "cat/0.png"]),
    ],
)
def test_a_part(option: str, lines: list[str], paths: list[str], make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("ragged", "tfrecord")
    (tmp_path / "these.txt").write_text("\n".join(lines))
    report = convert(pack, tmp_path / "out.lmdb", **{option: str(tmp_path / "these.txt")})
    whole, part = open_pack(pack), open_pack(tmp_path / "out.lmdb")
    assert part.paths == paths
    where = {path: i for i, path in enumerate(whole.paths)}
    for i, path in enumerate(part.paths):
        assert part.key(i) == whole.key(where[path]) and part.record(i) == whole.record(where[path])
        assert part.annotation(i).label == whole.annotation(where[path]).label
    manifest = part.manifest
    assert report.skipped == manifest.counts["skipped"] == 24 - len(paths)
    assert manifest.counts["found"] == 24 and sum(manifest.class_counts["label"]) == len(paths)
    assert len(list(read_list(tmp_path / "out.lmdb", "skipped"))) == report.skipped
    assert f"{option}.txt" in files_of(tmp_path / "out.lmdb")
    assert not verify(tmp_path / "out.lmdb", deep=True).problems


def test_a_damaged_record_is_named_and_nothing_is_written(copied: MakePack, tmp_path: Path) -> None:
    pack = copied("raw", "tfrecord")
    opened = open_pack(pack)
    shard = opened.reader.locate(7)[0]
    start = int(opened.reader.span(7)[0] - opened.reader._starts[shard])
    flip(pack / opened.reader.shards[shard].container.name, start + 5)
    with pytest.raises(DamagedPack, match=r"record 00000007 .* does not match its checksum") as caught:
        convert(pack, tmp_path / "out.hdf5", workers=1)
    assert caught.value.key == "00000007" and "packer repair" in caught.value.next_step
    assert not (tmp_path / "out.hdf5").exists()
    assert "record 00000007" in refused(4, "convert", pack, tmp_path / "new.hdf5", "--quiet")
    assert "record 00000007" in refused(4, "convert", pack, tmp_path / "new.hdf5", "--encode", "png", "--quiet")


def test_images_that_cannot_be_encoded_are_listed(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("gray16", "hdf5")
    ran = run("convert", pack, tmp_path / "out", "--encode", "jpeg")
    assert ran.code == 1 and "none of the images can be converted\n  bad-image: 24, for example ant/0.png: " in ran.err
    assert not (tmp_path / "out").exists()


def test_one_bad_image_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_plain(tmp_path / "src", 5)
    build_pack(BuildOptions(str(tmp_path / "src"), str(tmp_path / "a.lmdb"), encode="copy"))
    decode = packer.images.decode.decode

    def fails_once(data: bytes, *rest: Any, **more: Any) -> Any:
        if data == (tmp_path / "src" / "002.jpg").read_bytes():
            raise packer.errors.BadImage("", "is broken")
        return decode(data, *rest, **more)

    monkeypatch.setattr("packer.images.decode.decode", fails_once)
    ran = run("convert", tmp_path / "a.lmdb", tmp_path / "b.lmdb", "--encode", "png")
    assert ran.code == 1 and "rejected: 002.jpg: is broken" in ran.err
    manifest = read_manifest(tmp_path / "b.lmdb")
    assert (manifest.records, manifest.counts["rejected"], manifest.counts["found"]) == (4, 1, 5)
    assert [row.path for row in read_list(tmp_path / "b.lmdb", "rejected")] == ["002.jpg"]
    assert not verify(tmp_path / "b.lmdb", deep=True).problems


@pytest.mark.workers
def test_a_crash_costs_one_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_plain(tmp_path / "src", 4)
    build_pack(BuildOptions(str(tmp_path / "src"), str(tmp_path / "a.lmdb"), workers=1))
    monkeypatch.setattr(packer.repack.convert, "Remake", crashing_remake.CrashingRemake)
    report = convert(tmp_path / "a.lmdb", tmp_path / "b.lmdb", resize="8", workers=1)
    assert [(row.path, row.reason) for row in report.rejected] == [("002.jpg", "crashed")]
    assert open_pack(tmp_path / "b.lmdb").paths == ["000.jpg", "001.jpg", "003.jpg"]


class Notes(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_resumes_with_the_same_bytes(make_pack: MakePack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = make_pack("raw", "lmdb")
    convert(pack, tmp_path / "whole.tfrecord")
    add, lines = Journal.add, 0

    def full(self: Journal, name: str, result: Any) -> None:
        nonlocal lines
        lines += 1
        if lines == 3:
            raise StorageError(self.path, "cannot write: No space left on device")
        add(self, name, result)

    monkeypatch.setattr(Journal, "add", full)
    notes = Notes()
    with pytest.raises(StorageError):
        convert(pack, tmp_path / "out.tfrecord", notes)
    assert notes.texts[-1].startswith("2 finished shards are kept in")
    monkeypatch.undo()
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out.tfrecord.partial" / "pack").iterdir()}
    assert len(times) == 4
    with pytest.raises(UsageError, match='unfinished build with other options: encode="raw", now png'):
        convert(pack, tmp_path / "out.tfrecord", encode="png")
    with pytest.raises(UsageError, match=r"unfinished build with other options: source .* now .*other"):
        convert(shutil.copytree(pack, tmp_path / "other"), tmp_path / "out.tfrecord")
    notes = Notes()
    convert(pack, tmp_path / "out.tfrecord", notes)
    assert "note: resumed: 2 of 3 shards were finished" in notes.texts
    assert digests(tmp_path / "out.tfrecord") == digests(tmp_path / "whole.tfrecord")
    assert all((tmp_path / "out.tfrecord" / name).stat().st_mtime_ns == time for name, time in times.items())


def test_two_at_once(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("raw", "lmdb")
    with Output(str(tmp_path / "out.hdf5"), str(pack), overwrite=False):
        assert "another build is writing to it" in refused(2, "convert", pack, tmp_path / "out.hdf5")


def test_a_full_disk_is_seen_before(make_pack: MakePack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = make_pack("raw", "lmdb")
    monkeypatch.setattr("packer.repack.convert.free_bytes", lambda out: 100)
    for options in ([], ["--encode", "jpeg"]):
        assert "but only 100 bytes are free" in refused(3, "convert", pack, tmp_path / "out.hdf5", *options)
    assert list(tmp_path.iterdir()) == []


def odd_pack(folder: Path, keys: list[str]) -> Path:
    """A pack whose keys are not those that packer writes."""
    folder.mkdir()
    path, index = folder / "a.tfrecord", folder / "a.index.arrow"
    writer = open_container("tfrecord").create(str(path), ShardSpec((), "raw", (1, 2, 3), "uint8", len(keys), 6))
    builder = IndexBuilder()
    for number, key in enumerate(keys):
        record = Record(key, bytes([number] * 6), "raw", 1, 2, 3, "uint8", Annotation(), b"%d.png" % number)
        builder.add(record)
        writer.write(record)
    entry = builder.write(index, writer.close())
    file = FileEntry(path.name, path.stat().st_size, digest_of_written(str(path), str(index), entry))
    counts = {"found": len(keys), "packed": len(keys), "rejected": 0, "skipped": 0}
    manifest = Manifest(
        container="tfrecord", encoding="raw", mode="rgb", dtype="uint8", shape=(1, 2, 3), classes=(), fields=(),
        records=len(keys), counts=counts, class_counts={}, options={"labels": []},
        shards=(ShardEntry(len(keys), file, entry),),
    )  # fmt: skip
    (folder / "pack.json").write_bytes(manifest.to_json())
    return folder


@pytest.mark.parametrize("keys", [["b", "a", "c"], ["00000002", "00000001", "00000003"]])
def test_other_keys_become_numbers(keys: list[str], tmp_path: Path) -> None:
    pack = odd_pack(tmp_path / "odd", keys)
    notes = Notes()
    convert(pack, tmp_path / "out.lmdb", notes)
    assert open_pack(tmp_path / "out.lmdb").keys == ["00000000", "00000001", "00000002"]
    assert open_pack(tmp_path / "out.lmdb").paths == ["0.png", "1.png", "2.png"]
    assert any("records get new keys" in text for text in notes.texts)


def test_a_key_of_several_records_names_none(copied: MakePack, tmp_path: Path) -> None:
    pack = copied("raw", "tfrecord")
    for shard in read_manifest(pack).shards:  # as in a merged pack, whose shards keep their keys
        edit_index(pack / shard.index.name, "key", lambda keys: [f"{i:08d}" for i in range(len(keys))])
    vouch(pack)
    (tmp_path / "these").write_text("00000001\n")
    with pytest.raises(UsageError, match='"00000001" fits 3 images'):
        convert(pack, tmp_path / "out", include=str(tmp_path / "these"))


def nothing(folder: Path) -> None:
    pass


def an_include(*lines: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "these").write_text("\n".join(lines))

    return write


MISTAKES: dict[str, tuple[int, str, Callable[[Path], None], list[str]]] = {
    "copy": (
        2,
        "--encode copy: keeps the files of a source, but the pack has raw images",
        nothing,
        ["--encode", "copy"],
    ),
    "format": (2, "--format: must be one of", nothing, ["--format", "zip"]),
    "two formats": (2, "the extension of", nothing, ["--format", "lmdb"]),
    "quality": (2, "--quality: is for jpeg, not for raw", nothing, ["--quality", "50"]),
    "fit": (2, "--fit: pad says how to resize, but there is no size", nothing, ["--fit", "pad"]),
    "size": (2, "--resize: must be N or WIDTHxHEIGHT", nothing, ["--resize", "x"]),
    "workers": (2, "--workers: must be at least 1", nothing, ["--workers", "0"]),
    "no such line": (2, "these:2: no record zebra", an_include("ant/0", "zebra"), ["--include", "these"]),
    "no record": (2, "these: leaves no record", an_include("*"), ["--exclude", "these"]),
    "no file": (2, "these", nothing, ["--include", "these"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, make_pack: MakePack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text, prepare, options = MISTAKES[name]
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert text in refused(code, "convert", make_pack("raw", "lmdb"), "out.hdf5", *options)
    assert sorted(tmp_path.iterdir()) == before


def test_paths(make_pack: MakePack, copied: MakePack, tmp_path: Path) -> None:
    pack = copied("raw", "lmdb")
    assert "would replace the source folder" in refused(2, "convert", pack, pack, "--overwrite")
    assert "is inside the source folder" in refused(2, "convert", pack, pack / "out.hdf5")
    assert "no such pack" in refused(2, "convert", tmp_path / "absent", tmp_path / "out.hdf5")
    good("convert", pack, tmp_path / "out.hdf5")
    line = refused(2, "convert", pack, tmp_path / "out.hdf5")
    assert "exists; choose another OUT, or replace it with --overwrite" in line
    good("convert", pack, tmp_path / "out.hdf5", "--overwrite", "--resize", "4x4")
    assert open_pack(tmp_path / "out.hdf5").manifest.shape == (4, 4, 3)


def test_what_it_prints(make_pack: MakePack, tmp_path: Path) -> None:
    pack = make_pack("raw", "lmdb")
    line = good("convert", pack, tmp_path / "a.hdf5").out
    assert line.startswith(f"{tmp_path}/a.hdf5: 24 records in 3 shards (hdf5, raw); ")
    assert good("convert", pack, tmp_path / "b.hdf5", "--quiet").out == ""
    facts = json.loads(good("convert", pack, tmp_path / "c.hdf5", "--json").out)
    assert (facts["records"], facts["shards"], facts["rejected"]) == (24, 3, [])
    assert f"made from  convert: {pack.name}" in good("info", tmp_path / "a.hdf5").out


def test_an_adopted_container_is_not_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8, 3), np.uint8))
    adopt([tmp_path / "x.npy"], tmp_path / "arrays")
    line = refused(2, "convert", tmp_path / "arrays", tmp_path / "out")
    assert "--format: is needed: the pack is of npy files, which packer does not write; choose one of lmdb" in line
