"""The images and labels of a pack in the form in which Ultralytics YOLO has those of a folder (packer.ultralytics)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from packer.errors import UsageError
from packer.format.pack import Pack
from packer.images.header import read_header
from packer.model.annotation import IGNORED, NOT_OBJECTS, Image, Int64, Mask
from packer.model.annotation_columns import Ragged
from packer.repack.index_columns import MARKED

NO_CLASS = 255
"""The value of pixels that are of no class."""
_CHUNK = 4096
_FROM_RGB = {
    (1, cv2.IMREAD_COLOR): cv2.COLOR_GRAY2BGR,
    (3, cv2.IMREAD_COLOR): cv2.COLOR_RGB2BGR,
    (4, cv2.IMREAD_COLOR): cv2.COLOR_RGBA2BGR,
    (3, cv2.IMREAD_GRAYSCALE): cv2.COLOR_RGB2GRAY,
    (4, cv2.IMREAD_GRAYSCALE): cv2.COLOR_RGBA2GRAY,
    (3, cv2.IMREAD_UNCHANGED): cv2.COLOR_RGB2BGR,
    (4, cv2.IMREAD_UNCHANGED): cv2.COLOR_RGBA2BGRA,
}


class ImageFile(str):
    """The name of a record: the pack's path, and below it that of the source file."""

    pack: Pack
    record: int


class ImageFiles(Sequence[str]):
    """The names of records, each made when it is asked for."""

    def __init__(self, pack: Pack, records: Sequence[int] | Int64) -> None:
        self.pack, self.records = pack, records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        record = int(self.records[index])
        name = ImageFile(*_names(self.pack, np.array([record])))
        name.pack, name.record = self.pack, record
        return name


def imread(file: ImageFile, flags: int = cv2.IMREAD_COLOR) -> Image:
    """Return the image of a record as `cv2.imread` would return its file: BGR, upright, 16 bits as their high 8.

    Returns:
        uint8 (height, width, channels), writable.
    """
    pack, record = file.pack, file.record
    encoding, data = pack.reader.encoding_of(record), pack.record(record)
    # OpenCV turns JPEG files upright in every version, others not
    # those that OpenCV does not read, or with other colors, are left to packer
    is_whole = pack.manifest.mode != "gray" and not pack.manifest.windows
    if is_whole and not pack.manifest.lenient and (encoding == "jpeg" or _is_plain(encoding, data)):
        image: Image | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        if image is not None and image.shape[:2] == pack.reader.shape_of(record)[:2]:
            return _high_bytes(image if image.ndim == 3 else image[..., None])
    image = _high_bytes(pack.image(record, "opencv"))
    if image.shape[2] == 2:
        image = image[..., :1]  # gray + alpha
    code = _FROM_RGB.get((image.shape[2], flags))
    converted: Image = image.copy() if code is None else cv2.cvtColor(image, code)
    return converted.reshape(*image.shape[:2], -1)


def _is_plain(encoding: str, data: memoryview) -> bool:
    if encoding == "raw":
        return False
    header = read_header(bytes(data))
    return header.orientation == 1 and not header.pillow


def read_mask(pack: Pack, record: int) -> Mask:
    """Return the mask of a record with 255 for what is of no class, where Ultralytics expects it.

    Returns:
        uint8 (height, width), writable.
    """
    mask, ignore = pack.mask(record), pack.manifest.masks["mask"].ignore
    if mask is None:
        return np.full(pack.reader.shape_of(record)[:2], NO_CLASS if ignore is not None else 0, np.uint8)
    if ignore in (None, NO_CLASS):
        return mask.astype(np.uint8)
    return np.where(mask == ignore, NO_CLASS, mask).astype(np.uint8)


class YoloLabels(Sequence[dict[str, Any]]):
    """The labels of records, each made when it is asked for: coordinates are fractions of width and height, boxes xywh.

    Ignored regions are left out, as Ultralytics' own converters leave out crowds and difficult objects.

    Args:
        pack: A pack with boxes and their classes.
        records: Record numbers, in the dataset's order.
        kpt_dims: Values of a keypoint: 3; 2, then visibility becomes 1, or 0 left of or above the image; 0 for none.
        classes: Leave out the objects of all others.
        single_class: All objects are of class 0.
        oriented: Segments are oriented boxes, if the pack has any; of the other packs, polygons.
    """

    def __init__(
        self,
        pack: Pack,
        records: Sequence[int] | Int64,
        kpt_dims: int = 0,
        classes: Sequence[int] | None = None,
        single_class: bool = False,
        oriented: bool = False,
    ) -> None:
        self.pack, self.records, self.kpt_dims = pack, records, kpt_dims
        self.classes, self.single_class = classes, single_class
        self.oriented = oriented
        self._outlines = outlines_of(pack, oriented)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        (label,) = self._of(np.array([self.records[index]], np.int64))
        return self._in_its_class(_without_repeats(label))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield all labels, quickly, for statistics: an object that is there twice stays."""
        for start in range(0, len(self), _CHUNK):
            yield from map(self._in_its_class, self._of(np.asarray(self.records[start : start + _CHUNK], np.int64)))

    def _in_its_class(self, label: dict[str, Any]) -> dict[str, Any]:
        return {**label, "cls": np.zeros_like(label["cls"])} if self.single_class else label

    def shapes(self) -> list[list[int]]:
        """Return [height, width] of every image."""
        shapes: list[list[int]] = self._sizes(np.asarray(self.records, np.int64))[:, ::-1].tolist()
        return shapes

    def _sizes(self, records: Int64) -> Any:
        return np.stack([self.pack.reader.values(name, records) for name in ("width", "height")], axis=1)

    def _of(self, records: Int64) -> Iterator[dict[str, Any]]:
        sizes = self._sizes(records).astype(np.float64)
        boxes, box_labels = (_ragged_column(self.pack, name)[records] for name in ("boxes", "box_labels"))
        scale = np.repeat(sizes, boxes.lengths, axis=0)
        corners = boxes.values.astype(np.float64).reshape(-1, 2, 2)
        center, extent = corners.mean(axis=1) / scale, (corners[:, 1] - corners[:, 0]) / scale
        xywh = np.concatenate([center, extent], axis=1).astype(np.float32)
        cls = box_labels.values.astype(np.float32)[:, None]
        segments = self._segments(records, sizes, boxes.lengths) if self._outlines else []
        keypoints = self._keypoints(records, scale) if self.kpt_dims else None
        ignored = ignored_regions(self.pack, records, boxes.lengths)
        names, stop = _names(self.pack, records), 0
        for name, count, (width, height) in zip(names, boxes.lengths.tolist(), sizes.tolist(), strict=True):
            rows: Any = slice(stop, stop + count)
            numbers: Any = range(stop, stop + count)
            stop += count
            keep = ~ignored[rows]
            if self.classes is not None:
                keep &= np.isin(cls[rows, 0], self.classes)
            if not keep.all():
                rows = numbers = rows.start + np.flatnonzero(keep)
            yield {
                "im_file": name,
                "shape": (int(height), int(width)),
                "cls": cls[rows],
                "bboxes": xywh[rows],
                "segments": [segments[i] for i in numbers] if segments else [],
                "keypoints": None if keypoints is None else keypoints[rows],
                "normalized": True,
                "bbox_format": "xywh",
            }

    def _segments(self, records: Int64, sizes: Any, boxes: Int64) -> list[Any]:
        polygons = _ragged_column(self.pack, self._outlines)[records]
        objects = polygons.values
        scale = np.repeat(np.repeat(sizes, polygons.lengths, axis=0), objects.lengths, axis=0)
        found = list(Ragged((objects.values / scale).astype(np.float32), objects.offsets))
        if np.array_equal(polygons.lengths, boxes):
            return found
        there, nothing = iter(found), np.zeros((0, 2), np.float32)  # an image has ignored regions only
        pairs = zip(polygons.lengths.tolist(), boxes.tolist(), strict=True)
        return [next(there) if count else nothing for count, wanted in pairs for _ in range(wanted)]

    def _keypoints(self, records: Int64, scale: Any) -> Any:
        keypoints = _ragged_column(self.pack, "keypoints")[records].values
        xyv = keypoints.values.reshape(len(scale), keypoints_of(self.pack), 3)
        fractions = np.concatenate([xyv[..., :2] / scale[:, None], xyv[..., 2:]], axis=2).astype(np.float32)
        if self.kpt_dims == 2:
            fractions[..., 2] = (fractions[..., :2] >= 0).all(axis=2)
        return fractions


class ClassSamples(Sequence[list[Any]]):
    """What Ultralytics' ClassificationDataset has of each image: file, class, the path of a decoded copy, and that.

    Args:
        pack: A pack with a class for each image.
        records: Record numbers, in the dataset's order.
        numbers: The number of each of the pack's classes; images of classes with -1 are left out.
    """

    def __init__(self, pack: Pack, records: Int64, numbers: Sequence[int]) -> None:
        self.numbers = np.asarray(numbers, np.int64)
        found = self.numbers[np.asarray(pack.column("label"))[records]]
        self._classes, self._no_copy = found[found >= 0], Path(pack.path, "none.npy")
        self.files = ImageFiles(pack, records[found >= 0])

    def __len__(self) -> int:
        return len(self._classes)

    def __getitem__(self, index: Any) -> Any:
        return [self.files[index], int(self._classes[index]), self._no_copy, None]


class MaskLabels(YoloLabels):
    """The labels of records whose images have masks: no objects, whatever boxes the pack has."""

    def _of(self, records: Int64) -> Iterator[dict[str, Any]]:
        for name, (width, height) in zip(_names(self.pack, records), self._sizes(records).tolist(), strict=True):
            yield {
                "im_file": name,
                "shape": (height, width),
                "cls": np.zeros((0, 1), np.float32),
                "bboxes": np.zeros((0, 4), np.float32),
                "segments": [],
                "keypoints": None,
                "normalized": True,
                "bbox_format": "xywh",
            }


def keypoints_of(pack: Pack) -> int:
    """Return how many keypoints each object has; 0 if there are none."""
    of_objects = _ragged_column(pack, "keypoints").flat()
    return int(of_objects.offsets[1] - of_objects.offsets[0]) if len(of_objects) else 0


def outlines_of(pack: Pack, oriented: bool = False) -> str:
    """Return the field with an outline of every box of a pack, but of ignored regions; "" if there is none."""
    names = ("obb", "polygons") if oriented else ("polygons", "obb")
    return next((name for name in names if _each_has_one(pack, name)), "")


def _each_has_one(pack: Pack, name: str) -> bool:
    if name not in pack.manifest.fields:
        return False
    outlines, counts = _ragged_column(pack, name), _ragged_column(pack, "boxes").lengths
    lacks = np.ones(int(counts.sum()), np.bool_)
    lacks[np.repeat(counts == outlines.lengths, counts)] = outlines.flat().lengths == 0
    return not lacks.any() or not (lacks & ~ignored_regions(pack, np.arange(len(pack)), counts)).any()


def ignored_regions(pack: Pack, records: Int64, counts: Int64) -> Any:
    """Return which boxes of records are ignored regions, bool (m,); `counts` are their numbers of boxes."""
    found = np.zeros(int(counts.sum()), np.bool_)
    if not any(f"box_fields.{name}" in pack.manifest.fields for name in NOT_OBJECTS):
        return found
    stops = np.cumsum(counts)
    for record, text, stop, count in zip(
        records, _ragged_column(pack, "box_fields")[records], stops, counts, strict=True
    ):
        if MARKED.search(text):  # parsing all would take long
            found[stop - count : stop] = pack.annotation(int(record)).ignored
    return found


def check_box_classes(pack: Pack) -> None:
    """Raise UsageError if a pack has no boxes, or boxes without a class."""
    if "boxes" not in pack.manifest.fields:
        raise UsageError(pack.path, "has no boxes, which a detector needs", "build it from a folder with such labels")
    pairs = zip(*(pack.reader.shard_columns(name) for name in ("boxes", "box_labels")), strict=True)
    if "box_labels" not in pack.manifest.fields or not all(np.array_equal(a.lengths, b.lengths) for a, b in pairs):
        raise UsageError(pack.path, "has boxes without a class", "build it from labels with a class for each box")


def classes_of_objects(pack: Pack) -> list[str]:
    """Return the classes of a pack without the last one, if that is only of ignored regions, which are left out."""
    if pack.classes[-1:] != [IGNORED]:
        return pack.classes
    labels = _ragged_column(pack, "box_labels")
    ignored = ignored_regions(pack, np.arange(len(pack)), labels.lengths)
    return pack.classes if (labels.values[~ignored] == len(pack.classes) - 1).any() else pack.classes[:-1]


def _ragged_column(pack: Pack, name: str) -> Any:
    return pack.column(name)


def _names(pack: Pack, records: Int64) -> list[str]:
    root = os.path.join(pack.path, "")
    return [root + os.fsdecode(bytes(path)) for path in _ragged_column(pack, "path")[records]]


def _without_repeats(label: dict[str, Any]) -> dict[str, Any]:
    """Return the label with equal objects once, as Ultralytics drops equal lines of a file: it sorts the others."""
    names = [name for name in ("cls", "bboxes", "keypoints") if label[name] is not None]
    outlines = [outline.tobytes() for outline in label["segments"]] or [b""] * len(label["cls"])
    rows = [b"".join(label[name][i].tobytes() for name in names) + outlines[i] for i in range(len(outlines))]
    if len(set(rows)) < len(rows):
        first = list({row: i for i, row in reversed(list(enumerate(rows)))}.values())
        if label["segments"]:
            first.sort(key=lambda i: label["cls"][i].tobytes() + outlines[i])
        else:
            first.sort(key=lambda i: [value for name in names for value in label[name][i].ravel().tolist()])
        label.update({name: label[name][first] for name in names})
        label["segments"] = [label["segments"][i] for i in first] if label["segments"] else []
    return label


def _high_bytes(image: Image) -> Image:
    return (image >> 8).astype(np.uint8) if image.dtype == np.uint16 else image
