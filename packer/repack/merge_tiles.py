"""Brings predictions on tiles back to the images: moves them, and merges what several tiles have found of one object.

Merging is that of SAHI (https://github.com/obss/sahi, sahi/postprocess): equal predictions become equal results.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.errors import UsageError
from packer.model.annotation import Int64
from packer.model.geometry import Float64
from packer.model.tiles import WINDOW
from packer.repack.attached_boxes import resize_of

METHODS = ("merge", "nms", "none")
METRICS = ("ios", "iou")
POINTS = ("keypoints", "landmarks", "obb")
"""What is moved besides boxes: (n, k, 2 or more), x and y first."""


def merge_tiles(  # noqa: PLR0913 - what SAHI's merging takes
    predictions: Iterable[Mapping[str, Any]],
    tiles: Any,
    records: ArrayLike | None = None,
    *,
    images: Sequence[Any] | None = None,
    method: str = "merge",
    metric: str = "ios",
    threshold: float = 0.5,
    class_agnostic: bool = False,
) -> dict[Any, dict[str, Any]]:
    """Return what was predicted on tiles for the images that these were cut from.

    Of the boxes of a class, that with the highest score takes all that overlap it by the threshold. The defaults are
    those of SAHI's `get_sliced_prediction`.

    Args:
        predictions: For each tile boxes (n, 4), xyxy in pixels of the tile; scores (n,), labels (n,); and what else
            there is of each box: keypoints, landmarks or obb (n, k, 2 or 3), which move with it, others stay as they
            are. Arrays or tensors.
        tiles: The pack of the tiles, or a dataset of it; or their windows (m, 6), as `Pack.window` has them, for
            predictions in pixels of the images.
        records: The number of the tile of each prediction. None: all of them, in order.
        images: With windows, what calls the image of each tile by name, (m,).
        method: merge (the box around both), nms (the others are dropped), or none.
        metric: What overlap means: ios, the intersection over the smaller box; or iou, over the union.
        threshold: The least overlap.
        class_agnostic: Also merge boxes of different classes; the one with the highest score says which,
            of equal ones the last.

    Returns:
        For each image, by its path (or its name), boxes float64 (n, 4), scores and labels, those with higher scores
        first, and what else was given; and ``size``, (width, height).

    Raises:
        UsageError: A value is none of its choices, the pack has no tiles, or a prediction does not fit.
    """
    for name, value, known in (("method", method, METHODS), ("metric", metric, METRICS)):
        if value not in known:
            raise UsageError(name, f"must be one of {', '.join(known)}, got {value!r}")
    if not 0 < threshold <= 1:
        raise UsageError("threshold", f"must be a share above 0 and at most 1, got {threshold!r}")
    windows, maps, names = _tiles_of(tiles, images)
    numbers = np.arange(len(windows)) if records is None else np.asarray(records, np.int64)
    of_image: dict[Any, list[dict[str, NDArray[Any]]]] = {}
    sizes: dict[Any, tuple[int, int]] = {}
    given = list(predictions)
    if len(given) != len(numbers):
        raise UsageError("predictions", f"are of {len(given)} tiles, but there are {len(numbers)}", "pass records=")
    for number, prediction in zip(numbers.tolist(), given, strict=True):
        name, size = names[number], windows[number, 4:]
        sizes[name] = int(size[0]), int(size[1])
        of_image.setdefault(name, []).append(_moved(prediction, windows[number], maps[number]))
    found = {}
    for name, parts in of_image.items():
        if len({frozenset(part) for part in parts}) > 1:
            raise UsageError("predictions", "do not all have the same members", "give each tile the same ones")
        whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        groups = np.zeros(len(whole["labels"])) if class_agnostic else whole["labels"]
        found[name] = {**_merged(whole, groups, (method, metric, threshold)), "size": sizes[name]}
    return found


def _tiles_of(tiles: Any, images: Sequence[Any] | None) -> tuple[Int64, Float64, Sequence[Any]]:
    """Return of each tile its window, what maps it to that (a scale and a shift, of x and y), and its image's name."""
    if not hasattr(tiles, "column"):
        windows = np.asarray(tiles, np.int64).reshape(-1, 6)
        if images is None or len(images) != len(windows):
            raise UsageError("images", "must name the image of each window", "pass a list with a name for each")
        return windows, np.tile([1.0, 1, 0, 0], (len(windows), 1)), images
    rows = tiles.column(WINDOW)
    if not (rows.lengths == 6).all():
        raise UsageError("tiles", "is a pack of whole images", "build it with --tile")
    windows = np.asarray(rows.flat()).reshape(-1, 6).astype(np.int64)
    sides = np.stack([np.asarray(tiles.column(side)) for side in ("width", "height")], axis=1)
    return windows, _maps_of(tiles, windows[:, 2:4], sides), [os.fsdecode(bytes(path)) for path in tiles.column("path")]


def _maps_of(tiles: Any, cut: Int64, packed: Int64) -> Float64:
    """Return what undoes the resizing of each tile, from the sizes with which they were cut, and packed, (n, 2)."""
    resize = resize_of(getattr(tiles, "pack", tiles))
    sizes, of = np.unique(np.hstack([cut, packed]), axis=0, return_inverse=True)
    maps = np.hstack([sizes[:, :2] / sizes[:, 2:], np.zeros((len(sizes), 2))])
    for row, (width, height, *sides) in enumerate(sizes.tolist()):
        if resize is None:
            break
        its = resize.geometry(width, height)
        if [its.width, its.height] == sides:
            maps[row] = 1 / its.a, 1 / its.e, -its.c / its.a, -its.f / its.e
        elif resize.fit in ("pad", "crop"):
            problem = f"were resized more than once: {width}x{height} pixels became {sides[0]}x{sides[1]}"
            raise UsageError("tiles", problem, "pass their windows, and predictions in pixels of these")
    return maps[of.reshape(-1)]


def _moved(prediction: Mapping[str, Any], window: Int64, place: Float64) -> dict[str, NDArray[Any]]:
    """Return a prediction in pixels of the image."""
    found = {name: np.asarray(values) for name, values in prediction.items()}
    if missing := {"boxes", "scores", "labels"} - found.keys():
        raise UsageError("predictions", f"have no {min(missing)}", "give boxes, scores and labels")
    count = len(found["scores"])
    boxes = found["boxes"].astype(np.float64).reshape(-1, 4)
    if "masks" in found or len(boxes) != count or any(len(values) != count for values in found.values()):
        raise UsageError("predictions", "have another number of rows in each member, or masks", "leave masks out")
    scale, corner, size = place[:2], window[:2] + place[2:], window[4:].astype(np.float64)
    found["boxes"] = np.clip(boxes * np.tile(scale, 2) + np.tile(corner, 2), 0, np.tile(size, 2))
    for name in POINTS:
        if name in found:
            points = found[name].astype(np.float64)
            points[..., :2] = points[..., :2] * scale + corner
            found[name] = points
    return found


def _merged(
    whole: dict[str, NDArray[Any]], groups: NDArray[Any], how: tuple[str, str, float]
) -> dict[str, NDArray[Any]]:
    """Return the predictions that stay of those of an image; only those of one group are compared."""
    method, metric, threshold = how
    boxes, scores = whole["boxes"], whole["scores"]
    # ties by place, as SAHI has them
    order = np.lexsort((boxes[:, 3], boxes[:, 2], boxes[:, 1], boxes[:, 0], -scores.astype(np.float64)))
    taken, kept, result, labels = np.zeros(len(boxes), np.bool_), [], boxes.copy(), whole["labels"].copy()
    single = boxes.astype(np.float32)
    for place, number in enumerate(order.tolist()):
        if taken[number]:
            continue
        kept.append(number)
        if method == "none":
            continue
        others = order[place + 1 :]
        others = others[~taken[others] & (groups[others] == groups[number])]
        near = others[_overlaps(single[number], single[others], metric) >= np.float32(threshold)]
        taken[near] = True
        for other in near.tolist() if method == "merge" else ():
            if _overlaps(result[number], boxes[other : other + 1], metric)[0] >= threshold:
                low, high = np.minimum(result[number], boxes[other]), np.maximum(result[number], boxes[other])
                result[number] = [*low[:2], *high[2:]]
                labels[number] = labels[other] if scores[other] == scores[number] else labels[number]
    found = {name: values[kept] for name, values in whole.items()}
    found["boxes"], found["labels"] = result[kept], labels[kept]
    return found


def _overlaps(box: NDArray[Any], boxes: NDArray[Any], metric: str) -> NDArray[Any]:
    """Return by how much boxes (n, 4) overlap one, (n,)."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    inside = sides.clip(min=0).prod(axis=1)
    mine, its = (box[2] - box[0]) * (box[3] - box[1]), (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    base = np.minimum(mine, its) if metric == "ios" else mine + its - inside
    found: NDArray[Any] = np.divide(inside, base, out=np.zeros_like(inside), where=base > 0)
    return found
