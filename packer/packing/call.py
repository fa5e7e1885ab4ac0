"""A build in one call, as people type it in Python."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

from packer.errors import AnyPath
from packer.model.annotation import Progress
from packer.packing.build import BuildSummary, build_packs
from packer.packing.build_options import KINDS, BuildOptions


def build(
    source: AnyPath, out: AnyPath | None = None, progress: Progress | None = None, **options: Any
) -> list[BuildSummary]:
    """Build a pack of a folder of images and labels, as the command does.

    ``packer.build("imgs", "imgs.lmdb", resize=64)``

    Args:
        source: Folder, zip or tar of images and labels, or its URL in an object store.
        out: Path of the new pack, or its URL. None: NAME.lmdb beside the source.
        progress: Receives the images that were read and packed, the plans and notes.
        options: The other fields of `BuildOptions`.

    Returns:
        What was packed: a summary for each pack, of which there is one for each split that the source has.

    Raises:
        TypeError: There is no option of this name.
        PackerError: The build failed; a subclass such as UsageError, TooManyBad or StorageError says why.
    """
    for name in options.keys() - KINDS.keys():
        near = get_close_matches(name, KINDS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise TypeError(f"packer.build got an unknown option {name!r}{hint}")
    return build_packs(
        BuildOptions(os.fsdecode(source), None if out is None else os.fsdecode(out), **options), progress
    )
