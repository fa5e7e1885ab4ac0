"""Buckets: the shape of each image, and batches of one shape, against plain loops over lists and fractions."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from packer.errors import UsageError
from packer.samplers import BucketSampler, PatchBuckets, ShapeBuckets
from packer.samplers.order import VISIT, records_in

FEW = ShapeBuckets([(64, 64), (32, 128), (128, 32), (48, 80)])


def sizes(count: int, seed: int = 0) -> np.ndarray:
    """(n, 2) widths and heights, some of which are rare."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(20, 400, count), rng.integers(20, 300, count)], axis=1)


def kohyas(area: int, step: int, least: int, most: int) -> set[tuple[int, int]]:
    """The shapes of kohya's `make_bucket_resolutions`, (width, height), as its rule says."""
    square = math.isqrt(area) // step * step
    found = {(square, square)}
    for width in range(least, most + 1, step):
        height = min(most, area // width // step * step)
        if height >= least:
            found |= {(width, height), (height, width)}
    return found


@pytest.mark.parametrize(("side", "least", "most"), [(1024, 512, 2048), (512, 256, 1024), (768, 384, 1536)])
def test_the_shapes_are_those_of_sdxls_trainers(side: int, least: int, most: int) -> None:
    buckets = ShapeBuckets.near(side * side)
    assert {(width, height) for height, width in buckets.shapes} == kohyas(side * side, 64, least, most)
    assert all(height * width <= side * side for height, width in buckets.shapes)
    ratios = [width / height for height, width in buckets.shapes]
    assert ratios == sorted(set(ratios)) and max(ratios) == 1 / min(ratios) <= 4
    assert ShapeBuckets.near(side * side, max_aspect=2).shapes == tuple(
        shape for shape in buckets.shapes if 0.5 <= shape[1] / shape[0] <= 2
    )


@pytest.mark.parametrize("buckets", [ShapeBuckets.near(1024 * 1024), ShapeBuckets.near(256 * 256, 8, 9), FEW])
def test_an_image_gets_the_nearest_aspect_ratio(buckets: ShapeBuckets) -> None:
    """On a logarithmic scale: the quotient of two ratios is nearest to 1. In fractions, which are exact."""
    given = np.concatenate([sizes(300), [(1, 1), (7, 65535), (65535, 3), (640, 480), (480, 640)]])
    ratios = [Fraction(width, height) for height, width in buckets.shapes]
    for (width, height), number in zip(given.tolist(), buckets.of(*given.T).tolist(), strict=True):
        ratio = Fraction(width, height)
        distance = [max(ratio / one, one / ratio) for one in ratios]
        assert distance[number] == min(distance)


def ultralytics_shape(ratios: list[Fraction], size: int, stride: int) -> tuple[int, int]:
    """The shape of a batch with these heights / widths, as `set_rectangle` of Ultralytics has it without padding."""
    shape: tuple[Fraction, Fraction] = (Fraction(1), Fraction(1))
    if max(ratios) < 1:
        shape = max(ratios), Fraction(1)
    elif min(ratios) > 1:
        shape = Fraction(1), 1 / min(ratios)
    return tuple(math.ceil(side * size / stride) * stride for side in shape)  # type: ignore[return-value]


@pytest.mark.parametrize(("size", "stride"), [(640, 32), (96, 32), (1280, 64), (2560, 32), (7, 1)])
def test_rectangles_are_those_of_ultralytics(size: int, stride: int) -> None:
    """Of each batch, whatever images it has; ratios at which a shape begins come often."""
    exact = [(640, side) for side in range(1, 641, 9)] + [(side, 320) for side in range(1, 321, 8)]
    given = np.concatenate([sizes(400, 1), exact, [(65535, 65534), (65534, 65535), (1, 60000)]])
    buckets = ShapeBuckets.rect(size, stride)
    for batch in BucketSampler(given, buckets, 5).rank_batches(5):
        (number,) = set(buckets.of(*given[batch].T).tolist())
        ratios = [Fraction(height, width) for width, height in given[batch].tolist()]
        assert buckets.shapes[number] == ultralytics_shape(ratios, size, stride)


def sampler(count: int, batch: int, seed: int = 0, **options: Any) -> BucketSampler:
    return BucketSampler(sizes(count), FEW, batch, seed, **options)


CASES = [(count, batch) for count in (1, 2, 7, 30, 101, 360) for batch in (2, 6, 12, 24)]


@pytest.mark.parametrize(("count", "batch"), CASES)
@pytest.mark.parametrize("how", ["smaller", "fill_last", "drop_last"])
def test_every_batch_has_one_shape_and_every_record_comes_once(count: int, batch: int, how: str) -> None:
    options = {} if how == "smaller" else {how: True}
    bucket = FEW.of(*sizes(count).T)
    each = Counter(bucket.tolist())
    if how == "drop_last" and max(each.values()) < batch:
        with pytest.raises(UsageError, match=f"leaves nothing: no shape has {batch} records"):
            sampler(count, batch, **options)
        return
    alone = list(sampler(count, batch, **options).rank_samples(batch, 3))
    whole, rest = (sum(n // batch for n in each.values()), sum(n % batch > 0 for n in each.values()))
    assert len(alone) == sampler(count, batch, **options).num_batches(batch) == whole + rest * (how != "drop_last")
    for samples in alone:
        assert len({bucket[record] for record in records_in(samples).tolist()}) == 1
        assert len(set(samples.tolist())) == len(samples)  # what comes again has another visit
    seen = Counter(records_in(np.concatenate(alone)).tolist())
    if how == "smaller":
        assert seen == Counter(range(count))
        assert sorted(map(len, alone)) == sorted(
            size for n in each.values() for size in [batch] * (n // batch) + [n % batch] * (n % batch > 0)
        )
    elif how == "fill_last":
        assert set(seen) == set(range(count)) and {len(samples) for samples in alone} == {batch}
        for record, times in seen.items():
            visits = sorted(s // VISIT for samples in alone for s in samples.tolist() if s % VISIT == record)
            assert visits == list(range(times))
    else:
        assert set(seen.values()) == {1} and {len(samples) for samples in alone} == {batch}
        of_shape = Counter(bucket[record] for record in seen)
        assert of_shape == {number: n // batch * batch for number, n in each.items() if n >= batch}
    assert np.array_equal(sampler(count, batch, **options).order(3), records_in(np.concatenate(alone)))


@pytest.mark.parametrize(("count", "batch"), [case for case in CASES if case[0] > 2])
@pytest.mark.parametrize("world_size", [2, 3, 6])
@pytest.mark.parametrize("how", ["smaller", "fill_last"])
def test_ranks_share_each_batch(count: int, batch: int, world_size: int, how: str) -> None:
    if batch % world_size or count < world_size:
        return
    options = {} if how == "smaller" else {how: True}
    ranks = [sampler(count, batch, 5, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    each = [list(one.rank_samples(batch // world_size, 2)) for one in ranks]
    alone = list(sampler(count, batch, 5, **options).rank_samples(batch, 2))
    assert {len(batches) for batches in each} == {len(alone)}
    repeated = 0
    for number, samples in enumerate(alone):
        together = np.stack([batches[number] for batches in each], axis=1).ravel()
        assert np.array_equal(together[: len(samples)], samples)
        # what a small batch lacks to be divided is repeated, of the same shape
        more = together[len(samples) :]
        assert len(more) == -len(samples) % world_size and len(set(together.tolist())) == len(together)
        assert set(FEW.of(*sizes(count)[records_in(together)].T).tolist()) == {
            FEW.of(*sizes(count)[samples[:1] % VISIT].T)[0]
        }
        repeated += len(more)
    ranks[0].set_epoch(2)
    assert ranks[0].padded == repeated and len(ranks[0]) == sum(map(len, each[0]))


@pytest.mark.parametrize(("count", "batch"), CASES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
@pytest.mark.parametrize("shuffle", [False, True])
def test_without_padding_each_record_comes_once(count: int, batch: int, world_size: int, shuffle: bool) -> None:
    if batch % world_size:
        return
    options: dict[str, Any] = {"pad": False, "shuffle": shuffle, "world_size": world_size}
    ranks = [sampler(count, batch, 5, rank=rank, **options) for rank in range(world_size)]
    alone = list(sampler(count, batch, 5, pad=False, shuffle=shuffle).rank_samples(batch, 2))
    padded = list(sampler(count, batch, 5, shuffle=shuffle).rank_samples(batch, 2))
    assert sorted(map(sorted, alone)) == sorted(map(sorted, padded))  # the same batches, smaller ones later
    assert list(map(len, alone)) == sorted(map(len, alone), reverse=True)
    each = [list(one.rank_samples(batch // world_size, 2)) for one in ranks]
    for rank, (one, batches) in enumerate(zip(ranks, each, strict=True)):
        wanted = [samples[rank::world_size].tolist() for samples in alone]
        assert [samples.tolist() for samples in batches] == [its for its in wanted if its]
        assert not any(wanted[len(batches) :])  # what is empty is at the end
        assert one.num_batches(batch // world_size) == len(batches) and len(one) == sum(map(len, batches))
        assert one.padded == 0
    assert sorted(np.concatenate([samples for batches in each for samples in batches])) == list(range(count))
    for number in range(len(alone) + 1):
        state = sampler(count, batch, 5, shuffle=shuffle, pad=False).state_at(2, number * batch, batch)
        for one, batches in zip(ranks, each, strict=True):
            rest = list(one.rank_samples(batch // world_size, *one.check_state(state, batch)))
            assert [samples.tolist() for samples in rest] == [samples.tolist() for samples in batches[number:]]


def test_patches_without_padding_come_once() -> None:
    given, buckets = sizes(97, 4), PatchBuckets(16, (16, 64, 300))
    ranks = [BucketSampler(given, buckets, 4, 1, pad=False, rank=rank, world_size=4) for rank in range(4)]
    each = [list(one.rank_batches(1, 0)) for one in ranks]
    assert sorted(np.concatenate([batch for batches in each for batch in batches])) == list(range(97))
    assert [one.num_batches(1) for one in ranks] == list(map(len, each))
    for step in range(len(each[0])):  # ranks of a step have one length
        together = np.concatenate([batches[step] for batches in each if step < len(batches)])
        assert len(set(buckets.of(*given[together].T).tolist())) == 1


def test_an_epoch_resumes_on_other_ranks() -> None:
    whole = [records_in(samples).tolist() for samples in sampler(101, 12, 7).rank_samples(12, 4)]
    for number in range(len(whole) + 1):
        state = json.loads(json.dumps(sampler(101, 12, 7).state_at(4, min(number * 12, len(whole) * 12), 12)))
        ranks = [sampler(101, 12, 7, rank=rank, world_size=3) for rank in range(3)]
        rest = [list(one.rank_batches(4, *one.check_state(state, 12))) for one in ranks]
        assert [
            np.stack(parts, axis=1).ravel().tolist()[: len(its)]
            for *parts, its in zip(*rest, whole[number:], strict=True)
        ] == whole[number:]


def test_orders_differ_by_seed_and_epoch_and_batches_are_mixed() -> None:
    one = sampler(360, 6)
    orders = {tuple(sampler(360, 6, seed).order(epoch)) for seed in range(8) for epoch in range(8)}
    assert len(orders) == 64
    bucket = FEW.of(*sizes(360).T)
    of_batches = [bucket[batch[0]] for batch in one.rank_batches(6, 0)]
    assert of_batches != sorted(of_batches)
    same = [tuple(sorted(batch)) for epoch in range(2) for batch in one.rank_batches(6, epoch)]
    assert len(set(same)) == len(same)  # not the same batches in another order
    copy = pickle.loads(pickle.dumps(one))
    assert np.array_equal(copy.order(5), one.order(5)) and copy.identity == one.identity


def test_without_shuffle_each_shape_is_in_order() -> None:
    one = sampler(101, 8, shuffle=False)
    order = one.order(9).tolist()
    bucket = FEW.of(*sizes(101).T)
    assert order == sorted(range(101), key=lambda record: (bucket[record], record))


def test_some_records_are_sampled_and_nothing_else() -> None:
    some = np.arange(0, 101, 3)[::-1]
    one = sampler(101, 8, indices=some)
    batches = list(one.rank_batches(8))
    assert sorted(np.concatenate(batches).tolist()) == sorted(some.tolist())
    bucket = FEW.of(*sizes(101).T)
    assert all(len(set(bucket[batch].tolist())) == 1 for batch in batches)


def test_the_report_counts_what_the_sampler_makes() -> None:
    given, batch = sizes(360), 24
    for buckets in (FEW, ShapeBuckets(FEW.shapes, "pad"), ShapeBuckets.rect(128)):
        for drop_last in (False, True):
            report = buckets.report(given, batch, drop_last=drop_last)
            one = BucketSampler(given, buckets, batch, drop_last=drop_last)
            counts = one.sizes().tolist()
            assert (report.images, report.batches) == (360, len(counts))
            assert report.over == (360 - sum(counts) if drop_last else sum(n for n in counts if n < batch))
    pixels = used = cut = enlarged = 0.0
    pad = ShapeBuckets(FEW.shapes, "pad")
    for (width, height), covers, pads in zip(given.tolist(), FEW.of(*given.T), pad.of(*given.T), strict=True):
        high, wide = FEW.shapes[covers]
        scale = max(wide / width, high / height)
        cut += 1 - wide * high / (width * scale * height * scale)
        enlarged += scale > 1
        high, wide = pad.shapes[pads]
        scale = min(wide / width, high / height)
        used, pixels = used + width * scale * height * scale, pixels + wide * high
    report = FEW.report(given, batch)
    assert report.cut == pytest.approx(cut / 360) and report.enlarged == enlarged and report.padding == 0
    assert pad.report(given, batch).padding == pytest.approx(1 - used / pixels) and pad.report(given, batch).cut == 0
    lines = str(report).splitlines()
    assert lines[-1] == f"{report.over} images come in smaller batches; {enlarged:.0f} are enlarged"
    assert lines[0].split() == ["images", "batches", "over", "cut", "off"]
    assert len(lines) == 3 + len(report.rows)


def test_samples_one_by_one_need_batches_of_one_size() -> None:
    with pytest.raises(UsageError, match=r"differing sizes.*; write fill_last=True, or use PackedLoader"):
        iter(sampler(101, 8))
    one = sampler(101, 8, fill_last=True)
    assert list(one) == np.concatenate(list(sampler(101, 8, fill_last=True).rank_batches(8, 0))).tolist()


BAD: dict[str, tuple[Any, str]] = {
    "no shapes": (lambda: ShapeBuckets([]), "shapes: must be a list of"),
    "a number": (lambda: ShapeBuckets([64]), "shapes: must be a list of .*, got 64"),
    "no side": (lambda: ShapeBuckets([(0, 64)]), "shapes: must be an integer from 1 to 65535, got 0"),
    "one ratio": (lambda: ShapeBuckets([(32, 64), (64, 128)]), r"has \(32, 64\) and \(64, 128\) of one aspect ratio"),
    "fit": (lambda: ShapeBuckets([(1, 1)], "stretch"), 'fit: must be "cover" or "pad", got \'stretch\''),
    "area": (lambda: ShapeBuckets.near(100, 64), "area: of 100 pixels has no shape"),
    "aspect": (lambda: ShapeBuckets.near(64 * 64, 64, 0.5), "max_aspect: must be a number of at least 1, got 0.5"),
    "stride": (lambda: ShapeBuckets.rect(650), "size: must be a multiple of the stride, 32, got 650"),
    "no patches": (lambda: PatchBuckets(0), "patch: must be an integer at least 1, got 0"),
    "no lengths": (lambda: PatchBuckets(16, ()), r"lengths: must be a list of numbers of patches, got \(\)"),
    "a length": (lambda: PatchBuckets(16, (0, 9)), "lengths: must be an integer from 1 to 1048576, got 0"),
    "sizes": (lambda: BucketSampler(9, FEW, 4), r"data: must be a pack, a dataset, or widths and heights \(n, 2\)"),
    "buckets": (lambda: BucketSampler(sizes(9), [(64, 64)], 4), "buckets: must be buckets, got list"),
    "batch": (lambda: sampler(9, 0), "global_batch: must be an integer at least 1, got 0"),
    "both": (lambda: sampler(9, 4, drop_last=True, fill_last=True), "fill_last: cannot be combined with drop_last"),
    "fill_last and pad": (lambda: sampler(9, 4, fill_last=True, pad=False), "fill_last: cannot .* with pad=False"),
    "drop_last and pad": (lambda: sampler(9, 4, drop_last=True, pad=False), "pad: is False, for every sample to come"),
    "ranks": (lambda: sampler(9, 4, rank=0, world_size=3), "global_batch: is 4, which 3 ranks do not divide"),
    "batch_size": (
        lambda: sampler(9, 4, rank=0, world_size=2).rank_batches(4),
        "batch_size: is 4 on 2 ranks, but the sampler has batches of 4 .*; pass batch_size=2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_meant_is_refused(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(UsageError, match=message):
        call()


def best_grid(width: int, height: int, patch: int, length: int, enlarge: bool) -> tuple[int, int]:
    """Rows and columns of timm's `get_image_size_for_seq`, which searches for the largest scale: here in fractions."""

    def grid(scale: Fraction) -> tuple[int, int]:
        return math.ceil(height * scale / patch), math.ceil(width * scale / patch)

    scales = [Fraction(k * patch, side) for side in (height, width) for k in range(1, length + 1)]
    if not enlarge:
        scales = [scale for scale in scales if scale <= 1] + [Fraction(1)]
    return grid(max(scale for scale in scales if math.prod(grid(scale)) <= length))


@pytest.mark.parametrize("enlarge", [False, True])
@pytest.mark.parametrize(("patch", "length"), [(16, 64), (14, 100), (16, 9), (8, 1)])
def test_an_image_has_as_many_patches_as_timm_gives_it(patch: int, length: int, enlarge: bool) -> None:
    given = np.concatenate([sizes(150, 2), [(640, 480), (1, 1), (3000, 20), (20, 3000), (64, 64), (128, 128)]])
    rows, columns = PatchBuckets(patch, (length,), enlarge).grids(*given.T, length)
    expected = [best_grid(width, height, patch, length, enlarge) for width, height in given.tolist()]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("fill_last", [False, True])
def test_batches_of_patches_have_a_budget(world_size: int, fill_last: bool) -> None:
    given, lengths, batch = sizes(301, 3), (16, 40, 128), 4
    buckets = PatchBuckets(16, lengths)
    own = [math.ceil(width / 16) * math.ceil(height / 16) for width, height in given.tolist()]
    which = [next((k for k, length in enumerate(lengths) if one <= length), 2) for one in own]
    assert buckets.of(*given.T).tolist() == which
    most = {0: batch * 8, 1: batch * 3, 2: batch}
    ranks = [
        BucketSampler(given, buckets, batch, 9, fill_last=fill_last, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    each = [list(one.rank_samples(batch // world_size, 1)) for one in ranks]
    assert {len(batches) for batches in each} == {ranks[0].num_batches(batch // world_size)}
    seen: list[int] = []
    for number, parts in enumerate(zip(*each, strict=True)):
        samples = np.stack(parts, axis=1).ravel()
        (bucket,) = {which[record] for record in records_in(samples).tolist()}
        assert len(samples) <= most[bucket] and (not fill_last or len(samples) == most[bucket])
        assert len(samples) * lengths[bucket] <= batch * lengths[-1] and len(set(samples.tolist())) == len(samples)
        seen += records_in(samples)[: ranks[0].sizes(1)[number]].tolist()
    assert set(seen) == set(range(301)) and (fill_last or len(seen) == 301)
    report = buckets.report(given, batch)
    used = [math.prod(best_grid(*size, 16, lengths[k], False)) for size, k in zip(given.tolist(), which, strict=True)]
    assert report.padding == pytest.approx(1 - sum(used) / sum(lengths[k] for k in which))
    assert report.batches == ranks[0].num_batches(batch // world_size) and report.enlarged == 0
    assert "40 patches" in str(report) and str(report).splitlines()[0].endswith("padding")
    with pytest.raises(UsageError, match="write fill_last=True"):
        iter(ranks[0])
