"""What a trace of system calls says of the disk: what a power cut would lose, and what was synced again in vain."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from torture_builds import SYNCING, WRITING

SYNC = re.compile(r"^\d+ +(fsync|fdatasync|msync|close)\((\d+)(<[^>]*>)?.*= (-?\d+)")


def synced_again(log: Sequence[str]) -> list[str]:
    """Return the descriptors that were synced again after a sync of theirs had failed."""
    failed: set[str] = set()
    found = []
    for match in filter(None, map(SYNC.match, log)):
        name, fd, path, result = match.groups()
        if name == "close":
            failed.discard(fd)
        elif fd in failed:
            found.append(f"{name} of {path} again after it failed")
        elif result == "-1":
            failed.add(fd)
    return found


OF_FD = re.compile(r"^(\w+)\((?:\d+|AT_FDCWD)<([^>]*)>.*= (-?\d+)")
RENAME = re.compile(r'^rename\w*\((?:AT_FDCWD<[^>]*>, )?"([^"]*)", (?:AT_FDCWD<[^>]*>, )?"([^"]*)".*= 0$')
CREATED = re.compile(r'^openat\([^,]*, "([^"]*)", [^)]*O_CREAT.*= \d')


def lose_unsynced(
    log: Sequence[str], folder: Path, dice: random.Random, restore: Callable[[str], bool] = lambda path: True
) -> None:
    """Cut, zero or remove files whose bytes were not synced, and undo renames that were not.

    `restore` gives a name back to the file that had it before, and returns False if that is not known. A rename is not
    undone then, nor if its name was taken more than once.

    After ALICE (Pillai et al., OSDI 2014): bytes are safe after an fsync of their file, a name after one of its folder.
    """

    def moved(path: str, old: str, new: str) -> str:
        return new + path[len(old) :] if path == old or path.startswith(old + "/") else path

    dirty: set[str] = set()
    renames: list[tuple[str, str]] = []
    for line in log:
        call = line.split(maxsplit=1)[-1]
        if match := RENAME.match(call):
            dirty = {moved(path, *match.groups()) for path in dirty}
            renames.append((match[1], match[2]))
        elif match := CREATED.match(call):
            dirty.add(match[1])
        elif match := OF_FD.match(call):
            name, path, result = match.groups()
            if name in WRITING.split():
                dirty.add(path)
            elif name in SYNCING.split() and result == "0":
                dirty.discard(path)
                renames = [pair for pair in renames if os.path.dirname(pair[1]) != path]
    taken = Counter(match[2] for match in filter(None, (RENAME.match(line.split(maxsplit=1)[-1]) for line in log)))
    for old, new in reversed(renames):
        possible = os.path.exists(new) and not os.path.exists(old) and os.path.isdir(os.path.dirname(old))
        possible = possible and taken[new] == 1 and new.startswith(str(folder))
        if possible and dice.random() < 0.5:
            os.rename(new, old)
            if not restore(new):
                os.rename(old, new)
                continue
            dirty = {moved(path, new, old) for path in dirty}
    for path in sorted(dirty):
        if path.startswith(str(folder)) and os.path.isfile(path) and dice.random() < 0.8:
            size = os.path.getsize(path)
            how = dice.choice(("cut", "zero", "empty", "remove"))
            if how == "remove":
                os.unlink(path)
                continue
            os.truncate(path, 0 if how == "empty" else dice.randrange(size + 1))
            if how == "zero":  # the length reached the disk, the bytes did not
                os.truncate(path, size)
