"""Sidecars of a pack at a URL: fetched by blocks, as its records, into the cache or into memory."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from packs import needs_cache
from running import GUARD_S, good, run
from served import Served

from packer import PackedLoader, attach, open_pack
from packer.errors import DamagedPack
from packer.format import cached, new_sidecar, sidecar_list, sidecars
from packer.stores import cache

pytestmark = needs_cache
PARTS = ("vector", "text")


@pytest.fixture(autouse=True)
def small_pieces(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cached, new_sidecar, sidecar_list, sidecars):
        monkeypatch.setattr(module, "CHECKED_BYTES", 128)


@pytest.fixture
def values() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((24, 100)).astype(np.float32)


@pytest.fixture
def home(copied: Any, tmp_path: Path, values: np.ndarray[Any, Any]) -> Path:
    """A pack with vectors of 400 bytes, and texts."""
    pack: Path = copied("raw", "lmdb")
    np.save(tmp_path / "v.npy", values)
    attach(pack, tmp_path / "v.npy", "vector")
    rows = [{"key": key, "text": f"{i} " * i} for i, key in enumerate(open_pack(pack).keys)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    attach(pack, tmp_path / "t.jsonl", "text")
    return pack


def clear(url: str) -> None:
    """Clear the cache as soon as the threads have ended that fetched blocks of packs that are closed."""
    until = time.monotonic() + GUARD_S
    while run("cache", "--clear", url, "--yes").code:
        assert time.monotonic() < until
        gc.collect()
        time.sleep(0.01)


@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_as_in_a_folder(home: Path, values: Any, server: Served, cache_bytes: int | None) -> None:
    pack = open_pack(server.url, cache_bytes=cache_bytes)
    asked = {name for name, _, _ in server.asked}
    assert np.array_equal(pack.part(7, "vector"), values[7]) and pack.part(3, "text") == "3 3 3 "
    assert sum(count for (name, _), count in server.blocks().items() if name == "sidecar.vector.npy") == 2
    assert not any(name.startswith("sidecar") for name in asked)  # only when it is asked for
    for epoch in range(3):
        loader = PackedLoader(pack, 5, shuffle=True, parts=PARTS, with_index=True, collate="dict")
        loader.set_epoch(epoch)
        for _, target, records in loader:
            assert np.array_equal(target["vector"].numpy(), values[records.tolist()])
            assert target["text"] == [f"{i} " * i for i in records.tolist()]


def test_blocks_are_evicted_and_fetched_again(home: Path, values: Any, server: Served, tmp_path: Path) -> None:
    open_pack(server.url).part(0, "vector")  # what is kept is there
    kept = cache.Cache(str(tmp_path / "cache")).kept()
    clear(server.url)
    sidecar = open_pack(server.url, cache_bytes=kept + 7000).sidecar("vector")
    for row in np.random.default_rng(1).permutation(np.tile(np.arange(24), 4)).tolist():
        assert np.array_equal(sidecar.read(np.array([row]))[0], values[row])
    fetched = [count for (name, _), count in server.blocks().items() if name == "sidecar.vector.npy"]
    assert len(fetched) == 19 and max(fetched) > 1


def test_what_comes_wrong_is_fetched_again(home: Path, values: Any, server: Served) -> None:
    wrong = {"sidecar.vector.npy"}
    server.fault = lambda name, start, stop: "flip" if name in wrong and wrong.discard(name) is None else None
    assert np.array_equal(open_pack(server.url).sidecar("vector").read(np.arange(24)), values)


def test_the_cache_knows_them(home: Path, values: Any, server: Served, tmp_path: Path) -> None:
    pack = open_pack(server.url)
    pack.sidecar("vector").read(np.arange(5))
    pack.sidecar("text").read(np.arange(24))
    del pack
    assert good("cache").out.count(server.url) == 3
    said = good("cache", "--verify").out
    assert "pieces are here" in said and "in whole files that match their SHA-256" in said
    (file,) = (tmp_path / "cache" / "packs").rglob("sidecar.vector.npy")
    flip(file, 300)
    ran = run("cache", "--verify")
    assert ran.code == 4 and "sidecar.vector.npy: piece 2 does not match its checksum" in ran.err
    assert "was dropped" in ran.out and good("cache", "--verify")
    assert np.array_equal(open_pack(server.url).sidecar("vector").read(np.arange(24)), values)
    clear(server.url)
    assert list((tmp_path / "cache" / "packs").iterdir()) == []
    flip(home / "sidecar.vector.npy", 300)
    with pytest.raises(DamagedPack, match=r"pack/sidecar\.vector\.npy: was altered"):
        open_pack(server.url).part(0, "vector")
