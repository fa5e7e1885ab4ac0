"""`packer view`: show a pack in the browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from packer.cli.output import echo
from packer.cli.storing import cache_options
from packer.cli.values import PackPath
from packer.errors import plural, printable

if TYPE_CHECKING:
    pass
from typing import TYPE_CHECKING

from packer.cli.output import LocalPath
from packer.errors import UsageError

if TYPE_CHECKING:
    from packer.format.pack import Pack
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packer.format.pack import Pack


@click.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True, type=PackPath())
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: any free port]")
@click.option("--token", help="Secret part of the address, for one that stays the same.  [default: a random one]")
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@click.option(
    "--source",
    type=LocalPath(),
    help="Folder that the pack was built from, to compare images with their "
    "originals.  [default: the folder called like the pack, without its suffix]",
)
@click.option("--export", type=LocalPath(), help="Export a contact sheet (one HTML file) and exit.")
@click.option("--count", default=200, show_default=True, help="With --export: number of records.")
@click.option("--seed", type=click.IntRange(0), help="With --export: sample with this seed.  [default: take the first]")
@click.option("--export-marks", type=LocalPath(), metavar="FILE", help="Export the list of marked records and exit.")
@cache_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def view(packs: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Show PACK, a folder or a URL, in the browser.

    Images with their labels, filters, problems, charts, batches as in training, and marks: records to correct or to
    leave out of the next pack. Several packs are shown together, with the images that are in more than one.
    Listens on 127.0.0.1 only, at an address with a random token, until Ctrl-C.

    \b
    Examples:
      packer view imgs.lmdb
      packer view train.lmdb val.lmdb
      packer view imgs.lmdb --export sheet.html --count 100 --seed 0
      packer view imgs.lmdb --export-marks marks.txt
    """
    from packer.format.pack import join_packs, open_pack

    _check_together(given["export"], given["export_marks"])
    found = [open_pack(pack, given["cache_dir"], given["cache_bytes"]) for pack in packs]
    opened, names = found[0] if len(found) == 1 else join_packs(found), " + ".join(packs)
    if (out := given["export"] or given["export_marks"]) is not None:
        write = _sheet if given["export"] else _marks
        written, what = write(opened, out, given)
        facts = {"path": out, "records": written, "of": len(opened)}
        echo(json.dumps(facts) if as_json else f"{printable(out)}: {what}")
        return
    from packer.view.server import Server, opened_in_browser

    with Server(opened, given["port"], given["token"], source=given["source"]) as server:
        if as_json:
            echo(json.dumps({"url": server.url, "pack": names, "records": len(opened)}))
        else:
            echo(f"{printable(names)}: {plural(len(opened), 'record')} at {server.url}")
            echo("press Ctrl-C to stop")
        sys.stdout.flush()
        if given["no_browser"]:
            server.serve_forever()
        else:
            with opened_in_browser(server.url):
                server.serve_forever()  # returns at Ctrl-C


def _sheet(pack: Pack, out: str, given: Mapping[str, Any]) -> tuple[int, str]:
    from packer.view.export import export

    written = export(pack, out, given["count"], given["seed"])
    return written, f"{written:,} of {plural(len(pack), 'record')}"


def _marks(pack: Pack, out: str, given: Mapping[str, Any]) -> tuple[int, str]:
    from packer.view.export import write_beside
    from packer.view.marks import Marks

    if len(pack.packs) > 1:
        raise UsageError("--export-marks", "writes the list of one pack", "name one pack")
    marks = Marks(pack)
    count = len(marks.all())
    if not count:
        raise UsageError("--export-marks", "no record is marked", f"mark some: packer view {printable(pack.path)}")
    write_beside(pack, out, [marks.listing()], "--export-marks")
    return count, plural(count, "marked record")


def _check_together(export: str | None, export_marks: str | None) -> None:
    """Raise UsageError for an option that would have no effect."""
    source = click.get_current_context().get_parameter_source
    if export is not None:
        other, chosen = {"export_marks", "port", "token", "no_browser", "source"}, "--export"
    elif export_marks is not None:
        other, chosen = {"count", "seed", "port", "token", "no_browser", "source"}, "--export-marks"
    else:
        other, chosen = {"count", "seed"}, ""
    for name in sorted(other):
        if str(getattr(source(name), "name", "")) == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            if not chosen:
                raise UsageError(option, "needs --export", "add --export FILE.html, or leave it out")
            raise UsageError(option, f"has no effect with {chosen}", "leave one of them out")
