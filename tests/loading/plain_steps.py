"""What `PackedLoader` does to a sample, written anew and plainly: a list of steps, each a function of the sample.

Pixels are sums of shares in float64, points are moved one by one. Nothing here is taken from packer. Another
augmentation is another function that returns a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from affine_reference import EDGE, bilinear, nearest

Item = dict[str, Any]
"""A sample on its way: image and right (height, width, channels), depth and mask (height, width), a list of each for
boxes, labels, polygons, keypoints, masks; landmarks; what no step changes."""
Step = Callable[[Item], Item]
BORDERS = {"image": 0, "right": 0, "depth": math.nan, "mask": 255, "masks": 0}
"""What has pixels, and what stands beside it."""
ANY = math.inf
"""A pixel that lies between two others: either may be taken."""
OF_BOXES = ("boxes", "labels", "polygons", "keypoints", "masks", "iscrowd", "ignored")


def crop(
    region: list[float], output: tuple[int, int], how: str, size: tuple[int, int], shared: bool, fill: float = 0
) -> Step:
    """`shared`: crops that shrink to half or less are made of an image that is averaged before, on its pixels."""
    x, w = settled(region[0], region[2], size[1], output[1])
    y, h = settled(region[1], region[3], size[0], output[0])
    factor, shrink = 1, min(w / output[1], h / output[0])
    if shared and how == "fast" and shrink >= 2 and x >= 0 and y >= 0 and x + w <= size[1] and y + h <= size[0]:
        by = 1 << int(math.log2(shrink))
        x, w = on_multiples(x, w, size[1], by)
        y, h = on_multiples(y, h, size[0], by)
        while min(w / output[1], h / output[0]) >= 2 * factor and not any(e % (2 * factor) for e in (x, y, w, h)):
            factor *= 2

    def step(item: Item) -> Item:
        made = moved(item, lambda px, py: ((px - x) * output[1] / w, (py - y) * output[0] / h))
        ways = {"image": how, "right": how, "depth": "linear", "mask": "below", "masks": "below"}
        for name in BORDERS.keys() & item.keys():
            by = factor if name == "image" else 1
            part = [edge / by for edge in (x, y, w, h)]
            each = item[name] if name == "masks" else [averaged(item[name], by)]
            border = fill if name in ("image", "right") else BORDERS[name]
            found = [cut(one, part, output, ways[name], border) for one in each]
            made[name] = found if name == "masks" else found[0]
        return made

    return step


def settled(start: float, extent: float, side: int, pixels: int) -> tuple[float, float]:
    """A region along an axis whose border, if the image ends in it, is whole pixels of the output."""
    begin, end = max(start, 0), min(start + extent, side)
    first, last = (round((edge - start) * pixels / extent) for edge in (begin, end))
    if (begin, end) == (start, start + extent) or last <= first:
        return start, extent
    step = (end - begin) / (last - first)
    return begin - first * step, step * pixels


def on_multiples(start: float, extent: float, side: int, by: int) -> tuple[float, float]:
    first, last = math.floor(start / by) * by, min(math.ceil((start + extent) / by), side // by) * by
    return first, last - first


def averaged(values: Any, by: int) -> Any:
    """An image whose pixels are the mean of `by` x `by`."""
    height, width = values.shape[0] // by, values.shape[1] // by
    blocks = values[: height * by, : width * by].reshape(height, by, width, by, *values.shape[2:])
    return blocks.mean(axis=(1, 3)) if by > 1 else values


def cut(values: Any, region: list[float], output: tuple[int, int], how: str, border: float) -> Any:
    """The part (x, y, width, height) of pixels at the size of the output, float64."""
    if how in ("area", "fast") and (max(region[0], 0) % 1 or max(region[1], 0) % 1):
        values, region = shifted(values, region), [0, 0, *region[2:]]
    (x, y, w, h), (height, width) = region, values.shape[:2]
    edges = max(x, 0), max(y, 0), min(x + w, width), min(y + h, height)
    alone = how != "bilinear" or all(edge == round(edge) for edge in edges)
    if how == "fast":
        how = "linear" if max(w / output[1], h / output[0]) <= 1.15 else "area"
    down, across = shares(y, h, height, output[0], how, alone), shares(x, w, width, output[1], how, alone)
    with np.errstate(invalid="ignore"):  # of what is unknown
        made = np.tensordot(across, np.tensordot(down, values.astype(float), 1), (1, 1)).swapaxes(0, 1)
    if how == "nearest":
        made[np.isnan(made)] = ANY
    seen = down.any(axis=1)[:, None] & across.any(axis=1)
    return np.where(seen.reshape(*seen.shape, *[1] * (values.ndim - 2)), made, border)


def shifted(values: Any, region: list[float]) -> Any:
    """The part (x, y, width, height) of pixels, of which the first begins at (x, y): each lies between two others."""
    for axis, (start, extent) in enumerate(((region[1], region[3]), (region[0], region[2]))):
        first, by = math.floor(start), start % 1
        places = np.arange(first, first + math.ceil(extent) + 1).clip(0, values.shape[axis] - 1)
        both = np.take(values.astype(float), places, axis)
        count = len(places) - 1
        values = (1 - by) * both.take(range(count), axis) + by * both.take(range(1, count + 1), axis)
    return values


@lru_cache(4096)
def shares(start: float, extent: float, side: int, pixels: int, how: str, alone: bool) -> Any:
    """(pixels, side): how much of each pixel of an axis is in each new one; nothing where that is beside the image."""
    found, step, k = np.zeros((pixels, side)), extent / pixels, np.arange(side)
    begin, end = max(start, 0), min(start + extent, side)
    for i in range(pixels):
        left, center = start + i * step, start + (i + 0.5) * step
        if not begin <= center < end:
            continue
        if how in ("nearest", "below"):
            its = (k == math.floor(center + 1e-6)) * 1.0
            if how == "nearest" and abs(center - round(center)) < 1e-6:  # OpenCV may take either of the two
                its *= math.nan
        elif how == "area" and step > 1:
            its = np.clip(np.minimum(left + step, k + 1) - np.maximum(left, k), 0, None)
        else:
            its = np.clip(1 - np.abs(k + 0.5 - center) / (max(step, 1) if how == "bilinear" else 1), 0, None)
            its = its * ((k >= math.floor(begin)) & (k < math.ceil(end)) | (not alone))
        found[i] = its / its.sum()
    return found


def moved(item: Item, point: Callable[[float, float], tuple[float, float]]) -> Item:
    """All points of a sample moved; a box is that around its corners."""
    made = dict(item)
    for name in {"polygons", "keypoints"} & item.keys():
        made[name] = [[(*point(x, y), *rest) for x, y, *rest in one] for one in item[name]]
    if "landmarks" in item:
        made["landmarks"] = [point(x, y) for x, y in item["landmarks"]]
    if "boxes" in item:
        corners = [[point(x, y) for x in (x1, x2) for y in (y1, y2)] for x1, y1, x2, y2 in item["boxes"]]
        made["boxes"] = [(*np.min(four, axis=0), *np.max(four, axis=0)) for four in corners]
    return made


def turned(item: Item, pixels: Callable[[Any], Any], point: Any, flip_index: Any = None) -> Item:
    """All pixels and points of a sample; in a mirror image, left and right points change places."""
    made = moved(item, point)
    for name in BORDERS.keys() & item.keys():
        made[name] = [pixels(one) for one in item[name]] if name == "masks" else pixels(item[name])
    if flip_index is not None:
        made["landmarks"] = [made["landmarks"][i] for i in flip_index] if made["landmarks"] else []
        made["keypoints"] = [[one[i] for i in flip_index] for one in made["keypoints"]]
    return made


def flipped(flip_index: Any) -> Step:
    return lambda item: turned(
        item, lambda pixels: pixels[:, ::-1], lambda x, y: (item["image"].shape[1] - x, y), flip_index
    )


def upended(flip_index: Any) -> Step:
    return lambda item: turned(
        item, lambda pixels: pixels[::-1], lambda x, y: (x, item["image"].shape[0] - y), flip_index
    )


def quarter(item: Item) -> Item:
    """A turn by 90 degrees, counterclockwise."""
    return turned(item, np.rot90, lambda x, y: (y, item["image"].shape[1] - x))


def warped(its_map: Any, fill: float) -> Step:
    """A rotation and whatever else an affine map does; ids are single ones, and so are the values of maps."""

    def step(item: Item) -> Item:
        made = moved(item, lambda x, y: tuple(its_map @ (x, y, 1)))
        for name in BORDERS.keys() & item.keys():
            if name in ("image", "right"):
                with np.errstate(invalid="ignore"):
                    found = bilinear(item[name].astype(float), its_map, fill if name == "image" else 0)
                made[name] = np.where(np.isfinite(found), found, ANY)
            elif name == "masks":
                made[name] = [single(one, its_map, 0) for one in item[name]]
            else:
                made[name] = single(item[name], its_map, BORDERS[name])
        return made

    return step


def single(values: Any, its_map: Any, border: float) -> Any:
    """Each pixel is that at its center, or either of two that differ."""
    found, certain = nearest(values.astype(float), its_map, border)
    if certain.all():
        return found
    corners = [(x, y) for x in (-EDGE, EDGE) for y in (-EDGE, EDGE)]
    beside = [np.column_stack([its_map[:, :2], its_map[:, 2] + 2 * its_map[:, :2] @ corner]) for corner in corners]
    others = [nearest(values.astype(float), one, border)[0] for one in beside]
    return np.where(certain | np.all([np.nan_to_num(one) == np.nan_to_num(found) for one in others], 0), found, ANY)


def cut_off(size: tuple[int, int], min_area: float, min_visible: float, hide_outside: bool) -> Step:
    """Cut boxes and polygons at the edges; drop the objects of which too little is left; hide keypoints outside."""
    height, width = size

    def step(item: Item) -> Item:
        made, keep = dict(item), []
        if "boxes" not in item:
            return made
        limits = (width, height, width, height)
        made["boxes"] = [[min(max(v, 0), top) for v, top in zip(box, limits, strict=True)] for box in item["boxes"]]
        whole = item.get("polygons", [()] * len(item["boxes"]))
        left = [inside(polygon, width, height) for polygon in whole]
        if "polygons" in item:
            made["polygons"] = left
        for box, (x1, y1, x2, y2), before, after in zip(item["boxes"], made["boxes"], whole, left, strict=True):
            gone = len(before) > 0 and (not after or area(after) < 0.01 <= area(before))
            least = max(min_area, min_visible * (box[2] - box[0]) * (box[3] - box[1]))
            keep.append(min(x2 - x1, y2 - y1) > 1e-3 and (x2 - x1) * (y2 - y1) >= least and not gone)
        made["keypoints"] = [
            [
                (x, y, v if not hide_outside or (-1e-3 <= x <= width + 1e-3 and -1e-3 <= y <= height + 1e-3) else 0)
                for x, y, v in one
            ]
            for one in item["keypoints"]
        ]
        for name in {*OF_BOXES} & made.keys():
            made[name] = [one for one, kept in zip(made[name], keep, strict=True) if kept]
        return made

    return step


def inside(polygon: list[Any], width: float, height: float) -> list[Any]:
    """What of a polygon is in the image, one edge of it after the other (Sutherland and Hodgman)."""
    for axis, limit, sign in ((0, 0, 1), (0, width, -1), (1, 0, 1), (1, height, -1)):
        depth = [sign * (point[axis] - limit) for point in polygon]
        left = []
        for i, point in enumerate(polygon):
            if (depth[i - 1] >= 0) != (depth[i] >= 0):
                share = depth[i - 1] / (depth[i - 1] - depth[i])
                left.append([a + (b - a) * share for a, b in zip(polygon[i - 1], point, strict=True)])
            if depth[i] >= 0:
                left.append(point)
        polygon = left
    return polygon if len(polygon) >= 3 else []


def area(polygon: list[Any]) -> float:
    pairs = zip(polygon, [*polygon[1:], *polygon[:1]], strict=True)
    return abs(sum(a[0] * b[1] - a[1] * b[0] for a, b in pairs)) / 2


def with_objects_of(item: Item, other: Item, chances: list[float]) -> Item:
    """Objects of another image are pasted into one, by their chances, unless they hide too much of a box."""
    made, height, width = dict(item), *item["image"].shape[:2]
    kept, sure, maybe = [], np.zeros((height, width), bool), np.zeros((height, width), bool)
    for i, (box, crowd, chance) in enumerate(zip(other["boxes"], other["iscrowd"], chances, strict=True)):
        outline = other["masks"][i] if "masks" in other else drawn(other["polygons"][i], height, width)
        free = all(overlap(box, one) < 0.3 * overlap(one, one) for one in item["boxes"])
        kept.append(free and not crowd and chance < 0.5 and bool((outline != 0).any()))
        if kept[-1]:
            sure, maybe = sure | (outline == 1), maybe | (outline == ANY)
    for name in BORDERS.keys() & item.keys() - {"masks"}:
        more = (..., *[None] * (item[name].ndim - 2))
        values = np.where(sure[more], other[name], item[name])
        made[name] = np.where((maybe & ~sure)[more], ANY, values)
    if "masks" in item:
        made["masks"] = [np.where(sure, 0, np.where(maybe & (one != 0), ANY, one)) for one in item["masks"]]
    for name in {*OF_BOXES} & item.keys():
        made[name] = [*made[name], *(one for one, its in zip(other[name], kept, strict=True) if its)]
    return made


def overlap(box: Any, other: Any) -> float:
    """The area that two boxes have in common."""
    across, down = (min(box[i + 2], other[i + 2]) - max(box[i], other[i]) for i in (0, 1))
    return max(across, 0) * max(down, 0)


def drawn(polygon: list[Any], height: int, width: int) -> Any:
    """The pixels of a polygon, 1 in (height, width), as OpenCV draws it in sixteenths of pixels."""
    mask = np.zeros((height, width), np.uint8)
    if polygon:
        cv2.fillPoly(mask, [np.rint((np.array(polygon, float) - 0.5) * 16).astype(np.int32)], 1, cv2.LINE_8, 4)
    return mask


def blended(item: Item, other: Item, share: float) -> Item:
    """Two images in one, with the objects of both; what is not blended is that of the larger share."""
    made = dict(item)
    for name in BORDERS.keys() & item.keys() - {"masks", "image"}:
        made[name] = item[name] if share >= 0.5 else other[name]
    made["image"] = share * item["image"].astype(float) + (1 - share) * other["image"]
    for name in {*OF_BOXES} & item.keys():
        made[name] = [*item[name], *other[name]]
    return made
