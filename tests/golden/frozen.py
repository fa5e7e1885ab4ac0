"""What a seed gives, and states of each version, as they were when they were first released: `frozen.json`.

    PYTHONPATH=. python tests/golden/frozen.py

adds what is new in this version, once. What is in the file is never changed: it proves that a later version gives the
same order, crops and rest of an epoch. docs/versioning.md says what is promised. Only what is not released yet may be
removed from the file and written anew.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from packer import (
    CenterCrop,
    CoverCrop,
    Letterbox,
    Mosaic,
    PackedLoader,
    RandomAffine,
    RandomResizedCrop,
    Resize,
    __version__,
)
from packer.samplers import (
    BalancedSampler,
    BlockShuffleSampler,
    BucketSampler,
    MixtureSampler,
    RepeatedSampler,
    Sampler,
    SequentialSampler,
    ShapeBuckets,
    ShuffleSampler,
    WeightedSampler,
)

HERE = Path(__file__).resolve().parent
FILE = HERE / "frozen.json"
RECORDS = 97
MANY = 5000
"""Records whose order is made in another way than that of a few."""
EPOCHS = (0, 3)


def _sizes(n: int) -> Any:
    """Widths and heights, (n, 2), of a few aspect ratios."""
    return np.stack([40 + np.arange(n) * 37 % 200, 60 + np.arange(n) * 53 % 90], axis=1)


SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "shuffle": lambda n: ShuffleSampler(n, 7),
    "sequential": SequentialSampler,
    "block": lambda n: BlockShuffleSampler([30, 0, n - 30], 7, block=5, window=3),
    "balanced": lambda n: BalancedSampler(np.arange(n) ** 2 % 7 % 4, 0.5, 7),
    "mixture": lambda n: MixtureSampler([n - 20, 20], (0.3, 0.7), 7),
    "repeated": lambda n: RepeatedSampler(n, 3, 7),
    "weighted": lambda n: WeightedSampler(n, 1 + np.arange(n) % 5, 7),
    "bucket": lambda n: BucketSampler(_sizes(n), ShapeBuckets([(64, 64), (32, 128), (128, 32)]), 8, 7, fill_last=True),
}
CROPS: dict[str, dict[str, Any]] = {
    "random": {"crop": RandomResizedCrop(7, scale=(0.3, 1.0)), "flip": True},
    "center": {"crop": CenterCrop(6), "vflip": True},
    "resize": {"crop": Resize((9, 9)), "rotate90": True},
    "cover": {"crop": CoverCrop(7)},
    "letterbox": {"crop": Letterbox(11, fill=114), "flip": 0.25},
    "affine": {"crop": Resize((12, 12)), "affine": RandomAffine(20, translate=(0.2, 0.1), scale=(0.8, 1.2), shear=8)},
    "mosaic": {"crop": Mosaic(16)},
    "mosaic of nine": {"crop": Mosaic(16, tiles=9, chance=0.5)},
}
OF_PIXELS = ("random", "center", "resize", "cover", "letterbox")
"""Crops whose pixels are the same with any OpenCV that makes the same packs; `affine` and mosaics are warped."""
LOADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "loader-center": ("0.1.0/webdataset-copy", {"crop": CenterCrop(6)}),
    "loader-crop": ("0.1.0/webdataset-copy", {"crop": RandomResizedCrop(6), "flip": True}),
    "loader-turned": ("0.2.0/lmdb", {"crop": RandomResizedCrop(6), "vflip": True, "rotate90": 0.5}),
    "loader-mosaic": ("0.2.0/lmdb", {"crop": Mosaic(8), "affine": RandomAffine(10)}),
}


def loader_of(pack: str, **options: Any) -> PackedLoader:
    """A loader of a golden pack, in batches of two."""
    return PackedLoader(str(HERE / pack), 2, shuffle=True, seed=7, with_index=True, **options)


def order_of(name: str, n: int) -> dict[str, Any]:
    """The first samples of two epochs, and a digest of all."""
    sampler, found = SAMPLERS[name](n), {}
    for epoch in EPOCHS:
        order = np.asarray(sampler.order(epoch), "<i8")
        digest = hashlib.sha256(order.tobytes()).hexdigest()[:16]
        found[str(epoch)] = {"samples": len(order), "first": order[:12].tolist(), "sha256": digest}
    return found


def crop_of(name: str) -> dict[str, Any]:
    """Where the points and boxes of each image are after the crop, flip and turn of a seed, and the pixels."""
    loader, found = loader_of("0.2.0/lmdb", **CROPS[name]), {}
    for epoch in EPOCHS:
        loader.set_epoch(epoch)
        rows: list[Any] = []
        pixels = hashlib.sha256()
        for images, targets, numbers in loader:
            pixels.update(images.permute(0, 2, 3, 1).contiguous().numpy().tobytes())
            for target, number in zip(targets, numbers.tolist(), strict=True):
                shown = {name: np.round(target[name].double().numpy(), 4).tolist() for name in ("landmarks", "boxes")}
                rows.append([number, shown["landmarks"], shown["boxes"]])
        found[str(epoch)] = {"rows": rows, "pixels": pixels.hexdigest()[:16]}
    return found


def state_of(name: str) -> dict[str, Any]:
    """A state in the middle of epoch 3, and the records that are then left of it."""
    if name in SAMPLERS:
        sampler = SAMPLERS[name](RECORDS)
        sampler.set_epoch(3)
        numbers: Any = iter(sampler)
        list(itertools.islice(numbers, 40))
        state: Any = sampler.state_dict()
    else:
        pack, options = LOADERS[name]
        loader = loader_of(pack, **options)
        loader.set_epoch(3)
        batches = iter(loader)
        next(batches)
        state, numbers = loader.state_dict(), itertools.chain.from_iterable(batch[-1].tolist() for batch in batches)
    state = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in state.items()}
    return {"state": state, "next": [int(number) for number in numbers]}


def main() -> None:
    """Add what the file lacks."""
    frozen = json.loads(FILE.read_text("ascii")) if FILE.exists() else {"orders": {}, "crops": {}, "states": {}}
    for name, n in itertools.product(SAMPLERS, (RECORDS, MANY)):
        frozen["orders"].setdefault(f"{name} of {n}", order_of(name, n))
    frozen["opencv"] = frozen.get("opencv", cv2.__version__)
    for name in CROPS:
        frozen["crops"].setdefault(name, crop_of(name))
    of_version = frozen["states"].setdefault(__version__, {})
    for name in (*SAMPLERS, *LOADERS):
        of_version.setdefault(name, state_of(name))
    text = json.dumps(frozen)
    FILE.write_text(text + "\n", "ascii")


if __name__ == "__main__":
    main()
