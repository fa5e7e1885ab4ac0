"""Makes one batch of many samples or parts: images and class ids as tensors, boxes as dicts, rows or padded tensors."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch

from packer.errors import NotInstalled, UsageError
from packer.loading.annotations import BatchAnnotations, Column

COLLATIONS = ("list", "yolo", "padded")


def join_targets(parts: Sequence[Any], collation: str = "list", size: tuple[int, int] = (1, 1)) -> Any:
    """Return the targets of a batch out of those of its parts.

    Args:
        parts: class ids (n,), tags (n, k), `BatchAnnotations`, or lists of transformed targets: all of one kind.
        collation: what becomes of boxes, one of COLLATIONS.
        size: (height, width) of the images.

    Returns:
        Class ids as int64 (n,); tags as float32 (n, k); transformed targets as a list; BatchAnnotations of tensors,
        whose `as_dicts` gives a target for each image; or what `yolo_rows` and `padded_boxes` make of these.
    """
    if isinstance(parts[0], np.ndarray):
        return torch.from_numpy(np.concatenate(parts) if len(parts) > 1 else parts[0])
    if isinstance(parts[0], BatchAnnotations):
        annotations = BatchAnnotations.join(parts)
    else:
        targets = [target for part in parts for target in part]
        if collation == "list":
            return _ids_as_tensor(targets)
        annotations = _annotations_of(targets, collation)
    annotations = annotations.as_tensors()
    if collation == "list":
        return annotations
    return (yolo_rows if collation == "yolo" else padded_boxes)(annotations, size)


def _are_tags(target: Any) -> bool:
    return isinstance(target, torch.Tensor) and target.dim() == 1 and target.dtype == torch.float32


def _ids_as_tensor(targets: list[Any]) -> Any:
    if all(isinstance(target, int) for target in targets):
        return torch.tensor(targets, dtype=torch.int64, device="cpu")
    return targets


def _annotations_of(targets: list[Any], collation: str) -> BatchAnnotations:
    """Return transformed targets as columns again."""
    for target in targets:
        if not isinstance(target, dict) or not target.keys() >= {"boxes", "labels"}:
            problem = f'"{collation}" needs targets with boxes and labels, and a transform returned another'
            raise UsageError("collate", problem, 'return a dict with both, or write collate="list"')
    columns = {}
    for name, dtype, shape in (("boxes", np.float32, (-1, 4)), ("labels", np.int64, (-1,))):
        rows = [np.asarray(target[name], dtype).reshape(shape) for target in targets]
        columns[name] = Column(np.concatenate(rows), np.array([len(row) for row in rows], np.int64))
    ids = np.array([target.get("image_id", -1) for target in targets], np.int64)
    return BatchAnnotations(ids, columns)


def yolo_rows(annotations: BatchAnnotations, size: tuple[int, int]) -> torch.Tensor:
    """Return float32 (m, 6): image of the batch, class, and cx, cy, width, height in fractions of the image.

    Args:
        annotations: boxes of the batch in pixels.
        size: (height, width) of the images.
    """
    boxes, labels = annotations.columns["boxes"], annotations.columns["labels"]
    numbers = torch.from_numpy(np.repeat(np.arange(len(boxes.counts)), boxes.counts))
    return torch.cat([numbers[:, None], labels.values[:, None], _fractions(boxes.values, size)], dim=1)


def padded_boxes(annotations: BatchAnnotations, size: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Return tensors of one row for each image, as long as the image with the most boxes needs.

    Args:
        annotations: boxes of the batch in pixels.
        size: (height, width) of the images.

    Returns:
        boxes float32 (n, k, 4): cx, cy, width, height in fractions of the image; labels int64 (n, k); mask bool (n,
        k), true where there is a box (elsewhere both are 0); image_id int64 (n,).
    """
    boxes, labels = annotations.columns["boxes"], annotations.columns["labels"]
    counts = torch.from_numpy(boxes.counts)
    mask = torch.arange(int(boxes.counts.max(initial=0))) < counts[:, None]
    padded = {"boxes": torch.zeros(*mask.shape, 4), "labels": torch.zeros(mask.shape, dtype=torch.int64)}
    padded["boxes"][mask] = _fractions(boxes.values, size)
    padded["labels"][mask] = labels.values
    return {**padded, "mask": mask, "image_id": torch.from_numpy(annotations.records)}


def _fractions(boxes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    height, width = size
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack([(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height], dim=1)


class Batch(Sequence[tuple[torch.Tensor, Any]]):
    """A batch in one tensor that behaves like the list of its (image, target) pairs.

    Args:
        images: uint8 (n, channels, height, width), channels last in memory.
        targets: int64 (n,), tags float32 (n, k), or a list of n.
    """

    __slots__ = ("images", "targets")

    def __init__(self, images: torch.Tensor, targets: torch.Tensor | list[Any]) -> None:
        self.images = images
        self.targets = targets

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> tuple[torch.Tensor, Any] | Batch:
        targets = self.targets[index]
        if isinstance(index, slice):
            return Batch(self.images[index], targets)
        return self.images[index], int(targets) if isinstance(targets, torch.Tensor) and not targets.dim() else targets

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        targets: Any = self.targets
        if isinstance(targets, torch.Tensor) and targets.dim() == 1:
            targets = targets.tolist()
        return zip(self.images, targets, strict=True)


def collate(samples: Sequence[tuple[torch.Tensor, Any]]) -> tuple[torch.Tensor | list[torch.Tensor], Any]:
    """Combine samples into a batch: the `collate_fn` of a DataLoader for a PackedDataset.

    Args:
        samples: (image, target) pairs from the dataset.

    Returns:
        (images, targets). Images of one shape become one tensor (n, channels, height, width), others stay a list, as
        torchvision's detection models take them. Class ids become int64 (n,), tags float32 (n, k); dicts of boxes and
        landmarks stay a list.
    """
    if isinstance(samples, Batch):
        return samples.images, samples.targets
    images = [image for image, _ in samples]
    targets = _ids_as_tensor([target for _, target in samples])
    if isinstance(targets, list) and targets and all(map(_are_tags, targets)) and len(set(map(len, targets))) == 1:
        targets = torch.stack(targets)
    if images and all(isinstance(i, torch.Tensor) and i.shape == images[0].shape for i in images):
        return stack_images(images), targets
    return images, targets


def stack_images(images: list[torch.Tensor]) -> torch.Tensor:
    """Stack images, channels last in memory if the first one is (torch.stack does not keep that)."""
    if len(shapes := {tuple(image.shape) for image in images}) > 1:
        problem = f"returns images of different shapes, such as {' and '.join(map(str, sorted(shapes)[:2]))}"
        raise UsageError("transform", problem, "make them one size, or use PackedDataset in a DataLoader")
    if images[0].dim() != 3 or not images[0].permute(1, 2, 0).is_contiguous():
        return torch.stack(images)
    return torch.stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)


def as_tv_tensors(image: torch.Tensor, target: Any) -> tuple[Any, Any]:
    """Convert a sample for torchvision's transforms v2: ``transforms(*as_tv_tensors(*dataset[i]))``.

    torchvision's flip moves a point x to width - 1 - x, packer's to width - x.

    Args:
        image: (channels, height, width); becomes `tv_tensors.Image`.
        target: in a dict, boxes become `BoundingBoxes` (xyxy), landmarks and each polygon `KeyPoints` (k, 2),
            keypoints `KeyPoints` (n, k, 2) with their third column as visibility (n, k). Other values are unchanged.

    Raises:
        NotInstalled: if torchvision is missing.
        UsageError: if there are points and torchvision is older than 0.23, which cannot move them.
    """
    try:
        kinds = importlib.import_module("torchvision.tv_tensors")
    except ImportError:
        raise NotInstalled("torchvision", "is not installed", "pip install torchvision") from None
    size = (int(image.shape[-2]), int(image.shape[-1]))
    if not isinstance(target, dict):
        return kinds.Image(image), target

    def points(xy: torch.Tensor) -> Any:
        if not hasattr(kinds, "KeyPoints"):
            raise UsageError("torchvision", "cannot move points before version 0.23", "upgrade it")
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
    return kinds.Image(image), target
