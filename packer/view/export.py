"""A contact sheet: one HTML file with pictures, labels and drawn annotations; no script, nothing from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from packer.errors import AnyPath, PackerError, StorageError, UsageError, printable
from packer.format.pack import Pack
from packer.view.colors import colour_of
from packer.view.facts import pack_facts, tile_facts
from packer.view.pictures import Pictures, problem_of

MOST = 10_000
SIDE = 240
"""Longer side of a picture, pixels."""

STYLE = """
:root { color-scheme: light dark; font: 14px/1.4 system-ui, sans-serif; }
body { margin: 2rem; background: Canvas; color: CanvasText; }
h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; } p { opacity: .75; margin: .2rem 0 1.2rem; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(180px, 1fr)); gap: 12px; }
figure { margin: 0; } svg { width: 100%; height: 180px; display: block; background: #8882; border-radius: 6px; }
figcaption { font-size: 12px; overflow-wrap: anywhere; padding: 2px; } small { opacity: .7; }
.error { height: 180px; overflow: hidden; padding: 10px; box-sizing: border-box; background: #c332; font-size: 12px;
border-radius: 6px; }
i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin: 0 4px 0 8px; }
"""


def export(pack: Pack, out: AnyPath, count: int, seed: int | None = None) -> int:
    """Write the contact sheet of `count` records to the file `out`: the first, or as many drawn with `seed`.

    Returns the number of records on it. Raises UsageError, StorageError; DamagedPack where an index is damaged (a
    damaged record shows its error in its place).
    """
    if not 1 <= count <= MOST:
        raise UsageError("--count", f"must be 1 to {MOST:,}, got {count:,}")
    path = os.path.realpath(os.fsdecode(out))
    if path == os.path.realpath(pack.path) or path.startswith(os.path.realpath(pack.path) + os.sep):
        raise UsageError("--export", "would write into the pack", "choose a file beside it")
    count = min(count, len(pack))
    chosen = np.arange(count)
    if seed is not None:
        chosen = np.sort(np.random.default_rng(seed).choice(len(pack), count, replace=False))
    try:
        # under another name: an old sheet stays whole until the new one is
        with open(f"{path}.{os.getpid()}.partial", "x", encoding="utf-8") as file:
            try:
                for part in _page(pack, chosen.tolist(), seed):
                    file.write(part)
            except BaseException:
                os.unlink(file.name)
                raise
        os.replace(file.name, path)
    except PackerError:
        raise
    except OSError as error:
        raise StorageError(out, error.strerror or str(error)) from None
    return count


def _page(pack: Pack, records: Sequence[int], seed: int | None) -> Iterator[str]:
    facts, pictures = pack_facts(pack), Pictures(pack)
    names = facts["classes"]
    how = "the first ones" if seed is None else f"drawn with seed {seed}"
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    # nothing but this file's own style and pictures, whatever a name in the pack may try
    yield '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    yield "style-src 'unsafe-inline'\">"
    yield f"<title>{escape(facts['name'])}</title><style>{STYLE}</style></head><body>\n"
    yield f"<h1>{escape(facts['name'])}</h1>\n"
    yield f"<p>{len(records):,} of {len(pack):,} records, {how}; {escape(facts['container'])}, {facts['size']}</p>\n"
    yield "<main>\n"
    for record in records:
        yield _figure(pack, pictures, names, record)
    yield "</main></body></html>\n"


def _figure(pack: Pack, pictures: Pictures, names: Sequence[str], record: int) -> str:
    source = escape(printable(bytes(pack.column("path")[record])))
    try:
        facts = {**tile_facts(pack, record), **problem_of(lambda: pictures.uri(record, SIDE))}
    except PackerError as error:
        facts = {"key": str(record), "error": str(error)}
    if "error" in facts:
        return f'<figure><div class="error">{escape(facts["error"])}</div><figcaption>{source}</figcaption></figure>\n'
    ids = [facts["label"]] if facts["label"] is not None else []
    ids += [i for i in dict.fromkeys(facts.get("box_labels", ())) if i not in ids]
    keys = "".join(f'<i style="background:{colour_of(i)}"></i>{escape(_name(names, i))}' for i in ids[:8])
    return f"<figure>{_drawing(facts)}<figcaption>{keys}<br><small>{source}</small></figcaption></figure>\n"


def _name(names: Sequence[str], class_id: int) -> str:
    return names[class_id] if 0 <= class_id < len(names) else str(class_id)


def _drawing(facts: dict[str, Any]) -> str:
    width, height = facts["width"], facts["height"]
    parts = [
        f'<svg viewBox="0 0 {width} {height}"><image href="{facts["picture"]}" width="{width}" height="{height}"/>'
    ]
    labels = facts.get("box_labels", [])
    for n, box in enumerate(facts.get("boxes", ())):
        line = _line(colour_of(labels[n] if n < len(labels) else None))
        if None not in box:
            x1, y1, x2, y2 = box
            parts.append(f'<rect x="{x1}" y="{y1}" width="{max(0, x2 - x1)}" height="{max(0, y2 - y1)}" {line}/>')
    for n, polygon in enumerate(facts.get("polygons", ())):
        line = _line(colour_of(labels[n] if n < len(labels) else None))
        points = " ".join(f"{x},{y}" for x, y in polygon if x is not None and y is not None)
        parts.append(f'<polygon points="{points}" {line}/>')
    radius = max(width, height) / 90
    for x, y in facts.get("landmarks", ()):
        if x is not None and y is not None:
            parts.append(f'<circle cx="{x}" cy="{y}" r="{radius:.2f}" fill="#ff2f6d" stroke="#fff" stroke-width=".5"/>')
    return "".join(parts) + "</svg>"


def _line(colour: str) -> str:
    return f'fill="none" stroke="{colour}" stroke-width="2" vector-effect="non-scaling-stroke"'
