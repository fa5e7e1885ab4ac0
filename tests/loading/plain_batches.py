"""What a loader makes of the samples of a batch, written anew: layouts, collations, patches; and the comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from affine_reference import LEVELS
from plain_steps import ANY

NEAR = 2e-3
"""Pixels, or whatever a number is: what float32 may make of it."""


def most_off(options: dict[str, Any], view: Any) -> float:
    """By how much pixels may differ: they are rounded, once more where one axis grows, or where they are halved."""
    exact = view.crop is None or view.crop.interpolation == "nearest"
    return (0 if exact and view.affine is None else 2 if view.affine is None else 2 + LEVELS) * scale_of(options) + 1e-3


def scale_of(options: dict[str, Any]) -> float:
    return 1 / (255 * 0.1) if "mean" in options else 1 / 255 if "dtype" in options else 1


def formed(images: Any, options: dict[str, Any]) -> Any:
    """Images (n, height, width, channels), normalized, as the loader lays them out."""
    if "mean" in options:
        images = (images / 255 - options["mean"]) / options["std"]
    elif "dtype" in options:
        images = images / 255
    planar = options["output"] == "torch" or options["memory_format"] == torch.contiguous_format
    return images.transpose(0, 3, 1, 2) if planar else images


def patches_of(images: list[Any], options: dict[str, Any], side: int, lengths: Any) -> dict[str, Any]:
    """Images in patches, row by row, padded with black."""
    each = []
    for image in images:
        rows, columns = image.shape[0] // side, image.shape[1] // side
        squares = [image[y * side :, x * side :][:side, :side] for y in range(rows) for x in range(columns)]
        each.append((columns, [square.reshape(side * side, -1) for square in squares]))
    length = min(one for one in lengths if one >= max(len(squares) for _, squares in each))
    values, coord = np.zeros((len(images), length, *each[0][1][0].shape)), np.zeros((len(images), length, 2), np.int64)
    valid = np.zeros((len(images), length), bool)
    for row, (columns, squares) in enumerate(each):
        values[row, : len(squares)], valid[row, : len(squares)] = squares, True
        coord[row, : len(squares)] = [divmod(i, columns) for i in range(len(squares))]
    flat = formed(values, {**options, "output": "numpy", "memory_format": None}).reshape(len(images), length, -1)
    return {"patches": flat, "patch_coord": coord, "patch_valid": valid}


def collated(targets: list[Any], how: str, size: tuple[int, int]) -> Any:
    """The targets of a batch of images of (height, width)."""
    if not isinstance(targets[0], dict):
        return np.stack(targets) if isinstance(targets[0], np.ndarray) else np.array(targets, np.int64)
    if how == "list":
        return targets
    if how == "dict":
        return {name: _stacked([target[name] for target in targets]) for name in targets[0]}
    height, width = size
    parts = [
        [((a + c) / 2 / width, (b + d) / 2 / height, (c - a) / width, (d - b) / height) for a, b, c, d in one["boxes"]]
        for one in targets
    ]
    if how == "yolo":
        rows = [
            (i, label, *box)
            for i, (target, boxes) in enumerate(zip(targets, parts, strict=True))
            for label, box in zip(target["labels"], boxes, strict=True)
        ]
        return np.array(rows, np.float32).reshape(-1, 6)
    shape = len(targets), max(map(len, parts))
    made = {
        "boxes": np.zeros((*shape, 4), np.float32), "labels": np.zeros(shape, np.int64), "mask": np.zeros(shape, bool),
        "image_id": np.array([target["image_id"] for target in targets]),
    }  # fmt: skip
    for row, (target, boxes) in enumerate(zip(targets, parts, strict=True)):
        for i, box in enumerate(boxes):
            made["boxes"][row, i], made["labels"][row, i], made["mask"][row, i] = box, target["labels"][i], True
    return made


def _stacked(values: list[Any]) -> Any:
    if all(isinstance(value, int) for value in values):
        return np.array(values, np.int64)
    alike = all(isinstance(value, np.ndarray) for value in values) and len({value.shape for value in values}) == 1
    return np.stack(values) if alike else values


def assert_same(found: Any, wanted: Any, where: str, most: float = NEAR, of_image: float = 2) -> None:
    """Compare what a loader gives with what is wanted, and name the place of a difference.

    Args:
        found: tensors, arrays, lists and dicts.
        wanted: likewise; the dtype of float64, which are pixels, does not matter.
        where: what is compared.
        most: the largest difference.
        of_image: that of further images.
    """
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), f"{where}: {sorted(found)}, not {sorted(wanted)}"
        for name, one in wanted.items():
            assert_same(found[name], one, f"{where}.{name}", of_image if name == "right" else most, of_image)
    elif isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted), f"{where}: {len(found)}, not {len(wanted)}"
        for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_same(one, other, f"{where}[{i}]", most, of_image)
    elif isinstance(wanted, np.ndarray) and "polygons[" in where:
        # rounded to float32, a point near an edge may be a corner more
        apart = np.linalg.norm(np.asarray(found)[:, None] - wanted, axis=2)
        off = max(apart.min(axis=0).max(), apart.min(axis=1).max()) if apart.size else 0
        assert bool(len(found)) == bool(len(wanted)) and off <= most, f"{where}: {found}, not {wanted}"
    elif isinstance(wanted, np.ndarray):
        given = found.numpy() if isinstance(found, torch.Tensor) else found
        assert given.shape == wanted.shape, f"{where}: shape {given.shape}, not {wanted.shape}"
        assert wanted.dtype in (np.float64, given.dtype), f"{where}: {given.dtype}, not {wanted.dtype}"
        known = wanted != ANY
        assert np.array_equal(np.isnan(given[known]), np.isnan(wanted[known])), f"{where}: other ones are NaN"
        off = np.nan_to_num(np.abs(given.astype(np.float64) - np.where(known, wanted, given)))
        place = np.unravel_index(off.argmax(), off.shape) if off.size else ()
        assert off.max(initial=0) <= most, f"{where}: {off.max()} off at {tuple(map(int, place))}"
    else:
        assert type(found) is type(wanted) and found == wanted, f"{where}: {found!r}, not {wanted!r}"
