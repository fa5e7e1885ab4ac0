"""packer push, pull and clean, with a folder as the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_outputs import Transfers


@pytest.fixture
def bucket_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/pack"


class TestFolderAsAStore(Transfers):
    pass
