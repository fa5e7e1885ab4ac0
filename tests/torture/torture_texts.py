"""Functions that take any bytes as run lengths, selections, options or lists of a pack."""

from __future__ import annotations

import os
from dataclasses import replace

from torture_labels import GOLDEN, IMAGES, check_named, written

from packer.errors import DamagedPack, PackerError, UsageError
from packer.format.lists import KINDS, file_of
from packer.format.lists import read_list as rows_of_list
from packer.format.manifest import FileEntry, parse_manifest
from packer.packing.build_options import BuildOptions
from packer.packing.input_table import read_selection
from packer.packing.recorded import as_config, options_from, read_config
from packer.sources.coco_objects import join_rings, mask_box, mask_of, outline, read_rle, rle_text


def read_masks(data: bytes) -> str:
    """Run lengths: height and width, then a text, or a number a byte."""
    height, width, choice, runs = *(data + bytes(3))[:3], data[3:]
    try:
        counts = list(runs) if choice & 1 else runs.decode("latin-1")
        height, width, counts = read_rle([height << (choice >> 2 & 3), width << (choice >> 4 & 3)], counts)
        assert read_rle([height, width], rle_text(counts))[2] == counts
        box = mask_box(height, counts)
        mask = mask_of(height, width, counts)
    except ValueError:
        return "refused"
    try:
        rings = outline(mask)
    except ValueError:
        return "refused"
    path = join_rings(rings)
    (left, top), (right, bottom) = map(min, zip(*path, strict=True)), map(max, zip(*path, strict=True))
    assert (left, top, right, bottom) == box
    twice = sum(a * d - c * b for ring in rings for (a, b), (c, d) in zip(ring, [*ring[1:], ring[0]], strict=True))
    assert twice == 2 * mask.sum()
    return "read"


def read_selected(data: bytes) -> str:
    """A file of --include or --exclude, with and without a pack."""
    choice, text = data[0] if data else 0, data[1:]
    file = f"{written({'some.txt': text})}/some.txt"
    try:
        found = read_selection(file, IMAGES, str(GOLDEN / "lmdb-landmarks") if choice & 1 else None)
    except UsageError as error:
        check_named(error, {"some.txt"})
        return "refused"
    assert found.images <= set(IMAGES)
    assert not found.unmatched or "some.txt" in found.note
    again = f"{written({'again.txt': found.content})}/again.txt"
    if not choice & 1 and b"\r" not in text:
        assert read_selection(again, IMAGES).images == found.images
    return "read" if found.images else "refused"


def read_options(data: bytes) -> str:
    """A file for --config."""
    file = f"{written({'packer.yaml': data})}/packer.yaml"
    try:
        given = read_config(file)
        given.pop("like", None)  # another pack would be opened
        options = BuildOptions(**{**given, "source": "set"})
    except PackerError as error:
        assert isinstance(error, UsageError)
        return "refused"
    again = f"{written({'again.yaml': os.linesep.join(as_config(options)).encode()})}/again.yaml"
    assert options_from(again) == options
    return "read"


PLAIN = parse_manifest("pack.json", (GOLDEN / "lmdb-landmarks" / "pack.json").read_bytes())


def read_pack_list(data: bytes) -> str:
    """A list of rejected, skipped or changed inputs of a pack."""
    name = tuple(KINDS)[data[0] % len(KINDS)] if data else "rejected"
    folder = written({file_of(name): data[1:]})
    manifest = replace(PLAIN, lists={name: FileEntry(file_of(name), len(data) - 1, "0" * 64)})
    try:
        rows = list(rows_of_list(folder, name, manifest))
    except DamagedPack as error:
        check_named(error, {file_of(name)})
        return "refused"
    assert all(isinstance(row, KINDS[name]) for row in rows)
    return "read"
