"""Random combinations of what a loader can do, on ranks, in threads, resumed: the batches are those of a plain loader.

`plain_loader` is that loader. `combinations` draws each case out of its number alone, and lists what is refused.
"""

from __future__ import annotations

import io
import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from combinations import COUNT, PATCHES, Case, completed, draw_case, item_of, refusals, write_pack
from packs import MakePack
from plain_batches import assert_same, collated, formed, most_off, patches_of, scale_of
from plain_loader import PlainLoader, View, shares_of

from packer import Mosaic, PackedLoader, join_packs, open_pack
from packer.errors import UsageError
from packer.samplers import (
    BalancedSampler,
    BlockShuffleSampler,
    BucketSampler,
    MixtureSampler,
    RepeatedSampler,
    SequentialSampler,
    ShuffleSampler,
    WeightedSampler,
)
from packer.samplers.order import VISIT, derive

CASES = 130
FIRST = 2
"""The epoch that is interrupted."""
SEED = 3
USUAL = {"flip": 0.5, "vflip": 0.5, "rotate90": 0.75}


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """packs(case): the pack of a case, or two that are joined, and its samples as they are."""
    return packs_in(tmp_path_factory.mktemp("combinations"))


def packs_in(root: Path) -> Any:
    made: dict[tuple[Any, ...], tuple[Path, list[Any]]] = {}

    def one(kind: str, sizes: str, encode: str, first: int) -> tuple[Path, list[Any]]:
        key = kind, sizes, encode, first
        if key in made:
            return made[key]
        items, path = [item_of(kind, sizes, first + i) for i in range(COUNT)], root / "-".join(map(str, key))
        write_pack(path, items, encode)
        for i, item in enumerate(items) if encode == "jpeg" else ():  # its own decoder says what its pixels are
            item["image"] = open_pack(path).image(i)
            if "right" in item:
                item["right"] = open_pack(path).part(i, "right")
        return made.setdefault(key, (path, [completed(kind, item) for item in items]))

    def opened(case: Case) -> tuple[Any, list[Any]]:
        path, items = one(case.kind, case.sizes, case.encode, 0)
        if not case.joined:
            return open_pack(path), items
        other, more = one(case.kind, case.sizes, "raw", COUNT)
        return join_packs([path, other]), items + more

    return opened


def sampler_of(case: Case, data: Any, rank: int = 0, world_size: int = 1) -> Any:
    options: dict[str, Any] = {"drop_last": case.drop_last, "rank": rank, "world_size": world_size}
    if case.indices:
        options["indices"] = np.random.default_rng(case.number).permutation(len(data))[3:]
    options["pad"] = case.pad
    if case.buckets is not None:
        return BucketSampler(data, case.buckets, case.batch, SEED, fill_last=case.fill_last, **options)
    labels = np.arange(len(data)) ** 2 % 3
    return {
        "shuffle": lambda: ShuffleSampler(data, SEED, **options),
        "sequential": lambda: SequentialSampler(data, SEED, **options),
        "block": lambda: BlockShuffleSampler(data, SEED, block=3, window=4, **options),
        "balanced": lambda: BalancedSampler(labels, 1.0, SEED, num_samples=21, **options),
        "mixture": lambda: MixtureSampler(data, (0.7, 0.3), SEED, num_samples=31, **options),
        "repeated": lambda: RepeatedSampler(data, 3, SEED, num_samples=26, **options),
        "weighted": lambda: WeightedSampler(data, weights_in(0, len(data)), SEED, num_samples=23, **options),
    }[case.sampler]()


def weights_in(number: int, count: int) -> Any:
    """The weights of records in the first epoch, and in the second one, which are set after the first batch."""
    return np.arange(count) % 3 + 0.5 if number else np.arange(count) % 5 / 2


def records_of(case: Case, data: Any) -> Any:
    """The records that are sampled."""
    records = sampler_of(case, data).records
    return np.arange(len(data)) if records is None else records


def noisy(image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return image.float() + 100 * torch.rand((), generator=generator)


def loader_of(case: Case, data: Any, rank: int, world_size: int) -> PackedLoader:
    more: dict[str, Any] = {**case.options, **({"transform": noisy} if case.noise else {})}
    return PackedLoader(
        data, case.batch // world_size, sampler=sampler_of(case, data, rank, world_size), crop=case.crop,
        views=case.views, repeats=case.repeats, seed=case.seed, with_index=True, **more,
    )  # fmt: skip


class Expected:
    """The batches of a case.

    Args:
        case: the case.
        data: its pack.
        items: the samples of the pack.
        updated: whether the weights are others in the second epoch.
    """

    def __init__(self, case: Case, data: Any, items: list[Any], updated: bool) -> None:
        given = {"affine": case.options["affine"]}
        given |= {name: usual if case.options[name] is True else case.options[name] for name, usual in USUAL.items()}
        views = {"": View(case.crop, case.repeats, **given)}
        if case.views is not None:
            views = {
                name: View(one.crop, one.count, **{n: default if getattr(one, n) is None else getattr(one, n)
                                                   for n, default in given.items()})
                for name, one in case.views.items()
            }  # fmt: skip
        several = case.views is not None or case.repeats > 1
        seed = SEED if case.seed is None else case.seed
        self.case, self.plain = case, PlainLoader(items, views, seed, case.buckets, several, case.options)
        self._records, self._updated, self._count = records_of(case, data), updated, len(data)
        self._orders = [self._order(data, number) for number in range(2)]
        if {"mixup", "copy_paste"} & case.options.keys() or isinstance(case.crop, Mosaic):
            self.plain.orders = {FIRST + number: order for number, order in enumerate(self._orders)}

    def _order(self, data: Any, number: int) -> Any:
        """The samples of an epoch; with buckets, each global batch, and how many of it are not to fill it."""
        case, sampler = self.case, sampler_of(self.case, data)
        if number and self._updated:
            sampler.update(self._records, weights_in(1, self._count)[self._records])
        order = sampler.samples_at(FIRST + number)(np.arange(sampler.num_samples)).astype(np.int64)
        if case.buckets is None:
            check_promises(case, order, self._records)
            return order
        sizes = sampler.sizes(FIRST + number).tolist()
        batches = list(zip(order.reshape(len(sizes), -1), sizes, strict=True))
        check_promises(case, np.concatenate([batch[:size] for batch, size in batches]), self._records)
        return batches

    def samples(self, rank: int, world_size: int, number: int) -> list[Any]:
        """The samples of each batch of a rank in an epoch."""
        case, order = self.case, self._orders[number]
        if case.buckets is None:
            return shares_of(order, case.batch, rank, world_size, case.drop_last, case.pad)
        ends = [size + (-size % world_size if case.pad else 0) for _, size in order]
        shares = [batch[:end][rank::world_size] for (batch, _), end in zip(order, ends, strict=True)]
        return [share for share in shares if len(share)]

    def compare(self, batch: Any, rank: int, world_size: int, number: int, place: int) -> None:
        """Compare a batch of an epoch with what it must be."""
        case, options = self.case, self.case.options
        where = f"epoch {number}, batch {place}, rank {rank} of {world_size}"
        samples = self.samples(rank, world_size, number)[place]
        images, targets = self.plain.batch(samples, FIRST + number)
        records = np.tile(samples % VISIT, case.repeats)
        if case.noise:
            seeds = [derive(self.plain.seed ^ (2 << 32), FIRST + number, sample) for sample in samples.tolist()]
            drawn = [torch.rand((), generator=torch.Generator().manual_seed(seed)).item() for seed in seeds]
            images[""] = [image + 100 * share for image, share in zip(images[""], drawn, strict=True)]
        offs = {name: most_off(options, view) for name, view in self.plain.views.items()}
        offs[""] = offs.get("", 0) + ("mixup" in options) * scale_of(options)
        sizes = {name: every[0].shape[:2] for name, every in images.items()}
        if case.buckets is not None:
            offs[""] = 2 * scale_of(options) + (offs[""] if options["affine"] else 0)
        if case.buckets is PATCHES:
            patches = patches_of(images[""], options, PATCHES.patch, PATCHES.lengths)
            assert_same(batch[0], patches, f"{where}: images", offs[""])
        else:
            found = batch[0] if case.views is not None else {"": batch[0]}
            assert found.keys() == images.keys()
            for name, every in images.items():
                assert_same(found[name], formed(np.stack(every), options), f"{where}: images {name}", offs[name])
        once = case.views is not None and case.kind in ("labels", "values")  # which no crop changes
        if once:
            targets = {"": next(iter(targets.values()))[: len(samples)]}
        found = batch[1] if case.views is not None and not once else {"": batch[1]}
        assert found.keys() == targets.keys()
        for name, every in targets.items():
            wanted = collated(every, options["collate"], (1, 1) if once else sizes[name])
            off = 2 + offs.get(name, 0) / scale_of(options)
            assert_same(found[name], wanted, f"{where}: targets {name}", of_image=off)
        assert_same(batch[2], records, f"{where}: records")
        if options["with_weights"]:
            weights = weights_in(number and self._updated, self._count)
            importance = weights[self._records].mean() / weights[records]
            assert_same(batch[3], importance.astype(np.float32), f"{where}: weights", 1e-5)


def check_promises(case: Case, order: Any, sampled: Any) -> None:
    """No sample comes twice, the visits of a record count up from 0, and some samplers have each record once."""
    records, visits = order % VISIT, order // VISIT
    assert len(np.unique(order)) == len(order) and set(records.tolist()) <= set(sampled.tolist())
    if case.sampler != "mixture":  # whose visits are rounds through a pack, over all epochs
        for record in np.unique(records):
            assert sorted(visits[records == record]) == list(range(int(np.sum(records == record))))
    if case.sampler in ("shuffle", "sequential", "block", "bucket"):
        assert set(records.tolist()) == set(sampled.tolist())
        assert case.fill_last or not visits.any()
    if case.sampler == "sequential":
        assert records.tolist() == sampled.tolist()


def check(case: Case, data: Any, items: list[Any]) -> None:
    """Compare the batches of all ranks before and after a resume, and the first one or two of the next epoch."""
    before, after = case.ranks
    expected = Expected(case, data, items, updated=False)
    most = max(len(expected.samples(rank, before, 0)) for rank in range(before))
    stop, states, records = math.ceil(case.stop * most), [], records_of(case, data)
    if case.sampler == "weighted" and stop:
        expected = Expected(case, data, items, updated=True)
    for rank in range(before):
        loader, count = loader_of(case, data, rank, before), len(expected.samples(rank, before, 0))
        loader.set_epoch(FIRST)
        batches: Any = loader.forever(count + 1) if case.forever else iter(loader)
        for place, batch in enumerate(islice(batches, stop)):
            expected.compare(batch, rank, before, 0, place)
            if place == 0 and case.sampler == "weighted":
                loader.sampler.update(records, weights_in(1, len(data))[records])  # type: ignore[attr-defined]
        states.append(saved(loader.state_dict()))
        batches.close()
    for rank in range(after):
        loader, count = loader_of(case, data, rank, after), len(expected.samples(rank, after, 0))
        loader.load_state_dict(states[case.number % before])
        done = min(stop, count)
        if case.forever:
            found = list(loader.forever(count + 1))
            assert len(found) == count + 1 - done
        else:
            found = list(loader) if stop < most else []
            assert len(found) == count - done
            found += list(islice(loader, 2))
        for place, batch in enumerate(found, done):
            expected.compare(batch, rank, after, int(place >= count), place - count * (place >= count))


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """A state as a checkpoint gives it back: of JSON, or of torch where it has tensors."""
    if not any(isinstance(value, torch.Tensor) for value in state.values()):
        loaded: dict[str, Any] = json.loads(json.dumps(state))
        return loaded
    file = io.BytesIO()
    torch.save(state, file)
    return dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))


@pytest.mark.filterwarnings("ignore::packer.samplers.SortedPackWarning")
@pytest.mark.parametrize("number", range(CASES))
def test_a_combination(packs: MakePack, number: int) -> None:
    case = draw_case(number)
    refused = list(refusals(case))
    data, items = packs(case)
    try:
        check(case, data, items)
    except (UsageError, ValueError) as error:
        assert any(message in str(error) for message in refused), f"{error}\n{case}"
    except AssertionError as error:
        pytest.fail(f"{error}\n{case}", pytrace=False)
    else:
        assert not refused, f"not refused: {refused}\n{case}"


def test_the_cases_have_everything() -> None:
    """Of each choice there are cases that are not refused."""
    cases = [draw_case(number) for number in range(2 * CASES)]
    taken = [case for case in cases[:CASES] if not list(refusals(case))]
    assert len(taken) > CASES // 2
    for name in ("kind", "sizes", "encode", "joined", "sampler", "indices", "drop_last", "pad", "forever", "noise"):
        assert {getattr(case, name) for case in taken} == {getattr(case, name) for case in cases}, name
    for name in ("flip", "vflip", "rotate90", "affine", "collate", "output", "cache", "with_weights", "ignored"):
        given, every = ({repr(case.options.get(name)) for case in some} for some in (taken, cases))
        assert given == every, name
    for name in ("mixup", "copy_paste"):
        assert sum(name in case.options for case in taken) > 2, name
    mosaics = [(case.crop, case.options["affine"]) for case in taken if isinstance(case.crop, Mosaic)]
    ways = {(crop.tiles, affine and affine.upright) for crop, affine in mosaics if crop.joins(np.zeros(1), FIRST)[0]}
    assert ways == {(tiles, upright) for tiles in (4, 9) for upright in (None, True, False)}
    assert {(crop.chance, crop.close_epoch) for crop, _ in mosaics} >= {(1, FIRST), (1, FIRST + 1), (0.5, None)}
    assert len({message for case in cases[:CASES] for message in refusals(case)}) > 10
