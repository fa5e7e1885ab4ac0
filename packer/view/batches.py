"""Batches as in training, from `PackedLoader` with crop and flip, and the code that makes them."""

from __future__ import annotations

import os
from collections.abc import Callable
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

    @property
    def shown_side(self) -> int:
        """Longer side of the source images that are shown beside the samples, pixels."""
        return max(160, min(512, self.side))


def batch_facts(pack: Pack, asked: BatchQuery, tile: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Return the samples of a batch, with the annotations as in training, and the code that makes it.

    Args:
        pack: The pack.
        asked: The batch.
        tile: Returns what is shown of a record as it is in the pack.

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
            **target_facts(
                {"value": target} if pack.manifest.fields == ("value",) else target, pack.manifest.part_specs
            ),
            "before": tile(record),
        }
        for record, image, target in zip(records.tolist(), pixels, targets, strict=True)
    ]
    return {"batches": len(loader), "samples": samples, "code": code_of(pack, asked)}


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


def code_of(pack: Pack, asked: BatchQuery) -> str:
    """Return a program that makes the batch: `images` and `targets`."""
    crop = {
        "random": f"packer.RandomResizedCrop({asked.side})",
        "center": f"packer.CenterCrop({asked.side})",
        "resize": f"packer.Resize(({asked.side}, {asked.side}))",
        "none": "None",
    }[asked.crop]
    opened = [_opening(part) for part in pack.packs]
    lines = [
        "import packer",
        "",
        f"pack = {opened[0]}" if len(opened) == 1 else f"pack = packer.join_packs([{', '.join(opened)}])",
        "loader = packer.PackedLoader(",
        f"    pack, {asked.samples}, shuffle=True, seed={asked.seed}, crop={crop}, flip={asked.flip}",
        ")",
        f"loader.set_epoch({asked.epoch})",
    ]
    if asked.batch:
        position = asked.batch * asked.samples
        state = f'{{**loader.state_dict(), "position": {position}}}'
        lines.append(f"loader.load_state_dict({state})  # batch {asked.batch}")
    return "\n".join([*lines, "images, targets = next(iter(loader))", ""])


def _opening(pack: Pack) -> str:
    path, cached = pack.path, ""
    if pack.reader.remote is None:
        path = os.path.abspath(path)
    else:
        folder, most = pack.reader.cache_options
        cached = "" if folder is None else f", cache_dir={os.fsdecode(folder)!r}"
        cached += "" if most is None else f", cache_bytes={most!r}"
    return f"packer.open_pack({path!r}{cached})"
