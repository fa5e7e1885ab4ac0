"""Draws the small image files that the tests of packer.images read, with Pillow as the independent library."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from packer.errors import UsageError
from packer.images.decode import DECODERS, check_available

Pixels = NDArray[Any]
STRICT = tuple(decoder for decoder in DECODERS if decoder != "lenient")

HEIGHT, WIDTH = 24, 32
_Y, _X = np.mgrid[0:HEIGHT, 0:WIDTH]
RGB = np.stack([_X * 8, _Y * 10, (_X + _Y) * 4], axis=-1).astype(np.uint8)
GRAY = np.ascontiguousarray(RGB[..., 0])
ALPHA = (_X * 4 + _Y).astype(np.uint8)
RGBA = np.dstack([RGB, ALPHA])
DEEP = (_X * 1800 + _Y * 37).astype(np.uint16)


def saved(image: Pixels | Image.Image, kind: str, mode: str = "", **options: Any) -> bytes:
    """The bytes of the file that Pillow writes."""
    drawn = image if isinstance(image, Image.Image) else Image.fromarray(image)
    out = io.BytesIO()
    (drawn.convert(mode) if mode else drawn).save(out, kind, **options)
    return out.getvalue()


def oriented(image: Pixels, kind: str, orientation: int, **options: Any) -> bytes:
    """A file that holds these stored pixels and that orientation."""
    if kind == "TIFF":
        return saved(image, kind, tiffinfo={274: orientation}, **options)
    exif = Image.Exif()
    exif[274] = orientation
    return saved(image, kind, exif=exif, **options)


def bmp(bits: int, compression: int, pixels: bytes, masks: bytes = b"", height: int = HEIGHT) -> bytes:
    """A BMP without a palette, in variants that Pillow does not write."""
    info = struct.pack("<IiiHHIIiiII", 40, WIDTH, height, 1, bits, compression, len(pixels), 0, 0, 0, 0) + masks
    offset = 14 + len(info)
    return b"BM" + struct.pack("<IHHI", offset + len(pixels), 0, 0, offset) + info + pixels


def tiff(
    bits: int, photometric: int, samples: int, strips: list[bytes], extra: tuple[tuple[int, int, list[int]], ...] = ()
) -> bytes:
    """An uncompressed big-endian TIFF of 32x24 pixels, in variants that Pillow does not write."""
    offsets, at = [], 8
    for strip in strips:
        offsets.append(at)
        at += len(strip)
    fields = [(256, 3, [WIDTH]), (257, 3, [HEIGHT]), (258, 3, [bits] * samples), (259, 3, [1])]
    fields += [(262, 3, [photometric]), (273, 4, offsets), (277, 3, [samples]), (278, 3, [HEIGHT])]
    fields = sorted([*fields, (279, 4, [len(strip) for strip in strips]), *extra])
    entries, values, values_at = b"", b"", at + 2 + 12 * len(fields) + 4
    for tag, kind, numbers in fields:
        packed = struct.pack(f">{len(numbers)}{'H' if kind == 3 else 'I'}", *numbers)
        entries += struct.pack(">HHI", tag, kind, len(numbers))
        if len(packed) <= 4:
            entries += packed.ljust(4, b"\0")
        else:
            entries += struct.pack(">I", values_at + len(values))
            values += packed
    head = b"MM\0*" + struct.pack(">I", at) + b"".join(strips)
    return head + struct.pack(">H", len(fields)) + entries + bytes(4) + values


def _files() -> dict[str, bytes]:
    gray_alpha = Image.merge("LA", (Image.fromarray(GRAY), Image.fromarray(ALPHA)))
    files = {f"{kind} rgb": saved(RGB, kind) for kind in ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")}
    files |= {f"{kind} gray": saved(GRAY, kind) for kind in ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")}
    files |= {f"{kind} 1 bit": saved(GRAY, kind, "1") for kind in ("PNG", "BMP", "TIFF")}
    files |= {f"{kind} palette": saved(RGB, kind, "P") for kind in ("PNG", "BMP", "TIFF")}
    files |= {f"{kind} rgba": saved(RGBA, kind) for kind in ("PNG", "TIFF")}
    files |= {f"{kind} gray+alpha": saved(gray_alpha, kind) for kind in ("PNG", "TIFF")}
    files |= {f"{kind} 16 bits": saved(DEEP, kind) for kind in ("PNG", "TIFF")}
    files |= {f"{kind} cmyk": saved(RGB, kind, "CMYK") for kind in ("JPEG", "TIFF")}
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        files[f"TIFF {compression}"] = saved(RGB, "TIFF", compression=compression)
    files["TIFF group4"] = saved(GRAY, "TIFF", "1", compression="group4")
    files["TIFF big"] = saved(RGB, "TIFF", big_tiff=True)
    files["JPEG progressive"] = saved(RGB, "JPEG", progressive=True)
    files["JPEG 444"] = saved(RGB, "JPEG", subsampling=0)
    files["WEBP lossless"] = saved(RGB, "WEBP", lossless=True)
    files["WEBP rgba"] = saved(RGBA, "WEBP", lossless=True)
    files["BMP 32 bits"] = saved(RGBA, "BMP")
    files["BMP top down"] = bmp(24, 0, RGB[..., ::-1].tobytes(), height=-HEIGHT)
    bgra = np.ascontiguousarray(RGBA[::-1, :, [2, 1, 0, 3]])
    files["BMP masks"] = bmp(32, 3, bgra.tobytes(), struct.pack("<III", 0xFF0000, 0xFF00, 0xFF))
    planes = [np.ascontiguousarray(RGB[..., i]).tobytes() for i in range(3)]
    files["TIFF white is 0"] = tiff(8, 0, 1, [GRAY.tobytes()])
    files["TIFF planes"] = tiff(8, 2, 3, planes, ((284, 3, [2]),))
    files["TIFF 4 bit palette"] = tiff(
        4, 3, 1, [bytes(range(16)) * HEIGHT], ((320, 3, [i * 4111 & 0xFFFF for i in range(48)]),)
    )
    files["TIFF 16 bits big-endian"] = tiff(16, 1, 1, [DEEP.astype(">u2").tobytes()])
    return files


FILES = _files()
"""Name -> bytes; the name begins with Pillow's name of the format."""
JPEGS = sorted(name for name in FILES if name.startswith("JPEG"))
OTHERS = sorted(name for name in FILES if not name.startswith("JPEG"))


def jpeg_of_sampling(across: int, down: int, side: int = 2) -> bytes:
    """A baseline JPEG of flat blocks, whose luma is sampled (across, down) times as often as its chroma."""
    data = saved(Image.new("RGB", (8, 8)), "JPEG", quality=100, subsampling=0)
    codes: dict[tuple[int, int], str] = {}
    at, frame = 2, 0
    while data[at + 1] != 0xDA:  # the scan
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        table = data[at + 4 : at + 2 + size] if data[at + 1] == 0xC4 else b""  # Huffman tables
        while table:
            counts, values, code = table[1:17], iter(table[17:]), 0
            for bits, count in enumerate(counts, 1):
                for _ in range(count):
                    codes[table[0], next(values)] = f"{code:0{bits}b}"
                    code += 1
                code *= 2
            table = table[17 + sum(counts) :]
        frame = at + 4 if data[at + 1] == 0xC0 else frame
        at += 2 + size
    head = bytearray(data[: at + 14])
    struct.pack_into(">HH", head, frame + 1, 8 * down * side, 8 * across * side)
    head[frame + 7] = across << 4 | down
    scan, last = "", [0, 0, 0]
    for unit in range(side * side):
        for component, blocks in enumerate((across * down, 1, 1)):
            for block in range(blocks):
                value = 8 * ((unit * 37 + block * 11 + component * 50) % 100 - 50)
                step, last[component] = value - last[component], value
                bits, kind = abs(step).bit_length(), min(component, 1)
                scan += codes[kind, bits] + (f"{step if step > 0 else step + (1 << bits) - 1:0{bits}b}" if bits else "")
                scan += codes[16 + kind, 0]  # no other coefficients
    scan += "1" * (-len(scan) % 8)
    packed = int(scan, 2).to_bytes(len(scan) // 8, "big").replace(b"\xff", b"\xff\0")
    return bytes(head) + packed + b"\xff\xd9"


def animation(kind: str, **options: Any) -> bytes:
    """Two frames or pages, the first of which is RGB."""
    frames = [Image.fromarray(RGB), Image.fromarray(255 - RGB)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)


def pillow_pixels(data: bytes, channels: int, deep: bool = False) -> Pixels:
    """What Pillow decodes, upright, as (height, width, channels)."""
    image: Image.Image = Image.open(io.BytesIO(data))
    if channels == 1 and image.mode != "CMYK":
        image.draft("L", image.size)  # of a JPEG, the luma as it is stored
    image = ImageOps.exif_transpose(image) or image
    if image.mode.startswith("I"):
        gray = np.asarray(image)
        return np.repeat((gray if deep else (gray >> 8).astype(np.uint8))[..., None], channels, axis=2)
    if image.mode == "LAB":
        image = image.convert("RGB")
    if "transparency" in image.info and channels != 1:
        image = image.convert("RGBA")
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    return np.asarray(image.convert(mode)).reshape(image.height, image.width, channels)


def difference(a: Pixels, b: Pixels) -> int:
    """The largest difference between two images of one shape."""
    assert a.shape == b.shape
    return int(np.abs(a.astype(np.int64) - b.astype(np.int64)).max())


_TURNS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


def turned(image: Pixels, orientation: int) -> Pixels:
    """The upright image of a stored one, with numpy alone."""
    return np.ascontiguousarray(_TURNS[orientation](image))


def as_stored(upright: Pixels, orientation: int) -> Pixels:
    """The stored pixels which that orientation turns into `upright`."""
    return turned(upright, {6: 8, 8: 6}.get(orientation, orientation))


def needs(decoder: str) -> None:
    """Skips the test where the decoder's system library is absent."""
    try:
        check_available(decoder)
    except UsageError as error:
        pytest.skip(str(error))
