"""packer push, pull and clean, with a folder as the store."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from drawn import draw_plain
from running import refused
from store_outputs import Transfers

pytest.importorskip("obstore", reason="needs obstore (packer[remote])")

import obstore
from obstore.exceptions import GenericError


@pytest.fixture
def bucket_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/pack"


class TestFolderAsAStore(Transfers):
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk(
        self, pack: Path, bucket_url: str, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put, asked = obstore.put, list[str]()

        def full(client: Any, name: str, *arguments: Any, **options: Any) -> Any:
            asked.append(name)
            if ".build" in name:
                return put(client, name, *arguments, **options)
            raise GenericError(
                f"Unable to copy data to file: {'x' * 300}: full (os error {code})"
            )  # as of a file:// URL

        monkeypatch.setattr("packer.stores.obstore.obstore.put", full)
        monkeypatch.setattr("packer.packing.store_output.PAUSES_S", (0.0, 0.0))
        step = f"cannot write: {os.strerror(code)}; free some space, or choose another URL"
        assert step in refused(3, "push", pack, bucket_url)
        draw_plain(tmp_path / "imgs", 2)
        asked.clear()
        build = ("build", tmp_path / "imgs", "-o", f"{bucket_url}2", "--workers", "1", "--scratch", tmp_path)
        assert step in refused(3, *build).splitlines()[-1]
        assert len([name for name in asked if ".build" not in name]) == 1
