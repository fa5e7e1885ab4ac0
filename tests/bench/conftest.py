"""What the tests of `packer bench` share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

import packer.bench  # noqa: F401  # loads the modules that are patched
from packer.bench.process import measuring


@pytest.fixture(scope="session", autouse=True)
def one_worker() -> Iterator[None]:
    """Let all benches in this process fork their measurements from one worker: each takes seconds to load torch."""
    with measuring() as pool, pytest.MonkeyPatch.context() as patch:
        for module in ("packer.bench.sweep", "packer.bench.sweep"):
            patch.setattr(sys.modules[module], "measuring", lambda: nullcontext(pool))
        yield
