"""`packer merge`: several packs as one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from packer.cli.output import LocalPath, ProgressBar, as_typed, echo
from packer.cli.values import OneOf, PackPath
from packer.errors import plural, printable, time_text

if TYPE_CHECKING:
    from packer.repack.merge import MergeReport


@click.command()
@click.argument("packs", type=PackPath(), nargs=-1, required=True)
@click.option("-o", "--out", type=click.Path(), required=True, help="Path of the new pack.")
@click.option(
    "--classes",
    type=LocalPath(),
    metavar="FILE",
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
@click.option("--overwrite", is_flag=True, help="Replace an existing pack.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def merge(packs: tuple[str, ...], quiet: bool, as_json: bool, **given: Any) -> None:
    """Merge PACKS into one, without copying their images.

    Shards are hard links where the file system allows, and classes are joined by name. New data need no new build of
    the old: build the new folder, and merge.

    \b
    Examples:
      packer build ./new -o new.lmdb
      packer merge old.lmdb new.lmdb -o all.lmdb
      packer merge a.lmdb b.lmdb -o all.lmdb --duplicates drop
    """
    from packer.repack.merge import merge as merge_packs

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = merge_packs(packs, **given, progress=progress)
        progress.close()
        for line in _lines(report):
            progress.note(as_typed(line, [given["out"], *packs]))
    if as_json:
        echo(json.dumps(_facts(report)))


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
    from dataclasses import asdict

    manifest = report.manifest
    return {
        "path": report.path,
        "records": manifest.records,
        "counts": dict(manifest.counts),
        "classes": list(manifest.classes),
        "shards": report.shards,
        "relabelled": report.relabelled,
        "duplicates": {**asdict(report.duplicates), "dropped": report.dropped},
        "made_from": [asdict(origin) for origin in manifest.made_from],
        "notes": list(report.notes),
        "seconds": round(report.seconds, 3),
    }
