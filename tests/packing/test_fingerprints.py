"""Fingerprints: what a build has beside its pack, against a slow computation; and who carries them along."""

from __future__ import annotations

import io
import itertools
import math
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip
from drawn import draw, image_file, pixels
from numpy.typing import NDArray
from packs import needs_cache
from running import digests, good, refused

import packer
from packer import (
    adopt,
    attach,
    attach_fingerprints,
    convert,
    edit,
    merge,
    open_pack,
    pull,
    purge,
    split,
    update,
    versions_of,
)  # fmt: skip
from packer.containers import CONTAINERS
from packer.errors import DamagedPack, StorageError
from packer.format.new_sidecar import write_fingerprints
from packer.format.pack import Pack
from packer.format.salvage import repair
from packer.format.sidecar_list import SidecarList, rows_digest
from packer.format.verify import verify
from packer.format.verify_url import verify_url
from packer.images.fingerprint import FINGERPRINT, SIDE, fingerprint_of
from packer.packing import build_steps, plan
from packer.packing.publish import Output
from packer.repack.fingerprints import fingerprints_of, stored_fingerprints
from packer.repack.url_packs import clean, find_unreferenced
from packer.stats.problems import find_problems
from packer.view.part_facts import specs_of

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


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (3, 3)])
def test_the_smallest_and_the_sharpest(size: tuple[int, int]) -> None:
    """A single pixel; and single pixels of black and white, sharper than a float16 could say."""
    image = np.indices(size).sum(axis=0) % 2 * 255
    row = np.frombuffer(fingerprint_of(np.dstack([image] * 3).astype(np.uint8)), FINGERPRINT)[0]
    assert row["saturated"] == pytest.approx(image.mean() / 255, abs=1e-3) and np.isfinite(row["focus"])


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_of_all_sizes_have_one(channels: int) -> None:
    """pytest makes errors of NumPy's warnings."""
    for height, width in itertools.product((1, 2, 3, 191, 193, 900), repeat=2):
        noise = np.random.default_rng(width).integers(0, 256, (height, width, channels), np.uint8)
        stripes = np.where(np.arange(width)[:, None] % 2, np.uint8(255), np.zeros((height, 1, channels), np.uint8))
        for image in (noise, np.ascontiguousarray(stripes)):
            (row,) = np.frombuffer(fingerprint_of(image), FINGERPRINT)
            assert all(np.isfinite(row[name]) for name in FINGERPRINT.names or () if row[name].ndim == 0)


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


def redraw(photos: Path, seed: int) -> None:
    for number, path in enumerate(sorted(photos.rglob("*.png"))):
        draw(path, seed + number, 20 + number, 30)


@pytest.mark.parametrize("at_url", [False, pytest.param(True, marks=needs_cache)])
def test_an_update_of_which_no_image_stays(photos: Path, tmp_path: Path, at_url: bool) -> None:
    """Nothing is taken from the pack: it has had fingerprints all the same, and what else it had is said to be lost."""
    pack = f"file://{tmp_path}/p.lmdb" if at_url else str(tmp_path / "p.lmdb")
    packer.build(photos, tmp_path / "p.lmdb", encode="png")
    np.save(tmp_path / "v.npy", np.arange(6))
    attach(tmp_path / "p.lmdb", tmp_path / "v.npy", "v")
    redraw(photos, 50)
    assert any("sidecars are not copied" in note for note in update(pack, photos).notes)
    opened = open_pack(pack, tmp_path / "cache")
    assert [*opened.sidecars] == ["fingerprint"]
    check(opened)


def test_an_update_keeps_a_pack_without_them(photos: Path, tmp_path: Path) -> None:
    pack = str(tmp_path / "p.lmdb")
    packer.build(photos, pack, encode="png", no_fingerprints=True)
    draw(photos / "bee" / "new.png", 9, 30, 30)
    update(pack, photos)
    assert not open_pack(pack).sidecars


@needs_cache
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


@pytest.mark.parametrize("finishes", [False, True])
def test_a_build_that_could_not_be_published_is_finished(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finishes: bool
) -> None:
    options = {"encode": "png", "shard_bytes": 40_000}
    if finishes:
        packer.build_part(packer.BuildOptions(str(photos), str(tmp_path / "p.lmdb"), job="1/1", **options))
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(Output, "publish_folder", lambda *_: (_ for _ in ()).throw(StorageError("disk", "is full")))
        packer.build(photos, tmp_path / "p.lmdb", finish=finishes, **options)
    packer.build(photos, tmp_path / "p.lmdb", finish=finishes, **options)
    check(open_pack(tmp_path / "p.lmdb"))


@pytest.mark.parametrize("shard_bytes", [None, 40_000])
def test_a_purge_erases_those_of_deleted_records(photos: Path, tmp_path: Path, shard_bytes: int | None) -> None:
    pack = tmp_path / "p.tfrecord"
    packer.build(photos, pack, encode="png", shard_bytes=shard_bytes)
    gone = [rows_of(pack)[record].tobytes() for record in (1, 4)]
    edit(pack, map=["bee=wasp"])
    edit(pack, delete=[1, 4])
    assert [len(rows_of(version.path)) for version in versions_of(pack)] == [6, 6, 4]
    purge(pack)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(row in path.read_bytes() for path in files for row in gone)
    for version in versions_of(pack):
        opened = open_pack(version.path)
        assert len(opened) == 4 and not verify(version.path, deep=True).problems
        check(opened)


@needs_cache
def test_there_and_back(photos: Path, tmp_path: Path) -> None:
    pack, url = tmp_path / "p.lmdb", f"file://{tmp_path}/store"
    packer.build(photos, pack, encode="png")
    assert "4 files" in good("push", str(pack), url).out and "it was there already" in good("push", str(pack), url).out
    assert "good: 6 records in 4 files" in good("verify", url).out
    pull(url, tmp_path / "back")
    assert digests(tmp_path / "back") == digests(pack)
    assert not find_unreferenced(url, -3600).objects
    assert rows_of(open_pack(url, tmp_path / "cache")).tobytes() == rows_of(pack).tobytes()


@needs_cache
@pytest.mark.parametrize("without", [False, True])
def test_a_pack_that_replaces_another_at_a_url_has_its_own(photos: Path, tmp_path: Path, without: bool) -> None:
    url, given = f"file://{tmp_path}/store", {"encode": "png", "scratch": str(tmp_path)}
    packer.build(photos, url, **given)
    packer.build(photos, url, overwrite=True, resize="8", no_fingerprints=without, **given)
    assert not verify_url(url).problems
    if without:
        assert not open_pack(url, tmp_path / "cache").sidecars
    else:
        check(open_pack(url, tmp_path / "cache"))
    clean(find_unreferenced(url, -3600))
    assert (tmp_path / "store" / "sidecar.fingerprint.npy").exists() != without
    assert not verify_url(url).problems


def test_damage_is_found_and_made_again(photos: Path, tmp_path: Path) -> None:
    pack, file = tmp_path / "p.lmdb", tmp_path / "p.lmdb" / "sidecar.fingerprint.npy"
    packer.build(photos, pack, encode="png")
    flip(file, 200)
    assert [problem.file for problem in verify(pack).problems] == [file.name]
    with pytest.raises(DamagedPack, match="packer detach"):
        rows_of(pack)
    (note,) = repair(pack).notes
    assert f"packer detach {pack} fingerprint" in note
    good("detach", str(pack), "fingerprint")
    good("attach", str(pack), "--fingerprints")
    assert not verify(pack).problems
    check(open_pack(pack))


def test_what_is_saved_of_a_damaged_pack_can_have_them(photos: Path, tmp_path: Path) -> None:
    pack = tmp_path / "p.tfrecord"
    packer.build(photos, pack, encode="png")
    container = next(pack.glob("*.tfrecord"))
    container.write_bytes(container.read_bytes()[:-3000])
    report = repair(pack)
    assert report.out is not None and 0 < len(open_pack(report.out)) < 6
    assert any("packer attach PACK --fingerprints" in note for note in report.notes)
    attach_fingerprints(report.out)
    check(open_pack(report.out))


def test_they_are_not_shown_as_something_attached(photos: Path, tmp_path: Path) -> None:
    pack, other = tmp_path / "p.lmdb", tmp_path / "q.lmdb"
    packer.build(photos, pack, encode="png")
    packer.build(photos, other, encode="png")
    packer.detach(other, "fingerprint")
    assert "fingerprint: of each image, for near duplicates and odd images" in good("info", pack).out
    assert "fingerprint" not in good("diff", pack, other).out + good("extract", pack, tmp_path / "files").out
    assert not specs_of(open_pack(pack))
    with pytest.raises(packer.PackerError, match="it has none"):
        packer.PackedDataset(pack, parts=("nose",))


def test_turns_of_verify_end(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    pack = tmp_path / "p.lmdb"
    packer.build(photos, pack, encode="png", shard_bytes=10_000)
    parts = [verify(pack, subset="1/3").part for _ in range(4)]
    assert parts[0] is not None and parts[0].left_bytes and any(part and not part.left_bytes for part in parts)


def test_a_build_of_too_many_images_makes_none(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plan, build_steps):
        monkeypatch.setattr(module, "MOST_FINGERPRINTS", 5)
    printed = good("build", photos, "-o", tmp_path / "p.lmdb", "--encode", "png", "--workers", "1")
    assert "no fingerprints: a build of more than 5 images makes none; packer attach PACK --fingerprints" in printed.out
    assert stored_fingerprints(open_pack(tmp_path / "p.lmdb")) is None
    attach_fingerprints(tmp_path / "p.lmdb")
    check(open_pack(tmp_path / "p.lmdb"))
    monkeypatch.setattr("packer.repack.convert.MOST_FINGERPRINTS", 5)
    printed = good("convert", tmp_path / "p.lmdb", tmp_path / "q.hdf5")
    assert "fingerprints are not copied: packer attach PACK --fingerprints" in printed.out
    assert stored_fingerprints(open_pack(tmp_path / "q.hdf5")) is None


@pytest.mark.parametrize("at_url", [False, True])
def test_something_else_of_that_name_is_not_taken_for_them(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_url: bool
) -> None:
    """An earlier packer let a user call a sidecar so."""
    pack, url = tmp_path / "p.lmdb", f"file://{tmp_path}/p.lmdb"
    packer.build(photos, pack, encode="png")
    packer.detach(pack, "fingerprint")
    np.save(tmp_path / "v.npy", np.arange(18, dtype=np.float32).reshape(6, 3))
    with monkeypatch.context() as patch:
        patch.setattr("packer.repack.attach.FINGERPRINTS", "")
        attach(pack, tmp_path / "v.npy", "fingerprint")
    assert stored_fingerprints(open_pack(pack)) is None
    draw(photos / "bee" / "new.png", 9, 30, 30)
    update(url if at_url else pack, photos)
    opened = open_pack(pack)
    assert len(opened) == 7 and not opened.sidecars


@pytest.mark.parametrize("value", [np.nan, np.inf, -16])
def test_figures_that_no_image_has_are_not_known(photos: Path, tmp_path: Path, value: float) -> None:
    """pytest makes errors of NumPy's warnings."""
    pack = tmp_path / "p.lmdb"
    packer.build(photos, pack, encode="png")
    wanted = rows_of(pack)
    rows = wanted.copy()
    rows["brightness"][1], rows["contrast"][3] = value, value
    listed = SidecarList(rows_digest(open_pack(pack).manifest), (write_fingerprints(str(pack), [rows.tobytes()]),))
    listed.write(str(pack))
    opened = open_pack(pack)
    found = stored_fingerprints(opened)
    assert found is not None and found["version"].tolist() == [1, 0, 1, 0, 1, 1]
    assert fingerprints_of(opened).tobytes() == wanted.tobytes()
    find_problems(opened)


def test_images_of_an_adopted_file_that_cannot_be_decoded_are_named(tmp_path: Path) -> None:
    data = [bytearray(image_file(seed, format="PNG")) for seed in range(3)]
    data[1][len(data[1]) // 2] ^= 255
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, one in enumerate(data):
            entry = tarfile.TarInfo(f"im{number}.png")
            entry.size = len(one)
            tar.addfile(entry, io.BytesIO(one))
    adopt(tmp_path / "a.tar", tmp_path / "p")
    assert stored_fingerprints(open_pack(tmp_path / "p")) is None
    assert "row 1) matches its checksum, but cannot be decoded" in refused(
        4, "attach", tmp_path / "p", "--fingerprints"
    )
    edit(tmp_path / "p", delete=[1])
    attach_fingerprints(tmp_path / "p")
    check(open_pack(tmp_path / "p"))


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
