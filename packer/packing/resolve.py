"""Converts the annotations from the sources: class ids, pixels, upright frame, checked boxes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import BadBox, BadLabel, UsageError, option, printable
from packer.format.lists import Changed, Listing
from packer.format.manifest import read_manifest
from packer.format.pack_paths import names_a_pack
from packer.images.decode import orient
from packer.images.header import Header
from packer.model.annotation import FLAGS, IGNORED, Annotation, RawAnnotation
from packer.model.fields import FIELDS, Field, Scale, with_boxes
from packer.model.geometry import clip_polygon, move, orientation_geometry
from packer.model.rle import encode_shape, moved_masks
from packer.sources.paths import is_text, quoted_value

Box = tuple[float, float, float, float]
ROUNDING_PX = 1.0
"""A box edge up to this far outside the image counts as rounding and is moved onto the border."""
ROUNDING_SHARE = 2e-6
"""And this share of the image's longer side: six decimals of a fraction, and float32."""


@dataclass(slots=True)
class Changes:
    """What the box policy changed in the labels of one image."""

    counts: Counter[str] = field(default_factory=Counter)
    rows: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    """The fields of `Changed` after the path."""


def check_boxes(
    policy: str, annotation: Annotation, raw: RawAnnotation, size: tuple[int, int], scale: Box, changes: Changes
) -> Annotation:
    """Return an annotation whose boxes are inside the image: rounding at the border is corrected.

    Args:
        policy: What to do with other boxes: fail, clip (with their polygons) or drop.
        annotation: The annotation, in pixels.
        raw: The same as written in its file, for messages.
        size: Width and height of the image.
        scale: What `raw.boxes` has to be multiplied by to be in pixels.
        changes: Receives what was clipped and dropped.

    Raises:
        BadBox: The policy is fail, and there is such a box.
    """
    if annotation.boxes is None or not len(annotation.boxes):
        return annotation
    boxes = annotation.boxes
    width, height = size
    rows = boxes.tolist()  # for a few boxes, quicker than numpy
    inside = all(x1 < x2 <= width and y1 < y2 <= height for x1, y1, x2, y2 in rows) and not np.signbit(boxes).any()
    if inside and policy != "clip":
        return annotation
    border = np.array([width, height, width, height], np.float32)
    clamped = np.clip(boxes, 0, border)
    excess = np.abs(boxes - clamped).max(axis=1)
    outside = excess > _rounding(size)
    empty = (clamped[:, 2] <= clamped[:, 0]) | (clamped[:, 3] <= clamped[:, 1])
    bad = outside | empty
    if policy == "fail" and bad.any():
        raise _bad_box(raw, int(np.flatnonzero(bad)[0]), size, scale)
    drop = empty | outside if policy == "drop" else empty
    changes.counts["boxes_dropped"] += int(drop.sum())
    changes.counts["boxes_clipped"] += int((outside & ~drop).sum())
    changes.counts["boxes_clamped"] += int(((excess > 0) & ~outside & ~drop).sum())
    for number in np.flatnonzero(bad).tolist():
        before = _pixels(raw, number, scale)
        after = "" if drop[number] else _numbers(_cut_box(before, size))
        change = "dropped" if drop[number] else "clipped"
        changes.rows.append((change, *_place(raw, number), _numbers(before), after))
    annotation = replace(annotation, boxes=clamped)
    if policy == "clip" and annotation.polygons is not None:
        polygons = tuple(clip_polygon(polygon, width, height) for polygon in annotation.polygons)
        _note_polygons(annotation.polygons, raw, size, bad, changes)
        annotation = replace(annotation, polygons=polygons)
    return with_boxes(annotation, ~drop) if drop.any() else annotation


def _rounding(size: tuple[int, int]) -> float:
    return ROUNDING_PX + ROUNDING_SHARE * max(size)


def _note_polygons(
    polygons: Sequence[NDArray[np.float32]], raw: RawAnnotation, size: tuple[int, int], noted: Any, changes: Changes
) -> None:
    """List the clipped polygons; those of boxes that are `noted` already are only counted."""
    for number, polygon in enumerate(polygons):
        if len(polygon) and np.abs(polygon - np.clip(polygon, 0, np.array(size, np.float32))).max() > _rounding(size):
            changes.counts["polygons_clipped"] += 1
            if not noted[number]:
                low, high = polygon.min(axis=0).tolist(), polygon.max(axis=0).tolist()
                extent = (low[0], low[1], high[0], high[1])
                row = ("polygon clipped", *_place(raw, number), _numbers(extent), _numbers(_cut_box(extent, size)))
                changes.rows.append(row)


def _place(raw: RawAnnotation, number: int) -> tuple[str, str]:
    """Return file and line of a box, and its number with its class."""
    origin = raw.origin if raw.box_lines is None else f"{raw.origin}:{raw.box_lines[number]}"
    return origin, f"{number + 1} {raw.box_labels[number] if raw.box_labels is not None else ''}".rstrip()


def _pixels(raw: RawAnnotation, number: int, scale: Box) -> Box:
    """Return a box in pixels of the labelled image, in float64: as the file has it, if that is in pixels too."""
    assert raw.boxes is not None
    x1, y1, x2, y2 = (value * factor for value, factor in zip(raw.boxes[number], scale, strict=True))
    return x1, y1, x2, y2


def _cut_box(box: Box, size: tuple[int, int]) -> Box:
    (x1, y1, x2, y2), (width, height) = box, size
    return min(max(x1, 0), width), min(max(y1, 0), height), min(max(x2, 0), width), min(max(y2, 0), height)


def _numbers(box: Box) -> str:
    return " ".join(f"{value:.9g}" for value in box)


def _bad_box(raw: RawAnnotation, number: int, size: tuple[int, int], scale: Box) -> BadBox:
    x1, y1, x2, y2 = _pixels(raw, number, scale)
    width, height = size
    limit = _rounding(size)
    origin, _ = _place(raw, number)
    box = f"box {number + 1}"
    if raw.box_texts is not None:  # what can be found in the file
        box += f" ({raw.box_texts[number]})"
    problem = (
        f"{box} has no area" if raw.box_texts is not None else f"{box} ({x1:g}, {y1:g}, {x2:g}, {y2:g}) has no area"
    )
    for name, value, most, side in (("xmax", x2, width, "width"), ("ymax", y2, height, "height")):
        if value > most + limit:
            problem = f"{box}: {name} {value:.9g} exceeds {side} {most}"
    for name, value, where in (("xmin", x1, "left of"), ("ymin", y1, "above")):
        if value < -limit:
            problem = f"{box}: {name} {value:.9g} is {where} the image"
    return BadBox(origin, problem, "fix the label or pass --boxes=clip or --boxes=drop")


MAX_CLASS_FILE_BYTES = 16 * 1024**2
SHOWN_GROUPS = 3


class ClassIds:
    """Collects class ids in order of first appearance; `final` puts them in their final order.

    With a fixed list (``--classes FILE``) ids are final at once, and any other name is a BadLabel.
    """

    def __init__(self, fixed: Sequence[str] | None = None) -> None:
        self._ids = {name: i for i, name in enumerate(fixed or ())}
        self._fixed = tuple(fixed) if fixed is not None else None

    @property
    def names(self) -> list[str]:
        """All names that have an id, in order."""
        return list(self._ids)

    def id_of(self, name: str, origin: str) -> int:
        """Return the id of the class `name`. A number that is not a name in a fixed list is taken as an id."""
        known = self._ids.get(name)
        if known is not None:
            return known
        if self._fixed is None:
            if not is_text(name):
                raise BadLabel(origin, f"class {printable(name)} is not valid text", "correct the label")
            return self._ids.setdefault(name, len(self._ids))
        if name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(self._fixed):
            return int(name)
        raise BadLabel(
            origin, f"class {printable(name)} is not in the class list of {len(self._fixed)} names",
            "add it to the list or correct the label",
        )  # fmt: skip

    def final(self, declared: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """Return all names in their final order, and the final id of each id returned so far.

        `declared` are the class lists of sources that have one; they come first, in order. All other names
        follow, sorted by byte; `IGNORED` is the last.
        """
        if self._fixed is not None:
            return self._fixed, np.arange(len(self._fixed))
        order: dict[str, int] = {}
        for names in declared:
            clash = [n for i, n in enumerate(names) if order.get(n, i) != i]
            if clash or tuple(order)[: len(names)] != names[: len(order)]:  # neither begins as the other
                problem = f"two kinds of labels number classes differently ({printable((clash or names)[0])})"
                raise UsageError(option("labels"), problem, "give one list for both: --classes=FILE")
            for name in names:
                order.setdefault(name, len(order))
        rest = sorted(
            (n for n in self._ids if n not in order), key=lambda n: (n == IGNORED, n.encode("utf-8", "surrogateescape"))
        )
        for name in rest:
            order[name] = len(order)
        return tuple(order), np.array([order[name] for name in self._ids], np.int64)


class NumberedClasses(ClassIds):
    """Classes that are numbers: they are their ids."""

    def __init__(self) -> None:
        super().__init__()
        self._most = -1

    def id_of(self, name: str, origin: str) -> int:
        """Return the number."""
        self._most = max(self._most, int(name))
        return int(name)

    @property
    def names_of_all(self) -> tuple[str, ...]:
        """The numbers up to the highest one, as text."""
        return tuple(map(str, range(self._most + 1)))


def similar_names(classes: Sequence[str]) -> list[str]:
    """Return one note if names of classes differ only in case or blanks; else none."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault("".join(name.split()).casefold(), []).append(name)
    groups = [" and ".join(f'"{printable(name)}"' for name in names) for names in alike.values() if len(names) > 1]
    if not groups:
        return []
    more = f" and {len(groups) - SHOWN_GROUPS} more" if len(groups) > SHOWN_GROUPS else ""
    return [f"class names that differ only in case or blanks: {', '.join(groups[:SHOWN_GROUPS])}{more}"]


def read_classes(path: str) -> list[str]:
    """Return the names in ``--classes FILE``: one per line, in id order; or those of a pack.

    Raises:
        UsageError: It holds none, or cannot be read.
    """
    if names_a_pack(path):
        if not (classes := read_manifest(path).classes):
            raise UsageError(path, "is a pack without classes", "leave out --classes, or choose another pack")
        return list(classes)
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_CLASS_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(path, f"cannot be read: {error.strerror}", "give one class name per line") from None
    if len(text) > MAX_CLASS_FILE_BYTES:
        raise UsageError(path, f"is larger than {MAX_CLASS_FILE_BYTES} bytes", "give one class name per line")
    lines = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    names = [os.fsdecode(line.strip()) for line in lines]
    while names and not names[-1]:
        names.pop()
    if not names:
        raise UsageError(path, "holds no class names", "give one class name per line")
    for number, name in enumerate(names, 1):
        if not name:
            raise UsageError(f"{path}:{number}", "is an empty line, but every line is a class", "remove it")
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise UsageError(path, f"names {printable(twice)} twice", "remove one of the lines")
    return names


_BESIDE_LABEL = attrgetter(*(field.name for field in FIELDS if field.name != "label"), "image_size")
_NOTHING = _BESIDE_LABEL(RawAnnotation(origin=""))


def has_only_label(raws: Sequence[RawAnnotation]) -> bool:
    """Return whether an image has only a class, from one source."""
    return len(raws) == 1 and bool(_BESIDE_LABEL(raws[0]) == _NOTHING)


class Resolver:
    """Creates the annotation of each image; counts and lists clipped and dropped boxes."""

    def __init__(self, classes: ClassIds, boxes: str, instance_masks: bool = False) -> None:
        """Use these class ids and this box policy (fail, clip or drop); polygons become masks if that is asked for."""
        self.classes = classes
        self.policy = boxes
        self.instance_masks = instance_masks
        self.counts: Counter[str] = Counter()
        self.changed = Listing(Changed)
        self._of_label: dict[str | None, Annotation] = {}

    def of_label(self, raws: Sequence[RawAnnotation]) -> Annotation | None:
        """Return the annotation of an image that has only a class, from one source; else None.

        Images of a class share the annotation, which saves time and memory. Raise BadLabel for an unknown class.
        """
        if not has_only_label(raws):
            return None
        raw = raws[0]
        annotation = self._of_label.get(raw.label)
        if annotation is None:
            label = None if raw.label is None else self.classes.id_of(raw.label, raw.origin)
            annotation = self._of_label[raw.label] = Annotation(label=label)
        return annotation

    def annotation(self, raws: Sequence[RawAnnotation], header: Header, path: bytes = b"") -> Annotation:
        """Return the merged annotation of all sources for the image at `path`, in pixels of the upright image.

        Raise BadLabel if it is invalid: the label claims another image size, a class is not in the list, a
        box is outside the image (unless the policy allows it), or two sources give the same field.
        """
        changes = Changes()
        merged = Annotation()
        origins: dict[str, str] = {}
        for number, raw in enumerate(raws):
            one = self._one(raw, header, changes)
            # usually there is only one: merging it with an empty annotation would double the time
            merged = _merge(merged, one, raw.origin, origins) if len(raws) > 1 or number else one
        if changes.counts:
            self.counts.update(changes.counts)
        for change, *rest in changes.rows:
            self.changed.add(Changed(os.fsdecode(path), change, *rest))
        return merged

    def _one(self, raw: RawAnnotation, header: Header, changes: Changes) -> Annotation:
        width, height = header.upright_size
        stored_frame = _in_stored_frame(raw, header)
        if stored_frame:
            width, height = header.width, header.height
        sx, sy = (float(width), float(height)) if raw.relative else (1.0, 1.0)
        raw = self._with_masks(raw, (height, width), (sx, sy))
        annotation = Annotation(
            **{
                field.name: self._converted(field, value, (sx, sy), raw.origin)
                for field in FIELDS
                if (value := getattr(raw, field.name)) is not None
            }
        )
        annotation = check_boxes(self.policy, annotation, raw, (width, height), (sx, sy, sx, sy), changes)
        if self.instance_masks and annotation.boxes is not None:
            masks = annotation.rles or [()] * len(annotation.boxes)
            self.counts += Counter(boxes_without_mask=sum(not len(counts) for counts in masks))  # none if it is 0
        if stored_frame:
            annotation = move(annotation, orientation_geometry(header.orientation, header.width, header.height))
            annotation = moved_masks(
                annotation, height, width, lambda mask: orient(mask[..., None], header.orientation)[..., 0], raw.origin
            )
        return annotation

    def _with_masks(self, raw: RawAnnotation, size: tuple[int, int], scale: Scale) -> RawAnnotation:
        """Return an annotation with the counts of its masks, of an image of this (height, width)."""
        shapes = raw.rles
        if shapes is None and self.instance_masks and raw.polygons is not None:
            shapes = tuple((polygon,) for polygon in raw.polygons)
        if shapes is None:
            return raw
        found = []
        for number, shape in enumerate(shapes):
            try:
                found.append(encode_shape(shape, *size, scale))
            except ValueError as error:
                origin, box = _place(raw, number)
                raise BadLabel(origin, f"the mask of object {box} {error}", "correct it") from None
        return replace(raw, rles=tuple(found), polygons=None)

    def _converted(self, field: Field, value: Any, scale: Scale, origin: str) -> Any:
        """Return the value of a field in an annotation: names of classes become their ids."""
        if not field.classes:
            return field.kind.of_raw(whole_flags(value, origin) if field.has_members else value, scale)
        if isinstance(value, str):
            return self.classes.id_of(value, origin)
        return field.kind.of_raw([self.classes.id_of(name, origin) for name in value], scale)


CALLED_SO = {"is_crowd": "iscrowd", "group_of": "iscrowd", "is_group_of": "iscrowd", "is_difficult": "difficult"}
"""What other tools and sets call flags (TensorFlow Datasets, FiftyOne, Datumaro)."""


def whole_flags(fields: Mapping[str, tuple[Any, ...]], origin: str) -> Mapping[str, tuple[Any, ...]]:
    """Return box fields with whole numbers in those that are flags, 0 where a box has none. Raise BadLabel."""
    found = dict(fields)
    for other, name in CALLED_SO.items():
        if name not in found and all(isinstance(value, int) for value in found.get(other, ("",))):
            found[name] = found.pop(other)
    for name in FLAGS:
        values = found.get(name, ())
        if all(type(value) is int for value in values):
            continue
        found[name] = tuple(0 if value is None else value for value in values)
        for number, value in enumerate(found[name], 1):
            if not isinstance(value, int) and not (isinstance(value, float) and value.is_integer()):
                problem = f"{name} of box {number} is {quoted_value(str(value))}, not a whole number"
                raise BadLabel(origin, problem, "write 0 or 1, or call the field otherwise")
        found[name] = tuple(map(int, found[name]))
    return found


def _in_stored_frame(raw: RawAnnotation, header: Header) -> bool:
    """Return whether the label refers to the image as stored, without its EXIF orientation.

    The image size in the label decides; without it, labels are in the upright frame, as labelling tools show
    the image.
    """
    if raw.image_size is None or raw.image_size == header.upright_size:
        return False
    if raw.image_size == (header.width, header.height):
        return True
    (w, h), (width, height) = raw.image_size, header.upright_size
    raise BadLabel(
        raw.origin, f"says that its image is {w}x{h}, but the image is {width}x{height}",
        "correct the size in the label, or the image",
    )  # fmt: skip


def _merge(a: Annotation, b: Annotation, origin: str, origins: dict[str, str]) -> Annotation:
    """Merge two annotations. Both may have the same field only if its values are equal; members add up."""
    changes: dict[str, Any] = {}
    if a.boxes is not None and b.boxes is not None:
        raise BadLabel(origin, f"gives boxes, and so does {origins['boxes']}", "take boxes from one of the labels only")
    for one in FIELDS:
        name, value, previous = one.name, getattr(b, one.name), getattr(a, one.name)
        if not one.has(value):
            continue
        if not one.kind.is_numeric:
            value = {**previous, **value}
        elif previous is not None and not np.array_equal(previous, value):
            raise BadLabel(
                origin, f"gives another {name} than {origins[name]}", f"take the {name} from one of the labels only"
            )
        changes[name] = value
        origins[name] = origin
    return replace(a, **changes)
