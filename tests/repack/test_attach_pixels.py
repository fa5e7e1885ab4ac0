"""Masks, maps and images attached to a finished pack: what --part would have packed, whole and in crops."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import flip
from drawn_masks import draw_mask, picture, write_files
from running import ROOT, digests, good, killed_at_last, refused

from packer import (
    BuildOptions,
    PackedDataset,
    PackedLoader,
    RandomResizedCrop,
    attach,
    build_pack,
    detach,
    join_packs,
    open_pack,
    push,
)  # fmt: skip
from packer.errors import BadInput, DamagedPack, UsageError
from packer.format.beside import read_beside
from packer.format.digests import sha256_of
from packer.format.sidecar_list import SidecarList
from packer.format.verify import verify
from packer.view.facts import pack_facts, tile_facts

COUNT, WIDTH, HEIGHT = 6, 36, 24
KINDS = {"seg": "mask", "depth": "map", "far": "map", "right": "image"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "raw": {"encode": "raw"}, "copy": {"encode": "copy"}, "pictures": {"encode": "raw", "format": "webdataset"},
    "pad": {"resize": "20", "fit": "pad", "encode": "jpeg"}, "short": {"resize": "16"},
    "crop": {"resize": "18x10", "fit": "crop", "interpolation": "bilinear", "encode": "png"},
}  # fmt: skip


def npy(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def files_of(i: int) -> dict[str, bytes]:
    """An image, and what belongs to it; of some images all is a row higher."""
    random, height = np.random.default_rng(i), HEIGHT + i % 2
    seg = draw_mask(i, WIDTH, height)
    seg[:3, : 4 + i] = 255
    depth = random.integers(0, 3, (height, WIDTH)).astype(np.uint16) * 700
    far = random.random((height, WIDTH, 2), np.float32)
    far[5:7, 9] = np.nan
    left, right = (random.integers(0, 256, (height, WIDTH, 3), np.uint8) for _ in range(2))
    return {
        f"left/a/im{i}.png": picture(left), f"right/a/im{i}.png": picture(right), f"seg/a/im{i}.png": picture(seg),
        f"depth/a/im{i}.png": picture(depth), f"far/a/im{i}.npy": npy(far),
    }  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {name: data for i in range(COUNT) for name, data in files_of(i).items()}
    return write_files(tmp_path / "set", files)


def build(source: Path, name: str = "p", images: str = "", **options: Any) -> Path:
    parts = tuple(f"{name}={name}:{kind}" for name, kind in KINDS.items())
    given = {"part": parts, "labels": ("none",), "workers": 1, "no_fingerprints": True, **options}
    build_pack(BuildOptions(str(source / images), out=str(source.parent / name), **given))
    return source.parent / name


@pytest.fixture
def pack(source: Path) -> Path:
    return build(source, encode="raw")


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=b.dtype.kind == "f")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_as_the_same_part_built(source: Path, name: str, layout: str) -> None:
    """Of files of the original size: the same values and bytes, and the same crops by the same draw."""
    pack, kind = build(source, **LAYOUTS[layout]), KINDS[name]
    report = attach(pack, source / name, "new", kind)
    assert report.joined == "by file name" and report.notes == ()
    opened = open_pack(pack)
    (spec,) = (spec for spec in opened.manifest.part_specs if spec.name == name)
    assert opened.sidecars["new"].spec == replace(spec, name="new")
    stored = opened.sidecar("new").read(np.arange(COUNT))
    for i in range(COUNT):
        assert same(opened.part(i, "new"), opened.part(i, name))
        assert stored[i][0] == opened.reader.part(i, name)
    crop = RandomResizedCrop(12)
    loader = PackedLoader(pack, 4, parts=(name, "new"), crop=crop, flip=True, seed=3, shuffle=True, collate="dict")
    for epoch in range(2):
        loader.set_epoch(epoch)
        for _, targets in loader:
            assert targets["new"].dtype == targets[name].dtype
            assert torch.equal(targets["new"].nan_to_num(7), targets[name].nan_to_num(7))
    for _, target in PackedDataset(pack, parts=(name, "new")):
        assert torch.equal(target["new"].nan_to_num(7), target[name].nan_to_num(7))
    assert verify(pack).problems == ()


@pytest.mark.parametrize("name", KINDS)
def test_whole_and_in_the_packed_size(source: Path, name: str) -> None:
    """Files of the size of the packed image are taken as they are; batches of whole images have them."""
    pack = build(source, resize="20x14", encode="raw")
    opened = open_pack(pack)
    for i, path in enumerate(opened.paths):
        value = opened.part(i, name)
        data = npy(value) if name == "far" else picture(value)
        write_files(source.parent / "small", {str(Path(path).with_suffix(".npy" if name == "far" else ".png")): data})
    attach(pack, f"{source.parent}/small/{{dir}}/{{stem}}.{'npy' if name == 'far' else 'png'}", "new", KINDS[name])
    for _, targets in PackedLoader(pack, 4, parts=(name, "new"), collate="dict"):
        assert torch.equal(targets["new"].nan_to_num(7), targets[name].nan_to_num(7))


def test_masks_are_all_there_is(source: Path) -> None:
    """Pseudo-labels of a pack without labels are its targets, as masks that were packed are; with names of classes."""
    pack = build(source, images="left", part=(), resize="20x14")
    write_files(source / "seg", {"class_names.txt": b"sky\nant\nbee\ncat\n"})
    report = attach(pack, source / "seg", "pseudo", "mask")
    assert "mask uint8, classes sky, ant, bee, cat, 255 ignored" in report.text and report.notes == ()
    for images, masks in PackedLoader(pack, 4, parts="pseudo"):
        assert masks.dtype == torch.int64 and masks.shape == (len(images), 14, 20)
    facts = pack_facts(open_pack(pack))
    assert facts["overlays"] == ["pseudo"] and [0, "sky"] in facts["masks"]["pseudo"]["legend"]
    assert tile_facts(open_pack(pack), 0)["parts"][0]["as"] == "overlay"
    colors = write_files(source.parent, {"map.txt": b"0 0 off\n1 1 on\n2 1\n3 1\n255 200\n"}) / "map.txt"
    attach(pack, source / "seg", "two", "mask", mask_values=f"map:{colors}", ignore_id=200)
    good("attach", pack, source / "depth", "--as", "deep", "--kind", "map", "--ignore-id", "700")
    assert open_pack(pack).sidecars["two"].spec.classes[:2] == ("off", "on")
    pseudo, two = (open_pack(pack).part(0, name) for name in ("pseudo", "two"))
    assert np.array_equal(two, np.select([pseudo == 255, pseudo > 0], [200, 1], 0))


def test_joined_and_at_a_url(source: Path) -> None:
    packs = [build(source, name, encode="raw" if name == "p" else "copy") for name in ("p", "q")]
    for pack in packs:
        for name, kind in KINDS.items():
            attach(pack, source / name, f"new_{name}", kind)
    joined = join_packs(packs)
    push(packs[0], url := f"file://{source.parent}/store")
    for opened in (joined, open_pack(url, cache_bytes=0)):
        for i in (0, len(opened) - 1):
            assert all(same(opened.part(i, f"new_{name}"), opened.part(i, name)) for name in KINDS)
    loader = PackedLoader(joined, 12, parts=("seg", "new_seg"), crop=RandomResizedCrop(9), shuffle=True, collate="dict")
    for _, targets in loader:
        assert torch.equal(targets["seg"], targets["new_seg"])
    detach(packs[1], "new_depth")
    attach(packs[1], source / "depth", "new_depth", "map", ignore_id=700)
    with pytest.raises(UsageError, match="attach both in one form"):
        join_packs(packs).part(0, "new_depth")


def test_what_does_not_fit_is_named(source: Path, pack: Path) -> None:
    before = digests(pack)

    def said(where: str, kind: str | None, **options: Any) -> str:
        with pytest.raises((BadInput, UsageError)) as caught:
            attach(pack, source / where, "new", kind, **options)
        assert digests(pack) == before
        return str(caught.value)

    assert "has no files of .caption, .json, .npy, .txt; pass kind" in said("seg", None)
    assert "has no pictures" in said("far", "mask")
    assert "is for kind mask" in said("depth", "map", mask_values="ids")
    assert "is for kind mask or map" in said("far", None, ignore_id=0)
    assert "do not fit into new; choose another value" in said("depth", "map", ignore_id=-5)
    assert "column: is for tables" in said("depth", "map", column="x")
    assert "must be array or text or json or mask" in said("far", "video")
    np.save(source / "one.npy", np.zeros(COUNT))
    assert "is not a folder with a picture for each image" in said("one.npy", "map")
    write_files(source, {"seg/a/im3.png": picture(draw_mask(3, 35, 25))})
    assert "set/seg/a/im3.png: has 35x25 pixels, but the packed image 36x25; make it as large" in said("seg", "mask")
    write_files(source, {"depth/a/im2.png": b"\x89PNG broken"})
    assert "set/depth/a/im2.png: " in said("depth", "map")
    write_files(source, {"right/a/im2.png": picture(np.zeros((24, 36, 3), np.uint8))[:-20]})
    assert "set/right/a/im2.png: " in said("right", "image")
    write_files(source, {"seg/a/im3.png": picture(draw_mask(3, 36, 25)), "seg/class_names.txt": b"a\nb\n"})
    assert "im0.png: has the values 2 (" in said("seg", "mask")
    (source / "far/a/im5.npy").unlink()
    assert "has nothing for 1 record (left/a/im5.png)" in said("far", "map")
    with pytest.raises(UsageError, match="names no file"):
        attach(pack, f"{source}/{{stem}}.tiff", "new", "map")
    small = build(source, "small", "left", part=(), resize="16", fit="short")
    write_files(source, {"seg/a/im3.png": picture(draw_mask(3, 50, 20))})
    with pytest.raises(BadInput, match=r"im3\.png: has 50x20 pixels, but the packed image 23x16; .*, or as the image"):
        attach(small, source / "seg", "new", "mask")


def test_damage_is_found(source: Path, pack: Path) -> None:
    attach(pack, source / "depth", "new", "map")
    listed = read_beside(SidecarList, str(pack), open_pack(pack).manifest)
    assert listed is not None
    (facts,) = listed.sidecars
    kept = (pack / "sidecar.new.bin").read_bytes()
    flip(pack / "sidecar.new.bin", 100)
    assert "sidecar.new.bin" in refused(4, "verify", pack)
    with pytest.raises(DamagedPack, match=r"sidecar\.new\.bin: was altered"):
        next(iter(PackedLoader(pack, 4, parts="new", crop=RandomResizedCrop(9))))
    (pack / "sidecar.new.bin").write_bytes(kept)
    for wrong in ({"encoding": "x"}, {"encoding": ""}, {"dtype": "int64"}, {"channels": 0}, {"ignore": 1 << 20}):
        replace(listed, sidecars=(replace(facts, **wrong),)).write(str(pack))  # type: ignore[arg-type]
        with pytest.raises(DamagedPack, match=r"sidecars\.json"):
            open_pack(pack).part(0, "new")
    replace(listed, sidecars=(replace(facts, encoding="npy"),)).write(str(pack))
    with pytest.raises(DamagedPack, match="has a new that is not"):
        open_pack(pack).part(0, "new")


KILLED = """
import sys, time
from packer import attach
from packer.format.sidecar_list import SidecarList
from packer.model.annotation import Progress

def stop(*_):
    print("here", flush=True)
    time.sleep(600)

place, pack, where = sys.argv[1:]
setattr({"advance": Progress, "write": SidecarList}[place], place, stop)
attach(pack, where, "new", "map")
"""


@pytest.mark.parametrize("place", ["advance", "write"])
def test_a_kill_leaves_nothing_half(source: Path, pack: Path, place: str) -> None:
    """SIGKILL while values are written, and between the files and their list: the next attach clears up."""
    attach(pack, source / "seg", "first", "mask")
    before = digests(pack)
    command = [sys.executable, "-c", KILLED, place, str(pack), str(source / "depth")]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "start_new_session": True, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **options) as process, killed_at_last(process):
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    there = {path.name: sha256_of(str(path)) for path in pack.iterdir() if path.is_file()}
    assert {name: there[name] for name in before} == before
    assert list(open_pack(pack).sidecars) == ["first"] and verify(pack).problems == ()
    good("info", pack)
    attach(pack, source / "depth", "new", "map")
    opened = open_pack(pack)
    assert all(same(opened.part(i, "new"), opened.part(i, "depth")) for i in range(COUNT))
    detach(pack, "new")
    assert digests(pack) == before


def test_a_pack_that_is_replaced_says_what_goes(source: Path, pack: Path) -> None:
    parts = [word for name, kind in KINDS.items() for word in ("--part", f"{name}={name}:{kind}")]
    command = ("build", source, "-o", pack, "--labels", "none", "--overwrite", "--workers", "1", *parts)
    assert "attached" not in good(*command).out
    attach(pack, source / "depth", "far_off", "map")
    attach(pack, source / "right", "clip", "image")
    assert "what was attached to it goes with it: clip, far_off (packer attach adds it to the new" in good(*command).out
    assert [one["name"] for one in json.loads(good("info", pack, "--json").out)["sidecars"]] == ["fingerprint"]
