"""Packs with other classes: ``--map``, ``--drop-class``, ... change whole columns of their indexes, not the images."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packer.errors import UsageError, option
from packer.format.lists import Listing, Skipped
from packer.format.manifest import Manifest
from packer.images.masks import MaskValues
from packer.model.annotation import Int64, MaskFacts
from packer.model.annotation_columns import column, present
from packer.model.fields import BY_NAME, FIELDS
from packer.packing.build_options import DEFAULTS, BuildOptions
from packer.packing.class_map import NOTHING_LEFT, NOTHING_LEFT_STEP, ClassChange, ClassMap, dropped_reason
from packer.packing.option_table import CLASS_OPTIONS
from packer.packing.resolve import ClassIds
from packer.repack.index_columns import items_of, map_ids, relabelled, with_column
from packer.sources import LISTING, SOURCES
from packer.sources.mask_values import renamed


class NewClasses:
    """Other class ids for an index, in which the objects of dropped classes have none.

    Args:
        table: The index.
        ids: New id of each class, int64 (classes,); -1 drops it.

    Raises:
        ValueError: An id is not that of a class.
    """

    def __init__(self, table: Any, ids: Int64) -> None:
        self._table, self._ids = table, ids
        labels = np.asarray(column(table, "label"))
        lists: Any = column(table, "box_labels")
        boxes: Any = column(table, "boxes")
        of_boxes = np.asarray(lists.flat())
        there = np.concatenate([labels[labels >= 0], of_boxes[of_boxes >= 0]])
        self.counts = np.bincount(there, minlength=len(ids))
        """How many labels each class has, (classes,)."""
        self.dropped: NDArray[np.bool_] = (labels >= 0) & (map_ids(labels, ids) < 0)
        """Which images are of a dropped class, (n,)."""
        self._starts: NDArray[np.int64] = np.asarray(boxes.offsets, np.int64) - boxes.offsets[0]
        self._keep = np.ones(int(self._starts[-1]), np.bool_)
        labelled = np.flatnonzero(np.asarray(lists.lengths))
        self._keep[items_of(self._starts, labelled)] = (of_boxes < 0) | (map_ids(of_boxes, ids) >= 0)
        self._kept = np.diff(np.concatenate([[0], np.cumsum(self._keep)])[self._starts])
        says = [present(table, field.name) for field in FIELDS if field.says and field.name != "boxes"]
        self.emptied: NDArray[np.bool_] = (
            (np.diff(self._starts) > self._kept) & (self._kept == 0) & ~np.logical_or.reduce(says)
        )
        """Which images have had no label but objects of dropped classes, (n,)."""

    def batch(self) -> Any:
        """Return the new index, as a record batch of the same rows."""
        batch = relabelled(self._table, self._ids)
        if self._keep.all():
            return batch
        for field in FIELDS:
            if field.per_box and field.name in batch.schema.names:
                old = batch.column(batch.schema.get_field_index(field.name))
                batch = with_column(batch, field.name, self._texts(old) if field.has_members else self._lists(old))
        return batch

    def _lists(self, array: Any) -> Any:
        lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
        keep = self._keep[items_of(self._starts, np.flatnonzero(lengths))]  # an image may lack the field
        ends = np.cumsum(np.where(lengths > 0, self._kept, 0))
        offsets = pa.array(np.insert(ends, 0, 0), pa.int32())
        return pa.ListArray.from_arrays(offsets, array.flatten().filter(pa.array(keep)), mask=array.is_null())

    def _texts(self, array: Any) -> Any:
        texts, kind = array.to_pylist(), BY_NAME["box_fields"].kind
        for row in np.flatnonzero(self._kept < np.diff(self._starts)).tolist():
            if texts[row] is not None:
                keep = self._keep[self._starts[row] : self._starts[row + 1]]
                texts[row] = kind.text(kind.select(json.loads(texts[row]), keep))
        return pa.array(texts, array.type)


def class_map_of(options: BuildOptions, manifests: Iterable[Manifest]) -> ClassMap | None:
    """Return what the options say of the classes of packs; None if that is nothing.

    Raises:
        UsageError: An option names a class that no pack has, or has nothing to do.
    """
    class_map = ClassMap.of(options)
    if class_map is None:
        if options.missing_labels != DEFAULTS["missing_labels"]:
            problem = "is for records that lose all objects with --drop-class or --only-class"
            raise UsageError(option("missing-labels"), problem, "leave it out")
        return None
    class_map.check({name for one in manifests for name in PackClasses.of(class_map, one).counts})
    return class_map


class PackClasses:
    """Classes of records, as another pack will have them.

    Args:
        class_map: What becomes of them.
        names: Their names, in the order of their ids.
        masks: The masks whose classes change, too, by their names.
        listed: Whether they are in an order of their own, which new names keep; else new names are in theirs.

    Raises:
        UsageError: The pixels of masks cannot follow.
    """

    def __init__(
        self, class_map: ClassMap, names: Sequence[str], masks: Mapping[str, MaskFacts], listed: bool = True
    ) -> None:
        self._class_map, self._old = class_map, names
        self.counts: Counter[str] = Counter({name: 0 for of_mask in masks.values() for name in of_mask.classes})
        """How many labels each class has had in the indexes that were `taken`."""
        self.counts.update(dict.fromkeys(names, 0))
        self.names = class_map.new_names(names)
        self.names = self.names if listed else _in_order(self.names)
        self.ids = class_map.ids(names, self.names)
        """New id of each class, int64 (classes,); -1 of dropped ones."""
        values = {name: MaskValues(facts.classes, facts.ignore) for name, facts in masks.items()}
        values = {name: renamed(one, class_map.new_name) for name, one in values.items()}
        self.masks = {name: MaskFacts(masks[name].dtype, one.classes, one.ignore) for name, one in values.items()}
        self.mask_ids = {name: one.ids for name, one in values.items() if one.ids}
        """(value, new value) of the pixels of masks that change, by their names."""

    @classmethod
    def of(cls, class_map: ClassMap, pack: Manifest) -> PackClasses:
        """Return those of a pack. Raise UsageError if the options cannot mean its masks."""
        are_alone = not {"label", "boxes"}.intersection(pack.fields) and len(pack.masks) == 1
        masks = {n: facts for n, facts in pack.masks.items() if class_map.applies_to_masks(facts.classes, are_alone)}
        return cls(class_map, pack.classes, masks, _are_listed(pack))

    def check_masks(self, pack: str, command: str) -> None:
        """Raise UsageError if pixels of masks would change, which this command does not read."""
        if self.mask_ids:
            step = "convert it with these options first: packer convert"
            raise UsageError(pack, f"has masks, whose pixels {command} does not change", step)

    def taken(self, table: Any, policy: str, skipped: Listing[Skipped]) -> tuple[NewClasses, NDArray[np.bool_]]:
        """Return the new ids of an index, and which of its records stay, bool (n,).

        Args:
            table: The index.
            policy: ``--missing-labels``, for records of which no object is left.
            skipped: Receives the records that do not stay.

        Raises:
            UsageError: A record has no object left, and the policy is error.
        """
        found = NewClasses(table, self.ids)
        self.counts.update(dict(zip(self._old, found.counts.tolist(), strict=True)))
        gone = found.dropped | (found.emptied & (policy != "empty"))
        paths: Any = column(table, "path")
        labels: Any = column(table, "label")
        for row in np.flatnonzero(gone).tolist():
            path, reason = os.fsdecode(bytes(paths[row])), NOTHING_LEFT
            if found.dropped[row]:
                reason = dropped_reason(self._old[labels[row]])
            elif policy == "error":
                raise UsageError(path, f"has {NOTHING_LEFT}", NOTHING_LEFT_STEP)
            skipped.add(Skipped(path, reason))
        return found, ~gone

    @property
    def changes(self) -> tuple[ClassChange, ...]:
        """What became of the classes."""
        return self._class_map.changes(self.counts)

    def in_manifest(self, manifest: Manifest) -> Manifest:
        """Return the manifest of a pack with the new names."""
        return replace(manifest, classes=self.names, masks={**manifest.masks, **self.masks})


def _are_listed(pack: Manifest) -> bool:
    """Return whether the classes of a pack are in another order than a build would give their names."""
    kinds = {*pack.options["labels"]} - {"masks"}  # which have a list of their own beside other labels
    by_name = pack.options.get("classes") is None and kinds and kinds <= SOURCES.keys() - LISTING
    numbers = all(name.isdecimal() for name in pack.classes)  # of a list, whose ids they are
    return not by_name or numbers or pack.classes != _in_order(pack.classes)


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of classes as a build orders those that no source lists."""
    ids = ClassIds()
    for name in names:
        ids.id_of(name, "")
    return ids.final(())[0]


def recorded_classes(options: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a pack that was made of one with the options `before`, with what became of its classes.

    ``--like`` repeats them, unless classes were renamed twice, for which there are no options.
    """
    given = {name: value for name in CLASS_OPTIONS if (value := getattr(options, name))}
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    if not given:
        return dict(before)
    if options.missing_labels != DEFAULTS["missing_labels"]:
        given["missing_labels"] = options.missing_labels
    others = {name: value for name, value in before.items() if name not in CLASS_OPTIONS}
    return {**others, **(given if len(others) == len(before) else {}), "repack": {**before.get("repack", {}), **given}}
