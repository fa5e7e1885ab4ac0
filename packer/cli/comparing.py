"""What `packer stats --compare` prints: how good predictions are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from packer.cli.output import table_text
from packer.errors import plural, printable

if TYPE_CHECKING:
    from packer.stats.comparison import ComparedClass, Comparison

SHOWN_CLASSES = 30
SHOWN_PAIRS = 10
BACKGROUND = "(nothing)"
UNITS = {"boxes": "box", "labels": "image", "mask": "pixel"}


def compared_lines(found: Comparison) -> Iterator[str]:
    """Return the lines of a comparison."""
    unit = UNITS[found.kind]
    units = "boxes" if unit == "box" else f"{unit}s"
    yield f"{found.name}: {plural(found.labels, f'labelled {unit}', f'labelled {units}')} in {found.records:,} records"
    if found.average is not None:
        of = found.average
        yield f"mAP {of.ap:.4f}, mAP50 {of.ap50:.4f}, mAP75 {of.ap75:.4f}, AR {of.ar:.4f} ({of.evaluator})"
    if found.mean_iou is not None:
        yield f"mean IoU {found.mean_iou:.4f}, accuracy of pixels {found.accuracy or 0:.4f}"
    elif found.accuracy is not None:
        yield f"accuracy {found.accuracy:.4f}" + ("" if found.top5 is None else f", top 5 {found.top5:.4f}")
    if found.kind == "boxes":
        yield (
            f"precision {found.precision:.4f}, recall {found.recall:.4f}, F1 {found.f1:.4f} of "
            + plural(found.predicted, "box", "boxes")
            + f" with confidence {found.confidence:g} or more, at IoU {found.iou:g}"
        )
        errors = found.errors or {}
        counts = ", ".join(f"{count:,} {kind.replace('-', ' ')}" for kind, count in errors.items())
        yield f"{found.correct:,} correct; {counts}"
    for note in found.notes:
        yield f"note: {note}"
    yield ""
    yield from _classes(found)
    yield from _pairs(found)


def _classes(found: Comparison) -> Iterator[str]:
    there = sorted((one for one in found.classes if one.labels or one.predicted), key=lambda one: -one.labels)
    heads = ["class", "labels", "predicted", "precision", "recall", "F1"]
    heads += {"boxes": ["AP", "AP50"] if found.average else [], "mask": ["IoU"]}.get(found.kind, [])
    rows = [heads, *(_row(one, len(heads)) for one in there[:SHOWN_CLASSES])]
    yield from table_text(rows, right=range(1, len(heads)))
    if len(there) > SHOWN_CLASSES:
        yield f"... and {plural(len(there) - SHOWN_CLASSES, 'class', 'classes')} more: --json has all"


def _row(one: ComparedClass, columns: int) -> Sequence[str]:
    shares = [one.precision, one.recall, one.f1, one.iou, one.ap, one.ap50]
    texts = ["-" if share < 0 else f"{share:.4f}" for share in shares if share is not None]
    return [printable(one.name), f"{one.labels:,}", f"{one.predicted:,}", *texts][:columns]


def _pairs(found: Comparison) -> Iterator[str]:
    """Return what is confused most."""
    names = [printable(one.name) for one in found.classes]
    wrong = [(a, b, count) for a, b, count in found.confusion if a != b]
    if not wrong:
        return
    yield ""
    yield "labelled -> predicted, the most common errors:"
    texts = [BACKGROUND if a < 0 else names[a] for pair in wrong[:SHOWN_PAIRS] for a in pair[:2]]
    for (_, _, count), label, said in zip(wrong[:SHOWN_PAIRS], texts[::2], texts[1::2], strict=True):
        yield f"  {count:>10,}  {label} -> {said}"
