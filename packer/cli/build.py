"""`packer build`: pack a folder of labelled images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from packer.cli.output import ProgressBar, counts_text, echo
from packer.containers import CONTAINERS
from packer.errors import printable, size_text, time_text
from packer.packing import BuildOptions, BuildSummary, build_pack, plan_pack

if TYPE_CHECKING:
    from packer.format.manifest import Rejected
    from packer.packing.plan import Plan

SHOWN_REJECTIONS = 5
SECTIONS = {
    "Input": ("split", "shuffle", "max_pixels"),
    "Labels": ("labels", "columns", "classes", "boxes", "rle"),
    "Image": ("resize", "fit", "pad_value", "interpolation", "encode", "quality", "mode", "decoder"),
    "Output": ("out", "format", "shard_size", "overwrite"),
    "Bad data": ("max_bad", "on_bad", "quarantine", "decode_timeout"),
}
"""Heading -> the options below it; all others are below Run."""


class BuildCommand(click.Command):
    """A command whose help shows the options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        options = [(p.name, p.get_help_record(ctx)) for p in self.get_params(ctx) if isinstance(p, click.Option)]
        grouped = {name for names in SECTIONS.values() for name in names}
        for heading in (*SECTIONS, "Run"):
            names = SECTIONS.get(heading)
            with formatter.section(heading):
                formatter.write_dl(
                    [r for name, r in options if r and (name in names if names else name not in grouped)]
                )


@click.command(cls=BuildCommand)
@click.argument("source", metavar="SRC", type=click.Path())
@click.option("--split", metavar="NAME", help="Pack only this split: train, val, test, ...")
@click.option("--shuffle", type=int, metavar="SEED", help="Pack in the random order of this seed.")
@click.option(
    "--max-pixels",
    type=int,
    default=64_000_000,
    show_default=True,
    help="Maximum pixels of an image; a larger one is bad, and is not decoded.",
)
@click.option(
    "--labels",
    multiple=True,
    default=("auto",),
    metavar="auto|none|folder|voc|yolo|coco[:FILE]|pts|dlib[:FILE]|list:FILE",
    help="Kind of labels. May be repeated: the annotations of an image are merged.  [default: auto]",
)
@click.option(
    "--columns",
    multiple=True,
    metavar="TEXT",
    help='Columns of a list: "path label", "path (x y)*5", "path (xmin ymin xmax ymax class)*". '
    "One for each list, in the same order.",
)
@click.option(
    "--classes",
    type=click.Path(),
    metavar="FILE",
    help="Class names in the order of their ids, one per line. A label with another name is bad.",
)
@click.option(
    "--boxes",
    default="fail",
    show_default=True,
    metavar="fail|clip|drop",
    help="Boxes outside the image or without area: fail rejects the image, clip cuts them at the edge "
    "(and drops those without area), drop drops them.",
)
@click.option(
    "--rle",
    default="text",
    show_default=True,
    metavar="text|polygons",
    help="Masks of run lengths, as of COCO's crowds: kept as text, or also made polygons.",
)
@click.option("--resize", metavar="N|WxH", help="Size of the packed images in pixels.")
@click.option(
    "--fit",
    metavar="stretch|short|long|crop|pad",
    help="How to reach that size: stretch to WxH, short or long side to N, crop the center to WxH, "
    "or pad to WxH.  [default: short for N, stretch for WxH]",
)
@click.option(
    "--pad-value",
    type=int,
    metavar="N",
    help="Gray level of the border of --fit pad, 0 (black) to 255; YOLO's is 114.  [default: 0]",
)
@click.option(
    "--interpolation",
    metavar="area|bilinear",
    help="Filter of --resize: the mean of the area of each pixel, or the wider filter of torchvision and Pillow.  "
    "[default: area]",
)
@click.option(
    "--encode",
    default="raw",
    show_default=True,
    metavar="raw|jpeg|png|bmp|copy",
    help="How images are stored: as pixels (raw), encoded again, or as a copy of each file.",
)
@click.option("--quality", type=int, default=90, show_default=True, help="JPEG quality, 1 to 100.")
@click.option(
    "--mode",
    default="rgb",
    show_default=True,
    metavar="rgb|gray|unchanged",
    help="Color mode of the packed images; unchanged keeps alpha and 16 bits.",
)
@click.option(
    "--decoder", default="auto", show_default=True, metavar="auto|simplejpeg|opencv|jpeg4py", help="JPEG decoder."
)
@click.option("-o", "--out", type=click.Path(), help="Path of the new pack.  [default: SRC.FORMAT beside SRC]")
@click.option(
    "--format",
    metavar="|".join(CONTAINERS),
    help="Container format of the shards.  [default: by the extension of --out, else lmdb]",
)
@click.option(
    "--shard-size",
    default="128MB",
    show_default=True,
    metavar="SIZE|none",
    help="Approximate size of the images in a shard; none writes a single shard.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing pack.")
@click.option(
    "--max-bad",
    default="0",
    show_default=True,
    metavar="N|N%",
    help="Maximum number (or share) of bad inputs to skip before the build fails.",
)
@click.option(
    "--on-bad",
    default="fail",
    show_default=True,
    metavar="fail|skip",
    help="fail: follow --max-bad. skip: skip every bad input.",
)
@click.option(
    "--quarantine",
    type=click.Path(),
    metavar="DIR",
    help="List the bad inputs in DIR/rejected.tsv: path, reason, problem. No image is moved or changed.",
)
@click.option(
    "--decode-timeout",
    default="60",
    show_default=True,
    metavar="SECONDS|none",
    help="Maximum time to decode an image; one that takes longer is bad.",
)
@click.option(
    "--workers", type=int, metavar="N", help="Number of worker processes.  [default: the number of usable cores]"
)
@click.option("--dry-run", is_flag=True, help="Read the source, print the plan and stop.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, also after an error.")
def build(dry_run: bool, quiet: bool, as_json: bool, **given: Any) -> None:
    """Pack the images and labels in the folder SRC.

    \b
    Examples:
      packer build ./imgs --resize 256 --encode jpeg
      packer build ./VOC --labels voc --resize 300x300 --fit pad -o voc.hdf5
      packer build faces --labels list:marks.txt --columns "path x*5 y*5"
      packer build VOC --labels voc --labels list:a.txt --columns "path (x y)*5"
    """
    options = _options(given)
    with ProgressBar(hidden=quiet or as_json) as progress:
        if dry_run:
            plan = plan_pack(options, progress)
            facts, rejected = plan_facts(plan), plan.inputs.rejected
            lines = [
                *(f"note: {printable(note)}" for note in plan.inputs.notes),
                plan.summary,
                *rejected_lines(rejected),
            ]
        else:
            summary = build_pack(options, progress)
            facts = summary_facts(summary)
            lines = [*rejected_lines(summary.manifest.rejected), *summary_lines(summary)]
        progress.close()
        for line in lines:
            progress.note(line)  # not `echo`: the build has succeeded even if nobody reads this
    if as_json:
        from packer.packing.quarantine import list_path

        listed = None if options.quarantine is None else list_path(options.quarantine)
        echo(json.dumps({**facts, "quarantine": listed}))


def _options(given: dict[str, Any]) -> BuildOptions:
    from packer.packing.options import parse_bytes, parse_timeout

    shard_bytes = parse_bytes(given.pop("shard_size"))
    timeout = parse_timeout(given.pop("decode_timeout"))
    return BuildOptions(**given, shard_bytes=shard_bytes, decode_timeout=timeout)


def rejected_lines(rejected: Sequence[Rejected]) -> list[str]:
    """Return a line for each of the first bad inputs."""
    lines = [f"rejected: {printable(entry.path)}: {entry.problem}" for entry in rejected[:SHOWN_REJECTIONS]]
    if len(rejected) > SHOWN_REJECTIONS:
        lines.append(f"rejected: ... and {len(rejected) - SHOWN_REJECTIONS} more (packer info --rejected lists all)")
    return lines


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values."""
    from dataclasses import asdict

    inputs = plan.inputs
    return {
        "path": plan.options.output,
        "images": len(plan.table),
        "shards": plan.shards,
        "pack_bytes": plan.pack_bytes,
        "source_bytes": plan.source_bytes,
        "free_bytes": plan.free_bytes,
        "found": inputs.found,
        "rejected": [asdict(entry) for entry in inputs.rejected],
        "skipped": [{"path": path, "reason": reason} for path, reason in inputs.skipped],
        "classes": list(inputs.classes),
        "labels": list(inputs.labels),
        "fields": list(inputs.fields),
        "boxes": inputs.boxes,
        "landmarks": inputs.landmarks,
        "notes": inputs.notes,
    }


def summary_lines(summary: BuildSummary) -> list[str]:
    """Return the result of the build, and how to read the pack."""
    counts = summary.manifest.counts
    lines = [
        f"{counts_text(counts)}; {size_text(summary.pack_bytes)} in {time_text(summary.seconds)} "
        f"({summary.images_per_s:,.0f} images/s)"
    ]
    boxes = [f"{counts[name]} {name.removeprefix('boxes_')}" for name in BOX_COUNTS if counts.get(name)]
    if boxes:
        lines.append(f"boxes: {counts.get('boxes', 0)} packed, {', '.join(boxes)}")
    lines.append(f'read it: packer.PackedDataset("{printable(summary.path)}")')
    return lines


BOX_COUNTS = ("boxes_clamped", "boxes_clipped", "boxes_dropped", "boxes_cropped")


def summary_facts(summary: BuildSummary) -> dict[str, Any]:
    """Return the summary as JSON values."""
    from dataclasses import asdict

    manifest = summary.manifest
    return {
        "path": summary.path,
        "bytes": summary.pack_bytes,
        "seconds": round(summary.seconds, 3),
        "images_per_s": round(summary.images_per_s, 1),
        "counts": dict(manifest.counts),
        "classes": list(manifest.classes),
        "rejected": [asdict(entry) for entry in manifest.rejected],
        "notes": list(manifest.notes),
    }
