"""What is beside the shards of packs goes along to packs of their records: sidecars, the index of JPEGs."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from damage import flip
from drawn import draw_classes, draw_voc
from indexing import fast
from packs import noise
from PIL import Image
from running import good
from test_edit import no_image_is_opened

from packer import BuildOptions, attach, build_pack, detach, edit, merge, open_pack, split
from packer.errors import DamagedPack, UsageError
from packer.format.beside import read_beside
from packer.format.jpeg_index import open_jpeg_indexes
from packer.format.jpeg_index_list import JpegIndexList
from packer.format.manifest import read_manifest
from packer.format.verify import verify
from packer.repack.index_jpegs import index_jpegs

__all__ = ["fast"]
NAMES = ("caption", "depth", "embedding", "more")


def attached(pack: Path, home: Path, seed: int = 0) -> Path:
    """Attach something of each kind to a pack: what each record has follows from its path and the seed."""
    paths, home = open_pack(pack).paths, home / f"attached{seed}"
    home.mkdir()
    rng = np.random.default_rng(seed)
    np.save(home / "e.npy", rng.random((len(paths), 5), np.float32))
    rows = "".join(f'{{"path": "{path}", "caption": "{path} {seed}", "more": [{i}]}}\n' for i, path in enumerate(paths))
    (home / "c.jsonl").write_text(rows)
    for path in paths:
        target = home / "d" / Path(path).with_suffix(".png")
        target.parent.mkdir(parents=True, exist_ok=True)
        height, width = open_pack(pack).image(paths.index(path)).shape[:2]
        Image.fromarray(noise(seed + len(path) + int(target.stem), height, width, 1)[..., 0]).save(target)
    attach(pack, home / "e.npy", "embedding")
    attach(pack, home / "c.jsonl", "caption", column="caption")
    attach(pack, home / "c.jsonl", "more", kind="json", column="more")
    attach(pack, home / "d", "depth", kind="map")
    return pack


def values(pack: Path) -> dict[str, dict[str, Any]]:
    """What is attached, by name and path, as texts."""
    opened = open_pack(pack)
    return {
        name: {path: np.asarray(opened.part(i, name)).tolist() for i, path in enumerate(opened.paths)}
        for name in opened.sidecars
    }


def of_paths(found: dict[str, dict[str, Any]], paths: list[str]) -> dict[str, dict[str, Any]]:
    return {name: {path: of_path[path] for path in paths} for name, of_path in found.items()}


def build(home: Path, name: str = "p", seed: int = 0, **options: Any) -> Path:
    source = draw_classes(home / f"{name}-source")
    if seed:
        for folder in [*source.iterdir()]:
            folder.rename(source / f"{seed}{folder.name}")
    given = {"shard_bytes": 3000, "workers": 1, "encode": "jpeg", "no_fingerprints": True, **options}
    build_pack(BuildOptions(str(source), str(home / name), **given))
    return home / name


@pytest.mark.parametrize("container", ["lmdb", "hdf5", "webdataset"])
def test_rows_are_those_of_the_records(tmp_path: Path, container: str) -> None:
    pack = attached(build(tmp_path, format=container), tmp_path)
    before = values(pack)
    assert [*before] == [*NAMES] and len(read_manifest(pack).shards) > 2
    steps: list[dict[str, Any]] = [
        {"delete": [0, 3, 8]},
        {"map": ["ant=aunt"]},
        {"drop_class": ["bee"], "missing_labels": "skip"},
        {"delete": [1], "drop_class": ["cat"], "missing_labels": "skip", "map": ["ant=aunt"]},
    ]
    for number, asked in enumerate(steps):
        with no_image_is_opened(pack):
            report = edit(pack, tmp_path / f"e{number}", **asked)
        paths = open_pack(report.path).paths
        assert values(Path(report.path)) == of_paths(before, paths) and len(paths) < len(open_pack(pack)) + (
            number == 1
        )
        assert not verify(report.path, deep=True).problems and not any("attach" in note for note in report.notes)
    edit(tmp_path / "e0", tmp_path / "again", delete=[2])
    assert values(tmp_path / "again") == of_paths(before, open_pack(tmp_path / "again").paths)
    shutil.rmtree(pack)
    assert [*values(tmp_path / "e1")] == [*NAMES]
    detach(tmp_path / "e1", "more")
    assert [*values(tmp_path / "e1")] == [*NAMES[:3]] and "more" in values(tmp_path / "e0")


def test_files_are_shared_if_all_records_stay(tmp_path: Path) -> None:
    pack = attached(build(tmp_path), tmp_path)
    edit(pack, tmp_path / "e", map=["ant=aunt", "bee=ant"])
    files = [name for name in os.listdir(pack) if name.startswith("sidecar.")]
    assert len(files) == 7 and all(os.path.samefile(pack / name, tmp_path / "e" / name) for name in files)


def test_merged_and_split(tmp_path: Path) -> None:
    packs = [attached(build(tmp_path, f"p{seed}", seed), tmp_path, seed) for seed in range(3)]
    before = [values(pack) for pack in packs]
    report = merge(packs, tmp_path / "merged")
    everything = {name: {k: v for one in before for k, v in one[name].items()} for name in NAMES}
    assert values(tmp_path / "merged") == everything and not report.notes
    merge(packs, tmp_path / "fewer", drop_class=["bee", "1ant", "2cat"], missing_labels="skip")
    assert values(tmp_path / "fewer") == of_paths(everything, open_pack(tmp_path / "fewer").paths)
    for part in split(tmp_path / "merged", "a=0.5,b=0.3,c=0.2", tmp_path).parts:
        assert values(Path(part.path)) == of_paths(everything, open_pack(part.path).paths)
        assert not verify(part.path, deep=True).problems


def test_what_not_all_packs_have(tmp_path: Path) -> None:
    packs = [attached(build(tmp_path, f"p{seed}", seed), tmp_path, seed) for seed in range(2)]
    detach(packs[1], "more")
    detach(packs[1], "embedding")
    np.save(tmp_path / "wide.npy", np.zeros((len(open_pack(packs[1])), 6), np.float32))
    attach(packs[1], tmp_path / "wide.npy", "embedding")
    note = "embedding, more: not attached to all records of the packs in one form"
    assert note in good("merge", *packs, "-o", tmp_path / "merged").out
    assert [*values(tmp_path / "merged")] == ["caption", "depth"]
    for name in ("caption", "depth", "embedding"):
        detach(packs[1], name)
    (lost,) = merge(packs, tmp_path / "none").notes
    assert lost.startswith("caption, depth, embedding, more: not attached") and not values(tmp_path / "none")


def test_damaged_rows_do_not_get_new_checksums(tmp_path: Path) -> None:
    pack = attached(build(tmp_path), tmp_path)
    for name in ("sidecar.embedding.npy", "sidecar.caption.jsonl", "sidecar.depth.offsets.npy"):
        flip(pack / name, 140)
        with pytest.raises(DamagedPack, match=f"{name}.*was altered"):
            edit(pack, tmp_path / "e", delete=[0])
        flip(pack / name, 140)
    os.truncate(pack / "sidecar.caption.jsonl", 50)
    for asked in ({"delete": [0]}, {"map": ["ant=aunt"]}):
        with pytest.raises(DamagedPack, match="caption"):
            edit(pack, tmp_path / "e", **asked)
    assert not (tmp_path / "e").exists()


def test_a_name_that_the_new_pack_has(tmp_path: Path) -> None:
    """Labels of another pack may have a field of boxes of the name of a sidecar."""
    pack, other = tmp_path / "pack", tmp_path / "other"
    build_pack(BuildOptions(str(draw_voc(tmp_path / "src")), str(pack), labels=("none",), workers=1))
    build_pack(BuildOptions(str(tmp_path / "src"), str(other), labels=("voc",), workers=1))
    np.save(tmp_path / "x.npy", np.zeros(len(open_pack(pack))))
    field = next(name for name in read_manifest(other).fields if name.startswith("box_fields.")).partition(".")[2]
    attach(pack, tmp_path / "x.npy", field)
    with pytest.raises(UsageError, match=f"packer detach .* {field}"):
        edit(pack, tmp_path / "e", labels_from=other)


# -- the index of JPEGs


def indexes_of(pack: Path) -> dict[str, bytes]:
    opened = open_pack(pack)
    found = open_jpeg_indexes(opened)
    assert found is not None
    places, sizes = found.places(np.arange(len(opened)))
    return {
        path: ctypes.string_at(int(place), int(size)) if size else b""
        for path, place, size in zip(opened.paths, places, sizes, strict=True)
    }


@pytest.fixture
def indexed(tmp_path: Path, fast: ModuleType) -> Path:
    """A pack of JPEGs, of which some are progressive, and PNGs."""
    source = draw_classes(tmp_path / "p-source")
    for number, path in enumerate(sorted(source.rglob("*.jpg"))):
        if number % 4 == 1:
            Image.fromarray(noise(number, 20, 30)).save(path, progressive=True)
        elif number % 4 == 2:
            Image.fromarray(noise(number, 20, 30)).save(path, "PNG")
    build_pack(BuildOptions(str(source), str(tmp_path / "p"), encode="copy", shard_bytes=4000, workers=1))
    index_jpegs(tmp_path / "p", workers=1)
    return tmp_path / "p"


def listed(pack: Path) -> JpegIndexList:
    found = read_beside(JpegIndexList, str(pack), read_manifest(pack))
    assert found is not None
    return found


def test_jpegs_stay_indexed(indexed: Path, tmp_path: Path) -> None:
    before = indexes_of(indexed)
    assert {*listed(indexed).without} == {"png", "progressive or arithmetic"}
    with no_image_is_opened(indexed):
        edit(indexed, tmp_path / "e", delete=[1, 2, 9])
        edit(indexed, tmp_path / "m", map=["bee=ant"])
        merge([tmp_path / "e", indexed], tmp_path / "both")
    parts = [Path(part.path) for part in split(indexed, "a=0.6,b=0.4", tmp_path).parts]
    for pack in (tmp_path / "e", tmp_path / "m", tmp_path / "both", *parts):
        assert indexes_of(pack) == {path: before[path] for path in open_pack(pack).paths}
        made = listed(pack)
        index_jpegs(pack, workers=1)
        assert (made.indexed, made.without, made.interval) == (
            listed(pack).indexed, listed(pack).without, listed(pack).interval,
        )  # fmt: skip


def test_reasons_that_nobody_knows_any_more(tmp_path: Path, fast: ModuleType) -> None:
    source = draw_classes(tmp_path / "src")
    for number, path in enumerate(sorted(source.rglob("*.jpg"))[:5]):
        channels = 4 if number % 2 else 3
        Image.fromarray(noise(number, 20, 30, channels), ("RGB", "CMYK")[number % 2]).save(path, progressive=True)
    build_pack(BuildOptions(str(source), str(tmp_path / "p"), encode="copy", workers=1))
    index_jpegs(tmp_path / "p", workers=1)
    assert dict(listed(tmp_path / "p").without) == {"progressive or arithmetic": 3, "CMYK": 2}
    edit(tmp_path / "p", tmp_path / "e", delete=[0])
    made = listed(tmp_path / "e")
    assert dict(made.without) == {"other JPEGs": 4} and made.indexed == len(open_pack(tmp_path / "e")) - 4
    assert not verify(tmp_path / "e", deep=True).problems


def test_files_of_shards_are_shared(indexed: Path, tmp_path: Path) -> None:
    edit(indexed, tmp_path / "e", delete=[0])
    shared = [
        os.path.samefile(indexed / one.index.name, tmp_path / "e" / one.index.name) for one in listed(indexed).shards
    ]
    assert shared == [False, *(True for _ in shared[1:])] and len(shared) > 2
    assert not verify(tmp_path / "e", deep=True).problems
