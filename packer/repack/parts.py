"""Divides the records of a pack among parts: pure functions of columns and a seed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, as_options, option, printable
from packer.format.pack import Pack
from packer.format.verify_records import texts
from packer.model.annotation import Int64
from packer.model.fields import object_of
from packer.model.ragged import Ragged
from packer.samplers.order import derive, permutation
from packer.sources.paths import quoted

Shares = dict[str, Fraction]
NAME = re.compile(r"\w[\w.+-]{0,99}")


def parse_parts(text: str) -> Shares:
    """Return the share of each part of a text such as ``train=0.8,val=0.2``; 1/3 is a share too.

    Raises:
        UsageError: The text is wrong, or the shares do not sum up to 1.
    """
    shares: Shares = {}
    step = "write it as train=0.8,val=0.2"
    for item in text.split(","):
        name, _, share = (word.strip() for word in item.partition("="))
        if (
            not name
            or name in shares
            or name.startswith(".")
            or any(c in name for c in '/\\:*?"<>|\0')
            or len(name) > 100
        ):
            raise UsageError(option("parts"), f"has no valid name in {quoted(item)}, or has it twice", step)
        try:
            shares[name] = Fraction(share)
        except (ValueError, ZeroDivisionError):
            raise UsageError(option("parts"), f"has no share in {quoted(item)}", step) from None
        if shares[name] <= 0:
            raise UsageError(option("parts"), f"has a share that is not above 0 in {quoted(item)}", step)
    total = sum(shares.values())
    if all(share >= 1 for share in shares.values()) and total > 1:  # percentages, or 4 to 1
        meant = ",".join(f"{name}={_share_text(share / total)}" for name, share in shares.items())
        raise UsageError(option("parts"), f"add up to {float(total):g}, not 1", f"write --parts={meant}")
    if total != 1:
        raise UsageError(
            option("parts"), f"add up to {float(total):g}, not 1", "no record may be left over: name all parts"
        )
    return shares


def _share_text(share: Fraction) -> str:
    decimal = f"{float(share):g}"
    return decimal if Fraction(decimal) == share else str(share)


def divided(pack: Pack, shares: Shares, stratify: bool, group: str | None, seed: int) -> tuple[NDArray[Any], list[str]]:
    """Return the number of the part of each record, and notes.

    Args:
        pack: The pack.
        shares: Name and share of each part.
        stratify: Give each part its share of each class.
        group: What records have in common that must be in one part: folder, source, or a field of extras.
        seed: Seed of the random order.

    Raises:
        UsageError: The pack has no such field, or no classes.
    """
    strata = _strata(pack) if stratify else np.zeros(len(pack), np.int64)
    ranks = np.empty(len(pack), np.int64)
    ranks[permutation(len(pack), derive(seed, len(pack)))] = np.arange(len(pack))
    if group is None:
        order = np.lexsort((ranks, strata))
        parts = np.empty(len(pack), np.int64)
        parts[order] = interleaved(sizes_of(len(pack), list(shares.values())))
        return parts, []
    groups, notes = _groups(pack, group)
    _, firsts, groups, weights = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((ranks[firsts], -weights, strata[firsts]))  # large groups first: small ones even out the rest
    of_group = np.empty(len(firsts), np.int64)
    of_group[order] = _by_deficit(weights[order].tolist(), [float(share) for share in shares.values()])
    return of_group[groups], notes


def sizes_of(count: int, shares: Sequence[Fraction]) -> list[int]:
    """Return how many of `count` records each part gets: its share rounded down, or up for the largest remainders."""
    exact = [share * count for share in shares]
    sizes = [math.floor(size) for size in exact]
    by_remainder = sorted(range(len(shares)), key=lambda part: (sizes[part] - exact[part], part))
    for part in by_remainder[: count - sum(sizes)]:
        sizes[part] += 1
    return sizes


def interleaved(sizes: Sequence[int]) -> Int64:
    """Return part numbers, each as often as its size says, so mixed that any run of them has all in proportion."""
    parts = np.repeat(np.arange(len(sizes)), sizes)
    places = np.concatenate([(np.arange(size) + 0.5) / max(size, 1) for size in sizes])
    return np.asarray(parts[np.argsort(places, kind="stable")], np.int64)


def _by_deficit(weights: list[int], shares: list[float]) -> list[int]:
    """Give each group to the part that is furthest behind its share."""
    given, total, found = [0] * len(shares), 0, []
    for weight in weights:
        total += weight
        part = max(range(len(shares)), key=lambda i: shares[i] * total - given[i])
        given[part] += weight
        found.append(part)
    return found


def _strata(pack: Pack) -> Int64:
    """Return a number for the class of each record, its tags, or the set of the classes of its boxes."""
    fields = pack.manifest.fields
    if "label" in fields:
        return np.asarray(pack.column("label"), np.int64)
    if "tags" in fields:
        rows: Any = pack.column("tags")
        return _numbered(texts(rows))
    if "box_labels" not in fields:
        raise UsageError(option("stratify"), f"needs classes, but {printable(pack.path)} has none", "leave it out")
    lists: Any = pack.column("box_labels")
    records = np.repeat(np.arange(len(pack)), lists.lengths)
    pairs = np.unique(np.stack([records, np.asarray(lists.flat(), np.int64)], axis=1), axis=0)
    bounds = np.searchsorted(pairs[:, 0], np.arange(len(pack) + 1))
    return _numbered(texts(Ragged(np.ascontiguousarray(pairs[:, 1]).view(np.uint8), bounds * 8)))


def _numbered(values: list[bytes]) -> Int64:
    numbers = {value: number for number, value in enumerate(sorted(set(values)))}
    return np.array([numbers[value] for value in values], np.int64)


def _groups(pack: Pack, name: str) -> tuple[Int64, list[str]]:
    """Return the number of each record's group; a record without a value is a group of its own."""
    if name == "source":
        rows = np.ascontiguousarray(np.asarray(pack.column("source_xxh3"), np.uint8))
        known = rows.any(axis=1)
        _, numbers = np.unique(rows.view("V16").reshape(-1), return_inverse=True)
    elif name == "folder":
        paths: Any = pack.column("path")
        known = np.ones(len(pack), np.bool_)
        numbers = _numbered([path.rpartition(b"/")[0] for path in texts(paths)])
    else:
        values = _extras(pack, name)
        known = np.array([value is not None for value in values], np.bool_)
        numbers = _numbered([value or b"" for value in values])
    unknown = int((~known).sum())
    asked = as_options(option("group", printable(name)))
    note = f"{asked}: {unknown:,} of {len(pack):,} records have no value, and each is on its own"
    groups = np.where(known, numbers, len(pack) + np.arange(len(pack)))
    return np.asarray(groups, np.int64), [note] if unknown else []


def _extras(pack: Pack, name: str) -> list[bytes | None]:
    """Return a field of each record's extras as JSON; None if it has none."""
    rows: Any = pack.column("extras")
    found: list[bytes | None] = []
    fields = set[str]()
    for record, text in enumerate(rows):
        try:
            extras = object_of(text)
        except ValueError as error:
            raise pack.damage(record, f"has extras that are damaged: {error}") from None
        fields.update(extras)
        value = extras.get(name)
        found.append(None if value is None else json.dumps(value, sort_keys=True).encode("ascii"))
    if name not in fields:
        has = f"the fields are {', '.join(map(printable, sorted(fields)))}" if fields else "it has none"
        problem = f"{printable(pack.path)} has no field {quoted(name)}: {has}"
        raise UsageError(option("group"), problem, "pass folder, source or a field of extras")
    return found
