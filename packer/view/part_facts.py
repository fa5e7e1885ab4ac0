"""What the page gets of the parts of a record besides its image, and of the masks of its objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from packer.errors import printable
from packer.format.pack import Pack
from packer.format.sidecar_list import attached
from packer.images.opencv import cv2
from packer.images.parts import BY_KIND
from packer.model.annotation import Annotation, Mask, MaskFacts, PartSpec
from packer.model.fields import INSTANCES
from packer.model.geometry import is_known, nearest
from packer.model.rle import lengths_of, write
from packer.view.pictures import (
    BAR_URI,
    EXACT_PIXELS,
    LARGEST_SIDE,
    MOST_COLORS,
    data_uri,
    map_uri,
    overlay_uri,
    shrink,
)
from packer.view.predicted import differences
from packer.view.windows import INNER, ValueWindow

MOST_DRAWN = 300
"""Maximum number of boxes drawn in an image; more would only hide it."""
MOST_CHARACTERS = 10_000
"""Maximum length of a text."""
TILE_SIDE = 256
"""Longer side at most of what is laid over a tile."""
Region = tuple[int, int, int, int]
"""A part of an image: x, y, width and height in pixels."""


def specs_of(pack: Pack) -> list[PartSpec]:
    """Return the specs of the parts of a pack, and of what is attached to it; fingerprints are shown as figures."""
    return [*pack.manifest.part_specs, *(pack.sidecars[name].spec for name in attached(pack.sidecars))]


def part_facts(
    pack: Pack, record: int, side: int, region: Region | None = None, colors: ValueWindow = INNER
) -> dict[str, Any]:
    """Return what is shown of the parts of a record besides its image, or of a region of them; {} if there is nothing.

    Returns:
        ``parts``: of each its name, ``as`` what the page shows it, and what `SHOWN` makes of it.
    """
    specs = [spec for spec in specs_of(pack) if spec.kind in SHOWN]
    if side <= TILE_SIDE:
        specs = [spec for spec in specs if SHOWN[spec.kind].in_tiles]
    values = ((spec, pack.part(record, spec.name)) for spec in specs)
    return _parts(chain(values, differences(pack, record)), side, region, colors)


def _parts(
    values: Iterable[tuple[PartSpec, Any]], side: int, region: Region | None = None, colors: ValueWindow = INNER
) -> dict[str, Any]:
    x, y, width, height = region or (0, 0, 1 << 30, 1 << 30)
    parts = []
    for spec, value in values:
        if value is not None:
            shown = value[y : y + height, x : x + width] if BY_KIND[spec.kind].of_pixels else value
            row = SHOWN[spec.kind]
            made = map_facts(shown, spec, side, colors) if spec.kind == "map" else row.facts_of(shown, spec, side)
            parts.append({"name": spec.name, "as": row.shown_as, **made})
    return {"parts": parts} if parts else {}


def mask_facts(mask: Mask, spec: PartSpec, side: int) -> dict[str, Any]:
    """Return the picture of a mask, and its ids: [id, name, per cent of the pixels], the largest first."""
    facts, counts = MaskFacts(spec.dtype, spec.classes, spec.ignore), np.bincount(mask.ravel())
    ids = sorted(np.flatnonzero(counts).tolist(), key=lambda i: -counts[i])
    others = ids[MOST_COLORS:]
    shares = [*counts[ids[:MOST_COLORS]].tolist(), *([int(counts[others].sum())] if others else [])]
    rows = [*legend_of(facts, ids[:MOST_COLORS]), *([[-1, f"{len(others)} other ids"]] if others else [])]
    return {
        "picture": overlay_uri(mask, ids[:MOST_COLORS], facts, side),
        "legend": [[*row, round(100 * share / mask.size, 2)] for row, share in zip(rows, shares, strict=True)],
        "ignore": facts.ignore,
    }


def legend_of(facts: MaskFacts, ids: Sequence[int] | None = None) -> list[list[Any]]:
    """Return ids with their names, [id, name]; all that have a name by default."""
    named = dict(enumerate(facts.classes)) | ({} if facts.ignore is None else {facts.ignore: "ignored"})
    return [[i, printable(named.get(i, str(i)))] for i in (named if ids is None else ids)]


def map_facts(value: Any, spec: PartSpec, side: int, colors: ValueWindow = INNER) -> dict[str, Any]:
    """Return the picture of a map of numbers, the first of its channels, and what its colors mean."""
    first = value if value.ndim == 2 else value[..., 0]
    picture, (low, high) = map_uri(first, spec.ignore, side, colors)
    if side <= TILE_SIDE:
        return {"picture": picture, "legend": []}
    known = first[is_known(first, spec.ignore)]
    rows = [["unknown", f"{1 - known.size / first.size:.2%}"], ["dtype", str(value.dtype)]]
    if known.size:
        rows.insert(0, ["lowest, median, highest", _numbers_text([known.min(), np.median(known), known.max()])])
    if spec.channels > 1:
        rows.append(["shown", f"channel 1 of {spec.channels}"])
    return {"picture": picture, "legend": [], "bar": BAR_URI, "ends": [f"{low:.5g}", f"{high:.5g}"], "rows": rows}


def _picture_facts(value: Any, spec: PartSpec, side: int) -> dict[str, Any]:
    if side == LARGEST_SIDE:
        return {"picture": data_uri(value, EXACT_PIXELS)}
    height, width = value.shape[:2]
    return {"picture": data_uri(shrink(height, width, side).apply(value) if max(height, width) > side else value)}


def _array_facts(value: Any, spec: PartSpec, side: int) -> dict[str, Any]:
    rows = [["shape, dtype", f"{list(value.shape)}, {value.dtype}"]]
    known = value[np.isfinite(value)]
    if known.size and value.dtype.kind != "c":
        rows.append(["lowest, mean, highest", _numbers_text([known.min(), known.mean(dtype=np.float64), known.max()])])
    return {"rows": rows}


def _numbers_text(values: Iterable[Any]) -> str:
    return ", ".join(f"{float(value):.5g}" for value in values)


def _text_facts(value: Any, spec: PartSpec, side: int) -> dict[str, Any]:
    texts = value if isinstance(value, list) else [value]
    if texts and all(isinstance(one, str) for one in texts):
        return {"texts": [_cut(one) for one in texts[:MOST_DRAWN]]}
    return {"code": _cut(json.dumps(value, ensure_ascii=False, indent=2))}


def _cut(text: str) -> str:
    """Return lines of a text without control characters."""
    more = f"\n... and {len(text) - MOST_CHARACTERS:,} more characters" if len(text) > MOST_CHARACTERS else ""
    return "\n".join(map(printable, text[:MOST_CHARACTERS].splitlines())) + more


class Shown(NamedTuple):
    """How a kind of parts is shown."""

    shown_as: str
    """What the page does with it: lay it over the image, put it beside it, or write it."""
    facts_of: Callable[[Any, PartSpec, int], dict[str, Any]]
    """Makes what the page gets of a value, its spec and the longer side of pictures."""
    in_tiles: bool = True
    """Whether tiles show it, too."""


SHOWN = {
    "mask": Shown("overlay", mask_facts),
    "map": Shown("overlay", map_facts),
    "image": Shown("beside", _picture_facts),
    "array": Shown("written", _array_facts, in_tiles=False),
    "text": Shown("written", _text_facts),
    "json": Shown("written", _text_facts),
}
"""Kind of a part -> how it is shown."""
OVERLAYS = [kind for kind, row in SHOWN.items() if row.shown_as == "overlay"]


def outline_facts(
    pack: Pack, record: int, annotation: Annotation, side: int, region: Region | None = None
) -> dict[str, Any]:
    """Return the ``outlines`` of objects with masks, or of what a region shows of them: [path, whether it is a crowd].

    Raises:
        DamagedPack: A mask is damaged.
    """
    if annotation.rles is None:
        return {}
    height, width, _ = pack.reader.shape_of(record)
    x, y, across, down = region or (0, 0, width, height)
    share = min(1.0, side / max(across, down))
    columns = nearest(across, max(1, round(across * share)), x)
    rows = nearest(down, max(1, round(down * share)), y)
    try:
        lengths = lengths_of(annotation.rles[:MOST_DRAWN], height * width)
    except ValueError as error:
        raise pack.reader.damage_error(record, f"has a mask of an object that is damaged: {error}") from None
    outlines = []
    for one, crowd in zip(lengths, chain(annotation.box_fields.get("iscrowd", ()), repeat(0)), strict=False):
        mask = np.zeros((len(rows), len(columns)), np.uint8)
        write(one, (height, width), rows, columns, mask)
        outlines.append([_outline(mask, (across / len(columns), down / len(rows))), bool(crowd)])
    return {"outlines": outlines}


def _outline(mask: Mask, scale: tuple[float, float] = (1.0, 1.0)) -> str:
    """Return the path (SVG) through the outermost pixels of a mask, and around its holes."""
    contours, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    points = [np.round((contour[:, 0] + 0.5) * scale, 1).tolist() for contour in contours]
    return "".join("M" + "L".join(f"{x:g} {y:g}" for x, y in one) + "Z" for one in points)


def target_parts(target: Mapping[str, Any], specs: Sequence[PartSpec]) -> dict[str, Any]:
    """Return what is shown of the parts in the target of one sample of a batch, and of the masks of its objects."""
    masks = target.get(INSTANCES.target, ())[:MOST_DRAWN]
    outlines = {"outlines": [[_outline(np.asarray(mask)), False] for mask in masks]} if len(masks) else {}
    there = [spec for spec in specs if spec.kind in SHOWN and target.get(spec.name) is not None]
    return outlines | _parts(((spec, _of_target(target[spec.name], spec)) for spec in there), LARGEST_SIDE)


def _of_target(value: Any, spec: PartSpec) -> Any:
    """Return a part of a target as packs have it: pixels (height, width, channels) and of the dtype."""
    if not BY_KIND[spec.kind].of_pixels:
        return np.asarray(value) if spec.kind == "array" else value
    pixels = np.asarray(value).astype(spec.dtype)
    return np.ascontiguousarray(pixels.transpose(1, 2, 0)) if pixels.ndim == 3 else pixels
