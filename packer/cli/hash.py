"""`packer hash`: print the digest of what a pack holds."""

from __future__ import annotations

import json
from typing import Any

import click

from packer.cli.cache import cache_options
from packer.cli.output import ProgressBar, echo
from packer.cli.values import PackPath
from packer.errors import printable


@click.command(name="hash")
@click.argument("pack", type=PackPath())
@click.option("--deep", is_flag=True, help="Read and verify every image, and digest the bytes themselves.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@cache_options
@click.option("--quiet", is_flag=True, help="Show no progress.")
def hash_command(pack: str, deep: bool, as_json: bool, quiet: bool, **cached: Any) -> None:
    """Print one digest of the records of PACK, a folder or a URL.

    It is the same in any container: it covers the keys, the stored images, the labels and the names of their
    classes, and not how they are cut into shards. Without --deep it is computed from the checksums in the indexes,
    in moments, and is the "content" of packer info --json. The two kinds are not comparable.

    \b
    Examples:
      packer hash imgs.lmdb
      packer hash imgs.lmdb --deep
    """
    from packer.format.content import content_digest, deep_digest
    from packer.format.pack import open_pack

    opened = open_pack(pack, **cached)
    with ProgressBar(hidden=quiet or as_json) as progress:
        digest = deep_digest(opened, progress) if deep else content_digest(opened.indexes, opened.manifest)
    if as_json:
        echo(json.dumps({"path": pack, "deep": deep, "content": digest, "records": len(opened)}))
    else:
        echo(f"{digest}  {printable(pack)}")
