"""Targets of images for training: class ids, or dicts of tensors; and their batches."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch

from packer.errors import NotInstalled, UsageError
from packer.format.pack import Pack
from packer.images.geometry import clip, move, select_boxes
from packer.loading.crop import CropParams
from packer.types import Annotation, Int64

Target = Any
"""int if the pack has only class labels of whole images, else dict[str, Tensor | list | int]."""

FLAGS = ("difficult", "truncated", "occluded")
"""Box fields that are always integers, and become int64 tensors (n,)."""
ORIGINALS = ("voc_bndbox",)
"""Original numbers of the source file, which are in the record (`Pack.annotation`) but not in the target."""
EMPTY = {"boxes": (0, 4), "landmarks": (0, 2), "keypoints": (0, 0, 3)}


class Targets(Sequence[Target]):
    """The targets of a pack's records, created on access.

    Args:
        pack: the pack.
        transform: called with each target that `of` returns.
        min_area: drop boxes that a crop cuts to less than this area, in pixels.
    """

    def __init__(self, pack: Pack, transform: Callable[[Any], Any] | None = None, min_area: float = 1.0) -> None:
        self._pack = pack  # not the dataset: a reference cycle would keep the map
        self._transform = transform
        self._min_area = min_area
        self._fields = pack.manifest.fields
        self.labels: Int64 | None = None
        """Class ids (n,), if the pack has only labels of whole images; these are then the targets."""
        if tuple(self._fields) == ("label",):
            self.labels = np.asarray(pack.column("label")).astype(np.int64)

    def __len__(self) -> int:
        return len(self._pack)

    def __getitem__(self, index: Any) -> Any:
        return self.target(record_number(index, len(self)))

    def target(self, record: int, params: CropParams | None = None, row: int = 0) -> Target:
        """Return the target of one record, whose image is row `row` of `params`, without `transform`."""
        if self.labels is not None:
            return int(self.labels[record])
        if not self._fields:  # a pack without labels
            return {}
        annotation = self._pack.annotation(record)
        if params is not None and (geometry := params.geometry(row)) is not None:
            annotation = move(annotation, geometry)
        if params is not None and params.regions is not None:
            annotation = self._cut(annotation, params.output)
        return target_of(annotation, self._fields)

    def of(self, records: Int64, params: CropParams | None = None) -> Int64 | list[Any]:
        """Return the targets of some records: class ids (n,), or a list of n. `join_targets` combines them."""
        if self.labels is None:
            targets = [self.target(record, params, row) for row, record in enumerate(records.tolist())]
        elif self._transform is None:
            return self.labels[records]
        else:
            targets = self.labels[records].tolist()
        return targets if self._transform is None else [self._transform(target) for target in targets]

    def _cut(self, annotation: Annotation, output: tuple[int, int]) -> Annotation:
        """Return an annotation after a crop."""
        height, width = output
        left = clip(annotation, width, height)
        if left.boxes is None or not len(left.boxes):
            return left
        areas = (left.boxes[:, 2] - left.boxes[:, 0]) * (left.boxes[:, 3] - left.boxes[:, 1])
        large = areas >= self._min_area
        return left if large.all() else select_boxes(left, large)


def record_number(index: Any, n: int) -> int:
    """Return the record number of a sample index, an integer from -n to n - 1."""
    if isinstance(index, slice):
        raise TypeError("a PackedDataset takes no slices; use torch.utils.data.Subset(dataset, range(a, b))")
    i = operator.index(index)
    if not -n <= i < n:
        raise IndexError(f"sample {i} of {n}")
    return i + n if i < 0 else i


def target_of(annotation: Annotation, fields: Sequence[str]) -> dict[str, Any]:
    """Return the target dict of one image, with the same keys for all images of a pack.

    Args:
        annotation: the annotation of the image.
        fields: the fields in the pack's manifest.

    Returns:
        boxes float32 (n, 4), xyxy in pixels; labels int64 (n,), of the boxes; label int, of the image, -1 if it has
        none; landmarks float32 (k, 2); polygons list of n float32 (m, 2); keypoints float32 (n, k, 3);
        difficult, truncated, occluded int64 (n,); other box fields as lists of n; extras dict.
    """
    target: dict[str, Any] = {}
    for field in fields:
        if field == "label":
            target["label"] = -1 if annotation.label is None else annotation.label
        elif field == "box_labels":
            target["labels"] = _tensor(annotation.box_labels, (0,), np.int64)
        elif field == "polygons":
            target["polygons"] = [torch.tensor(p) for p in annotation.polygons or ()]
        elif field == "extras":
            target["extras"] = dict(annotation.extras)
        elif field.startswith("box_fields."):
            name = field.removeprefix("box_fields.")
            if name in ORIGINALS:
                continue
            values = list(annotation.box_fields.get(name, ()))
            target[name] = torch.tensor(values, dtype=torch.int64) if name in FLAGS else values
        else:
            target[field] = _tensor(getattr(annotation, field), EMPTY[field], np.float32)
    return target


def _tensor(values: Any, empty: tuple[int, ...], dtype: Any) -> torch.Tensor:
    return torch.from_numpy(np.zeros(empty, dtype) if values is None else np.array(values, dtype))


def join_targets(parts: Sequence[Any]) -> Any:
    """Join the targets of the parts of a batch: class ids as an int64 tensor (n,), others as a list."""
    if isinstance(parts[0], np.ndarray):
        return torch.from_numpy(np.concatenate(parts) if len(parts) > 1 else parts[0])
    return _ids_as_tensor([target for part in parts for target in part])


def _ids_as_tensor(targets: list[Any]) -> Any:
    if all(isinstance(target, int) for target in targets):
        return torch.tensor(targets, dtype=torch.int64, device="cpu")
    return targets


class Batch(Sequence[tuple[torch.Tensor, Any]]):
    """A batch in one tensor that behaves like the list of its (image, target) pairs.

    Args:
        images: uint8 (n, channels, height, width), channels last in memory.
        targets: int64 (n,) or a list of n.
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
        return self.images[index], int(targets) if isinstance(targets, torch.Tensor) else targets

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Any]]:
        targets = self.targets.tolist() if isinstance(self.targets, torch.Tensor) else self.targets
        return zip(self.images, targets, strict=True)


def collate(samples: Sequence[tuple[torch.Tensor, Any]]) -> tuple[torch.Tensor | list[torch.Tensor], Any]:
    """Combine samples into a batch: the `collate_fn` of a DataLoader for a PackedDataset.

    Args:
        samples: (image, target) pairs from the dataset.

    Returns:
        (images, targets). Images of one shape become one tensor (n, channels, height, width), others stay a list, as
        torchvision's detection models take them. Class ids become int64 (n,); dicts of boxes and landmarks stay a list.
    """
    if isinstance(samples, Batch):
        return samples.images, samples.targets
    images = [image for image, _ in samples]
    targets = _ids_as_tensor([target for _, target in samples])
    if images and all(isinstance(i, torch.Tensor) and i.shape == images[0].shape for i in images):
        return stack_images(images), targets
    return images, targets


def stack_images(images: list[torch.Tensor]) -> torch.Tensor:
    """Stack images, channels last in memory if the first one is (torch.stack does not keep that)."""
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
