"""Every kind of sampler over n records, for the promises that all of them make."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from packer.samplers import (
    BalancedSampler,
    BlockShuffleSampler,
    MixtureSampler,
    RepeatedSampler,
    Sampler,
    SequentialSampler,
    ShuffleSampler,
    WeightedSampler,
)

Make = Callable[..., Sampler]


def labels(n: int) -> np.ndarray:
    """(n,) class ids 0 to 3, the later the rarer; some images have none."""
    return (
        np.random.default_rng(n).choice([-1, 0, 1, 2, 3], n, p=[0.1, 0.5, 0.25, 0.1, 0.05]) if n > 4 else np.arange(n)
    )


def _block(n: int, seed: int = 0, **options: Any) -> Sampler:
    return BlockShuffleSampler([n // 3, 0, n - n // 3], seed, block=5, window=3, **options)


def _balanced(n: int, seed: int = 0, **options: Any) -> Sampler:
    return BalancedSampler(labels(n), 0.5, seed, **options)


def _mixture(n: int, seed: int = 0, **options: Any) -> Sampler:
    counts = [count for count in (n - n // 5, n // 5) if count]
    return MixtureSampler(counts, (0.3, 0.7)[: len(counts)], seed, **options)


def _weighted(n: int, seed: int = 0, **options: Any) -> Sampler:
    weights = np.random.default_rng(n).exponential(size=n)
    return WeightedSampler(n, weights, seed, temperature=2.0, **options)


KINDS: dict[str, Make] = {
    "shuffle": ShuffleSampler,
    "sequential": SequentialSampler,
    "block": _block,
    "balanced": _balanced,
    "mixture": _mixture,
    "repeated": lambda n, seed=0, **options: RepeatedSampler(n, 3, seed, **options),
    "weighted": _weighted,
}
SHUFFLED = ("shuffle", "block", "balanced", "mixture", "repeated", "weighted")
WITHOUT_REPLACEMENT = ("shuffle", "sequential", "block")


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint gives back: of JSON, or where a state has tensors, of torch.load as it is safe."""
    if not any(isinstance(value, torch.Tensor) for value in state.values()):
        loaded: dict[str, Any] = json.loads(json.dumps(state))
        return loaded
    file = io.BytesIO()
    torch.save(state, file)
    return dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))


def plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state that `==` compares."""
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
