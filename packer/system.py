"""How many cores there are for us."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores that this process may use: its CPU affinity, and the quota of its container (cgroup v2)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", "rb") as file:
            quota, period = file.read(100).split()
        if quota != b"max":
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        pass
    return cores
