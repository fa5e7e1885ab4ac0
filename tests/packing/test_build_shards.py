"""Into how many files a pack is cut, and what they are called."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from drawn import draw, draw_plain
from hypothesis import given
from hypothesis import strategies as st
from running import good, refused

from packer.errors import UsageError
from packer.format.pack import open_pack
from packer.packing import BuildOptions, build_pack, plan_pack
from packer.packing.engines import threads_of
from packer.packing.option_table import bad_allowed, parse_bytes
from packer.packing.plan import cuts_of, default_shard_bytes

SUFFIXES = {"lmdb": ".lmdb", "hdf5": ".hdf5", "tfrecord": ".tfrecord", "webdataset": ".tar"}


def containers(pack: Path) -> list[str]:
    return sorted(p.name for p in pack.iterdir() if not p.name.endswith((".json", ".index.arrow", "print.npy")))


@pytest.mark.parametrize("format", SUFFIXES)
@pytest.mark.parametrize("encode", ["raw", "jpeg", "copy"])
def test_none_makes_one_file(sources: Path, tmp_path: Path, format: str, encode: str) -> None:
    good(
        "build", sources / "plain", "-o", tmp_path / "p", "--format", format, "--encode", encode,
        "--shard-size", "none", "--workers", "2",
    )  # fmt: skip
    (name,) = containers(tmp_path / "p")
    assert len(list((tmp_path / "p").iterdir())) == 5
    assert Path(name).suffix in (SUFFIXES[format], ".mdb")
    assert len(open_pack(tmp_path / "p")) == 12


@pytest.mark.parametrize("side", [8, 16, 24, 36, 37, 64])
@pytest.mark.parametrize("encode", ["raw", "png"])
def test_the_plan_of_lmdb_is_right_for_small_images(tmp_path: Path, side: int, encode: str) -> None:
    """Small images share pages."""
    source = tmp_path / "src"
    for i in range(300):
        draw(source / "abc"[i % 3] / f"{i:05d}.png", i, side, side, format="PNG")
    options = BuildOptions(str(source), out=str(tmp_path / "p"), encode=encode, workers=1)
    planned, packed = plan_pack(options).pack_bytes, build_pack(options).pack_bytes
    assert 0.9 < planned / packed < 1.1


def test_plain_lmdb_opens_the_directory_of_a_single_shard(sources: Path, tmp_path: Path) -> None:
    good("build", sources / "classes", "-o", tmp_path / "p", "--encode", "copy", "--shard-size", "none")
    with lmdb.open(str(tmp_path / "p"), readonly=True, lock=False) as env, env.begin() as transaction:
        found = {bytes(k).decode(): bytes(v) for k, v in transaction.cursor()}
    assert set(found) == {f"{i:08d}{e}" for i in range(15) for e in (".jpg", ".json")}
    assert found["00000000.jpg"] == (sources / "classes" / "ant" / "000.jpg").read_bytes()


@pytest.mark.parametrize("format", SUFFIXES)
def test_a_shard_for_each_image(sources: Path, tmp_path: Path, format: str) -> None:
    good("build", sources / "plain", "-o", tmp_path / "p", "--format", format, "--shard-size", "1", "--workers", 2)
    assert containers(tmp_path / "p") == [f"shard-{i:05d}{SUFFIXES[format]}" for i in range(12)]
    pack = open_pack(tmp_path / "p")
    assert [shard.records for shard in pack.reader.shards] == [1] * 12
    assert pack.paths == [f"{i:03}.jpg" for i in range(12)]
    assert [pack.image(i).shape for i in range(12)] == [(30, 40, 3)] * 12


def test_shards_are_about_of_the_size_asked_for(sources: Path, tmp_path: Path) -> None:
    good("build", sources / "plain", "-o", tmp_path / "p", "--shard-size", "11KB")  # three images are 10.5 KB
    assert [shard.records for shard in open_pack(tmp_path / "p").reader.shards] == [3, 3, 3, 3]


@pytest.mark.parametrize("format", SUFFIXES)
def test_more_workers_than_images(tmp_path: Path, format: str) -> None:
    draw_plain(tmp_path / "src", 2)
    good("build", tmp_path / "src", "-o", tmp_path / "p", "--format", format, "--workers", 5, "--shard-size", "1")
    assert len(open_pack(tmp_path / "p")) == 2


@pytest.mark.parametrize("format", SUFFIXES)
def test_one_image(tmp_path: Path, format: str) -> None:
    draw(tmp_path / "src" / "only.jpg", 1, 1, 1)
    good("build", tmp_path / "src", "-o", tmp_path / "p", "--format", format)
    assert open_pack(tmp_path / "p").image(0).shape == (1, 1, 3)


def test_no_image(tmp_path: Path) -> None:
    (tmp_path / "src" / "empty").mkdir(parents=True)
    for text in ("", "no image", "BMW\n", "0 0.5 0.5 0.1 0.1\n", "some twenty-eight characters", "GIF and PNG " * 4):
        (tmp_path / "src" / f"{len(text)}.txt").write_text(text)
    assert "no images found" in refused(2, "build", tmp_path / "src", "-o", tmp_path / "p")
    (tmp_path / "src" / "subset").symlink_to("/usr")
    where = "subset: symlink to a folder outside the source (--follow-links reads it)"
    assert f"no images found; {where}" in refused(2, "build", tmp_path / "src", "-o", tmp_path / "p")
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


def test_a_shard_of_which_no_input_is_good_is_left_out(tmp_path: Path) -> None:
    source = draw_plain(tmp_path / "src", 6)
    for i in (2, 3):
        data = (source / f"{i:03d}.jpg").read_bytes()
        (source / f"{i:03d}.jpg").write_bytes(data[:-300])
    good("build", source, "-o", tmp_path / "p", "--shard-size", "8KB", "--max-bad", "2", "--workers", "1")
    pack = open_pack(tmp_path / "p")
    assert [shard.container.name for shard in pack.reader.shards] == ["shard-00000.lmdb", "shard-00002.lmdb"]
    assert pack.keys == ["00000000", "00000001", "00000004", "00000005"]


@given(
    st.lists(st.integers(1, 10_000), max_size=60).map(lambda sizes: np.array(sizes, np.int64)),
    st.none() | st.integers(1, 50_000),
)
def test_cuts_cover_every_row_once(image_bytes: Any, shard_bytes: int | None) -> None:
    cuts = cuts_of(image_bytes, shard_bytes)
    assert cuts[0] == 0 and cuts[-1] == len(image_bytes)
    assert all(a < b for a, b in itertools.pairwise(cuts)) or not len(image_bytes)
    if shard_bytes is None or not len(image_bytes):
        assert len(cuts) == 2
        return
    largest = max(int(image_bytes[a:b].sum()) for a, b in itertools.pairwise(cuts))
    assert largest < shard_bytes + 2 * int(image_bytes.max())


@given(st.integers(0, 200), st.integers(1, 64))
def test_threads_use_all_cores_in_the_last_round(jobs: int, workers: int) -> None:
    threads = threads_of(jobs, workers)
    assert len(threads) == jobs
    rest = jobs % workers
    assert threads[: jobs - rest] == [1] * (jobs - rest)
    if rest:
        assert workers <= sum(threads[jobs - rest :]) < workers + rest


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128MB", 128 << 20), ("1", 1), ("4096", 4096), ("1.5KB", 1536), ("2GiB", 2 << 30), ("3 tb", 3 << 40),
        ("64k", 65536), (" None ", None), ("none", None),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "0.1", "-1", "1e3", "MB", "12XB", "1,5MB", "nan", "inf", "١MB", "1 2"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="must be a size such as 128MB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "found", "allowed"),
    [
        ("0", 9, 0), ("5", 9, 5), ("10%", 9, 0), ("10%", 10, 1), ("0.57%", 10_000, 57), ("100%", 7, 7),
        ("0%", 1000, 0), ("33.4%", 3, 1), ("29%", 100, 29),
    ],
)  # fmt: skip
def test_bad_allowed(text: str, found: int, allowed: int) -> None:
    assert bad_allowed(text, found) == allowed


@pytest.mark.parametrize("text", ["", "-1", "101%", "1.5", "%", "1e1%", "five", "100.1%", "٣"])
def test_bad_allowed_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="must be a number or a percentage"):
        bad_allowed(text, 10)


@pytest.mark.parametrize(
    ("gigabytes", "megabytes"),
    [(0, 128), (255, 128), (256, 1024), (16 << 10, 1024), (17 << 10, 2048), (64 << 10, 4096)],
)
def test_shards_grow_with_the_pack(gigabytes: int, megabytes: int) -> None:
    assert default_shard_bytes(gigabytes << 30) == megabytes << 20


def test_the_manifest_has_the_size_of_shards_that_was_chosen(sources: Path, tmp_path: Path) -> None:
    build_pack(BuildOptions(str(sources / "classes"), str(tmp_path / "p"), workers=1))
    assert open_pack(tmp_path / "p").manifest.options["shard_bytes"] == 128 << 20
