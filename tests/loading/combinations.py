"""Draws packs, and cases: a choice of every option of a loader, out of a number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
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
    Mosaic,
    PackWriter,
    RandomAffine,
    RandomResizedCrop,
    Resize,
)
from packer.samplers import PatchBuckets, ShapeBuckets

SALT = 12
"""Chosen so that the cases of the test have every choice."""
COUNT = 17
"""Samples of a pack."""
CLASSES = ("ant", "bee", "cat")
FACE = (1, 0, 2, 4, 3)
PARTS = {"depth": "map", "right": "image", "text": "text"}
OBJECTS = ("outlines", "instances")
"""Kinds of packs with boxes, and polygons or masks of their objects; a pack has one of these."""
KINDS = ("labels", "values", "masks", *2 * OBJECTS)
SAMPLERS = ("shuffle", "sequential", "block", "balanced", "mixture", "repeated", *2 * ("weighted",))
MODES = (
    "whole", *3 * ("crop",), *2 * ("views",), "repeats", *2 * ("buckets",), "patches", *3 * ("mosaic",),
)  # fmt: skip
COVER, RECT = ShapeBuckets([(16, 16), (14, 20), (20, 14)]), ShapeBuckets.rect(24, 8)
PATCHES = PatchBuckets(4, (24, 48))


def item_of(kind: str, sizes: str, number: int) -> dict[str, Any]:
    """A sample of a pack; some lack what others have. All numbers are exact in float32."""
    random = np.random.default_rng(number)
    height, width = (24, 24) if sizes == "square" else (24 + number % 4 * 5, 24 + number * 7 % 17)
    item: dict[str, Any] = {"image": noise(number, height, width)}
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
    corners = np.sort(points(count, 2), axis=1)
    corners[:, 1] += 0.25  # no box is empty
    made: dict[str, Any] = {
        "boxes": np.minimum(corners.reshape(-1, 4), (width, height, width, height)).tolist(),
        "labels": random.integers(0, 3, count).tolist(), "iscrowd": random.integers(0, 2, count).tolist(),
        "landmarks": [] if number % 6 == 1 else (points(5) + random.integers(-3, 4, 2)).tolist(),
    }  # fmt: skip
    if number % 7 != 5:
        made["keypoints"] = np.concatenate([points(count, 5), random.integers(0, 3, (count, 5, 1))], axis=2).tolist()
        if kind == "outlines":
            made["polygons"] = [[] if i == 2 else points(3 + i).tolist() for i in range(count)]
        else:
            made["masks"] = list(random.integers(0, 2, (count, height, width), np.uint8))
    if number % 5 != 4:
        made["depth"] = random.random((height, width), np.float32)
    if number % 9 != 7:
        made["right"] = noise(100 + number, height, width)
    return made | ({} if number % 3 == 1 else {"text": f"nr. {number}"})


def write_pack(path: Path, items: list[dict[str, Any]], encode: str) -> None:
    """Write samples as a pack."""
    parts = PARTS if "boxes" in items[0] else {}
    options: dict[str, Any] = {"classes": CLASSES, "encode": encode, "parts": parts, "shard_bytes": 20_000}
    with PackWriter(path, **options) as writer:
        for item in items:
            given = {name: one for name, one in item.items() if name not in ("labels", "iscrowd", *PARTS)}
            if not item.get("landmarks"):
                given.pop("landmarks", None)
            if "boxes" in item:
                given["box_labels"], given["box_fields"] = item["labels"], {"iscrowd": item["iscrowd"]}
            writer.write(parts={name: item[name] for name in PARTS if name in item}, **given)


def completed(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    """A sample with what stands for what it lacks."""
    size, count = item["image"].shape[:2], len(item.get("boxes", ()))
    if kind not in OBJECTS:
        return item
    return {
        "keypoints": [[(0, 0, 0)] * 5] * count, "mask": np.full(size, 255, np.uint8),
        "depth": np.full(size, np.nan, np.float32), "right": np.zeros((*size, 3), np.uint8), "text": None,
        **({"polygons": [[]] * count} if kind == "outlines" else {"masks": [np.zeros(size, np.uint8)] * count}),
        **item,
    }  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A loader, by the choices that were drawn for it; `str` is what a failure prints."""

    number: int
    kind: str
    sizes: str
    encode: str
    joined: bool
    """Whether there is another pack, of raw images, behind."""
    sampler: str
    indices: bool
    """Whether some records are left out, and the others in another order."""
    drop_last: bool
    pad: bool
    buckets: Any
    fill_last: bool
    views: dict[str, CropView] | None
    crop: Any
    repeats: int
    batch: int
    """Samples of a batch on all ranks together."""
    ranks: tuple[int, int]
    """How many before and after it is resumed."""
    stop: float
    """The share of the batches before it is resumed."""
    forever: bool
    seed: int | None
    noise: bool
    """Whether there is a transform, which draws from its generator."""
    options: dict[str, Any]
    """The others, as the loader takes them."""

    def __str__(self) -> str:
        return "\n".join(f"{one.name} = {getattr(self, one.name)!r}" for one in fields(self))


class _Draw:
    """Random choices."""

    def __init__(self, number: int) -> None:
        self._random = np.random.default_rng([SALT, number])

    def pick(self, *choices: Any) -> Any:
        return choices[int(self._random.integers(len(choices)))]

    def maybe(self, share: float, value: Any = True, other: Any = False) -> Any:
        return value if self._random.random() < share else other

    def share(self) -> float:
        return float(self._random.random())

    def crop(self, square: bool) -> Any:
        pick, filters = self.pick, ("area", "bilinear", "nearest")
        size = 14 if square else (13, 16)
        return pick(
            RandomResizedCrop(size, scale=(0.2, 1), interpolation=pick("fast", *filters)),
            RandomResizedCrop(size, interpolation=pick("fast", *filters)),
            CenterCrop(size, interpolation=pick(*filters)),
            CenterCrop(pick(size, 26), resize=pick(15, 20, 30), interpolation=pick(*filters)),
            Resize((size, size) if square else size, interpolation=pick(*filters)),
            CoverCrop(size, random=pick(True, False), interpolation=pick("fast", *filters)),
            Letterbox((20, 20) if square else (15, 22), pick("fast", *filters), fill=pick(0, 114)),
        )

    def mosaic(self) -> Mosaic:
        pick = self.pick
        return Mosaic(
            pick(15, 22, 36), pick(4, 9), chance=pick(1, 1, 0.5), close_epoch=pick(None, None, 2, 3), fill=pick(0, 114),
            interpolation=pick("fast", "area", "bilinear", "nearest"),
        )  # fmt: skip

    def affine(self) -> Any:
        return self.pick(
            RandomAffine(25, translate=(0.1, 0.2), scale=(0.7, 1.2), shear=5),
            RandomAffine(0, translate=(0.3, 0.1), scale=(0.8, 1.6), fill=114),
        )

    def view(self, square: bool) -> CropView:
        own = {name: self.pick(None, None, 0.0, 0.7) for name in ("flip", "vflip", "rotate90")}
        affine = self.maybe(0.2, self.pick(RandomAffine(0), self.affine()), None)
        crop = self.maybe(0.03, self.mosaic(), self.crop(square))
        return CropView(crop, self.pick(1, 2, 3), **own, affine=affine)

    def options(self, kind: str, mode: str) -> dict[str, Any]:
        pick, maybe, pairs = self.pick, self.maybe, mode in ("whole", "crop", "mosaic")
        options = {
            "flip": pick(False, True, 1.0), "vflip": maybe(0.4, pick(True, 0.8)),
            "rotate90": maybe(0.1 if mode in ("buckets", "patches") else 0.4, pick(True, 0.5)),
            "affine": maybe(0.6 if mode == "mosaic" else 0.2, self.affine(), None),
            "collate": pick("list", "list", "dict", maybe(0.6, pick("yolo", "padded"), "list")),
            "output": maybe(0.3, "numpy", "torch"), "memory_format": maybe(0.3, torch.contiguous_format, None),
            "threads": pick(1, 2, 3, 4), "prefetch": pick(1, 2, 3), "cache": maybe(0.1, "ram", None),
            **pick({}, {}, {"dtype": torch.float32}, {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.1)}),
        }  # fmt: skip
        if kind in OBJECTS or maybe(0.03):
            parts = pick(None, None, (), ("mask",), ("right", "text"))
            parts = () if options["collate"] in ("yolo", "padded") and maybe(0.7) else parts
            options |= {"flip_index": FACE, "hide_outside": pick(True, False), "parts": parts}
            options |= {"min_area": pick(0, 1.0, 20.3), "min_visible": pick(0.0, 0.0, 0.371)}
            options |= {"mixup": (2.0, 0.5)} if pairs and maybe(0.3) else {}
            options |= {"copy_paste": 0.7} if pairs and maybe(0.3) else {}
            options |= {"label_offset": pick(0, 1), "ignored": pick(None, "drop", "flag")}
        return options


def draw_case(number: int) -> Case:
    """The case of a number."""
    draw = _Draw(number)
    pick, maybe = draw.pick, draw.maybe
    mode = pick(*MODES)
    buckets, square, kind = {"buckets": pick(COVER, RECT), "patches": PATCHES}.get(mode), maybe(0.7), pick(*KINDS)
    if mode == "mosaic" and maybe(0.7):
        kind = pick(*OBJECTS)
    crop = draw.crop(square) if mode in ("crop", "repeats") or maybe(0.05) else None
    if mode == "buckets":
        filters = pick("fast", "area"), pick("nearest", "bilinear")
        crop = pick(
            None,
            CoverCrop(random=True, interpolation=filters[0]),
            Letterbox(interpolation=filters[1], fill=pick(0, 114)),
        )
    if mode == "mosaic" or maybe(0.05):
        crop = draw.mosaic()
    batch, options = pick(4, 6, 8, 12), draw.options(kind, mode)
    sampler = pick(*SAMPLERS) if buckets is None else "bucket"
    ends = pick((False, True), (False, True), (False, False), (True, True), maybe(0.2, (True, False), (False, True)))
    options["with_weights"] = maybe(0.4 if sampler == "weighted" else 0.02)
    return Case(
        number, kind, "square" if mode == "whole" and maybe(0.9) else pick("square", "ragged"),
        pick("raw", "png", "jpeg"), maybe(0.2) or sampler == "mixture", sampler, maybe(0.3),
        ends[0] and buckets is None,  # which may leave nothing of so few images
        ends[1], buckets, maybe(0.3 if ends[1] else 0.05),
        {name: draw.view(square) for name in ("large", "small", "one")[: pick(1, 2, 3)]} if mode == "views" else None,
        crop, pick(2, 3) if mode == "repeats" else 1, batch,
        (pick(*divisors(batch)), pick(*divisors(batch))), maybe(0.1, 0.0, draw.share()), maybe(0.3), pick(None, 5),
        maybe(0.1), options,
    )  # fmt: skip


def divisors(batch: int) -> list[int]:
    return [count for count in (1, 2, 3, 4) if batch % count == 0]


def refusals(case: Case) -> Iterator[str]:
    """What the message of a loader may say that refuses a case; it must refuse it if there is any, and only then."""
    options, given = case.options, case.options.get
    has_boxes, patches, buckets = case.kind in OBJECTS, case.buckets is PATCHES, case.buckets is not None
    several, parts = case.views is not None or case.repeats > 1, given("parts")
    views = [(one.crop, one.rotate90) for one in (case.views or {}).values()]
    views += [(case.crop, None)] * (case.crop is not None and not buckets and case.views is None)
    turned = [crop for crop, own in views if (options["rotate90"] if own is None else own)]
    outputs = [one.output((24, 24)) for one in turned]
    has_outlines = case.kind == "outlines" or (case.kind == "instances" and (parts is None or "masks" in parts))
    mosaic = any(isinstance(crop, Mosaic) for crop in (case.crop, *(one.crop for one in (case.views or {}).values())))
    begun = case.ranks if case.stop else case.ranks[1:]
    names = {"mask"} if case.kind == "masks" else {"mask", *PARTS, "masks"} if has_boxes else set()
    seen = names if parts is None else parts
    table = {
        "pad: is False, for every sample to come once": case.drop_last and not case.pad,
        "pad: is False: ranks would differ": case.forever and not case.pad and max(begun) > 1,
        "fill_last: cannot be combined with pad=False": buckets and case.fill_last and not case.pad,
        "copy_paste: needs boxes": "copy_paste" in options and not has_outlines,
        "mixup: is (alpha, chance), but": "mixup" in options and not has_boxes,
        "rotate90: needs square images": any(height != width for height, width in outputs),
        "rotate90: cannot be combined with": buckets and options["rotate90"],
        "affine: cannot be combined with patches": patches and options["affine"] is not None,
        "crop: cannot be combined with PatchBuckets": patches and case.crop is not None,
        "crop: cannot be combined with views": case.views is not None and case.crop is not None,
        "cannot be combined with Mosaic": mosaic and (several or buckets),
        "crop: is a Mosaic, which needs boxes or masks": mosaic and not has_boxes and "mask" not in names & {*seen},
        "images differ in size; give a crop": case.sizes == "ragged"
        and not buckets
        and case.views is None
        and case.crop is None,
        "which needs boxes": given("collate") in ("yolo", "padded") and not has_boxes,
        "which has no place for parts": given("collate") in ("yolo", "padded") and has_boxes and parts != (),
        "collate: cannot be combined with patches": patches and given("collate") in ("yolo", "padded"),
        "label_offset: is for boxes": bool(given("label_offset")) and not has_boxes,
        "ignored: is for boxes": given("ignored") is not None and not has_boxes,
        "flip_index: is for landmarks": "flip_index" in options and not has_boxes,
        "parts: names": not {*(parts or ())} <= names,
        "parts: has masks alone": patches and case.kind == "masks" and parts != (),
        "with_weights: needs a WeightedSampler": options["with_weights"] and case.sampler != "weighted",
        "transform: cannot be combined with": case.noise and (several or patches),
        "are for uint8 images": case.noise and bool({"mean", "dtype"} & options.keys()),
    }
    return (message for message, refused in table.items() if refused)
