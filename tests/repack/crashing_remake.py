"""A way to make images again that crashes on one of them; worker processes import it from here."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import packer.repack.copy_shard
from packer.model.annotation import Record


@dataclass(frozen=True, slots=True)
class CrashingRemake(packer.repack.copy_shard.Remake):
    """Crashes on 002.jpg."""

    def record(self, record: Record) -> Record:
        if record.path == b"002.jpg":
            ctypes.string_at(0)
        return packer.repack.copy_shard.Remake.record(self, record)
