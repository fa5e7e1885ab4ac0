"""Several packs as one, and in shares: pixels and names are those of each pack, wherever and however it is stored."""

from __future__ import annotations

import pickle
import re
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from broken_packs import broken
from loader_packs import alike, fresh
from packs import needs_cache
from torch.utils.data import DataLoader

from packer import (
    BuildOptions,
    PackedDataset,
    PackedLoader,
    RandomResizedCrop,
    Resize,
    build_pack,
    collate,
    join_packs,
    open_pack,
)
from packer.errors import DamagedPack, DamagedRecordWarning, UsageError
from packer.format.mmap import Region
from packer.loading import page_cache
from packer.samplers import BalancedSampler, MixtureSampler, ShuffleSampler, subset
from packer.stores import cache
from packer.stores.blocks import BlockLayout

sys.path.insert(0, str(Path(__file__).parent.parent / "stores"))

from served import Served

OPTIONS = {"threads": 2, "seed": 3, "with_index": True}


@pytest.fixture
def turned(pack, tmp_path):
    """turned(kind, container): the pack of a kind again, its classes the other way around, and one more."""

    def make(kind: str, container: str = "tfrecord") -> Path:
        first = pack(kind)
        names = tmp_path / f"{kind}.names"
        names.write_text("\n".join(("zebra", *reversed(open_pack(first).classes))))
        options = dict(open_pack(first).manifest.options)
        out = tmp_path / f"{kind}.{container}"
        if out.exists():
            return out
        again = {name: options[name] for name in ("encode", "mode") if name in options}
        labels = {
            "labels": ("voc", f"list:{first.parent / 'source' / 'landmarks.txt'}"),
            "columns": ("path (x y)*5 label",),
        }
        again |= labels if kind == "boxes" else {}
        build_pack(
            BuildOptions(str(first.parent / "source"), str(out), container, workers=1, classes=str(names), **again)
        )
        return out

    return make


def named(target: Any, classes: list[str]) -> Any:
    """A target with names in place of class ids, and without the number of its record."""
    if not isinstance(target, dict):
        return classes[int(target)]
    named = {name: value for name, value in target.items() if name != "image_id"}
    for name in ("label", "labels"):
        if name in named:
            named[name] = [classes[i] for i in np.atleast_1d(named[name]).tolist()]
    return named


def check(loader: PackedLoader, batches: list[Any]) -> Counter[int]:
    """Hold each sample against the one that its own pack has, and count those of each pack."""
    known = [PackedDataset(pack) for pack in loader.pack.packs]
    found: Counter[int] = Counter()
    for images, targets, records in batches:
        for image, target, record in zip(images, targets, records.tolist(), strict=True):
            number, inside = loader.pack.part_of(record)
            own_image, own_target = known[number][inside]
            if image.shape == own_image.shape:
                assert torch.equal(image, own_image)
            assert alike(named(target, loader.pack.classes), named(own_target, known[number].classes))
            found[number] += 1
    return found


@pytest.mark.parametrize(
    ("kinds", "container"),
    [
        (("raw", "raw"), "tfrecord"),
        (("raw", "raw"), "hdf5"),
        (("raw", "jpeg"), "webdataset"),
        (("png", "raw"), "lmdb"),
        (("boxes", "boxes"), "tfrecord"),
        (("gray16", "gray16"), "parquet"),
    ],
)
def test_samples_are_those_of_their_packs(pack, turned, kinds, container):
    packs = {str(pack(kinds[0])): 3, turned(kinds[1], container): 1}
    loader = PackedLoader(packs, 5, samples_per_epoch=40, **OPTIONS)
    assert loader.pack.classes[: len(open_pack(pack(kinds[0])).classes)] == open_pack(pack(kinds[0])).classes
    assert loader.pack.classes[-1] == "zebra"
    for epoch in range(3):
        assert check(loader, list(loader)) == {0: 30, 1: 10}, epoch


@pytest.mark.parametrize("kinds", [("ragged", "copy"), ("ragged", "ragged"), ("photos", "copy"), ("copy", "raw")])
def test_images_of_all_sizes_and_encodings_are_cropped_as_each_pack_alone(pack, turned, kinds):
    packs = [pack(kinds[0]), turned(kinds[1])]
    resize = Resize((8, 6))
    alone = [next(iter(PackedLoader(path, 27, crop=resize)))[0] for path in packs]
    loader = PackedLoader(dict.fromkeys(packs, 0.5), 4, crop=resize, **OPTIONS)
    batches = list(loader)
    check(loader, batches)
    for images, _, records in batches:
        for image, record in zip(images, records.tolist(), strict=True):
            number, inside = loader.pack.part_of(record)
            assert torch.equal(image, alone[number][inside])


def test_the_first_packs_crops_are_those_it_has_alone(pack, turned):
    options = {**OPTIONS, "crop": RandomResizedCrop(6), "flip": True}
    alone = PackedLoader(pack("raw"), 27, shuffle=True, **options)
    expected = [dict(zip(records.tolist(), images, strict=True)) for images, _, records in islice(alone, 1)]
    for images, _, records in PackedLoader({pack("raw"): 1, turned("raw"): 1}, 9, **options):
        for image, record in zip(images, records.tolist(), strict=True):
            assert record >= 27 or torch.equal(image, expected[0][record])


def test_a_run_resumes_at_another_world_size(pack, turned):
    joined = join_packs([pack("raw"), turned("jpeg")])

    def loaders(world):
        order = [MixtureSampler(joined, (2, 1), 3, num_samples=70, rank=r, world_size=world) for r in range(world)]
        return [PackedLoader(joined, 12 // world, sampler=one, crop=RandomResizedCrop(6), **OPTIONS) for one in order]

    def together(world, state=None, stop=None):
        parts = loaders(world)
        for loader in parts:
            loader.load_state_dict(state) if state else loader.set_epoch(1)
        got = [list(islice(loader, stop)) for loader in parts]
        images = [torch.stack([batch[0] for batch in row], dim=1).flatten(0, 1) for row in zip(*got, strict=True)]
        return torch.cat(images), parts[0].state_dict()

    whole, _ = together(1)
    for world, other in [(1, 12), (2, 3), (4, 1), (6, 4), (12, 2), (3, 6)]:
        begun, state = together(world, stop=2)
        rest, _ = together(other, state)
        assert torch.equal(torch.cat([begun, rest])[:70], whole[:70])


def test_a_loader_pickles_and_its_state_is_for_these_shares(pack, turned):
    packs = {pack("raw"): 0.7, turned("raw"): 0.3}
    loader = PackedLoader(packs, 4, **OPTIONS)
    expected = list(loader)
    assert len(loader) == len(expected) == 14
    loader.set_epoch(0)
    begun = list(islice(loader, 5))
    again = pickle.loads(pickle.dumps(loader))
    assert alike(begun + list(again), expected)
    assert "<Pack: 54 records of <Pack" in repr(loader) and "MixtureSampler" in repr(again)
    with pytest.raises(UsageError, match="weights is '7,3' in the state, '1,1' here"):
        PackedLoader(dict.fromkeys(packs, 1), 4, **OPTIONS).load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="pack is '"):
        PackedLoader({pack("raw"): 0.7, turned("png"): 0.3}, 4, **OPTIONS).load_state_dict(loader.state_dict())


def test_a_joined_pack_with_other_samplers_and_loaders(pack, turned):
    joined = join_packs([pack("boxes"), turned("boxes")])
    loader = PackedLoader(joined, 4, shuffle=True, **OPTIONS)
    assert check(loader, list(loader)) == {0: 9, 1: 9}
    balanced = PackedLoader(joined, 4, sampler=BalancedSampler(joined, by="box_labels"), with_index=True)
    check(balanced, list(balanced))
    nights = subset(joined, lambda columns: columns["label"] == joined.classes.index("night"))
    assert len(nights) == 8
    some = PackedLoader({pack("boxes"): 1, turned("boxes"): 2}, 2, indices=nights, samples_per_epoch=12, **OPTIONS)
    batches = list(some)
    assert check(some, batches) == {0: 4, 1: 8} and {
        target["label"] for _, found, _ in batches for target in found
    } == {joined.classes.index("night")}
    dataset = PackedDataset(joined)
    sampler = MixtureSampler(dataset, (1, 2), num_samples=12)
    images = [image for images, _ in DataLoader(dataset, 4, sampler=sampler, collate_fn=collate) for image in images]
    assert all(torch.equal(image, dataset[i][0]) for image, i in zip(images, sampler.order(0), strict=True))
    assert joined.keys == [joined.key(i) for i in range(18)] and joined.paths[:9] == joined.paths[9:]
    for i in range(18):
        number, inside = joined.part_of(i)
        own, mine = joined.packs[number].annotation(inside), joined.annotation(i)
        names = [[c[j] for j in a.box_labels] for c, a in ((joined.classes, mine), (joined.packs[number].classes, own))]
        assert names[0] == names[1] and np.array_equal(joined.image(i), joined.packs[number].image(inside))
    assert np.array_equal(joined.column("label"), joined.reader.values("label", np.arange(18)))
    assert [row.tolist() for row in joined.column("box_labels")] == [
        joined.annotation(i).box_labels.tolist() for i in range(18)
    ]
    assert joined.reader.locate(9) == (len(joined.packs[0].reader.shards), 0)


@pytest.mark.parametrize("where", ["ram", "device"])
def test_all_packs_are_cached(pack, turned, where):
    packs = {pack("raw"): 1, turned("raw"): 1}
    options = {**OPTIONS, "crop": Resize(6, interpolation="nearest")}
    loader = PackedLoader(packs, 4, cache=where, **options)
    assert where == "device" or loader._ram.wait(60)
    assert alike(list(loader), list(PackedLoader(packs, 4, **options)))


def test_cold_packs_are_asked_for(pack, turned, monkeypatch):
    joined = join_packs([pack("raw"), turned("jpeg")])
    asked = Counter()
    monkeypatch.setattr(Region, "share_in_memory", lambda region, offsets: 0.0)
    monkeypatch.setattr(Region, "fetch", lambda region, *places: asked.update({id(region): len(places[0])}))
    batches = [np.array([0, 30, 1]), np.array([40]), np.array([2, 3])]
    assert [records.tolist() for records in page_cache.announced(batches, joined)] == [[0, 30, 1], [40], [2, 3]]
    assert asked == {id(joined.packs[0].reader.region): 4, id(joined.packs[1].reader.region): 2}


@needs_cache
@pytest.mark.parametrize("cache_bytes", [None, 0])
def test_packs_at_urls_and_in_folders(pack, turned, tmp_path, monkeypatch, cache_bytes):
    monkeypatch.setattr(BlockLayout, "BLOCK_BYTES", 512)
    monkeypatch.setenv("PACKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_caches", {})
    local = [pack("raw"), turned("jpeg", "webdataset"), turned("raw", "tfrecord")]
    with Served(local[1]) as one, Served(local[2]) as other:
        for kept in ([local[0], one.url, other.url], [one.url, local[0], other.url], [one.url, other.url]):
            paths = [{one.url: local[1], other.url: local[2]}.get(path, path) for path in kept]
            expected = list(PackedLoader(dict.fromkeys(paths, 1), 4, **OPTIONS))
            loader = PackedLoader(dict.fromkeys(kept, 1), 4, cache_bytes=cache_bytes, **OPTIONS)
            assert alike(list(loader), expected)
            loader.set_epoch(0)
            assert alike(list(islice(loader, 3)), expected[:3])
            again = PackedLoader(dict.fromkeys(kept, 1), 4, cache_bytes=cache_bytes, cache="ram", **OPTIONS)
            assert again._ram.wait(60) and alike(list(again), expected)
            if cache_bytes is None:
                assert set(one.blocks().values()) | set(other.blocks().values()) <= {1}


@needs_cache
def test_a_cache_that_cannot_hold_all_packs_is_refused(pack, turned, tmp_path, monkeypatch):
    monkeypatch.setenv("PACKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_caches", {})
    packs = {pack("raw").as_uri(): 1, turned("raw").as_uri(): 1}
    room = sum(shard.container.bytes for path in packs for shard in open_pack(path[7:]).reader.shards)
    loader = PackedLoader(packs, 4, cache_bytes=room)
    with pytest.raises(
        UsageError, match=r"cache_bytes: leaves .* for images, but these packs have .* or more"
    ) as caught:
        next(iter(loader))
    enough = int(caught.value.next_step.split("=")[1].split()[0])
    assert len(list(PackedLoader(packs, 4, cache_bytes=enough))) == 14


def test_damage_names_its_pack_and_is_replaced(pack, turned, tmp_path):
    bad = broken(turned("raw"), tmp_path / "bad", [5])
    packs = {pack("raw"): 1, bad: 1}
    with pytest.raises(DamagedPack, match=r"bad.*record 00000005 .*does not match its checksum"):
        list(PackedLoader(packs, 4))
    loader = PackedLoader(packs, 4, on_error="replace", **OPTIONS)
    with pytest.warns(DamagedRecordWarning, match=f"^{re.escape(str(bad))}: record 00000005 .*; replaced"):
        batches = list(loader)
    assert [one.record for one in loader.replaced] == [32] and loader.stats()["replaced"] == 1
    check(loader, [(images, targets, records) for images, targets, records in batches if 32 not in records])
    assert all(32 not in records for _, _, records in batches)


def test_what_cannot_be_mixed_is_refused(pack, turned, tmp_path):
    raw, other = pack("raw"), turned("raw")
    bytewise = fresh(raw)
    for packs, options, message in [
        ({raw: 0.5, other: 0}, {}, "weights: must be positive numbers, got 0"),
        ({raw: 0.5, other: 0.5}, {"sampler": ShuffleSampler(54)}, r"sampler: cannot .* pass packer.join_packs\("),
        ({raw: 0.5, open_pack(raw): 0.5}, {}, "is the same pack as"),
        (
            {raw: 0.5, PackedDataset(other): 0.5},
            {},
            "must be the directory of a pack, or an open one, got PackedDataset",
        ),
        ({}, {}, "packs: is empty"),
        ([raw, other], {}, r"got list; join packs: packer.join_packs\(\[PACK, ...\]\)"),
        ({raw: 1, pack("boxes"): 1}, {}, "has no boxes, but .* has: its images would count as without any"),
        ({raw: 1, pack("gray"): 1}, {}, 'has mode gray, but .* rgb; build it again with mode="rgb"'),
        ({raw: 1, join_packs([raw, other]): 1}, {}, "is joined already"),
        (raw, {"samples_per_epoch": 5}, "samples_per_epoch: is for several packs, but this is one"),
        ({raw: 1}, {"samples_per_epoch": 0}, "samples_per_epoch: must be"),
    ]:
        with pytest.raises(UsageError, match=message):
            PackedLoader(packs, 4, **options)
    for packs in (str(raw), {raw: 0.5, other: 0.5}, None):
        with pytest.raises(UsageError, match=r"packs: must be a list of packs, got .*; pass a list; for shares, "):
            join_packs(packs)
    with pytest.raises(ValueError, match="images differ in size; give a crop"):
        PackedLoader({raw: 1, pack("ragged"): 1}, 4)
    images = torch.cat([images for images, _ in PackedLoader({raw: 2}, 4, shuffle=True)])
    assert sorted(map(bytes, images.numpy())) == sorted(bytes(image.numpy()) for image, _ in bytewise)
