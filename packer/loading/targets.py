"""What a training loop gets as the target of an image: a class id, or a dict of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from packer.types import Annotation

Target = Any
"""int where a pack has class labels of whole images only, else dict[str, Tensor | list | int]."""

FLAGS = ("difficult", "truncated", "occluded")
"""Box fields that are whole numbers in every record: they become int64 tensors (n,)."""


ORIGINALS = ("voc_bndbox",)
"""Numbers as the source file has them; they stay in the record (`Pack.annotation`) and are no target."""


def is_plain(fields: Sequence[str]) -> bool:
    """Whether targets are plain class ids: the pack has labels of whole images and nothing else."""
    return tuple(fields) == ("label",)


def target_of(annotation: Annotation, fields: Sequence[str]) -> dict[str, Any]:
    """The target dict of one image. Its keys are the same for all images of a pack with these `fields`.

    boxes float32 (n, 4), xyxy in pixels; labels int64 (n,), of the boxes; label int, of the image, -1 for
    none; landmarks float32 (k, 2); polygons list of n float32 (m, 2); keypoints float32 (n, k, 3);
    difficult, truncated, occluded int64 (n,); other fields of boxes as lists of n; extras dict.
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


EMPTY = {"boxes": (0, 4), "landmarks": (0, 2), "keypoints": (0, 0, 3)}


def _tensor(values: Any, empty: tuple[int, ...], dtype: Any) -> torch.Tensor:
    return torch.from_numpy(np.zeros(empty, dtype) if values is None else np.array(values, dtype))
