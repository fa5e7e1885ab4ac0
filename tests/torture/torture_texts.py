"""Functions that take any bytes as run lengths, selections, options or lists of a pack."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from torture_labels import GOLDEN, IMAGES, check_named, edited, written

from packer.errors import DamagedPack, PackerError, UsageError
from packer.format.beside import parse_beside
from packer.format.lists import KINDS, file_of
from packer.format.lists import read_list as rows_of_list
from packer.format.manifest import FileEntry, digest_of, parse_manifest
from packer.format.sidecar_list import SidecarFacts, SidecarFile, SidecarList, file_names, rows_digest
from packer.model.rle import MOST_DIGITS, decode, encode_shape, lengths_of, write
from packer.packing.build_options import BuildOptions
from packer.packing.input_table import read_selection
from packer.packing.recorded import as_config, options_from, read_config
from packer.repack.attached_rows import read_attached
from packer.repack.attached_tables import AttachRequest
from packer.sources.coco_objects import (
    CocoObject,
    Rules,
    join_rings,
    mask_box,
    mask_of,
    outline,
    read_rle,
    rle_text,
    shape_of,
)

RULES = Rules(0, {}, False)


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


def _counts_by_hand(text: bytes) -> list[int]:
    """The run lengths in a text, a character at a time."""
    counts: list[int] = []
    value = digits = 0
    for byte in text:
        digit = byte - 48
        if not 0 <= digit < 64 or digits == MOST_DIGITS:
            raise ValueError("no digit")
        value |= (digit & 31) << 5 * digits
        digits += 1
        if not digit & 32:
            value -= (1 << 5 * digits) * bool(digit & 16)
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value = digits = 0
    if digits or min(counts, default=0) < 0:
        raise ValueError("no run lengths")
    return counts


def read_stored_instances(data: bytes) -> str:
    """Masks of the objects of an image, as an index has them: height and width, then their texts, between blanks."""
    height, width, *_ = data[:2] + bytes(2)
    shape, texts = (height + 1, width + 1), data[2:].split(b" ")[:5]
    try:
        wanted = [_counts_by_hand(text) for text in texts]
        if any(text and sum(runs) != shape[0] * shape[1] for text, runs in zip(texts, wanted, strict=True)):
            raise ValueError("another size")
    except ValueError:
        wanted = []
    try:
        found = decode([np.frombuffer(text, np.uint8) for text in texts], *shape)
    except ValueError:
        assert not wanted
        return "refused"
    rows, columns = np.arange(-2, 2 * shape[0], 3), np.arange(2 * shape[1], -2, -2)
    for mask, text, runs in zip(found, texts, wanted, strict=True):
        by_hand = np.repeat(np.arange(len(runs)) % 2, runs) if text else np.zeros(shape[0] * shape[1])
        assert np.array_equal(mask.T.ravel(), by_hand)
        (lengths,), out = lengths_of([np.frombuffer(text, np.uint8)], mask.size), np.zeros((len(rows), len(columns)))
        write(lengths, shape, rows, columns, out)
        beside = np.pad(mask, ((2, shape[0]), (2, shape[1] + 1)))
        assert np.array_equal(out, beside[np.ix_(rows + 2, columns + 2)])
    return "read"


def read_shapes(data: bytes) -> str:
    """Polygons and run lengths of an object, as JSON, become a mask by pycocotools, which trusts what it is given."""
    try:
        shape = json.loads(data[2:])
        found = shape_of(msgspec.convert({"segmentation": shape, "bbox": [0, 0, 1, 1]}, CocoObject), None, RULES)
        counts = encode_shape(found.shape, data[0] + 1, data[1] + 1)
    except ValueError:  # msgspec's and json's errors are such
        return "refused"
    assert decode([counts], data[0] + 1, data[1] + 1).max(initial=0) <= 1
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


class _ThreeRecords:
    """What joining looks at in a pack."""

    keys, paths = ("7", "8", "x"), [os.fsdecode(path) for path in IMAGES[:3]]

    def key(self, record: int) -> str:
        return self.keys[record]

    def __len__(self) -> int:
        return len(self.keys)


ROW_FILES = ("a.csv", "a.tsv", "a.jsonl", "a.npy", "a.npz")


def read_rows(data: bytes) -> str:
    """A file for `packer attach`: its first byte chooses the format, and what is asked for."""
    choice, content = data[0] if data else 0, data[1:]
    name = ROW_FILES[choice % len(ROW_FILES)]
    kind = (None, "array", "text", "json")[choice >> 4 & 3]
    asked = AttachRequest(f"{written({name: content})}/{name}", "more", kind, "x" if choice >> 7 else None)
    pack: Any = _ThreeRecords()
    try:
        found = read_attached(asked, pack)
        values = found.chunk(0, 3)
    except PackerError as error:
        check_named(error, {name, "--column"})
        return "refused"
    assert len(values) == 3
    return "read"


def _sidecar(name: str, kind: str, *more: Any) -> SidecarList:
    files = (SidecarFile(file, 512, "0" * 64, "0123abcd") for file in file_names(name, kind))
    return SidecarList(rows_digest(PLAIN), (SidecarFacts(name, kind, *more[:2], tuple(files), *more[2:]),))


SIDECARS = [
    _sidecar("a", "array", "float16", (2,)), _sidecar("t", "text", "", (-1,)), _sidecar("j", "json", "", ()),
    _sidecar("m", "mask", "uint8", (), "png", ("sky", "dog"), 255), _sidecar("i", "image", "uint8", (), "jpeg"),
]  # fmt: skip


def read_sidecars(data: bytes) -> str:
    """sidecars.json: any bytes, bytes whose digest is made anew, or edits of a good one."""
    choice, text = data[0] % 3 if data else 0, data[1:]
    if choice:
        with suppress(ValueError, RecursionError, AttributeError):  # json.loads of anything, json.dumps of 10**400
            content = json.loads(text) if choice == 1 else edited(SIDECARS[len(text) % 5].to_json().decode(), text[:16])
            content.pop("digest", None)
            text = (json.dumps({**content, "digest": digest_of(content)}, indent=1) + "\n").encode("ascii")
    try:
        found = parse_beside(SidecarList, "pack", text, PLAIN)
    except DamagedPack as error:
        check_named(error, {SidecarList.NAME})
        return "refused"
    for facts in found.sidecars:
        assert facts.text.isprintable() and facts.spec.name == facts.name and facts.bytes >= 0
    return "read"


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
