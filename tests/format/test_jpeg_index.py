"""The index of a pack's JPEGs: its files, what reads them, and commands that know them; made by a stand-in decoder."""

from __future__ import annotations

import json
import shutil
import sys
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from drawn import draw
from running import digests, good, refused, run

from packer import join_packs, open_pack
from packer.errors import DamagedPack
from packer.format.jpeg_index import JpegIndexes, open_jpeg_indexes
from packer.format.jpeg_index_list import JPEG_INDEX_NAME

COUNT = 23


class Error(IntEnum):
    """That of packer_fast."""

    DAMAGED = 1
    UNSUPPORTED = 2
    NO_MEMORY = 4


class IndexNotPossible(ValueError):
    """That of packer_fast."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.name)
        self.error = error


def make_index(jpeg: Any, interval: int = 0) -> bytes:
    """Bytes that depend on the JPEG and the interval, of different lengths; nothing for a progressive one."""
    data = bytes(jpeg)
    if b"\xff\xc2" in data[:700]:
        raise IndexNotPossible(Error.UNSUPPORTED)
    return sha256(data + bytes([interval])).digest()[: 8 + len(data) % 20]


@pytest.fixture(autouse=True)
def packer_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("packer_fast")
    module.Error, module.IndexNotPossible, module.make_index = Error, IndexNotPossible, make_index
    module.version = lambda: "9.9 (stand-in)"
    monkeypatch.setitem(sys.modules, "packer_fast", module)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs, of which two are progressive, and a PNG."""
    source = tmp_path_factory.mktemp("jpegs") / "src"
    for i in range(COUNT - 1):
        draw(source / "a" / f"{i:03d}.jpg", i, 40 + i, 30, progressive=i in (3, 17))
    draw(source / "a" / "z.png", 99, format="PNG")
    return source


@pytest.fixture
def pack(source: Path, tmp_path: Path) -> Path:
    good("build", source, "-o", tmp_path / "p", "--encode", "copy", "--shard-size", "6KB", "--quiet")
    assert len(open_pack(tmp_path / "p").shards) > 2
    return tmp_path / "p"


def read(indexes: JpegIndexes, records: list[int]) -> list[bytes]:
    import ctypes

    places = zip(*(found.tolist() for found in indexes.where(np.array(records))), strict=True)
    return [ctypes.string_at(address, size) if size else b"" for address, size in places]


def expected(pack: Any, interval: int = 0) -> list[bytes]:
    found = []
    for i in range(len(pack)):
        try:
            found.append(make_index(pack.record(i), interval) if pack.encoding_of(i) == "jpeg" else b"")
        except IndexNotPossible:
            found.append(b"")
    return found


def test_made_read_and_removed(pack: Path) -> None:
    before = digests(pack)
    facts = json.loads(good("index", pack, "--json").out)
    assert (facts["records"], facts["indexed"]) == (COUNT, COUNT - 3) and sum(facts["without"].values()) == 3
    opened = open_pack(pack)
    indexes = open_jpeg_indexes(opened)
    assert indexes is not None and (indexes.interval, indexes.indexed) == (0, COUNT - 3)
    order = np.random.default_rng(0).permutation(COUNT).tolist()
    assert read(indexes, order) == [expected(opened)[i] for i in order]
    with pytest.raises(IndexError):
        indexes.where(np.array([COUNT]))
    assert "JPEG index" in good("info", pack).out and good("verify", pack, "--deep").code == 0
    assert {name: digest for name, digest in digests(pack).items() if name in before} == before
    good("index", pack, "--interval", "4")
    again = open_jpeg_indexes(open_pack(pack))
    assert again is not None and again.interval == 4 and read(again, order) == [expected(opened, 4)[i] for i in order]
    assert read(indexes, order) == [expected(opened)[i] for i in order]  # what was mapped stays
    good("index", pack, "--remove")
    assert digests(pack) == before and open_jpeg_indexes(open_pack(pack)) is None


def test_a_build_makes_the_same_files(source: Path, pack: Path, tmp_path: Path) -> None:
    options = ("--encode", "copy", "--shard-size", "6KB", "--quiet", "--jpeg-index", "row")
    good("build", source, "-o", tmp_path / "q", *options)
    good("index", pack, "--quiet")
    assert digests(pack) == digests(tmp_path / "q")


def test_packs_read_together(pack: Path, source: Path, tmp_path: Path) -> None:
    good("build", source, "-o", tmp_path / "q", "--encode", "jpeg", "--quiet")
    good("index", pack, "--quiet")
    joined = join_packs([open_pack(tmp_path / "q"), open_pack(pack)])
    indexes = open_jpeg_indexes(joined)
    assert indexes is not None and indexes.indexed == COUNT - 3
    assert read(indexes, [0, COUNT + 1, 2, COUNT]) == [
        b"",
        expected(open_pack(pack))[1],
        b"",
        expected(open_pack(pack))[0],
    ]


def use(pack: Path) -> None:
    indexes = open_jpeg_indexes(open_pack(pack))
    assert indexes is not None
    indexes.where(np.arange(COUNT))


def test_every_flipped_byte_is_found(pack: Path) -> None:
    good("index", pack, "--quiet")
    for file in sorted(pack.glob("jpeg-index*")):
        content = file.read_bytes()
        for at in range(0, len(content), max(1, len(content) // 60)):
            file.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
            with pytest.raises(DamagedPack, match=f"{file.name}.*packer index"):
                use(pack)
        for shorter in (b"", content[:-1]):
            file.write_bytes(shorter)
            with pytest.raises(DamagedPack, match="packer index"):
                use(pack)
        verified = run("verify", pack)
        assert verified.code == 4 and file.name in verified.err
        file.write_bytes(content)
    use(pack)
    next(pack.glob("jpeg-index*.arrow")).unlink()
    with pytest.raises(DamagedPack, match="packer index"):
        use(pack)
    good("index", pack, "--quiet")
    use(pack)


def test_that_of_another_pack_is_refused(pack: Path, source: Path, tmp_path: Path) -> None:
    good("build", source, "-o", tmp_path / "q", "--encode", "jpeg", "--shard-size", "6KB", "--quiet")
    good("index", tmp_path / "q", "--quiet")
    for file in (tmp_path / "q").glob("jpeg-index*"):
        shutil.copy(file, pack)
    with pytest.raises(DamagedPack, match=f"{JPEG_INDEX_NAME}: was made of other files"):
        use(pack)


def test_copies_of_the_pack(pack: Path, tmp_path: Path) -> None:
    good("index", pack, "--quiet")
    good("pull", pack.as_uri(), tmp_path / "pulled", "--quiet")
    assert digests(tmp_path / "pulled") == digests(pack)
    assert (
        "packer index makes that of the new pack" in good("convert", pack, tmp_path / "c", "--format", "tfrecord").out
    )
    assert open_jpeg_indexes(open_pack(tmp_path / "c")) is None


def test_what_cannot_have_one(pack: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good("build", source, "-o", tmp_path / "raw", "--resize", "32x32", "--quiet")
    assert "has no JPEGs: its images are stored as raw; build it with" in refused(2, "index", tmp_path / "raw")
    assert "--jpeg-index" in refused(2, "build", source, "-o", tmp_path / "r", "--jpeg-index", "row")
    assert "is a URL, and packer index works on folders" in refused(2, "index", pack.as_uri())
    monkeypatch.setitem(sys.modules, "packer_fast", None)
    assert 'pip install "dataset-packer[fast]"' in refused(2, "index", pack)
