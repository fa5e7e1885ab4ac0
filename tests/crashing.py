"""A recipe whose decoder crashes or hangs on images that say so behind their end, where real decoders do not look.

The plan takes it instead of its own; worker processes import it from here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import packer.packing.make_record
from packer.images.header import Header
from packer.model.annotation import Image
from packer.packing.make_record import InputRow

MARK = b"@decoder:"


def _never() -> None:
    while True:
        pass


WAYS: dict[str, Callable[[], object]] = {
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGABRT": os.abort,
    "SIGBUS": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "SIGILL": lambda: os.kill(os.getpid(), signal.SIGILL),
    "SIGFPE": lambda: os.kill(os.getpid(), signal.SIGFPE),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(7),
    "sleeps": lambda: time.sleep(1000),
    "never": _never,
    "slow": lambda: time.sleep(0.4),
}


@dataclass(frozen=True, slots=True)
class CrashingRecipe(packer.packing.make_record.Recipe):
    """Does what the image asks for."""

    def image(self, data: bytes, row: InputRow, header: Header) -> Image:
        way = data.rpartition(MARK)[2].decode("latin-1") if MARK in data else None
        if way is not None:
            if way.startswith("once:"):  # the file of that name says that it has happened
                path = way[5:]
                if not os.path.exists(path):
                    Path(path).touch()
                    WAYS["SIGSEGV"]()
            else:
                WAYS[way]()
        return packer.packing.make_record.Recipe.image(self, data, row, header)


def mark(path: Path, way: str) -> None:
    """Let the decoder do this to the image at `path`."""
    path.write_bytes(path.read_bytes() + MARK + way.encode("latin-1"))
