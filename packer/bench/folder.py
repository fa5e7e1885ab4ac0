"""The plain folder, read as most training scripts do: a map-style Dataset of files in a torch DataLoader."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from packer.bench.job import MANY_SAMPLES, Job


class FolderImages(Dataset[tuple[torch.Tensor, int]]):
    """Image files, decoded and resized one by one to uint8 (3, height, width), as torchvision's ImageFolder would."""

    def __init__(self, job: Job) -> None:
        self._files, self._size = job.files, job.size
        self._read = self._pillow if job.kind == "folder-pil" else self._opencv

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self._read(self._files[i])).permute(2, 0, 1).contiguous(), 0

    def _pillow(self, file: str) -> Any:
        from PIL import Image

        with Image.open(file) as image:
            return np.array(image.convert("RGB").resize(self._size, Image.Resampling.BILINEAR))

    def _opencv(self, file: str) -> Any:
        image = cv2.imdecode(np.fromfile(file, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise ValueError(f"{file}: OpenCV cannot decode it")
        return cv2.cvtColor(cv2.resize(image, self._size, interpolation=cv2.INTER_LINEAR), cv2.COLOR_BGR2RGB)


class ManyEpochs:
    """Random orders of numbers: the first epoch is one, those behind it are of MANY_SAMPLES.

    A sample of a set is read in a moment, and at the end of an epoch some workers have nothing to do: real sets have
    long epochs.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._random = count, np.random.default_rng(seed)
        self._epochs = 0

    def __iter__(self) -> Iterator[int]:
        orders = -(-MANY_SAMPLES // self._count) if self._epochs else 1
        self._epochs += 1
        for _ in range(orders):
            yield from self._random.permutation(self._count).tolist()


class FolderReader:
    """A DataLoader over the files, with worker processes that stay."""

    def __init__(self, job: Job) -> None:
        # more workers than cores are a thing to try; this process does nothing else
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        self._loader: Any = DataLoader(
            FolderImages(job),
            batch_size=job.batch_size,
            sampler=ManyEpochs(len(job.files), job.seed),
            num_workers=job.threads,
            persistent_workers=job.threads > 0,
            prefetch_factor=job.prefetch if job.threads else None,
            pin_memory=job.device != "cpu",
            multiprocessing_context="fork" if job.threads and sys.platform == "linux" else None,
        )
        self._device = torch.device(job.device)

    def epoch(self) -> Iterator[int]:
        """One epoch; how many images each batch has."""
        for images, _ in self._loader:
            if self._device.type != "cpu":
                normalised(images.to(self._device, non_blocking=True))
            yield len(images)

    def end(self) -> None:
        """Let the worker processes go."""
        self._loader = None


def normalised(images: torch.Tensor) -> torch.Tensor:
    """uint8 to float16, mean 0 and std 1 by ImageNet's numbers, on its device."""
    mean = torch.tensor([123.7, 116.3, 103.5], device=images.device).view(1, 3, 1, 1)
    std = torch.tensor([58.4, 57.1, 57.4], device=images.device).view(1, 3, 1, 1)
    return ((images - mean) / std).half()
