"""Packs whose records have parts besides their image: those of another pack, with bytes added."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from packer.containers import open_container
from packer.containers.container import ShardSpec
from packer.format.index import IndexBuilder, read_index
from packer.format.manifest import Manifest, of_parts, read_manifest
from packer.format.salvage_records import with_index
from packer.format.verify_records import IndexRows, Window
from packer.model.annotation import Part, PartSpec

SPECS = (PartSpec("aux"), PartSpec("zed"))
PARTS = {spec.name: spec.kind for spec in SPECS}


def bytes_of(i: int) -> dict[str, bytes]:
    """The parts of record `i`: bytes that look like a picture, none at all, or no part."""
    aux = (b"\xff\xd8\xff" + bytes(range(i % 256)) * 30, b"", None)[i % 3]
    zed = b"zed %d " % i * 200 if i % 2 else None
    return {name: data for name, data in (("aux", aux), ("zed", zed)) if data is not None}


def add_parts(source: Path, out: Path, first: int = 0, order: int = 1, specs: tuple[PartSpec, ...] = SPECS) -> Path:
    """Write the records of a pack with parts (`bytes_of` their number, from `first`) to a new one.

    Args:
        source: The pack.
        out: The new one.
        first: The number of the first record.
        order: -1: the parts of each record come in reverse order.
        specs: The parts; others than SPECS: none are written.
    """
    old, shards, number = read_manifest(source), [], first
    out.mkdir()
    for shard in old.shards:
        builder = IndexBuilder(specs)
        rows = IndexRows(read_index(source / shard.index.name), "")
        raw = old.encoding == "raw" and old.shape is not None
        spec = ShardSpec(
            old.classes, old.encoding, old.shape if raw else None, old.dtype or "uint8", len(rows), 1, specs
        )
        path = str(out / shard.container.name)
        writer = open_container(old.container).create(path, spec)
        with Window(str(source / shard.container.name)) as window:
            for row in range(len(rows)):
                data = bytes(window.bytes(rows.number("offset", row), rows.number("size", row)))
                named = [*bytes_of(number).items()][::order] if specs else []
                parts = tuple(Part(name, content) for name, content in named)
                record = rows.record(row, data, parts)
                builder.add(record)
                writer.write(record)
                number += 1
        shards.append(with_index(str(out), path, builder, writer.close()))
    manifest = replace(old, shards=tuple(shards), lists={}, companions={}, **of_parts(specs))
    (out / "pack.json").write_bytes(manifest.to_json())
    return out


def change(pack: Path, **members: object) -> Manifest:
    """Change the manifest of a pack, with the right digest."""
    manifest: Manifest = replace(read_manifest(pack), **members)  # type: ignore[arg-type]
    (pack / "pack.json").write_bytes(manifest.to_json())
    return manifest


def damage_part(pack: Path, name: str = "zed") -> tuple[int, str]:
    """Change one byte of a part of the first record that has it; (number of the record, its key)."""
    shard = read_manifest(pack).shards[0]
    rows = IndexRows(read_index(pack / shard.index.name), "")
    row = next(row for row in range(len(rows)) if rows.places(row).get(name, (0, 0))[1])
    with open(pack / shard.container.name, "r+b") as file:
        file.seek(rows.places(row)[name][0])
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    return row, rows.key(row)


def parts_in_json(text: bytes) -> list[str]:
    """The names of the parts in the JSON of a record."""
    return list(json.loads(text).get("parts", ()))
