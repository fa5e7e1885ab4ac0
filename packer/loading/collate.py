"""Makes one batch of many samples or parts: images and class ids as tensors, boxes as dicts, rows or padded tensors."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import cv2
import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from packer.errors import NotInstalled, UsageError, add_note
from packer.loading.annotations import BatchAnnotations, Column, in_lists
from packer.loading.memory import SentTensor, is_in_worker, shared_memory, shared_pool
from packer.model.fields import INSTANCES, LISTS

COLLATIONS = ("list", "dict", "yolo", "padded")
NUMPY_HAS = (torch.float32, torch.int64, torch.uint8, torch.bool, torch.int32, torch.float64, torch.float16)
PLAIN = frozenset((dtype, True, torch.strided, False) for dtype in NUMPY_HAS)
"""What `_kind` returns for tensors that can be joined with others of their kind and sent as an array."""
BY_VALUE_BYTES = 1 << 20
"""Up to this, a tensor goes through a pipe sooner than a file is opened for it."""


def sizes_in(images: Any) -> Any:
    """Return the (height, width) of images, a tensor; or those of each view, by name."""
    if isinstance(images, dict):
        return {name: sizes_in(one) for name, one in images.items()}
    images = getattr(images, "canvas", images)
    return int(images.shape[-2]), int(images.shape[-1])


def join_targets(parts: Sequence[Any], collation: str = "list", size: Any = (1, 1)) -> Any:
    """Return the targets of a batch out of those of its parts.

    Args:
        parts: class ids (n,), tags (n, k), `BatchAnnotations`, or lists of transformed targets: all of one kind. With
            views, a list of such for each, by name.
        collation: what becomes of boxes, one of COLLATIONS.
        size: (height, width) of the images; with views a dict.

    Returns:
        Class ids as int64 (n,); tags as float32 (n, k); transformed targets as a list, or as a tensor if they are
        numbers, 0-d tensors or vectors of one length; BatchAnnotations of tensors, whose `as_dicts` gives a target for
        each image; or what `yolo_rows` and `padded_boxes` make of these.
    """
    if isinstance(parts[0], dict):
        views = {}
        for name, crops in parts[0].items():  # one crop of all images after another
            every = [part[name][k] for k in range(len(crops)) for part in parts]
            views[name] = join_targets(every, collation, size[name] if isinstance(size, dict) else size)
        return views.get("", views)
    if isinstance(parts[0], np.ndarray):
        return torch.from_numpy(np.concatenate(parts) if len(parts) > 1 else parts[0])
    if isinstance(parts[0], BatchAnnotations):
        annotations = BatchAnnotations.join(parts)
    else:
        targets = [target for part in parts for target in part]
        if collation == "list":
            return _stacked(targets, size)
        if collation == "dict":
            return joined_dict(targets)
        annotations = _annotations_of(targets, collation)
    annotations = annotations.as_tensors()
    if collation == "list":
        return annotations
    if collation == "dict":
        whole = {name: value for name, value in annotations.images.items() if isinstance(value, torch.Tensor)}
        return {**joined_dict(annotations.as_dicts(leave=whole)), **whole}
    return (yolo_rows if collation == "yolo" else padded_boxes)(annotations, size)


def _stacked(targets: list[Any], size: tuple[int, int] | None = None) -> Any:
    """Return numbers, and tensors of one length, as one tensor of the type that torch's `default_collate` gives them.

    So are masks, tensors of the `size` of the images. Others of two and more dimensions, such as boxes, stay a list:
    they have one shape by chance only.
    """
    if all(isinstance(target, int) for target in targets):
        return torch.tensor(targets, dtype=torch.int64, device="cpu")
    if all(isinstance(target, int | float) for target in targets):
        return torch.tensor(targets, dtype=torch.float64, device="cpu")
    if all(type(target) is torch.Tensor and (target.dim() < 2 or target.shape == size) for target in targets):
        kinds = {(target.shape, target.dtype, target.device) for target in targets}
        return torch.stack(targets) if len(kinds) == 1 else targets
    return targets


def joined_dict(targets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one dict for a batch: numbers, and tensors of one shape, as one tensor each, others as a list."""

    def joined(values: list[Any]) -> Any:
        if all(type(value) is int for value in values):
            return torch.tensor(values, dtype=torch.int64, device="cpu")
        alike = {(value.shape, value.dtype) if isinstance(value, torch.Tensor) else None for value in values}
        return torch.stack(values) if len(alike) == 1 and None not in alike else values

    return {name: joined([target[name] for target in targets]) for name in (targets[0] if targets else ())}


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


class LoadedSample(tuple[Any, Any]):
    """(image, target) of a `PackedDataset`: a tuple that torch's `default_collate` combines by `default_collated`."""

    __slots__ = ()


class SampleOfObjects(LoadedSample):
    """A sample whose target has as many rows as its image has objects, so that targets cannot be stacked."""

    __slots__ = ()


class Batch(Sequence[LoadedSample]):
    """A batch in one tensor that behaves like the list of its samples.

    Args:
        images: uint8 (n, channels, height, width), channels last in memory.
        targets: int64 (n,), tags float32 (n, k), or a list of n.
        kind: class of the samples.
    """

    __slots__ = ("images", "kind", "targets")

    def __init__(
        self, images: torch.Tensor, targets: torch.Tensor | list[Any], kind: type[LoadedSample] = LoadedSample
    ) -> None:
        self.images = images
        self.targets = targets
        self.kind = kind

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> LoadedSample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LoadedSample]: ...
    def __getitem__(self, index: int | slice) -> LoadedSample | Sequence[LoadedSample]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            return Batch(self.images[index], self.targets[index], self.kind)
        target: Any = self.targets[index]
        is_id = isinstance(self.targets, torch.Tensor) and self.targets.dim() == 1
        return self.kind((self.images[index], int(target) if is_id else target))

    def __iter__(self) -> Iterator[LoadedSample]:
        targets: Any = self.targets
        if isinstance(targets, torch.Tensor) and targets.dim() == 1:
            targets = targets.tolist()
        return map(self.kind, zip(self.images, targets, strict=True))


def contiguous(samples: Sequence[LoadedSample]) -> Sequence[LoadedSample]:
    """Return samples whose images are contiguous in memory, (channels, height, width)."""
    if isinstance(samples, Batch):
        return Batch(samples.images.contiguous(), samples.targets, samples.kind)
    return [
        type(sample)((image.contiguous() if isinstance(image, torch.Tensor) else image, target))
        for sample in samples for image, target in [sample]
    ]  # fmt: skip


def collate(samples: Sequence[tuple[Any, Any]]) -> tuple[torch.Tensor | list[Any], Any]:
    """Combine samples into a batch: the `collate_fn` of a DataLoader for a PackedDataset that torch cannot stack.

    Images of one shape with class ids, tags or boxes of the pack need no `collate_fn`; those of different shapes, and
    targets of different lengths that a transform returns, need this.

    Args:
        samples: (image, target) pairs from the dataset.

    Returns:
        (images, targets). Images of one shape become one tensor (n, channels, height, width), others stay a list, as
        torchvision's detection models take them. Class ids become int64 (n,), tags float32 (n, k), and what a transform
        returns a tensor if it is a number (float64 (n,)), a 0-d tensor (n,) or a vector of one length (n, k); dicts of
        boxes and landmarks stay a list.
    """
    images, targets = _columns(samples)
    if isinstance(targets, list):
        targets = _stacked(targets)
    return _to_send(images), _to_send(targets)


def default_collated(samples: Sequence[Any], *, collate_fn_map: Any = None) -> list[Any]:
    """Combine samples as torch's `default_collate` does, which calls this when the first one is a `LoadedSample`.

    There are two differences: images are channels last in memory if the first one is, not stacked at all if they are
    the rows of a `Batch`; and targets with boxes become a list, as by `collate`.

    Args:
        samples: those of a PackedDataset, or others that were mixed with them.
        collate_fn_map: torch's table of functions.

    Returns:
        [images, targets].
    """

    def as_torch(column: Any) -> Any:
        return torch_collate.collate(column, collate_fn_map=collate_fn_map)

    if not isinstance(samples, Batch) and not all(isinstance(sample, LoadedSample) for sample in samples):
        return list(as_torch([tuple(sample) if isinstance(sample, LoadedSample) else sample for sample in samples]))
    images, targets = _columns(samples)
    if isinstance(samples[0], SampleOfObjects):
        return [_to_send(images), _to_send(targets)]
    images = _to_send(as_torch(images) if isinstance(images, list) else images)
    try:
        return [images, as_torch(targets) if isinstance(targets, list) else targets]
    except Exception as error:
        add_note(error, "to keep targets that cannot be stacked as a list: DataLoader(..., collate_fn=packer.collate)")
        raise


torch_collate.default_collate_fn_map[LoadedSample] = default_collated


class SentList(list[Any]):
    """Targets or images in a worker, which become a plain list where they are received.

    torch opens a file for each tensor that it sends. Here all tensors of a field are sent as one, and what is received
    are views of it.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (_sent(list(self)),)


class _Becomes:
    """Becomes the result of `function(*values)` when it is unpickled."""

    __slots__ = ("function", "values")

    def __init__(self, function: Callable[..., Any], *values: Any) -> None:
        self.function, self.values = function, values

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.values


def _sent(values: list[Any]) -> Any:
    """Return what becomes these values: of dicts a list for each key, of lists one list, of tensors one tensor.

    Values that differ in keys, type or dtype are sent one by one, and those of other classes as they are.
    """
    kinds = set(map(type, values))
    if kinds == {dict} and len(keys := {tuple(value) for value in values}) == 1 and (names := keys.pop()):
        columns = zip(*(value.values() for value in values), strict=True)
        return _Becomes(_dicts, names, [_sent(list(column)) for column in columns])
    if kinds == {list}:
        return _Becomes(in_lists, _sent([one for value in values for one in value]), list(map(len, values)))
    if kinds == {torch.Tensor} and all(map(_is_channels_last, values)):
        return _Becomes(_channels_first, _sent([image.permute(1, 2, 0) for image in values]))
    if kinds == {torch.Tensor} and len(set(map(_kind, values))) == 1 and _kind(values[0]) in PLAIN:
        shapes = [value.shape for value in values]
        if shapes[0] and len({shape[1:] if shape else None for shape in set(shapes)}) == 1:
            return _Becomes(_rows, _joined(values), [shape[0] for shape in shapes])
        return _Becomes(_shaped, _joined([value.reshape(-1) for value in values]), list(map(tuple, shapes)))
    if len(values) == 1:
        return values
    return [_Becomes(_only, _sent([one])) if type(one) in (dict, list, torch.Tensor) else one for one in values]


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.is_cpu, tensor.layout, tensor.requires_grad


def _is_channels_last(image: torch.Tensor) -> bool:
    return image.dim() == 3 and not image.is_contiguous() and image.permute(1, 2, 0).is_contiguous()


def _joined(tensors: list[torch.Tensor]) -> Any:
    """Return what becomes tensors in one: a few bytes are sent by value, many in memory that is shared."""
    size = sum(tensor.nbytes for tensor in tensors)
    if size <= BY_VALUE_BYTES:
        return _Becomes(torch.from_numpy, torch.cat(tensors).numpy())
    first = tensors[0]
    out = shared_memory(size).view(first.dtype).view(-1, *first.shape[1:])
    return torch.cat(tensors, out=out)


def _only(values: Sequence[Any]) -> Any:
    (value,) = values
    return value


def _channels_first(images: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [image.permute(2, 0, 1) for image in images]


def _dicts(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _rows(values: torch.Tensor, lengths: list[int]) -> Sequence[torch.Tensor]:
    return values.split_with_sizes(lengths)


def _shaped(values: torch.Tensor, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    parts = values.split_with_sizes(list(map(math.prod, shapes)))
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _to_send(column: Any) -> Any:
    if not is_in_worker():
        return column
    if type(column) is torch.Tensor and shared_pool().number_of(column) is not None:
        return column.as_subclass(SentTensor)
    return SentList(column) if type(column) is list else column


def _columns(samples: Sequence[tuple[Any, Any]]) -> tuple[torch.Tensor | list[Any], torch.Tensor | list[Any]]:
    """Return the images of samples, stacked if they are of one shape, and their targets."""
    if isinstance(samples, Batch):
        return samples.images, samples.targets
    images, targets = [image for image, _ in samples], [target for _, target in samples]
    if images and all(isinstance(i, torch.Tensor) and i.shape == images[0].shape for i in images):
        return stack_images(images), targets
    return images, targets


def stack_images(images: list[torch.Tensor]) -> torch.Tensor:
    """Stack images, channels last in memory if the first one is (torch.stack does not keep that)."""
    if len(shapes := {tuple(image.shape) for image in images}) > 1:
        problem = f"returns images of different shapes, such as {' and '.join(map(str, sorted(shapes)[:2]))}"
        raise UsageError("transform", problem, "make them one size, or use PackedDataset in a DataLoader")
    if images[0].dim() != 3 or not images[0].permute(1, 2, 0).is_contiguous():
        return _stack(images)
    return _stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)


def _stack(images: list[torch.Tensor]) -> torch.Tensor:
    first = images[0]
    # in a worker into memory that is sent without a copy, where torch would not make another type of them
    plain = first.device.type == "cpu" and all(type(i) is torch.Tensor and not i.requires_grad for i in images)
    if not (is_in_worker() and plain and {image.dtype for image in images} == {first.dtype}):
        return torch.stack(images)
    out = shared_pool().take(len(images) * first.nbytes).view(first.dtype).view(len(images), *first.shape)
    return torch.stack(images, out=out)


def xywhr(obb: Any) -> Any:
    """Return oriented boxes by center, size and angle, as rotated detectors take them.

    Each is the rectangle of least area around four corners (``cv2.minAreaRect``), in the form of Ultralytics'
    ``xyxyxyxy2xywhr``: the first side is the longer one.

    Args:
        obb: corners, (n, 4, 2): a tensor, or an array.

    Returns:
        float32 (n, 5), a tensor for a tensor: x and y of the center, the sides, and the angle of the first one from the
        x axis towards the y axis, in radians, from -pi/4 to 3 pi/4.
    """
    rows = []
    for corners in np.asarray(obb, np.float32):
        (x, y), (along, across), degrees = cv2.minAreaRect(corners)
        if along < across:
            along, across, degrees = across, along, degrees + 90
        rows.append((x, y, along, across, math.radians((degrees + 45) % 180 - 45)))
    found = np.array(rows, np.float32).reshape(-1, 5)
    return torch.from_numpy(found) if isinstance(obb, torch.Tensor) else found


def as_tv_tensors(image: torch.Tensor, target: Any) -> tuple[Any, Any]:
    """Convert a sample for torchvision's transforms v2: ``transforms(*as_tv_tensors(*dataset[i]))``.

    torchvision's flip moves a point x to width - 1 - x, packer's to width - x.

    Args:
        image: (channels, height, width); becomes `tv_tensors.Image`.
        target: in a dict, boxes become `BoundingBoxes` (xyxy), landmarks and each polygon `KeyPoints` (k, 2),
            keypoints `KeyPoints` (n, k, 2) with their third column as visibility (n, k), corners of oriented boxes
            `KeyPoints` (n, 4, 2). A mask becomes `Mask`. Other values are unchanged.

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
        is_mask = isinstance(target, torch.Tensor) and target.dim() == 2
        return kinds.Image(image), kinds.Mask(target) if is_mask else target

    def points(xy: torch.Tensor) -> Any:
        if not hasattr(kinds, "KeyPoints"):
            raise UsageError("torchvision", "cannot move points before version 0.23", "upgrade it")
        return kinds.KeyPoints(xy, canvas_size=size)

    target = dict(target)
    for field in LISTS:
        if not field.moves or (value := target.get(name := field.target)) is None:
            continue
        if name == "boxes":
            target[name] = kinds.BoundingBoxes(value, format="XYXY", canvas_size=size)
        elif isinstance(value, list):
            target[name] = [points(one) for one in value]
        else:
            target[name] = points(value[..., :2])
            target |= {"visibility": value[..., 2]} if value.shape[-1] > 2 else {}
    for name, value in target.items():
        is_map = isinstance(value, torch.Tensor) and value.dtype == torch.int64 and value.shape == image.shape[1:]
        if is_map or name == INSTANCES.target:
            target[name] = kinds.Mask(value)
    return kinds.Image(image), target
