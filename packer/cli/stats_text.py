"""What `packer stats` prints: sizes, classes, boxes, masks, equal images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from packer.cli.output import table_text
from packer.errors import plural, printable

if TYPE_CHECKING:
    from packer.stats import BoxStats, ClassCounts, InstanceClass, MaskStats, PackStats, PartStats, SizeStats, Spread

SHOWN_CLASSES = 30
SHOWN_GROUPS = 10


def stats_lines(found: PackStats) -> Iterator[str]:
    """Return the lines of the report."""
    yield f"{printable(found.path)}: {plural(found.records, 'record')}"
    for counts in found.classes:
        yield ""
        yield from _classes(counts)
    yield ""
    yield from table_text([HEAD, *_rows(found)], right=range(1, len(HEAD)))
    yield ""
    yield from _common(found.sizes)
    if found.boxes is not None:
        yield from _boxes(found.boxes)
    if found.keypoints is not None:
        values = ", ".join(f"{value:g} ({many:,})" for value, many in found.keypoints.visibility[:SHOWN_GROUPS])
        yield f"visibility {values} of keypoints; COCO writes 0 not labelled, 1 hidden, 2 visible"
    for one in found.values:
        missing = f"; {plural(one.without, 'image')} without" if one.without else ""
        quantiles = ", ".join(f"{name} {_number(number)}" for name, number in one.quantiles.items())
        yield f"{one.name:<10} {quantiles}{missing}"
    for channels in found.channels:
        images = f"{plural(channels.images, 'image')} of {plural(channels.channels, f'{channels.dtype} channel')}"
        yield f"pixels     {images}, {plural(channels.pixels, 'pixel')} of equal weight, scaled to 0..1:"
        yield f"           mean=({_numbers(channels.mean)}), std=({_numbers(channels.std)})"
    if found.channels and found.padded:
        yield "           includes the padding of --fit pad"
    for masks in found.masks:
        yield ""
        yield from _masks(masks)
        yield ""
    if found.instances:
        yield ""
        yield from _instances(found.instances)
    yield from map(_part, found.parts)
    yield from _duplicates(found)


def _instances(found: Sequence[InstanceClass]) -> Iterator[str]:
    """Return the lines of the table of masks of objects."""
    rows = [
        (str(one.id), printable(one.name), f"{one.masks:,}", *(f"{area:,.0f}" for area in one.areas[::2]))
        for one in found
    ]
    head = ("id", "class", "masks of objects", "pixels: p10", "p50", "p90")
    yield from table_text([head, *rows], right=(0, *range(2, len(head))))
    yield ""


MASK_HEAD = ("id", "class", "pixels", "% of pixels", "images", "% of images", "% of image: p10", "p50", "p90")


def _masks(found: MaskStats) -> Iterator[str]:
    """Return the lines of the table of classes in masks."""
    rows = [
        (
            str(one.id), printable(one.name), f"{one.pixels:,}", f"{100 * one.pixels / max(1, found.pixels):.2f}",
            f"{one.images:,}", f"{100 * one.images / max(1, found.masks):.1f}",
            *([f"{100 * share:.2f}" for share in one.shares[::2]] or [""] * 3),
        )
        for one in found.classes
    ]  # fmt: skip
    ignored = f", {100 * found.ignored / max(1, found.pixels):.2f} % of the pixels ignored" if found.ignored else ""
    yield f"{found.part}: of {plural(found.masks, 'image')}{ignored}"
    yield from table_text([MASK_HEAD, *rows], right=(0, *range(2, len(MASK_HEAD))))


def _part(found: PartStats) -> str:
    """Return the line of maps or texts."""
    unknown = f", {100 * found.unknown:.2f} % of the values unknown" if found.unknown else ""
    of = plural(found.count, found.kind) + f" ({found.read:,} read)" * (found.read < found.count) + unknown
    low, first, _, median, _, last, high = map(_number, found.quantiles or (0,) * 7)
    what = "characters, " * (found.kind == "text")
    return f"{found.part:<10} {of}: {what}lowest {low}, p10 {first}, p50 {median}, p90 {last}, highest {high}"


HEAD = ("", "count", "lowest", "median", "mean", "highest")


def _rows(found: PackStats) -> Iterator[tuple[str, ...]]:
    sizes = found.sizes
    yield _row("image width, px", sizes.width)
    yield _row("image height, px", sizes.height)
    yield _row("image width / height", sizes.aspect)
    yield _row("bytes per record", sizes.record_bytes)
    if (boxes := found.boxes) is not None:
        yield _row("boxes per image", boxes.per_image)
        if boxes.boxes:
            yield _row("box width, px", boxes.width)
            yield _row("box height, px", boxes.height)
            yield _row("box width / height", boxes.aspect)
            yield _row("box area / image area", boxes.area_share)
    if found.landmarks is not None:
        yield _row("landmarks per image", found.landmarks)
    if found.keypoints is not None:
        yield _row("keypoints per box", found.keypoints.per_box)
    yield from (_row(one.name, one.spread) for one in found.values)


def _row(name: str, spread: Spread) -> tuple[str, ...]:
    numbers = (spread.lowest, spread.median, spread.mean, spread.highest)
    return name, f"{spread.count:,}", *(_number(number) for number in numbers)


def _number(number: float) -> str:
    if number == int(number):
        return f"{int(number):,}"
    return f"{number:,.1f}" if abs(number) >= 100 else f"{number:.4g}"


def _classes(counts: ClassCounts) -> Iterator[str]:
    total = sum(counts.counts)
    order = sorted(range(len(counts.counts)), key=lambda i: (-counts.counts[i], i))
    rows = [
        (
            str(i),
            printable(counts.names[i]),
            f"{counts.counts[i]:,}",
            f"{counts.counts[i] / total:.1%}" if total else "",
        )
        for i in order[:SHOWN_CLASSES]
    ]
    yield from table_text([("id", "class", counts.of, "share"), *rows], right=(0, 2, 3))
    if len(order) > SHOWN_CLASSES:
        yield f"... and {len(order) - SHOWN_CLASSES} more (--json lists all)"
    parts = [plural(len(counts.names), "class")]
    if counts.imbalance is not None:
        parts.append(f"class imbalance {counts.imbalance:,.1f} : 1")
    if counts.empty:
        parts.append(f"{len(counts.empty)} without any: {', '.join(map(printable, counts.empty[:SHOWN_GROUPS]))}")
    if counts.unlabelled:
        one = "box" if counts.of == "boxes" else "image"
        parts.append(f"{plural(counts.unlabelled, one)} without class")
    yield "; ".join(parts)


def _common(sizes: SizeStats) -> Iterator[str]:
    common = ", ".join(f"{width}x{height} ({images:,})" for width, height, images in sizes.common)
    more = f" and {sizes.distinct - len(sizes.common):,} more" if sizes.distinct > len(sizes.common) else ""
    yield f"sizes      {common}{more}"


def _boxes(boxes: BoxStats) -> Iterator[str]:
    yield (
        f"boxes      {boxes.small:,} small (below 32x32 px), {boxes.medium:,} medium, {boxes.large:,} large "
        f"(96x96 and more), as COCO counts"
    )
    if boxes.images_without:
        yield f"           {plural(boxes.images_without, 'image')} without a box"
    if boxes.empty:
        yield f"           {plural(boxes.empty, 'box')} without area"
    if boxes.ignored:
        yield f"           {plural(boxes.ignored, 'ignored region')} among them"


def _numbers(values: tuple[float, ...]) -> str:
    """Return the items of a Python tuple; a single number has a trailing comma."""
    text = ", ".join(f"{value:.6f}" for value in values)
    return f"{text}," if len(values) == 1 else text


def _duplicates(found: PackStats) -> Iterator[str]:
    same = found.duplicates
    if same.groups:
        repeated = plural(same.groups, "file is", "files are")
        yield f"duplicates {plural(same.surplus, 'record')} too many: {repeated} packed more than once"
        for group in same.listed[:SHOWN_GROUPS]:
            yield f"           {_places(group)}"
        if same.groups > SHOWN_GROUPS:
            yield f"           ... and {same.groups - SHOWN_GROUPS:,} more (--json lists {len(same.listed):,})"
    else:
        yield "duplicates none: all records are from files with different bytes"
    if (both := found.leaks) is None:
        return
    if found.other_ids:
        ids = [f"{printable(name)} {here} (there {there})" for name, (here, there) in found.other_ids.items()]
        more = f" and {len(ids) - SHOWN_GROUPS:,} more" if len(ids) > SHOWN_GROUPS else ""
        yield f"class ids  differ from those of {printable(both.path)}: {', '.join(ids[:SHOWN_GROUPS])}{more}"
    yield f"in both    {plural(both.records, 'record is', 'records are')} also in {printable(both.path)}"
    for ours, theirs in both.listed[:SHOWN_GROUPS]:
        yield f"           {_places(ours)} = {_places(theirs)}"
    if len(both.listed) > SHOWN_GROUPS:
        yield f"           ... and {len(both.listed) - SHOWN_GROUPS:,} more (--json lists {len(both.listed):,})"


def _places(group: tuple[Any, ...]) -> str:
    names = [f"{place.key} ({printable(place.path)})" for place in group[:4]]
    return ", ".join(names) + (f" and {len(group) - 4} more" if len(group) > 4 else "")
