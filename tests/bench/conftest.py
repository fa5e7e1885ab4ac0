"""What the tests of `packer bench` share."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import forkserver

import pytest

from packer.bench.process import Hall


@pytest.fixture(scope="session", autouse=True)
def own_fork_server() -> Iterator[None]:
    """One that has loaded torch: where a build has started it before, each measurement takes a second more."""
    stop = forkserver._forkserver._stop  # type: ignore[attr-defined]
    stop()
    Hall()
    yield
    stop()
