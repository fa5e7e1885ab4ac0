"""`packer adopt`: a pack of files that other tools wrote, in place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from packer.cli.build_report import rejected_lines
from packer.cli.options import build_option
from packer.cli.output import LocalPath, ProgressBar, as_typed, counts_text, echo
from packer.errors import plural, printable, size_text, time_text

if TYPE_CHECKING:
    from packer.repack.adopt import AdoptReport


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
    "--labels",
    multiple=True,
    type=LocalPath(),
    metavar="FILE",
    help="Labels of a file that has none: .npy, or IDX. Once for each of FILES.",
)
@build_option("classes", help="Class names in id order, one per line; or a pack.")
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
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def adopt(files: tuple[str, ...], columns: tuple[str, ...], quiet: bool, as_json: bool, **options: object) -> None:
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

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = adopt_files(files, progress=progress, columns=columns, **options)  # type: ignore[arg-type]
        progress.close()
        for line in _lines(report):
            progress.note(as_typed(line, [str(options["out"]), *files]))
    if as_json:
        echo(json.dumps(_facts(report)))


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
        "counts": dict(manifest.counts),
        "classes": list(manifest.classes),
        "rejected": as_json(read_list(report.path, "rejected", manifest)),
        "notes": list(manifest.notes),
    }
