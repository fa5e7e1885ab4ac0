"""Samplers: which records an epoch reads and in which order, for PackedLoader or a plain DataLoader.

| sampler | pick it |
|---|---|
| `ShuffleSampler` | to train; the default |
| `SequentialSampler` | to evaluate and predict |
| `BalancedSampler` | to train where some classes are rare |
| `MixtureSampler` | to train on several packs, each with its share of the samples |
| `RepeatedSampler` | to train with repeated augmentation, each record several times in a row |
| `WeightedSampler` | to train more on some records: hard examples, a curriculum, your own weights |
| `BucketSampler` | to train at the images' own aspect ratios: each batch of one shape, or of patches |
| `BlockShuffleSampler` | to train from packs larger than memory or disk; each of many machines may read its own part |

`subset` selects records by their columns; all samplers take the numbers as `indices=`. `class_weights` and
`curriculum_weights` are weights for a `WeightedSampler`. numpy only: torch is asked for
rank and world_size if it is loaded already, and never imported.
"""

from __future__ import annotations

from packer.samplers.block import BlockShuffleSampler
from packer.samplers.bucket_shapes import ShapeBuckets
from packer.samplers.buckets import BucketSampler
from packer.samplers.order import SortedPackWarning, subset
from packer.samplers.patches import PatchBuckets
from packer.samplers.sampler import Sampler, SequentialSampler, ShuffleSampler
from packer.samplers.shares import BalancedSampler, MixtureSampler, RepeatedSampler, class_weights
from packer.samplers.weighted import WeightedSampler, curriculum_weights

__all__ = [
    "BalancedSampler",
    "BlockShuffleSampler",
    "BucketSampler",
    "MixtureSampler",
    "PatchBuckets",
    "RepeatedSampler",
    "Sampler",
    "SequentialSampler",
    "ShapeBuckets",
    "ShuffleSampler",
    "SortedPackWarning",
    "WeightedSampler",
    "class_weights",
    "curriculum_weights",
    "subset",
]
