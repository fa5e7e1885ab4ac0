"""What the lists and notes of a pack say of deleted records, and what is left of it."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from packer.errors import printable
from packer.format.lists import KINDS, MOST_IN_MANIFEST, Listing, lists_of
from packer.format.manifest import Manifest
from packer.packing.input_table import GLOB, Selection, read_selection

KEPT = ("rejected", "skipped")
"""Lists that name what a pack does not have: with them, a build or an update leaves it out again."""


@dataclass(frozen=True)
class Forgotten:
    """A version of a pack without what its lists and notes said of some images."""

    manifest: Manifest
    """Its manifest, with the lists as they were."""
    listings: dict[str, Listing[Any]]
    selections: dict[str, bytes]
    changed: bool
    """Whether anything is other than it was."""


def without_paths(pack: str, old: Manifest, paths: Collection[bytes], forget: bool) -> Forgotten:
    """Return a version without what its lists and notes say of some images.

    Args:
        pack: The folder of the pack.
        old: The manifest of the version.
        paths: Of the images. Their labels, as the list of changed ones has them, go; so do notes that name one.
        forget: Whether their paths go, too, from all lists.

    Raises:
        DamagedPack: A list was altered.
    """
    listings, selections = lists_of(pack, old)
    names, before = {os.fsdecode(path) for path in paths}, {name: len(rows) for name, rows in listings.items()}
    for name in KINDS if paths else ():
        if name not in KEPT or forget:
            rows = listings[name]
            listings[name] = Listing(rows.kind, (row for row in rows if row.path not in names))
    found = dict(selections)
    for name in selections if forget and paths else ():
        file, rest = old.path_of(pack, old.lists[name].name), [os.fsencode(row.path) for row in listings["skipped"]]
        found[name] = _without_lines(file, selections[name], paths, rest)
    named = [re.compile(rf"(?<!\w){re.escape(printable(name))}(?!\w)") for name in names if old.notes]
    notes = tuple(note for note in old.notes if not any(text.search(note) for text in named))
    manifest = replace(old, notes=notes)
    if len(listings["changed"]) != before["changed"]:
        manifest = replace(manifest, counts={**old.counts, "changed": len(listings["changed"])})
    if len(listings["rejected"]) != before["rejected"]:
        manifest = replace(manifest, rejected=tuple(islice(listings["rejected"], MOST_IN_MANIFEST)))
    changed = notes != old.notes or found != selections or before != {n: len(rows) for n, rows in listings.items()}
    return Forgotten(manifest, listings, found, changed)


def _without_lines(file: str, content: bytes, paths: Collection[bytes], rest: Collection[bytes]) -> bytes:
    """Return a selection without the lines that name one of these images, and none of the rest."""
    lines = read_selection(file, sorted(paths)).lines
    kept = [line for line in lines if not _fits(line, paths) or _fits(line, rest)]
    return content if kept == lines else Selection(file, lines=kept).content


def _fits(line: bytes, paths: Collection[bytes]) -> bool:
    """Return whether a line of a selection, a path, folder or glob, names one of these images."""
    if line in paths:
        return True
    if not (line.endswith(b"/") or GLOB.search(line)):
        return False
    glob = (line + b"*" * line.endswith(b"/")).decode("latin-1")
    return any(fnmatch.fnmatchcase(path.decode("latin-1"), glob) for path in paths)
