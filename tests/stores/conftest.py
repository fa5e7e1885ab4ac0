"""Remote packs of small blocks, in a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from packs import copied, make_pack
from served import Served

from packer.stores import cache
from packer.stores.blocks import BlockLayout

__all__ = ["copied", "make_pack"]
BLOCK = 512


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Blocks are small, and the cache is the test's own."""
    monkeypatch.setattr(BlockLayout, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(BlockLayout, "EXTENT_BLOCKS", 4)
    monkeypatch.setenv("PACKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_caches", {})


@pytest.fixture
def home(make_pack) -> Path:
    """A pack that no test changes."""
    return make_pack("raw", "tfrecord")


@pytest.fixture
def server(home: Path) -> Iterator[Served]:
    """The pack `home` on a server."""
    with Served(home) as found:
        yield found
