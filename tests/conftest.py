"""What all tests share: the real images, where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real labelled images; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("PACKER_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real images at {folder} (set PACKER_TEST_DATA to a folder that has them)")
    return folder
