"""The room on the disk for a new pack, or for the shards in the works if it goes to a store."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from packer.errors import StorageError, UsageError, size_text
from packer.format.manifest import PARTIAL_SUFFIX
from packer.packing.options import BuildOptions
from packer.packing.publish import PACK
from packer.system import usable_cores


def check_space(options: BuildOptions, pack_bytes: int, shards: int, free: int, step: str) -> None:
    """Raise StorageError if a pack, or the unfinished shards of one that goes to a store, will not fit on the disk.

    Args:
        options: The options of the build.
        pack_bytes: Size of the pack.
        shards: Number of its shards.
        free: What `free_bytes` returned.
        step: What to do about a pack that is too large.
    """
    where, needed, what = options.output, pack_bytes, "the pack needs"
    if options.to_store:
        workers = options.workers or usable_cores()
        needed = pack_bytes * min(shards, 2 * workers) // max(1, shards)  # as many are uploaded as are made
        where, what = options.scratch_folder, "unfinished shards need"
        step = "choose another disk with --scratch, use fewer --workers, or make shards smaller with --shard-size"
    if needed > free:
        raise StorageError(where, f"{what} about {size_text(needed)}, but only {size_text(free)} are free", step)


def _bytes_in(partial: str) -> int:
    """Return the bytes written by an unfinished build, which are reused or removed."""
    total = 0
    for folder, _, names in os.walk(partial):  # it has several packs if it is built in parts
        for name in names if os.path.basename(folder) == PACK else ():
            with suppress(OSError):
                total += os.path.getsize(os.path.join(folder, name))
    return total


def free_bytes(options: BuildOptions) -> int:
    """Return the bytes that a new pack may take on its disk, or in the scratch folder if it goes to a store.

    What an unfinished pack there has counts as free.
    """
    output = os.path.abspath(options.output)
    folder = options.scratch_folder if options.to_store else os.path.dirname(output)
    unfinished = 0 if options.to_store else _bytes_in(f"{output}{PARTIAL_SUFFIX}")
    try:
        return shutil.disk_usage(folder).free + unfinished
    except FileNotFoundError:
        raise UsageError(folder, "no such folder for the pack", "create it, or choose another --out") from None
    except OSError as error:
        raise StorageError(folder, error.strerror or str(error)) from None
