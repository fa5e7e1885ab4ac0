"""Headers: what they say, that hostile bytes get an error in no time, and what is refused before decoding."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_images import FILES, GRAY, HEIGHT, RGB, RGBA, WIDTH, bmp, oriented, saved, tiff
from PIL import Image

from packer.errors import BadImage, NotAnImage, PackerError
from packer.images.header import Header, IncompleteHeader, check_header, losses, read_header
from packer.images.image_headers import orientation_of


@pytest.mark.parametrize("name", sorted(FILES))
def test_header_says_format_size_and_one_frame(name: str) -> None:
    header = read_header(FILES[name])
    assert header.format == name.split(maxsplit=1)[0].lower()
    assert (header.width, header.height, header.frames, header.orientation) == (WIDTH, HEIGHT, 1, 1)
    assert header.upright_size == (WIDTH, HEIGHT)
    check_header(header)


@pytest.mark.parametrize("name", sorted(FILES))
def test_first_bytes_give_the_same_header_or_ask_for_more(name: str) -> None:
    data = FILES[name]
    for length in range(len(data)):
        try:
            header = read_header(data[:length], complete=False)
        except IncompleteHeader:
            continue
        assert header == read_header(data), length


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_read(kind: str, orientation: int) -> None:
    header = read_header(oriented(RGB, kind, orientation))
    assert header.orientation == orientation
    assert header.upright_size == ((HEIGHT, WIDTH) if orientation >= 5 else (WIDTH, HEIGHT))


@pytest.mark.parametrize("orientation", [0, 9, 65535])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_impossible_orientation_counts_as_upright(kind: str, orientation: int) -> None:
    assert read_header(oriented(RGB, kind, orientation)).orientation == 1


def exif_block(entries: bytes, count: int, start: int = 8, order: str = "<") -> bytes:
    return (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", start, count) + entries


@pytest.mark.parametrize(
    ("block", "orientation"),
    [
        (exif_block(struct.pack("<HHIHH", 274, 3, 1, 6, 0), 1), 6),
        (exif_block(struct.pack(">HHIHH", 274, 3, 1, 8, 0), 1, order=">"), 8),
        (exif_block(struct.pack("<HHIHH", 274, 3, 1, 6, 0), 65535), 6),  # more entries than there are
        (exif_block(struct.pack("<HHII", 274, 4, 1, 6), 1), 1),  # not a SHORT
        (exif_block(struct.pack("<HHIHH", 274, 3, 1, 6, 0), 1, start=4_000_000_000), 1),
        (exif_block(struct.pack("<HHIHH", 274, 3, 1, 6, 0), 1, start=0), 1),  # points back at itself
        (b"II*\0", 1),
        (b"", 1),
        (b"Exif\0\0MM*\0" + bytes(60), 1),  # wrong byte order
    ],
)
def test_malformed_exif_counts_as_upright(block: bytes, orientation: int) -> None:
    assert orientation_of(block) == orientation


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=300))
def test_any_bytes_as_exif_give_an_orientation(block: bytes) -> None:
    assert 1 <= orientation_of(b"II*\0" + block) <= 8
    assert 1 <= orientation_of(b"Exif\0\0MM\0*" + block) <= 8


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\0" * 100, "zeros"),
        (b"\xff", "begins with"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"  <html>404</html>", "HTML"),
        (b"PK\x03\x04" + bytes(30), "zip"),
        (b"<?xml version='1.0'?><svg/>", "XML"),
        (b"<svg xmlns='x'/>", "SVG"),
        (b"P7\nWIDTH 2\n" + bytes(12), "PAM"),
        (b"P6 of the house", "begins with"),
        (b"\0\0\0\x18ftypheic" + bytes(20), "HEIC"),
        (b"BMW is a car, not a bitmap", "begins with"),
        (b"\x89PNG\n\x1a\n" + bytes(30), "line ends"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
    ],
)
def test_other_bytes_are_named_for_what_they_look_like(data: bytes, words: str) -> None:
    with pytest.raises(NotAnImage, match=words):
        read_header(data)


def with_jpeg_size(data: bytes, width: int, height: int) -> bytes:
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def with_png_size(data: bytes, width: int, height: int) -> bytes:
    chunk = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]


def bombs() -> dict[str, bytes]:
    gif, webp, tiff = (bytearray(FILES[name]) for name in ("GIF rgb", "WEBP lossless", "TIFF rgb"))
    gif[6:10] = b"\xff\xff\xff\xff"
    webp[21:25] = struct.pack("<I", 0x0FFFFFFF)
    for tag in (256, 257):
        at = tiff.index(struct.pack("<HHI", tag, 4, 1)) + 8
        tiff[at : at + 4] = struct.pack("<I", 60_000)
    return {
        "jpeg": with_jpeg_size(FILES["JPEG rgb"], 30_000, 30_000),
        "png": with_png_size(FILES["PNG rgb"], 60_000, 60_000),
        "bmp": bmp(24, 0, b"", height=2_000_000_000),
        "gif": bytes(gif),
        "webp": bytes(webp),
        "tiff": bytes(tiff),
    }


@pytest.mark.parametrize("name", sorted(bombs()))
def test_bombs_are_refused_at_once_and_without_memory(name: str) -> None:
    from packer.images.decode import decode

    data = bombs()[name]
    tracemalloc.start()
    begin = time.thread_time()
    with pytest.raises(BadImage):
        decode(data)
    taken, (_, peak) = time.thread_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert taken < 0.5  # milliseconds in truth; decoding them takes seconds to minutes


def test_jpeg_that_cannot_hold_its_pixels_is_refused_whatever_the_limit() -> None:
    with pytest.raises(BadImage, match="30000x30000 pixels in"):
        read_header(with_jpeg_size(FILES["JPEG rgb"], 30_000, 30_000))


@pytest.mark.parametrize(("limit", "refused"), [(WIDTH * HEIGHT, False), (WIDTH * HEIGHT - 1, True)])
def test_pixel_limit_is_inclusive(limit: int, refused: bool) -> None:
    header = read_header(FILES["PNG rgb"])
    if refused:
        with pytest.raises(BadImage, match="max_pixels"):
            check_header(header, limit)
    else:
        check_header(header, limit)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animations_and_pages_are_refused(kind: str) -> None:
    out = io.BytesIO()
    pages = [Image.fromarray(np.full_like(RGB, value)) for value in (10, 200)]
    pages[0].save(out, kind, save_all=True, append_images=pages[1:])
    header = read_header(out.getvalue())
    assert header.frames == 2
    with pytest.raises(BadImage, match="not one image"):
        check_header(header)


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_images_of_no_pixels_are_refused(size: tuple[int, int]) -> None:
    for data in (with_jpeg_size(FILES["JPEG rgb"], *size), with_png_size(FILES["PNG rgb"], *size)):
        with pytest.raises(BadImage, match=f"{size[0]}x{size[1]} pixels"):
            read_header(data)


@pytest.mark.parametrize(("marker", "words"), [(0xC3, "lossless"), (0xC5, "hierarchical")])
def test_jpeg_codings_that_no_decoder_reads_are_refused(marker: int, words: str) -> None:
    data = FILES["JPEG rgb"].replace(b"\xff\xc0", bytes((0xFF, marker)), 1)
    with pytest.raises(BadImage, match=words):
        check_header(read_header(data))


def test_12_bit_jpeg_float_tiff_and_odd_bmp_are_refused() -> None:
    data = bytearray(FILES["JPEG rgb"])
    data[data.index(b"\xff\xc0") + 4] = 12
    masks = struct.pack("<III", 0xFF, 0xFF00, 0xFF0000)
    for odd, words in (
        (bytes(data), "12-bit JPEG"),
        (saved(GRAY.astype(np.float32), "TIFF"), "floating point"),
        (bmp(32, 3, RGBA.tobytes(), masks), "Unsupported BMP bitfields layout"),
        (bmp(24, 4, b"\0\1"), "Unsupported BMP compression"),
    ):
        with pytest.raises(BadImage, match=words):
            check_header(read_header(odd + bytes(1024)))


def test_hostile_runs_end_quickly() -> None:
    begin = time.thread_time()
    for data in (
        b"\xff\xd8" + b"\xff" * 20_000_000,
        b"\xff\xd8" + b"\xff\xe0\0\2" * 5_000_000,
        FILES["PNG rgb"][:33] + (b"\0\0\0\0tEXt" + bytes(4)) * 1_000_000,
    ):
        with pytest.raises(BadImage):
            read_header(data)
    assert time.thread_time() - begin < 5


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(FILES)),
    flips=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 4000),
    complete=st.booleans(),
)
def test_damaged_headers_raise_only_packer_errors(
    name: str, flips: list[tuple[int, int]], cut: int, complete: bool
) -> None:
    data = bytearray(FILES[name][:cut])
    for at, value in flips:
        if at < len(data):
            data[at] = value
    with suppress(PackerError, IncompleteHeader):
        assert isinstance(read_header(bytes(data), complete), Header)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["JPEG rgb", "JPEG 444", "JPEG gray", "JPEG progressive"]),
    flips=st.lists(st.tuples(st.integers(2, 700), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 1000),
)
def test_a_jpeg_like_the_last_ones_is_read_as_any_other(name: str, flips: list[tuple[int, int]], cut: int) -> None:
    """The layout of a header that came twice is recognized as a whole; nothing may come of that but speed."""

    def outcome(data: bytes) -> object:
        try:
            return read_header(data, False, 1000)
        except (BadImage, IncompleteHeader) as error:
            return repr(error)

    changed = bytearray(FILES[name][:cut] if cut < 700 else FILES[name])
    for at, value in flips:
        if at < len(changed):
            changed[at] = value
    for _ in range(3):
        assert read_header(FILES[name]).format == "jpeg"
    after_its_like = outcome(bytes(changed))
    other = next(other for other in ("JPEG gray", "JPEG rgb") if other != name)
    for _ in range(3):
        read_header(FILES[other])
    assert outcome(bytes(changed)) == after_its_like


def test_gif_of_tiny_blocks_is_refused_in_time() -> None:
    data = FILES["GIF rgb"]
    descriptor = data.index(b",")
    start = descriptor + 11
    begin = time.thread_time()
    with pytest.raises(BadImage, match="too many blocks"):
        read_header(data[:start] + b"\1\0" * 1 + b"!\xfe" + b"\1x" * 8_000_000 + b"\0;")
    assert time.thread_time() - begin < 30


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    start=st.sampled_from([b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"II*\0", b"MM\0+", b"BM", b"RIFF"]),
    rest=st.binary(max_size=200),
    complete=st.booleans(),
)
def test_random_bytes_raise_only_packer_errors(start: bytes, rest: bytes, complete: bool) -> None:
    with suppress(PackerError, IncompleteHeader):
        assert isinstance(read_header(start + rest, complete), Header)


def test_losses_are_said() -> None:
    assert losses(read_header(FILES["PNG rgb"]), "rgb") == ()
    assert losses(read_header(FILES["PNG 16 bits"]), "rgb") == ("16 to 8 bits",)
    assert losses(read_header(FILES["PNG 16 bits"]), "unchanged") == ()
    assert losses(read_header(FILES["PNG rgba"]), "gray") == ("alpha dropped", "color dropped")
    assert losses(read_header(FILES["PNG gray+alpha"]), "unchanged") == ()
    assert losses(read_header(FILES["TIFF gray+alpha"]), "unchanged") == ()
    premultiplied = tiff(8, 1, 2, [bytes(2 * WIDTH * HEIGHT)], ((338, 3, [1]),))
    assert losses(read_header(premultiplied), "unchanged") == ("alpha dropped",)
    assert losses(read_header(FILES["JPEG cmyk"]), "unchanged") == ("CMYK to RGB",)


def test_reading_headers_loads_no_image_library() -> None:
    code = "import sys, packer.images, packer.images.header; print({'cv2', 'simplejpeg', 'torch'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "set()"
