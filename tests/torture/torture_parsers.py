"""Functions that take any bytes, and let out nothing but what the parser behind them may raise.

The first byte of an input chooses how the rest is read, so that one target reaches all ways through a parser.
"""

from __future__ import annotations

import io
import json
import random
import struct
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(TESTS), str(TESTS / "ops"), str(TESTS / "audit")) if path not in sys.path]

from drawn import voc_xml  # noqa: E402
from ops_images import FILES, RGB, oriented  # noqa: E402
from running import run  # noqa: E402
from torture_mutations import with_checksums  # noqa: E402

from packer.errors import BadImage, BadInput, DamagedPack, UsageError  # noqa: E402
from packer.format.columns import Annotations, column  # noqa: E402
from packer.format.index import SCHEMA, read_index  # noqa: E402
from packer.format.manifest import digest_of, parse_manifest  # noqa: E402
from packer.format.ragged import Ragged  # noqa: E402
from packer.images.decode import DECODERS, check_available, decode  # noqa: E402
from packer.images.header import Header, IncompleteHeader, check_header, decoded_shape, losses, read_header  # noqa: E402
from packer.images.resize import Resize  # noqa: E402
from packer.packing.convert import Recipe, Row  # noqa: E402
from packer.packing.resolve import ClassIds, Resolver  # noqa: E402
from packer.sources import open_source  # noqa: E402
from packer.sources.base import SourceOptions, Tree  # noqa: E402
from packer.sources.tree import find_tree, read_file  # noqa: E402
from packer.types import Annotation  # noqa: E402

GOLDEN = TESTS / "golden" / "kinds"
CORPUS = Path(__file__).resolve().parent / "corpus"


class Target(NamedTuple):
    """One parser."""

    read: Callable[[bytes], str]
    """Reads one input and returns the outcome; raises an exception for a fault."""
    seeds: list[bytes]

    def inputs(self, name: str) -> list[bytes]:
        """Return the seeds, and the inputs of the corpus: one JSON text a line, a character for each byte."""
        return [*self.seeds, *(json.loads(line).encode("latin-1") for line in _lines(CORPUS / f"{name}.jsonl"))]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


# -- labels

IMAGES = (b"7.jpg", b"a.jpg", b"b/c d.png", b'q"q.jpg', "é,1.jpg".encode())
HEADER = Header("jpeg", 40, 30, 3, 8, orientation=6)


def _labels(spec: str, choice: int, files: dict[str, bytes], columns: str | None = None) -> str:
    """Read these label files for some images, and make annotations of what they say."""
    with tempfile.TemporaryDirectory() as root:
        for name, data in files.items():
            Path(root, name).write_bytes(data)
        tree = Tree(root.encode(), IMAGES, sorted(name.encode() for name in files), (b"b",))
        resolver = Resolver(ClassIds(("dog", "7") if choice & 1 else None), ("fail", "clip", "drop")[choice % 3])
        good = 0
        try:
            source = open_source(spec.format(root=root), tree, SourceOptions(columns=columns))
        except UsageError:
            return "refused"
        for image in IMAGES:
            with suppress(BadInput):  # no label, or a bad one
                resolver.annotation([source.annotate(image)], HEADER)
                good += 1
        assert all(isinstance(left, BadInput) for left in source.unmatched_labels())
        return "read" if good else "refused"


def read_yolo(data: bytes) -> str:
    """Rows of objects, with and without keypoints."""
    choice, rows = data[0] if data else 0, data[1:]
    shape = ("", "", "kpt_shape: [2, 3]\n", "kpt_shape: [3, 2]\n")[choice & 3]
    names = "" if choice & 4 else "names: [a, b, c]\n"
    return _labels("yolo", choice >> 4, {"a.txt": rows, "data.yaml": f"{shape}{names}train: .\n".encode()})


def read_yaml(data: bytes) -> str:
    """data.yaml."""
    return _labels("yolo", 0, {"a.txt": b"0 .5 .5 .2 .2\n", "data.yaml": data})


def read_list(data: bytes) -> str:
    """A list, behind the --columns that are written before it and end with a zero byte."""
    choice, (columns, _, text) = data[0] if data else 0, data[1:].partition(b"\0")
    given = columns.decode("utf-8", "surrogateescape") if choice & 1 else None
    return _labels("list:{root}/list.txt", choice >> 4, {"list.txt": text}, given)


def read_voc(data: bytes) -> str:
    """A VOC XML file."""
    return _labels("voc", data[0] if data else 0, {"a.xml": data[1:]})


YOLO = [
    b"\x00" + b"0 0.5 0.5 0.25 0.3\n2 .1 1e-2 +0.3 -0\n",
    b"\x80" + b"1\t0.5 0.5 1 1\r\n\r\n0 0.1 0.1 0.2 0.1 0.2 0.2\r\n",
    b"\x92" + b"0 .5 .5 .2 .2 .1 .2 2 .3 .4 0\n",
    b"\xa3" + b"\xef\xbb\xbf0 .5 .5 .2 .2 .1 .2 .3 .4 .5 .6\n",
    b"\x84" + b"65535 0.1 0.2 0.3 0.4\r99999 nan 1e400 1_0 0x1",
]
YAML = [
    b"path: ../set\ntrain: images/train\nval: [a, b.txt]\nnc: 2\nnames: [cat, 'no']\n",
    b'names:\n  0: cat\n  2: &a dog\n  3: "d\\x41"\nkpt_shape: [17, 3]\ntest: *a\n',
    b"nc: 3\nflip_idx: [0, 2, 1]\ntrain: |\n  a\n  b\n? key\n: >-\n  folded\n!!str t: !x y\n",
    "names: [猫, é]\n".encode("utf-16"),
]
LIST = [
    b"\x00\0a.jpg cat\nb/c d.png dog\n",
    b"\x00\0path,label\r\na.jpg,0\r\n7.jpg,07\r\n",
    b"\x81path (x y)*2\x003\na.jpg 1 2 3 4\n7.jpg 1 -2 3.5 4e0\n/etc/passwd 1 2 3 4\n",
    b"\xf1path (xmin ymin xmax ymax class)*\0a.jpg 10,20,30,40,cat 5,6,7,8,dog\n7.jpg\n",
    b'\x81path cx cy w h _ label\0"b/c d.png"\t1\t2\t3\t4\tx\t"la""bel"\n../x.jpg\t1\t2\t3\t4\t5\t6\n',
]
VOC = [
    b"\x01" + voc_xml("a.jpg", [("dog", 1, 2, 30, 20)], (30, 40)).encode(),
    b"\x01" + voc_xml("a.jpg", [("dog", 1, 2, 30, 20), ("7", 2.5, 2, 2.5, 9)]).encode(),
    b"\x08" + voc_xml("a.jpg", [], size=None).encode("utf-16"),
    b'\x02<?xml version="1.0" encoding="gb2312"?>\n' + voc_xml("b.jpg", [("猫", 1, 1, 9, 9)]).encode("gb18030"),
    b'\x00<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d SYSTEM "file:///etc/passwd">]><annotation>&b;</annotation>',
    b"\x00<annotation><![CDATA[x]]><?p i?><size><width>40</width></size><a:b xmlns:a='u' c='d'/></annotation>",
]

# -- archives

TAR_MAGIC = b"ustar"
MOST_MEMBER_BYTES = 1 << 20


def _tar(format: int, **pax: str) -> bytes:
    """A tar with a file, a folder, a link and a long name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        files = (("a/1.jpg", b"0", ""), ("b", b"5", ""), ("l.jpg", b"2", "a/1.jpg"), ("n" * 120, b"0", ""))
        for name, kind, target in files:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size, info.pax_headers = kind, target, 9 * (kind == b"0"), pax
            tar.addfile(info, io.BytesIO(b"\xff\xd8\xffimage."))
    return file.getvalue().rstrip(b"\0") + bytes(2048 - len(file.getvalue().rstrip(b"\0")) % 512)


def _zip(method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name in ("a/1.jpg", "é.jpg", "b/", "n.tar"):
            made.writestr(zipfile.ZipInfo(name), b"" if name == "b/" else b"\xff\xd8\xffimage" * 9)
    return file.getvalue()


ARCHIVES = [
    *(b"\0" + _tar(format) for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)),
    b"\0" + _tar(tarfile.PAX_FORMAT, path="p" * 130, comment="x"),
    b"\1" + _zip(zipfile.ZIP_STORED),
    b"\1" + _zip(zipfile.ZIP_DEFLATED),
]


def read_archive(data: bytes) -> str:
    """A zip, or a tar whose checksums are made anew; then all of its members."""
    choice, data = data[0] if data else 0, bytearray(data[1:])
    for at in range(0, len(data) - 511, 512) if not choice & 1 else ():
        if data[at + 257 : at + 262] == TAR_MAGIC:
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.zip" if choice & 1 else "x.tar")
        path.write_bytes(data)
        try:
            tree, skipped = find_tree(str(path))
        except UsageError:
            return "refused"
        for member in (*tree.images, *tree.files):
            assert b".." not in member.split(b"/") and not member.startswith(b"/"), member
            with suppress(BadInput):
                assert len(read_file(tree, member, MOST_MEMBER_BYTES)) <= len(data) * 1100
        assert [name.name for name in Path(folder).iterdir()] == [path.name]
    return "read" if tree.images and not skipped else "refused"


# -- images

SEEDS = {name: data for name, data in FILES.items() if len(data) <= 4096}
SEEDS |= {f"{kind} exif": oriented(RGB, kind, 6) for kind in ("JPEG", "PNG", "WEBP", "TIFF")}
SEEDS["JPEG progressive exif"] = oriented(RGB, "JPEG", 5, progressive=True)
"""A small file of each variant of each format, with and without Exif."""
RESIZES = (None, Resize(16, 12, "pad"), Resize(8, 8, "stretch"), Resize(64, 64, "crop"))
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
        record = recipe.record("0", Row(b"a", len(data), height, width, header.code), data, Annotation())
    except BadImage:  # at a reduced size other parts of a damaged file are read
        assert resize is not None
        return "refused"
    assert record.shape == ((height, width, channels) if resize is None else (resize.height, resize.width, channels))
    return "read"


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
        with suppress(ValueError, RecursionError):  # json.loads of anything, json.dumps of 10**400
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
        places = list(_places(content))
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


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


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


def targets() -> dict[str, Target]:
    """All parsers."""
    images = list(SEEDS.values())
    edits = [bytes([2, place, value]) for place in range(0, 48, 5) for value in (0, 4, 20)]
    patches = [bytes([place % 8 & 6]) + EDIT.pack(16 * place, place % 16, place % 256) for place in range(0, 400, 9)]
    return {
        "yolo": Target(read_yolo, YOLO),
        "yaml": Target(read_yaml, YAML),
        "list": Target(read_list, LIST),
        "voc": Target(read_voc, VOC),
        "archive": Target(read_archive, ARCHIVES),
        "header": Target(read_image_header, [bytes([choice]) + data[:800] for data in images for choice in (1, 0x6A)]),
        "decode": Target(read_image, [bytes([i % 256, i * 7 % 256]) + data for i, data in enumerate(images)]),
        "manifest": Target(read_manifest, [b"\0" + MANIFEST, b"\1" + MANIFEST, *edits]),
        "index": Target(read_any_index, [b"\1" + index for index in INDEXES] + patches),
    }


TARGETS = targets()
