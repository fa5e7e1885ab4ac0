"""The index of JPEGs beside the shards of a pack: what is read from it, and that a wrong one is never used."""

from __future__ import annotations

import ctypes
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import flip
from drawn import image_file, tree_state
from indexing import fast, needs_fast, stand_in
from packs import MakePack, needs_cache
from PIL import Image
from running import forked

from packer import BuildOptions, build_pack, convert, join_packs, open_pack
from packer.containers import CONTAINERS
from packer.errors import DamagedPack
from packer.format import jpeg_index, mmap
from packer.format.digests import crc32c_of, sha256_of
from packer.format.jpeg_index import JpegIndexes, open_jpeg_indexes
from packer.format.jpeg_index_list import JPEG_INDEX_NAME, own_files
from packer.format.manifest import digest_of
from packer.format.salvage import repair
from packer.format.verify import verify
from packer.repack.index_jpegs import index_jpegs

__all__ = ["fast"]
FIRST = "jpeg-index.shard-00000.arrow"


@pytest.fixture
def pack(copied: MakePack, fast: ModuleType) -> Path:
    """A pack of copied files of three formats, with an index of its JPEGs."""
    pack = copied("copy", "lmdb")
    index_jpegs(pack, workers=1)
    return pack


def opened(pack: Path) -> JpegIndexes:
    found = open_jpeg_indexes(open_pack(pack))
    assert found is not None
    return found


def content(found: JpegIndexes, records: list[int]) -> list[bytes]:
    """The indexes of records, read at their addresses."""
    where = zip(*(numbers.tolist() for numbers in found.places(np.array(records))), strict=True)
    return [ctypes.string_at(address, size) if address else b"" for address, size in where]


def wanted(pack: Path, fast: ModuleType, interval: int = 0) -> list[bytes]:
    here = open_pack(pack)
    jpegs = [here.reader.encoding_of(i) == "jpeg" for i in range(len(here))]
    assert any(jpegs) and not all(jpegs)
    return [fast.make_index(here.record(i), interval) if jpeg else b"" for i, jpeg in enumerate(jpegs)]


def rewritten(pack: Path, edit: Callable[[Any], None]) -> None:
    """Change jpeg-index.json, with a right digest."""
    path = pack / JPEG_INDEX_NAME
    listed = json.loads(path.read_bytes())
    edit(listed)
    del listed["digest"]
    path.write_text(json.dumps({**listed, "digest": digest_of(listed)}, indent=1) + "\n")


def vouched(pack: Path, number: int = 0) -> None:
    """Let jpeg-index.json say that a file is right as it is."""
    path = pack / f"jpeg-index.shard-{number:05d}.arrow"
    entry = {"bytes": path.stat().st_size, "sha256": sha256_of(str(path)), "crc32c": crc32c_of(str(path))}
    rewritten(pack, lambda listed: listed["shards"][number]["index"].update(entry))


def written(pack: Path, values: list[bytes | None], kind: Any = None, **options: Any) -> None:
    """Write another index of the first shard, for which jpeg-index.json vouches."""
    kind = kind or pa.large_binary()
    schema = pa.schema([pa.field("index", kind, nullable=None in values)])
    with pa.OSFile(str(pack / FIRST), "wb") as file, pa.ipc.new_file(file, schema, **options) as writer:
        writer.write_batch(pa.record_batch([pa.array(values, kind)], schema))
    vouched(pack)


@pytest.mark.parametrize("portable", [False, True])
def test_each_jpeg_has_its_own(pack: Path, fast: ModuleType, portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (jpeg_index,) if portable else ():
        monkeypatch.setattr(module, "PORTABLE", True)
    here = open_pack(pack)
    assert len(here.reader.shards) > 2
    order = np.random.default_rng(0).permutation(len(here)).tolist()
    right = wanted(pack, fast)
    found = opened(pack)
    assert content(found, order) == [right[i] for i in order] == content(found, order)
    assert found.interval == 0 and found.indexed == sum(map(bool, right))
    addresses, sizes = found.places(np.arange(0))
    assert addresses.dtype == sizes.dtype == np.uint64 and len(addresses) == len(sizes) == 0
    for outside in (-1, len(here)):
        with pytest.raises(IndexError):
            found.places(np.array([outside]))


def test_many_shards_are_mapped_when_they_are_needed(
    pack: Path, fast: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jpeg_index, "MANY_FILES", 1)
    monkeypatch.setattr(mmap, "MANY_FILES", 1)
    assert content(opened(pack), list(range(24))) == wanted(pack, fast)


def test_threads_and_processes_share_it(pack: Path, fast: ModuleType) -> None:
    found, right = opened(pack), wanted(pack, fast)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: content(found, list(range(24))), range(16))) == [right] * 16
    fresh = opened(pack)
    assert forked(lambda: b"|".join(content(fresh, list(range(24))))) == b"|".join(right)
    assert content(pickle.loads(pickle.dumps(fresh)), list(range(24))) == right


def test_a_pack_without_one(make_pack: MakePack, tmp_path: Path) -> None:
    assert open_jpeg_indexes(open_pack(make_pack("jpeg", "lmdb"))) is None


def test_joined_packs(pack: Path, make_pack: MakePack, fast: ModuleType) -> None:
    without = make_pack("jpeg", "hdf5")
    joined = join_packs([without, pack])
    found = open_jpeg_indexes(joined)
    assert found is not None and found.interval == 0
    right = [b""] * len(open_pack(without)) + wanted(pack, fast)
    order = np.random.default_rng(1).permutation(len(joined)).tolist()
    assert content(found, order) == [right[i] for i in order]
    assert found.indexed == sum(map(bool, right))
    assert open_jpeg_indexes(join_packs([without, make_pack("raw", "lmdb")])) is None


@needs_cache
@pytest.mark.parametrize("places", ["here cache", "cache memory", "memory here", "cache here memory"])
def test_joined_packs_at_urls_and_here(pack: Path, fast: ModuleType, places: str, tmp_path: Path) -> None:
    """Each has its index; that of a pack here is mapped at once, and stays when another replaces it."""
    packs = []
    for number, place in enumerate(places.split()):
        each = tmp_path / f"{number}.{CONTAINERS[number]}"
        convert(pack, each)
        index_jpegs(each, "4" if number else "row", workers=1)
        given = {"cache_dir": tmp_path / "cache"} if place == "cache" else {"cache_bytes": 0}
        packs.append(open_pack(each) if place == "here" else open_pack(each.as_uri(), **given))
    right = [one for n in range(len(packs)) for one in wanted(tmp_path / f"{n}.{CONTAINERS[n]}", fast, 4 if n else 0)]
    found = open_jpeg_indexes(join_packs(packs))
    for number, place in enumerate(places.split()):
        if place == "here":
            index_jpegs(tmp_path / f"{number}.{CONTAINERS[number]}", "row" if number else "4", workers=1)
    assert found is not None and content(found, list(range(len(right)))) == right


def test_an_open_one_stays_when_it_is_replaced(pack: Path, fast: ModuleType) -> None:
    found, before = opened(pack), wanted(pack, fast)
    report = index_jpegs(pack, "4", workers=1)
    assert report.interval == 4 and report.kept == 0
    assert content(found, list(range(24))) == before
    assert content(opened(pack), list(range(24))) == wanted(pack, fast, 4)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a bit of the list": lambda p: flip(p / JPEG_INDEX_NAME, 40),
    "the list is cut": lambda p: os.truncate(p / JPEG_INDEX_NAME, 100),
    "no JSON": lambda p: (p / JPEG_INDEX_NAME).write_text("[]"),
    "another form": lambda p: rewritten(p, lambda one: one.update(interval="row")),
    "a newer version": lambda p: rewritten(p, lambda one: one.update(version=2)),
    "no shards": lambda p: rewritten(p, lambda one: one.update(shards=[])),
    "another container": lambda p: rewritten(p, lambda one: one["shards"][0].update(container_sha256="0" * 64)),
    "other rows": lambda p: rewritten(p, lambda one: one["shards"][1].update(rows_sha256="0" * 64)),
    "another file": lambda p: rewritten(p, lambda one: one["shards"][0]["index"].update(name="../shard-00000.lmdb")),
    "a negative size": lambda p: rewritten(p, lambda one: one["shards"][0]["index"].update(bytes=-1)),
    "a file is missing": lambda p: (p / FIRST).unlink(),
    "a file is cut": lambda p: os.truncate(p / FIRST, (p / FIRST).stat().st_size - 1),
    "a bit of a file": lambda p: flip(p / FIRST, (p / FIRST).stat().st_size // 2),
    "a row less": lambda p: written(p, [b"x"]),
    "null": lambda p: written(p, [None] * open_pack(p).reader.shards[0].records),
    "32 bits": lambda p: written(p, [b"x"] * open_pack(p).reader.shards[0].records, pa.binary()),
    "compressed": lambda p: written(
        p, [b"x" * 900] * open_pack(p).reader.shards[0].records, options=pa.ipc.IpcWriteOptions(compression="lz4")
    ),
    "no Arrow": lambda p: ((p / FIRST).write_bytes(b"x" * 4096), vouched(p)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_wrong_one_is_named_and_dropped_by_repair(pack: Path, what: str) -> None:
    DAMAGE[what](pack)
    with pytest.raises(DamagedPack, match="packer index") as caught:
        content(opened(pack), [0])
    name = os.path.basename(caught.value.where)
    assert name.startswith("jpeg-index.") and caught.value.pack == str(pack)
    found = verify(pack).problems
    assert [problem.file for problem in found] == [name]
    assert open_pack(pack).sample(0).image.shape == (10, 12, 3)  # the pack itself is as good as ever
    report = repair(pack)
    assert (report.out, report.restored, report.lost) == (None, (), ())
    assert "packer index makes it again" in " ".join(report.notes) and own_files(str(pack)) == []
    assert verify(pack).problems == verify(pack).unknown_files == ()
    assert open_jpeg_indexes(open_pack(pack)) is None


def test_bounds_that_are_wrong(pack: Path) -> None:
    """Arrow looks at all of them before one is used."""
    rows = open_pack(pack).reader.shards[0].records
    written(pack, [b"abcd"] * rows)
    good = (pack / FIRST).read_bytes()
    bounds = np.arange(rows + 1, dtype=np.int64) * 4
    place = good.index(bounds.tobytes())
    assert content(opened(pack), [0, 1]) == [b"abcd"] * 2
    for row, value in ((1, -4), (1, 12), (rows, 1 << 40), (0, -1 << 40), (rows, -1)):
        wrong = bounds.copy()
        wrong[row] = value
        (pack / FIRST).write_bytes(good[:place] + wrong.tobytes() + good[place + wrong.nbytes :])
        vouched(pack)
        with pytest.raises(DamagedPack, match="cannot be read"):
            content(opened(pack), [0])


def test_each_shard_is_checked_when_it_is_needed(pack: Path, fast: ModuleType) -> None:
    here = open_pack(pack)
    last = len(here.reader.shards) - 1
    flip(pack / f"jpeg-index.shard-{last:05d}.arrow", 700)
    found, first = opened(pack), here.reader.shards[0].records
    assert content(found, list(range(first))) == wanted(pack, fast)[:first]
    for _ in range(2):
        with pytest.raises(DamagedPack, match="checksum"):
            content(found, [0, len(here) - 1])


def test_verify_deep_makes_it_again(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify(pack, deep=True).problems == ()
    written(pack, [b"x"] * open_pack(pack).reader.shards[0].records)
    assert verify(pack).problems == ()
    (problem,) = verify(pack, deep=True).problems
    assert problem.file == FIRST and "is not the index that the JPEGs of its shard give" in problem.problem
    stand_in(monkeypatch, "10.0")  # another version may make another
    assert verify(pack, deep=True).problems == ()


def test_a_repaired_pack(pack: Path) -> None:
    """Rebuilt byte for byte, the shard is the one that the index is of; else the new pack has none, and a note."""
    before = tree_state(pack)
    (pack / "shard-00001.index.arrow").unlink()
    assert repair(pack).restored == ("shard-00001.index.arrow",)
    assert tree_state(pack).keys() == before.keys() and verify(pack, deep=True).problems == ()
    here = open_pack(pack)
    flip(pack / here.reader.shards[0].container.name, int(here.reader.span(0)[0]) + 5)
    report = repair(pack)
    assert report.out is not None and report.lost_records == 1
    assert own_files(report.out) == [] and "the index of JPEGs is not copied" in " ".join(report.notes)
    assert verify(report.out).problems == ()


def test_files_of_an_index_without_its_list(pack: Path) -> None:
    (pack / JPEG_INDEX_NAME).unlink()
    assert open_jpeg_indexes(open_pack(pack)) is None
    report = verify(pack)
    assert report.problems == () and FIRST in report.unknown_files


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("real")
    (root / "src").mkdir()
    kinds: list[dict[str, Any]] = [
        {},
        {"subsampling": 2},
        {"subsampling": 1},
        {"progressive": True},
        {"format": "PNG"},
    ]
    for i in range(20):
        data = image_file(i, 160 + 8 * i, 240 - 4 * i, **kinds[i % 5])
        (root / "src" / f"{i:02d}.{'png' if i % 5 == 4 else 'jpg'}").write_bytes(data)
    gray, cmyk = io.BytesIO(), io.BytesIO()
    Image.new("L", (99, 77), 90).save(gray, "JPEG")
    Image.new("CMYK", (99, 77)).save(cmyk, "JPEG")
    (root / "src" / "gray.jpg").write_bytes(gray.getvalue())
    (root / "src" / "cmyk.jpg").write_bytes(cmyk.getvalue())
    options: dict[str, Any] = {"labels": ("none",), "encode": "copy", "shard_bytes": 60_000, "workers": 1}
    summary = build_pack(BuildOptions(str(root / "src"), str(root / "p.hdf5"), jpeg_index="row", **options))
    index = summary.jpeg_index
    assert index is not None and index.indexed == 13
    assert index.without == {"CMYK": 1, "png": 4, "progressive or arithmetic": 4}
    return root / "p.hdf5"


@needs_fast
class TestPackerFast:
    """With packer-fast itself: crops are those of decoding without the index."""

    @pytest.mark.parametrize("interval", ["row", "4"])
    def test_crops(self, built: Path, tmp_path: Path, interval: str) -> None:
        import packer_fast

        pack = Path(shutil.copytree(built, tmp_path / "p"))
        report = index_jpegs(pack, interval, workers=1)
        assert report.indexed == 13 and report.ms_per_image > 0
        here, found = open_pack(pack), opened(pack)
        addresses, sizes = found.places(np.arange(len(here)))
        records = np.flatnonzero(addresses)
        assert len(records) == 13 and (sizes[records] > 24).all() and not sizes[addresses == 0].any()
        data = [np.frombuffer(here.record(i), np.uint8) for i in records.tolist()]
        lengths = np.array([len(one) for one in data], np.uint64)
        shapes = np.array([here.reader.shape_of(i)[1::-1] for i in records.tolist()], np.int32)
        regions = np.column_stack([shapes // 2, shapes // 3]).astype(np.int32)
        jpegs = np.array([one.ctypes.data for one in data], np.uint64)
        rows = [np.zeros((13, 32, 32, 3), np.uint8) for _ in range(2)]
        batch = packer_fast.Batch(jpegs, lengths, shapes, regions)
        assert not packer_fast.decode_batch(batch, rows[0]).any()
        batch = packer_fast.Batch(jpegs, lengths, shapes, regions, None, addresses[records], sizes[records])
        assert not packer_fast.decode_batch(batch, rows[1]).any()
        assert rows[0].std() > 20 and np.array_equal(*rows)

    def test_verify_deep(self, built: Path) -> None:
        assert verify(built, deep=True).problems == ()
