"""The packs that the tests of datasets and loaders share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loader_packs import draw_kind
from packs import container, copied, make_pack

from packer import BuildOptions, build_pack

__all__ = ["container", "copied", "make_pack"]

MakePack = Callable[..., Path]


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> MakePack:
    """pack(kind, container="lmdb"): the directory of a pack (`loader_packs.draw_kind`)."""
    homes: dict[str, tuple[Path, dict[str, Any]]] = {}

    def make(kind: str, container: str = "lmdb") -> Path:
        if kind not in homes:
            home = tmp_path_factory.mktemp(kind)
            homes[kind] = home, draw_kind(kind, home / "source")
        home, options = homes[kind]
        out = home / f"pack.{container}"
        if not out.exists():
            build_pack(BuildOptions(str(home / "source"), str(out), container, workers=1, **options))
        return out

    return make


@pytest.fixture(params=["each batch for itself", "in blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are made several at once, which changes nothing: here they are, and are not."""
    if request.param == "each batch for itself":
        monkeypatch.setattr("packer.loading.pipeline.BLOCK_BYTES", 1)
