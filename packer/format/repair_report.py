"""What a repair has done, and what is lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LostRecord:
    """A record that nothing vouches for any more; or several of a shard whose names are not known."""

    shard: str
    key: str | None
    path: str | None
    """Of its source file, as the index has it."""
    records: int = 1

    def __str__(self) -> str:
        if self.key is None:
            return f"{self.shard}: {self.records} records, their keys are not known"
        return f"{self.shard}: record {self.key}" + ("" if self.path is None else f" ({self.path})")


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What `repair` has done."""

    path: str
    out: str | None
    """The new pack; None where the pack at `path` is whole (again)."""
    records: int
    """In the pack that is whole."""
    restored: tuple[str, ...]
    """Files that were made again, byte for byte, and are back in their place."""
    remade: tuple[str, ...]
    """Shards that were written anew in the new pack."""
    lost: tuple[LostRecord, ...]
    notes: tuple[str, ...]

    @property
    def lost_records(self) -> int:
        """How many records are lost."""
        return sum(entry.records for entry in self.lost)


class Watcher:
    """Is told how a repair comes along; the command line shows it. This one shows nothing."""

    def reading(self, size: int) -> None:
        """So many more bytes are read."""
