"""Samples as torchvision's transforms v2 take them, image and target together; torchvision itself is optional."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from packer.errors import UsageError


def as_tv_tensors(image: torch.Tensor, target: Any) -> tuple[Any, Any]:
    """A sample of a PackedDataset, whose boxes and points move along: ``transforms(*as_tv_tensors(*dataset[i]))``.

    image (channels, height, width) becomes `tv_tensors.Image`; of a target dict, boxes become `BoundingBoxes` (xyxy),
    landmarks and each of polygons `KeyPoints` (k, 2), keypoints `KeyPoints` (n, k, 2) with their third column as
    visibility (n, k). All else, and a class id, stays as it is. torchvision's flip takes x of a point to width - 1 - x,
    packer's to width - x. Raises UsageError where torchvision is not installed, or is older than 0.23 and there are
    points, which it would leave where they were.
    """
    try:
        kinds = importlib.import_module("torchvision.tv_tensors")
    except ImportError:
        raise UsageError("torchvision", "is not installed", "pip install torchvision") from None
    size = (int(image.shape[-2]), int(image.shape[-1]))
    there = kinds.Image(image)
    if not isinstance(target, dict):
        return there, target

    def points(xy: torch.Tensor) -> Any:
        if not hasattr(kinds, "KeyPoints"):
            raise UsageError("torchvision", "moves no points before 0.23", "install a newer one")
        return kinds.KeyPoints(xy, canvas_size=size)

    target = dict(target)
    if "boxes" in target:
        target["boxes"] = kinds.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=size)
    if "landmarks" in target:
        target["landmarks"] = points(target["landmarks"])
    if "polygons" in target:
        target["polygons"] = [points(polygon) for polygon in target["polygons"]]
    if "keypoints" in target:
        target["visibility"] = target["keypoints"][..., 2]
        target["keypoints"] = points(target["keypoints"][..., :2])
    return there, target
