"""The digests of `packer hash`, written from docs/formats.md alone: it imports no line of packer.

`independent_reader` reads what they are of. A column is computed row by row, as slowly and as plainly as it can be.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import independent_reader as second
import pyarrow as pa

Row = dict[str, Any]
FACTS = {"size": "q", "height": "i", "width": "i", "channels": "b", "dtype": "b", "encoding": "b"}
FIELDS = {
    "label": ("i", 0), "boxes": ("4f", 1), "box_labels": ("q", 1), "landmarks": ("2f", 1), "polygons": ("2f", 2),
    "keypoints": ("3f", 2), "box_fields": ("B", 1), "extras": ("B", 1), "tags": ("B", 1), "rles": ("B", 2),
    "value": ("f", 1), "obb": ("2f", 2), "window": ("i", 1),
}  # fmt: skip
"""How a number, or a row of numbers, is packed, and how many lists they are in."""
LATER = ("rles", "value", "obb", "window")
ENCODINGS = ["raw", "jpeg", "png", "bmp", "gif", "webp", "tiff", "avif", "jp2", "pnm"]
OF_PARTS = ["bytes", "raw", "zstd", "png", "npy", "txt", "json", "jpeg", "bmp", "gif", "webp", "tiff", "avif", "jp2",
            "pnm"]  # fmt: skip


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def levels(values: Sequence[Any], kind: str, depth: int, of_field: bool) -> list[bytes]:
    """What a column says of records: which have a value, the lengths of lists, the values."""
    found = [bytes(value is not None for value in values) if of_field else b""]
    for _ in range(depth):
        lists = [() if value is None else value for value in values]
        found.append(b"".join(struct.pack("<q", len(items)) for items in lists))
        values = [item for items in lists for item in items]
    values = [-1 if value is None else value for value in values]
    return [*found, b"".join(struct.pack(f"<{kind}", *(v if isinstance(v, list) else [v])) for v in values)]


def column_digest(values: Sequence[Any], *kind: Any) -> str:
    return sha256(b"".join(map(sha256, levels(values, *kind)))).hex()


def rows_of(folder: Path, manifest: Row) -> list[Row]:
    """The rows of all indexes with numbers for names, bytes for texts, and the bytes of the images and parts."""
    rows = []
    for shard in manifest["shards"]:
        data = second.path_of(folder, manifest, shard["container"]).read_bytes()
        table = pa.ipc.open_file(pa.py_buffer((folder / shard["index"]["name"]).read_bytes())).read_all()
        for row in table.to_pylist():
            row |= {"dtype": ["uint8", "uint16"].index(row["dtype"]), "encoding": ENCODINGS.index(row["encoding"])}
            row["image"] = data[row["offset"] : row["offset"] + row["size"]]
            row |= {name: None if row[name] is None else row[name].encode() for name in ("box_fields", "extras")}
            for name in manifest.get("parts", {}):
                start, size = row[f"{name}_offset"], row[f"{name}_size"]
                row[f"{name}_encoding"] = OF_PARTS.index(row[f"{name}_encoding"])
                row[f"{name}_bytes"] = data[start : start + size] if size >= 0 else None
            rows.append(row | {"key": row["key"].encode()})
    return rows


def kinds_of(names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """How the columns of facts, parts and fields are packed."""
    kinds = {"key": ("B", 1, False), "path": ("B", 1, False)}
    kinds |= {name: (kind, 0, False) for name, kind in FACTS.items()} | {"crc32c": ("I", 0, False)}
    kinds |= {name: (*kind, True) for name, kind in FIELDS.items()}
    ends = {"crc32c": "I", "size": "q", "encoding": "b"}
    return kinds | {f"{name}_{end}": (kind, 0, False) for name in names for end, kind in ends.items()}


def plain(folder: Path, deep: bool) -> str:
    """`packer hash`, with and without --deep."""
    manifest = second.manifest_of(folder)
    rows, parts = rows_of(folder, manifest), sorted(manifest.get("parts", {}))
    names = ["key", *FACTS, *(name for name in FIELDS if name not in LATER or name in manifest["fields"])]
    names += [f"{part}_{what}" for part in parts for what in ("size", "encoding")]
    names += [] if deep else ["crc32c", *(f"{part}_crc32c" for part in parts)]
    kinds = kinds_of(parts)
    columns = {name: column_digest([row.get(name) for row in rows], *kinds[name]) for name in names}
    if deep:
        columns["images"] = sha256(b"".join(row["image"] for row in rows)).hex()
        columns |= {part: sha256(b"".join(row[f"{part}_bytes"] or b"" for row in rows)).hex() for part in parts}
    content = {name: manifest.get(name, []) for name in ("records", "classes", "tags")}
    content |= {name: manifest[name] for name in ("parts", "masks", "pixels") if name in manifest}
    return sha256(json.dumps(content | {"packer.content": 1, "columns": columns}, sort_keys=True).encode()).hex()


def content_of(data: bytes | None, deep: bool) -> Any:
    if data is None:  # a part that the record lacks
        return [0] * 32 if deep else 0
    return list(sha256(data)) if deep else second.crc32c(data)


def by_path(folder: Path, deep: bool) -> str:
    """`packer hash --by-path`, with and without --deep."""
    manifest = second.manifest_of(folder)
    rows, tags = rows_of(folder, manifest), manifest.get("tags", [])
    used = {id for row in rows for id in [row["label"], *(row["box_labels"] or [])] if id is not None}
    classes = sorted({manifest["classes"][id] for id in used})
    on = sorted((n for n in range(len(tags)) if any((row.get("tags") or [0] * (n + 1))[n] for row in rows)),
                key=tags.__getitem__)  # fmt: skip
    parts = [p for p in sorted(manifest.get("parts", {})) if any(row[f"{p}_size"] >= 0 for row in rows)]
    content = "sha256" if deep else "crc32c"
    for row in rows:
        row["label"] = None if row["label"] is None else classes.index(manifest["classes"][row["label"]])
        if row["box_labels"] is not None:
            row["box_labels"] = [classes.index(manifest["classes"][id]) for id in row["box_labels"]]
        if row.get("tags") is not None:
            row["tags"] = [row["tags"][n] for n in on]
        row[content] = content_of(row["image"], deep)
        row |= {f"{part}_{content}": content_of(row[f"{part}_bytes"], deep) for part in parts}
    contents = [content, *(f"{part}_{content}" for part in parts)]
    kinds = kinds_of(parts) | dict.fromkeys(contents, ("32B" if deep else "I", 0, False))
    names = ["path", *contents, *FACTS]
    names += [f"{part}_{what}" for part in parts for what in ("size", "encoding")]
    names += [name for name in FIELDS if any(row.get(name) is not None for row in rows)]
    rows.sort(key=lambda row: [levels([row.get(name)], *kinds[name]) for name in names])
    facts = {"records": len(rows), "classes": classes, "tags": [tags[n] for n in on]}
    facts |= {what: {p: facts_of for p, facts_of in manifest.get(what, {}).items() if p in parts}
              for what in ("parts", "masks", "pixels")}  # fmt: skip
    columns = {name: column_digest([row.get(name) for row in rows], *kinds[name]) for name in names}
    text = json.dumps(facts | {"packer.content_by_path": 1, "columns": columns}, sort_keys=True)
    return sha256(text.encode()).hex()
