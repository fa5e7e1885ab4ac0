"""The files of a folder over HTTP; what is asked for can be looked at, and answered badly."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fault_proxy import Asked, Fault, FaultProxy

from packer import Pack
from packer.stores.blocks import BlockLayout


class Served(FaultProxy):
    """The server. Its URL may end in any name.

    Attributes:
        fault: called with (name, start, stop) of each GET; returns None, or the kind of a fault.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fault: Callable[[str, int, int], str | None] = lambda name, start, stop: None

    @property
    def url(self) -> str:
        """Of the pack."""
        return f"{super().url}/pack"

    @property
    def asked(self) -> list[tuple[str, int, int]]:
        """(name, start, stop) of each range that was sent as it should be."""
        with self.settled():
            good = [a for a in self.answers if a.asked.method == "GET" and a.status in (200, 206) and not a.faults]
        return [(self.name_of(a.asked.path), a.asked.start or 0, (a.asked.start or 0) + a.sent) for a in good]

    def blocks(self, skip: str = r"pack\.json|.*\.arrow") -> Counter[tuple[str, int]]:
        """How often each block of a container was sent."""
        size, found = BlockLayout.BLOCK_BYTES, Counter[tuple[str, int]]()
        for name, start, stop in self.asked:
            if not re.fullmatch(skip, name):
                found.update((name, block) for block in range(start // size, -(-stop // size)))
        return found

    def name_of(self, path: str) -> str:
        """Return which file a path names."""
        return path.split("/", 2)[2]

    def drawn(self, asked: Asked) -> list[Fault]:
        """Return what `fault` says."""
        size = Path(self.upstream, self.name_of(asked.path))
        stop = min(asked.stop or 1 << 60, size.stat().st_size if size.is_file() else 0)
        kind = self.fault(self.name_of(asked.path), asked.start or 0, stop) if asked.method == "GET" else None
        return [Fault(kind)] if kind else []


def all_of(pack: Pack) -> list[tuple[bytes, object]]:
    """(bytes, annotation) of each record."""
    return [(bytes(pack.record(i)), repr(pack.annotation(i))) for i in range(len(pack))]


def settle(pack: Pack) -> None:
    """Wait until nothing is being fetched: it may come after what was read, and is not evicted until then."""
    assert pack.reader.remote is not None
    while pack.reader.remote.fetcher.is_busy():
        time.sleep(0.001)


def shuffled(pack: Pack, seed: int = 0) -> list[int]:
    """All record numbers, in any order."""
    return np.random.default_rng(seed).permutation(len(pack)).tolist()
