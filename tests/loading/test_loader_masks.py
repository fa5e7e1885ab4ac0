"""Masks in batches: cut and mirrored exactly as their images, on every way through the loader and the dataset."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import voc_xml
from drawn_masks import COLORS, cut_by_hand, draw_mask, image_of, pairs, picture, write_files
from torch.utils.data import DataLoader

import packer
from packer import BuildOptions, PackedDataset, PackedLoader, build_pack
from packer.errors import UsageError
from packer.images.resize import TargetSize
from packer.loading.part_rows import cut_mask, places
from packer.loading.targets import TargetOptions, Targets

RAW, JPEG, RAGGED = "raw", "jpeg", "ragged"


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Raw images and masks of one size; JPEGs and compressed masks; images of three sizes."""
    home = tmp_path_factory.mktemp("masks")
    same = write_files(home / "same", pairs(count=10))
    files = {}
    for seed in range(9):
        mask = draw_mask(seed, 40 + 7 * (seed % 3), 30 + 5 * (seed % 3))
        files[f"images/im{seed}.png"], files[f"masks/im{seed}.png"] = image_of(mask), picture(mask)
    ragged = write_files(home / "ragged", files)
    made = {}
    for kind, source, encode in ((RAW, same, "raw"), (JPEG, same, "jpeg"), (RAGGED, ragged, "copy")):
        made[kind] = home / f"{kind}.lmdb"
        build_pack(BuildOptions(str(source), str(made[kind]), encode=encode, quality=100, workers=1))
    return made


@pytest.mark.parametrize("kind", [RAW, JPEG, RAGGED])
@pytest.mark.parametrize("threads", [1, 3])
def test_crops_are_exact(kind: str, threads: int, packs: dict[str, Path]) -> None:
    pack = packer.open_pack(packs[kind])
    crop = packer.RandomResizedCrop((19, 23), scale=(0.1, 1))
    loader = PackedLoader(pack, 4, shuffle=True, crop=crop, flip=True, seed=7, with_index=True, threads=threads)
    filler, seen = loader._host.filler, 0
    for epoch in range(3):
        loader.set_epoch(epoch)
        for images, masks, records in loader:
            assert masks.dtype == torch.int64 and masks.shape == (len(records), 19, 23)
            params = filler.params(records.numpy(), epoch)
            for i, record in enumerate(records.tolist()):
                wanted = cut_by_hand(pack.mask(record), params.regions[i].tolist(), bool(params.flipped[i]), (19, 23))
                assert np.array_equal(masks[i].numpy(), wanted)
                seen += bool(params.flipped[i])
            assert images.shape[-2:] == masks.shape[-2:]
    assert 0 < seen < 3 * len(pack)


@pytest.mark.parametrize("size", [(24, 24), (11, 18), (11, 33)], ids=str)
def test_a_letterbox_has_the_mask_of_a_build(size: tuple[int, int], packs: dict[str, Path]) -> None:
    """Also where the center of a pixel is on the edge between two of the mask."""
    pack = packer.open_pack(packs[RAGGED])
    for _, masks, records in PackedLoader(pack, 4, crop=packer.Letterbox(size), with_index=True):
        for mask, record in zip(masks.numpy(), records.tolist(), strict=True):
            wanted = TargetSize(size[1], size[0], "pad").apply_to_mask(pack.mask(record), 255)
            assert np.array_equal(mask, wanted)


@pytest.mark.parametrize("kind", [RAW, JPEG])
def test_masks_lie_on_their_images(kind: str, packs: dict[str, Path]) -> None:
    """An image is drawn of its mask: where its color is clear, the mask has the id."""
    for images, masks in PackedLoader(packs[kind], 4, crop=packer.RandomResizedCrop(32, scale=(0.3, 1)), flip=True):
        pixels = images.permute(0, 2, 3, 1).numpy().astype(int)
        for number, color in enumerate(COLORS[:4].astype(int)):
            clear = (abs(pixels - color) < 12).all(axis=-1)
            inside = clear & np.roll(clear, 2, 1) & np.roll(clear, -2, 1) & np.roll(clear, 2, 2) & np.roll(clear, -2, 2)
            assert (masks.numpy()[inside] == number).all()


@pytest.mark.parametrize("kind", [RAW, JPEG])
def test_whole_masks(kind: str, packs: dict[str, Path]) -> None:
    pack = packer.open_pack(packs[kind])
    got = torch.cat([masks for _, masks in PackedLoader(pack, 4)])
    assert np.array_equal(got.numpy(), np.stack([pack.mask(i) for i in range(len(pack))]))
    flipped = torch.cat([masks for _, masks in PackedLoader(pack, 4, flip=1.0)])
    assert torch.equal(flipped, got.flip(-1))


def test_the_border_beside_an_image_is_ignored(packs: dict[str, Path]) -> None:
    pack = packer.open_pack(packs[RAW])
    for images, masks in PackedLoader(pack, 5, crop=packer.CenterCrop(50)):
        beside = (images == 0).all(dim=1)
        assert (masks[beside] == 255).all() and (masks[~beside] < 4).all() and beside.any()
        assert torch.equal(masks[:, 10:40, 5:45], torch.from_numpy(np.stack([pack.mask(i) for i in range(5)])).long())
        break


def test_crops_within_pixels() -> None:
    """CenterCrop after a resize has edges within pixels: the pixel below each center, in exact fractions."""
    from fractions import Fraction

    for start, extent, pixels in ((0.5, 39.0, 7), (-3.25, 46.5, 31), (1 / 3, 29 + 1 / 3, 24)):
        exact = [Fraction(start) + (2 * i + 1) * Fraction(extent) / (2 * pixels) for i in range(pixels)]
        found = places(np.array([start, 3.0]), np.array([extent, 9.0]), pixels)
        assert found[0].tolist() == [value.__floor__() for value in exact]
        assert found[1].tolist() == [3 + (2 * i + 1) * 9 // (2 * pixels) for i in range(pixels)]
    mask, out = draw_mask(1), np.zeros((4, 6), np.uint8)
    cut_mask(mask, np.array([-1, 0, 29, 30]), np.array([-2, 0, 5, 39, 40, 41])[::-1], out, 9)
    wanted = [[9] * 6] + [[9, 9, mask[y, 39], mask[y, 5], mask[y, 0], 9] for y in (0, 29)] + [[9] * 6]
    assert out.tolist() == wanted


def test_samples_of_a_dataset(packs: dict[str, Path]) -> None:
    pack = packer.open_pack(packs[RAW])
    dataset = PackedDataset(pack)
    image, mask = dataset[-1]
    assert mask.dtype == torch.int64 and np.array_equal(mask.numpy(), pack.mask(9)) and image.shape[1:] == mask.shape
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[3][1], dataset[3][1])
    assert torch.equal(dataset.targets[2], dataset[2][1])
    for workers in (0, 2):
        batches = list(DataLoader(dataset, 4, num_workers=workers))
        assert torch.equal(torch.cat([masks for _, masks in batches]), torch.stack([dataset[i][1] for i in range(10)]))


def test_samples_of_different_sizes(packs: dict[str, Path]) -> None:
    dataset = PackedDataset(packs[RAGGED])
    for image, mask in dataset:
        assert image.shape[1:] == mask.shape
        assert (torch.from_numpy(COLORS[mask.numpy()]).permute(2, 0, 1) == image).all()
    images, masks = next(iter(DataLoader(dataset, 9, collate_fn=packer.collate)))
    assert [tuple(mask.shape) for mask in masks] == [tuple(image.shape[1:]) for image in images]


def test_transforms_get_masks(packs: dict[str, Path]) -> None:
    def both(image: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return image.flip(-1), mask.flip(-1) + 1

    pack = packer.open_pack(packs[RAW])
    got = torch.cat([masks for _, masks in PackedLoader(pack, 4, transforms=both)])
    assert np.array_equal(got.numpy(), np.stack([pack.mask(i)[:, ::-1].astype(int) + 1 for i in range(10)]))
    assert np.array_equal(PackedDataset(pack, transforms=both)[3][1].numpy(), got[3].numpy())


def test_which_parts_are_read(packs: dict[str, Path]) -> None:
    images, targets = next(iter(PackedLoader(packs[RAW], 4, parts=())))
    assert [set(target) for target in targets] == [{"image_id"}] * 4
    _, masks = next(iter(PackedLoader(packs[RAW], 4, parts=("mask",))))
    assert masks.shape == (4, *images.shape[-2:])
    with pytest.raises(UsageError, match=r"names depth, which is not a part of .*; it has mask"):
        PackedLoader(packs[RAW], 4, parts=("depth",))
    with pytest.raises(UsageError, match="not a part"):
        PackedDataset(packs[RAW], parts=("masks",))


def test_masks_beside_boxes(tmp_path: Path) -> None:
    files = pairs("JPEGImages/{}.png", "SegmentationClass/{}.png", count=4, palette=True)
    files |= {f"Annotations/im{i}.xml": voc_xml(f"im{i}.png", [("cat", 3, 5, 20, 20)]).encode() for i in range(4)}
    build_pack(BuildOptions(str(write_files(tmp_path / "set", files)), str(tmp_path / "set.lmdb"), workers=1))
    pack = packer.open_pack(tmp_path / "set.lmdb")
    for collate in ("yolo", "padded"):
        with pytest.raises(UsageError, match=f'collate: is "{collate}", which has no place for parts'):
            PackedLoader(pack, 2, collate=collate)
        PackedLoader(pack, 2, collate=collate, parts=())
    for images, targets in PackedLoader(pack, 2, crop=packer.RandomResizedCrop(24), flip=True):
        for image, target in zip(images, targets, strict=True):
            assert target.keys() >= {"boxes", "labels", "mask"}
            assert target["mask"].shape == image.shape[1:] and target["mask"].dtype == torch.int64
    assert np.array_equal(PackedDataset(pack)[1][1]["mask"].numpy(), pack.mask(1))
    _, targets = next(iter(PackedLoader(pack, 2, parts=())))
    assert "mask" not in targets[0] and "boxes" in targets[0]


def test_masks_beside_labels_are_widened_for_any_device(tmp_path: Path) -> None:
    files = pairs("images/a/{}.png", "masks/a/{}.png") | {"images/b/x.png": image_of(draw_mask(9))}
    source = write_files(tmp_path / "set", files | {"masks/b/x.png": picture(draw_mask(9))})
    build_pack(BuildOptions(str(source), str(tmp_path / "pack.lmdb"), encode="raw", workers=1))
    targets = Targets(packer.open_pack(tmp_path / "pack.lmdb"), TargetOptions(widen=False))
    assert targets[0].keys() >= {"label", "mask"}  # type: ignore[union-attr]
    assert targets[0]["mask"].dtype == torch.int64  # type: ignore[index, call-overload]


def test_an_image_without_a_mask_is_ignored(tmp_path: Path) -> None:
    files = pairs()
    del files["masks/im2.png"]
    source = write_files(tmp_path / "set", files)
    build_pack(BuildOptions(str(source), str(tmp_path / "set.lmdb"), mask="masks", missing_labels="empty", workers=1))
    _, masks = next(iter(PackedLoader(tmp_path / "set.lmdb", 4)))
    assert [bool((mask == 255).all()) for mask in masks] == [False, False, True, False]


@pytest.mark.parametrize("cache", ["ram", "device"])
def test_caches(cache: str, packs: dict[str, Path]) -> None:
    crop = packer.RandomResizedCrop(16)
    plain = list(PackedLoader(packs[RAW], 4, crop=crop, flip=True, seed=3))
    cached = list(PackedLoader(packs[RAW], 4, crop=crop, flip=True, seed=3, cache=cache))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(plain, cached, strict=True))


def test_a_state_in_mid_epoch(packs: dict[str, Path]) -> None:
    def loader() -> PackedLoader:
        return PackedLoader(packs[JPEG], 3, shuffle=True, crop=packer.RandomResizedCrop(16), flip=True)

    whole, first = list(loader()), loader()
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert all(torch.equal(a[1], b[1]) for a, b in zip(whole[1:], second, strict=True))


@pytest.mark.parametrize("options", [{"mixup": 0.2}, {"cutmix": 1.0}, {"mixup": 0.2, "cutmix": 1.0}])
def test_mixing_needs_labels_whether_torchvision_is_there_or_not(packs: dict[str, Path], options: Any) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(options))}: needs class labels of images.*; leave it out"):
        PackedLoader(packs[RAW], 4, dtype=torch.float32, **options)


def test_a_mixup_of_objects_is_left_out_where_there_are_masks_alone(packs: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"mixup: .* the pack has no boxes; leave it out"):
        PackedLoader(packs[RAW], 4, mixup=(32.0, 0.15))


def test_a_damaged_mask_is_named(packs: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    path = Path(shutil.copytree(packs[RAW], tmp_path / "pack.lmdb"))
    pack = packer.open_pack(path)
    start, stop = pack.reader.span(4, "mask")
    shard = next(path.glob("*.mdb"))
    data = bytearray(shard.read_bytes())
    offset = data.index(pack.reader.part(4, "mask"))
    assert stop - start == 1200
    data[offset + 600] ^= 1
    shard.write_bytes(data)
    with pytest.raises(packer.errors.DamagedPack, match="has a mask that does not match its checksum"):
        list(PackedLoader(path, 4))
    good = [masks for _, masks in PackedLoader(path, 4, parts=())]
    assert len(good) == 3
    with pytest.warns(packer.errors.DamagedRecordWarning, match="has a mask that"):
        replaced = list(PackedLoader(path, 4, on_error="replace", with_index=True))
    assert torch.cat([records for *_, records in replaced]).tolist().count(4) == 0
