"""Arguments of torch's DataLoader that a PackedLoader does not take: what to write instead."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from packer.errors import UsageError

ELSEWHERE = {
    "batch_sampler": "write sampler=, one of packer.samplers, and batch_size=",
    "collate_fn": 'write collate="list", "yolo" or "padded"; or use PackedDataset in a DataLoader',
    "dataset": "give the pack as the first argument",
    "generator": "write seed=",
    "in_order": "leave it out: batches are always in order",
    "multiprocessing_context": "leave it out: PackedLoader reads in threads",
    "num_workers": "write threads=: PackedLoader reads in threads",
    "persistent_workers": "leave it out: PackedLoader reads in threads",
    "pin_memory": 'leave it out: batches are pinned where device="cuda"',
    "pin_memory_device": "write device=",
    "prefetch_factor": "write prefetch=, in batches",
    "timeout": "leave it out: PackedLoader reads in threads",
    "worker_init_fn": "leave it out: PackedLoader reads in threads",
}
"""Arguments of torch's DataLoader -> what to do here."""


def refuse_unknown(function: Callable[..., Any], unknown: dict[str, Any]) -> None:
    """Raise UsageError for an argument of torch's DataLoader, and TypeError for any other that is unknown."""
    for name in unknown:
        if name in ELSEWHERE:
            raise UsageError(name, "is an argument of torch's DataLoader", ELSEWHERE[name])
        close = difflib.get_close_matches(name, inspect.signature(function).parameters, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TypeError(f"PackedLoader got an unexpected argument {name!r}{hint}")
