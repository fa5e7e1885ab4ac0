"""What `PackedLoader` makes of several images with `Mosaic`, written anew and plainly, one image after another.

The places of the images are those of `mosaic_reference`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mosaic_reference import Matrix, Place
from plain_steps import BORDERS, OF_BOXES, Item, Step, cut, cut_off, moved, warped

from packer import Mosaic

MAGNIFIED = 2
"""Up to this scale, whole pixels of an image are shown."""
WAYS = {"depth": "linear", "mask": "below", "masks": "below"}


def matrix_of(turns: list[Step], size: int) -> Matrix:
    """The map of some flips and turns of an image of this side, (3, 3)."""
    corners = [(0, 0), (1, 0), (0, 1)]
    item: Item = {"image": np.zeros((size, size)), "polygons": [corners], "landmarks": [], "keypoints": []}
    for turn in turns:
        item = turn(item)
    zero, across, down = np.array(item["polygons"][0], float)
    return np.vstack([np.stack([across - zero, down - zero, zero], axis=1), [0, 0, 1]])


def mosaic(tiles: list[tuple[Item, Place]], crop: Mosaic, warp: Matrix, hide_outside: bool) -> Item:
    """Images at places of a canvas of twice the side, and what is shown of it before flips and turns.

    `warp`, (3, 3), moves the middle of the canvas. If it turns nothing, images are drawn where they are shown; else on
    the canvas, whose pixels are moved then.
    """
    size, low = crop.size, crop.size // 2
    shown = warp @ np.array([[1, 0, -low], [0, 1, -low], [0, 0, 1.0]])
    direct = max(abs(warp[0, 1]), abs(warp[1, 0])) < 1e-9
    side, onto = (size, shown) if direct else (2 * size, np.eye(3))
    drawn = [_drawn(item, place, crop, onto, side, hide_outside) for item, place in tiles]
    made, borders = drawn[0] | {}, BORDERS | {"image": crop.fill}
    for name in BORDERS.keys() & made.keys() - {"masks"}:
        made[name] = np.full((side, side, *made[name].shape[2:]), borders[name], float)
        for one in drawn:
            made[name][one["where"]] = one[name]
    for name in {*OF_BOXES} & made.keys() - {"masks"}:
        made[name] = [value for one in drawn for value in one[name]]
    if "masks" in made:
        made["masks"] = [
            _hidden(mask, one["where"], [later["where"] for later in drawn[number + 1 :]], side)
            for number, one in enumerate(drawn)
            for mask in one["masks"]
        ]
    del made["where"]
    if direct:
        return made
    made = warped(shown[:2], crop.fill)(made)
    for name in BORDERS.keys() & made.keys():
        pixels = made[name]
        made[name] = [one[:size, :size] for one in pixels] if name == "masks" else pixels[:size, :size]
    return made


def _hidden(mask: Any, where: Any, later: list[Any], side: int) -> Any:
    """A mask of an object where it is drawn, without what later images hide."""
    made = np.zeros((side, side))
    made[where] = mask
    for one in later:
        made[one] = 0
    return made


def _drawn(item: Item, place: Place, crop: Mosaic, onto: Matrix, side: int, hide_outside: bool) -> Item:
    """What is shown of an image, its labels where that is drawn, and "where" that is, in an image of this side."""
    (height, width), (left, top, wide, high), canvas = item["image"].shape[:2], place, 2 * crop.size
    scales = np.diag([wide / width, high / height, 1])
    to_canvas = np.array([[1, 0, left], [0, 1, top], [0, 0, 1]]) @ scales
    its_map = onto @ np.array([[1, 0, left], [0, 1, top], [0, 0, 1]])
    x, w, first, last = _settled(its_map[0, 0], its_map[0, 2], max(-left, 0), min(canvas - left, wide), wide, side)
    y, h, above, below = _settled(its_map[1, 1], its_map[1, 2], max(-top, 0), min(canvas - top, high), high, side)
    size = below - above, last - first
    found = cut_off((canvas, canvas), 0, 0, hide_outside)(moved(item, lambda *at: tuple((to_canvas @ (*at, 1))[:2])))
    if not all(size):
        size = 0, 0
        found |= {name: [] for name in {*OF_BOXES} & found.keys()}
    else:
        across, down = size[1] / w, size[0] / h
        its_map = np.array([[across, 0, first - x * across], [0, down, above - y * down], [0, 0, 1]])
    back = its_map @ scales @ np.linalg.inv(to_canvas)
    found = moved(found, lambda *at: tuple((back @ (*at, 1))[:2]))
    region = [x * width / wide, y * height / high, w * width / wide, h * height / high]
    for name in BORDERS.keys() & item.keys() if all(size) else ():
        how = WAYS.get(name, crop.interpolation)
        found[name] = [cut(one, region, size, how, 0) for one in (found[name] if name == "masks" else [found[name]])]
        found[name] = found[name] if name == "masks" else found[name][0]
    if all(size):
        found["image"] = _in_two_steps(item["image"], (high, wide), [x, y, w, h], size, crop.interpolation)
    else:
        found |= {name: found[name][:0, :0] for name in BORDERS.keys() & item.keys() - {"masks"}}
    return found | {"where": np.s_[above : above + size[0], first : first + size[1]]}


def _in_two_steps(image: Any, resized: tuple[int, int], part: list[float], size: tuple[int, int], how: str) -> Any:
    """An image at its size on the canvas, then the part (x, y, width, height) of that."""
    height, width = image.shape[:2]
    whole = image if (height, width) == resized else np.rint(cut(image, [0, 0, width, height], resized, how, 0))
    return (
        cut(whole, [round(one) for one in part], size, "linear", 0) if how == "fast" else cut(whole, part, size, how, 0)
    )


def _settled(
    scale: float, shift: float, begin: float, end: float, side: int, pixels: int
) -> tuple[float, float, int, int]:
    """What of an axis is shown, and in which whole pixels: start, extent, first, last; these are equal for nothing."""
    first, last = (round(min(max(edge * scale + shift, 0), pixels)) for edge in (begin, end))
    if last <= first or end <= begin:
        return 0, side, 0, 0
    start, stop = (min(max((edge - shift) / scale, begin), end) for edge in (first, last))
    if scale <= MAGNIFIED:
        start = min(max(round(start), 0), side - 1)
        stop = min(max(round(stop), start + 1), side)
    return start, stop - start, first, last
