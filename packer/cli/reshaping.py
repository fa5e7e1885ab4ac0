"""Commands that make something of packs: `packer merge`, `split`, `extract`, `repair`, `index` and `attach`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from packer.cli.output import LocalPath, ProgressBar, Told, as_typed, echo, echo_error, shortened, telling
from packer.cli.values import OneOf, PackPath, build_option, class_options
from packer.errors import EXIT_BAD_DATA, UsageError, option, plural, printable, size_text, time_text

if TYPE_CHECKING:
    from packer.repack.merge import MergeReport


@click.command()
@click.argument("packs", type=PackPath(), nargs=-1, required=True)
@build_option("out", required=True, help="Path of the new pack.")
@build_option(
    "classes",
    help="Class names in the order of their ids, one per line; or a pack.  [default: those of the first pack, then "
    "those that the next ones add]",
)
@click.option(
    "--duplicates",
    default="keep",
    show_default=True,
    type=OneOf(("keep", "drop", "fail")),
    help="Records whose image files have the same bytes as an earlier one.",
)
@class_options
@build_option("overwrite")
@telling()
def merge(packs: tuple[str, ...], progress: ProgressBar, **given: Any) -> Told:
    """Merge PACKS into one, without copying their images.

    Shards are hard links where the file system allows, and classes are joined by name. New data need no new build of
    the old: build the new folder, and merge.

    \b
    Examples:
      packer build ./new -o new.lmdb
      packer merge old.lmdb new.lmdb -o all.lmdb
      packer merge a.lmdb b.lmdb -o all.lmdb --duplicates drop
      packer merge a.lmdb b.lmdb -o all.lmdb --map "bus,truck=car"
    """
    from packer.repack.merge import merge as merge_packs

    report = merge_packs(packs, **given, progress=progress)
    return _facts(report), [as_typed(line, [given["out"], *packs]) for line in _lines(report)]


def _lines(report: MergeReport) -> list[str]:
    from packer.repack.links import shards_text
    from packer.repack.merge import duplicates_text

    manifest, found = report.manifest, report.duplicates
    lines = [f"note: {printable(note)}" for note in report.notes]
    if found.records:
        kept = f"{report.dropped:,} dropped" if report.dropped else "kept; --duplicates drop leaves them out"
        lines += [f"duplicates: {duplicates_text(found)}: {kept}", *(f"duplicate: {text}" for text in found.examples)]
    relabelled = f", {report.relabelled:,} with other class ids" if report.relabelled else ""
    return [
        *lines,
        f"merged {plural(len(manifest.made_from), 'pack')}: {plural(manifest.records, 'record')}, "
        f"{plural(len(manifest.classes), 'class')}; {shards_text(report.shards)}{relabelled}; "
        f"{time_text(report.seconds)}",
        f'read it: packer.PackedDataset("{printable(report.path)}")',
    ]


def _facts(report: MergeReport) -> dict[str, Any]:
    manifest = report.manifest
    return {
        "path": report.path,
        "records": manifest.records,
        "counts": dict(manifest.counts),
        "classes": list(manifest.classes),
        "shards": report.shards,
        "relabelled": report.relabelled,
        "duplicates": {**asdict(report.duplicates), "dropped": report.dropped},
        "class_changes": [asdict(change) for change in report.class_changes],
        "made_from": [asdict(origin) for origin in manifest.made_from],
        "notes": list(report.notes),
        "seconds": round(report.seconds, 3),
    }


@click.command()
@click.argument("pack", type=PackPath())
@click.option("--parts", required=True, metavar="NAME=SHARE,...", help="Names and shares: train=0.8,val=0.2.")
@click.option("--stratify", is_flag=True, help="Give each part its share of each class.")
@click.option(
    "--group",
    metavar="COLUMN",
    help="Keep records with an equal value in one part: folder (of the path), source (equal files), near (near "
    "duplicates; near=BITS and mirrored as for packer stats), or a field of extras.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random order.")
@build_option("out", metavar="DIR", help="Folder for the parts.  [default: that of PACK]")
@click.option("--lists", is_flag=True, help="Write lists of paths for packer build --include instead of packs.")
@build_option("overwrite", help="Replace existing parts.")
@telling()
def split(pack: str, out: str | None, overwrite: bool, progress: ProgressBar, **given: Any) -> Told:
    """Split PACK into parts without copying its images.

    The parts are called PACK-train and so on. Each record is in one of them. The same options give the same parts, on
    any machine.

    \b
    Examples:
      packer split imgs.lmdb --parts train=0.8,val=0.1,test=0.1 --stratify
      packer split faces.lmdb --parts train=0.9,val=0.1 --group person
    """
    from packer.repack.links import shards_text
    from packer.repack.split import SplitOptions
    from packer.repack.split import split as split_pack

    report = split_pack(pack, SplitOptions(**given), out, overwrite, progress)
    lines = [f"note: {note}" for note in report.notes]
    for part in report.parts:
        shards = f", {shards_text(part.shards)}" if part.shards else ""
        where = as_typed(printable(part.path), [out or os.path.dirname(pack)])
        lines.append(f"{printable(part.name)}: {plural(part.records, 'record')}{shards}: {where}")
    return asdict(report), lines


def _layout_names() -> tuple[str, ...]:
    from packer.repack.layouts import layout_names

    return layout_names()


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("out", type=LocalPath())
@click.option(
    "--layout",
    type=OneOf(("folder", "voc", "yolo", "coco", "list"), _layout_names),
    default="folder",
    show_default=True,
    help="Kind of labels.",
)
@build_option("include", help="Extract only the images in FILE: one path, name, glob or key per line.")
@build_option("exclude", help="Leave out the images in FILE, in the same form.")
@build_option("overwrite", help="Replace a folder that was extracted.")
@telling()
def extract(pack: str, out: str, overwrite: bool, progress: ProgressBar, **given: Any) -> Told:
    """Write the images and labels of PACK to the new folder OUT.

    Encoded images are written byte for byte, raw ones as PNG. packer build reads the folder to an equal pack again;
    the command is printed. What a layout cannot hold is counted. packer export is another name of this command.

    \b
    Examples:
      packer extract imgs.lmdb ./imgs
      packer extract voc.hdf5 ./yolo --layout yolo
    """
    from packer.repack.extract import ExtractOptions
    from packer.repack.extract import extract as extract_pack

    report = extract_pack(pack, out, ExtractOptions(**given), overwrite, progress)
    renamed = f", {report.renamed:,} of them renamed" if report.renamed else ""
    where, again = (as_typed(printable(text), [out]) for text in (report.path, shlex.join(report.build)))
    return asdict(report), [
        *(f"note: {note}" for note in report.notes),
        *(f"not in {report.layout}: {printable(what)} ({count:,})" for what, count in report.lost.items()),
        f"{where}: {plural(report.images, 'image')}{renamed}; {time_text(report.seconds)}",
        f"pack it again: {again}",
    ]


SHOWN_LOST = 20


@click.command()
@click.argument("pack", type=PackPath())
@click.option("-o", "--out", type=LocalPath(), help="Path of the new pack, if one is needed.  [default: PACK.repaired]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print only what is lost.")
def repair(pack: str, out: str | None, as_json: bool, quiet: bool) -> None:
    """Repair PACK, or save what is left of it.

    Files that can be rebuilt byte for byte, as their digests prove, are restored in place. If that is not
    enough, or with --out, PACK is left unchanged and everything that can be saved goes into a new pack. Lost
    records are listed, and the exit code is then 1.

    \b
    Examples:
      packer repair imgs.lmdb
      packer repair imgs.lmdb --out /other/disk/imgs.lmdb --json
    """
    from packer.format.salvage import repair as repair_pack

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = repair_pack(pack, out, progress)
    if as_json:
        echo(json.dumps({**asdict(report), "lost_records": report.lost_records}))
    else:
        name = printable(pack)
        for line in shortened([f"{name}: lost: {printable(str(entry))}" for entry in report.lost], SHOWN_LOST):
            echo_error(line)
        if not quiet:
            for note in report.notes:
                echo(f"{name}: {printable(note)}")
            for restored in report.restored:
                echo(f"{name}: {printable(restored)}: restored byte for byte")
            if report.out is None:
                echo(f"{name}: whole: {plural(report.records, 'record')}")
            else:
                saved, lost = plural(report.records, "record"), plural(report.lost_records, "record is", "records are")
                echo(f"{printable(report.out)}: a new pack of {saved}; {lost} lost")
    if report.lost:
        sys.exit(EXIT_BAD_DATA)


@click.command()
@click.argument("pack", type=PackPath())
@click.option(
    "--interval",
    default="row",
    show_default=True,
    type=OneOf(("row", "4")),
    help="An entry per row of blocks, or per four blocks: larger, faster for small crops of large images.",
)
@click.option("--remove", is_flag=True, help="Remove the index.")
@build_option("workers")
@telling()
@click.pass_context
def index(context: click.Context, /, pack: str, remove: bool, progress: ProgressBar, **given: Any) -> Told:
    """Make an index of the JPEGs in PACK, for faster crops.

    With it, a crop is decoded without what comes before it in the JPEG. It is in
    files beside the shards; the pack itself stays as it is. An index that is
    there is replaced. If it is interrupted, the same command resumes. Needs
    packer-fast.

    \b
    Examples:
      packer index imgs.lmdb
      packer index imgs.lmdb --interval 4
      packer index imgs.lmdb --remove
    """
    from packer.repack.index_jpegs import index_jpegs, remove_jpeg_index

    if remove and context.get_parameter_source("interval") != click.core.ParameterSource.DEFAULT:
        raise UsageError("--interval", "is for an index that is made, not for --remove", "leave it out")
    facts = asdict(remove_jpeg_index(pack) if remove else index_jpegs(pack, **given, progress=progress))
    return facts, removed_lines(facts) if remove else made_lines(facts)


def removed_lines(facts: dict[str, Any]) -> list[str]:
    """Return what was removed."""
    if not facts["files"]:
        return [f"{printable(facts['path'])}: has no index of JPEGs"]
    return [f"{printable(facts['path'])}: {plural(facts['files'], 'file')} removed, {size_text(facts['bytes'])}"]


def made_lines(facts: dict[str, Any]) -> list[str]:
    """Return what was indexed, and why the rest was not."""
    records = plural(facts["records"], "record")
    lines = [
        f"{printable(facts['path'])}: {facts['indexed']:,} of {records} indexed: {size_text(facts['bytes'])}, "
        f"{100 * facts['share']:.2g} % of the pack, in {time_text(facts['seconds'])}"
    ]
    if facts["ms_per_image"]:
        lines[0] += f" ({facts['ms_per_image']:.2f} ms per image)"
    if facts["kept"]:
        lines.append(f"note: {plural(facts['kept'], 'shard was', 'shards were')} indexed before")
    if facts["without"]:
        reasons = ", ".join(f"{count:,} {printable(why)}" for why, count in facts["without"].items())
        lines.append(f"without an index: {reasons}")
    return lines


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("where", type=LocalPath(), required=False)
@click.option("--as", "name", metavar="NAME", help="What to call it.")
@click.option("--fingerprints", is_flag=True, help="In place of WHERE: the fingerprints that packer build makes.")
@click.option(
    "--kind",
    type=OneOf(("array", "text", "json", "mask", "map", "image", "boxes", "labels")),
    help="What it is; pixels and predictions (boxes, labels) need it.  [default: numbers are an array, texts are text]",
)
@click.option(
    "--column",
    metavar="COL",
    help="Column of a table.  [default: the only one, the one called NAME, or that of the captions]",
)
@click.option("--mask-values", metavar="FORM", help="What the pixels of masks mean, as for packer build.")
@click.option(
    "--ignore-id", type=int, metavar="N", help="Value of masks that is no class, of maps where nothing is known."
)
@click.option(
    "--extra-rows",
    type=OneOf(("fail", "skip")),
    default="fail",
    show_default=True,
    help="What to do with rows and files of no record, such as those of the other packs of a split.",
)
@click.option(
    "--classes",
    metavar="FILE|0|1",
    help="What class ids of predictions mean: names (a list, data.yaml, a COCO file, JSON), or the id of the pack's "
    "first class.  [default: the COCO ids that the pack keeps; else the pack's classes, from 0]",
)
@click.option(
    "--frame",
    type=OneOf(("source", "packed", "relative")),
    help="Where predicted boxes are: in pixels of the source image or of the packed one, or in shares of its sides.  "
    "[default: relative in YOLO's files, else source]",
)
@telling()
def attach(
    pack: str, where: str | None, name: str | None, fingerprints: bool, progress: ProgressBar, **given: Any
) -> Told:
    """Attach embeddings, captions, masks or the like to PACK.

    WHERE is a .npy file in the order of the records; a table (.npz, .parquet, .csv, .tsv, .jsonl) with a column of
    keys or paths; or a folder with a .npy, .txt or .json file or a picture for each image, of its name, or a pattern of
    these with {dir}, {stem} and {name}. Predictions are COCO results (.json), a folder of YOLO's .txt files, or a
    table. Each record must have one row, and of boxes any number. It is in files beside the shards; the pack stays as
    it is, and no image is read but for --fingerprints.

    \b
    Examples:
      packer attach imgs.lmdb clip.npy --as embedding
      packer attach imgs.lmdb captions.csv --as caption --kind text
      packer attach imgs.lmdb ./captions --as caption
      packer attach imgs.lmdb ./depth --as depth --kind map
      packer attach imgs.lmdb results.json --as pred --kind boxes
      packer attach imgs.lmdb --fingerprints
    """
    from packer.repack.attach import COMPARED
    from packer.repack.attach import attach as attach_to_pack
    from packer.repack.fingerprints import attach_fingerprints

    if fingerprints:
        others = {"WHERE": where, "as": name, **given, "extra_rows": given["extra_rows"] != "fail"}
        if asked := next((other for other, value in others.items() if value), None):
            what = asked if asked == "WHERE" else option(asked.replace("_", "-"))
            raise UsageError(option("fingerprints"), f"are made of the images, without {what}", f"leave {what} out")
        report = attach_fingerprints(pack, progress)
        use = f"use them: packer stats {as_typed(printable(report.path), [pack])} --duplicates near"
    elif where is None or name is None:
        raise UsageError("WHERE" if where is None else option("as"), "is missing", "packer attach PACK WHERE --as NAME")
    else:
        report = attach_to_pack(pack, where, name, **given, progress=progress)
        use = f'read it: packer.PackedLoader("{printable(pack)}", batch_size=32, parts=("{report.name}",))'
    path = as_typed(printable(report.path), [pack])
    return asdict(report), [
        *(f"note: {note}" for note in report.notes),
        f"{path}: {report.text}; {plural(report.records, 'record')} {report.joined}, {time_text(report.seconds)}",
        use,
        *([f"judge it: packer stats {path} --compare {report.name}"] if report.kind in COMPARED else []),
    ]


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("name")
@telling()
def detach(pack: str, name: str, progress: ProgressBar) -> Told:
    """Remove from PACK what was attached as NAME.

    \b
    Example:
      packer detach imgs.lmdb embedding
    """
    from packer.repack.attach import detach as detach_from_pack

    report = detach_from_pack(pack, name)
    path = as_typed(printable(report.path), [pack])
    return asdict(report), [f"{path}: {report.name} removed, {size_text(report.bytes)}"]
