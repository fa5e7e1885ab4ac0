"""The packs that the tests of datasets and loaders share."""

from __future__ import annotations

import pytest
from loader_packs import draw_kind
from packs import MakePack, container, copied, make_pack, packs_of

__all__ = ["container", "copied", "make_pack"]


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> MakePack:
    """pack(kind, container="lmdb"): the directory of a pack (`loader_packs.draw_kind`)."""
    return packs_of(draw_kind, tmp_path_factory)


@pytest.fixture(params=["each batch for itself", "in blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are made several at once, which changes nothing: here they are, and are not."""
    if request.param == "each batch for itself":
        monkeypatch.setattr("packer.loading.pipeline.BLOCK_BYTES", 1)
