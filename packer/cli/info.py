"""`packer info`: show the manifest of a pack, and which of its files are missing."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from packer.cli.cache import cache_options
from packer.cli.output import counts_text, echo
from packer.cli.values import PackPath
from packer.errors import DamagedPack, as_options, plural, printable, size_text
from packer.stores import is_url

if TYPE_CHECKING:
    from packer.format.manifest import Manifest

SHOWN_CLASSES = 20


@click.command()
@click.argument("pack", type=PackPath())
@cache_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--rejected", is_flag=True, help="List the rejected inputs with their reasons.")
@click.option("--changed", is_flag=True, help="List the boxes that --boxes clipped or dropped, and damaged images.")
@click.option("--skipped", is_flag=True, help="List the skipped inputs with their reasons.")
@click.option("--command", is_flag=True, help="Print only the command that made it, with SRC for the source.")
def info(
    pack: str, as_json: bool, command: bool, cache_dir: str | None, cache_bytes: str | None, **lists: bool
) -> None:
    """Show what PACK, a folder or a URL, holds and how it was built.

    With --json, the indexes of a pack at a URL are fetched into the cache.

    \b
    Example:
      packer info imgs.lmdb
    """
    from packer.format.lists import as_json as list_as_json
    from packer.format.lists import read_list
    from packer.format.objects import manifest_of
    from packer.packing.recorded import command_of

    manifest = manifest_of(pack)
    if as_json:
        asked = {name: list_as_json(read_list(pack, name, manifest)) for name, is_asked in lists.items() if is_asked}
        command_line = {"command": command_of(manifest, pack)}
        found = {"missing": missing_files(pack, manifest), "content": content(pack, manifest, cache_dir, cache_bytes)}
        found |= jpeg_index_facts(pack, manifest)
        echo(json.dumps({**facts(pack, manifest), **found, **command_line, **asked}))
        return
    if command:
        echo(command_of(manifest, pack))
        return
    for name, value in rows(manifest):
        echo(f"{name:<10} {printable(value)}")
    for value in jpeg_index_facts(pack, manifest).values():
        echo(f"JPEG index {value['text']}")
    for name in missing_files(pack, manifest):
        step = f"packer repair {printable(pack)} restores what it can"
        if is_url(pack):
            step = "restore the object, or push the pack again"
        if manifest.linked.get(name):  # a file of another tool
            path = os.path.normpath(manifest.path_of(pack, name))
            step = f"is not at {printable(path)}; put it back, or adopt it again"
        echo(f"missing    {printable(name)}: {step}")
    if lists["rejected"]:
        for entry in read_list(pack, "rejected", manifest):
            echo(f"{printable(entry.path)}: {entry.problem}")
    if lists["changed"]:
        for entry in read_list(pack, "changed", manifest):
            after = f" -> {printable(entry.after)}" if entry.after else ""
            where = printable(entry.path)
            if entry.box:
                where += f": {printable(entry.label)}: box {printable(entry.box)}"
            echo(f"{where}: {printable(entry.change)}: {printable(entry.before)}{after}")
    if lists["skipped"]:
        for entry in read_list(pack, "skipped", manifest):
            echo(f"{printable(entry.path)}: {printable(entry.reason)}")


def facts(pack: str, manifest: Manifest) -> dict[str, Any]:
    """Return the manifest as JSON values, with the size of the pack."""
    from dataclasses import asdict

    return {"path": pack, "bytes": pack_bytes(manifest), **asdict(manifest)}


def content(pack: str, manifest: Manifest, cache_dir: str | None, cache_bytes: str | None) -> str | None:
    """Return the digest of what the pack holds, as `packer hash`; None if an index is missing or damaged."""
    from packer.format.content import content_digest
    from packer.format.indexes import Indexes, IndexFiles
    from packer.format.pack import open_pack

    with suppress(DamagedPack):  # this command describes damaged packs, too
        if is_url(pack):
            return content_digest(open_pack(pack, cache_dir, cache_bytes).indexes, manifest)
        return content_digest(Indexes(IndexFiles(pack, manifest.shards, manifest)), manifest)
    return None


def jpeg_index_facts(pack: str, manifest: Manifest) -> dict[str, Any]:
    """Return what is known of the index of a pack's JPEGs, as JSON values below ``jpeg_index``; nothing if it has none.

    That of a pack at a URL is not looked at.
    """
    from packer.cli.build_report import jpeg_index_facts as facts_of
    from packer.format.jpeg_index_list import read_jpeg_index_list

    try:
        found = None if is_url(pack) else read_jpeg_index_list(pack, manifest)
    except DamagedPack as error:
        return {"jpeg_index": {"text": as_options(f"{printable(error.problem)}; {printable(error.next_step)}")}}
    return {} if found is None else {"jpeg_index": facts_of(found, manifest)}


def missing_files(pack: str, manifest: Manifest) -> list[str]:
    """Return the names of missing files."""
    from packer.format.objects import missing_objects
    from packer.stores import open_store

    if is_url(pack):
        return missing_objects(open_store(pack), manifest.files)
    return [file.name for file in manifest.files if not os.path.isfile(manifest.path_of(pack, file.name))]


def pack_bytes(manifest: Manifest) -> int:
    """Return the size of all shards in bytes."""
    return sum(shard.container.bytes + shard.index.bytes for shard in manifest.shards)


def rows(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the name and value of each line."""
    size = pack_bytes(manifest)
    each = size_text(size / manifest.records) if manifest.records else "0 bytes"
    kinds = ", ".join(manifest.options["labels"])
    found = [
        ("records", f"{manifest.records:,} in {plural(len(manifest.shards), 'shard')}"),
        ("container", manifest.container),
        ("images", _images(manifest)),
        ("size", f"{size_text(size)} ({each} per record)"),
        ("labels", _fields(manifest) if _is_written(manifest) else f"{kinds}: {_fields(manifest)}"),
        ("inputs", counts_text(manifest.counts)),
    ]
    if manifest.classes:
        found.append(("classes", _classes(manifest)))
    if tags := manifest.tags:
        more = f" and {len(tags) - SHOWN_CLASSES} more" if len(tags) > SHOWN_CLASSES else ""
        found.append(("tags", f"{len(tags)}: {', '.join(map(printable, tags[:SHOWN_CLASSES]))}{more}"))
    if manifest.parts:
        found.append(("parts", manifest.parts_text))
    found += [("note", note) for note in manifest.notes]
    if manifest.made_from:
        found.append(("made from", f"{manifest.made_from[0].command}: {_origins(manifest)}"))
    found.append(("made by", f"packer {manifest.packer}: {_options(manifest)}"))
    return found


def _fields(manifest: Manifest) -> str:
    """Return the annotation fields, those of boxes last."""
    fields = sorted(manifest.fields, key=lambda name: "." in name)
    return ", ".join(name.removeprefix("box_fields.") for name in fields) or "none"


def _images(manifest: Manifest) -> str:
    if manifest.shape is None:
        shape = "of different sizes"
    else:
        height, width, channels = manifest.shape
        shape = f"{width}x{height}, {plural(channels, 'channel')}"
    return f"{shape}, {manifest.dtype or 'uint8 and uint16'}, stored as {manifest.encoding}"


def _classes(manifest: Manifest) -> str:
    parts = []
    for i, name in enumerate(manifest.classes[:SHOWN_CLASSES]):
        numbers = [str(counts[i]) for counts in manifest.class_counts.values()]
        parts.append(f"{printable(name)} ({' / '.join(numbers)})" if numbers else printable(name))
    more = len(manifest.classes) - SHOWN_CLASSES
    unit = {"label": "images", "boxes": "boxes"}
    of = " / ".join(unit.get(name, printable(name)) for name in manifest.class_counts)
    if more > 0:
        parts.append(f"and {more} more")
    return f"{len(manifest.classes):,}, with {of or 'none used'}: {', '.join(parts)}"


def _is_written(manifest: Manifest) -> bool:
    """Return whether a program has given the labels, which are then of no kind."""
    return bool(manifest.made_from) and manifest.made_from[0].command == "PackWriter"


def _origins(manifest: Manifest) -> str:
    names = [printable(origin.name) for origin in manifest.made_from]
    more = f" and {len(names) - SHOWN_CLASSES} more" if len(names) > SHOWN_CLASSES else ""
    return ", ".join(names[:SHOWN_CLASSES]) + more


def _options(manifest: Manifest) -> str:
    skipped = ("labels", "encode", "max_pixels", "columns", "repack")
    given = {k: v for k, v in manifest.options.items() if v is not None and k not in skipped}
    return ", ".join(f"{k} {printable(str(v))}" for k, v in given.items())
