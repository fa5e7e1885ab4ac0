"""The annotations of a batch as columns: read, moved with the pixels and cut by a crop in a few array operations.

One array for the boxes of all images, not one for each image: what Python does for an object is then done for a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.model.annotation import FLAGS, NOT_OBJECTS, Int64
from packer.model.annotation_columns import Ragged
from packer.model.fields import (
    BY_NAME,
    FLIPS,
    INSTANCES,
    LISTS,
    Field,
    Lists,
    Members,
    Number,
    box_fields_of,
    object_of,
)
from packer.model.geometry import ON_EDGE, clip_polygon, corners_of, hide_outside, polygon_area
from packer.samplers.order import Float64

ORIGINALS = ("voc_bndbox", "category_id", "area", "rle", "vbox", "hbox")
"""Values of the source file, some of the image's original size, which are in the record (`Pack.annotation`) but not in
the target."""
TAKEN = frozenset({*(one.target for one in BY_NAME.values()), "image_id", "ignored"})
"""What else a target has: an attribute of such a name is in the record, too, and not in the target."""
WHOLE = frozenset(field.name for field in LISTS if not field.per_box)
"""Columns that belong to the image, whatever its boxes are."""
OUTLINES = frozenset({"polygons", "obb"})
"""What says where an object ends: of those, nothing is left of an object that is outside a crop."""
WITH_VISIBILITY = 3
"""Numbers of a point that has one."""
NO_AREA = 0.01
"""Square pixels: less of a polygon is what rounding leaves of one that lies along an edge."""
FARTHEST = float(np.finfo(np.float32).max)


@dataclass(slots=True, eq=False)
class Column:
    """What the images have of one field: `counts[i]` items of `values`, one image after another."""

    values: Any
    """An array, or a tensor: one item for each box or point; text and nested values as an array of objects."""
    counts: Int64
    sizes: Int64 | None = None
    """Of fields whose items are points: how many each object has. `counts` are objects then."""

    @property
    def rows(self) -> Int64:
        """How many rows of `values` each image has: boxes or points."""
        if self.sizes is None:
            return self.counts
        before, ends = np.concatenate([[0], np.cumsum(self.sizes)]), np.cumsum(self.counts)
        rows: Int64 = before[ends] - before[ends - self.counts]
        return rows

    def select(self, keep: NDArray[np.bool_], boxes: Int64) -> Column:
        """Return what belongs to the boxes that are kept, bool (m,); `boxes` is their number in each image.

        An image may have boxes, and nothing in this column.
        """
        same = self.counts == boxes
        if not same.all():
            own = np.ones(self.counts.sum(), np.bool_)
            own[np.repeat(same, self.counts)] = keep[np.repeat(same, boxes)]
            keep = own
        before = np.concatenate([[0], np.cumsum(keep)])
        ends = np.cumsum(self.counts)
        counts = before[ends] - before[ends - self.counts]
        if self.sizes is None:
            return Column(self.values[keep], counts)
        return Column(self.values[np.repeat(keep, self.sizes)], counts, self.sizes[keep])

    def take(self, images: Int64) -> Column:
        """Return what these images have, in this order."""
        counts = self.counts[images]
        places = _places(np.cumsum(self.counts)[images] - counts, counts)
        if self.sizes is None:
            return Column(self.values[places], counts)
        sizes = self.sizes[places]
        return Column(self.values[_places(np.cumsum(self.sizes)[places] - sizes, sizes)], counts, sizes)

    def split(self) -> list[Any]:
        """Return what each image has: views of one tensor, or lists of objects."""
        counts = self.counts.tolist()
        if isinstance(self.values, torch.Tensor):
            return list(self.values.split_with_sizes(counts)) if len(counts) > 1 else [self.values]
        return in_lists(self.values.tolist(), counts)

    @staticmethod
    def join(parts: Sequence[Column]) -> Column:
        """Return the column of the images of all parts."""
        if len(parts) == 1:
            return parts[0]
        sizes = [part.sizes for part in parts if part.sizes is not None]
        return Column(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate(sizes) if sizes else None,
        )


@dataclass(slots=True, eq=False)
class BatchAnnotations:
    """The annotations of some images, under the names that they have in a target."""

    records: Int64
    columns: dict[str, Column] = field(default_factory=dict)
    """The rows of each field: boxes float32 (m, 4), labels int64 (m,), points (p, 2 or 3); other fields of boxes."""
    images: dict[str, Any] = field(default_factory=dict)
    """What an image has one of: label, extras, parts; a list, or of a sidecar an array or a tensor (n, ...)."""
    points: int = 0
    """Keypoints of each object, for an image without any."""

    def moved(self, maps: Float64) -> BatchAnnotations:
        """Return the annotations of the moved images; nothing is clipped or dropped."""
        columns = dict(self.columns)
        for name in (one.name for one in LISTS if one.moves):
            if (column := columns.get(name)) is not None:
                columns[name] = replace(column, values=_move_coordinates(column.values, maps, column.rows))
        return replace(self, columns=columns)

    def mirrored(self, flipped: NDArray[np.bool_], flip_index: Int64) -> BatchAnnotations:
        """Return the annotations with left and right points exchanged in the images that are mirror images.

        Point i becomes what was point `flip_index[i]`, wherever there are as many points as that has.
        """
        columns, count = dict(self.columns), len(flip_index)
        for name in FLIPS:
            if (column := columns.get(name)) is None:
                continue
            sizes = column.counts if column.sizes is None else column.sizes
            turned = flipped if column.sizes is None else np.repeat(flipped, column.counts)
            begins = (np.cumsum(sizes) - sizes)[turned & (sizes == count)]
            values = column.values.copy()
            places = begins[:, None] + np.arange(count)
            values[places] = column.values[begins[:, None] + flip_index]
            columns[name] = replace(column, values=values)
        return replace(self, columns=columns)

    def cut(
        self, output: tuple[int, int], min_area: float, hide: bool = True, min_visible: float = 0.0
    ) -> BatchAnnotations:
        """Return what is left in images of (height, width), after a crop has moved it.

        Boxes and polygons are cut at the edges; a box of less than `min_area` pixels, or less than a share of
        `min_visible` of what it was, is dropped with all that belongs to it, and so is one whose polygon was cut away,
        or whose oriented box is outside. Keypoints outside keep their coordinates and, if `hide`, get visibility 0; on
        an edge they are inside. Landmarks and the corners of oriented boxes stay as they are, also outside.
        """
        column = self.columns.get("boxes")
        if column is None:
            return self
        height, width = output
        boxes = np.clip(column.values, np.float32(0), np.array([width, height, width, height], np.float32))
        across, down = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        keep = (across > ON_EDGE) & (down > ON_EDGE) & (across * down >= min_area)
        if min_visible:
            left, top, right, bottom = column.values.astype(np.float64).T
            keep &= across * down >= min_visible * (right - left) * (bottom - top)
        columns = {**self.columns, "boxes": Column(boxes, column.counts)}
        for name in OUTLINES & columns.keys():
            cut, gone = _cut_polygons(columns[name], width, height)
            if name == "polygons":
                columns[name] = cut
            same = cut.counts == column.counts
            keep[np.repeat(same, column.counts)] &= ~gone[np.repeat(same, cut.counts)]
        for one in LISTS if hide else ():
            if one.name in columns and isinstance(one.kind, Lists) and one.kind.item.width == WITH_VISIBILITY:
                points = columns[one.name]
                columns[one.name] = replace(points, values=hide_outside(points.values, width, height))
        return replace(self, columns=columns).having(keep, column.counts)

    def having(self, keep: NDArray[np.bool_], boxes: Int64) -> BatchAnnotations:
        """Return the annotations with only the boxes to keep, bool (m,); `boxes` is their number in each image."""
        if keep.all():
            return self
        columns = {n: c if n in WHOLE else c.select(keep, boxes) for n, c in self.columns.items()}
        return replace(self, columns=columns)

    def take(self, images: Int64) -> BatchAnnotations:
        """Return the annotations of these images, in this order."""
        columns = {name: column.take(images) for name, column in self.columns.items()}
        whole = {
            name: values[images] if isinstance(values, np.ndarray) else [values[i] for i in images.tolist()]
            for name, values in self.images.items()
        }
        return BatchAnnotations(self.records[images], columns, whole, self.points)

    def grouped(self, groups: Int64) -> BatchAnnotations:
        """Return one image for those of each group: it has all their objects.

        What belongs to a whole image is that of the first one.

        Args:
            groups: of each image, sorted, int64 (n,); none of them is left out.
        """
        firsts = np.flatnonzero(np.diff(groups, prepend=-1))
        found = self.take(firsts)
        for name, column in self.columns.items():
            if name not in WHOLE:
                found.columns[name] = Column(column.values, np.add.reduceat(column.counts, firsts), column.sizes)
        if (masks := self.images.get(INSTANCES.target)) is not None:
            bounds = zip(firsts.tolist(), [*firsts[1:].tolist(), len(masks)], strict=True)
            found.images[INSTANCES.target] = [torch.cat(masks[first:last]) for first, last in bounds]
        return found

    def treat_ignored(self, how: str) -> BatchAnnotations:
        """Return the annotations without ignored regions ("drop"), or with a column that says which are such."""
        boxes = self.columns["boxes"].counts
        ignored = np.zeros(boxes.sum(), np.bool_)
        for name in NOT_OBJECTS:
            if (flags := self.columns.get(name)) is not None:
                same = flags.counts == boxes  # an image may have boxes, and not this field
                ignored[np.repeat(same, boxes)] |= flags.values[np.repeat(same, flags.counts)] != 0
        if how == "drop":
            return self.having(~ignored, boxes)
        return replace(self, columns={**self.columns, "ignored": Column(ignored, boxes)})

    def as_tensors(self) -> BatchAnnotations:
        """Return the same with tensors in place of arrays, which share their memory."""
        columns = dict(self.columns)
        for name, column in columns.items():
            if column.values.dtype != object:
                columns[name] = Column(torch.from_numpy(column.values), column.counts, column.sizes)
        images = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in self.images.items()}
        return BatchAnnotations(self.records, columns, images, self.points)

    def as_dicts(self, leave: Collection[str] = ()) -> list[dict[str, Any]]:
        """Return a target for each image (`loading.targets.target_of`): views of one tensor for each field.

        Args:
            leave: what to leave out.
        """
        fields = {name: self._split(name, column) for name, column in self.columns.items()}
        fields |= {name: values for name, values in self.images.items() if name not in leave}
        fields["image_id"] = self.records.tolist()
        names = tuple(fields)
        return [dict(zip(names, values, strict=True)) for values in zip(*fields.values(), strict=True)]

    def _split(self, name: str, column: Column) -> list[Any]:
        if column.sizes is None:
            return column.split()
        counts, sizes = column.counts.tolist(), column.sizes.tolist()
        if name == "polygons":
            return in_lists(list(column.values.split(sizes)), counts)
        kind = BY_NAME[name].kind
        points = sizes[0] if sizes else kind.count or self.points
        if sizes.count(points) == len(sizes):
            return list(column.values.view(len(sizes), points, column.values.shape[1]).split(counts))
        # objects of different kinds, with other points: alike within an image only
        firsts = [kinds[0] if kinds else self.points for kinds in in_lists(sizes, counts)]
        parts = column.values.split([count * points for count, points in zip(counts, firsts, strict=True)])
        return [part.view(count, points, 3) for part, count, points in zip(parts, counts, firsts, strict=True)]

    @staticmethod
    def join(parts: Sequence[BatchAnnotations]) -> BatchAnnotations:
        """Return the annotations of the images of all parts."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        return BatchAnnotations(
            np.concatenate([part.records for part in parts]),
            {name: Column.join([part.columns[name] for part in parts]) for name in first.columns},
            {name: _joined([part.images[name] for part in parts]) for name in first.images},
            first.points,
        )


def _places(starts: Int64, counts: Int64) -> Int64:
    """Return the numbers from each start on, so many as each has."""
    before = np.cumsum(counts) - counts
    places: Int64 = np.repeat(starts - before, counts) + np.arange(counts.sum())
    return places


def _joined(values: Sequence[Any]) -> Any:
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else [one for some in values for one in some]


def read_annotations(pack: Pack, records: Int64, fields: Sequence[str], points: int = 0) -> BatchAnnotations:
    """Return the annotations of records as the index has them, those of objects in pixels.

    Args:
        pack: the pack.
        records: numbers of its records, int64 (n,).
        fields: those to read, as the manifest lists them.
        points: keypoints of each object, for images without any.

    Raises:
        DamagedPack: if a row of the index makes no sense.
    """
    batch = BatchAnnotations(records, points=points)
    kinds = {name: BY_NAME[name.partition(".")[0]] for name in fields}
    names = list(dict.fromkeys(field.name for field in kinds.values() if not isinstance(field.kind, Number)))
    with_members = [field.name for field in kinds.values() if field.has_members]
    names += ["boxes"] if with_members and "boxes" not in names else []
    try:
        rows = dict(zip(names, pack.reader.rows(names, records) if names else (), strict=True))
        members = {name: _box_fields(rows[name], rows["boxes"]) for name in with_members}
        for name, field in kinds.items():
            if isinstance(field.kind, Number):
                batch.images[name] = pack.reader.values(name, records).tolist()
            elif field.has_members:
                _add_field(batch, name.partition(".")[2], members[field.name])
            elif isinstance(field.kind, Members):
                batch.images[name] = [object_of(text) for text in rows[name]]
            else:
                batch.columns[field.target] = _column(field, rows[name])
        if "boxes" in batch.columns:
            _fill(batch)
    except (ValueError, TypeError, OverflowError) as error:
        for record in records.tolist():
            pack.annotation(record)  # names the one that is damaged
        for place in range(len(records)) if len(records) > 1 else ():
            read_annotations(pack, records[place : place + 1], fields)
        raise pack.reader.damage_error(int(records[0]), f"has an annotation that is damaged: {error}") from error
    return batch


def _column(field: Field, rows: list[Any]) -> Column:
    counts = np.array([len(row) for row in rows], np.int64)
    if not isinstance(field.kind, Lists):
        return Column(np.concatenate(rows), counts)
    objects = Ragged.concat(rows)
    # of one image they are still in the index, which must not be handed out for writing
    return Column(np.array(objects.flat()), counts, objects.lengths.astype(np.int64))


def _fill(batch: BatchAnnotations) -> None:
    """Give the boxes of images that lack a column what stands for nothing in it, so that each box has a place."""
    boxes = batch.columns["boxes"]
    for name, column in batch.columns.items():
        lacking = (column.counts == 0) & (boxes.counts > 0)
        if name in WHOLE or name in ("boxes", "labels") or not lacking.any():
            continue
        if name == "obb":
            batch.columns[name] = _with_all_corners(column, boxes)
            continue
        count = np.where(lacking, boxes.counts, 0)
        before = np.cumsum(column.counts)  # what is put in stands after that of the images before
        if column.sizes is None:
            nothing: Any = 0 if name in FLAGS else None
            batch.columns[name] = Column(np.insert(column.values, np.repeat(before, count), nothing), boxes.counts)
            continue
        points = batch.points if name == "keypoints" else 0
        sizes = np.insert(column.sizes, np.repeat(before, count), points)
        places = np.repeat(np.concatenate([[0], np.cumsum(column.sizes)])[before], count * points)
        batch.columns[name] = Column(np.insert(column.values, places, 0, axis=0), boxes.counts, sizes)


def _with_all_corners(obb: Column, boxes: Column) -> Column:
    """Return oriented boxes with the corners of the boxes of images that have no oriented ones."""
    lacking = np.repeat(obb.counts != boxes.counts, boxes.counts)
    if not lacking.any():
        return obb
    values = corners_of(boxes.values)
    values[~lacking] = obb.values.reshape(-1, 4, 2)
    return Column(values.reshape(-1, 2), boxes.counts, np.full(len(values), 4))


def _box_fields(texts: list[Any], boxes: list[Any]) -> list[dict[str, list[Any]]]:
    return [box_fields_of(text, len(of_image)) for text, of_image in zip(texts, boxes, strict=True)]


def _add_field(batch: BatchAnnotations, name: str, fields: list[dict[str, Any]]) -> None:
    if name in ORIGINALS or name in TAKEN:
        return
    rows = [of_image.get(name, ()) for of_image in fields]
    values = [value for row in rows for value in row]
    made = np.array(values, np.int64) if name in FLAGS else np.fromiter(values, object, len(values))
    batch.columns[name] = Column(made, np.array([len(row) for row in rows], np.int64))


def _in_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return numbers as float32; what would be infinite there becomes the largest number."""
    return np.clip(values, -FARTHEST, FARTHEST).astype(np.float32)


def _move_coordinates(values: NDArray[Any], maps: Float64, counts: Int64) -> NDArray[Any]:
    """Return boxes (m, 4) or points (m, 2 or 3) moved by the maps of their images, computed in float64.

    A box becomes the one around its corners.

    Args:
        values: of all images.
        maps: of each image, (n, 2, 3).
        counts: values that each image has.
    """
    moved, are_boxes = values.astype(np.float64), values.shape[1] == 4
    crossed = maps[:, (0, 1), (1, 0)].any()  # else x depends on x alone, and y on y
    for axis in (0, 1):
        low = high = np.repeat(maps[:, axis, 2], counts)
        for of in (axis, 1 - axis) if crossed else (axis,):
            factor = np.repeat(maps[:, axis, of], counts)
            start = values[:, of] * factor
            if are_boxes:
                end = values[:, of + 2] * factor
                low, high = low + np.minimum(start, end), high + np.maximum(start, end)
            else:
                low = low + start
        moved[:, axis] = low
        if are_boxes:
            moved[:, axis + 2] = high
    return _in_float32(moved)


def _cut_polygons(column: Column, width: int, height: int) -> tuple[Column, NDArray[np.bool_]]:
    """Return the polygons cut at the edges, and which of them nothing is left of, bool (m,)."""
    points, sizes = column.values, column.sizes
    assert sizes is not None
    inside = ((points >= 0) & (points <= np.array([width, height], np.float32))).all(axis=1)
    if inside.all():
        return column, np.zeros(len(sizes), np.bool_)
    wholes = np.split(points, np.cumsum(sizes)[:-1])
    polygons = [clip_polygon(whole, width, height) for whole in wholes]
    lengths = np.array([len(polygon) for polygon in polygons], np.int64)
    gone = (sizes > 0) & (lengths == 0)
    for place, (whole, polygon) in enumerate(zip(wholes, polygons, strict=True)):
        # a polygon around the image leaves points along its edges, which enclose nothing; a line never had an area
        if polygon is not whole and len(polygon):
            gone[place] = polygon_area(polygon) < NO_AREA <= polygon_area(whole)
    return Column(np.concatenate(polygons), column.counts, lengths), gone


def in_lists(items: Iterable[Any], counts: list[int]) -> list[list[Any]]:
    """Return the items in lists of so many."""
    source = iter(items)
    return [list(islice(source, count)) for count in counts]
