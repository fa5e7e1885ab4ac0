"""JPEGs drawn by the tests, calls with less to write, and what other decoders make of them."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

import packer_fast

Pixels = NDArray[np.uint8]
SAMPLINGS = {"444": "4:4:4", "422": "4:2:2", "420": "4:2:0", "440": "4:4:0", "411": "4:1:1"}
FAST_SHRINK = 1.15
NOTHING = b"\0"
# 4:1:0, which neither Pillow nor OpenCV writes: `scene(70, 45, 3)` by cjpeg -sample 4x2,1x1,1x1 -quality 60 -optimize
JPEG_410 = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYV"
    "pQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//wAARCAAt"
    "AEYDAUIAAhEBAxEB/8QAGgAAAgMBAQAAAAAAAAAAAAAAAAQCAwUGAf/EADIQAAEEAQEFBQUJAAAAAAAAAAEAAgMRBCESEzFBYQUGIlGxFBUjY+"
    "E0QkNxcoGSosH/xAAZAQADAAMAAAAAAAAAAAAAAAACAwUABAb/xAAiEQACAgEDBAMAAAAAAAAAAAAAAQIDEQQSExQhImFBscH/2gAMAwEAAhED"
    "EQA/AK8niVlZA1KRkHRQAXT5Au1nTtSb4+igIzfBOT8R6eInsQWtj4eU5rXtxpiCLBEZohTnxc8Obu8fJqvusck9/MPxX/yKoiZqu+7P07NxfP"
    "cs9ArpH7uJz6vZBNWuO91/O/p9UqNCa3slX1ppzYzhuc/EY5xJJvU/mhCFKCExRNj272eddUIQpctFa28L6JTplkrkG11S0kdpd0PRR3PRavFG"
    "7vko7novHQKpuOhlPHYzxHVXxWiO8c2IyOAxRkMYAPCToNPNSZ3nfkOEBhaBIdiw06Xp5q9ImKuIWV2mKyW/oH+pPktXAPwIwevqVuU1J0OfyJ"
    "lXvgzaKEISFoQhZx+xXS+xqMWmGR2rREvHQ6cEpBqAU9EEyGjh0Q5opTW+4V0vIy5I65JLIgjcbexpNcSAVS7BdyxD+0f0URDPD4hjyNa3XVho"
    "LflaDaQn0FrVKpzPsU5+W70Q6rWy0uxJZ3Z/AZ3upRws5Oe9oceQQhCobqhCFe4itwI//9k="
)


def scene(width: int, height: int, seed: int = 0) -> Pixels:
    """Return a picture with smooth parts, edges and some noise, uint8 (height, width, 3)."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(float)
    tint = random.uniform(0.02, 0.09, (3, 2))
    image = np.stack([127 + 90 * np.sin(x * a + seed) * np.cos(y * b) for a, b in tint], axis=2)
    for _ in range(6):
        left, top = random.integers(0, width), random.integers(0, height)
        image[top : top + height // 4 + 1, left : left + width // 5 + 1] = random.integers(0, 256, 3)
    image += random.normal(0, 4, image.shape)
    return image.clip(0, 255).astype(np.uint8)


def encode(image: Pixels, sampling: str = "420", quality: int = 90, **options: Any) -> bytes:
    """Return a JPEG; options as `restart` (MCUs), `progressive` and `optimize` of Pillow."""
    if image.ndim == 2 or image.shape[2] == 1:
        made = io.BytesIO()
        Image.fromarray(image.reshape(image.shape[:2])).save(made, "JPEG", quality=quality, **options)
        return made.getvalue()
    if sampling in ("440", "411"):
        flags = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR]
        factor = {"440": 0x121111, "411": 0x411111}[sampling]
        extra = [cv2.IMWRITE_JPEG_RST_INTERVAL, options.get("restart_marker_blocks", 0)]
        return bytes(cv2.imencode(".jpg", image[..., ::-1], [*flags, factor, *extra])[1])
    made = io.BytesIO()
    Image.fromarray(image).save(made, "JPEG", quality=quality, subsampling=SAMPLINGS[sampling], **options)
    return made.getvalue()


def decode(  # noqa: PLR0913
    jpegs: list[bytes],
    regions: Any,
    out: tuple[int, int],
    channels: int = 3,
    *,
    sizes: Any = None,
    indexes: list[bytes | None] | None = None,
    flips: Any = None,
    **options: Any,
) -> tuple[Pixels, list[int]]:
    """Return rows and errors; `out` is (height, width)."""
    batch = batch_of(jpegs, regions, sizes=sizes, indexes=indexes, flips=flips)
    rows = np.full((len(jpegs), *out, channels), 77, np.uint8)
    errors = packer_fast.decode_batch(batch, rows, **options)
    return rows, errors.tolist()


def batch_of(
    jpegs: list[bytes],
    regions: Any,
    *,
    sizes: Any = None,
    indexes: list[bytes | None] | None = None,
    flips: Any = None,
) -> packer_fast.Batch:
    """Return a batch of addresses, valid as long as the bytes given here; b"" has that of NOTHING."""
    arrays = [np.frombuffer(jpeg or NOTHING, np.uint8) for jpeg in jpegs]
    index_arrays = [None if i is None else np.frombuffer(i, np.uint8) for i in indexes or []]
    if sizes is None:
        sizes = [header_size(jpeg) for jpeg in jpegs]
    return packer_fast.Batch(
        np.array([array.ctypes.data for array in arrays], np.uint64),
        np.array([len(jpeg) for jpeg in jpegs], np.uint64),
        np.array(sizes, np.int32).reshape(-1, 2),
        np.array(regions, np.int32).reshape(-1, 4),
        None if flips is None else np.array(flips, np.bool_),
        np.array([0 if i is None else i.ctypes.data for i in index_arrays], np.uint64) if indexes else None,
        np.array([0 if i is None else len(i) for i in index_arrays], np.uint64) if indexes else None,
    )


def header_size(jpeg: bytes) -> tuple[int, int]:
    """Return (width, height)."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return image.size


def reference(
    jpeg: bytes,
    region: tuple[int, int, int, int],
    out: tuple[int, int],
    channels: int = 3,
    filter: str = "area",
    strict: bool = True,
) -> Pixels:
    """Return what packer makes of the region without this decoder: decode all, cut out, resize each axis."""
    image = decode_whole(jpeg, channels, strict)
    x, y, width, height = region
    return resize(np.ascontiguousarray(image[y : y + height, x : x + width]), out, filter)


def decode_whole(jpeg: bytes, channels: int = 3, strict: bool = True) -> Pixels:
    """Return the whole image, uint8 (height, width, channels), by simplejpeg, or Pillow for 4:1:0.

    Raises:
        ValueError: It is refused.
    """
    try:
        return simplejpeg.decode_jpeg(jpeg, "RGB" if channels == 3 else "GRAY", strict=strict)
    except ValueError as error:
        if "subsampling" not in str(error):
            raise
    with Image.open(io.BytesIO(jpeg)) as image:
        if channels == 1:
            image.draft("L", image.size)  # the luma of the file, not one made of its colors
        pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], channels)


def resize(part: Pixels, out: tuple[int, int], filter: str) -> Pixels:
    """Return `part` in the size `out`, as packer.images.opencv makes it."""
    height, width, channels = part.shape
    shrink = width / out[1], height / out[0]
    if filter == "bilinear" and max(shrink) > 1:
        planes = [Image.fromarray(part[..., c]).resize(out[::-1], Image.Resampling.BILINEAR) for c in range(channels)]
        return np.stack([np.asarray(plane) for plane in planes], axis=2)
    if max(shrink) <= (FAST_SHRINK if filter == "fast" else 1):
        return cv2.resize(part, out[::-1], interpolation=cv2.INTER_LINEAR).reshape(*out, channels)
    if min(shrink) < 1:  # one axis shrinks, then the other grows
        middle = (height, out[1]) if shrink[0] > 1 else (out[0], width)
        part = cv2.resize(part, middle[::-1], interpolation=cv2.INTER_AREA).reshape(*middle, channels)
        return cv2.resize(part, out[::-1], interpolation=cv2.INTER_LINEAR).reshape(*out, channels)
    return cv2.resize(part, out[::-1], interpolation=cv2.INTER_AREA).reshape(*out, channels)


def index_of(jpeg: bytes, interval: int) -> bytes | None:
    """Return the index of a JPEG, None if it cannot have one."""
    try:
        return packer_fast.make_index(jpeg, interval)
    except packer_fast.IndexNotPossible:
        return None


def psnr(a: Pixels, b: Pixels) -> float:
    error = float(np.mean((a.astype(np.float64) - b) ** 2))
    return 99.0 if error == 0 else 10 * np.log10(255**2 / error)


def photos(limit: int) -> list[bytes]:
    """Return real JPEGs, none where they are absent."""
    folder = Path(os.environ.get("PACKER_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
    paths = sorted(folder.glob("photos/*.JPEG"))[:limit]
    return [path.read_bytes() for path in paths]
