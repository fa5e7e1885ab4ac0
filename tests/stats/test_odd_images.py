"""Odd images in `packer stats --problems`: planted faults are found and explained, and a clean set has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from running import good

import packer
from packer import open_pack
from packer.stats.problems import DataProblem, find_problems, odd_images
from packer.stats.problems.odd_images import KINDS

Pixels = NDArray[np.uint8]
ODD = {*(one.kind for one in KINDS), "gray-among-colors", "color-among-grays"}


def scene(seed: int) -> Pixels:
    """uint8 (72, 96, 3): spots of all sizes and colors, some of them dark and some bright."""
    draw = np.random.default_rng(seed)
    image = np.zeros((72, 96, 3))
    for side, strength in ((4, 60), (12, 60), (36, 40), (96, 30)):
        image += strength * cv2.resize(draw.normal(0, 1, (side, side, 3)), (96, 72), interpolation=cv2.INTER_NEAREST)
    return np.clip(image + 120 + draw.integers(-10, 10), 0, 255).astype(np.uint8)


def blurred(sigma: float) -> Callable[[Pixels], Pixels]:
    return lambda image: np.asarray(cv2.GaussianBlur(image, (0, 0), sigma), np.uint8)


def gray(image: Pixels) -> Pixels:
    return np.repeat(image[:, :, 1:2], 3, axis=2)


FAULTS: dict[str, tuple[str, Callable[[Pixels], Pixels]]] = {
    "dark": ("dark", lambda image: image // 10),
    "one color": ("blank", lambda image: np.full_like(image, image[0, 0])),
    "washed out": ("bright", lambda image: 150 + image // 3),
    "overexposed": ("overexposed", lambda image: np.where(image > 10, 255, 20).astype(np.uint8)),
    "out of focus": ("blurred", blurred(2.5)),
    "mostly empty": ("low-information", lambda image: np.concatenate([0 * image[:, :90] + 128, image[:, 90:]], 1)),
    "gray": ("gray-among-colors", gray),
}  # fmt: skip


def pack_of(folder: Path, images: list[Pixels], **options: Any) -> Path:
    (folder / "src").mkdir(parents=True)
    for number, image in enumerate(images):
        cv2.imwrite(str(folder / "src" / f"{number:03d}.png"), image[:, :, ::-1])
    packer.build(folder / "src", folder / "pack", encode="png", **options)
    return folder / "pack"


def odd(pack: Path) -> dict[str, DataProblem]:
    return {one.kind: one for one in find_problems(open_pack(pack)).found if one.kind in ODD}


@pytest.fixture(scope="module")
def clean() -> list[Pixels]:
    return [scene(seed) for seed in range(40)]


def test_a_clean_set_has_none(tmp_path: Path, clean: list[Pixels]) -> None:
    assert not odd(pack_of(tmp_path, clean))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, clean: list[Pixels], fault: str) -> None:
    kind, spoil = FAULTS[fault]
    found = odd(pack_of(tmp_path, [spoil(one) if n in (7, 30) else one for n, one in enumerate(clean)]))
    assert {name: sorted(one.records.tolist()) for name, one in found.items()} == {kind: [7, 30]}
    assert [example.key for example in found[kind].examples] == [f"{n:08d}" for n in found[kind].records]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_all_images_are_is_usual(tmp_path: Path, clean: list[Pixels], fault: str) -> None:
    """A set of photos by night, of microscopy, of drawings."""
    kind, spoil = FAULTS[fault]
    assert kind not in odd(pack_of(tmp_path, [spoil(one) for one in clean]))


def test_images_in_color_among_gray_ones(tmp_path: Path, clean: list[Pixels]) -> None:
    found = odd(pack_of(tmp_path, [one if n == 5 else gray(one) for n, one in enumerate(clean)]))
    assert {name: one.records.tolist() for name, one in found.items()} == {"color-among-grays": [5]}


def test_half_gray_is_not_odd(tmp_path: Path, clean: list[Pixels]) -> None:
    assert not odd(pack_of(tmp_path, [one if n % 2 else gray(one) for n, one in enumerate(clean)]))


def test_the_worst_are_first_with_their_figures(tmp_path: Path, clean: list[Pixels]) -> None:
    sigmas = {3: 1.6, 11: 3.0, 20: 2.2}
    images = [blurred(sigmas[n])(one) if n in sigmas else one for n, one in enumerate(clean)]
    found = odd(pack_of(tmp_path, images))["blurred"]
    assert found.records.tolist() == [11, 20, 3]

    def focus(image: Pixels) -> float:
        plane = (image.astype(np.int64) @ [9798, 19235, 3735] + (1 << 14)) >> 15
        apart = [(plane[n:] - plane[:-n], plane[:, n:] - plane[:, :-n]) for n in (1, 2)]
        near, far = (sum(float((one**2).mean()) for one in pair) for pair in apart)
        return (4 * near - far) / far

    figures = [focus(image) for image in images]
    median = np.sort(figures)[len(figures) // 2]
    assert found.examples[0].detail == f"focus {figures[11]:.2g}; the median of all is {median:.2g}"


def test_without_fingerprints(tmp_path: Path, clean: list[Pixels], monkeypatch: pytest.MonkeyPatch) -> None:
    """A small pack is read; of a larger one, and with --no-pixels, the next step is told."""
    images = [one // 10 if n == 7 else one for n, one in enumerate(clean)]
    pack = pack_of(tmp_path, images, no_fingerprints=True)
    assert odd(pack)["dark"].records.tolist() == [7]
    step = "packer attach PACK --fingerprints makes them"
    note = f"odd images and near duplicates: 40 records have no fingerprint; {step}"
    assert note in good("stats", pack, "--problems", "--no-pixels").out
    monkeypatch.setattr(odd_images, "MOST_PIXELS", 40 * 96 * 72 - 1)
    assert not odd(pack) and find_problems(open_pack(pack)).notes == (note,)
    good("attach", pack, "--fingerprints")
    assert odd(pack)["dark"].records.tolist() == [7]


def test_a_damaged_image_does_not_hide_the_other_problems(tmp_path: Path, clean: list[Pixels]) -> None:
    pack = pack_of(tmp_path, [*clean, clean[0]], no_fingerprints=True)
    opened = open_pack(pack)
    place = int(opened.reader.places(np.array([3]))[0][0])
    shard = (
        next(pack.glob("shard*"))
        if opened.manifest.container != "lmdb"
        else pack / opened.reader.shards[0].container.name
    )
    data = bytearray(shard.read_bytes())
    data[place + 40] ^= 255
    shard.write_bytes(data)
    found = find_problems(open_pack(pack))
    assert "duplicate" in {one.kind for one in found.found}
    assert len(found.notes) == 1 and found.notes[0].startswith("odd images and near duplicates: not looked for: ")


def test_they_are_deleted_when_asked_for(tmp_path: Path, clean: list[Pixels]) -> None:
    pack = pack_of(tmp_path, [one // 10 if n == 7 else one for n, one in enumerate(clean)])
    assert "39 records, 1 deleted" in good("edit", pack, "--problems", "dark").out
    assert not odd(pack) and len(open_pack(pack)) == 39
