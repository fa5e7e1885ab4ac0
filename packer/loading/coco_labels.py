"""The labels of a pack in the form in which COCO's API and RF-DETR's datasets have them (packer.rfdetr)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from packer.format.pack import Pack
from packer.loading.detr_batches import image_ids
from packer.model.annotation import Int64


class ImageIds(Sequence[int]):
    """The ids of images, found when one is asked for: those of a COCO file; or, if two are alike, their numbers."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack

    def __len__(self) -> int:
        return len(self._pack)

    def __getitem__(self, index: Any) -> Any:
        return int(self.all[index])

    @cached_property
    def all(self) -> Int64:
        """Those of all images, int64 (n,)."""
        records = np.arange(len(self))
        found = image_ids(_extras(self._pack, records), records)
        return found if len(np.unique(found)) == len(found) else records


def _extras(pack: Pack, records: Any) -> Any:
    """Return the rows of a column, or None."""
    there = any(name.partition(".")[0] == "extras" for name in pack.manifest.fields)
    return pack.reader.rows(["extras"], records)[0] if there else None


def objects_of(pack: Pack, record: int) -> list[dict[str, Any]]:
    """Return the objects of an image as a COCO file has them, in pixels of the pack; category ids are class ids."""
    annotation = pack.annotation(record)
    if annotation.boxes is None or annotation.box_labels is None:
        return []
    height, width = pack.reader.shape_of(record)[:2]
    corners = annotation.boxes.tolist()
    objects: list[dict[str, Any]] = [
        {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0, "category_id": label}
        for (x1, y1, x2, y2), label in zip(corners, annotation.box_labels.tolist(), strict=True)
    ]
    for name in ("iscrowd", "area"):
        for one, value in zip(objects, annotation.box_fields.get(name, ()), strict=False):
            one[name] = one[name] if value is None else value
    for one, polygon in zip(objects, annotation.polygons or (), strict=False):
        if len(polygon):
            one["segmentation"] = [np.asarray(polygon, np.float64).ravel().tolist()]
    for one, counts in zip(objects, annotation.rles or (), strict=False):
        if len(counts):
            one["segmentation"] = {"size": [height, width], "counts": counts.tobytes().decode("ascii")}
    return objects


class CocoLabels:
    """What evaluators read of a `pycocotools.coco.COCO`, made of a pack when it is asked for.

    Args:
        pack: the pack.
        classes: the names of its classes.
        ids: those of its images.
    """

    def __init__(self, pack: Pack, classes: Sequence[str], ids: ImageIds) -> None:
        self._pack, self._ids = pack, ids
        self.cats = {number: {"id": number, "name": name} for number, name in enumerate(classes)}
        self.label2cat = {number: number for number in self.cats}

    @cached_property
    def imgs(self) -> dict[int, dict[str, Any]]:
        """Id -> what is known of the image."""
        records, ids = np.arange(len(self._pack)), self._ids.all.tolist()
        paths: Any = self._pack.column("path")
        widths, heights = (self._pack.reader.values(name, records).tolist() for name in ("width", "height"))
        return {
            key: {"id": key, "file_name": os.fsdecode(bytes(path)), "width": width, "height": height}
            for key, path, width, height in zip(ids, paths, widths, heights, strict=True)
        }

    @cached_property
    def anns(self) -> dict[int, dict[str, Any]]:
        """Number -> an object, of all images."""
        found = (
            (key, one) for record, key in enumerate(self._ids.all.tolist()) for one in objects_of(self._pack, record)
        )
        return {number: {"id": number, "image_id": key, **one} for number, (key, one) in enumerate(found, 1)}

    def loadImgs(self, ids: int | Sequence[int]) -> list[dict[str, Any]]:  # noqa: N802 - the name is COCO's
        """Return what is known of images with these ids."""
        return [self.imgs[key] for key in ((ids,) if isinstance(ids, int) else ids)]
