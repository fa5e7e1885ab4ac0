"""Whole images of differing sizes in one batch, and crops at a random scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from packer import (
    BuildOptions,
    Letterbox,
    PackedLoader,
    RandomResizedCrop,
    RandomScaleCrop,
    WholeImage,
    build_pack,
    open_pack,
)
from packer.errors import UsageError
from packer.samplers import BucketSampler, ShapeBuckets

SIZES = ((60, 40), (40, 60), (50, 50), (64, 36), (33, 47), (47, 33))
COUNT = 18
FORMS = {"raw": {"encode": "raw"}, "jpeg": {"encode": "jpeg", "quality": 95}}


def draw(home: Path, i: int) -> tuple[int, int]:
    """Draw a smooth image with a mask; its size."""
    width, height = SIZES[i % len(SIZES)]
    x, y = np.meshgrid(np.linspace(0, 200, width), np.linspace(0, 200, height))
    pixels = np.stack([x, y, (x + y + 9 * i) / 2], axis=2).astype(np.uint8)
    Image.fromarray(pixels).save(home / "images" / f"{i:02}.png")
    mask = (np.add.outer(np.arange(height) // 5, np.arange(width) // 7) % 3).astype(np.uint8)
    Image.fromarray(mask).save(home / "masks" / f"{i:02}.png")
    return width, height


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packs of the same images by encoding and labels: boxes or masks."""
    home = tmp_path_factory.mktemp("whole")
    for folder in ("images", "masks"):
        (home / folder).mkdir()
    coco: dict[str, Any] = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}
    for i in range(COUNT):
        width, height = draw(home, i)
        coco["images"].append({"id": i, "file_name": f"{i:02}.png", "width": width, "height": height})
        box = {"bbox": [2, 3, 20, 10], "area": 200, "iscrowd": 0, "category_id": 1, "image_id": i, "id": i}
        coco["annotations"] += [box] if i else []
    (home / "boxes.json").write_text(json.dumps(coco))
    labels = {"boxes": {"labels": (f"coco:{home / 'boxes.json'}",)}, "masks": {"mask": str(home / "masks")}}
    found = {}
    for form, encoding in FORMS.items():
        for kind, given in labels.items():
            out = home / f"{kind}-{form}.lmdb"
            build_pack(
                BuildOptions(
                    str(home / "images"),
                    str(out),
                    workers=1,
                    ignore_id=255 if kind == "masks" else None,
                    **encoding,
                    **given,
                )
            )
            found[f"{kind}-{form}"] = out
    return found


def pixels_of(pack: Any, record: int) -> torch.Tensor:
    return torch.from_numpy(pack.image(record).copy()).permute(2, 0, 1)


def batches_of(pack: Path, threads: int = 2, **options: Any) -> list[Any]:
    return list(PackedLoader(pack, 4, crop=WholeImage(), threads=threads, with_index=True, **options))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_images_and_boxes_are_those_of_the_pack(form: str, memory_format: Any, packs: dict[str, Path]) -> None:
    pack = open_pack(packs[f"boxes-{form}"])
    for images, targets, records in batches_of(pack.path, dtype=torch.float32, memory_format=memory_format):
        assert isinstance(images, list)
        for image, target, record in zip(images, targets, records.tolist(), strict=True):
            assert torch.equal(image, pixels_of(pack, record) / 255)
            assert target["boxes"].tolist() == ([[2, 3, 22, 13]] if pack.paths[record] != "00.png" else [])


@pytest.mark.parametrize("form", FORMS)
def test_flips_stay_within_the_image(form: str, packs: dict[str, Path]) -> None:
    pack, seen = open_pack(packs[f"boxes-{form}"]), set()
    for threads in (1, 3):
        loader = PackedLoader(
            pack, 4, crop=WholeImage(), shuffle=True, flip=True, vflip=True, threads=threads, with_index=True, seed=1
        )
        for images, targets, records in loader:
            params = loader._host.filler.params(records.numpy(), 0)
            for image, target, record, its in zip(images, targets, records.tolist(), params.each, strict=True):
                whole = pixels_of(pack, record)
                axes = [axis for axis, each in ((2, its.flipped), (1, its.upended)) if each[0]]
                seen.add(tuple(axes))
                assert torch.equal(image, whole.flip(axes))
                height, width = image.shape[1:]
                for x0, y0, x1, y1 in target["boxes"].tolist():
                    assert (x0, x1) == ((width - 22, width - 2) if 2 in axes else (2, 22))
                    assert (y0, y1) == ((height - 13, height - 3) if 1 in axes else (3, 13))
    assert len(seen) == 4


@pytest.mark.parametrize("form", FORMS)
def test_masks_alone_are_padded_with_the_ignored_id(form: str, packs: dict[str, Path]) -> None:
    pack = open_pack(packs[f"masks-{form}"])
    norm = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    for images, masks, records in batches_of(pack.path, **norm):
        assert images.shape[2:] == masks.shape[1:] and masks.dtype == torch.int64
        for image, mask, record in zip(images, masks, records.tolist(), strict=True):
            stored = pixels_of(pack, record)
            height, width = stored.shape[1:]
            assert torch.allclose(image[:, :height, :width], (stored / 255 - 0.5) / 0.25, atol=1e-6)
            assert torch.equal(mask[:height, :width], torch.from_numpy(pack.mask(record).astype(np.int64)))
            assert not image[:, height:].any() and not image[:, :, width:].any()
            assert (mask[height:] == 255).all() and (mask[:, width:] == 255).all()


def test_padded_boxes_are_fractions_of_the_canvas(packs: dict[str, Path]) -> None:
    for images, targets, _ in batches_of(packs["boxes-raw"], collate="padded", dtype=torch.float32):
        width = images.shape[3]
        assert torch.allclose(targets["boxes"][targets["mask"]][:, 2], torch.tensor(20 / width))


@pytest.mark.parametrize("form", FORMS)
def test_a_short_side_is_drawn_for_each_image(form: str, packs: dict[str, Path]) -> None:
    shorts = (24, 32, 40)
    loader = PackedLoader(packs[f"boxes-{form}"], 4, crop=WholeImage(shorts, longest=52), seed=2, with_index=True)
    seen = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        for images, targets, records in loader:
            for image, target, record in zip(images, targets, records.tolist(), strict=True):
                height, width = loader.pack.image(record).shape[:2]
                low, long = sorted((height, width))
                choices = []
                for short in shorts:
                    other = int(short * long / low)
                    pair = (short, other) if other <= 52 else (int(52 * short / other), 52)
                    choices.append(pair if height <= width else pair[::-1])
                assert tuple(image.shape[1:]) in choices
                seen.append(min(image.shape[1:]))
                for x0, _, x1, _ in target["boxes"].tolist():
                    assert x1 - x0 == pytest.approx(20 * image.shape[2] / width, rel=1e-5)
    assert len(set(seen)) >= 3


def test_a_state_resumes_and_a_changed_one_is_refused(packs: dict[str, Path]) -> None:
    def make(shorts: tuple[int, ...] = (24, 32)) -> PackedLoader:
        return PackedLoader(packs["boxes-raw"], 4, shuffle=True, flip=True, crop=WholeImage(shorts), seed=3)

    loader, whole = make(), list(make())
    for step, _ in enumerate(loader):
        if step == 1:
            state = loader.state_dict()
            break
    resumed = make()
    resumed.load_state_dict(state)
    for (images, _), (again, _) in zip(whole[2:], resumed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(images, again, strict=True))
    with pytest.raises(UsageError, match="crop"):
        make((24,)).load_state_dict(state)


def test_buckets_group_images_of_one_aspect(packs: dict[str, Path]) -> None:
    pack = open_pack(packs["boxes-raw"])
    sampler = BucketSampler(pack, ShapeBuckets([(60, 40), (40, 60)]), 3, seed=0)
    for images, _ in PackedLoader(pack, 3, sampler=sampler, crop=WholeImage()):
        assert len({image.shape[1] > image.shape[2] for image in images if image.shape[1] != image.shape[2]}) <= 1


REFUSED: list[dict[str, Any]] = [
    {"rotate90": True}, {"repeats": 2}, {"color_jitter": (0.1,) * 4}, {"transform": abs}, {"output": "numpy"},
    {"cache": "device"}, {"on_error": "replace"},
]  # fmt: skip


@pytest.mark.parametrize("option", REFUSED, ids=str)
def test_what_needs_one_size_is_refused(option: dict[str, Any], packs: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        PackedLoader(packs["boxes-raw"], 4, crop=WholeImage(), **option)


def test_other_crops_need_another_loader(packs: dict[str, Path]) -> None:
    loader = PackedLoader(packs["boxes-raw"], 4, crop=WholeImage())
    with pytest.raises(UsageError, match="set_crop"):
        loader.set_crop(Letterbox(32))
    with pytest.raises(UsageError, match="set_crop"):
        PackedLoader(packs["boxes-raw"], 4, crop=RandomResizedCrop(32)).set_crop(WholeImage())


SIDES = np.array([60.0, 40, 50, 64]), np.array([40.0, 60, 50, 36])


def test_the_short_side_is_any_of_the_range() -> None:
    crop = RandomScaleCrop(48, short=(26, 104), interpolation="bilinear")
    random = np.random.default_rng(0).random((4000, 3))
    widths, heights = (np.tile(one, 1000) for one in SIDES)
    regions = crop.regions(widths, heights, random)
    shorts = 48 * np.minimum(widths, heights) / np.where(widths < heights, regions[:, 2], regions[:, 3])
    counts = np.bincount(np.rint(shorts).astype(int), minlength=105)
    assert abs(shorts - np.rint(shorts)).max() < 0.01 and not counts[:26].any() and (counts[26:] > 20).all()
    assert (regions[:, :2] >= 0).all()  # the border is on the right and below


def test_large_scale_jitter_is_relative_to_what_fits() -> None:
    crop = RandomScaleCrop((48, 64), scale=(0.1, 2.0), interpolation="bilinear")
    random = np.random.default_rng(0).random((4000, 3))
    widths, heights = (np.tile(one, 1000) for one in SIDES)
    regions = crop.regions(widths, heights, random)
    fitted = np.minimum(64 / widths, 48 / heights)
    scales = 64 / regions[:, 2] / fitted
    assert 0.08 < scales.min() < 0.12 and 1.95 < scales.max() < 2.02 and abs(np.mean(scales) - 1.05) < 0.03


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("interpolation", ["fast", "bilinear"])
def test_without_a_scale_it_is_a_cutting(form: str, interpolation: Any, packs: dict[str, Path]) -> None:
    crop = RandomScaleCrop((44, 52), scale=None, interpolation=interpolation)
    loader = PackedLoader(packs[f"masks-{form}"], 6, crop=crop, seed=5, with_index=True)
    for images, masks, records in loader:
        regions = loader._host.filler.params(records.numpy(), 0).regions
        for image, mask, record, (x, y, _, _) in zip(images, masks, records.tolist(), regions, strict=True):
            cut = pixels_of(loader.pack, record)[:, int(y) : int(y) + 44, int(x) : int(x) + 52]
            height, width = cut.shape[1:]
            assert torch.equal(image[:, :height, :width], cut) and not image[:, height:].any()
            assert (mask[height:] == 255).all() and (mask[:, width:] == 255).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("interpolation", ["fast", "bilinear"])
def test_a_crop_is_a_part_of_the_resized_image(form: str, interpolation: Any, packs: dict[str, Path]) -> None:
    """Against Pillow: resized, padded, cut at the drawn place; smooth images differ little by the filter."""
    crop = RandomScaleCrop(48, short=(26, 104), interpolation=interpolation)
    loader = PackedLoader(packs[f"masks-{form}"], 6, crop=crop, seed=5, with_index=True)
    bordered = 0
    for images, masks, records in loader:
        regions = loader._host.filler.params(records.numpy(), 0).regions
        for image, mask, record, (x, y, wide, high) in zip(images, masks, records.tolist(), regions, strict=True):
            stored = loader.pack.image(record)
            height, width = stored.shape[:2]
            size = round(width * 48 / wide), round(height * 48 / high)
            resized = Image.fromarray(stored).resize(size, Image.Resampling.BILINEAR)
            left, top = round(x * 48 / wide), round(y * 48 / high)
            expected = np.asarray(resized.crop((left, top, left + 48, top + 48)))
            shown = image.permute(1, 2, 0).numpy()
            inside = np.zeros((48, 48), bool)
            inside[: size[1] - top, : size[0] - left] = True
            bordered += not inside.all()
            assert not shown[~inside].any() and (mask.numpy()[~inside] == 255).all()
            assert (mask.numpy()[inside] < 3).all()
            off = np.abs(shown[inside].astype(int) - expected[inside])
            assert off.mean() < (1.5 if interpolation == "bilinear" else 4)
    assert 3 < bordered < COUNT


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: RandomScaleCrop(0), "size"), (lambda: RandomScaleCrop(8, short=(4, 2)), "short"),
        (lambda: RandomScaleCrop(8, scale=(0.0, 1.0)), "scale"), (lambda: RandomScaleCrop(8, fill=-1), "fill"),
        (lambda: WholeImage(0), "short"), (lambda: WholeImage((8, True)), "short"),
        (lambda: WholeImage(8, 0), "longest"), (lambda: WholeImage(8, interpolation="fast"), "interpolation"),
    ],
)  # fmt: skip
def test_arguments_out_of_range(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
