"""`packer clean`: remove what unfinished and replaced packs have left in a store."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from packer.cli.output import ProgressBar, echo
from packer.errors import UsageError, plural, printable, size_text

SHOWN = 20


@click.command()
@click.argument("url")
@click.option("--yes", is_flag=True, help="Remove them, rather than only list them.")
@click.option(
    "--older-than", type=float, default=24.0, show_default=True, metavar="HOURS", help="Age of what may be removed."
)
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def clean(url: str, yes: bool, older_than: float, quiet: bool, as_json: bool) -> None:
    """List and remove what builds have left at URL.

    Without --yes, they are only listed.

    Only objects with names that packer makes, which the pack at URL does not need, and which are older than a day.
    Whoever reads a pack that was replaced has a day, too.

    \b
    Examples:
      packer clean s3://bucket/imgs.lmdb
      packer clean s3://bucket/imgs.lmdb --yes
    """
    from packer.repack.clean import clean as remove
    from packer.repack.clean import find_unreferenced

    if older_than < 0:
        raise UsageError("--older-than", f"must be at least 0, got {older_than:g}")
    found = find_unreferenced(url, older_than * 3600)
    with ProgressBar(hidden=quiet or as_json) as progress:
        if yes:
            remove(found, progress)
        progress.close()
        for one in found.objects[:SHOWN]:
            progress.note(f"{'removed' if yes else 'left over'}: {printable(one.name)}: {size_text(one.size)}")
        if len(found.objects) > SHOWN:
            progress.note(f"... and {len(found.objects) - SHOWN} more (--json lists all)")
        done = f"{_count(found.objects)} {'removed' if yes else 'left over; --yes removes them'}"
        progress.note(f"{found.url}: {done if found.objects else 'nothing is left over'}")
        if found.recent:
            progress.note(f"note: {_count(found.recent)} not needed, but newer than {older_than:g} h: see --older-than")
        if found.unknown:
            progress.note(f"note: {_count(found.unknown)} of a pack whose pack.json is missing: kept, as the only copy")
    if as_json:
        groups = {"objects": found.objects, "recent": found.recent, "unknown": found.unknown}
        names = {group: [one.name for one in objects] for group, objects in groups.items()}
        echo(json.dumps({"url": found.url, "removed": yes, **names}))


def _count(objects: Sequence[tuple[str, int, str | None, float]]) -> str:
    return f"{plural(len(objects), 'object')} ({size_text(sum(one[1] for one in objects))})"
