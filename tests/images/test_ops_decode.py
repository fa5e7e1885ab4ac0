"""Decoding: pixels against Pillow, orientation applied once, and truncated images refused at any length."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from contextlib import suppress
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_images import (
    DEEP,
    FILES,
    HEIGHT,
    JPEGS,
    OTHERS,
    RGB,
    RGBA,
    STRICT,
    WIDTH,
    as_stored,
    difference,
    needs,
    oriented,
    pillow_pixels,
    saved,
    tiff,
    turned,
)
from PIL import Image

from packer.errors import BadImage, UsageError
from packer.images import decoders
from packer.images.decode import DECODERS, Decoder, check_available, decode, orient
from packer.images.header import Mode, decoded_shape, read_header
from packer.images.opencv import quiet_opencv

MODES: tuple[Mode, ...] = ("rgb", "gray", "unchanged")
# Lossless formats agree exactly in rgb and unchanged; gray rounds the same formula at another place.
TOLERANCE = {"rgb": 0, "unchanged": 0, "gray": 1}
CMYK_TOLERANCE = 2  # OpenCV rounds ink times black otherwise


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OTHERS)
def test_pixels_are_those_of_pillow(name: str, mode: Mode) -> None:
    data = FILES[name]
    image = decode(data, mode)
    height, width, channels, dtype = decoded_shape(read_header(data), mode)
    assert (image.shape, image.dtype) == ((height, width, channels), dtype)
    assert image.flags.c_contiguous
    expected = pillow_pixels(data, channels, deep=dtype == "uint16")
    assert difference(image, expected) <= (CMYK_TOLERANCE if "cmyk" in name else TOLERANCE[mode])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", JPEGS)
def test_jpeg_pixels_are_those_of_pillow(name: str, decoder: Decoder, mode: Mode) -> None:
    needs(decoder)
    image = decode(FILES[name], mode, decoder)
    assert image.shape == decoded_shape(read_header(FILES[name]), mode)[:3]
    tolerance = CMYK_TOLERANCE if "cmyk" in name else 1
    assert difference(image, pillow_pixels(FILES[name], image.shape[2])) <= tolerance


def test_16_bits_are_kept_unchanged_and_lose_their_low_byte_in_rgb() -> None:
    for name in ("PNG 16 bits", "TIFF 16 bits"):
        assert difference(decode(FILES[name], "unchanged"), DEEP[..., None]) == 0
        assert difference(decode(FILES[name], "gray"), (DEEP >> 8)[..., None]) == 0
    colour = (RGBA.astype(np.uint16) * 257) ^ 0x5A
    for kind in (".png", ".tiff"):
        data = cv2.imencode(kind, np.ascontiguousarray(colour[..., [2, 1, 0, 3]]))[1].tobytes()
        assert difference(decode(data, "unchanged"), colour) == 0
        assert difference(decode(data), colour[..., :3] >> 8) == 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once_in_every_format_and_mode(kind: str, mode: Mode, orientation: int) -> None:
    options = {"quality": 95} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    stored = oriented(as_stored(RGB, orientation), kind, orientation, **options)
    expected = RGB if mode != "gray" else decode(FILES["PNG rgb"], "gray")
    for decoder in ("auto", "opencv"):
        image = decode(stored, mode, decoder)
        assert image.flags.c_contiguous
        assert difference(image, expected) <= (30 if kind == "JPEG" else 0)
        assert np.abs(image.astype(int) - expected).mean() < 4


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "jpeg"])
@pytest.mark.parametrize("orientation", [2, 3, 6, 7])
def test_compressed_tiffs_are_turned_alike(compression: str, orientation: int) -> None:
    data = oriented(as_stored(RGBA[..., 0], orientation), "TIFF", orientation, compression=compression)
    assert difference(decode(data, "unchanged"), RGBA[..., :1]) <= (12 if compression == "jpeg" else 0)
    deep = oriented(as_stored(DEEP, orientation), "TIFF", orientation)
    assert difference(decode(deep, "unchanged"), DEEP[..., None]) == 0


@pytest.mark.parametrize("kind", [3, 4])
def test_orientation_and_alpha_of_a_tiff_in_any_integer_type(kind: int) -> None:
    data = tiff(8, 2, 4, [as_stored_bytes(RGBA)], ((274, kind, [3]), (338, kind, [2])))
    assert np.array_equal(decode(data, "unchanged"), RGBA)
    assert np.array_equal(decode(data), RGBA[..., :3])


def as_stored_bytes(upright: np.ndarray) -> bytes:
    return as_stored(upright, 3).tobytes()


def test_tiffs_that_opencv_reads_wrong_are_refused() -> None:
    deep = [np.ascontiguousarray(RGB[..., i]).astype(">u2").tobytes() for i in range(3)]
    for data, words in (
        (tiff(16, 2, 3, deep, ((284, 3, [2]),)), "separate color planes"),
        (tiff(16, 0, 1, deep[:1]), "photometric interpretation 0 with 1 samples of 16 bits"),
        (tiff(12, 1, 1, [bytes(1152)]), "photometric interpretation 1 with 1 samples of 12 bits"),
    ):
        with pytest.raises(BadImage, match=words):
            decode(data)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orient_is_what_numpy_says(orientation: int, dtype: type, channels: int) -> None:
    image = np.arange(3 * 5 * channels, dtype=dtype).reshape(3, 5, channels)
    upright = orient(image, orientation)
    assert upright.flags.c_contiguous
    assert np.array_equal(upright, turned(image, orientation))


@pytest.mark.parametrize("name", OTHERS)
def test_every_prefix_is_refused(name: str) -> None:
    data = FILES[name]
    for length in range(len(data)):
        with pytest.raises(BadImage):
            decode(data[:length], "unchanged")


@pytest.mark.parametrize("decoder", STRICT)
@pytest.mark.parametrize("name", JPEGS)
def test_every_prefix_of_a_jpeg_is_refused_by_every_decoder(name: str, decoder: Decoder) -> None:
    needs(decoder)
    data = FILES[name]
    for length in range(len(data)):
        with pytest.raises(BadImage):
            decode(data[:length], "rgb", decoder)
        if length % 16 == 0:
            with pytest.raises(BadImage):
                decode(data[:length], "gray", decoder)
    decode(data, "rgb", decoder)


def test_jpeg4py_reads_good_images_after_a_damaged_one() -> None:
    needs("jpeg4py")
    good = decode(FILES["JPEG rgb"], decoder="jpeg4py")
    with pytest.raises(BadImage, match="truncated JPEG"):
        decode(FILES["JPEG rgb"][:400], decoder="jpeg4py")
    assert np.array_equal(decode(FILES["JPEG rgb"], decoder="jpeg4py"), good)


@pytest.mark.parametrize("name", sorted(FILES))
def test_bytes_after_the_end_are_ignored(name: str) -> None:
    assert np.array_equal(decode(FILES[name] + b"\0\xffgarbage", "unchanged"), decode(FILES[name], "unchanged"))


@pytest.mark.parametrize("decoder", STRICT)
def test_damaged_jpeg_data_are_refused_by_every_decoder(decoder: Decoder, capfd: pytest.CaptureFixture[str]) -> None:
    needs(decoder)
    data = bytearray(FILES["JPEG 444"])
    at = len(data) - 60
    data[at : at + 2] = b"\xff\xd9"  # the end, in the middle of the pixels
    with pytest.raises(BadImage, match=r"truncated|damaged"):
        decode(bytes(data), decoder=decoder)
    assert capfd.readouterr() == ("", "")


@quiet_opencv()  # as whoever calls the decoder does
def test_broken_files_leave_the_terminal_alone(capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("PNG rgb", "TIFF tiff_lzw", "WEBP rgb", "GIF rgb", "JPEG rgb"):
        data = FILES[name]
        for decoder in ("auto", "opencv"):
            with pytest.raises(BadImage):
                decode(data[: len(data) // 2], decoder=decoder)
            with suppress(BadImage):  # formats without checksums may not notice
                decode(data[:-20] + bytes(20), decoder=decoder)
    odd_profile = saved(RGB, "PNG", icc_profile=b"\0" * 200)
    assert difference(decode(odd_profile), RGB) == 0
    assert capfd.readouterr() == ("", "")


def test_too_many_scans_are_refused() -> None:
    data = FILES["JPEG progressive"]
    scan = data.rindex(b"\xff\xda")
    with pytest.raises(BadImage, match="100 scans"):
        decode(data[:scan] + data[scan:-2] * 120 + b"\xff\xd9")


def photo_like(height: int, width: int) -> np.ndarray:
    noise = np.random.default_rng(7).normal(size=(height // 10 + 2, width // 10 + 2, 3)) * 50 + 128
    smooth = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("at_least", "shape"),
    [
        (None, (375, 500)),
        ((251, 100), (375, 500)),
        ((250, 187), (188, 250)),
        ((100, 80), (94, 125)),
        ((60, 46), (47, 63)),
        ((1, 1), (47, 63)),
    ],
)
def test_scaled_decode_is_at_a_half_quarter_or_eighth(
    decoder: Decoder, at_least: tuple[int, int] | None, shape: tuple[int, int]
) -> None:
    needs(decoder)
    data = saved(photo_like(375, 500), "JPEG", quality=92)
    for mode, channels in (("rgb", 3), ("gray", 1)):
        image = decode(data, mode, decoder, at_least)
        assert image.shape == (*shape, channels)


@pytest.mark.parametrize("orientation", [1, 6])
def test_at_least_is_in_the_upright_frame(orientation: int) -> None:
    data = oriented(as_stored(photo_like(240, 480), orientation), "JPEG", orientation)
    assert decode(data, at_least=(240, 120)).shape == (120, 240, 3)
    assert decode(data, at_least=(120, 121)).shape == (240, 480, 3)


@pytest.mark.parametrize("size", [(1, 1), (1, 100), (100, 1), (7, 7), (15, 200), (16, 16), (17, 33)])
@pytest.mark.parametrize("decoder", DECODERS)
def test_small_and_thin_images(size: tuple[int, int], decoder: Decoder) -> None:
    needs(decoder)
    pixels = photo_like(size[1], size[0])
    data = saved(pixels, "JPEG", quality=95)
    full = decode(data, decoder=decoder)
    assert difference(full, pillow_pixels(data, 3)) <= 1
    small = decode(data, decoder=decoder, at_least=(1, 1))
    assert small.shape[0] in {-(-size[1] // factor) for factor in (1, 8)}
    for kind in ("PNG", "GIF", "BMP", "TIFF", "WEBP"):
        assert decode(saved(pixels, kind)).shape == pixels.shape


def test_transparent_gif_keeps_what_is_seen() -> None:
    image = Image.fromarray(RGB).quantize(16)
    data = saved(image, "GIF", transparency=3)
    decoded, expected = decode(data, "unchanged"), pillow_pixels(data, 4)
    assert np.array_equal(decoded[..., 3], expected[..., 3])
    seen = expected[..., 3] > 0
    assert np.array_equal(decoded[seen], expected[seen])


def test_unknown_and_unavailable_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="got 'pil'"):
        check_available("pil")
    for decoder in ("auto", "simplejpeg", "opencv"):
        check_available(decoder)
    monkeypatch.setattr(pytest.importorskip("jpeg4py._cffi"), "lib", None)
    monkeypatch.setattr(decoders, "TURBOJPEG", ("libturbojpeg.absent",))
    for use in (lambda: check_available("jpeg4py"), lambda: decode(FILES["JPEG rgb"], decoder="jpeg4py")):
        with pytest.raises(UsageError, match="apt-get install libturbojpeg0") as raised:
            use()
        assert "\n" not in str(raised.value)
    monkeypatch.setitem(sys.modules, "jpeg4py", None)
    with pytest.raises(UsageError, match="jpeg4py is not installed; pip install jpeg4py"):
        check_available("jpeg4py")
    assert decode(FILES["PNG rgb"], decoder="jpeg4py").shape == (HEIGHT, WIDTH, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="names a library of Linux")
@pytest.mark.parametrize(
    "names", [("libturbojpeg.absent",), ("libturbojpeg.absent", "libm.so.6")], ids=["absent", "found"]
)
def test_no_program_is_asked_where_libturbojpeg_is(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux ctypes.util.find_library, which jpeg4py falls back to, starts ldconfig and compilers."""
    cffi, asked = pytest.importorskip("jpeg4py._cffi"), []
    monkeypatch.setattr("ctypes.util.find_library", asked.append)
    monkeypatch.setattr(decoders, "TURBOJPEG", names)
    for name in ("lib", "ffi"):
        monkeypatch.setattr(cffi, name, None)
    with suppress(OSError):
        decoders.import_jpeg4py()
    assert (cffi.lib is not None) == (len(names) > 1) and not asked


def test_no_memory_is_an_error_of_that_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("simplejpeg.decode_jpeg", full)
    with pytest.raises(BadImage, match="no memory to decode 32x24"):
        decode(FILES["JPEG rgb"])


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(FILES)),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=3),
    mode=st.sampled_from(MODES),
)
def test_flipped_bits_give_an_image_of_the_header_s_shape_or_an_error(
    name: str, flips: list[tuple[float, int]], mode: Mode
) -> None:
    data = bytearray(FILES[name])
    for place, bit in flips:
        data[int(place * len(data))] ^= 1 << bit
    with suppress(BadImage):
        image = decode(bytes(data), mode, max_pixels=1 << 20)
        assert image.shape == decoded_shape(read_header(bytes(data)), mode)[:3]


def test_opencv_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """No words of its own while packer works, and its threads are not touched; what others set stays."""
    logging: Any = cv2 if hasattr(cv2, "getLogLevel") else cv2.utils.logging
    first, own = cv2.getNumThreads(), logging.getLogLevel()
    changes: list[int] = []
    monkeypatch.setattr(cv2, "setNumThreads", changes.append)
    with quiet_opencv():
        with suppress(ValueError), quiet_opencv():
            raise ValueError
        assert (cv2.getNumThreads(), logging.getLogLevel(), changes) == (first, 0, [])
    assert (cv2.getNumThreads(), logging.getLogLevel(), changes) == (first, own, [])
    with quiet_opencv(in_worker=True):
        assert changes == [0]
    assert changes == [0]


def test_opencv_refuses_truncated_images() -> None:
    """What rules OpenCV 4.10 out: it showed the rows of the image before in place of the missing ones."""
    data = FILES["JPEG 444"]
    cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert cv2.imdecode(np.frombuffer(data[:-100], np.uint8), cv2.IMREAD_COLOR) is None


def test_exif_of_a_jpeg_in_a_png_is_no_orientation_twice() -> None:
    """A PNG may carry its orientation after the pixels (ExifTool writes it there)."""
    chunk = b"eXIf" + b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 274, 3, 1, 6, 0, 0)
    whole = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    data = FILES["PNG rgb"]
    late = data[:-12] + whole + data[-12:]
    assert Image.open(io.BytesIO(late)).size == (WIDTH, HEIGHT)
    assert np.array_equal(decode(late), turned(RGB, 6))
