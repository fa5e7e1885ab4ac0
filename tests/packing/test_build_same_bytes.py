"""The same inputs and options give the same bytes, whatever is around them."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import cv2
import pytest
from running import digests, good, jobs_here, run_apart

from packer import build_pack
from packer.containers import CONTAINERS
from packer.format.content import content_digest
from packer.format.digests import sha256_of
from packer.format.pack import Pack, open_pack
from packer.packing import BuildOptions, plan_pack
from packer.samplers.order import derive, permutation
from packer.sources.synthetic import draw_sample

pytestmark = pytest.mark.workers

SMALL = ["--shard-size", "12KB"]  # several shards of these sources


@pytest.mark.parametrize(
    ("format", "encode"), [("lmdb", "raw"), ("hdf5", "jpeg"), ("tfrecord", "raw"), ("webdataset", "raw")]
)
def test_any_number_of_workers(sources: Path, tmp_path: Path, format: str, encode: str) -> None:
    shard = SMALL if encode == "raw" else ["--shard-size", "4KB"]
    options = ["--labels", "voc", "--format", format, "--encode", encode, "--resize", "32x24", *shard]
    with jobs_here():
        good("build", sources / "voc", *options, "-o", tmp_path / "here")
    good("build", sources / "voc", *options, "-o", tmp_path / "w3", "--workers", 3)
    assert digests(tmp_path / "here") == digests(tmp_path / "w3")
    assert len(digests(tmp_path / "w3")) >= 1 + 2 * 2  # the manifest, and at least two shards with their indexes


def test_the_default_interpolation_is_area_and_not_recorded(sources: Path, tmp_path: Path) -> None:
    """A pack is the same as those from before there was a choice."""
    packs = []
    for name in ((), ("area",), ("bilinear",)):
        out = tmp_path / "-".join(("pack", *name))
        given = ["--interpolation", *name] if name else []
        with jobs_here():
            good("build", sources / "classes", "--resize", "7", *given, "-o", out, "--workers", 1)
        packs.append(digests(out))
    assert packs[0] == packs[1] != packs[2]
    assert "interpolation" not in open_pack(tmp_path / "pack").manifest.options
    assert open_pack(tmp_path / "pack-bilinear").manifest.options["interpolation"] == "bilinear"


@pytest.mark.parametrize("format", ["lmdb", "webdataset"])
def test_threads_inside_one_shard(tmp_path: Path, sources: Path, format: str) -> None:
    options = ["--shard-size", "none", "--format", format, "--shuffle", "5"]
    for workers in (1, 4):
        good("build", sources / "classes", *options, "-o", tmp_path / str(workers), "--workers", workers)
    assert digests(tmp_path / "1") == digests(tmp_path / "4")


def test_threads_over_many_chunks(tmp_path: Path) -> None:
    from drawn import image_file

    (tmp_path / "src").mkdir()
    data = [image_file(i, 12, 9) for i in range(7)]
    for i in range(700):  # chunks are of 64
        (tmp_path / "src" / f"{i * 7919 % 1000:03d}-{i}.jpg").write_bytes(data[i % 7])
    for workers in (1, 3):
        good("build", tmp_path / "src", "--shard-size", "none", "-o", tmp_path / str(workers), "--workers", workers)
    assert digests(tmp_path / "1") == digests(tmp_path / "3")


def test_locale_hash_seed_time_zone_and_place(sources: Path, tmp_path: Path) -> None:
    source = tmp_path / "a" / "set"
    shutil.copytree(sources / "classes", source)
    for name in ("zoo\udce4", "Zoo", "ähre", "Istanbul", "ilmen"):  # a name that is not UTF-8 too
        shutil.copytree(os.fsencode(sources / "classes" / "ant"), os.fsencode(source / name))
    elsewhere = tmp_path / "b" / "deeper" / "other"
    shutil.copytree(os.fsencode(source), os.fsencode(elsewhere))
    for file in elsewhere.rglob("*"):
        os.utime(os.fsencode(file), (1, 1))
    runs: list[tuple[Path, dict[str, str]]] = [
        (source, {"LC_ALL": "C", "PYTHONHASHSEED": "0"}),
        (elsewhere, {"LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}),
        (source, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "2"}),
    ]
    packs = []
    for i, (place, env) in enumerate(runs):
        out = tmp_path / f"{i}.lmdb"
        options = ["--labels", "folder", "-o", out, "--workers", "1", *SMALL]
        ran = run_apart("build", place, *options, env=env)
        assert ran.code == 0, ran.err
        packs.append(digests(out))
    assert packs[0] == packs[1] == packs[2]
    assert open_pack(tmp_path / "0.lmdb").classes == [
        "Istanbul", "Zoo", "ant", "bee", "cat", "ilmen", "zoo\udce4", "ähre"
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "classes", "voc", "faces"])
def test_order_in_which_the_directory_is_read(sources: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    source = str(sources / kind)
    labels = (f"list:{source}/landmarks.txt",) if kind == "faces" else ("auto",)
    options = BuildOptions(source, labels=labels, columns=("path x*5 y*5",) if kind == "faces" else ())
    expected = _plan(options)
    scandir = os.scandir
    for seed in range(3):
        monkeypatch.setattr(os, "scandir", _Shuffled(scandir, seed))
        assert _plan(options) == expected
    monkeypatch.undo()


class _Shuffled:
    """`os.scandir` with its entries in another order."""

    def __init__(self, scandir: Any, seed: int) -> None:
        self.scandir = scandir
        self.random = random.Random(seed)

    def __call__(self, *path: Any) -> Any:
        with self.scandir(*path) as entries:
            found = list(entries)
        self.random.shuffle(found)
        return _Entries(found)


class _Entries(list[Any]):
    def __enter__(self) -> Any:
        return iter(self)

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def _plan(options: BuildOptions) -> Any:
    plan = plan_pack(options)
    rows = plan.table.to_pylist()
    labels = [row.get("label") for row in rows]
    return rows, labels, plan.inputs.classes, list(plan.inputs.rejected), plan.cuts, plan.pack_bytes


def test_shuffle_is_a_permutation_that_the_seed_decides(sources: Path, tmp_path: Path) -> None:
    packs = {}
    for name, shuffle in (("no", []), ("5", ["--shuffle", 5]), ("again", ["--shuffle", 5]), ("6", ["--shuffle", 6])):
        with jobs_here():
            good("build", sources / "classes", "-o", tmp_path / name, *shuffle, *SMALL)
        packs[name] = open_pack(tmp_path / name)
    assert digests(tmp_path / "5") == digests(tmp_path / "again")
    paths = {name: pack.paths for name, pack in packs.items()}
    assert paths["no"] == sorted(paths["no"]) == sorted(paths["5"]) == sorted(paths["6"])
    assert len({tuple(p) for p in paths.values()}) == 3
    # not numpy's order, which may change from one version to the next
    assert paths["5"] == [paths["no"][i] for i in permutation(len(paths["no"]), derive(5))]
    at = {path: i for i, path in enumerate(paths["no"])}
    for i, path in enumerate(paths["5"]):  # each image kept its label
        assert packs["5"].annotation(i).label == packs["no"].annotation(at[path]).label
        assert (packs["5"].image(i) == packs["no"].image(at[path])).all()


def test_bad_inputs_do_not_move_the_others(sources: Path, tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(sources / "plain", source)
    data = (source / "005.jpg").read_bytes()
    (source / "005.jpg").write_bytes(data[:-300])  # its header is good: a worker finds out
    for workers in (1, 2):
        good("build", source, "-o", tmp_path / str(workers), "--max-bad", 1, "--workers", workers, *SMALL)
    assert digests(tmp_path / "1") == digests(tmp_path / "2")
    pack = open_pack(tmp_path / "1")
    assert len(pack) == 11 and [r.path for r in pack.manifest.rejected] == ["005.jpg"]
    assert pack.paths == [f"{i:03}.jpg" for i in range(12) if i != 5]
    assert pack.keys[5] == "00000006"  # a key is the number of the input


def test_the_published_digests(tmp_path: Path) -> None:
    """Those of docs/formats.md, with which anybody can compare."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text("utf-8")
    section = page[page.index("<!-- same bytes: ") :]
    contents = re.findall(r"^\| `(\w+)(?: --resize 64x64)?` \| `([0-9a-f]{64})` \|$", section, re.MULTILINE)
    shards = re.findall(r"^\| `(\w+)` \| `([\w.-]+)` \| `([0-9a-f]{64})` \|$", section, re.MULTILINE)
    assert len(contents) == 4 and {container for container, _, _ in shards} == set(CONTAINERS) - {"parquet"}
    draw_sample(tmp_path / "twenty", count=20, seed=0)
    names = sorted(f"./{path.relative_to(tmp_path / 'twenty')}" for path in (tmp_path / "twenty").rglob("*.*"))
    lines = "".join(f"{sha256_of(str(tmp_path / 'twenty' / name))}  {name}\n" for name in names)
    if hashlib.sha256(lines.encode()).hexdigest() not in section:
        assert not cv2.__version__.startswith("5.0.")
        pytest.skip(f"OpenCV {cv2.__version__} draws other pixels")
    made: dict[tuple[str, str], Pack] = {}
    with jobs_here():
        for container, encode in [
            *((name, "raw") for name in CONTAINERS),
            *(("lmdb", kind) for kind, _ in contents[1:]),
        ]:
            size = None if encode == "copy" else "64x64"
            out = tmp_path / f"{container}-{encode}"
            source = str(tmp_path / "twenty")
            build_pack(BuildOptions(source, str(out), container, encode=encode, resize=size, workers=1))
            made[container, encode] = open_pack(out)
    for encode, digest in contents:
        mine = [pack for (_, kind), pack in made.items() if kind == encode]
        assert {content_digest(pack.reader.indexes, pack.manifest) for pack in mine} == {digest}, encode
    for container, name, digest in shards:
        assert sha256_of(str(tmp_path / f"{container}-raw" / name)) == digest, container
