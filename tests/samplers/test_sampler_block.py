"""BlockShuffleSampler: what is read together, how it mixes, and the warning where that hurts."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import PackedDataset, open_pack
from packer.errors import UsageError
from packer.samplers import BlockShuffleSampler, SortedPackWarning, block, subset
from packer.samplers.order import is_sorted_by_class, label_changes, permutation_function, runs_of_neighbors

SHARDS = [100, 37, 0, 1, 250]


def check_windows(sampler: BlockShuffleSampler, epoch: int, window: int) -> list[np.ndarray]:
    """Every window reads whole runs of chosen records, and its samples are those of its runs; all its runs."""
    order = sampler.order(epoch)
    windows = list(sampler.windows(epoch))
    assert [start for start, _, _ in windows] == [0, *(stop for _, stop, _ in windows[:-1])]
    assert windows[-1][1] == len(order)
    chosen = np.sort(order)
    for start, stop, runs in windows:
        assert runs.dtype == np.int64 and 1 <= len(runs) <= window
        read = np.concatenate([chosen[(chosen >= a) & (chosen < b)] for a, b in runs])
        assert np.array_equal(np.sort(order[start:stop]), np.sort(read))
    return [runs for _, _, runs in windows]


@pytest.mark.parametrize(("block", "window"), [(1, 1), (1, 9), (7, 1), (8, 4), (64, 2), (1000, 1000)])
def test_windows_hold_whole_runs_of_one_shard(block: int, window: int) -> None:
    sampler = BlockShuffleSampler(SHARDS, 3, block=block, window=window)
    edges = np.cumsum([0, *SHARDS])
    for epoch in range(3):
        runs = np.concatenate(check_windows(sampler, epoch, window))
        lengths = runs[:, 1] - runs[:, 0]
        assert lengths.min() >= 1 and lengths.max() <= block and lengths.sum() == sum(SHARDS)
        shard_of_first = np.searchsorted(edges, runs[:, 0], side="right")
        assert np.array_equal(shard_of_first, np.searchsorted(edges, runs[:, 1] - 1, side="right"))


def test_a_subset_is_read_in_runs_of_its_records() -> None:
    records = np.flatnonzero(np.arange(sum(SHARDS)) % 5 == 2)
    sampler = BlockShuffleSampler(SHARDS, block=6, window=2, indices=records[::-1])
    check_windows(sampler, 1, 2)
    assert np.array_equal(np.sort(sampler.order()), records)


def test_the_cuts_move_from_epoch_to_epoch() -> None:
    sampler = BlockShuffleSampler(SHARDS, block=16, window=2)
    parted = 0
    for epoch in range(40):
        # whether records 48 and 49 are in the same block
        runs = np.concatenate([runs for _, _, runs in sampler.windows(epoch)])
        parted += 49 in runs[:, 0]
    assert 0 < parted < 12


def test_the_order_of_a_state_stays_what_it_was() -> None:
    order = BlockShuffleSampler([300, 0, 9000, 41], 7, block=32, window=5).order(2)
    assert hashlib.sha256(order.tobytes()).hexdigest()[:16] == "b381f74a010a04e3"


def test_a_large_order_begins_with_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def counting(size: int, key: int) -> Any:
        to = permutation_function(size, key)
        return lambda positions: (computed.append(len(positions)), to(positions))[1]

    monkeypatch.setattr(block, "permutation_function", counting)
    sampler = BlockShuffleSampler([1 << 20] * 100, nodes=8, rank=3, world_size=4, local_world_size=2)
    batches = sampler.rank_batches(256)
    first = [next(batches), next(batches)]
    assert len(np.unique(first)) == 512 and sum(computed) < 1 << 15
    whole = BlockShuffleSampler([1 << 20] * 2, block=64, window=3, rank=1, world_size=2)
    assert np.array_equal(np.concatenate(list(whole.rank_batches(1000))), whole.order()[1::2])


def test_every_record_comes_at_every_part_of_the_epoch() -> None:
    sampler = BlockShuffleSampler([40, 40], block=5, window=4)
    places = np.stack([np.argsort(sampler.order(epoch)) for epoch in range(600)])
    assert abs(places.mean(axis=0) - 39.5).max() < 5.5 * 23.1 / np.sqrt(600)
    assert (np.histogram(places[:, 17], 8, (0, 80))[0] > 40).all()


def test_shards_are_those_of_the_pack(shuffled_pack: Path) -> None:
    pack = open_pack(shuffled_pack)
    assert len(pack.reader.shards) == 4
    by_pack = BlockShuffleSampler(pack, 1, block=4, window=3)
    by_dataset = BlockShuffleSampler(PackedDataset(shuffled_pack), 1, block=4, window=3)
    by_counts = BlockShuffleSampler([shard.records for shard in pack.reader.shards], 1, block=4, window=3)
    assert by_pack.order().tolist() == by_dataset.order().tolist() == by_counts.order().tolist()
    assert BlockShuffleSampler(np.array([3, 4])).num_records == BlockShuffleSampler(7).num_records == 7


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([5], {"block": 0}, "block: .* at least 1, got 0"),
        ([5], {"window": -1}, "window: .*got -1"),
        ([5], {"block": 2.5}, "block: .*got 2.5"),
        ([5, -2], {}, "shard: .*got -2"),
        ([5], {"nodes": 0}, "nodes: .*got 0"),
        ([5], {"nodes": 6}, "nodes: is 6, for 5 records: some would get none"),
        (["a"], {}, "shard: .*got 'a'"),
        ([], {}, "0 records for 1 ranks"),
        (None, {}, "data: .*got None"),
    ],
)
def test_options_that_cannot_be_are_refused(data: object, options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BlockShuffleSampler(data, **options)  # type: ignore[arg-type]


def test_a_pack_sorted_by_class_is_warned_of(sorted_pack: Path, shuffled_pack: Path) -> None:
    with pytest.warns(SortedPackWarning, match="sorted by class: windows of 2 blocks") as caught:
        BlockShuffleSampler(PackedDataset(sorted_pack), block=8, window=2)
    assert caught[0].filename == __file__
    with pytest.warns(SortedPackWarning, match="sorted by class: the part of a machine has few classes"):
        BlockShuffleSampler(open_pack(sorted_pack), nodes=2)
    one_class = subset(open_pack(sorted_pack), lambda columns: columns["label"] == 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BlockShuffleSampler(open_pack(shuffled_pack), block=8, window=2, nodes=2)
        BlockShuffleSampler(open_pack(sorted_pack), block=8, window=100, nodes=1)  # one window holds all
        BlockShuffleSampler(open_pack(sorted_pack), block=8, window=2, indices=one_class)


def test_packs_without_labels_are_not_warned_of(boxes_pack: Path) -> None:
    BlockShuffleSampler(open_pack(boxes_pack), block=2, window=2)


def test_label_changes_against_shuffles() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    changes, expected = label_changes(labels)
    assert changes == 2
    assert abs(np.mean([label_changes(rng.permutation(labels))[0] for _ in range(2000)]) - expected) < 0.5
    assert is_sorted_by_class(labels) and not is_sorted_by_class(rng.permutation(labels))
    assert not is_sorted_by_class(np.tile([0, 1], 50))
    for trivial in ([], [3], [1, 1, 1], [0, 1]):
        assert not is_sorted_by_class(np.array(trivial, np.int32))
    nearly = labels.copy()
    nearly[[10, 60]] = 2
    assert is_sorted_by_class(nearly)


def test_a_sample_of_neighbors_shows_whether_a_large_pack_is_sorted() -> None:
    assert runs_of_neighbors(9).tolist() == list(range(9))
    sample = runs_of_neighbors(1 << 20)
    assert sample.size < 1 << 17 and (sample[0, 0], sample[-1, -1]) == (0, (1 << 20) - 1)
    labels = np.sort(np.random.default_rng(0).zipf(1.5, 1 << 20) % 1000)
    assert is_sorted_by_class(labels[sample])
    assert not is_sorted_by_class(np.random.default_rng(1).permutation(labels)[sample])
    assert not is_sorted_by_class(np.zeros(1 << 20)[sample])
