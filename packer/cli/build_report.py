"""What `packer build` prints at the end, as lines and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from packer.errors import plural, printable, size_text, time_text
from packer.packing import BuildSummary
from packer.packing.options import NOT_IN_SPLIT

if TYPE_CHECKING:
    from packer.format.jpeg_index_list import JpegIndexList
    from packer.format.manifest import Manifest, Rejected
    from packer.packing.plan import Plan

SHOWN_REJECTIONS = 5


def rejected_lines(rejected: Iterable[Rejected], count: int) -> list[str]:
    """Return a line for each of the first of `count` bad inputs."""
    lines = [f"rejected: {printable(entry.path)}: {entry.problem}" for entry in islice(rejected, SHOWN_REJECTIONS)]
    if count > SHOWN_REJECTIONS:
        lines.append(f"rejected: ... and {count - SHOWN_REJECTIONS:,} more (packer info --rejected lists all)")
    return lines


def plan_lines(plan: Plan, deep: bool) -> list[str]:
    """Return what ``--dry-run`` prints.

    Args:
        plan: The plan.
        deep: Whether every image was decoded.
    """
    from packer.packing.recorded import as_config

    inputs, changed = plan.inputs, len(plan.inputs.changed)
    read = "every image was decoded" if deep else "headers and labels were read; --deep also decodes every image"
    return [
        *(f"note: {printable(note)}" for note in inputs.more_notes),
        "options, as in a file for --config:",
        *(f"  {line}" for line in as_config(plan.options)),
        plan.summary,
        *(f"warning: {warning}" for warning in plan.warnings),
        *([f"--boxes {plan.options.boxes} changes {plural(changed, 'box', 'boxes')}"] if changed else []),
        *rejected_lines(inputs.rejected, len(inputs.rejected)),
        f"note: {read}",
    ]


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values."""
    from packer.format.lists import as_json

    inputs = plan.inputs
    return {
        "path": plan.options.output,
        "images": plan.inputs.rows,
        "shards": plan.shards,
        "pack_bytes": plan.pack_bytes,
        "source_bytes": plan.source_bytes,
        "free_bytes": plan.free_bytes,
        "found": inputs.found,
        "rejected": as_json(inputs.rejected),
        "skipped": as_json(inputs.skipped),
        "changed": as_json(inputs.changed),
        "classes": list(inputs.classes),
        "labels": list(inputs.labels),
        "fields": list(inputs.fields),
        "boxes": inputs.count("boxes"),
        "landmarks": inputs.count("landmarks"),
        "notes": inputs.all_notes,
        "warnings": plan.warnings,
    }


def summary_lines(summary: BuildSummary, output: str) -> list[str]:
    """Return the first bad inputs, what is special, and in the last line the result and how to look at it.

    Args:
        summary: The result of the build.
        output: The path of the pack as it was given.
    """
    from packer.format.lists import read_list

    counts = summary.manifest.counts
    rejected = read_list(summary.path, "rejected", summary.manifest)
    lines = [*rejected_lines(rejected, counts["rejected"])]
    boxes = [f"{counts[name]:,} {name.removeprefix('boxes_')}" for name in BOX_COUNTS if counts.get(name)]
    if boxes:
        listed = LISTED if counts.get("changed") else ""
        lines.append(f"boxes: {counts.get('boxes', 0):,} packed, {', '.join(boxes)}{listed}")
    if lenient := counts.get("lenient"):
        lines.append(f"images: {lenient:,} damaged, packed as far as they can be decoded{LISTED}")
    if (index := summary.jpeg_index) is not None:
        lines.append(f"JPEG index: {jpeg_index_text(index, summary.manifest)}")
    left_out = (
        (counts["rejected"], "rejected"),
        (counts["skipped"] - summary.elsewhere, "skipped"),
        (summary.elsewhere, NOT_IN_SPLIT),
    )
    others = ", ".join(f"{count:,} {what}" for count, what in left_out if count)
    of = f" of {counts['found']:,} found ({others})" if others else ""
    lines.append(
        f"packed {plural(counts['packed'], 'image')}{of}: {size_text(summary.pack_bytes)} in "
        f"{time_text(summary.seconds)} ({summary.images_per_s:,.0f} images/s); "
        f"look at it: packer view {printable(shlex.quote(output))}"
    )
    return lines


def jpeg_index_text(index: JpegIndexList, manifest: Manifest) -> str:
    """Return how many records have a JPEG index, why the others have none, and its size."""
    share = 100 * index.bytes / sum(shard.container.bytes for shard in manifest.shards)
    of = plural(manifest.records, "record")
    every = "row" if index.interval == 0 else f"{index.interval} blocks"
    text = f"{index.indexed:,} of {of}, an entry per {every}, {size_text(index.bytes)} ({share:.2g} % of the pack)"
    if index.without:
        text += f"; without: {', '.join(f'{n:,} {printable(why)}' for why, n in index.without.items())}"
    return text


LISTED = " (packer info --changed lists them)"
BOX_COUNTS = ("boxes_clamped", "boxes_clipped", "boxes_dropped", "boxes_cropped")


def summary_facts(summary: BuildSummary) -> dict[str, Any]:
    """Return the summary as JSON values."""
    from packer.format.lists import as_json, read_list

    manifest = summary.manifest
    return {
        "path": summary.path,
        "bytes": summary.pack_bytes,
        "seconds": round(summary.seconds, 3),
        "images_per_s": round(summary.images_per_s, 1),
        "counts": dict(manifest.counts),
        "classes": list(manifest.classes),
        "rejected": as_json(read_list(summary.path, "rejected", manifest)),
        "notes": list(manifest.notes),
        **({} if summary.jpeg_index is None else {"jpeg_index": jpeg_index_facts(summary.jpeg_index, manifest)}),
    }


def jpeg_index_facts(index: JpegIndexList, manifest: Manifest) -> dict[str, Any]:
    """Return what a JPEG index is, as JSON values and as text."""
    return {
        "text": jpeg_index_text(index, manifest),
        "interval": index.interval,
        "indexed": index.indexed,
        "without": dict(index.without),
        "bytes": index.bytes,
        "made_with": index.made_with,
    }
