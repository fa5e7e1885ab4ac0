"""`packer build`: pack a folder of labelled images."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from packer.cli.build_report import plan_facts, plan_lines, summary_facts, summary_lines
from packer.cli.help import OptionsInSections
from packer.cli.output import LocalPath, ProgressBar, echo
from packer.cli.values import LabelKind, OneOf, PackPath
from packer.containers import CONTAINERS, container_names
from packer.errors import UsageError
from packer.packing import BuildOptions, build_packs, build_parts, plan_packs
from packer.packing import options as allowed

SECTIONS = {
    "Input": ("split", "include", "exclude", "shuffle", "max_pixels", "follow_links", "inventory"),
    "Labels": ("labels", "columns", "classes", "boxes", "missing_labels", "rle"),
    "Image": ("resize", "fit", "pad_value", "interpolation", "encode", "quality", "mode", "decoder", "on_animation"),
    "Output": ("out", "format", "shard_size", "jpeg_index", "overwrite", "force", "scratch", "recheck"),
    "Bad data": ("max_bad", "on_bad", "fail_fast", "quarantine", "decode_timeout"),
}
"""Heading -> the options below it; all others are below Run."""
FIRST = (
    "split", "labels", "columns", "classes", "resize", "fit", "encode", "quality", "out", "format", "overwrite",
    "max_bad", "workers", "dry_run",
)  # fmt: skip
"""What most people need; --help-all shows the others, too."""


@click.command(cls=OptionsInSections, sections=SECTIONS, rest="Run", first=FIRST)
@click.argument("source", metavar="SRC", type=click.Path(), required=False)
@click.option(
    "--split",
    metavar="NAME",
    help="Pack only this split: train, val, test, ...; all packs all as one.  [default: a pack for each]",
)
@click.option(
    "--include",
    type=LocalPath(),
    metavar="FILE",
    help="Pack only the images in FILE: one path, name, glob or key (of --like PACK) per line.",
)
@click.option("--exclude", type=LocalPath(), metavar="FILE", help="Skip the images in FILE, in the same form.")
@click.option("--shuffle", type=int, metavar="SEED", help="Pack in the random order of this seed.")
@click.option(
    "--max-pixels",
    type=int,
    default=64_000_000,
    show_default=True,
    help="Maximum pixels of an image; a larger one is bad, and is not decoded.",
)
@click.option("--follow-links", is_flag=True, help="Follow symlinks to folders outside SRC.")
@click.option(
    "--inventory",
    type=LocalPath(),
    metavar="FILE",
    help="List of the objects below SRC, a URL, in place of listing them: Parquet or CSV with the columns key and "
    "size (S3 Inventory), or a name per line.",
)
@click.option(
    "--labels",
    multiple=True,
    default=("auto",),
    type=LabelKind(),
    help="Kind of labels: auto, none, folder, voc, yolo, coco[:FILE], parquet[:COLUMN], list:FILE, pts, dlib[:FILE], "
    "cvat[:FILE], labelme, createml[:FILE], vott[:FILE], widerface[:FILE], datumaro[:FORMAT]. May be repeated: the "
    "annotations of an image are merged.  [default: auto]",
)
@click.option(
    "--columns",
    multiple=True,
    metavar="TEXT",
    help='Columns of a list: "path label", "path (x y)*5", "path (xmin ymin xmax ymax class)*". '
    "One for each list, in the same order. Of Parquet: what the numbers of boxes are.",
)
@click.option(
    "--classes",
    type=LocalPath(),
    metavar="FILE",
    help="Class names in the order of their ids, one per line; or a pack. A label with another name is bad.",
)
@click.option(
    "--boxes",
    default="fail",
    show_default=True,
    type=OneOf(allowed.BOX_POLICIES),
    help="Boxes outside the image or without area: fail rejects the image, clip cuts them at the edge "
    "(and drops those without area), drop drops them.",
)
@click.option(
    "--missing-labels",
    default="error",
    show_default=True,
    type=OneOf(allowed.MISSING_POLICIES),
    help="An image without a label: error rejects it, empty packs it as an image without objects, skip skips it.",
)
@click.option(
    "--rle",
    default="text",
    show_default=True,
    type=OneOf(allowed.RLE_POLICIES),
    help="COCO run-length masks: keep as text, or also convert to polygons.",
)
@click.option("--resize", metavar="N|WxH", help="Size of the packed images in pixels.")
@click.option(
    "--fit",
    type=OneOf(allowed.FITS),
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
    type=OneOf(("area", "bilinear")),
    help="Filter of --resize: the mean of the area of each pixel, or the wider filter of torchvision and Pillow.  "
    "[default: area]",
)
@click.option(
    "--encode",
    type=OneOf(allowed.ENCODINGS),
    help="How images are stored: as pixels (raw), encoded again, or as a copy of each file.  [default: raw if they are "
    "resized or all have one size, else copy]",
)
@click.option("--quality", type=int, default=90, show_default=True, help="JPEG quality, 1 to 100.")
@click.option(
    "--mode",
    default="rgb",
    show_default=True,
    type=OneOf(allowed.MODES),
    help="Color mode of the packed images; unchanged keeps alpha and 16 bits.",
)
@click.option(
    "--decoder",
    default="auto",
    show_default=True,
    type=OneOf(allowed.DECODERS),
    help="JPEG decoder; lenient also packs damaged images of any format, as far as they can be decoded, and lists "
    "them.",
)
@click.option(
    "--on-animation",
    default="fail",
    show_default=True,
    type=OneOf(allowed.ANIMATION_POLICIES),
    help="An animation, or several pages: fail rejects it, first packs its first frame.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(),
    help="Path of the new pack, or its URL in a store: s3://bucket/imgs. Of a pack for each split: NAME-train.lmdb for "
    "NAME.lmdb.  [default: SRC.FORMAT beside SRC, or SRC-SPLIT.FORMAT]",
)
@click.option(
    "--format",
    type=OneOf(CONTAINERS, container_names),
    help="Container format of the shards.  [default: by the extension of --out, else lmdb]",
)
@click.option(
    "--shard-size",
    metavar="SIZE|none",
    help="Approximate size of the images in a shard, as they are stored; a shard has at most 100,000 images. none: a "
    "single shard.  [default: 128MB; 1GB or more for packs of 256 GB]",
)
@click.option(
    "--jpeg-index",
    is_flag=False,
    flag_value="row",
    type=OneOf(("row", "4")),
    help="With --encode jpeg or copy: also make an index with which crops decode faster; needs packer-fast. An entry "
    "per row of blocks (row, about 1 % of the bytes), or per four blocks (4).",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing pack.")
@click.option("--force", is_flag=True, help="Build even if the pack is not expected to fit on the disk.")
@click.option(
    "--scratch",
    type=LocalPath(),
    metavar="DIR",
    help="With a URL as --out: folder for unfinished shards, two per worker.  [default: that for temporary files]",
)
@click.option(
    "--recheck", is_flag=True, help="Read finished shards in a store again to verify them; with --finish, the images."
)
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
    type=OneOf(allowed.BAD_POLICIES),
    help="fail: follow --max-bad. skip: skip every bad input.",
)
@click.option("--fail-fast", is_flag=True, help="Stop as soon as too many inputs are bad, before all are found.")
@click.option(
    "--quarantine",
    type=LocalPath(),
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
@click.option(
    "--engine",
    default="local",
    show_default=True,
    metavar="local|ray[:ADDRESS]|dask[:SCHEDULER]|MODULE:FUNCTION",
    help="Where the workers run: on this machine, on a Ray or dask cluster, or on the executor of "
    "concurrent.futures that FUNCTION returns; see docs/cluster.md.",
)
@click.option(
    "--part",
    metavar="K/N",
    help="Pack only part K of N (1/N to N/N), as on N machines; when all are packed, --finish publishes the pack.",
)
@click.option("--finish", is_flag=True, help="Publish the pack whose parts were packed with --part.")
@click.option("--like", type=PackPath(), metavar="PACK", help="Take every option that is not given from PACK.")
@click.option(
    "--config",
    type=LocalPath(),
    metavar="FILE",
    help="Take options that are not given from a YAML file with the same names: resize: 256.",
)
@click.option("--dry-run", is_flag=True, help="Read headers and labels, print options and plan, and stop.")
@click.option("--deep", is_flag=True, help="With --dry-run: decode every image too.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, also after an error.")
@click.pass_context
def build(context: click.Context, /, dry_run: bool, deep: bool, quiet: bool, as_json: bool, **given: Any) -> None:
    """Pack the images and labels in SRC: a folder, a zip or a tar.

    SRC and the new pack may be in object stores: give their URLs. If SRC has splits, such as train/ and val/, a
    pack is made for each, with the same class ids.

    \b
    Examples:
      packer build ./imgs --resize 256 --encode jpeg
      packer build train.tar --labels folder -o train.lmdb
      packer build ./VOC --labels voc --resize 300x300 --fit pad -o voc.hdf5
      packer build ./imgs -o s3://bucket/imgs --resize 256 --encode jpeg
      packer build s3://bucket/imgs -o imgs.lmdb --engine ray:HEAD:6379
      packer build VOC --labels voc --labels list:a.txt --columns "path (x y)*5"
    """
    if deep and not dry_run:
        raise UsageError("--deep", "is for --dry-run: a build decodes every image anyway", "leave it out")
    options = _options(context, given)
    with ProgressBar(hidden=quiet or as_json) as progress:
        if dry_run:
            plans = plan_packs(options, progress, deep)
            found = [(plan_facts(plan), plan_lines(plan, deep)) for plan in plans]
        elif options.part is not None:
            parts = build_parts(options, progress)
            found = [({**asdict(part), "part": str(part.part)}, [part.line]) for part in parts]
        else:
            summaries = build_packs(options, progress)
            found = [(summary_facts(one), summary_lines(one, one.output or one.path)) for one in summaries]
        progress.close()
        for _, lines in found:
            for line in lines:
                progress.note(line)  # not `echo`: the build has succeeded even if nobody reads this
    if as_json:
        from packer.packing.quarantine import list_path

        every = [facts for facts, _ in found]
        facts = every[0] if len(every) == 1 else {"packs": every}
        echo(json.dumps({**facts, "quarantine": list_path(options) if len(every) == 1 else options.quarantine}))


def _options(context: click.Context, given: dict[str, Any]) -> BuildOptions:
    """Return the options: those of the command line, else of ``--config``, else of ``--like``, else the defaults."""
    from packer.packing.options import parse_bytes, parse_timeout
    from packer.packing.recorded import options_like, read_config

    default = click.core.ParameterSource.DEFAULT
    chosen = {name: value for name, value in given.items() if context.get_parameter_source(name) != default}
    if "shard_size" in chosen:
        chosen["shard_bytes"] = parse_bytes(chosen.pop("shard_size"))
    if "decode_timeout" in chosen:
        chosen["decode_timeout"] = parse_timeout(chosen["decode_timeout"])
    config = chosen.pop("config", None)
    merged = {**({} if config is None else read_config(config)), **chosen}
    if "source" not in merged:
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    like = merged.pop("like", None)
    return BuildOptions(**merged) if like is None else options_like(like, **merged)
