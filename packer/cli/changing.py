"""Commands that change a pack in place, and list its versions: `packer edit`, `update`, `purge` and `log`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from packer.cli.output import LocalPath, ProgressBar, Told, as_typed, echo, echo_error, telling
from packer.cli.values import OneOf, PackPath, build_option, class_options, label_options
from packer.errors import EXIT_BAD_DATA, UsageError, plural, printable, size_text, time_text
from packer.packing.option_table import LABEL_OPTIONS

if TYPE_CHECKING:
    from packer.repack.purge import PurgeReport


@click.command()
@click.argument("pack", type=PackPath())
@build_option("out", help="Path of a new pack, of links to the files of PACK.  [default: change PACK]")
@click.option(
    "--delete",
    type=LocalPath(),
    metavar="FILE",
    help="Delete the records in FILE: one path, name, glob or key per line, or the marks of packer view.",
)
@click.option(
    "--problems",
    multiple=True,
    metavar="KIND",
    help="Delete the records in which packer stats --problems --json finds this kind; of duplicates, all but the "
    "first. Masks and maps are read for it.",
)
@build_option(
    "labels",
    default=None,
    help="With --source: kind of labels to read again, as for packer build: coco:new.json, voc, auto, ... May be "
    "repeated.  [default: as PACK was built]",
)
@click.option(
    "--source",
    metavar="SRC",
    help="Read the labels in SRC again, for the records whose images are in SRC, unchanged.",
)
@label_options
@click.option(
    "--labels-from",
    type=PackPath(),
    metavar="PACK",
    help="Give records the labels of another pack, joined by path and digest of the source files.",
)
@class_options
@click.option(
    "--set",
    nargs=2,
    multiple=True,
    metavar="NAME=VALUE FILE",
    help="Set a field of extras of the records in FILE; VALUE is text or JSON, null removes the field.",
)
@build_option("overwrite")
@telling()
def edit(pack: str, out: str | None, problems: tuple[str, ...], progress: ProgressBar, **given: Any) -> Told:
    """Give PACK other labels, or delete some of its records.

    No image is read or copied: only indexes are written. Without --out, PACK gets a new version. The earlier ones stay
    under the names PACK@1, PACK@2 and so on, which any command takes; packer log lists them. Records are deleted
    first, then get the labels of SRC or of another pack, other classes, and extras.

    \b
    Examples:
      packer edit imgs.lmdb --map "bus,truck=car"
      packer edit imgs.lmdb --delete marks.tsv
      packer edit imgs.lmdb --labels coco:corrected.json --source ./imgs
      packer edit imgs.lmdb -o fixed.lmdb --labels-from relabelled.lmdb
      packer edit imgs.lmdb -o marked.lmdb --set split=val val.txt
    """
    from packer.repack.edit import edit as edit_pack
    from packer.repack.links import shards_text

    given["labels"] = given["labels"] or ()
    reading = {name: given.pop(name) for name in LABEL_OPTIONS}
    given["reading"] = {name: value for name, value in reading.items() if value not in (None, (), False)}
    if problems:
        from packer.format.pack import open_pack
        from packer.stats.problems import records_with

        if given["delete"] is not None:
            raise UsageError("--problems", "excludes --delete", "leave out one of them, or edit the new pack")
        given["delete"] = records_with(open_pack(pack), problems, progress)
    report = edit_pack(pack, out, **given, progress=progress)
    manifest = report.manifest
    counts = (report.deleted, "deleted"), (report.left_out, "left out"), (report.relabelled, "labelled anew")
    said = "".join(f", {count:,} {what}" for count, what in counts if count)
    indexes = f", {report.indexes:,} with another index" if report.indexes else ""
    shards = shards_text(report.shards) if report.version is None else plural(sum(report.shards.values()), "shard")
    name = report.path if report.version is None else f"{report.path}, version {report.version}"
    lines = [
        f"{printable(name)}: {plural(manifest.records, 'record')}{said}; "
        f"{plural(len(manifest.classes), 'class')}; {shards}{indexes}; {time_text(report.seconds)}",
    ]
    if report.version is None:
        lines.append(f'read it: packer.PackedDataset("{printable(report.path)}")')
    else:
        lines.append(f"as it was: {printable(report.path)}@{report.version - 1}")
    told = ("path", "version", "deleted", "left_out", "relabelled", "shards", "indexes", "notes")
    facts: dict[str, Any] = {name: getattr(report, name) for name in told} | {
        "records": manifest.records,
        "counts": dict(manifest.counts),
        "classes": list(manifest.classes),
        "class_changes": [asdict(change) for change in report.class_changes],
        "seconds": round(report.seconds, 3),
    }
    return facts, [as_typed(line, [pack, *filter(None, [out])]) for line in lines]


MOST_NAMES = 5


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("source", metavar="[SRC]", required=False, type=click.Path())
@click.option(
    "--check",
    type=OneOf(("time", "digest")),
    default="time",
    show_default=True,
    help="How changed images are found: by time, and by digest where that is not sure; or all by digest.",
)
@click.option("--dry-run", is_flag=True, help="Only say what has changed.")
@click.option(
    "--compact",
    metavar="N%|never",
    default="20%",
    show_default=True,
    help="Write a shard again without its dead records if they are more than this share of its bytes.",
)
@build_option("labels", help="Kind of labels, if PACK was built with a file that is not below SRC. May be repeated.")
@click.option(
    "--max-bad",
    metavar="N|N%",
    help="Maximum number or percentage of bad inputs in SRC.  [default: as many as PACK has rejected]",
)
@build_option("quarantine")
@build_option("workers")
@build_option("scratch", help="With PACK at a URL: folder for unfinished shards.  [default: that for temporary files]")
@telling()
def update(pack: str, source: str | None, progress: ProgressBar, **given: Any) -> Told:
    """Bring PACK up to date with SRC, which it was built from.

    New, changed and removed images are found, and labels that have changed; what is new or changed is packed with the
    options of the build, as new shards. PACK gets a new version, which has the records that a build of SRC would have;
    the earlier ones stay under the names PACK@1, PACK@2 and so on. If it is interrupted, the same command resumes.

    SRC may be left out on the machine of the build. PACK and SRC may be URLs; a pack at a URL keeps no versions.

    \b
    Examples:
      packer update imgs.lmdb --dry-run
      packer update imgs.lmdb
      packer update imgs.lmdb ./imgs --check digest
      packer update s3://bucket/imgs.lmdb s3://bucket/imgs
    """
    from packer.repack.update import update as update_pack

    report = update_pack(pack, source, progress, **{name: value for name, value in given.items() if value != ()})
    kinds = (("new", report.new), ("changed", report.changed), ("removed", report.removed))
    counts = ", ".join(f"{len(names):,} {what}" for what, names in kinds if names)
    compacted = f"; {plural(report.compacted, 'shard')} compacted" if report.compacted else ""
    name = printable(report.path if report.version is None else f"{report.path}, version {report.version}")
    lines = []
    if not report.is_changed:
        lines.append(f"{name}: nothing to do: {printable(report.source)} is as when it was packed")
    elif report.dry_run:
        lines.append(f"{name}: {counts}{compacted.replace('compacted', 'to be compacted')}")
        for what, names in kinds:
            lines += [f"{what}: {printable(path)}" for path in names[:MOST_NAMES]]
            lines += [f"{what}: {len(names) - MOST_NAMES:,} more"] if len(names) > MOST_NAMES else []
    else:
        records = plural(report.manifest.records, "record")
        shards = f"; {plural(report.shards, 'new shard')}" if report.shards else ""
        lines.append(
            f"{name}: {counts or 'other lists of inputs'}; {records}{shards}{compacted}; {time_text(report.seconds)}"
        )
        if report.version is not None:
            lines.append(f"as it was: {printable(report.path)}@{report.version - 1}")
    told = (
        *("path", "source", "version", "new", "changed", "removed", "rejected", "shards", "compacted", "dry_run"),
        "notes",
    )
    facts: dict[str, Any] = {name: getattr(report, name) for name in told} | {
        "records": report.manifest.records,
        "counts": dict(report.manifest.counts),
        "classes": list(report.manifest.classes),
        "seconds": round(report.seconds, 3),
    }
    return facts, [as_typed(line, [pack, *filter(None, [source])]) for line in lines]


@click.command()
@click.argument("pack", type=PackPath())
@telling()
def log(pack: str, progress: ProgressBar) -> Told:
    """List the versions of PACK: what made each, when, and of what.

    A version is a pack under the name PACK@2, for every command and for packer.PackedDataset. PACK is the last one.

    \b
    Examples:
      packer log imgs.lmdb
      packer diff imgs.lmdb@1 imgs.lmdb@2
      packer edit imgs.lmdb@1 -o again.lmdb --map "bus=car"
    """
    from packer.packing.publish_version import versions_of

    found, lines = versions_of(pack), []
    for version in reversed(found):
        made = version.made
        counts = "".join(f", {count:,} {printable(name.replace('_', ' '))}" for name, count in made.counts.items())
        lines.append(f"{printable(version.path)}: {plural(version.records, 'record')}{counts}; {made.date}")
        lines.append(f"  {printable(made.command)}")
        lines += [f"  digest {made.digest}", *(f"  parent {parent}" for parent in made.parents)]
    return {"path": pack, "versions": [version.to_json() for version in found]}, lines


@click.command()
@click.argument("pack", type=PackPath())
@click.option("--dry-run", is_flag=True, help="Only say what would be erased.")
@click.option(
    "--forget-paths",
    is_flag=True,
    help="Let the paths of the erased images leave the lists of skipped and excluded ones, too. An update brings them "
    "back if they are still in the source.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print only errors, and where bytes remain.")
def purge(pack: str, as_json: bool, quiet: bool, **given: bool) -> None:
    """Erase the deleted records of PACK from all of its files.

    What packer edit --delete and packer update delete stays in the shards, and in the earlier versions of PACK. This
    writes the shards that hold it again, without it; the others stay as they are. Earlier versions keep what the
    newest one has. Where bytes remain that packer does not change, such as those of another pack that shares the
    file, it says so, and the exit code is 1.

    \b
    Examples:
      packer purge imgs.lmdb --dry-run
      packer purge imgs.lmdb
    """
    from packer.repack.purge import purge as purge_pack

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = purge_pack(pack, **given, progress=progress)
    if as_json:
        facts = {name: value for name, value in asdict(report).items() if name != "seconds"}
        echo(json.dumps({**facts, "complete": report.complete, "seconds": round(report.seconds, 3)}))
    else:
        for line in [] if quiet else _purged(report):
            echo(as_typed(line, [pack]))
        for one in report.remains:
            echo_error(as_typed(f"remains: {one}", [pack]))
    if not report.complete:
        sys.exit(EXIT_BAD_DATA)


def _purged(report: PurgeReport) -> list[str]:
    """Return what was erased, or would be."""
    name, verb = printable(report.path), "would erase" if report.dry_run else "erased"
    notes = [f"note: {printable(note)}" for note in report.notes]
    if not (report.records or report.files or report.version):
        return [*notes, f"{name}: nothing to erase"]
    versions = f", {plural(report.versions, 'earlier version')}" if report.versions else ""
    written, removed = ("to write", "to remove") if report.dry_run else ("written", "removed")
    lines = [
        f"{name}: {verb} {plural(report.records, 'record')} ({size_text(report.bytes)}) in {report.shards:,} of "
        f"{plural(report.of_shards, 'shard')}{versions}; {size_text(report.written_bytes)} {written}; "
        f"{time_text(report.seconds)}",
        f"{name}: {plural(report.files, 'file')} {removed}",
    ]
    return [*notes, *lines[: 1 + bool(report.files)]]
