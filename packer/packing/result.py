"""What became of a shard: its files, what was left out, and by which inputs it can be known again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from packer.format.manifest import Rejected, ShardEntry


@dataclass(slots=True)
class ShardResult:
    """What became of a job; `entry` is None where no input of the shard was any good."""

    entry: ShardEntry | None
    rejected: list[Rejected] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    label_counts: Counter[int] = field(default_factory=Counter)
    box_counts: Counter[int] = field(default_factory=Counter)
    inputs: str = ""
    """Digest of the job: its rows of the table of inputs, and what happens to them."""
    sources: str = ""
    """Digest of the contents of its source files."""
    kept: bool = False
    """It was finished by an earlier build that did not end, and nothing has changed since."""
