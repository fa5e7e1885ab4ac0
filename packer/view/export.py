"""A contact sheet: one HTML file with images, labels and drawn annotations, without scripts or external files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from itertools import chain
from typing import IO, Any

import numpy as np

from packer.errors import AnyPath, PackerError, StorageError, UsageError, option, plural, printable
from packer.format.pack import Pack
from packer.stats.html import one_file_page
from packer.stats.plots import hue_of
from packer.system.atomic import replacing
from packer.view.facts import pack_facts, tile_facts
from packer.view.pictures import Pictures, problem_of

MOST = 10_000
NOT_LABELED, HIDDEN = 0, 1
"""Visibilities of COCO's keypoints."""
SIDE = 240
"""Longer side of a picture, pixels."""
OPACITY = 0.55
"""Of masks, as the page has it at first."""


def export(pack: Pack, out: AnyPath, count: int, seed: int | None = None) -> int:
    """Write a contact sheet of the pack.

    Args:
        pack: The pack. A damaged record shows its error instead.
        out: The HTML file to write; it is replaced when the new one is complete.
        count: Number of records.
        seed: Draws the records; None takes the first ones.

    Returns:
        The number of records on the sheet.

    Raises:
        UsageError: If `count` is out of range, or `out` is inside the pack or has the extension of another format.
        StorageError: If the file cannot be written.
        DamagedPack: If an index is damaged.
    """
    stem, extension = os.path.splitext(os.fsdecode(out))
    if extension.lower() not in ("", ".html", ".htm"):
        step = f"write --export={printable(stem)}.html, which a browser prints to PDF"
        raise UsageError(option("export"), f"writes HTML, not {printable(extension)}", step)
    parts = (part.encode("utf-8", "backslashreplace") for part in sheet_page(pack, count, seed))  # names of any bytes
    with writing_beside([pack], out, option("export")) as file:
        file.writelines(parts)
    return min(count, len(pack))


def sheet_page(pack: Pack, count: int, seed: int | None = None) -> Iterator[str]:
    """Yield the parts of the page; arguments and errors as for `export`."""
    if not 1 <= count <= MOST:
        raise UsageError(option("count"), f"must be 1 to {MOST:,}, got {count:,}")
    count = min(count, len(pack))
    sampled = np.arange(count)
    if seed is not None:
        sampled = np.sort(np.random.default_rng(seed).choice(len(pack), count, replace=False))
    return _page(pack, sampled.tolist(), seed)


@contextmanager
def writing_beside(packs: Iterable[Pack], out: AnyPath, option: str) -> Iterator[IO[bytes]]:
    """Yield a new file, which takes its name when it is complete.

    Args:
        packs: The packs from which it is made; they may be joined ones.
        out: The file.
        option: The option that named it.

    Raises:
        UsageError: It is inside a pack.
        StorageError: It cannot be written.
    """
    path = os.path.abspath(os.fsdecode(out))
    there = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # a link is replaced itself
    for part in chain.from_iterable(pack.packs for pack in packs):
        if there == os.path.realpath(part.path) or there.startswith(os.path.realpath(part.path) + os.sep):
            raise UsageError(option, "would write into the pack", "choose a file beside it")
    try:
        with replacing(path) as file:
            yield file
    except PackerError:
        raise
    except OSError as error:
        raise StorageError(out, error.strerror or str(error)) from None


def _page(pack: Pack, records: Sequence[int], seed: int | None) -> Iterator[str]:
    facts, pictures = pack_facts(pack), Pictures(pack)
    how = "the first ones" if seed is None else f"drawn with seed {seed}"
    about = f"{len(records):,} of {plural(len(pack), 'record')}, {how}; {escape(facts['container'])}, {facts['size']}"
    body = f'<h1>{escape(facts["name"])}</h1>\n<p class="note">{about}</p>\n<main>\n</main>'
    # written one by one, because the images of a large sheet may not fit in memory
    before, end, after = one_file_page(facts["name"], body, "sheet").rpartition("</main>")
    yield before
    for record in records:
        yield _figure(pack, pictures, facts["classes"], record)
    yield end + after


def _figure(pack: Pack, pictures: Pictures, names: Sequence[str], record: int) -> str:
    source = escape(printable(bytes(pack.column("path")[record])))
    try:
        facts = {**tile_facts(pack, record), **problem_of(lambda: pictures.uri(record, SIDE))}
    except PackerError as error:
        facts = {"key": str(record), "error": str(error)}
    if "error" in facts:
        return f'<figure><div class="broken">{escape(facts["error"])}</div><figcaption>{source}</figcaption></figure>\n'
    ids = [facts["label"]] if facts["label"] is not None else []
    ids += [i for i in dict.fromkeys(facts.get("box_labels", ())) if i not in ids]
    of_mask = [(i, name) for part in _overlays(facts) for i, name, _ in part["legend"] if i != part["ignore"]]
    dot = '<span class="dot" style="background:{}"></span>'
    named = [(i, _name(names, i)) for i in ids] or of_mask
    keys = "".join(dot.format(color_of(i)) + escape(name) for i, name in named[:8])
    keys += facts.get("value", "")
    keys += "".join(f"<br>{escape(text)}" for part in facts.get("parts", ()) for text in part.get("texts", ()))
    return f"<figure>{_drawing(facts)}<figcaption>{keys}<br><small>{source}</small></figcaption></figure>\n"


def _name(names: Sequence[str], class_id: int) -> str:
    return names[class_id] if 0 <= class_id < len(names) else str(class_id)


def _drawing(facts: dict[str, Any]) -> str:
    width, height = facts["width"], facts["height"]
    parts = [
        f'<svg viewBox="0 0 {width} {height}"><image href="{facts["picture"]}" width="{width}" height="{height}"/>'
    ]
    for part in _overlays(facts):
        style = f'style="image-rendering:pixelated" preserveAspectRatio="none" opacity="{OPACITY}"'
        parts.append(f'<image href="{part["picture"]}" width="{width}" height="{height}" {style}/>')
    labels, ignored = facts.get("box_labels", []), facts.get("ignored", [])
    for n, box in enumerate(facts.get("boxes", ())):
        line = _line(color_of(labels[n] if n < len(labels) else None))
        line += ' stroke-dasharray="5 4"' if ignored and ignored[n] else ""
        if None not in box and not facts.get("obb"):  # an oriented box is in place of its extent
            x1, y1, x2, y2 = box
            parts.append(f'<rect x="{x1}" y="{y1}" width="{max(0, x2 - x1)}" height="{max(0, y2 - y1)}" {line}/>')
    for n, polygon in enumerate(facts.get("obb") or facts.get("polygons", ())):
        line = _line(color_of(labels[n] if n < len(labels) else None))
        points = " ".join(f"{x},{y}" for x, y in polygon if x is not None and y is not None)
        parts.append(f'<polygon points="{points}" {line}/>')
    for n, (path, _) in enumerate(facts.get("outlines", ())):
        color = color_of(labels[n] if n < len(labels) else None)
        parts.append(f'<path d="{path}" {_line(color)} style="fill:{color};fill-opacity:.3;fill-rule:evenodd"/>')
    radius = max(width, height) / 90
    parts += [_point(x, y, radius, "#ff2f6d") for x, y in facts.get("landmarks", ())]
    for n, points in enumerate(facts.get("keypoints", ())):
        color = color_of(labels[n] if n < len(labels) else None)
        parts += [_point(x, y, radius, color, seen != HIDDEN) for x, y, seen in points if seen != NOT_LABELED]
    return "".join(parts) + "</svg>"


def _overlays(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is laid over a picture: the first of the parts that can be; several would hide each other."""
    return [part for part in facts.get("parts", ()) if part["as"] == "overlay"][:1]


def _point(x: float | None, y: float | None, radius: float, color: str, is_filled: bool = True) -> str:
    """Return a point, hollow if it is hidden behind something."""
    if x is None or y is None:
        return ""
    fill, stroke = (color, "#fff") if is_filled else ("none", color)
    return f'<circle cx="{x}" cy="{y}" r="{radius:.2f}" fill="{fill}" stroke="{stroke}" stroke-width=".5"/>'


def color_of(class_id: int | None) -> str:
    """Return the CSS color of a class id, gray for none."""
    if class_id is None or class_id < 0:
        return "hsl(0 0% 60%)"
    return f"hsl({hue_of(class_id):.0f} 75% 52%)"


def _line(color: str) -> str:
    return f'fill="none" stroke="{color}" stroke-width="2" vector-effect="non-scaling-stroke"'
