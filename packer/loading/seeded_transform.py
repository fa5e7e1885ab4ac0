"""torchvision's random transforms of each image of a batch, on the device where the batch is."""

from __future__ import annotations

import copy
import importlib
import random
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from packer.errors import NotInstalled, UsageError
from packer.model.annotation import Int64
from packer.samplers.order import derive

AUGMENT_STREAM = 6 << 32
"""Gives these transforms other random numbers than crops, flips and mixing."""
EXAMPLE = "write v2.Compose([v2.RandAugment()]), of torchvision.transforms"
COLORS = frozenset((
    "ColorJitter", "GaussianBlur", "Grayscale", "Identity", "Normalize", "RGB", "RandomAdjustSharpness",
    "RandomAutocontrast", "RandomChannelPermutation", "RandomEqualize", "RandomErasing", "RandomGrayscale",
    "RandomInvert", "RandomPhotometricDistort", "RandomPosterize", "RandomSolarize", "ToDtype",
))  # fmt: skip
"""Transforms that leave everything in its place, and do the same to several images as to each, given the parameters."""
POLICIES = frozenset(("RandAugment", "TrivialAugmentWide", "AutoAugment"))
"""Transforms that apply operations by name and magnitude."""
CONTAINERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "Compose": lambda one, parts: type(one)(parts),
    "RandomApply": lambda one, parts: type(one)(parts, p=one.p),
    "RandomChoice": lambda one, parts: type(one)(parts, p=one.p),
    "RandomOrder": lambda one, parts: type(one)(parts),
}
"""Transforms of other transforms -> the same of other parts."""


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """A change of one image whose parameters are drawn."""

    place: int
    """Of the transform among all."""
    key: Any
    """Changes of one place with equal keys are the same."""
    apply: Callable[[torch.Tensor], torch.Tensor]
    """Changes images (n, channels, height, width)."""


class SeededTransform:
    """A random transform of torchvision's v2, applied to each image of a batch with random numbers of its sample.

    Image i becomes what ``torch.manual_seed(seed_i)`` and ``transform(image_i)`` give, where seed_i depends only on
    (seed, epoch, record, visit, crop): the same for any batch, threads and ranks, and after a resume. torchvision's
    own code draws all parameters first, with nothing to change; then each operation is applied to all images of the
    batch that have the same parameters. Transforms that torchvision draws for while they change pixels get a seed of
    their own, and are applied to one image after another.

    Args:
        transform: a transform of torchvision.transforms.v2 that keeps the size of images.
        seed: any integer.
        first_crop: number of the first crop that it changes, among all crops of an image.

    Raises:
        NotInstalled: if torchvision is missing.
        UsageError: if it is not such a transform.
    """

    def __init__(self, transform: Any, seed: int, first_crop: int = 0) -> None:
        self._v2 = torchvision_v2("augment")
        if not isinstance(transform, self._v2.Transform):
            name = type(transform).__name__
            raise UsageError("augment", f"must be a transform of torchvision.transforms.v2, got {name}", EXAMPLE)
        self._seed, self._first_crop = seed ^ AUGMENT_STREAM, first_crop
        self._text = re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(transform).split()))
        self._drawn: list[_Change] = []
        self.moving: list[str] = []
        """Names of the transforms that may move what is in an image, or are unknown."""
        self._places = 0
        self._draw = self._recording(transform)

    def __repr__(self) -> str:
        return self._text

    def __call__(self, images: torch.Tensor, samples: Int64, epoch: int) -> torch.Tensor:
        """Return the images of samples, changed; the given ones may be overwritten.

        Args:
            images: (count * n, channels, height, width), one crop of all samples after another.
            samples: the samples, int64 (n,).
            epoch: number of the epoch.
        """
        check_images("augment", images)
        with seeded_torch(0, images.device):
            # parameters depend on the shape alone; a device would be waited for
            like = torch.empty(images.shape[1:], dtype=images.dtype)
            crops = range(self._first_crop, self._first_crop + len(images) // len(samples))
            seeds = (derive(self._seed, epoch, sample, crop) for crop in crops for sample in samples.tolist())
            return self._changed(images, [self.changes(seed, like) for seed in seeds])

    def changes(self, seed: int, like: torch.Tensor) -> deque[_Change]:
        """Return what is done to an image of the shape of `like` (channels, height, width), in order."""
        self._drawn = []
        torch.default_generator.manual_seed(seed)
        self._draw(like)
        return deque(self._drawn)

    def checked(self, channels: int, size: tuple[int, int], dtype: torch.dtype) -> torch.dtype:
        """Return the dtype of changed images.

        Args:
            channels: of the images.
            size: height and width.
            dtype: of the images.

        Raises:
            UsageError: if such images cannot be changed, or become another size.
        """
        image = torch.zeros((1, channels, *size), dtype=dtype)
        with seeded_torch(0, image.device):
            try:
                return self._changed(image, [self.changes(0, image[0])]).dtype
            except (RuntimeError, TypeError, ValueError) as error:
                if isinstance(error, UsageError):
                    raise
                why = str(error).strip().partition("\n")[0].rstrip(".")
                problem = f"cannot change {dtype} images of {channels} x {size[0]} x {size[1]}: {why}"
                raise UsageError("augment", problem, "choose other transforms") from error

    def _recording(self, transform: Any) -> Any:
        """Return a transform that draws the same random numbers, and records what would be done instead of doing it."""
        name = type(transform).__name__
        known = getattr(self._v2, name, None) is type(transform)
        if known and name in CONTAINERS:
            return CONTAINERS[name](transform, [self._recording(part) for part in transform.transforms])
        place = self._places = self._places + 1
        if not known or name not in COLORS:
            self.moving.append(name)
        if known and name in COLORS:
            return self._recording_colors(transform, place)
        if known and name in POLICIES and hasattr(transform, "_apply_image_or_video_transform"):
            return self._recording_policy(transform, place)

        def with_seed(image: torch.Tensor) -> torch.Tensor:
            seed = int(torch.randint((1 << 63) - 1, ()))
            self._drawn.append(_Change(place, object(), lambda images: _one_by_one(transform, images, seed)))
            return image

        return with_seed

    def _recording_colors(self, transform: Any, place: int) -> Any:
        def record(image: torch.Tensor, params: dict[str, Any]) -> torch.Tensor:
            own = any(isinstance(value, torch.Tensor) for value in params.values())
            key = object() if own else repr(params)
            self._drawn.append(_Change(place, key, lambda images: transform.transform(images, params)))
            return image

        drawing = copy.copy(transform)
        drawing.transform = record
        return drawing

    def _recording_policy(self, transform: Any, place: int) -> Any:
        apply = transform._apply_image_or_video_transform

        def record(image: torch.Tensor, name: str, magnitude: float, **how: Any) -> torch.Tensor:
            if name != "Identity":
                change = _Change(place, (name, magnitude), lambda images: apply(images, name, magnitude, **how))
                self._drawn.append(change)
            return image

        drawing = copy.copy(transform)
        drawing._apply_image_or_video_transform = record
        return drawing

    def _changed(self, images: torch.Tensor, changes: Sequence[deque[_Change]]) -> torch.Tensor:
        """Apply the changes of each image, those of one place and key together."""
        while rows := [row for row, left in enumerate(changes) if left]:
            place = min(changes[row][0].place for row in rows)
            groups: defaultdict[Any, list[tuple[int, _Change]]] = defaultdict(list)
            for row in rows:
                if changes[row][0].place == place:
                    change = changes[row].popleft()
                    groups[change.key].append((row, change))
            for group in groups.values():
                images = _replaced(images, [row for row, _ in group], group[0][1].apply)
        return images


def _replaced(images: torch.Tensor, rows: list[int], function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return images with a function of those in some rows; only one of all images may change their dtype."""
    where: Any = slice(rows[0], rows[0] + 1)
    if len(rows) > 1:
        where = torch.tensor(rows).to(images.device, non_blocking=True)
    some = images if len(rows) == len(images) else images[where]
    made = function(some)
    if made.shape != some.shape:
        problem = f"makes images of {tuple(some.shape[1:])} images of {tuple(made.shape[1:])}"
        raise UsageError("augment", problem, "leave the size to crop=, and use Grayscale(3)")
    if some is images:
        return made
    if made.dtype != images.dtype:
        raise UsageError("augment", f"makes {made.dtype} of some images only", "convert all of them")
    images[where] = made
    return images


def _one_by_one(transform: Any, images: torch.Tensor, seed: int) -> torch.Tensor:
    torch.default_generator.manual_seed(seed)
    if images.device.type == "cuda":
        torch.cuda.manual_seed(seed)
    return torch.stack([transform(image) for image in images])


def check_images(name: str, images: torch.Tensor) -> None:
    """Raise UsageError unless a transform has left images, which torchvision can change."""
    if images.dim() != 4:
        problem = f"needs images, but the transform returns tensors of shape {tuple(images.shape[1:])}"
        raise UsageError(name, problem, "leave it out")


def torchvision_v2(name: str) -> Any:
    """Return torchvision.transforms.v2 for an option. Raise NotInstalled if it is missing."""
    try:
        return importlib.import_module("torchvision.transforms.v2")
    except ImportError:
        raise NotInstalled(name, "needs torchvision, which is not installed", "pip install torchvision") from None


@contextmanager
def seeded_torch(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Let torch's functions draw from a seed, for torchvision takes no generator; then all is as it was.

    Args:
        seed: 64 bits.
        device: a GPU whose generator is used, too.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    # torchvision's parameters come from the default device, whose generator may be another
    elsewhere = torch.get_default_device().type != "cpu"
    with torch.random.fork_rng(devices=devices), torch.device("cpu") if elsewhere else nullcontext():
        torch.default_generator.manual_seed(seed)
        for gpu in devices:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def seeded_globals(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Let `random`, NumPy and torch draw from a seed, for code that takes no generator; then all is as it was.

    Args:
        seed: 64 bits.
        device: as for `seeded_torch`.
    """
    python, of_numpy = random.getstate(), np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        with seeded_torch(seed, device):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
