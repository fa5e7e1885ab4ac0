"""The packs that the tests of the loader read: small, drawn, of several shards."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawn import draw_shots, pixels
from packs import CLASSES, noise
from PIL import Image

from packer import PackedDataset

EACH = 9
RECORDS = len(CLASSES) * EACH


def waves(height: int, width: int, seed: int = 0) -> np.ndarray:
    """uint8 (height, width, 3), so smooth that a shift by a pixel changes it by 3 levels at the most."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 100 * np.sin(x / (40 + 5 * c) + c + seed) * np.cos(y / (45 + 3 * c)) for c in range(3)]
    return np.stack(planes, axis=2).astype(np.uint8)


def draw_kind(kind: str, root: Path) -> dict[str, Any]:
    """Draw the source of a kind of pack, 27 images of three classes; the options to build it with.

    raw, jpeg, png: 12x10 noise. ragged: raw, sizes differ. gray: one channel. gray16: one channel, 16 bits. copy: files
    of three formats, of differing size, as they are, some turned by Exif. photos: JPEGs, large and smooth.
    boxes: 9 images with VOC boxes, landmarks and labels.
    """
    if kind == "boxes":
        draw_shots(root, 9)
        labels = ("voc", f"list:{root / 'landmarks.txt'}")
        return {"labels": labels, "columns": ("path (x y)*5 label",), "shard_bytes": 10_000}
    for c, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(EACH):
            _draw(kind, EACH * c + i, root / name / str(i))
    encode = {"ragged": "raw", "gray": "raw", "gray16": "raw", "photos": "jpeg"}.get(kind, kind)
    mode = {"gray": "gray", "gray16": "unchanged"}.get(kind, "rgb")
    return {"shard_bytes": 3000, "encode": encode, "mode": mode}


def _draw(kind: str, seed: int, path: Path) -> None:
    if kind == "copy":
        suffix = ("png", "jpg", "bmp")[seed % 3]
        image = Image.fromarray(pixels(seed, 40 + seed % 4, 30 + seed % 3))
        image.save(path.with_suffix(f".{suffix}"), **({"exif": _exif(1 + seed % 8)} if suffix == "jpg" else {}))
    elif kind == "photos":
        Image.fromarray(waves(150 + 2 * seed, 190 + 3 * seed, seed)).save(path.with_suffix(".png"))
    else:
        height, width = (9 + seed % 3, 7 + seed % 2) if kind == "ragged" else (10, 12)
        channels, dtype = (1, kind.replace("gray16", "uint16")) if kind == "gray16" else (3, "uint8")
        Image.fromarray(noise(seed, height, width, channels, dtype).squeeze()).save(path.with_suffix(".png"))


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def decoded(file: bytes) -> np.ndarray:
    """An image file's upright RGB pixels, by Pillow."""
    from PIL import ImageOps

    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB"))


def fresh(path: Path) -> list[tuple[torch.Tensor, Any]]:
    """All samples of a pack, one by one, by PackedDataset."""
    data = PackedDataset(path)
    return [data[i] for i in range(len(data))]


def alike(a: Any, b: Any) -> bool:
    """Whether two batches, or parts of them, are equal in type, nesting and numbers; NaN is equal to NaN."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return torch.equal(a, b) or (a.is_floating_point() and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    return bool(a == b)
