"""Random combinations of what a loader can do, on ranks, in threads, resumed: the batches are those of a plain loader.

`plain_loader` is that loader. Each case is drawn by `combinations.draw_case` out of its number alone.
"""

from __future__ import annotations

import io
import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from combinations import CLASSES, COUNT, PATCHES, Case, completed, draw_case, item_of, refusals, write_pack
from plain_loader import PADDED, PlainLoader, View

from packer import PackedLoader, join_packs, open_pack
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

CASES = 120
FIRST = 2
"""The epoch that is interrupted."""
pytestmark = pytest.mark.filterwarnings("ignore::packer.samplers.SortedPackWarning")


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    """packs(case): the pack, or two that are joined, and its samples as they are."""
    made, root = {}, tmp_path_factory.mktemp("combinations")

    def one(kind, sizes, encode, first):
        key = kind, sizes, encode, first
        if key not in made:
            items = [item_of(kind, sizes, number) for number in range(first, first + COUNT)]
            path = root / f"{kind}-{sizes}-{encode}-{first}.lmdb"
            write_pack(path, items, encode)
            if encode == "jpeg":  # what becomes of the drawn pixels is what its own decoder makes of them
                pack = open_pack(path)
                for i, item in enumerate(items):
                    item["image"] = pack.image(i)
                    if "right" in item:
                        item["right"] = pack.part(i, "right")
            made[key] = path, [completed(kind, item) for item in items]
        return made[key]

    def opened(case):
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
    if case.buckets is not None:
        return BucketSampler(data, case.buckets, case.batch, 3, fill_last=case.fill_last, **options)
    options["pad"] = case.pad
    labels = np.arange(len(data)) ** 2 % 3
    return {
        "shuffle": lambda: ShuffleSampler(data, 3, **options),
        "sequential": lambda: SequentialSampler(data, 3, **options),
        "block": lambda: BlockShuffleSampler(data, 3, block=3, window=4, **options),
        "balanced": lambda: BalancedSampler(labels, 1.0, 3, num_samples=21, **options),
        "mixture": lambda: MixtureSampler(data, (0.7, 0.3), 3, num_samples=31, **options),
        "repeated": lambda: RepeatedSampler(data, 3, 3, num_samples=26, **options),
        "weighted": lambda: WeightedSampler(data, weights_of(data), 3, num_samples=23, **options),
    }[case.sampler]()


def weights_of(data: Any) -> Any:
    return np.arange(len(data)) % 5 / 2.0


def losses_of(records: Any) -> Any:
    """What weights become after the first batch."""
    return records % 3 + 0.5


def noisy(image, generator):
    return image.float() + 100 * torch.rand((), generator=generator)


def loader_of(case: Case, data: Any, rank: int, world_size: int) -> PackedLoader:
    more: dict[str, Any] = {"transform": noisy} if case.noise else {}
    sampler = sampler_of(case, data, rank, world_size)
    return PackedLoader(
        data, case.batch // world_size, sampler=sampler, crop=case.crop, views=case.views, repeats=case.repeats,
        seed=case.seed, with_index=True, **more, **case.options,
    )  # fmt: skip


# -- what is expected


def plain_of(case: Case, items: Any) -> PlainLoader:
    usual = {"flip": 0.5, "vflip": 0.5, "rotate90": 0.75}
    chances = {name: usual[name] if case.options[name] is True else float(case.options[name]) for name in usual}
    if case.views is None:
        views = {"": View(case.crop, case.repeats, **chances)}
    else:
        views = {
            name: View(
                one.crop,
                one.count,
                **{n: c if getattr(one, n) is None else getattr(one, n) for n, c in chances.items()},
            )
            for name, one in case.views.items()
        }
    seed = 3 if case.seed is None else case.seed
    return PlainLoader(items, views, seed, case.buckets, case.views is not None or case.repeats > 1, case.options)


def orders_of(case: Case, data: Any) -> list[Any]:
    """The samples of two epochs, in global batches."""
    found = []
    for number in range(2):
        sampler = sampler_of(case, data)
        if case.sampler == "weighted" and case.buckets is None and number:
            records = np.arange(len(data)) if sampler.records is None else sampler.records
            sampler.update(records, losses_of(records))
        samples = sampler.samples_at(FIRST + number)(np.arange(sampler.num_samples)).astype(np.int64)
        if case.buckets is None:
            check_promises(case, samples, sampler.num_indices)
            found.append([samples[i : i + case.batch] for i in range(0, len(samples), case.batch)])
            continue
        every = samples.reshape(-1, sampler.global_batch(case.batch))
        sizes = sampler.sizes(FIRST + number).tolist()
        batches = [batch[:size] for batch, size in zip(every, sizes, strict=True)]
        check_promises(case, np.concatenate(batches), sampler.num_indices)
        found.append(list(zip(every, sizes, strict=True)))
    return found


def check_promises(case: Case, samples: Any, count: int) -> None:
    """No sample comes twice, and the visits of a record count up from 0."""
    records, visits = samples % VISIT, samples // VISIT
    assert len(np.unique(samples)) == len(samples)
    for record in (
        np.unique(records) if case.sampler != "mixture" or case.buckets is not None else ()
    ):  # whose visits are rounds of its pack
        assert sorted(visits[records == record]) == list(range(np.sum(records == record)))
    if case.buckets is not None:
        once = not case.fill_last
        assert case.drop_last or len(np.unique(records)) == count
    else:
        once = case.sampler in ("shuffle", "sequential", "block")
        assert not once or len(samples) == count
    assert not once or not visits.any()


def share_of(case: Case, batches: list[Any], rank: int, world_size: int) -> list[Any]:
    """The batches of a rank, out of those of all."""
    if case.buckets is not None:
        # what fills a share comes from the same bucket
        return [batch[: -(-size // world_size) * world_size][rank::world_size] for batch, size in batches]
    *whole, last = batches
    if len(last) < case.batch and case.drop_last:
        return [batch[rank::world_size] for batch in whole]
    if case.pad:
        first = np.concatenate([*whole, last])[: -len(last) % world_size]
        last = np.concatenate([last, first + PADDED])
    shares = [batch[rank::world_size] for batch in [*whole, last]]
    return [share for share in shares if len(share)]


def expected_batch(case: Case, plain: PlainLoader, samples: Any, epoch: int, importance: Any) -> list[Any]:
    """A batch as the loader hands it out, with the largest difference of its pixels."""
    images, targets = plain.batch(samples, epoch)
    exact = {
        name: case.buckets is None and (v.crop is None or v.crop.interpolation == "nearest")
        for name, v in plain.views.items()
    }
    records = samples % VISIT
    if case.noise:
        noise = [torch.Generator().manual_seed(derive(plain.seed ^ (2 << 32), epoch, int(s))) for s in samples]
        images[""] = [one + 100 * float(torch.rand((), generator=g)) for one, g in zip(images[""], noise, strict=True)]
    if case.buckets is PATCHES:
        made: Any = patches_of(case, images[""])
    else:
        made = {name: (formed(case, np.stack(every)), tolerance(case, exact[name])) for name, every in images.items()}
    sizes = {name: every[0].shape[:2] for name, every in images.items()}
    gathered = {name: collated(case, every, sizes[name]) for name, every in targets.items()}
    if case.views is None:
        made, gathered = made if case.buckets is PATCHES else made[""], gathered[""]
    elif case.kind in ("labels", "values"):  # which no crop changes
        gathered = collated(case, next(iter(targets.values()))[: len(samples)], (1, 1))
    tiled = np.tile(records, case.repeats)
    return [made, gathered, tiled, *([importance(tiled)] if case.options["with_weights"] else [])]


def tolerance(case: Case, exact: bool) -> float:
    """Pixels are rounded, twice where one axis shrinks and the other grows, and once more where they are halved."""
    if exact:
        return 1e-3
    scale = 255 * 0.1 if "mean" in case.options else 255 if "dtype" in case.options else 1
    return 2 / scale


def formed(case: Case, images: Any) -> Any:
    """Images (n, height, width, channels) as the loader makes them."""
    if "mean" in case.options:
        images = (images / 255 - case.options["mean"]) / case.options["std"]
    elif "dtype" in case.options:
        images = images / 255
    planar = case.options["output"] == "torch" or case.options["memory_format"] == torch.contiguous_format
    return images.transpose(0, 3, 1, 2) if planar else images


def patches_of(case: Case, images: list[Any]) -> Any:
    """Images in patches, row by row, padded with black."""
    side, per_image = PATCHES.patch, []
    for image in images:
        squares = image.reshape(image.shape[0] // side, side, image.shape[1] // side, side, 3).transpose(0, 2, 1, 3, 4)
        per_image.append((squares.shape[:2], squares.reshape(-1, side * side, 3)))
    length = min(one for one in PATCHES.lengths if one >= max(len(flat) for _, flat in per_image))
    values, coord = np.zeros((len(images), length, side * side, 3)), np.zeros((len(images), length, 2), np.int64)
    valid = np.zeros((len(images), length), bool)
    for row, ((_, columns), flat) in enumerate(per_image):
        values[row, : len(flat)], valid[row, : len(flat)] = flat, True
        coord[row, : len(flat)] = [divmod(i, columns) for i in range(len(flat))]
    plain = {**case.options, "output": "numpy", "memory_format": None}
    values = formed(Case(**{**vars(case), "options": plain}), values).reshape(len(images), length, -1)
    return {"patches": (values, tolerance(case, False)), "patch_coord": coord, "patch_valid": valid}


def collated(case: Case, targets: list[Any], size: tuple[int, int]) -> Any:
    """The targets of a batch."""
    if not isinstance(targets[0], dict):
        return np.stack(targets) if isinstance(targets[0], np.ndarray) else np.array(targets, np.int64)
    how, (height, width) = case.options["collate"], size
    if how == "list":
        return targets
    if how == "dict":
        return {name: stacked([target[name] for target in targets]) for name in targets[0]}
    fractions = [
        [
            ((a + c) / 2 / width, (b + d) / 2 / height, (c - a) / width, (d - b) / height)
            for a, b, c, d in target["boxes"]
        ]
        for target in targets
    ]
    if how == "yolo":
        rows = [(i, label, *box) for i, (target, boxes) in enumerate(zip(targets, fractions, strict=True))
                for label, box in zip(target["labels"], boxes, strict=True)]  # fmt: skip
        return np.array(rows, np.float32).reshape(-1, 6)
    most = max(map(len, fractions))
    made = {
        "boxes": np.zeros((len(targets), most, 4), np.float32), "labels": np.zeros((len(targets), most), np.int64),
        "mask": np.zeros((len(targets), most), bool), "image_id": np.array([target["image_id"] for target in targets]),
    }  # fmt: skip
    for row, (target, boxes) in enumerate(zip(targets, fractions, strict=True)):
        for i, box in enumerate(boxes):
            made["boxes"][row, i], made["labels"][row, i], made["mask"][row, i] = box, target["labels"][i], True
    return made


def stacked(values: list[Any]) -> Any:
    if all(isinstance(value, int) for value in values):
        return np.array(values, np.int64)
    alike = all(isinstance(value, np.ndarray) for value in values) and len({value.shape for value in values}) == 1
    return np.stack(values) if alike else values


# -- what is found


def assert_same(found: Any, wanted: Any, where: str, most: float = 2e-3) -> None:
    """Compare what a loader gives with what is wanted, and name the place of a difference."""
    if isinstance(wanted, tuple):
        wanted, most = wanted
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), f"{where}: {sorted(found)}, not {sorted(wanted)}"
        for name, one in wanted.items():
            assert_same(found[name], one, f"{where}.{name}", 2 if name == "right" else most)
        return
    if isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted), where
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_same(one, other, f"{where}[{i}]", most)
        return
    if isinstance(wanted, np.ndarray):
        given = found.numpy() if isinstance(found, torch.Tensor) else found
        assert given.shape == wanted.shape, f"{where}: shape {given.shape}, not {wanted.shape}"
        if wanted.dtype != np.float64:
            assert given.dtype == wanted.dtype, f"{where}: {given.dtype}, not {wanted.dtype}"
        if wanted.size:
            # of drawn pixels, NaN is one that lies between two; of maps, one of which nothing is known
            any_value = np.isnan(wanted) & (wanted.dtype == np.float64)
            assert np.array_equal(np.isnan(given) | any_value, np.isnan(wanted)), where
            off = np.nan_to_num(np.abs(given.astype(np.float64) - wanted))
            assert off.max() <= most, f"{where}: {off.max()} off at {np.unravel_index(off.argmax(), off.shape)}"
        return
    assert type(found) is type(wanted) and found == wanted, f"{where}: {found!r}, not {wanted!r}"


def check(case: Case, data: Any, items: Any) -> None:
    """The batches of all ranks before and after a resume, and the first ones of the next epoch."""
    plain, orders = plain_of(case, items), orders_of(case, data)
    before, after = case.ranks
    most = max(len(share_of(case, orders[0], rank, before)) for rank in range(before))
    stop, states = round(case.stop * most), []
    weighted = case.sampler == "weighted" and case.buckets is None
    sampled = sampler_of(case, data).records
    sampled = np.arange(len(data)) if sampled is None else sampled
    weights = [weights_of(data), losses_of(np.arange(len(data)))]

    def importance_in(epoch):
        return lambda records: (weights[epoch][sampled].mean() / weights[epoch][records]).astype(np.float32)

    def wanted(rank, world_size):
        for number, order in enumerate(orders):
            for samples in share_of(case, order, rank, world_size):
                yield FIRST + number, samples, importance_in(number)

    def compare(batch, rank, world_size, number):
        epoch, samples, importance = list(wanted(rank, world_size))[number]
        expected = expected_batch(case, plain, samples, epoch, importance)
        assert len(batch) == len(expected)
        for name, one, other in zip(("images", "targets", "records", "weights"), batch, expected, strict=False):
            assert_same(one, other, f"batch {number} of rank {rank} of {world_size}: {name}")

    for rank in range(before):
        loader = loader_of(case, data, rank, before)
        loader.set_epoch(FIRST)
        count = len(share_of(case, orders[0], rank, before))
        batches = loader.forever(count + 2) if case.forever else iter(loader)
        for number, batch in enumerate(islice(batches, stop)):
            compare(batch, rank, before, number)
            if number == 0 and weighted:
                loader.sampler.update(sampled, losses_of(sampled))
        states.append(loader.state_dict())
        batches.close()
    state = saved(states[case.number % before])
    if stop == 0 and weighted:
        weights[1], orders[1] = weights[0], [[]]
    for rank in range(after):
        loader, count = loader_of(case, data, rank, after), len(share_of(case, orders[0], rank, after))
        loader.set_epoch(FIRST)
        loader.load_state_dict(state)
        done = min(stop, count)
        if case.forever:
            found = list(loader.forever(count + 1))
            assert len(found) == count + 1 - done
        else:
            found = list(loader) if stop < most else []
            assert len(found) == count - done
            found += list(islice(loader, 1))
        for number, batch in enumerate(found, done):
            if number < count or len(orders[1][0]):
                compare(batch, rank, after, number)


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """A state as a checkpoint gives it back."""
    if not any(isinstance(value, torch.Tensor) for value in state.values()):
        loaded: dict[str, Any] = json.loads(json.dumps(state))
        return loaded
    file = io.BytesIO()
    torch.save(state, file)
    return dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))


@pytest.mark.parametrize("number", range(CASES))
def test_a_combination(packs, number):
    case = draw_case(number)
    data, items = packs(case)
    refused = list(refusals(case))
    try:
        check(case, data, items)
    except (UsageError, ValueError) as error:
        assert any(message in str(error) for message in refused), f"{case}: {error}"
    except AssertionError as error:
        raise AssertionError(f"{case}\n{error}") from None
    else:
        assert not refused, f"{case} is not refused: {refused}"
