"""Draws packs and loaders for `test_loader_combinations.py`: a case is one choice of every option, out of its number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packs import noise

from packer import (
    CenterCrop,
    CoverCrop,
    CropView,
    Letterbox,
    PackWriter,
    RandomResizedCrop,
    Resize,
)
from packer.samplers import PatchBuckets, ShapeBuckets

COUNT = 17
CLASSES = ("ant", "bee", "cat")
FACE = (1, 0, 2, 4, 3)
PARTS = {"depth": "map", "right": "image", "text": "text"}
KINDS = ("labels", "values", "masks", *2 * ("outlines", "instances"))
OBJECTS = ("outlines", "instances")
"""Kinds of packs with boxes, and polygons or masks of their objects; a pack has one of these."""
SAMPLERS = ("shuffle", "sequential", "block", "balanced", "mixture", "repeated", "weighted")
COVER, RECT = ShapeBuckets([(16, 16), (14, 20), (20, 14)]), ShapeBuckets.rect(24, 8)
PATCHES = PatchBuckets(4, (24, 48))


def item_of(kind: str, sizes: str, number: int, deep: bool = False) -> dict[str, Any]:
    """A sample of a pack; some lack what others have. All numbers are exact in float32."""
    random = np.random.default_rng(number)
    height, width = (24, 24) if sizes == "square" else (24 + number % 4 * 5, 24 + number * 7 % 17)
    pixels = noise(number, height, width, 1 if deep else 3, "uint16" if deep else "uint8")
    item: dict[str, Any] = {"image": pixels}
    if kind == "masks" or (kind in OBJECTS and number % 4 != 3):
        item["mask"] = random.integers(0, 3, (height, width), np.uint8)
    if kind == "values":
        item["value"] = (number / 2, -number)
    if kind in ("labels", *OBJECTS):
        item["label"] = number % 3
    return item | (_objects(kind, number, height, width, random) if kind in OBJECTS else {})


def _objects(kind: str, number: int, height: int, width: int, random: np.random.Generator) -> dict[str, Any]:
    def points(*shape: int) -> Any:
        return np.round(random.uniform(0, (width, height), (*shape, 2)) * 4) / 4

    count = 0 if number % 7 == 3 else 1 + number % 4
    corners = np.sort(points(count, 2), axis=1) + [[0, 0], [0.25, 0.25]]
    made = {
        "boxes": np.minimum(corners.reshape(-1, 4), (width, height, width, height)).tolist(),
        "labels": random.integers(0, 3, count).tolist(),
        "iscrowd": random.integers(0, 2, count).tolist(),
        "landmarks": [] if number % 6 == 1 else (points(5) + random.integers(-3, 4, 2)).tolist(),
    }  # fmt: skip
    if number % 7 != 5:
        visible = random.integers(0, 3, (count, 5, 1))
        made["keypoints"] = np.concatenate([points(count, 5), visible], axis=2).tolist()
        if kind == "outlines":
            made["polygons"] = [[] if i == 2 else points(3 + i).tolist() for i in range(count)]
        else:
            made["masks"] = list(random.integers(0, 2, (count, height, width), np.uint8))
    if number % 5 != 4:
        made["depth"] = random.random((height, width), np.float32)
    if number % 9 != 7:
        made["right"] = noise(100 + number, height, width)
    if number % 3 != 1:
        made["text"] = f"nr. {number}"
    return made


def write_pack(path: Path, items: list[dict[str, Any]], encode: str) -> None:
    """Write samples as a pack."""
    parts = PARTS if "boxes" in items[0] else {}
    options: dict[str, Any] = {"classes": CLASSES, "encode": encode, "parts": parts, "shard_bytes": 20_000}
    with PackWriter(path, **options) as writer:
        for item in items:
            given = {n: one for n, one in item.items() if n not in ("labels", "iscrowd", *PARTS)}
            if "boxes" in item:
                given["box_labels"], given["box_fields"] = item["labels"], {"iscrowd": item["iscrowd"]}
                given = {name: one for name, one in given.items() if name != "landmarks" or one}
            writer.write(parts={name: item[name] for name in PARTS if name in item}, **given)


def completed(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    """A sample with what stands for what it lacks."""
    size, made = item["image"].shape[:2], dict(item)
    if "boxes" not in item:
        return made
    count = len(item["boxes"])
    blank = {
        "keypoints": [[(0, 0, 0)] * 5] * count, "mask": np.full(size, 255, np.uint8),
        "depth": np.full(size, np.nan, np.float32), "right": np.zeros((*size, 3), np.uint8), "text": None,
        **({"polygons": [[]] * count} if kind == "outlines" else {"masks": [np.zeros(size, np.uint8)] * count}),
    }  # fmt: skip
    return blank | made


@dataclass
class Case:
    """A loader, by the choices that were drawn for it; `str` is what a failure prints."""

    number: int
    kind: str
    sizes: str
    encode: str
    joined: bool
    sampler: str
    buckets: Any
    fill_last: bool
    views: dict[str, CropView] | None
    crop: Any
    repeats: int
    batch: int
    """Samples of a batch on all ranks together."""
    ranks: tuple[int, int]
    """Before and after it is resumed."""
    stop: float
    """The share of the batches before it is resumed."""
    forever: bool
    seed: int | None
    indices: bool
    drop_last: bool
    pad: bool
    noise: bool
    """Whether there is a transform, which draws from its generator."""
    options: dict[str, Any] = field(default_factory=dict)
    """As the loader takes them."""

    def __str__(self) -> str:
        return ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self))


def draw_case(number: int) -> Case:
    """The case of a number."""
    random = np.random.default_rng(number)

    def pick(*choices: Any) -> Any:
        return choices[int(random.integers(len(choices)))]

    def maybe(share: float, value: Any, other: Any = False) -> Any:
        return value if random.random() < share else other

    mode = pick("whole", "crop", "crop", "crop", "views", "views", "repeats", "buckets", "buckets", "patches")
    squares = maybe(0.6, True)
    views = {name: _view(pick, squares) for name in ("large", "small", "one")[: pick(1, 2, 3)]}
    crop = _crop(pick, squares) if mode in ("crop", "repeats") or random.random() < 0.05 else None
    drop_last = maybe(0.3, True) and mode not in ("buckets", "patches")  # which may leave nothing of a few images
    if mode == "buckets":
        crop = pick(
            None, CoverCrop(random=True, interpolation=pick("fast", "area")), Letterbox(interpolation="bilinear")
        )
    sizes = "square" if mode == "whole" and random.random() < 0.9 else pick("square", "ragged")
    options = {
        "flip": pick(False, True, 1.0), "vflip": maybe(0.4, pick(True, 0.8)),
        "rotate90": maybe(0.1 if mode in ("buckets", "patches") else 0.4, pick(True, 0.5)),
        "collate": pick("list", "list", "dict", maybe(0.5, pick("yolo", "padded"), "list")),
        "output": maybe(0.3, "numpy", "torch"), "threads": pick(1, 2, 3, 4), "prefetch": pick(1, 2, 3),
        "cache": maybe(0.1, "ram", None),
        "memory_format": maybe(0.3, torch.contiguous_format, None),
        **pick({}, {}, {"dtype": torch.float32}, {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.1)}),
        "with_weights": maybe(0.3, True),
    }  # fmt: skip
    kind = pick(*KINDS)
    if kind in OBJECTS or random.random() < 0.03:
        options |= {"flip_index": FACE, "hide_outside": pick(True, False)}
        options |= {"min_area": pick(0, 1.0, 20.0), "label_offset": pick(0, 1), "ignored": pick(None, "drop", "flag")}
        options |= {"parts": pick(None, None, (), ("mask",), ("right", "text"))}
    batch = pick(4, 6, 8, 12)
    ranks = tuple(pick(*(n for n in (1, 2, 3, 4) if batch % n == 0)) for _ in range(2))
    sampler = pick(*SAMPLERS, "weighted")
    options["with_weights"] &= sampler == "weighted" or random.random() < 0.1
    return Case(
        number, kind, sizes, pick("raw", "png", "jpeg"), maybe(0.2, True) or sampler == "mixture", sampler,
        {"buckets": pick(COVER, RECT), "patches": PATCHES}.get(mode), maybe(0.3, True),
        views if mode == "views" else None, crop, pick(2, 3) if mode == "repeats" else 1, batch, ranks,
        random.random(), maybe(0.3, True), pick(None, 5), maybe(0.3, True), drop_last, maybe(0.7, True),
        maybe(0.15, True), options,
    )  # fmt: skip


def _crop(pick: Any, square: bool) -> Any:
    filters = ("area", "bilinear", "nearest")
    size = 14 if square else (13, 16)
    return pick(
        RandomResizedCrop(size, scale=(0.2, 1), interpolation=pick("fast", *filters)),
        RandomResizedCrop(size, interpolation=pick("fast", *filters)),
        CenterCrop(size, interpolation=pick(*filters)),
        CenterCrop(pick(size, 26), resize=pick(15, 20, 30), interpolation=pick(*filters)),
        Resize((size, size) if square else size, interpolation=pick(*filters)),
        CoverCrop(size, random=pick(True, False), interpolation=pick("fast", *filters)),
        Letterbox((20, 20) if square else (15, 22), interpolation=pick("fast", *filters)),
    )


def _view(pick: Any, square: bool) -> CropView:
    own = {name: pick(None, None, 0.0, 0.7) for name in ("flip", "vflip", "rotate90")}
    return CropView(_crop(pick, square), pick(1, 2, 3), **own)


def refusals(case: Case) -> Iterator[str]:
    """How the messages begin that a loader must refuse a case with, any of them; nothing else is refused."""
    options, given = case.options, case.options.get
    has_boxes, patches, buckets = case.kind in OBJECTS, case.buckets is PATCHES, case.buckets is not None
    several = case.views is not None or case.repeats > 1
    outputs = [view.crop.output((24, 24)) for view in (case.views or {}).values() if _turns(view.rotate90, options)]
    if case.crop is not None and not buckets and case.views is None and options["rotate90"]:
        outputs.append(case.crop.output((24, 24)))
    table = {
        "pad: is False, for every sample to come once": case.drop_last and not case.pad and not buckets,
        "pad: is False: ranks would differ": case.forever and not case.pad and max(case.ranks) > 1 and not buckets,
        "rotate90: needs square images": any(height != width for height, width in outputs),
        "rotate90: cannot be combined with": buckets and options["rotate90"],
        "crop: cannot be combined with PatchBuckets": patches and case.crop is not None,
        "crop: cannot be combined with views": case.views is not None and case.crop is not None,
        "images differ in size; give a crop": case.sizes == "ragged" and not buckets and case.views is None
        and case.crop is None,
        "collate: is": given("collate") in ("yolo", "padded") and (not has_boxes or given("parts") != ()),
        "collate: cannot be combined with patches": patches and given("collate") in ("yolo", "padded"),
        "label_offset: is for boxes": bool(given("label_offset")) and not has_boxes,
        "ignored: is for boxes": given("ignored") in ("drop", "flag") and not has_boxes,
        "flip_index: is for landmarks": "flip_index" in options and not has_boxes,
        "parts: names": bool({*(given("parts") or ())} - {"mask"}) and not has_boxes
        or given("parts") == ("mask",) and case.kind not in ("masks", *OBJECTS),
        "parts: has masks alone": patches and case.kind == "masks" and given("parts") != (),
        "with_weights: needs a WeightedSampler": options["with_weights"] and (case.sampler != "weighted" or buckets),
        "mean, std and dtype are for uint8 images": case.noise and bool({"mean", "dtype"} & options.keys()),
        "transform: cannot be combined with": case.noise and (several or patches),
    }  # fmt: skip
    return (message for message, refused in table.items() if refused)


def _turns(own: float | None, options: dict[str, Any]) -> bool:
    return bool(options["rotate90"] if own is None else own)
