"""Batch sizes with which all ranks have as many batches, and none a record twice."""

from __future__ import annotations

import pytest

from packer.samplers import SequentialSampler
from packer.samplers.ranks import even_batch


@pytest.mark.parametrize(("samples", "ranks", "most", "size"), [
    (47, 2, 23, 22), (48, 2, 23, 23), (9, 2, 4, 3), (50_000, 8, 128, 128), (8, 8, 4, 4), (7, 8, 4, 0), (5, 1, 2, 2),
])  # fmt: skip
def test_even_batches(samples: int, ranks: int, most: int, size: int) -> None:
    """As many batches on each rank, none of them empty."""
    assert even_batch(samples, ranks, most) == size
    if size:
        each = [SequentialSampler(samples, pad=False, rank=rank, world_size=ranks) for rank in range(ranks)]
        assert len({one.num_batches(size) for one in each}) == 1
        read = [record for one in each for batch in one.rank_batches(size) for record in batch.tolist()]
        assert sorted(read) == list(range(samples))
