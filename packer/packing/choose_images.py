"""Chooses the images of a source to pack: those that its labels, ``--split``, ``--include`` and ``--exclude`` leave."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence

from packer.errors import NoImage
from packer.format.lists import Skipped
from packer.packing.build_options import BuildOptions, not_in_split
from packer.packing.input_table import Inputs, read_selection
from packer.packing.make_record import rejected
from packer.sources.paths import PathWriter, quoted_value
from packer.sources.source import BaseSource, Tree, leaves_out

BISECTS = 100
"""To find a path by bisection takes as long as to read so many one after another."""


def choose_images(
    tree: Tree, sources: Sequence[BaseSource], options: BuildOptions, inputs: Inputs, by_list: bool
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return the paths of the images that the sources, ``--split``, ``--include`` and ``--exclude`` leave, and of those
    that only ``--split`` leaves out; `by_list` says that each split has a list of its own.
    """
    paths: Sequence[bytes] = tree.images
    for source in sources:
        paths = _without_left_out(paths, source.left_out, inputs) if leaves_out(source) else paths
    others: Sequence[bytes] = ()
    if options.one_split is not None:
        other, elsewhere = not_in_split(options.one_split), PathWriter()

        def reason(path: bytes) -> str | None:
            if all(each.in_split(path) for each in sources):
                return None
            elsewhere.append(path)
            return other

        paths = _without_left_out(paths, reason, inputs)
        others = elsewhere.finish()
    if by_list:
        ours = set(paths)
        others = [path for path in tree.images if path not in ours]
    return _apply_selection(paths, others, tree, options, inputs)


def those_of(paths: Sequence[bytes], only: Collection[bytes] | None) -> Sequence[bytes]:
    """Return the paths, which are in order, that are among `only`; None: all."""
    if only is None:
        return paths
    if len(only) * BISECTS < len(paths):
        places = ((path, bisect_left(paths, path)) for path in sorted(only))
        return [path for path, place in places if place < len(paths) and paths[place] == path]
    return [path for path in paths if path in only]


def _without_left_out(
    paths: Sequence[bytes], left_out: Callable[[bytes], str | None], inputs: Inputs | None
) -> Sequence[bytes]:
    """Return the paths for which there is no reason to leave them out; the others are skipped in `inputs`."""
    kept = PathWriter()
    for path in paths:
        reason = left_out(path)
        if reason is None:
            kept.append(path)
        elif inputs is not None:
            inputs.skipped.add(Skipped(os.fsdecode(path), reason))
    return kept.finish()


def _apply_selection(
    paths: Sequence[bytes], others: Sequence[bytes], tree: Tree, options: BuildOptions, inputs: Inputs
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Return the paths that ``--include`` and ``--exclude`` leave, and of other splits those."""
    chosen, left_out = None, inputs.left_out
    if options.include is not None:
        chosen = read_selection(options.include, tree.images, options.like)
        inputs.selections["include"] = chosen.content
        name = os.path.basename(options.include)
        for line, number in chosen.unmatched.items():
            error = NoImage(f"{name}:{number}", f"no image {quoted_value(line)}", "correct the line, or remove it")
            inputs.rejected.add(rejected(os.fsencode(error.where), error))

    def reason(path: bytes) -> str | None:
        if chosen is not None and path not in chosen.images:
            return "not included"
        return "excluded" if left_out is not None and path in left_out.images else None

    if chosen is None and left_out is None:
        return paths, others
    return _without_left_out(paths, reason, inputs), _without_left_out(others, reason, None)
