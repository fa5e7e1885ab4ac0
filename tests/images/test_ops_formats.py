"""What Pillow decodes for packer: pixels against Pillow itself and what was drawn, strictness, leniency, animations."""

from __future__ import annotations

import io
import struct
import warnings
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import pytest
from ops_images import (
    ALPHA,
    DEEP,
    FILES,
    GRAY,
    HEIGHT,
    RGB,
    RGBA,
    STRICT,
    WIDTH,
    animation,
    as_stored,
    bmp,
    difference,
    jpeg_of_sampling,
    needs,
    oriented,
    pillow_pixels,
    saved,
    tiff,
)
from PIL import Image, ImageCms, ImageFile

from packer.errors import BadImage, NotAnImage
from packer.images import pillow
from packer.images.decode import Decoder, decode, decode_leniently, is_plain_jpeg
from packer.images.header import Header, Mode, check_header, decoded_shape, losses, read_header
from packer.images.opencv import quiet_opencv
from packer.packing.make_record import HeaderJob, read_headers

MODES: tuple[Mode, ...] = ("rgb", "gray", "unchanged")
COLORS = [(i, 255 - i, i * 7 % 256) for i in range(256)]
GRAY_ALPHA = Image.merge("LA", (Image.fromarray(GRAY), Image.fromarray(ALPHA)))
BITS = bytes([0xA5, 0xF0, 1, 2]) * HEIGHT


def palette_bmp(bits: int, info_bytes: int, pixels: bytes, compression: int = 0) -> bytes:
    """A BMP with a palette: of OS/2 if its header has 12 bytes, else of Windows."""
    pad = b"" if info_bytes == 12 else b"\0"
    palette = b"".join(bytes(color) + pad for color in COLORS[: 1 << bits])
    size = ("<IHHHH" if info_bytes == 12 else "<IiiHH", WIDTH, HEIGHT, 1, bits)
    info = struct.pack(size[0], info_bytes, *size[1:])
    info += b"" if info_bytes == 12 else struct.pack("<IIiiII", compression, len(pixels), 0, 0, 0, 0)
    offset = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(pixels), 0, 0, offset) + info + palette + pixels


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gray_levels_of_tiffs_as_values(bits: int) -> None:
    """Levels of fewer bits stay what the file has: they are ids in a mask."""
    levels = np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH) % (1 << bits)
    each = 8 // bits
    packed = sum(levels[:, i::each] << (8 - bits * (i + 1)) for i in range(each))
    data = tiff(bits, 1, 1, [np.asarray(packed, np.uint8).tobytes()])
    assert np.array_equal(pillow.decode_values(data, read_header(data)), levels)


def test_a_tiff_of_two_heights_is_refused_before_it_takes_memory() -> None:
    data = bytearray(tiff(2, 1, 1, [bytes(WIDTH * HEIGHT)]))
    for tag, height in ((257, 60_000_000), (278, HEIGHT)):  # Pillow takes the first
        at = data.rfind(struct.pack(">HHI", tag, 3, 1))
        data[at : at + 12] = struct.pack(">HHII", 257, 4, 1, height)
    header = read_header(bytes(data))
    assert (header.width, header.height, header.pillow) == (WIDTH, HEIGHT, True)
    with pytest.raises(BadImage, match="is 32x24 pixels by one tag of TIFF, 32x60000000 by another"):
        decode(bytes(data), header, "unchanged")


def palette_tiff(bits: int, pixels: bytes) -> bytes:
    colors = [value * 257 for channel in range(3) for value in [color[channel] for color in COLORS[: 1 << bits]]]
    return tiff(bits, 3, 1, [pixels], ((320, 3, colors),))


def lab(image: np.ndarray) -> Image.Image:
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    converted = ImageCms.profileToProfile(Image.fromarray(image), *profiles, outputMode="LAB")
    assert converted is not None
    return converted


def _files() -> dict[str, bytes]:
    files = {f"pnm {mode}": saved(RGB, "PPM", mode) for mode in ("1", "L", "RGB")}
    files["pnm ascii"] = b"P3\n# drawn\n32 24\n255\n" + b" ".join(b"%d" % value for value in RGB.reshape(-1)) + b"\n"
    files["pnm ascii bits"] = b"P1 32 24\n" + b" ".join(b"%d" % value for value in (GRAY > 99).reshape(-1)) + b"\n"
    files["pnm of 100 levels"] = b"P5 32 24 99\n" + (GRAY // 3).tobytes()
    files |= {f"avif {mode}": saved(RGB, "AVIF", mode) for mode in ("L", "RGB")}
    files["avif rgba"] = saved(RGBA, "AVIF")
    files |= {f"jp2 {mode}": saved(RGB, "JPEG2000", mode) for mode in ("L", "RGB")}
    files["jp2 rgba"] = saved(RGBA, "JPEG2000")
    files["jp2 gray+alpha"] = saved(GRAY_ALPHA, "JPEG2000")
    files["jp2 codestream"] = saved(RGB, "JPEG2000", no_jp2=True, irreversible=True)
    files["tiff lab"] = saved(lab(RGB), "TIFF")
    files["tiff lab lzw"] = saved(lab(RGB), "TIFF", compression="tiff_lzw")
    files["tiff 1 bit palette"] = palette_tiff(1, BITS)
    files["tiff 2 bit palette"] = palette_tiff(2, bytes(range(8)) * HEIGHT)
    files["tiff palette+alpha"] = saved(Image.fromarray(RGB).convert("P").convert("PA"), "TIFF")
    files["tiff gray+alpha"] = saved(GRAY_ALPHA, "TIFF")
    files["tiff 4 bits"] = tiff(4, 1, 1, [bytes(range(16)) * HEIGHT])
    files["tiff 2 bits, white is 0"] = tiff(2, 0, 1, [bytes(range(8)) * HEIGHT])
    files["tiff 16 bit cmyk"] = tiff(16, 5, 4, [np.dstack([RGB, GRAY]).astype(">u2").tobytes()])
    files["tiff lzma"] = saved(RGB, "TIFF", compression="lzma")
    files["bmp os/2"] = palette_bmp(8, 12, GRAY[::-1].tobytes())
    files["bmp os/2 1 bit"] = palette_bmp(1, 12, BITS)
    files["bmp 1 bit palette"] = palette_bmp(1, 40, BITS)
    runs = b"".join(bytes((WIDTH, row)) + b"\0\0" for row in range(HEIGHT)) + b"\0\1"
    files["bmp rle"] = palette_bmp(8, 40, runs, compression=1)
    masks = struct.pack("<III", 0xFF000000, 0xFF0000, 0xFF00)
    files["bmp of other masks"] = bmp(32, 3, np.ascontiguousarray(RGBA[::-1, :, ::-1]).tobytes(), masks)
    return files


OURS = _files()
"""Name -> bytes; the name begins with packer's name of the format. All were refused or lost color."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(OURS))
def test_pixels_are_those_of_pillow(name: str, mode: Mode) -> None:
    data = OURS[name]
    header = read_header(data)
    check_header(header)
    assert (header.format, header.width, header.height) == (name.split(maxsplit=1)[0], WIDTH, HEIGHT)
    image = decode(data, mode)
    height, width, channels, dtype = decoded_shape(header, mode)
    assert (image.shape, image.dtype) == ((height, width, channels), dtype)
    assert image.flags.c_contiguous
    expected = pillow_pixels(data, 3 if header.lab and channels == 3 else channels)
    assert difference(image, expected) <= (1 if mode == "gray" else 0)


@pytest.mark.parametrize(
    ("name", "channels"),
    [("tiff 1 bit palette", 3), ("bmp os/2", 3), ("bmp os/2 1 bit", 3), ("tiff palette+alpha", 4), ("avif rgba", 4),
     ("tiff gray+alpha", 2), ("jp2 gray+alpha", 2), ("pnm 1", 1), ("tiff 4 bits", 1)],
)  # fmt: skip
def test_unchanged_keeps_color_and_alpha(name: str, channels: int) -> None:
    image = decode(OURS[name], "unchanged")
    assert image.shape[2] == channels
    if channels == 3:
        assert (image[..., 0] != image[..., 1]).any()
    assert read_header(OURS[name]).channels == channels


DEEP_COLOR = RGB.astype(np.uint16) * 257 ^ 0x5A
DEEP_FILES = {
    "pgm": (b"P5 32 24 65535\n" + DEEP.astype(">u2").tobytes(), DEEP[..., None]),
    "ascii pgm": (b"P2 32 24 65535 " + b" ".join(b"%d" % value for value in DEEP.reshape(-1)) + b"\n", DEEP[..., None]),
    "ppm": (b"P6\n32 24\n65535\n" + DEEP_COLOR.astype(">u2").tobytes(), DEEP_COLOR),
    "ppm of opencv": (cv2.imencode(".ppm", DEEP_COLOR[..., ::-1])[1].tobytes(), DEEP_COLOR),
    "jp2": (saved(DEEP, "JPEG2000"), DEEP[..., None]),
    "tiff": (saved(DEEP, "TIFF", compression="lzma"), DEEP[..., None]),
}


@pytest.mark.parametrize("name", sorted(DEEP_FILES))
def test_16_bits_are_kept_unchanged_and_lose_their_low_byte_in_rgb(name: str) -> None:
    data, expected = DEEP_FILES[name]
    assert np.array_equal(decode(data, "unchanged"), expected)
    assert np.array_equal(decode(data)[..., : expected.shape[2]], expected >> 8)
    assert losses(read_header(data), "unchanged") == ()
    assert "16 to 8 bits" in losses(read_header(data), "rgb")


def test_levels_of_a_pnm_are_scaled_to_the_whole_range() -> None:
    levels = (DEEP >> 6).astype(np.int64)
    data = b"P5 32 24 1023\n" + levels.astype(">u2").tobytes()
    assert np.array_equal(decode(data, "unchanged")[..., 0], np.floor(levels * 65535 / 1023 + 0.5))
    assert difference(decode(data, "unchanged"), np.asarray(Image.open(io.BytesIO(data)))[..., None]) == 0
    color = b"P6 32 24 1023\n" + np.dstack([levels] * 3).astype(">u2").tobytes()
    assert np.array_equal(decode(color, "unchanged"), np.repeat(decode(data, "unchanged"), 3, axis=2))
    assert int(decode(b"P5 2 1 9\n\x09\xff").max()) == 255  # beyond its own maximum


def test_lab_is_converted_by_the_formula() -> None:
    """CIE 1976 with the white point D50, adapted to the D65 of sRGB by Bradford's matrix."""
    data = saved(lab(RGB // 3 + 60), "TIFF")  # colors that 8 bits of Lab hold well
    stored = np.asarray(Image.open(io.BytesIO(data)))
    light, (a, b) = stored[..., 0] / 255 * 100, np.moveaxis(stored[..., 1:].astype(np.int8).astype(float), -1, 0)
    assert a.min() < 0 < a.max()
    y = (light + 16) / 116
    cubes = np.stack([y + a / 500, y, y - b / 200], axis=-1)
    xyz = np.where(cubes > 6 / 29, cubes**3, 3 * (6 / 29) ** 2 * (cubes - 4 / 29)) * (0.9642, 1.0, 0.8249)
    to_red = np.array([[3.1338561, -1.6168667, -0.4906146], [-0.9787684, 1.9161415, 0.0334540]])
    to_rgb = np.vstack([to_red, [0.0719453, -0.2289914, 1.4052427]])
    linear = np.clip(xyz @ to_rgb.T, 0, 1)
    expected = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055) * 255
    assert np.abs(decode(data) - expected).max() < 3
    assert losses(read_header(OURS["tiff lab"]), "unchanged") == ("Lab to RGB",)
    assert losses(read_header(OURS["tiff 16 bit cmyk"]), "rgb") == ("samples reduced to 8 bits", "CMYK to RGB")


def test_more_than_8_bits_that_pillow_drops_are_said() -> None:
    deep_jp2 = bytearray(OURS["jp2 RGB"])
    deep_jp2[deep_jp2.index(b"ihdr") + 14] = 11
    assert losses(read_header(bytes(deep_jp2)), "unchanged") == ("samples reduced to 8 bits",)
    deep_avif = bytearray(OURS["avif RGB"])
    deep_avif[deep_avif.index(b"av1C") + 6] |= 0x40  # the pixels stay as they are, so libavif refuses it
    assert pillow._is_deep(bytes(deep_avif), "avif")
    assert not pillow._is_deep(OURS["avif RGB"], "avif")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(orientation: int) -> None:
    avif = oriented(as_stored(RGB, orientation), "AVIF", orientation, quality=100, subsampling="4:4:4")
    assert read_header(avif).upright_size == (WIDTH, HEIGHT)
    assert difference(decode(avif), RGB) <= 4
    for image in (lab(as_stored(RGB, orientation)), Image.fromarray(as_stored(RGB, orientation))):
        for compression in ("raw", "lzma"):
            data = saved(image, "TIFF", tiffinfo={274: orientation}, compression=compression)
            assert read_header(data).pillow == (image.mode == "LAB" or compression == "lzma")
            assert difference(decode(data), decode(OURS["tiff lab"]) if image.mode == "LAB" else RGB) == 0


@pytest.mark.parametrize("name", [name for name in sorted(OURS) if "ascii" not in name])
def test_every_prefix_is_refused(name: str) -> None:
    data = OURS[name]
    for length in range(len(data)):
        with pytest.raises(BadImage):
            decode(data[:length], "unchanged")


@pytest.mark.parametrize("sampling", [(4, 2), (2, 4)])
@pytest.mark.parametrize("decoder", STRICT)
def test_jpeg_of_unusual_sampling(sampling: tuple[int, int], decoder: Decoder) -> None:
    """4:1:0 and its like, which libjpeg decodes, but not the interface that simplejpeg uses."""
    needs(decoder)
    data = jpeg_of_sampling(*sampling)
    shape = decoded_shape(read_header(data), "rgb")[:3]
    assert not is_plain_jpeg(data, "rgb", shape)
    assert difference(decode(data, "rgb", decoder), pillow_pixels(data, 3)) <= 1
    assert difference(decode(data, "gray", decoder), pillow_pixels(data, 1)) <= 1
    small = decode(data, "rgb", decoder, at_least=(shape[1] // 4, shape[0] // 4))
    assert small.shape == (shape[0] // 4, shape[1] // 4, 3)
    for length in range(len(data) - 1):
        with pytest.raises(BadImage):
            decode(data[:length], "rgb", decoder)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "AVIF", "TIFF"])
@pytest.mark.parametrize("mode", MODES)
def test_first_frame_is_decoded_when_asked(kind: str, mode: Mode) -> None:
    data = animation(kind, **({"lossless": True} if kind == "WEBP" else {}))
    header = read_header(data)
    assert header.frames == 2
    with pytest.raises(BadImage, match="not one image; take the first: on_animation") as error:
        check_header(header)
    assert error.value.reason == "animation"
    check_header(header, on_animation="first")
    image = decode(data, mode, header=header)
    assert difference(image, pillow_pixels(data, image.shape[2])) <= (1 if mode == "gray" else 0)
    assert f"all {'pages' if kind == 'TIFF' else 'frames'} but the first dropped" in losses(header, mode)


def test_first_frame_of_a_gif_may_be_smaller_than_its_screen() -> None:
    """As Pillow shows it: transparent where there is none."""
    data = bytearray(animation("GIF"))
    data[6:10] = struct.pack("<HH", WIDTH + 8, HEIGHT + 4)
    image = decode(bytes(data), "rgb")
    assert image.shape == (HEIGHT + 4, WIDTH + 8, 3)
    assert difference(image, pillow_pixels(bytes(data), 3)) == 0


def test_headers_of_large_files_are_read_without_their_pixels(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 500, 3), np.uint8)
    for kind, options in (("ppm", {}), ("jp2", {}), ("avif", {"quality": 100, "subsampling": "4:4:4", "speed": 10})):
        (tmp_path / kind).write_bytes(saved(noise, {"jp2": "JPEG2000"}.get(kind, kind.upper()), **options))
    kinds = ("ppm", "jp2", "avif")
    headers = read_headers(HeaderJob(bytes(tmp_path), tuple(kind.encode() for kind in kinds), 200_000))
    assert not headers.bad
    for number, kind in enumerate(kinds):
        assert (tmp_path / kind).stat().st_size > 256 * 1024
        assert headers.header(number) == read_header((tmp_path / kind).read_bytes())
    assert len(read_headers(HeaderJob(bytes(tmp_path), (b"ppm", b"jp2", b"avif"), 199_999)).bad) == 3


def test_codes_hold_the_whole_header() -> None:
    for format, channels, depth, orientation, flags in product(
        ("jpeg", "pnm"), (1, 4), (1, 16), (1, 8), ([], ["cmyk"], ["pillow", "lab"], ["hidden_depth", "many_scans"])
    ):
        header = Header(format, 5, 7, channels, depth, orientation, 2, **dict.fromkeys(flags, True))
        assert Header.from_code(header.code, 5, 7) == header
        assert header.code < 1 << 23


@pytest.mark.parametrize("kind", ["TIFF", "AVIF", "GIF", "WEBP"])
def test_pillow_s_own_limit_of_pixels_has_no_say(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = OURS["tiff lab lzw"] if kind == "TIFF" else animation(kind)
    expected = decode(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", WIDTH * HEIGHT - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(decode(data), expected)
    with pytest.raises(BadImage, match="max_pixels"):
        decode(data, max_pixels=WIDTH * HEIGHT - 1)


def test_heic_and_texts_are_not_taken_for_images() -> None:
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)
    with pytest.raises(NotAnImage, match="HEIC"):
        read_header(heic)
    for text in (b"P1 of 3 players", b"P5, P6 and P7", b"Person,1\n"):
        with pytest.raises(NotAnImage):
            read_header(text.ljust(64))


_NOISE = np.random.default_rng(1).integers(-9, 9, (90, 120, 3))
NOISY = (np.add.outer(np.arange(90), np.arange(120))[..., None] + _NOISE + 9).astype(np.uint8)
NOISY_DEEP = NOISY[..., 0].astype(np.uint16) * 255
TRUNCATED = {
    **{f"{kind} RGB": saved(NOISY, kind) for kind in ("JPEG", "PNG", "BMP", "TIFF", "PPM")},
    **{f"{kind} L": saved(NOISY, kind, "L") for kind in ("JPEG", "PNG", "BMP", "TIFF", "PPM", "GIF")},
    **{f"{kind} P": saved(NOISY, kind, "P") for kind in ("PNG", "BMP", "TIFF", "GIF")},
    **{f"{kind} 16 bits": saved(NOISY_DEEP, kind) for kind in ("PNG", "TIFF", "PPM")},
    **{f"{kind} cmyk": saved(NOISY, kind, "CMYK") for kind in ("JPEG", "TIFF")},
    "PNG rgba": saved(Image.fromarray(NOISY).convert("RGBA"), "PNG"),
    "PNG interlaced 16 bit color": cv2.imencode(".png", NOISY.astype(np.uint16) * 257)[1].tobytes(),
    "JPEG 4:1:0": jpeg_of_sampling(4, 2, 4),
    "JPEG oriented": oriented(NOISY, "JPEG", 6),
    "TIFF lab": saved(lab(NOISY), "TIFF"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(TRUNCATED))
@quiet_opencv()
def test_lenient_takes_of_a_truncated_file_what_pillow_takes(
    name: str, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = TRUNCATED[name]
    image, damage = decode_leniently(whole, mode)
    assert damage == ""
    assert np.array_equal(image, decode(whole, mode))
    data = whole[: len(whole) * 4 // 5]
    with pytest.raises(BadImage):
        decode(data, mode)
    image, damage = decode_leniently(data, mode)
    assert "truncated" in damage
    assert np.array_equal(image, decode(data, mode, "lenient"))
    assert image.any()
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    with monkeypatch.context() as patch:
        patch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        expected = pillow_pixels(data, image.shape[2], deep=image.dtype == np.uint16)
    assert difference(image, expected) <= (2 if "cmyk" in name or mode == "gray" else 1)


@pytest.mark.parametrize("name", ["AVIF", "JPEG2000", "WEBP"])
def test_what_pillow_cannot_decode_partly_stays_refused(name: str) -> None:
    data = saved(RGB, name)[:-40]
    with pytest.raises(BadImage) as strict:
        decode(data)
    with pytest.raises(BadImage) as lenient:
        decode_leniently(data)
    assert str(lenient.value) == str(strict.value)


def test_lenient_takes_what_only_packer_refuses() -> None:
    """A wrong checksum in a PNG, and stray bytes before a JPEG's tables."""
    png = bytearray(FILES["PNG rgb"])
    png[-18] ^= 1  # the last bytes of IDAT are its checksum
    png[-13] ^= 1
    image, damage = decode_leniently(bytes(png))
    assert "checksum" in damage or "truncated" in damage
    jpeg = FILES["JPEG rgb"].replace(b"\xff\xdb", b"\0\0\xff\xdb", 1)
    image, damage = decode_leniently(jpeg)
    assert "stray bytes" in damage
    assert np.array_equal(image, decode(FILES["JPEG rgb"]))


def test_lenient_keeps_the_limits() -> None:
    truncated = FILES["JPEG rgb"][:-40]
    with pytest.raises(BadImage, match="max_pixels"):
        decode(truncated, decoder="lenient", max_pixels=WIDTH * HEIGHT - 1)
    with pytest.raises(NotAnImage):
        decode(b"<html>" + bytes(100), decoder="lenient")
    scans = FILES["JPEG progressive"].replace(b"\xff\xda", b"\xff\xda" * 200, 1)
    with pytest.raises(BadImage):
        decode(scans, decoder="lenient")
    reduced, _ = decode_leniently(truncated, at_least=(WIDTH // 2, HEIGHT // 2))
    assert reduced.shape == (HEIGHT // 2, WIDTH // 2, 3)


@pytest.mark.parametrize("name", ["avif RGB", "jp2 RGB", "tiff lab", "pnm RGB"])
def test_flipped_bytes_give_an_image_of_the_header_s_shape_or_an_error(name: str) -> None:
    random = np.random.default_rng(5)
    for _ in range(60):
        data = bytearray(OURS[name])
        for place in random.integers(0, len(data), 2).tolist():
            data[place] ^= 1 << int(random.integers(8))
        for decoder in ("auto", "lenient"):
            try:
                image = decode(bytes(data), "unchanged", decoder, max_pixels=1 << 20)
            except BadImage:
                continue
            assert image.ndim == 3
