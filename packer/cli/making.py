"""Commands that make packs: `packer build`, `adopt` and `convert`, and `sample`, which draws images to try."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from packer.cli.output import LocalPath, ProgressBar, Told, as_typed, counts_text, echo, echo_error, shortened, telling
from packer.cli.values import OneOf, OptionsInSections, PackPath, build_option, build_options, class_options
from packer.errors import EXIT_BAD_DATA, UsageError, option, plural, printable, size_text, time_text
from packer.packing.build_options import NOT_IN_SPLIT, BuildOptions
from packer.packing.option_table import BAD_DATA, IMAGE, INPUT, LABELS, OPTIONS, OUTPUT, RUN

if TYPE_CHECKING:
    from packer.format.jpeg_index_list import JpegIndexList
    from packer.format.manifest import Manifest, Rejected
    from packer.packing.build import BuildSummary
    from packer.packing.plan import Plan
    from packer.repack.adopt import AdoptReport


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
        "class_changes": [asdict(change) for change in inputs.class_changes],
        "boxes": inputs.count("boxes"),
        "landmarks": inputs.count("landmarks"),
        "values": inputs.count("value"),
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
    boxes = [
        f"{counts[name]:,} {name.removeprefix('boxes_').replace('_', ' ')}" for name in BOX_COUNTS if counts.get(name)
    ]
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
    noun = "tile" if summary.manifest.options.get("tile") else "image"
    found = "" if noun == "tile" else f" of {counts['found']:,} found"  # which counts images that are left out, too
    of = f"{found} ({others})" if others else ""
    lines.append(
        f"packed {plural(counts['packed'], noun)}{of}: {size_text(summary.pack_bytes)} in "
        f"{time_text(summary.seconds)} ({summary.images_per_s:,.0f} {noun}s/s); "
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
BOX_COUNTS = ("boxes_clamped", "boxes_clipped", "boxes_dropped", "boxes_cropped", "boxes_without_mask")


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
        "class_changes": [asdict(change) for change in summary.class_changes],
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


FIRST = (*(row.name for row in OPTIONS if row.first), "dry_run")
"""What most people need; --help-all shows the others, too."""
SECTIONS = {
    heading: tuple(row.name for row in OPTIONS if row.section == heading)
    for heading in (INPUT, LABELS, IMAGE, OUTPUT, BAD_DATA)
}
"""Heading -> the options below it; all others are below Run."""


@click.command(cls=OptionsInSections, sections=SECTIONS, rest=RUN, first=FIRST)
@click.argument("source", metavar="SRC", type=click.Path(), required=False)
@build_options
@click.option(
    "--config",
    type=LocalPath(),
    metavar="FILE",
    help="Take options that are not given from a YAML file with the same names: resize: 256.",
)
@click.option("--dry-run", is_flag=True, help="Read headers and labels, print options and plan, and stop.")
@click.option("--deep", is_flag=True, help="With --dry-run: decode every image too.")
@telling("Print one JSON object at the end, also after an error.")
@click.pass_context
def build(context: click.Context, /, dry_run: bool, deep: bool, progress: ProgressBar, **given: Any) -> Told:
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
        raise UsageError(option("deep"), "is for --dry-run: a build decodes every image anyway", "leave it out")
    options = _options(context, given)
    from packer.packing.bad_inputs import list_path  # not before: mistakes are told at once
    from packer.packing.build import build_packs, build_parts, plan_packs

    if dry_run:
        plans = plan_packs(options, progress, deep)
        found = [(plan_facts(plan), plan_lines(plan, deep)) for plan in plans]
    elif options.job is not None:
        parts = build_parts(options, progress)
        found = [({**asdict(part), "part": str(part.part)}, [part.line]) for part in parts]
    else:
        summaries = build_packs(options, progress)
        found = [(summary_facts(one), summary_lines(one, one.output or one.path)) for one in summaries]
    facts = found[0][0] if len(found) == 1 else {"packs": [facts for facts, _ in found]}
    quarantine = list_path(options) if len(found) == 1 else options.quarantine
    return {**facts, "quarantine": quarantine}, [line for _, lines in found for line in lines]


def _options(context: click.Context, given: dict[str, Any]) -> BuildOptions:
    """Return the options: those of the command line, else of ``--config``, else of ``--like``, else the defaults."""
    from packer.packing.recorded import merged_options, read_config

    default = click.core.ParameterSource.DEFAULT
    chosen = {name: value for name, value in given.items() if context.get_parameter_source(name) != default}
    for row in OPTIONS:
        if row.read is not None and row.name in chosen:
            chosen[row.name] = row.read(chosen[row.name])
    config = chosen.pop("config", None)
    merged = {**({} if config is None else read_config(config)), **chosen}
    if "source" not in merged:
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    return merged_options(merged)


@click.command()
@click.argument("files", nargs=-1, required=True, type=LocalPath(), metavar="FILES...")
@build_option("out", required=True, metavar="PACK", help="Path of the new pack.")
@click.option(
    "--columns",
    multiple=True,
    metavar="ROLE=FIELD",
    help="Field of the image, label or text (the name of the class): label=image/class/label. Repeatable.",
)
@click.option(
    "--mask",
    metavar="FIELD|none",
    help="Field of the masks: seg.png, a column or a feature.  [default: one called like masks: mask, annotation, ...]",
)
@build_option("ignore_id")
@click.option(
    "--labels",
    multiple=True,
    type=LocalPath(),
    metavar="FILE",
    help="Labels of a file that has none: .npy, or IDX. Once for each of FILES.",
)
@build_option("classes", help="Class names in id order, one per line; or a pack.")
@build_option("map")
@build_option("drop_class")
@build_option("only_class")
@build_option("single_class")
@build_option(
    "missing_labels", help="An image without a label, if others have one: it is bad, has no objects, or is left out."
)
@build_option("boxes", help="Boxes outside the image: the image is bad, or clip or drop them.")
@build_option(
    "max_bad", metavar="N|P%", help="Maximum number (or share) of bad images to leave out before the command fails."
)
@build_option("on_animation", help="An animation, or several pages: it is bad, or its first frame counts.")
@build_option("max_pixels", metavar="N", help="Larger images are bad.")
@build_option("workers")
@build_option("overwrite")
@telling()
def adopt(files: tuple[str, ...], columns: tuple[str, ...], progress: ProgressBar, **options: object) -> Told:
    """Make a pack of other tools' FILES, in place.

    The pack holds an index for each file, and reads the images where they are: none is copied. FILES are
    containers of images, or folders of them, known by their content: WebDataset tars, TFRecords and others
    (docs/packs.md). packer link is another name of this command.

    \b
    Examples:
      packer adopt shards/train-*.tar -o train
      packer adopt *.tfrecord --columns label=image/class/label -o train
    """
    from packer.repack.adopt import adopt as adopt_files

    report = adopt_files(files, progress=progress, columns=columns, **options)  # type: ignore[arg-type]
    return _facts(report), [as_typed(line, [str(options["out"]), *files]) for line in _lines(report)]


def _lines(report: AdoptReport) -> list[str]:
    from packer.format.lists import read_list

    manifest = report.manifest
    rate = manifest.records / report.seconds if report.seconds else 0
    return [
        *(f"note: {printable(note)}" for note in manifest.notes),
        *rejected_lines(read_list(report.path, "rejected", manifest), manifest.counts["rejected"]),
        f"{counts_text(manifest.counts)}, in {plural(len(manifest.shards), 'file')} "
        f"of {size_text(report.linked_bytes)}; {size_text(report.pack_bytes)} in {time_text(report.seconds)} "
        f"({rate:,.0f} images/s)",
        f'read it: packer.PackedDataset("{printable(report.path)}")',
    ]


def _facts(report: AdoptReport) -> dict[str, object]:
    from packer.format.lists import as_json, read_list

    manifest = report.manifest
    return {
        "path": report.path,
        "bytes": report.pack_bytes,
        "linked_bytes": report.linked_bytes,
        "seconds": round(report.seconds, 3),
        "container": manifest.container,
        "class_changes": [asdict(change) for change in report.class_changes],
        "counts": dict(manifest.counts),
        "classes": list(manifest.classes),
        "rejected": as_json(read_list(report.path, "rejected", manifest)),
        "notes": list(manifest.notes),
    }


SHOWN_REJECTED = 20


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("out", type=click.Path())
@build_option(
    "format", metavar="NAME", help="Container format of the shards.  [default: by the extension of OUT, else as PACK]"
)
@build_option(
    "encode",
    metavar="raw|jpeg|png|bmp",
    help="Decode every image and encode it like this.  [default: the bytes stay as they are]",
)
@build_option("quality", help="JPEG quality, 1 to 100.  [default: 90]")
@build_option("resize", help="Size of the new images in pixels.")
@build_option("fit", help="How to reach that size, as in packer build.  [default: short for N, stretch for WxH]")
@build_option("pad_value", help="Gray level of the border of --fit pad, 0 to 255.")
@build_option("interpolation", help="Filter of --resize.  [default: area]")
@build_option("include", help="Take only the records in FILE: one path, name, glob or key per line.")
@build_option("exclude", help="Leave out the records in FILE, in the same form.")
@click.option(
    "--keep-one",
    metavar="near[=BITS]|mirrored|equal",
    help="Of near duplicates, or of equal files, keep one: the largest image, then the first. skipped.tsv lists the "
    "others.",
)
@class_options
@build_option("overwrite")
@build_option("scratch", help="With a URL as OUT: folder for unfinished shards.  [default: that for temporary files]")
@build_option("workers")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, also after an error.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def convert(pack: str, out: str, as_json: bool, quiet: bool, **given: Any) -> None:
    """Write the records of PACK to a new pack OUT.

    Without --encode and --resize, the bytes of the images are copied and nothing of the labels is lost: a pack
    converted there and back has the same files again, pack.json aside. A damaged record is an error, and nothing
    is written. If images cannot be encoded again, they are listed, and the exit code is 1.

    \b
    Examples:
      packer convert imgs.lmdb imgs.hdf5
      packer convert imgs.lmdb small.lmdb --resize 128 --encode jpeg
      packer convert imgs.lmdb part.tfrecord --include chosen.txt
      packer convert imgs.lmdb cars.lmdb --map "bus,truck=car" --only-class car
    """
    from packer.repack.convert import convert as convert_pack

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = convert_pack(pack, out, progress, **given)
    if as_json:
        echo(json.dumps(asdict(report)))
    else:
        bad = [f"rejected: {printable(row.path)}: {row.problem}" for row in report.rejected]
        for line in shortened(bad, SHOWN_REJECTED, "packer info --rejected"):
            echo_error(line)
        if not quiet:
            left = f", {report.skipped:,} left out" if report.skipped else ""
            where = as_typed(printable(report.path), [out])
            echo(
                f"{where}: {plural(report.records, 'record')} in {plural(report.shards, 'shard')} "
                f"({report.container}, {report.encoding}{left}); "
                f"{size_text(report.bytes)} in {time_text(report.seconds)} "
                f"({size_text(report.bytes / max(report.seconds, 1e-3))}/s)"
            )
    if report.rejected:
        sys.exit(EXIT_BAD_DATA)


LAYOUTS = ("folder", "voc", "yolo", "list")


@click.command()
@click.argument("out", type=LocalPath())
@click.option("--layout", type=OneOf(LAYOUTS), default="folder", show_default=True, help="Kind of labels.")
@click.option("--count", default=200, show_default=True, help="Number of images.")
@click.option("--size", default=160, show_default=True, help="Approximate width and height in pixels.")
@click.option("--seed", default=0, show_default=True, help="Random seed; the same seed gives the same bytes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def sample(out: str, as_json: bool, quiet: bool, **drawing: Any) -> None:
    """Draw a folder OUT of labelled images to try packer with.

    \b
    folder  one folder per class
    voc     boxes as Pascal VOC XML, splits train and val
    yolo    boxes as YOLO text, data.yaml, splits train and val
    list    landmarks.csv: four landmarks and a class per image

    \b
    Examples:
      packer sample shapes --layout voc
      packer build shapes --resize 128x128 --fit pad
    """
    from packer.sources.synthetic import draw_sample

    with ProgressBar(hidden=quiet or as_json) as progress:
        progress.stage("drawing", drawing["count"])
        done = draw_sample(out, **drawing, progress=progress.advance)
    if as_json:
        echo(json.dumps(asdict(done)))
    elif not quiet:
        images, classes = plural(done.images, "image"), plural(len(done.classes), "class")
        echo(f"{as_typed(printable(done.path), [out])}: {images} of {classes}, layout {done.layout}")
        echo(f"pack it: packer build {printable(shlex.quote(out))}")
