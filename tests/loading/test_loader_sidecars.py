"""What was attached to a pack, in batches: the rows of the records, on every way through the loader and the dataset."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import flip
from packs import MakePack
from torch.utils.data import DataLoader

from packer import PackedDataset, PackedLoader, RandomResizedCrop, attach, collate, join_packs, open_pack
from packer.errors import DamagedPack, UsageError

PARTS = ("vector", "score", "caption", "captions", "meta")


def attached(pack: Path, home: Path, seed: int = 0) -> dict[str, Any]:
    """Attach one of each kind; returns the values of all records."""
    count = len(open_pack(pack))
    random = np.random.default_rng(seed)
    values: dict[str, Any] = {
        "vector": random.standard_normal((count, 3, 4)).astype(np.float16), "score": random.integers(0, 1 << 40, count),
        "caption": [f"image {i} of {seed}" for i in range(count)],
        "captions": [[f"{i}", "b"][: 1 + i % 2] for i in range(count)],
        "meta": [{"i": i, "none": None} for i in range(count)],
    }  # fmt: skip
    rows = zip(open_pack(pack).keys, values["caption"], values["captions"], values["meta"], strict=True)
    lines = [json.dumps(dict(zip(("key", *PARTS[2:]), row, strict=True))) for row in rows]
    (home / "t.jsonl").write_text("\n".join(lines))
    for name in PARTS[:2]:
        np.save(home / "v.npy", values[name])
        attach(pack, home / "v.npy", name)
    for name in PARTS[2:]:
        attach(pack, home / "t.jsonl", name)
    return values


def check(target: dict[str, Any], values: dict[str, Any], records: list[int]) -> None:
    """A target of a batch has the rows of these records."""
    assert target["vector"].dtype == torch.float16 and target["score"].dtype == torch.int64
    assert np.array_equal(target["vector"].numpy(), values["vector"][records])
    assert target["score"].tolist() == values["score"][records].tolist()
    for name in PARTS[2:]:
        assert target[name] == [values[name][i] for i in records]


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_of_the_loader(copied: MakePack, container: str, tmp_path: Path, threads: int, blocks: None) -> None:
    pack = copied("raw", container)
    values, plain = attached(pack, tmp_path), PackedLoader(pack, 5, shuffle=True, seed=3)
    loader = PackedLoader(pack, 5, shuffle=True, seed=3, parts=PARTS, with_index=True, threads=threads, collate="dict")
    labels = open_pack(pack).column("label")
    for epoch in range(2):
        loader.set_epoch(epoch), plain.set_epoch(epoch)
        for (images, target, records), (same, ids) in zip(loader, plain, strict=True):
            assert torch.equal(images, same) and torch.equal(target["label"], ids)
            assert target["label"].tolist() == np.asarray(labels)[records].tolist()
            assert target["image_id"].tolist() == records.tolist()
            check(target, values, records.tolist())


def test_they_are_read_only_if_they_are_named(copied: MakePack, tmp_path: Path) -> None:
    """Without `parts`, targets are as they were; states fit with and without, and a row is the reader's own."""
    pack = copied("raw", "lmdb")
    before = PackedLoader(pack, 5, shuffle=True, seed=3)
    next(iterator := iter(before))
    state = before.state_dict()
    values = attached(pack, tmp_path)
    _, ids = next(iter(PackedLoader(pack, 5)))
    assert ids.dtype == torch.int64
    loader = PackedLoader(pack, 5, shuffle=True, seed=3, parts="vector", with_index=True, collate="dict")
    loader.load_state_dict(state)
    images, target, records = next(iter(loader))
    assert torch.equal(images, next(iterator)[0]) and set(target) == {"label", "vector", "image_id"}
    assert np.array_equal(target["vector"].numpy(), values["vector"][records.tolist()])
    target["vector"].zero_()
    assert np.array_equal(open_pack(pack).part(0, "vector"), values["vector"][0])
    with pytest.raises(UsageError, match=r"names depth, which is not a part of .*; it has caption, captions"):
        PackedLoader(pack, 5, parts=("vector", "depth"))
    with pytest.raises(IndexError):
        open_pack(pack).part(24, "vector")


def test_targets_are_a_dict_for_each_image(copied: MakePack, tmp_path: Path) -> None:
    pack = copied("boxes", "lmdb")
    values, crop, mirrored = attached(pack, tmp_path), RandomResizedCrop(16), range(5)
    for _, targets in PackedLoader(pack, 4, parts=PARTS, crop=crop, flip=True, flip_index=mirrored, shuffle=True):
        for target in targets:
            i = target["image_id"]
            assert target["boxes"].shape[1] == 4 and target["captions"] == values["captions"][i]
            assert np.array_equal(target["vector"].numpy(), values["vector"][i]) and target["meta"]["i"] == i
    with pytest.raises(UsageError, match="has no place for parts"):
        PackedLoader(pack, 4, parts="vector", collate="yolo", crop=RandomResizedCrop(16))


def test_transforms_get_them(copied: MakePack, tmp_path: Path) -> None:
    pack = copied("raw", "lmdb")
    values = attached(pack, tmp_path)
    loader = PackedLoader(pack, 5, parts=PARTS, target_transform=lambda target: target["vector"][1])
    found = torch.stack([row for _, rows in loader for row in rows])
    assert np.array_equal(found.numpy(), values["vector"][:, 1])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_data_loader(copied: MakePack, tmp_path: Path, workers: int) -> None:
    pack = copied("raw", "lmdb")
    values = attached(pack, tmp_path)
    data = PackedDataset(pack, parts=("vector", "score", "caption"), indices=range(3, 19))
    assert pickle.loads(pickle.dumps(data))[0][1]["caption"] == values["caption"][3]
    records = []
    for images, target in DataLoader(data, 5, shuffle=True, num_workers=workers):
        some = target["image_id"].tolist()
        assert len(images) == len(some) and target["caption"] == [values["caption"][i] for i in some]
        assert np.array_equal(target["vector"].numpy(), values["vector"][some])
        assert target["score"].tolist() == values["score"][some].tolist()
        records += some
    assert sorted(records) == list(range(3, 19))
    # texts that vary in number, and JSON, cannot be stacked
    data = PackedDataset(pack, parts=PARTS)
    for fn in (None, collate):
        _, targets = next(iter(DataLoader(data, 5, num_workers=workers, collate_fn=fn)))
        assert [target["captions"] for target in targets] == values["captions"][:5]
        assert [target["meta"] for target in targets] == values["meta"][:5]


def test_of_joined_packs(make_pack: MakePack, tmp_path: Path) -> None:
    packs = [shutil.copytree(make_pack(kind, "lmdb"), tmp_path / kind) for kind in ("raw", "jpeg")]
    first, second = (attached(pack, tmp_path, seed) for seed, pack in enumerate(packs))
    both = {name: np.concatenate([first[name], second[name]]) for name in PARTS[:2]}
    both |= {name: first[name] + second[name] for name in PARTS[2:]}
    joined = join_packs(packs)
    for _, target, records in PackedLoader(joined, 7, shuffle=True, parts=PARTS, with_index=True, collate="dict"):
        check(target, both, records.tolist())
    assert joined.part(30, "caption") == "image 6 of 1"
    np.save(tmp_path / "v.npy", np.zeros((24, 2), np.float32))
    attach(packs[0], tmp_path / "v.npy", "only")
    with pytest.raises(UsageError, match=f"{packs[1].name}: has no sidecar only; it has "):
        PackedLoader(join_packs(packs), 7, parts="only")
    np.save(tmp_path / "v.npy", np.zeros((24, 3), np.float32))
    attach(packs[1], tmp_path / "v.npy", "only")
    with pytest.raises(UsageError, match=r"has only as array float32 \(3,\), but .* array float32 \(2,\)"):
        PackedLoader(join_packs(packs), 7, parts="only")


def test_damage_is_an_error_in_the_loader(copied: MakePack, tmp_path: Path) -> None:
    pack = copied("raw", "lmdb")
    attached(pack, tmp_path)
    flip(pack / "sidecar.vector.npy", 200)
    for on_error in ("raise", "replace"):
        with pytest.raises(DamagedPack, match=r"vector\.npy: was altered.*packer detach .* vector and attach it again"):
            list(PackedLoader(pack, 5, parts="vector", on_error=on_error))
