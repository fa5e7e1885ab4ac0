"""What is fuzzed: functions that take any bytes, and let out nothing but what the parser behind them may raise.

The first byte of an input chooses how the rest is read, so that one target reaches all ways through a parser.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "ops")]

from drawn import voc_xml  # noqa: E402
from torture_fuzz_packs import (  # noqa: E402
    INDEX_SEEDS,
    MANIFEST_SEEDS,
    one_index,
    one_manifest,
)

import packer.sources.list as lists  # noqa: E402
from packer.errors import BadImage, BadLabel, UsageError  # noqa: E402
from packer.images import png_header as png  # noqa: E402
from packer.images import tiff_header as tiff  # noqa: E402
from packer.images.header import Header, IncompleteHeader, check_header, decoded_shape, losses, read_header  # noqa: E402
from packer.packing.resolve import ClassIds, Resolver  # noqa: E402
from packer.sources.base import SourceOptions, Tree  # noqa: E402
from packer.sources.voc_xml import claimed_names, parse_xml, read_annotation  # noqa: E402
from packer.sources.yolo import BadRow, highest_class, parse_rows  # noqa: E402
from packer.sources.yolo_config import _config, parse_yaml  # noqa: E402
from packer.types import RawAnnotation  # noqa: E402


@dataclass(frozen=True)
class Target:
    """One parser."""

    one: Callable[[bytes], None]
    """Reads one input; raises what is a fault."""
    seeds: Callable[[], list[bytes]]
    executions: int
    """How many are asked for."""
    files: tuple[str, ...]
    """The product's files behind it: counts hold for one state of them."""
    also: tuple[str, ...] = ()
    """Packages, beside packer, whose code guides the mutations."""
    most_bytes: int = 4096
    """Of an input; where every line costs, shorter ones say as much."""


HEADER = Header("jpeg", 40, 30, 3, 8, orientation=6)
POLICIES = ("fail", "clip", "drop")


def _resolve(raw: RawAnnotation, choice: int) -> None:
    with contextlib.suppress(BadLabel):
        Resolver(ClassIds(("dog", "7") if choice & 8 else None), POLICIES[choice % 3]).annotation([raw], HEADER)


def one_yolo(data: bytes) -> None:
    """Label rows, with and without key points, then made into an annotation."""
    choice, rows = data[0] if data else 0, data[1:]
    assert -1 <= highest_class(rows) < 65536
    kpt_shape = (None, None, (2, 3), (3, 2))[choice & 3]
    try:
        found = parse_rows(rows, 65536 if choice & 4 else 3, kpt_shape)
    except BadRow as error:
        assert error.line >= 1
        return
    assert len(found.classes) == len(found.boxes) == len(found.polygons)
    if choice & 128:
        _resolve(
            RawAnnotation(
                origin="a.txt",
                boxes=tuple(found.boxes),
                box_labels=tuple(map(str, found.classes)),
                polygons=tuple(found.polygons) if any(found.polygons) else None,
                keypoints=tuple(found.keypoints) if kpt_shape else None,
                relative=True,
            ),
            choice >> 4,
        )


YOLO_SEEDS = [
    b"\x00" + b"0 0.5 0.5 0.25 0.3\n2 .1 1e-2 +0.3 -0\n",
    b"\x80" + b"1\t0.5 0.5 1 1\r\n\r\n0 0.1 0.1 0.2 0.1 0.2 0.2\r\n",
    b"\x92" + b"0 .5 .5 .2 .2 .1 .2 2 .3 .4 0\n",
    b"\xa3" + b"\xef\xbb\xbf0 .5 .5 .2 .2 .1 .2 .3 .4 .5 .6\n",
    b"\x84" + b"65535 0.1 0.2 0.3 0.4\r99999 nan 1e400 1_0 0x1",
]


def one_yaml(data: bytes) -> None:
    """data.yaml."""
    with contextlib.suppress(UsageError):
        _config(parse_yaml(data, b"data.yaml"), b"data.yaml")


YAML_SEEDS = [
    b"path: ../set\ntrain: images/train\nval: [a, b.txt]\nnc: 2\nnames: [cat, 'no']\n",
    b"names:\n  0: cat\n  2: &a dog\n  3: \"d\\x41\"\nkpt_shape: [17, 3]\ntest: *a\n",
    b"# x\n---\nnames: {0: a, 1: b}\nnc: 2\n...\n",
    b"nc: 3\nflip_idx: [0, 2, 1]\ntrain: |\n  a\n  b\n? key\n: >-\n  folded\n!!str t: !x y\n",
    "names: [猫, é]\n".encode("utf-16"),
]

IMAGES = (b"a.jpg", b"b/c d.png", b"7.jpg", "é,1.jpg".encode(), b'q"q.jpg')
TREE = Tree(b"/no-such-root/of-a-set", IMAGES, (b"list.txt",), (b"b",))


def one_list(data: bytes) -> None:
    """A list, behind the --columns that are written before it and end with a zero byte."""
    columns, _, text = data[1:].partition(b"\0")
    choice = data[0] if data else 0
    real = lists._read
    try:
        lists._read = lambda file: (lists.as_lines(text, file), TREE.root)
        given = columns.decode("utf-8", "surrogateescape") if choice & 1 else None
        source = lists.ListSource(TREE, SourceOptions(columns=given, file="list.txt"))
    except UsageError:
        return
    finally:
        lists._read = real
    for image in IMAGES:
        try:
            raw = source.annotate(image)
        except BadLabel:
            continue
        if choice & 128:
            _resolve(raw, choice >> 4)
    for leftover in source.unmatched_labels():
        assert isinstance(leftover, BadLabel), leftover


LIST_SEEDS = [
    b"\x00\0a.jpg cat\nb/c d.png dog\n",
    b"\x00\0path,label\r\na.jpg,0\r\n7.jpg,07\r\n",
    b"\x81path (x y)*2\x003\na.jpg 1 2 3 4\n7.jpg 1 -2 3.5 4e0\n/etc/passwd 1 2 3 4\n",
    b"\xf1path (xmin ymin xmax ymax class)*\0a.jpg 10,20,30,40,cat 5,6,7,8,dog\n7.jpg\n",
    b"\x81path cx cy w h _ label\0\"b/c d.png\"\t1\t2\t3\t4\tx\t\"la\"\"bel\"\n../x.jpg\t1\t2\t3\t4\t5\t6\n",
    b"\x81path x*2 y*2\0\xff\xfea\0.\0j\0p\0g\0 \0001\0 \0002\0 \0003\0 \0004\0\n\0",
    b"\x00\0#path xmin ymin xmax ymax class extra\n.\\a.jpg 1 2 3 4 c d\n",
    b"\x91path xmin ymin w h\0a.jpg;1 2 3 4\n",
]


def one_voc(data: bytes) -> None:
    """A VOC XML file, then made into an annotation."""
    choice, text = data[0] if data else 0, data[1:]
    try:
        root = parse_xml(text, b"a.xml")
        claimed_names(root)
        raw = read_annotation(root, b"a.xml")
    except BadLabel:
        return
    _resolve(raw, choice)


VOC_SEEDS = [
    b"\x01" + voc_xml("a.jpg", [("dog", 1, 2, 30, 20), ("7", 2.5, 2, 2.5, 9)]).encode(),
    b"\x08" + voc_xml("a.jpg", [], size=None).encode("utf-16"),
    b'\x02<?xml version="1.0" encoding="gb2312"?>\n'
    + voc_xml("b.jpg", [("猫", 1, 1, 9, 9)], (30, 40)).encode("gb18030"),
    b'\x02<?xml version="1.0" encoding="latin-1"?><!-- c --><annotation><path>C:\\x\\a.jpg</path><object>'
    b"<name>d\xe9</name><pose>Left</pose><truncated>1</truncated><difficult/><bndbox><ymax>9</ymax><xmin>-1</xmin>"
    b"<ymin>1e0</ymin><xmax>&#50;0</xmax></bndbox><part><name>x</name></part></object></annotation>",
    b'\x00<!DOCTYPE a [<!ENTITY b "cc"><!ENTITY d SYSTEM "file:///etc/passwd">]><annotation>&b;</annotation>',
    b"\x00<annotation><![CDATA[x]]><?p i?><size><width>40</width></size><a:b xmlns:a='u' c='d'/></annotation>",
]


def one_header(data: bytes) -> None:
    """An image's header, of the whole file and of its first bytes, and what is made of it."""
    choice, data = data[0] if data else 0, data[1:]
    if choice & 1 and data[:8] == png.SIGNATURE:  # else no altered header comes past its checksum
        data = data[:29] + (png.zlib.crc32(data[12:29])).to_bytes(4, "big") + data[33:]
    if choice & 2:
        head = data[: len(data) * (choice >> 3) // 31]
        with contextlib.suppress(BadImage, IncompleteHeader):
            _facts(read_header(head, complete=False))
    try:
        header = read_header(data)
        _facts(header)
        if header.format == "png":
            png.pixel_chunks(data)
        elif header.format == "tiff":
            assert len(tiff.plain(data)) == len(data)
    except BadImage:
        pass


def _facts(header: Header) -> None:
    assert header.width >= 1 and header.height >= 1 and 1 <= header.orientation <= 8 and header.frames >= 1
    check_header(header)
    for mode in ("rgb", "gray", "unchanged"):
        assert min(decoded_shape(header, mode)[:3]) >= 1
        losses(header, mode)


def header_seeds() -> list[bytes]:
    """The smaller of the files that the tests of packer.images draw, without most of their pixels."""
    from ops_images import FILES, RGB, oriented
    from PIL import Image

    files = list(FILES.values()) + [oriented(RGB, kind, 6) for kind in ("JPEG", "PNG", "WEBP", "TIFF")]
    frames = [Image.new("RGB", (3, 2), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        out = io.BytesIO()
        frames[0].save(out, kind, save_all=True, append_images=frames[1:])
        files.append(out.getvalue())
    small = [data for data in files if len(data) <= 800] + [data[:200] for data in files if len(data) > 800]
    return [bytes([choice]) + data for data in small for choice in (1, 0x6A)]


WORDS = {
    "header": (
        *(b"\xff\xd8\xff", b"\xff\xda", b"\xff\xe1", b"Exif\0\0", b"II*\0", b"MM\0*", b"II+\0", b"BM"),
        *b"IHDR IDAT PLTE tRNS eXIf acTL IEND VP8X VP8L EXIF GIF89a RIFF WEBP".split(),
        b"\x12\x01\x03\0\1\0\0\0\6\0",
    ),
    "yolo": (b"1e-9", b"1e9", b"\r\n", b"nan", b"0.5 ", b"65535"),
    "list": tuple(b'path label class xmin ymin xmax ymax cx cy a.jpg 7.jpg filename )* )*2 ../ ""'.split()),
    "voc": (
        *b"<object> </object> <bndbox> </bndbox> <size> <width> <name> </name> <difficult>".split(),
        *b"<!DOCTYPE &# &amp; xmlns:".split(),
        *b"utf-16 gbk idna punycode cp932 iso2022_jp".split(),
        b"<?xml version='1.0' encoding='",
    ),
    "yaml": tuple(b"names: nc: kpt_shape: train: path: &a *a !! ? | > <<: %YAML [ ] { } --- -".split()),
}
def decode_one(data: bytes) -> None:
    """A whole image through header, decoder and recipe."""
    from torture_images import fuzz_one

    fuzz_one(data)


def decode_seeds() -> list[bytes]:
    """The smaller seeds of the mutated images."""
    from torture_mutations import SEEDS

    return [bytes([i % 256, i * 7 % 256]) + data for i, data in enumerate(SEEDS.values()) if len(data) <= 1700]


SOURCES = ("sources/tree.py", "sources/paths.py", "packing/resolve.py")
FORMATS = tuple(f"images/{name}.py" for name in ("base", "header", "jpeg_header", "png_header", "tiff_header"))
LISTS = tuple(f"sources/{name}.py" for name in ("list", "list_lines", "columns"))
INDEX = tuple(f"{name}.py" for name in ("index", "index_layout", "index_schema", "index_rows", "columns", "ragged"))

DECODE = ("images/decode.py", "images/jpeg.py")
TARGETS = {
    "header": Target(one_header, header_seeds, 7_000_000, FORMATS),
    "yolo": Target(one_yolo, lambda: YOLO_SEEDS, 5_000_000, ("sources/yolo.py", *SOURCES)),
    "list": Target(one_list, lambda: LIST_SEEDS, 2_000_000, (*LISTS, *SOURCES), most_bytes=500),
    "voc": Target(one_voc, lambda: VOC_SEEDS, 2_000_000, ("sources/voc_xml.py", *SOURCES)),
    "yaml": Target(one_yaml, lambda: YAML_SEEDS, 1_000_000, ("sources/yolo_config.py", *SOURCES[:2]), ("yaml",)),
    "manifest": Target(one_manifest, lambda: MANIFEST_SEEDS, 2_000_000, ("manifest.py",)),
    # the fuzzer's process is the disposable one; what it reaches is the code around the decoders
    "decode": Target(decode_one, decode_seeds, 1_000_000, DECODE),
    "index": Target(one_index, lambda: INDEX_SEEDS, 1_000_000, INDEX),
}
