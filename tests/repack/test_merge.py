"""Packs merged: what a reader sees is what it saw in each of them, and no image is copied."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from drawn import draw, draw_classes, draw_objects, draw_plain, draw_voc
from drawn_masks import pairs, write_files
from packs import MakePack
from running import digests, good, refused, run

from packer import BuildOptions, Pack, PackedDataset, PackedLoader, adopt, build_pack, merge, open_pack
from packer.errors import BadInput, DamagedPack, UsageError
from packer.format.manifest import Manifest, read_manifest
from packer.format.salvage import repair
from packer.format.verify import verify

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(name, classes, **options): a pack of class folders."""

    def make(name: str, classes: tuple[str, ...], each: int = 3, **options: object) -> Path:
        source = draw_classes(tmp_path / f"{name}-src", classes, each)
        out = tmp_path / name
        container = options.pop("format", "lmdb")
        options = {"labels": ("folder",), "encode": "raw", **options}
        build_pack(BuildOptions(str(source), str(out), str(container), workers=1, **options))  # type: ignore[arg-type]
        return out

    return make


def rewrite(pack: Path, change: Callable[[Manifest], Manifest]) -> None:
    (pack / "pack.json").write_bytes(change(read_manifest(pack)).to_json())


def facts(pack: Pack) -> list[tuple[object, ...]]:
    """Each record: its path, class names, boxes and pixels."""
    names, found = pack.classes, []
    for i in range(len(pack)):
        a = pack.annotation(i)
        label = None if a.label is None else names[a.label]
        boxes = None if a.boxes is None else (a.boxes.tolist(), [names[c] for c in a.box_labels])  # type: ignore[union-attr]
        found.append((pack.paths[i], pack.key(i), label, boxes, a.box_fields, pack.image(i).tobytes()))
    return found


def same_records(merged: Path, *packs: Path) -> None:
    assert facts(open_pack(merged)) == [fact for pack in packs for fact in facts(open_pack(pack))]


def test_containers(make_pack: MakePack, tmp_path: Path, container: str) -> None:
    a = make_pack("raw", container)
    b = tmp_path / f"b.{container}"
    source = tmp_path / "b"
    for i in range(4):
        draw(source / ("cat", "bug")[i % 2] / f"{i}.png", i, 12, 10, format="PNG")
    build_pack(BuildOptions(str(source), str(b), container, workers=1))
    before = digests(a) | digests(b)
    report = merge([a, b], tmp_path / "all")
    assert report.shards == {"hard link": len(report.manifest.shards)} and report.relabelled == 1
    assert report.manifest.classes == ("ant", "bee", "cat", "bug")
    same_records(tmp_path / "all", a, b)
    assert not verify(tmp_path / "all", deep=True).problems
    assert digests(a) | digests(b) == before
    assert open_pack(tmp_path / "all").reader.record_bytes == 10 * 12 * 3
    assert {origin.name for origin in report.manifest.made_from} == {a.name, b.name}


def test_a_reader_sees_the_joined_classes(build: Build, tmp_path: Path) -> None:
    a, b = build("a", ("ant", "cat"), resize="8x8"), build("b", ("bee", "cat"), resize="8x8")
    merge([a, b], tmp_path / "all")
    data = PackedDataset(tmp_path / "all")
    assert data.classes == ["ant", "cat", "bee"] and data.targets == [0, 0, 0, 1, 1, 1, 2, 2, 2, 1, 1, 1]
    assert [data[i][1] for i in range(len(data))] == data.targets
    seen = [label for _, labels in PackedLoader(tmp_path / "all", 4, device="cpu") for label in labels.tolist()]
    assert sorted(seen) == sorted(data.targets)
    assert read_manifest(tmp_path / "all").class_counts == {"label": [3, 6, 3]}
    assert good("verify", tmp_path / "all", "--deep").out.endswith("good: 12 records in 6 files\n")
    assert "made from  merge: a, b" in good("info", tmp_path / "all").out
    assert good("info", tmp_path / "all", "--command").out == f"packer merge a b -o {tmp_path / 'all'}\n"
    good("convert", tmp_path / "all", tmp_path / "c", "--format", "hdf5", "--encode", "png", "--resize", "8x8")
    line = good("info", tmp_path / "c", "--command").out
    so = "--format hdf5 --encode png --resize 8x8 --fit stretch  # or so: all may have had some of these"
    assert line == f"packer convert all {tmp_path / 'c'} {so}\n"
    assert "12 records" in good("stats", tmp_path / "all").out


def test_classes_of_a_file(build: Build, tmp_path: Path) -> None:
    a, b = build("a", ("ant", "cat")), build("b", ("bee",))
    (tmp_path / "names.txt").write_text("cat\nbee\nant\n")
    merge([a, b], tmp_path / "all", tmp_path / "names.txt")
    data = PackedDataset(tmp_path / "all")
    assert data.classes == ["cat", "bee", "ant"] and data.targets == [2, 2, 2, 0, 0, 0, 1, 1, 1]
    (tmp_path / "names.txt").write_text("cat\nant\n")
    line = refused(2, "merge", a, b, "-o", tmp_path / "no", "--classes", tmp_path / "names.txt")
    assert "b: has the class bee, which --classes does not name" in line


def test_boxes(tmp_path: Path) -> None:
    """Classes of boxes are mapped; images without boxes keep none."""
    packs = [tmp_path / "a", tmp_path / "b"]
    for pack, names in zip(packs, ("dog bird", "bird cow"), strict=True):
        source = draw_voc(tmp_path / f"{pack.name}-src", 5)
        for file in (source / "Annotations").iterdir():
            first, second = names.split()
            file.write_text(file.read_text().replace("bird", "?").replace("dog", first).replace("?", second))
        build_pack(BuildOptions(str(source), str(pack), encode="copy", workers=1))
    merge(packs, tmp_path / "all")
    same_records(tmp_path / "all", *packs)
    assert open_pack(tmp_path / "all").classes == ["bird", "dog", "cow"]
    targets = PackedDataset(tmp_path / "all").targets
    assert targets[7]["labels"].tolist() == [0, 2] and targets[5]["labels"].tolist() == []


def test_sizes_may_differ(build: Build, tmp_path: Path) -> None:
    a, b = build("a", ("ant",), resize="8x8", encode="jpeg"), build("b", ("ant",), resize="9x8", encode="png")
    report = merge([a, b], tmp_path / "all")
    assert (report.manifest.shape, report.manifest.encoding) == (None, "copy")
    same_records(tmp_path / "all", a, b)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "hdf5"}, "is hdf5, but {a} lmdb; packer convert {b} {b}-lmdb --format lmdb"),
        ({"encode": "jpeg"}, "stores jpeg images, but {a} raw; packer convert {b} {b}-raw --encode raw"),
        ({"mode": "gray"}, "has mode gray, but {a} rgb; build it again with --mode rgb"),
    ],
)
def test_packs_that_do_not_fit(build: Build, tmp_path: Path, options: dict[str, object], said: str) -> None:
    a, b = build("a", ("ant",)), build("b", ("ant",), **options)
    assert refused(2, "merge", a, b, "-o", tmp_path / "all") == f"packer: error: {b}: {said.format(a=a, b=b)}"
    assert not (tmp_path / "all").exists() and not (tmp_path / "all.partial").exists()


def test_maps_with_another_unknown_value(tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", pairs())
    a, b = (
        build_pack(
            BuildOptions(str(source), str(tmp_path / f"{n}.lmdb"), part=(f"near=masks:map{n}",), labels=("none",))
        ).path
        for n in ("", ":255")
    )
    text = refused(2, "merge", a, b, "-o", tmp_path / "all")
    assert "image, near (map, uint8, 255 unknown), but" in text and "of image, near (map, uint8)" in text


def test_the_pack_to_convert_to_does_not_exist_yet(build: Build, tmp_path: Path) -> None:
    a, b = build("a.lmdb", ("ant",)), build("a.hdf5", ("ant",), format="hdf5")
    step = f"packer convert {b} {tmp_path}/a-hdf5.lmdb --format lmdb"
    assert refused(2, "merge", a, b, "-o", tmp_path / "all").endswith(step)


def test_fields_that_would_be_misread(make_pack: MakePack, build: Build, tmp_path: Path) -> None:
    b = build("b", ("ant",), format="lmdb")
    with pytest.raises(UsageError, match=r"has no boxes, but .* has: its images would count as without any"):
        merge([make_pack("boxes", "lmdb"), b], tmp_path / "all")


def test_wrong_arguments(build: Build, tmp_path: Path) -> None:
    a, b = build("a", ("ant",)), build("b", ("ant",))
    assert "must be two packs or more" in refused(2, "merge", a, "-o", tmp_path / "all")
    assert "is given twice" in refused(2, "merge", a, b, f"{a}/", "-o", tmp_path / "all")
    assert "must be one of keep, drop, fail" in refused(2, "merge", a, b, "-o", tmp_path / "all", "--duplicates", "x")
    before = digests(a)
    assert "would replace the source folder" in refused(2, "merge", a, b, "-o", a, "--overwrite")
    assert "is inside the source folder" in refused(2, "merge", a, b, "-o", a / "all")
    assert digests(a) == before
    merge([a, b], tmp_path / "all")
    assert "exists; choose another --out" in refused(2, "merge", a, b, "-o", tmp_path / "all")
    merge([b, a], tmp_path / "all", overwrite=True)
    same_records(tmp_path / "all", b, a)


@pytest.mark.parametrize("container", ["lmdb", "hdf5"])
def test_the_extension_of_another_format(build: Build, tmp_path: Path, container: str) -> None:
    a, b = build("a", ("ant",), format=container), build("b", ("ant",), format=container)
    for name in ("all.zip", "all.xyz/"):
        line = refused(2, "merge", a, b, "-o", f"{tmp_path}/{name}")
        problem = f"{name[3:7]} is not the extension of a format that packer writes"
        assert line.endswith(f"{name}: {problem}; write --out {tmp_path}/all.{container}")
    assert not list(tmp_path.glob("all*"))
    merge([a, b], tmp_path / "all.v2")


@pytest.mark.parametrize("field", ["polygons", "keypoints"])
def test_duplicates_with_objects_elsewhere(field: str, tmp_path: Path) -> None:
    for name in ("", field):
        good("build", draw_objects(tmp_path / f"src-{name}", name), "-o", tmp_path / f"pack-{name}")
    found = merge([tmp_path / "pack-", tmp_path / f"pack-{field}"], tmp_path / "all").duplicates
    assert (found.records, found.contradicting) == (2, 1)
    assert found.examples[0] == f"1.jpg in pack-{field} is 1.jpg in pack-, labelled differently"


def test_duplicates(build: Build, tmp_path: Path) -> None:
    a = build("a", ("ant", "bee"), resize="8x8")
    source = tmp_path / "again"
    for old, new in (("ant/000.jpg", "ant/1.jpg"), ("bee/001.jpg", "ant/2.jpg")):
        (source / new).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "a-src" / old, source / new)
    draw(source / "ant" / "3.jpg", 77)
    shutil.copy(source / "ant" / "3.jpg", source / "ant" / "4.jpg")
    b = tmp_path / "b"
    build_pack(BuildOptions(str(source), str(b), labels=("folder",), resize="8x8", workers=1))

    kept = merge([a, b], tmp_path / "kept")
    assert (kept.duplicates.records, kept.duplicates.across, kept.duplicates.contradicting) == (3, 2, 1)
    assert kept.duplicates.examples[0] == "ant/2.jpg in b is bee/001.jpg in a, labelled differently"
    assert kept.manifest.records == 10 and kept.dropped == 0
    with pytest.raises(BadInput, match="3 records have the same image file as an earlier one"):
        merge([a, b], tmp_path / "no", duplicates="fail")
    assert not (tmp_path / "no").exists() and not (tmp_path / "no.partial").exists()

    ran = json.loads(good("merge", a, b, "-o", tmp_path / "dropped", "--duplicates", "drop", "--json").out)
    assert ran["duplicates"]["dropped"] == 3
    assert ran["counts"] == {"found": 10, "packed": 7, "rejected": 0, "skipped": 3}
    dropped = open_pack(tmp_path / "dropped")
    assert dropped.paths[-1] == "ant/3.jpg" and dropped.annotation(6).label == 0
    assert not verify(dropped.path, deep=True).problems
    assert "ant/4.jpg: has the same bytes" in good("info", tmp_path / "dropped", "--skipped").out
    line = good("merge", a, b, "-o", tmp_path / "dropped", "--duplicates", "drop", "--overwrite").out
    assert "(1 in the same pack, 1 labelled differently): 3 dropped" in line


def test_labels_that_are_missing_stay_missing(tmp_path: Path) -> None:
    """Rows are selected and mapped, and a null still has the value -1."""
    for name in "ab":
        draw_classes(tmp_path / name, (name, "z"), 2)
        draw(tmp_path / name / "none.jpg", ord(name))
        shutil.copy(tmp_path / name / "z" / "000.jpg", tmp_path / name / "z" / "again.jpg")
        source = BuildOptions(
            str(tmp_path / name), str(tmp_path / f"{name}.lmdb"), labels=("folder",), missing_labels="empty", workers=1
        )
        build_pack(source)
    packs = [tmp_path / "a.lmdb", tmp_path / "b.lmdb"]
    merge(packs, tmp_path / "all")
    same_records(tmp_path / "all", *packs)
    merge(packs, tmp_path / "less", duplicates="drop")
    labels = PackedDataset(tmp_path / "less").labels.tolist()
    assert labels.count(-1) == 2 and [open_pack(tmp_path / "less").annotation(i).label for i in range(len(labels))] == [
        None if label < 0 else label for label in labels
    ]


def test_lists_are_joined(tmp_path: Path) -> None:
    for name in "ab":
        draw_plain(tmp_path / name, 3)
        (tmp_path / name / f"bad-{name}.jpg").write_bytes(b"no image at all" * 9)
        build_pack(BuildOptions(str(tmp_path / name), str(tmp_path / f"{name}.lmdb"), on_bad="skip", workers=1))
    report = merge([tmp_path / "a.lmdb", tmp_path / "b.lmdb"], tmp_path / "all")
    assert [row.path for row in report.manifest.rejected] == ["bad-a.jpg", "bad-b.jpg"]
    assert report.manifest.counts == {"found": 8, "packed": 6, "rejected": 2, "skipped": 0}
    assert "bad-b.jpg" in good("info", tmp_path / "all", "--rejected").out
    assert not verify(tmp_path / "all").problems


def test_where_links_are_impossible(build: Build, tmp_path: Path) -> None:
    """Files are copied, and a copy that is not its original is refused."""
    a, b = build("a", ("ant",)), build("b", ("bee",))
    with mock.patch("os.link", side_effect=OSError(18, "cross-device link")):
        report = merge([a, b], tmp_path / "all")
        assert sum(report.shards.values()) == report.shards.get("copy", 0) + report.shards.get("reflink", 0) == 2
        same_records(tmp_path / "all", a, b)
        assert set(report.manifest.linked) == {"shard-00001.lmdb"}
        data = bytearray((b / "data.mdb").read_bytes())
        data[-1] ^= 1
        (b / "data.mdb").write_bytes(data)
        with pytest.raises(DamagedPack, match="does not match its digest"):
            merge([a, b], tmp_path / "no")
    assert not (tmp_path / "no.partial").exists()


def test_adopted_files_stay_where_they_are(build: Build, tmp_path: Path) -> None:
    """A relative path is written anew, an absolute one kept, and files are not linked."""
    for name in "ab":
        pack = build(name, (name,))
        os.rename(pack / "data.mdb", tmp_path / f"{name}.mdb")
        path = f"../{name}.mdb" if name == "a" else str(tmp_path / "b.mdb")
        rewrite(pack, partial(replace, linked={"data.mdb": path}))
    (tmp_path / "deep").mkdir()
    report = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "deep" / "all")
    assert report.shards == {"in place": 2}
    assert report.manifest.linked == {
        "shard-00000.lmdb": str(tmp_path / "a.mdb"), "shard-00001.lmdb": str(tmp_path / "b.mdb")
    }  # fmt: skip
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all").manifest.linked["shard-00000.lmdb"] == "../a.mdb"
    same_records(tmp_path / "all", tmp_path / "a", tmp_path / "b")
    assert not verify(tmp_path / "all", deep=True).problems
    assert "missing" not in good("info", tmp_path / "all").out


def test_keys_that_several_records_have(build: Build, tmp_path: Path) -> None:
    """A key is unique in a shard only: --include by key names all records that have it."""
    a, b = build("a", ("ant",)), build("b", ("bee",))
    merge([a, b], tmp_path / "all")
    both = tmp_path / "both"
    for name in "ab":
        shutil.copytree(tmp_path / f"{name}-src", both, dirs_exist_ok=True)
    (tmp_path / "keys.txt").write_text("00000001\n")
    ran = run("build", both, "-o", tmp_path / "x", "--like", tmp_path / "all", "--include", tmp_path / "keys.txt")
    assert ran.code == 2 and "fits 2 images, for example ant/001.jpg" in ran.err


def test_repair_of_a_merged_pack(build: Build, tmp_path: Path) -> None:
    """What the container says of its labels is not what the pack says, and so is not trusted."""
    a, b = build("a", ("ant",)), build("b", ("bee",))
    merge([a, b], tmp_path / "all")
    (tmp_path / "all" / "shard-00000.index.arrow").unlink()
    restored = repair(tmp_path / "all")
    assert restored.restored == ("shard-00000.index.arrow",) and restored.out is None
    same_records(tmp_path / "all", a, b)

    (tmp_path / "all" / "shard-00001.index.arrow").write_bytes(b"gone")
    saved = repair(tmp_path / "all")
    assert saved.lost_records == 3 and saved.out is not None
    same_records(Path(saved.out), a)
    assert not verify(saved.out, deep=True).problems
    assert open_pack(b).record(0)  # its own index is its own file


def test_repair_of_a_linked_container(build: Build, tmp_path: Path) -> None:
    """Good records of a damaged container are written with the labels of the pack; the link is not followed."""
    a, b = build("a", ("ant",)), build("b", ("bee",))
    merge([a, b], tmp_path / "all")
    wanted = facts(open_pack(tmp_path / "all"))
    shard = tmp_path / "all" / "shard-00001.lmdb"
    at = int(open_pack(tmp_path / "all").reader.span(3)[0] - open_pack(tmp_path / "all").reader._starts[1])
    data = bytearray(shard.read_bytes())
    data[at] ^= 1
    shard.unlink()
    shard.write_bytes(data)
    saved = repair(tmp_path / "all")
    assert saved.lost_records == 1 and saved.out is not None
    found = facts(open_pack(saved.out))
    assert found == [fact for i, fact in enumerate(wanted) if i != 3]
    assert not verify(saved.out, deep=True).problems
    assert np.array_equal(PackedDataset(saved.out).labels, [0, 0, 0, 1, 1])


def test_rebuilt_manifest_names_classes_of_records_only(build: Build, tmp_path: Path) -> None:
    a, b = build("a", ("ant",)), build("b", ("bee",))
    merge([a, b], tmp_path / "all")
    (tmp_path / "all" / "pack.json").unlink()
    saved = repair(tmp_path / "all")
    assert saved.out is not None
    assert [fact[2] for fact in facts(open_pack(saved.out))] == ["ant"] * 3


def test_a_pack_all_of_whose_records_are_dropped(build: Build, tmp_path: Path) -> None:
    a = build("a", ("ant", "bee"))
    build_pack(BuildOptions(str(tmp_path / "a-src"), str(tmp_path / "b"), labels=("folder",), encode="raw", workers=1))
    report = merge([a, tmp_path / "b"], tmp_path / "all", duplicates="drop")
    assert (report.dropped, report.relabelled, len(report.manifest.shards)) == (6, 0, 1)
    same_records(tmp_path / "all", a)


def test_next_steps_can_be_followed(build: Build, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 8, 8, 3), np.uint8))
    adopt([tmp_path / "x.npy"], tmp_path / "arrays")
    built = build("a", ("ant",), resize="8x8")
    line = refused(2, "merge", tmp_path / "arrays", built, "-o", tmp_path / "all")
    assert f"packer convert {tmp_path}/arrays {tmp_path}/arrays-lmdb --format lmdb" in line
