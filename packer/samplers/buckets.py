"""Batches of images of one bucket each, for images of differing size: their order.

Use it for training and evaluation at the images' own aspect ratios: text to image as SDXL is trained, detectors, whose
images are letterboxed, or transformers that read patches. Do not use it if all images have one shape, or if a random
crop of one shape serves: then `ShuffleSampler` mixes better, for a batch here has images of similar size only.

The bucket of a record depends only on its width and height, which the index has. The records of each bucket are
shuffled, and cut into batches; then the batches of all buckets are shuffled. So the order is a function from positions
to records, as that of the other samplers. Batch b of all ranks together stands at the positions from b * S to
(b + 1) * S - 1, where S is the size of the largest batches; the last positions of a smaller one are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from packer.errors import UsageError, plural
from packer.model.annotation import Int64
from packer.samplers.bucket_shapes import Buckets, sizes_of_records
from packer.samplers.order import (
    MOST_VISITS,
    VISIT,
    Records,
    compact,
    derive,
    digest_of,
    permutation,
    permutation_function,
)
from packer.samplers.ranks import Ranks, check_int
from packer.samplers.sampler import Sampler

_RECORDS, _BATCHES = 1, 2  # purpose of a key


class _Batches(NamedTuple):
    """The batches of an epoch, in order."""

    bucket: Int64
    first: Int64
    """How many records of its bucket are in batches before it."""


class BucketSampler(Sampler):
    """Records in random order, each batch with those of one shape (`ShapeBuckets`), the same on all ranks.

    Every record comes once per epoch. The last batch of each shape is smaller where the records do not fill it, unless
    `fill_last` or `drop_last` are given; `ShapeBuckets.report` counts them. If the ranks do not divide such a batch, a
    few records are repeated in it, unless `pad` is False.

    For a PackedLoader, which makes images of the shape of each batch. It is for batches of one size, and does not give
    samples one by one unless `fill_last` or `drop_last` make all batches equally large.

    Args:
        data: the pack or dataset; or widths and heights of the images in pixels, (n, 2).
        buckets: the shapes.
        global_batch: samples of a batch on all ranks together: batch_size * number of ranks.
        seed: as in `Sampler`; `indices`, `rank` and `world_size` too.
        shuffle: a new order each epoch. If False, shape by shape, the records of each in order, to evaluate.
        drop_last: leave out records of each shape that do not fill a batch: others each epoch.
        fill_last: fill the last batch of each shape with records of it that come again, with another crop and flip.
        pad: False, to evaluate: each record comes exactly once on all ranks together. Smaller batches then come last,
            and a rank has none of those with too few records for it.

    Raises:
        UsageError: if an argument is out of range; when an iteration begins, if batch_size times the number of ranks
            is not `global_batch`.
    """

    kind = "bucket"

    def __init__(  # noqa: PLR0913 - all but the first three have a default, and each stands alone
        self, data: Any, buckets: Buckets, global_batch: int, seed: int = 0, *, shuffle: bool = True,
        drop_last: bool = False, fill_last: bool = False, indices: ArrayLike | None = None, pad: bool = True,
        rank: int | None = None, world_size: int | None = None,
    ) -> None:  # fmt: skip
        if not hasattr(buckets, "capacities"):
            step = "write ShapeBuckets.near(512 * 512), or ShapeBuckets.rect(640)"
            raise UsageError("buckets", f"must be buckets, got {type(buckets).__name__}", step)
        for name, given in (("drop_last", drop_last), ("pad=False", not pad)):
            if fill_last and given:
                raise UsageError("fill_last", f"cannot be combined with {name}", "leave out one of them")
        self.buckets, self.shuffle, self.fill_last = buckets, bool(shuffle), bool(fill_last)
        self._given_batch = check_int("global_batch", global_batch, 1)
        super().__init__(data, seed, indices=indices, drop_last=drop_last, pad=pad, rank=rank, world_size=world_size)
        self._bucket = buckets.of(*sizes_of_records(data, self.records))
        """Number of the bucket of each sampled record."""
        self._counts = buckets.count(self._bucket)
        self._capacities = buckets.capacities(self._given_batch)
        self._size = int(self._capacities.max())
        """Positions of a batch."""
        self._batches = self._counts // self._capacities if drop_last else -(-self._counts // self._capacities)
        """Batches of each bucket."""
        self.num_samples = int(self._batches.sum()) * self._size
        """Positions of an epoch; some may be empty."""
        if not self.num_samples:
            problem = f"leaves nothing: no shape has {global_batch} records"
            raise UsageError("drop_last", problem, "use smaller batches, or drop_last=False")
        self._by_bucket: dict[int, Records] = {}
        self._planned: tuple[int, _Batches] | None = None

    def _options(self) -> dict[str, Any]:
        images = self._counts if self._pack_digest else self._bucket
        return {
            "global_batch": self._size,
            "buckets": self.buckets.identity,
            "images": digest_of(images),
            "shuffle": self.shuffle,
            "fill_last": self.fill_last,
        }

    def _ranks(self) -> Ranks:
        ranks = super()._ranks()
        if self._given_batch % ranks.world_size:
            problem = f"is {self._given_batch}, which {ranks.world_size} ranks do not divide"
            raise UsageError("global_batch", problem, "pass batch_size * number of ranks")
        return ranks

    @property
    def is_even(self) -> bool:
        """Whether all batches are equally large."""
        whole = self.drop_last or self.fill_last
        return whole and bool((self._capacities == self._size).all())

    def _plan(self, epoch: int) -> _Batches:
        if self._planned is None or self._planned[0] != epoch:
            count = int(self._batches.sum())
            order = permutation(count, derive(self.seed, epoch, _BATCHES)) if self.shuffle else np.arange(count)
            bucket = np.repeat(np.arange(len(self._batches)), self._batches)[order]
            before = (np.cumsum(self._batches) - self._batches)[bucket]
            plan = _Batches(bucket, (order - before) * self._capacities[bucket])
            if not self.pad:
                # each rank has a beginning of the batches, so that steps are positions on all of them
                sizes = self._sizes_of(plan)
                late = np.argsort(np.where(sizes == self._capacities[bucket], 0, self._size - sizes), kind="stable")
                plan = _Batches(plan.bucket[late], plan.first[late])
            self._planned = epoch, plan
        return self._planned[1]

    def _sizes_of(self, plan: _Batches) -> Int64:
        most: Int64 = self._capacities[plan.bucket]
        return most if self.fill_last else np.minimum(self._counts[plan.bucket] - plan.first, most)

    def sizes(self, epoch: int | None = None) -> Int64:
        """Return how many records each batch of `epoch` (default: that of `set_epoch`) has on all ranks together."""
        return self._sizes_of(self._plan(self.epoch if epoch is None else check_int("epoch", epoch, 0)))

    def _shared(self, sizes: Int64, ranks: Ranks) -> Int64:
        """Return how many records of batches of these sizes a rank has."""
        shared: Int64 = -(-(sizes if self.pad else sizes - ranks.first) // ranks.world_size)
        return np.maximum(shared, 0)

    def _of_bucket(self, bucket: int) -> Records:
        """Return the sampled records of a bucket, found when they are first needed."""
        if bucket not in self._by_bucket:
            self._by_bucket[bucket] = np.flatnonzero(self._bucket == bucket).astype(compact(self.num_indices))
        return self._by_bucket[bucket]

    def _numbers(self, epoch: int) -> Callable[[Int64], Records]:
        plan, orders = self._plan(epoch), dict[int, Callable[[Int64], Int64]]()

        def order_of(bucket: int) -> Callable[[Int64], Int64]:
            if bucket not in orders:
                key = derive(self.seed, epoch, _RECORDS, bucket)
                orders[bucket] = permutation_function(int(self._counts[bucket]), key) if self.shuffle else np.asarray
            return orders[bucket]

        def numbers(positions: Int64) -> Records:
            batch, place = np.divmod(positions, self._size)
            buckets, items, out = plan.bucket[batch], plan.first[batch] + place, np.empty(len(positions), np.int64)
            for bucket in np.unique(buckets).tolist():
                here = buckets == bucket
                visits, its = np.divmod(items[here], self._counts[bucket])  # beyond the end they begin again
                out[here] = self._of_bucket(bucket)[order_of(bucket)(its)] + visits % MOST_VISITS * VISIT
            return out

        return numbers

    def _order(self, epoch: int) -> Records:
        inside = np.arange(self._size) < self.sizes(epoch)[:, None]
        return self._numbers(epoch)(np.flatnonzero(inside.ravel()))

    @property
    def padded(self) -> int:
        """Samples that are repeated so that each rank has equally many of a batch, of all ranks together."""
        return int((-self.sizes() % self.world_size).sum()) if self.pad else 0

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        return int(self._shared(self.sizes(), self._ranks()).sum())

    def num_batches(self, batch_size: int) -> int:
        """Return the batches of this rank's epoch; `batch_size` is compared when an iteration begins.

        With pad=False, ranks differ where batches have fewer records than ranks.
        """
        batches = super().num_batches(batch_size)
        return batches if self.pad else int(np.count_nonzero(self._shared(self.sizes(), self._ranks())))

    def __iter__(self) -> Iterator[int]:
        """Return this rank's record numbers of the next epoch, if all batches are equally large."""
        if self.is_even:
            return super().__iter__()
        problem = "has batches of differing sizes, which a DataLoader cannot cut out of single samples"
        raise UsageError("sampler", problem, "write fill_last=True, or use PackedLoader")

    def global_batch(self, batch_size: int) -> int:
        """Return the samples of a batch on all ranks together; `batch_size` is compared when an iteration begins."""
        check_int("batch_size", batch_size, 1)
        return self._size

    def __repr__(self) -> str:
        of = f"{self.num_records}" if self.records is None else f"{self.num_indices} of {self.num_records}"
        batches = (
            f"{int(self._batches.sum())} batches of {self._size} in {plural(int((self._batches > 0).sum()), 'shape')}"
        )
        ranks = f"seed {self.seed}, rank {self.rank} of {self.world_size}"
        return f"<{type(self).__name__}: {of} records, {batches}, {ranks}>"

    def rank_samples(self, batch_size: int, epoch: int | None = None, start: int = 0) -> Iterator[Int64]:
        """Return the samples of each batch, all of one shape: record + visit * VISIT.

        Args:
            batch_size: `global_batch` divided by the number of ranks.
            epoch: default: that of `set_epoch`.
            start: the global position to start at.
        """
        if batch_size * self.world_size != self._given_batch:
            here = f"{batch_size} on {plural(self.world_size, 'rank')}"
            right = self._given_batch // self._ranks().world_size
            problem = f"is {here}, but the sampler has batches of {self._given_batch} on all ranks together"
            raise UsageError("batch_size", problem, f"pass batch_size={right}, or another global_batch")
        return super().rank_samples(batch_size, epoch, start)

    def _shares(self, epoch: int, start: int, end: int, size: int, ranks: Ranks) -> Iterator[Records]:
        shares = super()._shares(epoch, start, end, size, ranks)
        if self.is_even:
            return shares
        counts = self._shared(self.sizes(epoch)[start // size :], ranks)
        return (share[:count] for share, count in zip(shares, counts[counts > 0].tolist(), strict=False))
