"""Fingerprints: what a build has beside its pack, against a slow computation; and who carries them along."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw, image_file, pixels
from numpy.typing import NDArray
from running import good, refused

import packer
from packer import attach_fingerprints, convert, edit, merge, open_pack, split, update
from packer.containers import CONTAINERS
from packer.format.pack import Pack
from packer.format.verify import verify
from packer.images.fingerprint import FINGERPRINT, SIDE, fingerprint_of
from packer.repack.fingerprints import fingerprints_of, stored_fingerprints

SHAPES = {"a": (60, 80), "b": (300, 211), "c": (7, 5), "d": (1, 500), "e": (192, 192), "f": (64, 48)}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "imgs"
    for number, (name, size) in enumerate(SHAPES.items()):
        path = folder / ("bee" if number % 2 else "ant") / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(path, number, size[1], size[0])
    return folder


def weights(frequency: int, length: int) -> list[float]:
    """What the pixels of a side count for a frequency."""
    angles = [math.pi * (i + 0.5) / length for i in range(length)]
    window = [math.sqrt(math.sin(angle)) for angle in angles]
    row = [w * math.cos(frequency * angle) for w, angle in zip(window, angles, strict=True)]
    if frequency:
        row = [one - w * sum(row) / sum(window) for one, w in zip(row, window, strict=True)]
    row = [float(round(round(127 * one, 6))) for one in row]
    if frequency:
        middle = [length // 2] if length % 2 else [length // 2 - 1, length // 2]
        rest = sum(row) / len(middle)
        for i in middle:
            row[i] -= rest
    return row


def slow_fingerprint(image: NDArray[np.uint8]) -> dict[str, Any]:
    """What a row says, computed from its definition (docs/formats.md)."""
    step = -(-max(image.shape[:2]) // SIDE)
    rows, columns = (np.arange(min(step, length) // 2, length, step) for length in image.shape[:2])
    small = image[rows][:, columns].astype(np.int64)
    gray = (small @ [9798, 19235, 3735] + (1 << 14)) >> 15 if small.shape[2] == 3 else small[:, :, 0]
    down, across = (np.array([weights(v, n) for v in range(9)]) for n in gray.shape)
    found = down @ gray @ across.T
    order = sorted(((v, u) for v in range(9) for u in range(9)), key=lambda p: (max(p), sum(p), p[1]))[1:65]
    limit = sorted(abs(found[of]) for of in order[:40])[19]
    values = np.sort(gray.ravel())
    shares = np.bincount(gray.ravel(), minlength=256) / gray.size
    bordered = np.pad(gray, 1, "reflect")
    above, below, left, right = bordered[:-2, 1:-1], bordered[2:, 1:-1], bordered[1:-1, :-2], bordered[1:-1, 2:]
    near, far = (
        sum(float((one**2).mean()) for one in (gray[n:] - gray[:-n], gray[:, n:] - gray[:, :-n]) if one.size)
        for n in (1, 2)
    )
    return {
        "hash": sum(1 << bit for bit, (v, u) in enumerate(order) if found[v, u] > 0),
        "strong": sum(1 << bit for bit, of in enumerate(order[:40]) if abs(found[of]) > limit),
        "sharpness": (above + below + left + right - 4 * gray).var(),
        "focus": max(0.0, 4 * near - far) / max(1.0, far),
        "brightness": gray.mean(),
        "contrast": gray.std(),
        "dark": values[int(np.ceil(0.01 * gray.size)) - 1],
        "bright": values[int(np.ceil(0.99 * gray.size)) - 1],
        "entropy": -sum(p * np.log2(p) for p in shares if p),
        "saturated": (small.max(2) >= 250).mean(),
        "red": small[:, :, 0].mean(),
        "blue": small[:, :, -1].mean(),
        "colorfulness": (small.max(2) - small.min(2)).mean(),
    }


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_row_is_what_its_definition_says(name: str, channels: int) -> None:
    image = pixels(3, *SHAPES[name][::-1])[:, :, :channels]
    row = np.frombuffer(fingerprint_of(np.ascontiguousarray(image)), FINGERPRINT)[0]
    wanted = slow_fingerprint(image)
    assert int(row["hash"]) == wanted.pop("hash")
    assert int.from_bytes(row["strong"].tobytes(), "little") == wanted.pop("strong")
    for field, value in wanted.items():
        assert float(row[field]) == pytest.approx(value, rel=1e-3, abs=1e-3), field


def test_pixels_of_all_kinds_have_one() -> None:
    image = pixels(1, 40, 50)
    alpha = np.dstack([image, np.full((50, 40), 9, np.uint8)])
    deep = image.astype(np.uint16) * 257
    wanted = fingerprint_of(image)
    assert fingerprint_of(alpha) == fingerprint_of(deep) == wanted
    assert fingerprint_of(alpha[:, :, :2]) == fingerprint_of(np.ascontiguousarray(image[:, :, :1]))
    assert len(wanted) == FINGERPRINT.itemsize == 40


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_build_has_those_of_its_images(photos: Path, tmp_path: Path, container: str) -> None:
    (with_them,) = packer.build(photos, tmp_path / "with", format=container, encode="png", shard_bytes=40_000)
    (without,) = packer.build(
        photos, tmp_path / "without", format=container, encode="png", shard_bytes=40_000, no_fingerprints=True
    )
    assert with_them.manifest.shards == without.manifest.shards and len(without.manifest.shards) > 1
    assert {*os.listdir(with_them.path)} - {*os.listdir(without.path)} == {"sidecars.json", "sidecar.fingerprint.npy"}
    assert stored_fingerprints(open_pack(without.path)) is None
    check(open_pack(with_them.path))
    attach_fingerprints(without.path)
    assert rows_of(without.path).tobytes() == rows_of(with_them.path).tobytes()
    assert not verify(with_them.path).problems


def rows_of(pack: str | Path | Pack) -> NDArray[np.void]:
    """The rows beside a pack, all of them known."""
    found = stored_fingerprints(pack if isinstance(pack, Pack) else open_pack(pack))
    assert found is not None and found["version"].all()
    return found


def check(pack: Pack) -> None:
    """Whether what is beside a pack is what its stored images say."""
    rows = rows_of(pack)
    for record in range(len(pack)):
        assert rows[record].tobytes() == fingerprint_of(pack.image(record)), pack.paths[record]


def test_every_command_takes_them_along(photos: Path, tmp_path: Path) -> None:
    pack, out = str(tmp_path / "p.lmdb"), str(tmp_path / "o.hdf5")
    packer.build(photos, pack, encode="png")
    convert(pack, out)
    check(open_pack(out))
    convert(pack, str(tmp_path / "small.n5"), resize="16x12", encode="raw")
    check(open_pack(tmp_path / "small.n5"))
    split(pack, "train=0.5,val=0.5")
    parts = [str(tmp_path / f"p-{name}.lmdb") for name in ("train", "val")]
    for part in parts:
        check(open_pack(part))
    merge(parts, tmp_path / "m.lmdb")
    check(open_pack(tmp_path / "m.lmdb"))
    edit(pack, delete=[1, 4])
    check(open_pack(pack))
    assert len(rows_of(f"{pack}@1")) == 6


def test_an_update_makes_those_of_new_images(photos: Path, tmp_path: Path) -> None:
    pack = str(tmp_path / "p.lmdb")
    packer.build(photos, pack, encode="png")
    draw(photos / "bee" / "new.png", 9, 30, 30)
    os.unlink(photos / "ant" / "a.png")
    draw(photos / "ant" / "c.png", 11, 9, 9)
    update(pack, photos)
    opened = open_pack(pack)
    assert len(opened) == 6
    check(opened)


def test_an_update_keeps_a_pack_without_them(photos: Path, tmp_path: Path) -> None:
    pack = str(tmp_path / "p.lmdb")
    packer.build(photos, pack, encode="png", no_fingerprints=True)
    draw(photos / "bee" / "new.png", 9, 30, 30)
    update(pack, photos)
    assert not open_pack(pack).sidecars


def test_parts_and_stores_have_the_same(photos: Path, tmp_path: Path) -> None:
    options = {"encode": "png", "shard_bytes": 40_000}
    packer.build(photos, tmp_path / "p.lmdb", **options)
    wanted = rows_of(tmp_path / "p.lmdb").tobytes()
    for job in ("1/2", "2/2"):
        packer.build_part(packer.BuildOptions(str(photos), str(tmp_path / "parts.lmdb"), job=job, **options))
    packer.build(photos, tmp_path / "parts.lmdb", finish=True, **options)
    assert rows_of(tmp_path / "parts.lmdb").tobytes() == wanted
    url = f"file://{tmp_path}/store.lmdb"
    packer.build(photos, url, scratch=str(tmp_path), **options)
    assert rows_of(open_pack(url, tmp_path / "cache")).tobytes() == wanted
    draw(photos / "bee" / "new.png", 9, 30, 30)
    update(url, photos)
    check(open_pack(url, tmp_path / "cache"))


def test_a_build_that_is_resumed_has_all(photos: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"encode": "png", "shard_bytes": 40_000}
    data = bytearray(image_file(5, format="PNG"))
    data[len(data) // 2] ^= 255
    (photos / "bee" / "z.png").write_bytes(data)
    with pytest.raises(packer.PackerError):
        packer.build(photos, tmp_path / "p.lmdb", **options)
    assert (tmp_path / "p.lmdb.partial").exists()
    packer.build(photos, tmp_path / "p.lmdb", max_bad="1", **options)
    check(open_pack(tmp_path / "p.lmdb"))


def test_missing_ones_are_made_of_the_images(photos: Path, tmp_path: Path) -> None:
    packer.build(photos, tmp_path / "p.lmdb", encode="png")
    packer.build(photos, tmp_path / "q.lmdb", encode="png", no_fingerprints=True, shuffle=1)
    both = packer.join_packs([tmp_path / "p.lmdb", tmp_path / "q.lmdb"])
    found = fingerprints_of(both)
    one, other = ({row.tobytes() for row in rows} for rows in np.split(found, 2))
    assert one == other and found["version"].all()


def test_attaching_says_what_is_wrong(photos: Path, tmp_path: Path) -> None:
    pack = tmp_path / "p.lmdb"
    packer.build(photos, pack, encode="png")
    assert "has fingerprints of all images already" in refused(2, "attach", str(pack), "--fingerprints")
    assert "leave WHERE out" in refused(2, "attach", str(pack), str(photos), "--fingerprints")
    assert "packer attach PACK WHERE --as NAME" in refused(2, "attach", str(pack), str(photos))
    assert "choose another name" in refused(2, "attach", str(pack), str(photos), "--as", "fingerprint")
    good("detach", str(pack), "fingerprint")
    assert "6 records made of the images" in good("attach", str(pack), "--fingerprints").out
    check(open_pack(pack))
    shutil.rmtree(pack)
