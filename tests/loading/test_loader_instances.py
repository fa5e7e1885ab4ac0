"""Masks of objects in targets: cut and mirrored exactly as their images, and dropped with their boxes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import edit_index, shard_files, vouch
from drawn_instances import draw_instances, drawn_masks
from drawn_masks import cut_by_hand
from torch.utils.data import DataLoader

import packer
from packer import PackedDataset, PackedLoader
from packer.errors import DamagedPack, TooManyBad, UsageError

RAW, JPEG, RAGGED = "raw", "jpeg", "ragged"
EVERY = pytest.mark.parametrize("kind", [RAW, JPEG, RAGGED])


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home, made = tmp_path_factory.mktemp("instances"), {}
    for kind in (RAW, JPEG, RAGGED):
        source = draw_instances(home / kind, count=8, equal=kind != RAGGED)
        made[kind] = home / f"{kind}.lmdb"
        encode = "copy" if kind == RAGGED else kind
        packer.build(source, made[kind], instance_masks=True, encode=encode, workers=1, no_fingerprints=True)
    return made


def drawn_of(pack: packer.Pack) -> list[Any]:
    """The masks of each record, by pycocotools."""
    drawn = drawn_masks(Path(pack.path).parent / Path(pack.path).stem)
    return [drawn[Path(path).name] for path in pack.paths]


@EVERY
@pytest.mark.parametrize("threads", [1, 3])
def test_crops_show_the_nearest_pixels(kind: str, threads: int, packs: dict[str, Path]) -> None:
    """0 pixels differ from pycocotools' masks, cut by hand; objects go with their boxes."""
    pack = packer.open_pack(packs[kind])
    crop, drawn, seen = packer.RandomResizedCrop((19, 23), scale=(0.1, 1)), drawn_of(pack), 0
    loader = PackedLoader(pack, 4, shuffle=True, crop=crop, flip=True, seed=7, with_index=True, threads=threads)
    for epoch in range(6):
        loader.set_epoch(epoch)
        for _, targets, records in loader:
            params = loader._host.filler.params(records.numpy(), epoch)
            for i, record in enumerate(records.tolist()):
                region, flipped = params.regions[i].tolist(), bool(params.flipped[i])
                wanted = [cut_by_hand(mask, region, flipped, (19, 23)) for mask in drawn[record]]
                x, y, across, down = region
                boxes = pack.annotation(record).boxes - np.array([x, y, x, y])
                cut = np.clip(boxes, 0, [across, down, across, down]) * np.array([23 / across, 19 / down] * 2)
                area = (cut[:, 2] - cut[:, 0]) * (cut[:, 3] - cut[:, 1])
                kept = [mask for mask, one in zip(wanted, area, strict=True) if one >= 1]
                masks = targets[i]["masks"]
                assert masks.dtype == torch.uint8 and masks.shape == (len(targets[i]["boxes"]), 19, 23)
                assert np.array_equal(masks.numpy(), np.array(kept, np.uint8).reshape(-1, 19, 23))
                seen += len(kept)
    assert seen > 100


@EVERY
def test_whole_images(kind: str, packs: dict[str, Path]) -> None:
    pack = packer.open_pack(packs[kind])
    dataset, drawn = PackedDataset(pack), drawn_of(pack)
    for i, masks in enumerate(drawn):
        assert np.array_equal(dataset[i][1]["masks"].numpy(), masks)
    batch = dataset.__getitems__([2, 0])
    assert [np.array_equal(target["masks"], drawn[i]) for (_, target), i in zip(batch, (2, 0), strict=True)] == [
        True
    ] * 2
    if kind != RAGGED:
        ((_, targets),) = list(PackedLoader(pack, 8, flip=1.0))
        assert all(np.array_equal(one["masks"].flip(-1), masks) for one, masks in zip(targets, drawn, strict=True))


@EVERY
def test_a_border_has_no_object(kind: str, packs: dict[str, Path]) -> None:
    pack = packer.open_pack(packs[kind])
    (_, targets), drawn = next(iter(PackedLoader(pack, 8, crop=packer.CenterCrop(120)))), drawn_of(pack)
    for target, masks in zip(targets, drawn, strict=True):
        assert target["masks"].shape[1:] == (120, 120) and target["masks"].sum() == masks.sum()


def test_masks_are_read_if_they_are_asked_for(packs: dict[str, Path]) -> None:
    assert "masks" not in PackedDataset(packs[RAW], parts=())[0][1]
    assert "masks" in PackedDataset(packs[RAW], parts="masks")[0][1]
    for collate in ("padded", "yolo"):
        with pytest.raises(UsageError, match=r"which has no place for parts.*parts="):
            PackedLoader(packs[RAW], 2, collate=collate)
        assert next(iter(PackedLoader(packs[RAW], 2, collate=collate, parts=())))
    with pytest.raises(UsageError, match="it has masks"):
        PackedDataset(packs[RAW], parts=["mask"])


def test_transforms_and_workers(packs: dict[str, Path]) -> None:
    def upside_down(image: torch.Tensor, target: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        return image.flip(-2), {**target, "masks": target["masks"].flip(-2)}

    pack = packer.open_pack(packs[JPEG])
    drawn = drawn_of(pack)
    for loader in (
        PackedLoader(pack, 4, transforms=upside_down),
        DataLoader(PackedDataset(pack, transforms=upside_down), 4, num_workers=1, collate_fn=in_columns),
    ):
        found = [target["masks"] for _, targets in loader for target in targets]
        assert all(np.array_equal(one.flip(-2), masks) for one, masks in zip(found, drawn, strict=True))


HOSTILE = {
    "beyond its end": b"0PQ1000", "negative": b"@0", "ends in a number": b"oo", "too many digits": b"ooooooooo0",
    "other letters": b"\xff\x00", "one pixel": b"01", "nothing but zeros": b"0" * 1000,
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_run_lengths_in_the_index(what: str, packs: dict[str, Path], tmp_path: Path) -> None:
    """Whoever can rewrite an index with its checksums gets an error with the record, on every way to the masks."""
    pack = tmp_path / "hostile.lmdb"
    shutil.copytree(packs[JPEG], pack)

    def damage(column: list[Any]) -> list[Any]:
        column[3][2] = list(HOSTILE[what])
        return column

    edit_index(shard_files(pack, 0)[1], "rles", damage)
    vouch(pack)
    opened = packer.open_pack(pack)
    assert opened.instance_masks(2).any()
    for read in (
        lambda: opened.instance_masks(3), lambda: PackedDataset(opened)[3], lambda: list(PackedLoader(opened, 8)),
        lambda: list(PackedLoader(opened, 8, crop=packer.RandomResizedCrop(20, scale=(1, 1)))),
    ):  # fmt: skip
        with pytest.raises(DamagedPack, match=r"00000003.*has a mask of an object that is damaged"):
            read()
    assert len(list(PackedLoader(opened, 8, parts=()))) == 1
    with pytest.raises(TooManyBad):
        packer.convert(pack, tmp_path / "out.lmdb", include=str(only(tmp_path, "00000003")), resize=20, workers=1)


def in_columns(rows: list[Any]) -> tuple[list[Any], list[Any]]:
    """A batch of samples as two lists."""
    return [image for image, _ in rows], [target for _, target in rows]


def only(folder: Path, key: str) -> Path:
    """A list with one key."""
    (folder / "keys.txt").write_text(key)
    return folder / "keys.txt"
