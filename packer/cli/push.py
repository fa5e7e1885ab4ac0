"""`packer push`: copy a pack to a store."""

from __future__ import annotations

import json

import click

from packer.cli.output import ProgressBar, echo
from packer.cli.values import PackPath
from packer.errors import plural, size_text, time_text


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("url")
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def push(pack: str, url: str, quiet: bool, as_json: bool) -> None:
    """Copy PACK to URL in an object store, where no pack may be.

    Each file is verified before it is sent, and pack.json is written last. If it is interrupted, the same command
    resumes. Files elsewhere that an adopted pack refers to are copied along.

    \b
    Examples:
      packer push imgs.lmdb s3://bucket/imgs.lmdb
    """
    from dataclasses import asdict

    from packer.repack.push import push as push_pack

    with ProgressBar(hidden=quiet or as_json) as progress:
        report = push_pack(pack, url, progress)
        progress.close()
        if report.linked:
            there = plural(report.linked, "file that lies elsewhere is", "files that lie elsewhere are")
            progress.note(f"note: {there} copied along, so the digest of the pack there is {report.digest[:12]}")
        sent = "it was there already" if not report.sent else f"{report.sent} sent in {time_text(report.seconds)}"
        progress.note(f"{report.url}: {plural(report.files, 'file')}, {size_text(report.bytes)}; {sent}")
        progress.note(f'read it: packer.PackedDataset("{report.url}")')
    if as_json:
        echo(json.dumps(asdict(report)))
