"""on_error="replace": which record replaces a damaged one, and how that is reported."""

from __future__ import annotations

import warnings
from itertools import islice

import numpy as np
import pytest
import torch
from broken_packs import broken
from loader_packs import RECORDS, alike

import packer.loading.stand_ins as stand_ins_module
from packer import CenterCrop, PackedLoader, RandomResizedCrop, open_pack
from packer.errors import DamagedPack, DamagedRecordWarning, UsageError
from packer.samplers import BalancedSampler, ShuffleSampler

BAD = [3, 4, 11, 26]
QUIET = pytest.mark.filterwarnings("ignore::packer.errors.DamagedRecordWarning")


@pytest.fixture
def damaged(pack, tmp_path):
    """damaged(kind, bad): a copy of a pack with these records damaged."""
    return lambda kind, bad=BAD: broken(pack(kind), tmp_path / f"{kind}.{len(bad)}", list(bad))


def numbers_of(path, images):
    """Which records these whole raw images are."""
    pack = open_pack(path)
    known = {bytes(pack.record(i)): i for i in range(len(pack))}
    return [known[np.ascontiguousarray(image.permute(1, 2, 0).numpy()).tobytes()] for image in images]


def epoch_of(path, epoch=0, batch_size=4, **options):
    loader = PackedLoader(path, batch_size, on_error="replace", **{"threads": 2, **options})
    loader.set_epoch(epoch)
    return list(loader), loader


def test_raise_is_the_default(damaged):
    path = damaged("raw")
    with pytest.raises(DamagedPack) as caught:
        list(PackedLoader(path, 4))
    error = caught.value
    assert (error.pack, error.key) == (str(path), "00000003") and error.shard.startswith("shard-00000.")
    with pytest.raises(UsageError, match="on_error"):
        PackedLoader(path, 4, on_error="skip")


@QUIET
def test_batches_stay_whole_and_targets_go_along(pack, damaged):
    batches, loader = epoch_of(damaged("raw"))
    assert [len(images) for images, _ in batches] == [4] * 6 + [3]
    images, targets = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])
    got = numbers_of(pack("raw"), images)
    assert [i for i, number in enumerate(got) if i != number] == BAD
    assert not set(got) & set(BAD)
    labels = open_pack(pack("raw")).column("label")
    assert targets.tolist() == [int(labels[number]) for number in got]
    assert loader.stats()["replaced"] == 4
    assert [(r.record, r.key) for r in loader.replaced] == [(n, f"{n:08d}") for n in BAD]
    good = open_pack(pack("raw"))
    for replaced in loader.replaced:
        assert "does not match its checksum" in replaced.problem
        assert replaced.shard == good.reader.shards[good.reader.locate(replaced.record)[0]].container.name


@QUIET
@pytest.mark.parametrize("kind", ["raw", "jpeg", "boxes", "photos"])
@pytest.mark.parametrize("view", [{}, {"crop": RandomResizedCrop(6), "flip": True}], ids=["whole", "cropped"])
def test_the_same_for_any_number_of_threads(damaged, kind, view):
    if kind == "photos" and not view:
        view = {"crop": CenterCrop(20)}
    path = damaged(kind, [1, 5])
    options = {"shuffle": True, "seed": 5, "epoch": 3, **view}
    expected, loader = epoch_of(path, threads=1, **options)
    assert loader.stats()["replaced"] == 2
    for threads in (2, 3):
        assert alike(epoch_of(path, threads=threads, **options)[0], expected)
    assert alike(epoch_of(path, cache="ram", **options)[0], expected)
    assert not alike(epoch_of(path, **{**options, "seed": 6})[0], expected)
    other, _ = epoch_of(path, batch_size=9, **options)
    both = [[image for images, _ in batches for image in images] for batches in (other, expected)]
    assert all(map(torch.equal, *both))


@QUIET
def test_the_same_from_the_devices_cache(damaged):
    path = damaged("raw")
    for view in ({}, {"flip": 0.5}):
        expected, _ = epoch_of(path, shuffle=True, **view)
        found, loader = epoch_of(path, shuffle=True, cache="device", **view)
        assert alike(found, expected) and loader.stats()["replaced"] == 4 and len(loader.replaced) == 4
    with pytest.raises(DamagedPack):
        PackedLoader(path, 4, cache="device")


@QUIET
def test_another_stand_in_in_each_epoch(pack, damaged):
    path, seen = damaged("raw", [7]), set()
    for epoch in range(12):
        batches, _ = epoch_of(path, epoch)
        seen.add(numbers_of(pack("raw"), torch.cat([images for images, _ in batches]))[7])
    assert len(seen) > 5


@QUIET
@pytest.mark.parametrize("kind", ["shuffle", "balanced"])
def test_a_subset_is_replaced_from_the_subset(pack, damaged, kind):
    chosen = [2, 3, 4, 5, 11, 19]
    path = damaged("raw")
    make = ShuffleSampler if kind == "shuffle" else BalancedSampler
    for epoch in range(5):
        batches, _ = epoch_of(path, epoch, sampler=make(open_pack(path), 0, indices=chosen))
        got = numbers_of(pack("raw"), torch.cat([images for images, _ in batches]))
        assert set(got) <= set(chosen) - set(BAD) and len(got) == 6


@QUIET
def test_candidates_that_are_bad_are_passed_over(pack, damaged):
    path = damaged("raw", [n for n in range(RECORDS) if n != 17])
    batches, loader = epoch_of(path)
    assert numbers_of(pack("raw"), torch.cat([images for images, _ in batches])) == [17] * RECORDS
    assert loader.stats()["replaced"] == RECORDS - 1


@QUIET
def test_nothing_that_can_be_read(damaged):
    path = damaged("raw", range(RECORDS))
    for cache in (None, "device"):
        with pytest.raises(DamagedPack, match=f"none of the {RECORDS} records of epoch 0 can be read"):
            epoch_of(path, cache=cache)


@QUIET
@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_every_position_resumes_exactly(damaged, kind):
    path = damaged(kind)
    options = {"shuffle": True, "crop": RandomResizedCrop(6), "flip": True}
    whole, _ = epoch_of(path, 2, **options)
    for position in range(len(whole)):
        first = PackedLoader(path, 4, on_error="replace", threads=2, **options)
        first.set_epoch(2)
        iteration = iter(first)
        received = list(islice(iteration, position))
        again = PackedLoader(path, 4, on_error="replace", threads=1, **options)
        again.load_state_dict(first.state_dict())
        assert alike(received + list(again), whole)


@QUIET
def test_what_cannot_be_decoded_is_replaced_too(pack, monkeypatch):
    loader = PackedLoader(pack("jpeg"), 4, on_error="replace", verify=False)
    places = loader.pack.reader.places

    def cut(records):
        starts, sizes = places(records)
        return starts, np.where(records == 5, sizes // 2, sizes)

    monkeypatch.setattr(loader.pack.reader, "places", cut)
    images = torch.cat([images for images, _ in loader])
    assert len(images) == RECORDS and loader.stats()["replaced"] == 1
    assert "cannot be decoded" in loader.replaced[0].problem
    good = torch.cat([images for images, _ in PackedLoader(pack("jpeg"), 4)])
    assert [i for i in range(RECORDS) if not torch.equal(images[i], good[i])] == [5]


@QUIET
def test_no_order_of_the_whole_epoch_is_made(damaged, monkeypatch):
    path = damaged("raw")
    expected, _ = epoch_of(path, sampler=ShuffleSampler(open_pack(path), 5))
    monkeypatch.setattr(ShuffleSampler, "_order", None)
    batches, loader = epoch_of(path, sampler=ShuffleSampler(open_pack(path), 5))
    assert alike(batches, expected) and len(loader.replaced) == 4


def test_one_warning_a_record(damaged, monkeypatch):
    monkeypatch.setattr(stand_ins_module, "_warned", set())
    path = damaged("raw")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(3):
            epoch_of(path, epoch)
    assert len(caught) == 4 and {w.category for w in caught} == {DamagedRecordWarning}
    assert "record 00000003" in str(caught[0].message) and str(path) in str(caught[0].message)


@QUIET
def test_the_list_is_bounded_and_the_count_is_not(damaged, monkeypatch):
    monkeypatch.setattr(stand_ins_module, "MOST_LISTED", 2)
    _, loader = epoch_of(damaged("raw"))
    assert len(loader.replaced) == 2 and loader.stats()["replaced"] == 4


@pytest.mark.parametrize("cache", [None, "device"])
def test_a_damaged_index_is_not_replaced(pack, tmp_path, cache):
    path = broken(pack("raw"), tmp_path / "p", [])
    index = sorted(path.glob("*.index.arrow"))[1]
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    with pytest.raises(DamagedPack) as caught:
        epoch_of(path, cache=cache)
    error = caught.value
    assert error.where == str(index) and error.key is None
    assert error.shard == index.name.replace(".index.arrow", ".lmdb") and error.pack == str(path)


def test_nothing_is_looked_into_where_nothing_is_wrong(pack, monkeypatch):
    monkeypatch.setattr(stand_ins_module.Replacer, "stand_ins", None)
    for kind in ("raw", "jpeg"):
        batches, loader = epoch_of(pack(kind))
        assert loader.replaced == [] and loader.stats()["replaced"] == 0 and len(batches) == 7
