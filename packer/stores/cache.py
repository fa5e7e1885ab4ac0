"""The cache folder of remote packs: where it is, how much it may hold, and what is evicted first."""

from __future__ import annotations

import os

from packer.errors import AnyPath

FOLDER = "PACKER_CACHE"
"""Environment variable: the cache folder."""


def cache_root(cache_dir: AnyPath | None = None) -> str:
    """Return the cache folder: the one given, that of the environment, or ~/.cache/packer."""
    found = cache_dir or os.environ.get(FOLDER)
    if not found:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        found = os.path.join(base, "packer")
    return os.path.abspath(os.fsdecode(found))
