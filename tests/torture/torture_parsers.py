"""Functions that take any bytes, and let out nothing but what the parser behind them may raise.

The first byte of an input chooses how the rest is read, so that one target reaches all ways through a parser.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(TESTS), str(TESTS / "images"), str(TESTS / "audit")) if path not in sys.path]

from drawn_masks import picture  # noqa: E402
from ops_images import FILES, RGB, oriented  # noqa: E402
from running import run  # noqa: E402
from torture_archives import ARCHIVES, read_archive, read_members  # noqa: E402
from torture_labels import (  # noqa: E402
    GOLDEN,
    LABEL_FILES,
    Target,
    check_named,
    places_of,
    read_list,
    read_panoptic,
    read_voc,
    read_yaml,
    read_yolo,
    reader_of,
    written,
)
from torture_mutations import with_checksums  # noqa: E402
from torture_seeds import BASES, ROWS, SEEDS_OF, SMALL_MAP, npy  # noqa: E402
from torture_texts import (  # noqa: E402
    SIDECARS,
    read_masks,
    read_options,
    read_pack_list,
    read_rows,
    read_selected,
    read_sidecars,
)

from packer.errors import BadImage, BadMask, BadPart, DamagedPack, UsageError  # noqa: E402
from packer.format.index import SCHEMA, read_index  # noqa: E402
from packer.format.manifest import digest_of, parse_manifest  # noqa: E402
from packer.images.decode import DECODERS, check_available, decode  # noqa: E402
from packer.images.header import IncompleteHeader, check_header, decoded_shape, losses, read_header  # noqa: E402
from packer.images.masks import MaskValues, decode_mask, decode_stored, encode_mask  # noqa: E402
from packer.images.parts import BY_KIND, PartRecipe  # noqa: E402
from packer.images.resize import TargetSize  # noqa: E402
from packer.model.annotation import Annotation, PartSpec  # noqa: E402
from packer.model.annotation_columns import (  # noqa: E402
    Annotations,
    Ragged,
    column,
)
from packer.packing.make_record import InputBytes, InputRow, Recipe  # noqa: E402
from packer.sources.mask_values import Asked, values_in  # noqa: E402
from packer.sources.source import Tree  # noqa: E402

# -- images

SEEDS = {name: data for name, data in FILES.items() if len(data) <= 4096}
SEEDS |= {f"{kind} exif": oriented(RGB, kind, 6) for kind in ("JPEG", "PNG", "WEBP", "TIFF")}
SEEDS["JPEG progressive exif"] = oriented(RGB, "JPEG", 5, progressive=True)
"""A small file of each variant of each format, with and without Exif."""
RESIZES = (None, TargetSize(16, 12, "pad"), TargetSize(8, 8, "stretch"), TargetSize(64, 64, "crop"))
MOST_PIXELS = 1 << 20


def available() -> list[str]:
    """The decoders that there are."""
    found = []
    for decoder in DECODERS:
        with suppress(UsageError):
            check_available(decoder)
            found.append(decoder)
    return found


DECODERS_HERE = available()


def read_image_header(data: bytes) -> str:
    """The header of a whole file and of its first bytes, and what is made of it."""
    choice, data = data[0] if data else 0, bytes(with_checksums(bytearray(data[1:])))
    parts = [(data, True), (data[: len(data) * (choice >> 3) // 31], False)]
    outcome = "refused"
    for part, complete in parts:
        with suppress(BadImage, IncompleteHeader):
            header = read_header(part, complete=complete)
            assert header.width >= 1 and header.height >= 1 and 1 <= header.orientation <= 8 and header.frames >= 1
            check_header(header)
            for mode in ("rgb", "gray", "unchanged"):
                assert min(decoded_shape(header, mode)[:3]) >= 1
                losses(header, mode)
            outcome = "read"
    return outcome


def read_image(data: bytes) -> str:
    """A whole file through header, decoder, resizing and encoder; its first two bytes choose how."""
    dice, data = random.Random(data[:2]), data[2:]
    mode, decoder = dice.choice(("rgb", "gray", "unchanged")), dice.choice(DECODERS_HERE)
    try:
        header = read_header(data)
        check_header(header, MOST_PIXELS)
        height, width, channels, dtype = decoded_shape(header, mode)
        image = decode(data, mode, decoder, max_pixels=MOST_PIXELS)
    except BadImage:
        return "refused"
    assert image.shape == (height, width, channels) and image.dtype == dtype and image.flags.c_contiguous
    encode = dice.choice(("raw", "copy", "png", "jpeg") if mode != "unchanged" else ("raw", "copy"))
    resize = None if encode == "copy" or mode == "unchanged" else dice.choice(RESIZES)
    recipe = Recipe(b"/", mode, decoder, MOST_PIXELS, resize, encode, 90)
    try:
        row = InputRow(b"a", len(data), height, width, header.code)
        record, _ = recipe.record("0", row, InputBytes(data), Annotation())
    except BadImage:  # at a reduced size other parts of a damaged file are read
        assert resize is not None
        return "refused"
    assert record.shape == ((height, width, channels) if resize is None else (resize.height, resize.width, channels))
    return "read"


MASK_VALUES = (
    MaskValues(), MaskValues(("a", "b", "c"), 255), MaskValues(("a", "b"), None, ((0, 0), (255, 1), (7, 1))),
    MaskValues(("a",), 9, ((0, 0), (0xFF0000, 0)), in_colors=True), MaskValues(("a", "b"), binary=True),
)  # fmt: skip


def read_mask(data: bytes) -> str:
    """A mask file; its first byte chooses what its values mean."""
    choice, data = data[0] if data else 0, bytes(with_checksums(bytearray(data[1:])))
    values, dtype = MASK_VALUES[choice % len(MASK_VALUES)], ("uint8", "uint16")[choice >> 4 & 1]
    try:
        mask = decode_mask(data, values, dtype, MOST_PIXELS)
    except (BadImage, BadMask) as error:
        assert error.problem
        return "refused"
    assert mask.ndim == 2 and mask.size and mask.dtype == dtype
    known = {*range(len(values.classes)), values.ignore}
    assert not values.classes or set(np.unique(mask).tolist()) <= known
    for encoding in ("raw", "zstd", "png"):
        assert np.array_equal(decode_stored(encode_mask(mask, encoding), encoding, mask.shape, dtype), mask)
    return "read"


def read_stored_mask(data: bytes) -> str:
    """Bytes of a mask in a pack, which a checksum does not protect from whoever wrote them."""
    choice, height, width, data = *(data + bytes(3))[:3], data[3:]
    dtype, encoding = ("uint8", "uint16")[choice & 1], ("raw", "zstd", "png")[(choice >> 1) % 3]
    if encoding == "png" and not choice >> 7:
        data = bytes(with_checksums(bytearray(data)))
    try:
        mask = decode_stored(data, encoding, (height, width), dtype)
    except BadImage as error:
        assert error.problem
        return "refused"
    assert mask.shape == (height, width) and mask.dtype == dtype
    return "read"


PART_KINDS = [kind for name, kind in BY_KIND.items() if name not in ("bytes", "mask")]


def read_part(data: bytes) -> str:
    """A file of a part; what it holds is stored in every way of its kind, and comes back."""
    choice, data = data[0] if data else 0, data[1:]
    kind = PART_KINDS[choice % len(PART_KINDS)]
    mode = ("rgb", "gray", "unchanged")[choice >> 4 & 1]
    if data[:4] == b"\x89PNG":
        data = bytes(with_checksums(bytearray(data)))
    try:
        facts = kind.facts(data, True, len(data), MOST_PIXELS)
        recipe = PartRecipe(PartSpec("a", kind.name, facts.dtype, channels=facts.channels), "raw", mode=mode)
        recipe = replace(recipe, spec=kind.spec({(facts.dtype, facts.channels)}, recipe), max_pixels=MOST_PIXELS)
        value = kind.read(data, recipe)
    except (BadImage, BadPart) as error:
        assert error.problem
        return "refused"
    except IncompleteHeader:
        raise AssertionError("the file is complete") from None
    shape = value.shape[:2] if kind.of_pixels else (1, 1)
    for encode in ("lmdb", "raw"), ("lmdb", "png"), ("parquet", "raw"):
        encoding = kind.encoding(*encode, recipe.spec)
        again = kind.decode(kind.encode(value, encoding), encoding, shape, recipe.spec, "unchanged")
        if isinstance(value, np.ndarray):
            assert np.array_equal(again.reshape(value.shape), value, equal_nan=value.dtype.kind in "fc")
        else:
            assert again == value
    return "read"


def read_stored_part(data: bytes) -> str:
    """Bytes of a part in a pack, which a checksum does not protect from whoever wrote them."""
    choice, code, height, width, data = *(data + bytes(4))[:4], data[4:]
    kind = PART_KINDS[choice % len(PART_KINDS)]
    encoding = ("raw", "zstd", "png", "npy", "jpeg", "txt", "json")[code % 7]
    dtype = ("uint8", "uint16", "float16", "float32")[code >> 4 & (3 if kind.name == "map" else 1)]
    if encoding == "png" and not choice >> 7:
        data = bytes(with_checksums(bytearray(data)))
    spec = PartSpec("a", kind.name, dtype, channels=1 + (code >> 6 & 1))
    try:
        value = kind.decode(data, encoding, (height, width), spec, ("rgb", "gray", "unchanged")[choice >> 4 & 1])
    except BadImage as error:
        assert error.problem
        return "refused"
    assert not kind.of_pixels or value.shape[:2] == (height, width)
    return "read"


def read_mask_values(data: bytes) -> str:
    """A file of colors, or of values and ids."""
    choice, text = data[0] if data else 0, data[1:]
    folder = written({"some.txt": text})
    tree = Tree(os.fsencode(folder), (), (), ())
    try:
        found = values_in(tree, b"masks/", Asked(f"{('colors', 'map')[choice & 1]}:{folder}/some.txt"))
    except UsageError as error:
        check_named(error, {"some.txt"})
        return "refused"
    assert found is not None and found.ids and found.in_colors == (not choice & 1)
    assert all(0 <= value <= 0xFFFFFF and 0 <= number <= 65535 for value, number in found.ids)
    pixels = np.arange(120, dtype=np.uint8).reshape(8, 5, 3)
    with suppress(BadMask):
        found.ids_of(pixels if found.in_colors else pixels[..., 0], "uint16")
    return "read"


SMALL_MASK = np.arange(48, dtype=np.uint8).reshape(6, 8) % 4
STORED_MASKS = [
    bytes([code << 1 | deep, 6, 8]) + encode_mask(SMALL_MASK.astype(("uint8", "uint16")[deep]), encoding)
    for code, encoding in enumerate(("raw", "zstd", "png")) for deep in (0, 1)
]  # fmt: skip
STORED_MASKS += [
    bytes([0, 6, 9]) + bytes(48),
    bytes([2, 5, 8]) + STORED_MASKS[2][3:],
    bytes([4, 8, 6]) + STORED_MASKS[4][3:],
    bytes([4, 6, 8]),
    bytes([4, 6, 8]) + picture(SMALL_MASK, palette=True),
]


PART_FILES = [
    b"\0" + npy(SMALL_MAP), b"\0" + npy(SMALL_MAP.astype(np.uint16)), b"\2" + npy(SMALL_MAP[None].astype(">f8")),
    b"\2" + npy(np.asfortranarray(SMALL_MAP)), b"\3a text \xc3\xa4\n", b'\4{"a": [1, "b", null]}',
    b"\2" + npy(np.array(7)), b"\0" + encode_mask(SMALL_MASK.astype(np.uint16), "png"),
    b"\1" + encode_mask(SMALL_MASK, "png"),
]  # fmt: skip
STORED_PARTS = [
    bytes([0, 48, 6, 8]) + SMALL_MAP.tobytes(), bytes([0, 3 | 48, 6, 8]) + npy(SMALL_MAP),
    bytes([0, 1 | 48, 6, 8]) + BY_KIND["map"].encode(SMALL_MAP, "zstd"),
    bytes([0, 2, 6, 8]) + encode_mask(SMALL_MASK, "png"), bytes([1, 2, 6, 8]) + encode_mask(SMALL_MASK, "png"),
    bytes([1, 0, 6, 8]) + bytes(144), bytes([2, 3, 0, 0]) + npy(SMALL_MAP),
    bytes([3, 5, 0, 0]) + b"a text", bytes([4, 6, 0, 0]) + b'{"a": 1}',
    bytes([0, 2 | 32, 6, 8]) + encode_mask(SMALL_MASK, "png"), bytes([1, 16, 6, 8]) + bytes(47),
    bytes([1, 0, 0, 8]) + bytes(8), bytes([3, 5, 0, 0]) + b"\xff", bytes([4, 6, 0, 0]) + b"{",
]  # fmt: skip
VALUE_FILES = [
    b"\0road:128,64,128::\ncar:0,0,142::\n", b"\0name,r,g,b\na,1,2,3\nb,4,5,6\n", b"\0#804020 x\n#000000 y\n",
    b"\0road 1 2\n", b"\x01road 7\n", b"\1{}", b"\0",
    b"\x017 0 road\n8 1\n9 255\n", b'\1{"7": 0, "8": 1}', b"\x010:1\n1=>0\n",
]  # fmt: skip

# -- packs

MANIFEST = (GOLDEN / "lmdb-landmarks" / "pack.json").read_bytes()
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 10**400, -(10**400), 1.0, 0.5, -0.0, 1e308,
    "", "a", ".", "..", "../a", "/etc/passwd", "a/b", "\0", "\udcff", "é", "uint8", "uint16", "packer", [], {}, [[]],
    [1, 2, 3], [0, 1, 1], ["1", "2", "3"], [1, 2], {"name": "a"}, [None], "9" * 5000, 1e16, {"digest": 1},
)  # fmt: skip
"""What an edit may put anywhere in a manifest."""


def read_manifest(data: bytes) -> str:
    """pack.json: raw bytes, bytes whose digest is made anew, or edits of a good one; and what `packer info` says."""
    how, text = data[0] % 3 if data else 0, data[1:]
    if how:
        with suppress(ValueError, RecursionError, AttributeError):  # json.loads of anything, json.dumps of 10**400
            content = json.loads(text) if how == 1 else _edited(text)
            content.pop("digest", None)
            whole = {**content, "digest": digest_of(content)}
            text = (json.dumps(whole, indent=1, allow_nan=False) + "\n").encode("ascii")
    try:
        manifest = parse_manifest("pack.json", text)
    except (DamagedPack, UsageError):
        return "refused"
    assert manifest.to_json() == text
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pack.json").write_bytes(text)
        assert run("info", folder, "--json").code in (0, 3, 4)
        ran = run("info", folder)
        assert ran.code in (0, 3, 4) and "Traceback" not in ran.err
    return "read"


def _edited(program: bytes) -> Any:
    """A manifest after edits: each is the number of a place, and of what is put there."""
    content = json.loads(MANIFEST)
    for place, value in zip(program[:16:2], program[1:16:2], strict=False):
        places = list(places_of(content))
        if not places:
            break
        where, key = places[place % len(places)]
        if value == 255:
            del where[key]
        elif value == 254 and isinstance(where, dict):
            where["more"] = where.pop(key)
        elif value == 253 and isinstance(where, list):
            where.append(where[key])
        else:
            where[key] = json.loads(json.dumps(VALUES[value % len(VALUES)]))
    return content


def _compressed(index: bytes, compression: str) -> bytes:
    out = io.BytesIO()
    batch = pa.ipc.open_file(index).get_batch(0)
    with pa.ipc.new_file(out, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return out.getvalue()


INDEXES = [sorted((GOLDEN / kind).glob("*.arrow"))[0].read_bytes() for kind in ("lmdb-landmarks", "tfrecord-polygons")]
INDEXES += [_compressed(INDEXES[0], "zstd"), _compressed(INDEXES[0], "lz4")]
MOST_ALLOCATED = 1 << 20
EDIT = struct.Struct("<HBB")
NUMBERS = [value + less for value in (1, 8, 128, 256, 1 << 16, 1 << 31, 1 << 32, 1 << 63, 1 << 64) for less in (-1, 0)]


def read_any_index(data: bytes) -> str:
    """An index file, raw or a good one with edits, then all that is ever read out of it."""
    choice, data = data[0] if data else 0, data[1:]
    if not choice & 1:
        data = _patched(bytearray(INDEXES[choice >> 1 & 3]), data)
    try:
        table = read_index("a.index.arrow", np.frombuffer(data, np.uint8))
        assert pa.total_allocated_bytes() < MOST_ALLOCATED
        for name in SCHEMA.names:
            values = column(table, name)
            assert len(values) == len(table)
            _all_rows(values)
        notes = Annotations(table, "a.index.arrow")
        assert len(notes) == len(table)
    except DamagedPack:
        return "refused"
    for i in range(min(len(table), 8)):
        with suppress(DamagedPack):
            notes[i]
    return "read"


def _patched(file: bytearray, program: bytes) -> bytes:
    """Numbers in a file changed: each edit says where, how wide, and which number."""
    for where, how, value in EDIT.iter_unpack(program[: len(program) // 4 * 4][:64]):
        width = 1 << (how & 3)
        at = where % (len(file) - width) // width * width
        near = int.from_bytes(file[at : at + width], "little") + value - 128
        new = near if how & 4 else NUMBERS[value % len(NUMBERS)] if how & 8 else value
        file[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(file)


def _all_rows(values: Any) -> None:
    for i in range(min(len(values), 8) if isinstance(values, Ragged) else 0):
        _all_rows(values[i])


LABELS = {
    "yolo": read_yolo,
    "yaml": read_yaml,
    "list": read_list,
    "voc": read_voc,
    **{kind: reader_of(kind, BASES.get(kind)) for kind in LABEL_FILES},
    "panoptic": partial(read_panoptic, base=json.dumps(BASES["panoptic"])),
    "rle": read_masks,
    "selection": read_selected,
    "config": read_options,
    "lists": read_pack_list,
}


def targets() -> dict[str, Target]:
    """All parsers."""
    images = list(SEEDS.values())
    edits = [bytes([2, place, value]) for place in range(0, 48, 5) for value in (0, 4, 20)]
    patches = [bytes([place % 8 & 6]) + EDIT.pack(16 * place, place % 16, place % 256) for place in range(0, 400, 9)]
    return {
        **{name: Target(read, SEEDS_OF[name]) for name, read in LABELS.items()},
        "members": Target(read_members, ARCHIVES),
        "archive": Target(read_archive, ARCHIVES),
        "header": Target(read_image_header, [bytes([choice]) + data[:800] for data in images for choice in (1, 0x6A)]),
        "decode": Target(read_image, [bytes([i % 256, i * 7 % 256]) + data for i, data in enumerate(images)]),
        "mask": Target(read_mask, [bytes([i % 256]) + data for i, data in enumerate(images)]),
        "mask-stored": Target(read_stored_mask, STORED_MASKS),
        "mask-values": Target(read_mask_values, VALUE_FILES),
        "rows": Target(read_rows, ROWS),
        "sidecars": Target(read_sidecars, [*(bytes([n]) + one.to_json() for one in SIDECARS for n in (0, 1)), *edits]),
        "part": Target(read_part, [*PART_FILES, *(bytes([1 + i % 32]) + data for i, data in enumerate(images))]),
        "part-stored": Target(read_stored_part, STORED_PARTS),
        "manifest": Target(read_manifest, [b"\0" + MANIFEST, b"\1" + MANIFEST, *edits]),
        "index": Target(read_any_index, [b"\1" + index for index in INDEXES] + patches),
    }


TARGETS = targets()
