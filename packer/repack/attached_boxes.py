"""Predicted boxes as they are in packed images: where a resize has put them, and whether they are inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import BadInput, UsageError, option, plural, printable
from packer.format.pack import Pack
from packer.images.resize import TargetSize
from packer.model.annotation import Int64
from packer.packing.build_options import BuildOptions

GEOMETRY = ("resize", "fit", "pad_value", "interpolation")
MOST_OUTSIDE = 0.01
"""Share of boxes whose center may be outside of their image: of more, the frame is another one."""
Float64 = NDArray[np.float64]


def as_packed(
    boxes: Float64, records: Int64, pack: Pack, frame: str, sizes: Mapping[int, tuple[int, int] | None]
) -> tuple[Float64, str]:
    """Return boxes in pixels of their packed images, and a note; one of which a crop has left nothing has no area.

    Args:
        boxes: x1, y1, x2, y2, float64 (m, 4).
        records: Of each box.
        pack: The pack.
        frame: source, packed or relative.
        sizes: Width and height of the source images, by record, if they are known.

    Raises:
        UsageError: Their place depends on the size of the source image, and that is not known.
    """
    resize, packed = resize_of(pack), _packed_sizes(pack, records)
    keeps_shares = resize is None or resize.fit in ("stretch", "short", "long")
    if frame == "packed" or (frame == "source" and resize is None):
        return boxes, ""
    if frame == "relative" and keeps_shares:
        return boxes * np.tile(packed, 2), ""
    assert resize is not None
    unique, places = np.unique(records, return_inverse=True)
    found = [sizes.get(record) for record in unique.tolist()]
    if unknown := [record for record, size in zip(unique.tolist(), found, strict=True) if size is None]:
        problem = f"was resized ({resize.width}x{resize.height}, {resize.fit}), and does not say how large its "
        step = f"pass {option('frame', 'packed')} if boxes are those of packed images; else the COCO file of labels, "
        step += f"which has the sizes: {option('classes', 'FILE')}"
        raise UsageError(pack.path, f"{problem}source images are, such as {printable(pack.paths[unknown[0]])}", step)
    maps = np.array([_map_of(resize, size) for size in found if size is not None])
    for record, size, one in zip(unique.tolist(), found, maps.tolist(), strict=True):
        shape = pack.reader.shape_of(record)
        if (one[4], one[5]) != (shape[1], shape[0]):
            problem = f"says that {printable(pack.paths[record])} has {size} pixels, which was not packed so"
            raise UsageError(option("classes"), problem, "name the file of these images")
    scale, shift = maps[places.reshape(-1), :2], maps[places.reshape(-1), 2:4]
    if frame == "relative":
        boxes = boxes * np.tile(np.array(found, np.float64)[places.reshape(-1)], 2)
    boxes = boxes * np.tile(scale, 2) + np.tile(shift, 2)
    if resize.fit == "crop":  # as labels are
        boxes = np.clip(boxes, 0, np.tile(packed, 2))
    return boxes, "boxes were moved as their images were resized"


def _map_of(resize: TargetSize, size: tuple[int, int]) -> tuple[float, ...]:
    one = resize.geometry(*size)
    return one.a, one.e, one.c, one.f, one.width, one.height


def resize_of(pack: Pack) -> TargetSize | None:
    """Return how the images of a pack were resized, as far as its options say; None if they were not."""
    recorded = {name: pack.manifest.options[name] for name in GEOMETRY if name in pack.manifest.options}
    return BuildOptions(pack.path, **recorded).target_size()


def _packed_sizes(pack: Pack, records: Int64) -> NDArray[Any]:
    return np.stack([np.asarray(pack.column(side), np.float64)[records] for side in ("width", "height")], axis=1)


def check_inside(where: str, boxes: Float64, records: Int64, pack: Pack) -> tuple[str, ...]:
    """Return a note about boxes that reach outside of their images.

    Raises:
        BadInput: Many are in other places: they are of another frame.
    """
    sizes = _packed_sizes(pack, records)
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    away = ((centers < 0) | (centers > sizes)).any(axis=1)
    if away.mean() > MOST_OUTSIDE:
        first = int(away.argmax())
        box = " ".join(f"{number:.5g}" for number in boxes[first].tolist())
        size = "x".join(f"{side:g}" for side in sizes[first].tolist())
        problem = f"has {plural(int(away.sum()), 'box', 'boxes')} outside of their images, such as {box} in "
        step = f"say what they are with {option('frame', 'source')}, packed or relative"
        raise BadInput(where, f"{problem}{printable(pack.paths[int(records[first])])} of {size}", step)
    beyond = np.maximum(np.maximum(-boxes.min(axis=1), (boxes[:, 2:] - sizes).max(axis=1)), 0)
    if not (several := int((beyond > 1).sum())):
        return ()
    return (f"{plural(several, 'box reaches', 'boxes reach')} up to {beyond.max():.0f} pixels out of their image",)
