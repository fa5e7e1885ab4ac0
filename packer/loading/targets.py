"""Targets of images for training: class ids, or dicts of tensors."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError, plural, printable
from packer.format.pack import Pack
from packer.format.sidecar_list import attached
from packer.format.sidecars import Sidecar, sidecars_of
from packer.loading.annotations import BatchAnnotations, Column, read_annotations
from packer.loading.augmentation import CropParams
from packer.loading.instance_rows import read_instances
from packer.loading.part_rows import PartReader
from packer.model.annotation import OF_PIXELS, Int64
from packer.model.annotation_columns import Ragged
from packer.model.fields import BY_NAME, FLIPS, INSTANCES
from packer.model.tiles import WINDOW
from packer.samplers.order import Float64, Records
from packer.samplers.ranks import as_number, check_int

Target = Any
"""int if the pack has only class labels of images, float32 (k,) if only tags or values, else dict[str, Tensor | list |
int]."""

FACE = "(1, 0, 2, 4, 3) for eyes, nose and mouth corners"
STACKABLE = frozenset(("label", "tags", "landmarks", "value", "extras"))
"""Fields that an image has once, in one shape: landmarks if each image has as many."""
VECTORS = ("tags", "value")
"""Fields with as many numbers for each image of a pack, which are a float32 array if there is nothing else."""
IGNORED_CHOICES = ("keep", "drop", "flag")
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """What targets are.

    Args:
        min_area: drop boxes that a crop cuts to less than this area, in pixels.
        min_visible: drop boxes of which a crop leaves less than this share of their area.
        label_offset: added to the class ids of boxes; 1 for models whose class 0 is the background.
        flip_index: index of the mirror image of each landmark or keypoint; default: that of the pack.
        hide_outside: keypoints outside a crop get visibility 0.
        parts: the parts to read; None: all.
        widen: whether masks are int64, as losses take them; else as the pack has them, to be widened on the device.
        verify: verify the checksum of each mask when this process first reads it.
        ignored: ignored regions stay as they are ("keep"), are left out ("drop"), or are told by `ignored`, bool (n,)
            ("flag").
    """

    min_area: float = 1.0
    min_visible: float = 0.0
    label_offset: int = 0
    flip_index: Sequence[int] | None = None
    hide_outside: bool = True
    parts: Sequence[str] | None = None
    widen: bool = True
    verify: bool = True
    ignored: str = "keep"


class Targets(Sequence[Target]):
    """The targets of a pack's records, created on access.

    Args:
        pack: the pack.
        options: what they are.
        indices: numbers of the records that `len` and indexing mean; None: all.

    Raises:
        UsageError: if the pack has no boxes for an offset or for flags, no points for the index, or no such part.
    """

    def __init__(self, pack: Pack, options: TargetOptions = TargetOptions(), indices: Records | None = None) -> None:
        self._indices = indices
        self._pack = pack  # not the dataset: a reference cycle would keep the map
        self._min_area, self._min_visible = check_area(options.min_area), check_share(options.min_visible)
        self._hide_outside = options.hide_outside
        parts = check_parts(pack, options.parts)
        left_out = () if INSTANCES.target in parts else (INSTANCES.name,)
        self._fields = tuple(name for name in pack.manifest.fields if name not in left_out)
        self._label_offset = check_int("label_offset", options.label_offset, 0)
        specs = {spec.name: spec for spec in pack.manifest.part_specs}
        read = partial(PartReader, pack, verify=options.verify)
        of_records = [name for name in parts if name != INSTANCES.target]
        sidecars = {name: pack.sidecar(name) for name in of_records if name not in specs}
        specs |= {name: one.spec for name, one in sidecars.items() if one.spec.kind in OF_PIXELS}
        self.parts: list[Any] = [
            read(specs[name], sidecar=sidecars.get(name)) if name in specs else sidecars[name] for name in of_records
        ]
        """What reads each part but the masks of objects."""
        self.has_instances = INSTANCES.name in self._fields
        of_tiles = self._fields
        self._fields = tuple(name for name in of_tiles if name != WINDOW)
        self.are_labels = self._fields == ("label",) and not self.parts
        """Whether the targets are class ids: the pack has only labels of whole images."""
        self._vectors = {name: _numbers_each(pack, name) for name in VECTORS if name in self._fields}
        self.are_masks = len(self.parts) == 1 and self.parts[0].spec.kind == "mask" and not self._fields
        """Whether the targets are masks: the pack has no other labels."""
        self._widen = options.widen or not self.are_masks  # the device widens only these
        are_vectors = len(self._fields) == len(self._vectors) == 1 and not self.parts
        self.is_array = self.are_labels or are_vectors or self.are_masks
        """Whether `of` returns an array: class ids, tags, values, or masks."""
        self._fields = self._fields if self.is_array else of_tiles  # only a dict has a place for it
        self._read = [name for name in self._fields if name not in VECTORS]
        self.has_boxes = {"boxes", "box_labels"} <= set(self._fields)
        self.has_outlines = self.has_instances or "polygons" in self._fields
        """Whether it is known which pixels objects have."""
        self.has_parts = bool(self.parts) or self.has_instances
        self.have_places = bool(self.of_pixels) or not {"label", "extras", WINDOW, *VECTORS}.issuperset(self._fields)
        """Whether they name places in the image: boxes, points, masks."""
        if self._label_offset and not self.has_boxes:
            raise UsageError("label_offset", f"is for boxes, but {pack.path} has none", "leave it out")
        self._ignored = check_choice("ignored", options.ignored, IGNORED_CHOICES)
        if self._ignored != "keep" and "boxes" not in self._fields:
            raise UsageError("ignored", f"is for boxes, but {pack.path} has none", "leave it out")
        self._points: dict[str, int] = {name: _points_each(pack, name) for name in FLIPS if name in self._fields}
        given = pack.manifest.flip_index if options.flip_index is None else options.flip_index
        self._flip_index = None if given is None else check_flip_index(given, self._points)

    @cached_property
    def vary(self) -> bool:
        """Whether targets have as many rows as the image has objects, or points, so that a batch cannot be stacked."""
        if any(part.spec.kind in ("json", "boxes") for part in self.parts):
            return True
        if not STACKABLE.issuperset(self._fields) or (self.parts and self._pack.manifest.shape is None):
            return True
        columns = self._pack.reader.shard_columns("landmarks") if "landmarks" in self._fields else ()
        return len({length for column in columns for length in np.unique(column.lengths).tolist()}) > 1

    def __len__(self) -> int:
        return len(self._pack) if self._indices is None else len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        return self.target(record_number(index, len(self), self._indices))

    def target(self, record: int) -> Target:
        """Return the target of `record`: a class id, tags, or a dict with what the pack has.

        Returns:
            boxes float32 (n, 4), xyxy in pixels; labels int64 (n,), of the boxes; label int, of the image, -1 if it has
            none; tags float32 (k,), 1 for each of the pack's tags that the image has, else 0; value float32 (k,), NaN
            if the image has none; landmarks float32 (k, 2); polygons list of n float32 (m, 2); masks uint8 (n, height,
            width), 1 where each object is; keypoints float32 (n, k, 3); obb float32 (n, 4, 2), the corners of oriented
            boxes; window int32 (6,), which part of its image a tile is (x, y, width, height, and width and height of
            the image); difficult, truncated, occluded int64 (n,); other box fields as lists of n; extras dict; image_id
            int, the number of the record. All images of a pack have the same keys. The tensors of a batch are views of
            one tensor per field: clone one to keep it without the others.
        """
        found = self.of(np.array([record]))
        if isinstance(found, np.ndarray | list):
            return int(found[0]) if self.are_labels else torch.from_numpy(found[0])
        assert isinstance(found, BatchAnnotations)
        return found.as_tensors().as_dicts()[0]

    def of(
        self, records: Int64, params: CropParams | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any] | BatchAnnotations:
        """Return the targets of some records after the crops and flips of `params`. `join_targets` combines them.

        Masks that are all that there is are written to `out`, if it is given.
        """
        if self.are_labels:
            return self._pack.reader.values("label", records).astype(np.int64)
        if self.are_masks:
            return self.as_masks(self.parts[0].read(records, params, out), out)
        if self.is_array:
            ((name, count),) = self._vectors.items()
            return _vectors(self._pack, name, count, records)
        found = self.annotations(records)
        if params is not None:
            found = self._placed(found, params)
        if self.has_instances:
            masks = read_instances(self._pack, records, found, params)
            found.images[INSTANCES.target] = list(map(torch.from_numpy, masks))
        for part in self.parts:
            found.images[part.name] = self._read_part(part, records, params)
        return found

    def _read_part(self, part: Any, records: Int64, params: CropParams | None) -> Any:
        """Return a part as targets have it; predicted boxes are moved and cut as those of labels are."""
        if part.spec.kind != "boxes":
            return self.values_of(part, part.read(records, params))
        rows, counts = part.boxes(records)
        columns = {"boxes": rows["box"], "labels": rows["label"].astype(np.int64), "scores": rows["score"]}
        found = BatchAnnotations(records, {name: Column(value.copy(), counts) for name, value in columns.items()})
        placed = (found if params is None else self._placed(found, params)).as_tensors().as_dicts()
        return [{name: target[name] for name in columns} for target in placed]

    def annotations(self, records: Int64) -> BatchAnnotations:
        """Return the annotations of whole images, without parts and masks of objects, which are still run lengths."""
        found = read_annotations(self._pack, records, self._read, self._points.get("keypoints", 0))
        for name, count in self._vectors.items():
            values = _vectors(self._pack, name, count, records)
            found.columns[name] = Column(values.ravel(), np.full(len(values), count))
        if self._ignored != "keep":
            found = found.treat_ignored(self._ignored)
        if self._label_offset:
            labels = found.columns["labels"]
            found.columns["labels"] = replace(labels, values=labels.values + self._label_offset)
        return found

    def _placed(self, found: BatchAnnotations, params: CropParams) -> BatchAnnotations:
        """Return annotations as they are in the images after `params`, cut by each step that may put them outside."""
        if (maps := params.maps()) is not None:
            found = self.moved(found, maps, params.reflected if params.flips else None)
        if params.regions is not None:
            found = self.cut(found, params.output)
        if params.affine is not None:
            found = self.cut(found.moved(params.affine), params.output)
        return found

    def moved(self, found: BatchAnnotations, maps: Float64, reflected: NDArray[np.bool_] | None) -> BatchAnnotations:
        """Return annotations moved by the maps of their images (n, 2, 3), of which some are mirror images."""
        found = found.moved(maps)
        if reflected is None or self._flip_index is None:
            return found
        return found.mirrored(reflected, self._flip_index)

    def cut(self, found: BatchAnnotations, output: tuple[int, int], dropping: bool = True) -> BatchAnnotations:
        """Return what is left of annotations in images of (height, width), `dropping` boxes that are too small."""
        min_area, min_visible = (self._min_area, self._min_visible) if dropping else (0.0, 0.0)
        return found.cut(output, min_area, self._hide_outside, min_visible)

    def as_masks(self, found: Any, out: NDArray[Any] | None) -> NDArray[Any]:
        """Return masks that are all that there is as losses take them: in `out` if it is given."""
        if out is None:
            ids: NDArray[Any] = self._ids(found)
            return ids
        if found is not out:
            out[:] = found
        return out

    @property
    def of_pixels(self) -> list[str]:
        """The names of parts that are pixels of the image."""
        return [part.name for part in self.parts if part.spec.kind in OF_PIXELS]

    @property
    def mask_dtype(self) -> Any:
        """The dtype of masks, if the targets are masks."""
        return np.dtype(np.int64) if self._widen else self.parts[0].dtype

    def values_of(self, part: Any, found: Any) -> Any:
        """Return a part as targets have it: pixels (channels, height, width), masks (height, width)."""
        if isinstance(part, Sidecar):
            return found
        if part.spec.kind == "mask":
            found = self._ids(found)
        elif part.spec.kind in ("image", "map"):
            found = [value[None] if value.ndim == 2 else value.transpose(2, 0, 1) for value in found]
        return [torch.from_numpy(np.array(one)) if isinstance(one, np.ndarray) else one for one in found]

    def _ids(self, found: Any) -> Any:
        """Return masks as losses take them; a list if they differ in size."""
        if isinstance(found, list):
            return [mask.astype(np.int64) for mask in found]
        return found.astype(np.int64) if self._widen else found

    def warn_of_flips(self, option: str) -> None:
        """Warn once for each pack with points if their flip index is not known; `option` is what flips them."""
        if self._points and self._flip_index is None and self._pack.manifest.digest not in _warned:
            _warned.add(self._pack.manifest.digest)
            (name, count), *_ = self._points.items()
            warnings.warn(
                f"{printable(self._pack.path)}: {option} mirrors {name} without exchanging left and right ones; "
                f"pass flip_index, such as {FACE}, or range({count}) if none is left or right",
                stacklevel=4,  # the caller of PackedLoader
            )


def check_parts(pack: Pack, parts: Sequence[str] | None) -> Sequence[str]:
    """Return the names of the parts to read, and of masks of objects, by default all; sidecars only if they are named.

    Raises:
        UsageError: the pack has no such part.
    """
    there = list(pack.manifest.parts) + [INSTANCES.target] * ({INSTANCES.name, "boxes"} <= {*pack.manifest.fields})
    if parts is None:
        return there
    wanted = (parts,) if isinstance(parts, str) else tuple(parts)
    for name in wanted:
        if name not in there and name not in pack.sidecars:
            if any(listed and listed.get(name) for listed in map(sidecars_of, pack.reader.files)):
                pack.sidecar(name)  # raises an error that names the pack without it, of those that are joined
            has = f"it has {', '.join((*there, *attached(pack.sidecars))) or 'none'}"
            raise UsageError("parts", f"names {printable(name)}, which is not a part of {printable(pack.path)}", has)
    return wanted


def check_choice(name: str, value: Any, choices: tuple[str | None, ...]) -> Any:
    """Return `value`, one of `choices`."""
    if value not in choices:
        listed = " or ".join(f'"{choice}"' for choice in choices if choice is not None)
        raise UsageError(name, f"must be {listed}, got {value!r}", "write one of them")
    return value


def check_area(min_area: Any) -> float:
    """Return an area in pixels. Raise UsageError if it is not a number, or below 0."""
    area = as_number(min_area)
    if not area >= 0:
        raise UsageError("min_area", f"must be an area in pixels, 0 or more, got {min_area!r}", "leave it out for 1.0")
    return area


def check_share(min_visible: Any) -> float:
    """Return a share of an area. Raise UsageError if it is not a number from 0 to 1."""
    share = as_number(min_visible)
    if not 0 <= share <= 1:
        problem = f"must be a share of a box's area, 0 to 1, got {min_visible!r}"
        raise UsageError("min_visible", problem, "leave it out for 0.0")
    return share


def check_flip_index(flip_index: Sequence[int], points: dict[str, int]) -> Int64:
    """Return a flip index as an array.

    Args:
        flip_index: index of the mirror image of each point.
        points: number of landmarks of an image, of keypoints of an object.

    Raises:
        UsageError: if it is not a permutation that undoes itself, or the number of points differs.
    """
    try:
        numbers = [operator.index(number) for number in flip_index]
        wrong = sorted(numbers) != list(range(len(numbers)))
    except TypeError:
        wrong = True
    if wrong:
        problem = f"must have each number from 0 once, got {flip_index!r}"
        raise UsageError("flip_index", problem, f"such as {FACE}")
    for point, mirrored in enumerate(numbers):
        if numbers[mirrored] != point:
            problem = f"says that {point} becomes {mirrored} in a flip, but {mirrored} becomes {numbers[mirrored]}"
            raise UsageError("flip_index", problem, f"points change places in pairs, such as {FACE}")
    found = np.array(numbers, np.int64)
    if not points:
        raise UsageError("flip_index", "is for landmarks and keypoints, but the pack has none", "leave it out")
    if len(found) not in points.values():
        counts = ", ".join(f"{count} {name}" for name, count in points.items())
        raise UsageError("flip_index", f"has {len(found)} numbers, but the pack has {counts}", "pass one per point")
    return found


def _vectors(pack: Pack, name: str, count: int, records: Int64) -> NDArray[np.float32]:
    """Return the tags or values of `records`, float32 (n, count); an image without them has no tag, and NaN."""
    (rows,) = pack.reader.rows([name], records)
    found = np.full((len(rows), count), BY_NAME[name].fill, np.float32)
    for record, numbers, row in zip(records.tolist(), found, rows, strict=True):
        if len(row) == count:
            numbers[:] = row
        elif len(row):
            raise pack.reader.damage_error(record, f"has {plural(len(row), name.removesuffix('s'))}, not {count}")
    return found


def _numbers_each(pack: Pack, name: str) -> int:
    return len(pack.manifest.tags) if name == "tags" else _points_each(pack, name)


def _points_each(pack: Pack, name: str) -> int:
    """Return how many points or values the first image has, or keypoints the first object, that has any."""
    for rows in pack.reader.shard_columns(name):
        points: Any = rows.flat() if BY_NAME[name].per_box else rows
        assert isinstance(points, Ragged)
        lengths = points.lengths
        if lengths.any():
            return int(lengths[lengths > 0][0])
    return 0


def record_number(index: Any, n: int, records: Records | None) -> int:
    """Return the number in the pack of a sample index, an integer from -n to n - 1; `records` has it unless None."""
    if isinstance(index, slice):
        raise TypeError("a PackedDataset takes no slices; use torch.utils.data.Subset(dataset, range(a, b))")
    i = operator.index(index)
    if not -n <= i < n:
        raise IndexError(f"sample {i} of {n}")
    i = i + n if i < 0 else i
    return i if records is None else int(records[i])
