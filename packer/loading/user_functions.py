"""The user's functions of each sample: transforms of images and targets, with seeded generators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from packer.errors import UsageError, add_note
from packer.format.pack import Pack
from packer.loading.annotations import BatchAnnotations
from packer.model.annotation import Int64
from packer.samplers.order import VISIT, derive
from packer.stores.waiting import check_ended

ImageTransform = Callable[..., Any]
"""transform(image) or transform(image, generator)."""
JointTransform = Callable[..., tuple[Any, Any]]
"""transforms(image, target) or transforms(image, target, generator)."""

TO_TENSOR = "write torch.from_numpy(image).permute(2, 0, 1) for an array (height, width, channels)"
STREAM = 2 << 32
"""Gives transforms other random numbers than crops and flips."""


class InPlace:
    """A transform of packer's own, which changes images where they are."""


class Transforms:
    """What the user does to each sample, after crop and flip.

    A function that takes one argument more, or one that is called `generator`, gets a torch.Generator seeded by (seed,
    epoch, record, visit): its results are the same for any number of threads, workers and ranks. What a function draws
    elsewhere (torch.rand without a generator, `random`, numpy) depends on all of these.

    Args:
        transform: a function of each image.
        target_transform: a function of each target.
        transforms: a function of both, which returns both; instead of these two.

    Raises:
        UsageError: if `transforms` is given beside one of the others.
    """

    def __init__(
        self,
        transform: ImageTransform | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: JointTransform | None = None,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            given = "transform" if transform is not None else "target_transform"
            raise UsageError("transforms", f"cannot be combined with {given}", "do all of it in transforms")
        for name, one in (("transform", transform), ("target_transform", target_transform), ("transforms", transforms)):
            if one is not None and not callable(one):
                raise UsageError(name, f"must be a function, got {one!r}")
        self.transform, self.target_transform, self.transforms = transform, target_transform, transforms
        self.of_images = transform is not None or transforms is not None
        """Whether it changes images."""
        self.in_place = isinstance(transform, InPlace)
        self.of_targets = target_transform is not None or transforms is not None
        self.random = takes_generator(transform, 1) or takes_generator(transforms, 2)
        """Whether a function takes a generator."""

    def __bool__(self) -> bool:
        return self.of_images or self.of_targets

    def __call__(self, image: torch.Tensor, target: Any, numbers: tuple[int, int, int]) -> tuple[Any, Any]:
        """Return a transformed sample; `numbers` are seed, epoch and sample (`samplers.order.VISIT`)."""
        more = (generator_of(*numbers),) if self.random else ()
        if self.transforms is not None:
            made: Any = self.transforms(image, target, *more)
            if not isinstance(made, (tuple, list)) or len(made) != 2:
                problem = f"must return an image and a target, got {type(made).__name__}"
                raise UsageError("transforms", problem, "write return image, target")
            return made[0], made[1]
        if self.transform is not None:
            image = self.transform(image, *more)
        return image, target if self.target_transform is None else self.target_transform(target)

    def batch(
        self, images: Iterable[torch.Tensor], targets: Any, pack: Pack, samples: Int64, seed: tuple[int, int]
    ) -> tuple[list[Any] | None, Any]:
        """Return the transformed images and targets of some samples.

        Args:
            images: one for each sample.
            targets: class ids (n,), or BatchAnnotations.
            pack: the pack, for messages.
            samples: their records and visits (`samplers.order.VISIT`).
            seed: seed and epoch.

        Returns:
            A list of n images, or None if they are not changed; a list of n targets, or `targets` as they are.
        """
        each = targets if not self.of_targets else as_list(targets)
        made: list[tuple[Any, Any]] = []
        for number, (image, sample) in enumerate(zip(images, samples.tolist(), strict=True)):
            check_ended()  # an iteration that is left waits for this thread
            with naming(pack, sample % VISIT):
                made.append(self(image, each[number] if self.of_targets else None, (*seed, sample)))
                if not isinstance(made[-1][0], torch.Tensor):
                    name = "transform" if self.transforms is None else "transforms"
                    found = type(made[-1][0]).__name__
                    raise UsageError(name, f"returns {found} for an image, which must be a tensor", TO_TENSOR)
        return (
            [image for image, _ in made] if self.of_images else None,
            [target for _, target in made] if self.of_targets else targets,
        )


def as_list(targets: Any) -> list[Any]:
    """Return targets as a list: class ids (n,), tags (n, k), or BatchAnnotations."""
    if isinstance(targets, BatchAnnotations):
        return targets.as_tensors().as_dicts()
    if isinstance(targets, list):  # masks of different sizes
        return list(map(torch.from_numpy, targets))
    return targets.tolist() if targets.ndim == 1 else list(torch.from_numpy(targets))


@contextmanager
def naming(pack: Pack, record: int) -> Iterator[None]:
    """Add the record to an error that a user's function raises."""
    try:
        yield
    except Exception as error:
        add_note(error, f"in a transform of record {pack.key(record)} of {pack.path}")
        raise


def takes_generator(function: Callable[..., Any] | None, before: int) -> bool:
    """Return whether a function takes a generator after `before` other arguments.

    It does if it needs one positional argument more, or if that one is called `generator`; a parameter with a default
    and another name is something else.
    """
    if function is None:
        return False
    # a module is called as its `forward` is, and does not say so itself
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (ValueError, TypeError):  # functions in C
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) <= before:
        return False
    return positional[before].default is inspect.Parameter.empty or positional[before].name == "generator"


def generator_of(seed: int, epoch: int, sample: int) -> torch.Generator:
    """Return the generator of a sample."""
    return torch.Generator("cpu").manual_seed(derive(seed ^ STREAM, epoch, sample))
