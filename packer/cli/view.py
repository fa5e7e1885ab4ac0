"""`packer view`: show a pack in the browser."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from packer.cli.cache import cache_options
from packer.cli.output import LocalPath, echo
from packer.errors import plural, printable


@click.command()
@click.argument("pack", type=click.Path())
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: any free port]")
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
@cache_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def view(pack: str, export: str | None, as_json: bool, **given: Any) -> None:
    """Show PACK, a folder or a URL, in the browser.

    Images with their labels, filters, charts, and shuffled batches. Listens on 127.0.0.1 only, at an address
    with a random token, until Ctrl-C.

    \b
    Examples:
      packer view imgs.lmdb
      packer view imgs.lmdb --export sheet.html --count 100 --seed 0
    """
    from packer.errors import UsageError
    from packer.format.pack import open_pack

    source = click.get_current_context().get_parameter_source
    other = {"count", "seed"} if export is None else {"port", "no_browser", "source"}
    for name in sorted(other):
        if str(getattr(source(name), "name", "")) == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            if export is None:
                raise UsageError(option, "needs --export", "add --export FILE.html, or leave it out")
            raise UsageError(option, "has no effect with --export", "leave one of them out")
    opened = open_pack(pack, given["cache_dir"], given["cache_bytes"])
    if export is not None:
        from packer.view.export import export as write

        written = write(opened, export, given["count"], given["seed"])
        facts = {"path": export, "records": written, "of": len(opened)}
        echo(json.dumps(facts) if as_json else f"{printable(export)}: {written:,} of {plural(len(opened), 'record')}")
        return
    from packer.view.server import Server, opened_in_browser

    with Server(opened, given["port"], given["source"]) as server:
        if as_json:
            echo(json.dumps({"url": server.url, "pack": pack, "records": len(opened)}))
        else:
            echo(f"{printable(pack)}: {plural(len(opened), 'record')} at {server.url}")
            echo("press Ctrl-C to stop")
        sys.stdout.flush()
        if given["no_browser"]:
            server.serve_forever()
        else:
            with opened_in_browser(server.url):
                server.serve_forever()  # returns at Ctrl-C
