"""PackedDataset and PackedLoader of some classes or records: the samples of a plain list, for every sampler."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from loader_packs import alike
from torch.utils.data import DataLoader

from packer import PackedDataset, PackedLoader, collate, join_packs, open_pack
from packer.errors import UsageError
from packer.samplers import (
    BalancedSampler,
    BlockShuffleSampler,
    MixtureSampler,
    Sampler,
    SequentialSampler,
    ShuffleSampler,
    subset,
)

# Python 3.12 warns of any fork in a process with threads, which torch has; packs here are sorted by class
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning", "ignore:.*sorted by class")

SAMPLERS = {
    "sequential": SequentialSampler,
    "shuffle": ShuffleSampler,
    "block": lambda data, **options: BlockShuffleSampler(data, block=3, window=2, **options),
    "nodes": lambda data, **options: BlockShuffleSampler(data, block=3, window=2, nodes=2, **options),
    "balanced": lambda data, **options: BalancedSampler(data, 0.5, **options),
    "mixture": lambda data, **options: MixtureSampler(data, [1], **options),
}


def noisy(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The image and a number of this record and epoch."""
    return image.float() + torch.rand((), generator=generator)


def records_of(pack: Any, *names: str) -> list[int]:
    """The plain list of the records of some classes."""
    ids = [pack.classes.index(name) for name in names]
    return [i for i in range(len(pack)) if pack.annotation(i).label in ids]


@pytest.fixture(params=["classes", "indices"])
def some(request, make_pack):
    """A dataset of the bees and cats of a raw pack; by their numbers, in an order of its own."""
    pack = open_pack(make_pack("raw", "lmdb"))
    if request.param == "classes":
        return PackedDataset(pack, classes=["bee", "cat"])
    return PackedDataset(pack, indices=np.random.default_rng(3).permutation(records_of(pack, "bee", "cat")))


@pytest.mark.parametrize("kind", ["raw", "ragged", "boxes"])
def test_it_is_the_list_of_these_samples(make_pack, container, kind):
    whole = PackedDataset(make_pack(kind, container))
    *ids, _ = sorted({label for label in whole.labels.tolist() if label >= 0}, reverse=True)
    names = [whole.classes[i] for i in ids]
    records = records_of(whole.pack, *names)
    assert 1 < len(records) < len(whole)
    for classes in (names, tuple(ids), np.array(ids), [names[0], *ids]):
        data = PackedDataset(whole.pack, classes=classes)
        assert data.indices.tolist() == records and len(data) == len(records)
    expected = [whole[i] for i in records]
    assert alike([data[i] for i in range(len(data))], expected)
    assert alike([data[i - len(data)] for i in range(len(data))], expected)
    assert alike(list(data.__getitems__([1, -1, 0])), [expected[i] for i in (1, -1, 0)])
    assert alike(list(data.targets), [target for _, target in expected]) and len(data.targets) == len(data)
    assert data.labels.tolist() == [whole.labels[i] for i in records]
    assert data.keys == [whole.keys[i] for i in records] and data.paths == [whole.paths[i] for i in records]
    for name in ("width", "boxes", "landmarks", "box_labels", "source_xxh3"):
        rows = zip(data.column(name), records, strict=True)
        assert all(np.array_equal(row, whole.column(name)[i]) for row, i in rows)
    assert data.classes == whole.classes and data.class_to_idx == whole.class_to_idx
    for index in (len(data), -len(data) - 1):
        with pytest.raises(IndexError):
            data[index]
        with pytest.raises(IndexError):
            data.__getitems__([0, index])


def test_one_class_may_be_named_alone(make_pack):
    pack = open_pack(make_pack("raw", "lmdb"))
    for classes in ("bee", 1, ["bee"]):
        assert PackedDataset(pack, classes=classes).indices.tolist() == records_of(pack, "bee")
    assert PackedDataset(pack).indices is None  # no memory for a pack of many records
    assert repr(PackedDataset(pack, classes="bee")).startswith("PackedDataset(8 of <Pack ")


def test_numbers_keep_their_order_and_classes_choose_of_them(make_pack):
    pack = open_pack(make_pack("raw", "lmdb"))
    numbers = [23, 0, 9, 4, 12]
    data = PackedDataset(pack, indices=numbers)
    assert data.indices.tolist() == numbers and data.labels.tolist() == [2, 0, 1, 0, 1]
    assert torch.equal(data[2][0], PackedDataset(pack)[9][0])
    assert PackedDataset(pack, indices=numbers, classes=["cat", "bee"]).indices.tolist() == [23, 9, 12]


def test_of_joined_packs_names_choose_from_all(make_pack, pack):
    joined = join_packs([make_pack("raw", "lmdb"), pack("raw", "hdf5")])
    data = PackedDataset(joined, classes="bee")
    assert data.indices.tolist() == records_of(joined, "bee")
    assert {joined.part_of(int(i))[0] for i in data.indices} == {0, 1}
    assert [data[i][1] for i in range(len(data))] == [1] * len(data)


def test_workers_read_these_samples(some):
    whole = PackedDataset(some.pack)
    again = pickle.loads(pickle.dumps(some))
    assert again.indices.tolist() == some.indices.tolist()
    loader = DataLoader(again, 5, num_workers=2, multiprocessing_context="fork")
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        assert alike([image, int(label)], list(whole[int(some.indices[row])]))
    assert len(images) == len(some)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_samplers_number_the_samples_of_the_dataset(some, kind):
    """A DataLoader and a PackedLoader read the same records, those of a sampler of the pack with these numbers."""
    make = SAMPLERS[kind]
    sampler, of_pack = make(some), make(some.pack, indices=some.indices)
    assert len(sampler) == len(some) and repr(sampler) == repr(of_pack)
    for epoch in range(2):
        assert some.indices[sampler.order(epoch)].tolist() == of_pack.order(epoch).tolist()
    assert sampler.identity == of_pack.identity
    of_pack.load_state_dict(sampler.state_at(1, 3))
    loader = PackedLoader(some, 5, sampler=sampler, with_index=True)
    theirs = PackedLoader(some.pack, 5, sampler=of_pack, with_index=True)
    theirs.set_epoch(0)
    for ours, batch, plain in zip(loader, theirs, DataLoader(some, 5, sampler=make(some)), strict=True):
        assert alike(list(ours), list(batch))
        assert torch.equal(plain[0], ours[0]) and torch.equal(plain[1], ours[1])
    assert loader.epoch == sampler.epoch
    few = make(some, indices=[4, 2, 7])
    assert {int(some.indices[i]) for i in few} <= set(some.indices[[4, 2, 7]].tolist())


@pytest.mark.parametrize("kind", SAMPLERS)
def test_any_sampler_of_the_dataset_moves_its_epoch(make_pack, kind):
    data = PackedDataset(make_pack("raw", "lmdb"), transform=noisy)
    for _ in range(2):
        expected = PackedLoader(data, 5, sampler=SAMPLERS[kind](data))
        loader = DataLoader(data, 5, sampler=SAMPLERS[kind](data))
        for _ in range(2):
            for (images, _), (same, _) in zip(loader, expected, strict=True):
                assert torch.equal(images, same)
        data = PackedDataset(data.pack, classes="bee", transform=noisy)


def test_subset_selects_samples_of_the_dataset(some):
    seen: list[Any] = []
    chosen = subset(some, lambda columns: seen.append(columns["path"]) or (columns["label"] == 2))
    assert len(seen[0]) == len(some) and {some[int(i)][1] for i in chosen} == {2}
    loader = PackedLoader(some, 5, indices=chosen, with_index=True)
    assert [int(i) for *_, records in loader for i in records] == some.indices[chosen].tolist()
    with pytest.raises(UsageError, match=r"must return bool of shape \(16,\)"):
        subset(some, lambda columns: True)


def test_a_loader_of_classes(make_pack):
    pack = open_pack(make_pack("raw", "lmdb"))
    records = records_of(pack, "ant", "cat")
    loader = PackedLoader(pack, 3, classes=["ant", "cat"], shuffle=True, with_index=True)
    batches = list(loader)
    assert sorted(int(i) for *_, numbers in batches for i in numbers) == records
    same = PackedLoader(PackedDataset(pack, classes=["ant", "cat"]), 3, shuffle=True, with_index=True)
    assert alike(list(map(list, same)), list(map(list, batches)))
    assert {label for _, labels in PackedLoader(pack, 3, classes=2) for label in labels.tolist()} == {2}
    few = PackedLoader(pack, 3, classes="cat", indices=[0, 20, 9, 17], with_index=True)
    assert [int(i) for *_, numbers in few for i in numbers] == [20, 17]
    state = loader.state_dict()
    PackedLoader(pack, 3, indices=records, shuffle=True).load_state_dict(state)
    with pytest.raises(UsageError, match="num_samples is 16 in the state, 24 here"):
        PackedLoader(pack, 3, shuffle=True).load_state_dict(state)
    with pytest.raises(UsageError, match=r"records is .* in the state"):
        PackedLoader(pack, 3, classes=["ant", "bee"], shuffle=True).load_state_dict(state)


def test_a_loader_of_several_packs_in_shares_takes_classes(make_pack, pack):
    shares = {make_pack("raw", "lmdb"): 0.5, pack("raw", "hdf5"): 0.5}
    assert {x for _, labels in PackedLoader(shares, 5, classes="bee") for x in labels.tolist()} == {1}


def test_a_loader_of_a_dataset_resumes_in_a_copy(some):
    for options in ({"shuffle": True}, {"sampler": ShuffleSampler(some)}):
        loader = PackedLoader(some, 3, with_index=True, **options)
        batches = iter(loader)
        next(batches)
        copy = pickle.loads(pickle.dumps(loader))
        assert alike([list(batch) for batch in copy], [list(batch) for batch in batches])


def test_boxes_of_some_records_have_their_own_numbers(make_pack):
    """`image_id` and random numbers are those of the pack, whatever else is read."""
    data = PackedDataset(make_pack("boxes", "lmdb"), indices=[7, 2], transform=noisy)
    whole = PackedDataset(data.pack, transform=noisy)
    assert [data[i][1].get("image_id", n) for i, n in enumerate((7, 2))] == [7, 2]
    assert torch.equal(data[1][0], whole[2][0])
    images, targets = next(iter(DataLoader(data, 2, collate_fn=collate)))
    assert alike([images[0], targets[0]], list(whole[7]))


def test_what_does_not_name_records_is_refused(make_pack, tmp_path):
    pack = open_pack(make_pack("raw", "lmdb"))
    for make in (PackedDataset, lambda *a, **o: PackedLoader(*a, 4, **o)):
        with pytest.raises(UsageError, match=r"has no class beee; did you mean bee\?"):
            make(pack, classes=["ant", "beee"])
        for wrong in (3, -1, [1.5]):
            with pytest.raises(UsageError, match="has no class"):
                make(pack, classes=wrong)
        for none in ([], ()):
            with pytest.raises(UsageError, match=r"classes: .*no image has such a label"):
                make(pack, classes=none)
        with pytest.raises(UsageError, match="indices: is empty"):
            make(pack, indices=[])
        with pytest.raises(UsageError, match="indices: must be from 0 to 23"):
            make(pack, indices=[24])
        with pytest.raises(UsageError, match=r"classes: .*no image has such a label"):
            make(pack, indices=[0], classes="cat")


def test_a_sampler_of_other_records_is_refused(make_pack):
    data = PackedDataset(make_pack("raw", "lmdb"), classes="bee")
    whole: Sampler = ShuffleSampler(data.pack)
    for other in (whole, ShuffleSampler(PackedDataset(data.pack, classes="ant"))):
        with pytest.raises(UsageError, match="sampler: reads records that the dataset does not have"):
            PackedLoader(data, 4, sampler=other)
    with pytest.raises(UsageError, match="classes: cannot be combined with a sampler"):
        PackedLoader(data, 4, sampler=whole, classes="bee")
    assert len(PackedLoader(data.pack, 4, sampler=ShuffleSampler(data))) == 2
    assert len(PackedLoader(data, 4, sampler=ShuffleSampler(data.pack, indices=data.indices[:3]))) == 1


def test_classes_of_a_pack_without_labels_of_images(pack, tmp_path):
    from packer import BuildOptions, build_pack

    source = open_pack(pack("boxes")).path
    build_pack(BuildOptions(f"{source}/../source", str(tmp_path / "p"), "lmdb", workers=1, labels=("voc",)))
    with pytest.raises(UsageError, match=r"have none; write indices=pack.where\(box_label=...\)"):
        PackedDataset(tmp_path / "p", classes=[0])
    data = PackedDataset(tmp_path / "p", indices=open_pack(tmp_path / "p").where(box_label=0))
    assert all(0 in labels for labels in data.box_labels)
