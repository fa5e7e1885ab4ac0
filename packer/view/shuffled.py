"""Batches as in training, from `PackedLoader` with crop and flip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.errors import UsageError, printable
from packer.format.pack import Pack
from packer.loading.crop import CenterCrop, Crop, RandomResizedCrop, Resize
from packer.loading.loader import PackedLoader
from packer.view.facts import target_facts
from packer.view.pictures import data_uri

CROPS = ("random", "center", "resize", "none")
MOST_SAMPLES = 64
LARGEST_CROP = 1024


@dataclass(frozen=True, slots=True)
class BatchQuery:
    """The batch to show: its seed and epoch, crop (side in pixels) and flip."""

    batch: int = 0
    epoch: int = 0
    seed: int = 0
    samples: int = 16
    crop: str = "random"
    side: int = 224
    flip: bool = True


def shuffled_batch(pack: Pack, asked: BatchQuery) -> dict[str, Any]:
    """Return the samples of a batch, with the annotations as in training.

    Raises:
        UsageError: If there is no such batch, or the query is out of range.
        DamagedPack: If a record cannot be read.
    """
    if not 1 <= asked.samples <= MOST_SAMPLES:
        raise UsageError("samples", f"must be 1 to {MOST_SAMPLES}, got {asked.samples}")
    loader = PackedLoader(
        pack, asked.samples, shuffle=True, seed=asked.seed, crop=_crop(asked), flip=asked.flip, with_index=True,
        threads=2, prefetch=1,
    )  # fmt: skip
    if not 0 <= asked.batch < len(loader):
        raise UsageError("batch", f"must be 0 to {len(loader) - 1}, got {asked.batch}")
    loader.set_epoch(asked.epoch)
    loader.load_state_dict({**loader.state_dict(), "position": asked.batch * asked.samples})
    batches = iter(loader)
    try:
        images, targets, records = next(batches)
    finally:
        batches.close()  # type: ignore[attr-defined]
    pixels = images.permute(0, 2, 3, 1).numpy()
    paths = pack.column("path")
    samples = [
        {
            "record": record,
            "key": printable(pack.key(record)),
            "source": printable(bytes(paths[record])),
            "width": pixels.shape[2],
            "height": pixels.shape[1],
            "picture": data_uri(np.ascontiguousarray(image)),
            **target_facts(target),
        }
        for record, image, target in zip(records.tolist(), pixels, targets, strict=True)
    ]
    return {"batches": len(loader), "samples": samples, "line": _line(asked)}


def _crop(asked: BatchQuery) -> Crop | None:
    if asked.crop not in CROPS:
        raise UsageError("crop", f"must be one of {', '.join(CROPS)}, got {asked.crop!r}")
    if asked.crop == "none":
        return None
    if not 1 <= asked.side <= LARGEST_CROP:
        raise UsageError("side", f"must be 1 to {LARGEST_CROP} pixels, got {asked.side}")
    kinds: dict[str, type[Any]] = {"random": RandomResizedCrop, "center": CenterCrop, "resize": Resize}
    if asked.crop == "resize":
        return Resize((asked.side, asked.side))
    made: Crop = kinds[asked.crop](asked.side)
    return made


def _line(asked: BatchQuery) -> str:
    """Return the call that creates the loader."""
    names = {"random": f"RandomResizedCrop({asked.side})", "center": f"CenterCrop({asked.side})"}
    crop = names.get(asked.crop, f"Resize(({asked.side}, {asked.side}))" if asked.crop == "resize" else "None")
    return (
        f"PackedLoader(pack, {asked.samples}, shuffle=True, seed={asked.seed}, crop={crop}, flip={asked.flip})"
        f", epoch {asked.epoch}, batch {asked.batch}"
    )
