"""`packer build`: a folder of labelled images becomes a pack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from packer.cli.say import ReaderGone, say
from packer.containers import CONTAINERS
from packer.errors import printable
from packer.packing import BuildOptions, BuildSummary
from packer.types import Progress

if TYPE_CHECKING:
    from packer.format.manifest import Rejected
    from packer.packing.plan import Plan

SHOWN_REJECTIONS = 5


@click.command()
@click.argument("source", metavar="SRC", type=click.Path())
@click.option("-o", "--out", type=click.Path(), help="The pack to make.  [default: SRC.FORMAT beside the source]")
@click.option(
    "--format",
    metavar="|".join(CONTAINERS),
    help="The container of the shards.  [default: as the extension of --out says, else lmdb]",
)
@click.option(
    "--labels",
    multiple=True,
    default=("auto",),
    metavar="auto|none|folder|voc|yolo|list:FILE",
    help="Where the labels are; may be given several times, the annotations of an image are merged.  [default: auto]",
)
@click.option(
    "--columns",
    multiple=True,
    metavar="TEXT",
    help='The columns of a list: "path label", '
    '"path (x y)*5", "path (xmin ymin xmax ymax class)*". One for each list, in order.',
)
@click.option(
    "--classes",
    type=click.Path(),
    metavar="FILE",
    help="Class names in id order, one a line. A name that is not in it is a bad label.",
)
@click.option("--split", metavar="NAME", help="Take this part of the set only: train, val, test, ...")
@click.option("--resize", metavar="N|WxH", help="Size of the packed images in pixels.")
@click.option(
    "--fit",
    metavar="stretch|short|long|crop|pad",
    help="How to reach that size: stretch to WxH; short or "
    "long side to N; cover WxH and crop the centre; pad to WxH.  [default: short for N, stretch for WxH]",
)
@click.option(
    "--encode",
    default="raw",
    show_default=True,
    metavar="raw|jpeg|png|bmp|copy",
    help="How images are stored: decoded; encoded again; or each file's own bytes.",
)
@click.option("--quality", type=int, default=90, show_default=True, help="Of --encode jpeg, 1 to 100.")
@click.option(
    "--mode",
    default="rgb",
    show_default=True,
    metavar="rgb|gray|unchanged",
    help="What to decode to; unchanged keeps alpha and 16 bits.",
)
@click.option(
    "--decoder", default="auto", show_default=True, metavar="auto|simplejpeg|opencv|jpeg4py", help="What decodes JPEGs."
)
@click.option(
    "--max-pixels",
    type=int,
    default=64_000_000,
    show_default=True,
    help="Refuse images of more pixels, before they are decoded.",
)
@click.option(
    "--shard-size",
    default="128MB",
    show_default=True,
    metavar="SIZE|none",
    help="About the bytes of images in one file; none makes one file.",
)
@click.option("--shuffle", type=int, metavar="SEED", help="Pack in this random order.")
@click.option("--workers", type=int, metavar="N", help="Processes.  [default: the cores that may be used]")
@click.option(
    "--max-bad",
    default="0",
    show_default=True,
    metavar="N|N%",
    help="So many bad inputs may be left out; more end the build.",
)
@click.option(
    "--on-bad",
    default="fail",
    show_default=True,
    metavar="fail|skip",
    help="fail: --max-bad decides; skip: leave out all bad inputs, however many.",
)
@click.option(
    "--quarantine",
    type=click.Path(),
    metavar="DIR",
    help="Write the list of the bad inputs to DIR/rejected.tsv: path, reason, problem. No file is moved or changed.",
)
@click.option(
    "--decode-timeout",
    default="60",
    show_default=True,
    metavar="SECONDS|none",
    help="An image that takes longer to decode is bad.",
)
@click.option(
    "--boxes",
    default="fail",
    show_default=True,
    metavar="fail|clip|drop",
    help="Boxes outside of their image or without area: refuse the image; clip (those without area are dropped); drop.",
)
@click.option("--overwrite", is_flag=True, help="Replace the pack that is there.")
@click.option("--dry-run", is_flag=True, help="Read the source, print the plan, and stop.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, on errors too.")
def build(dry_run: bool, quiet: bool, as_json: bool, **given: Any) -> None:
    """Make a pack of the images and labels in the folder SRC.

    \b
    Examples:
      packer build ./imgs --resize 256 --encode jpeg
      packer build ./VOC --labels voc --resize 300x300 --fit pad -o voc.hdf5
      packer build ./faces --labels list:faces/landmarks.txt --columns "path x*5 y*5" --format tfrecord
      packer build ./shots --labels voc --labels list:shots/landmarks.txt --columns "path (x y)*5 label"
    """
    screen = Screen(quiet or as_json)
    try:
        options = _options(given)
        result = _dry_run(options, screen) if dry_run else _build(options, screen)
    finally:
        screen.close()
    if as_json:
        from packer.packing.quarantine import list_path

        listed = None if options.quarantine is None else list_path(options.quarantine)
        say(json.dumps({**result, "quarantine": listed}))


def _options(given: dict[str, Any]) -> BuildOptions:
    from packer.packing.options import parse_bytes, parse_timeout

    shard_bytes = parse_bytes(given.pop("shard_size"))
    timeout = parse_timeout(given.pop("decode_timeout"))
    return BuildOptions(**given, shard_bytes=shard_bytes, decode_timeout=timeout)


def _dry_run(options: BuildOptions, screen: Screen) -> dict[str, Any]:
    from packer.packing import plan_pack

    plan = plan_pack(options, screen)
    for note in plan.inputs.notes:
        screen.note(f"note: {printable(note)}")
    screen.note(plan.summary)
    screen.rejections(plan.inputs.rejected)
    return plan_facts(plan)


def _build(options: BuildOptions, screen: Screen) -> dict[str, Any]:
    from packer.packing import build_pack

    summary = build_pack(options, screen)
    screen.finished(summary)
    return summary_facts(summary)


class Screen(Progress):
    """Shows a build: the plan, a bar, the summary; nothing if `silent`."""

    def __init__(self, silent: bool) -> None:
        self.silent = silent
        self._bar: Any = None

    def note(self, text: str) -> None:
        if not self.silent:
            self.close()
            try:
                say(text)
            except ReaderGone:
                self.silent = True  # the pack is wanted all the same

    def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
        from packer.cli.progress import bar

        self.close()
        self._bad = 0
        self._bar = bar(name, total, hidden=self.silent)

    def advance(self, done: int, bad: int = 0) -> None:
        self._bad += bad
        if self._bad:
            self._bar.set_postfix_str(f"{self._bad} bad", refresh=False)
        self._bar.update(done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def rejections(self, rejected: list[Rejected] | tuple[Rejected, ...]) -> None:
        for entry in rejected[:SHOWN_REJECTIONS]:
            self.note(f"rejected: {printable(entry.path)}: {entry.problem}")
        if len(rejected) > SHOWN_REJECTIONS:
            self.note(f"rejected: ... and {len(rejected) - SHOWN_REJECTIONS} more (packer info --rejected lists all)")

    def finished(self, summary: BuildSummary) -> None:
        self.rejections(summary.manifest.rejected)
        for line in summary_lines(summary):
            self.note(line)


def plan_facts(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
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


def inputs_text(counts: Mapping[str, int]) -> str:
    """found = packed + rejected + skipped, in words."""
    found, *parts = (f"{counts[name]} {name}" for name in ("found", "packed", "rejected", "skipped"))
    return f"{found} = {' + '.join(parts)}"


def summary_lines(summary: BuildSummary) -> list[str]:
    """What the build has done, and how to read it."""
    from packer.text import size_text, time_text

    counts = summary.manifest.counts
    lines = [
        f"{inputs_text(counts)}; {size_text(summary.pack_bytes)} in {time_text(summary.seconds)} "
        f"({summary.images_per_s:,.0f} images/s)"
    ]
    boxes = [f"{counts[name]} {name.removeprefix('boxes_')}" for name in BOX_COUNTS if counts.get(name)]
    if boxes:
        lines.append(f"boxes: {counts.get('boxes', 0)} packed, {', '.join(boxes)}")
    lines.append(f'read it: packer.PackedDataset("{printable(summary.path)}")')
    return lines


BOX_COUNTS = ("boxes_clamped", "boxes_clipped", "boxes_dropped", "boxes_cropped")


def summary_facts(summary: BuildSummary) -> dict[str, Any]:
    """The summary as JSON values."""
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
