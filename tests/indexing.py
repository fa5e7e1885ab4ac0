"""What makes indexes of JPEGs in tests: packer-fast where it is there, else a stand-in with the same two functions."""

from __future__ import annotations

from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c

from packer.images import decoders as fast_decoder

_, _PROBLEM = fast_decoder.native()
NATIVE = (
    pytest.mark.native,
    pytest.mark.skipif(bool(_PROBLEM), reason=f"packer-fast {_PROBLEM}: scripts/test_fast.sh"),
)
"""The marks of a test that needs packer-fast."""


def needs_fast(test: Any) -> Any:
    """Mark a test, or a class of them."""
    for mark in NATIVE:
        test = mark(test)
    return test


def stand_in(monkeypatch: pytest.MonkeyPatch, version: str = "9.9") -> ModuleType:
    """Put a module into the place of packer_fast, whose index of a JPEG is a text about it; it knows no progressive."""

    class Error(IntEnum):
        OK, DAMAGED, UNSUPPORTED, WRONG_INDEX, NO_MEMORY = range(5)

    class IndexNotPossible(ValueError):
        def __init__(self, error: Error) -> None:
            super().__init__(error.name)
            self.error = error

    def make_index(jpeg: Any, interval: int = 0) -> bytes:
        data = bytes(jpeg)
        if b"\xff\xc2" in data[:700]:
            raise IndexNotPossible(Error.UNSUPPORTED)
        return f"{crc32c(data):08x} at {interval}".encode() * (1 + len(data) % 3)

    module: Any = ModuleType("packer_fast")
    module.Error, module.IndexNotPossible, module.make_index = Error, IndexNotPossible, make_index
    module.version = lambda: version
    monkeypatch.setattr(fast_decoder, "native", lambda: (module, ""))
    return module


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stand-in: what a test says of files holds for any content of an index."""
    return stand_in(monkeypatch)
