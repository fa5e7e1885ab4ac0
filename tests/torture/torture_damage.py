"""Ways to damage a pack: bits flipped, files cut, blocks, images and files exchanged."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Change = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """One way to damage the pack in a directory."""

    name: str
    files: tuple[str, ...]
    """Which are changed, and put back afterwards."""
    change: Change
    loud: bool = False
    """A reader must raise: pixels, labels, index or manifest are changed."""


@dataclass(frozen=True)
class Pack:
    """A good pack, what it holds, and the bytes of its files."""

    folder: Path
    content: object
    files: dict[str, bytes]
    images: dict[str, list[tuple[int, int]]]
    """Start and stop of each image, by container file."""


def flip_cases(pack: Pack) -> Iterator[Case]:
    """Every bit of every file."""
    for name, data in pack.files.items():
        loud = np.full(len(data), name not in pack.images)
        for start, stop in pack.images.get(name, ()):
            loud[start:stop] = True
        for place in range(len(data)):
            for bit in range(8):
                change = _writer(name, place, bytes([data[place] ^ 1 << bit]))
                yield Case(f"{name} byte {place} bit {bit}", (name,), change, bool(loud[place]))


def cut_cases(pack: Pack) -> Iterator[Case]:
    """Every length of every file, and bytes behind its end."""
    for name, data in pack.files.items():
        for size in range(len(data)):
            yield Case(f"{name} cut to {size}", (name,), _cutter(name, size), True)
        for more in (b"\0", b"\n", b"x", bytes(4096), data):
            yield Case(f"{name} and {len(more)} bytes {more[:1]!r}", (name,), _appender(name, more), True)


def change_cases(pack: Pack, seed: int) -> Iterator[Case]:
    """Blocks zeroed, exchanged and doubled; images exchanged; files exchanged and renamed."""
    draw = random.Random(seed)
    for name, data in pack.files.items():
        for size in (1, 512, 4096):
            places = range(0, len(data), size) if size > 1 else draw.sample(range(len(data)), min(200, len(data)))
            for place in places:
                yield from _block(name, data, place, size, draw)
    for name, images in pack.images.items():
        data = pack.files[name]
        for a in images:
            for b in images:
                if a < b and a[1] - a[0] == b[1] - b[0]:
                    changed = bytearray(data)
                    changed[slice(*a)], changed[slice(*b)] = data[slice(*b)], data[slice(*a)]
                    yield Case(
                        f"{name} images at {a[0]} and {b[0]} exchanged", (name,), _filler(name, bytes(changed)), True
                    )
    names = list(pack.files)
    for a in names:
        for b in names:
            if a < b:
                yield Case(f"{a} and {b} exchanged", (a, b), _exchanger(a, b))
        yield Case(f"{a} renamed", (a, f"x{a}"), lambda copy, a=a: (copy / a).rename(copy / f"x{a}") and None, True)
        yield Case(f"{a} a directory", (a,), _to_folder(a), True)
        if a != "pack.json":
            yield Case(
                f"{a} twice",
                ("shard-99999.x",),
                lambda copy, a=a: shutil.copy(copy / a, copy / "shard-99999.x") and None,
            )


def _block(name: str, data: bytes, place: int, size: int, draw: random.Random) -> Iterator[Case]:
    old = data[place : place + size]
    other = draw.randrange(0, max(1, len(data) - size + 1))
    news = {"zeroed": bytes(len(old)), "ones": b"\xff" * len(old), f"copied from {other}": data[other:][: len(old)]}
    for what, new in news.items():
        if new != old and len(new) == len(old):
            yield Case(f"{name} {size} bytes at {place} {what}", (name,), _writer(name, place, new))


def _writer(name: str, place: int, new: bytes) -> Change:
    def change(copy: Path) -> None:
        with open(copy / name, "r+b") as file:
            file.seek(place)
            file.write(new)

    return change


def _filler(name: str, data: bytes) -> Change:
    return lambda copy: (copy / name).write_bytes(data) and None


def _cutter(name: str, size: int) -> Change:
    return lambda copy: os.truncate(copy / name, size)


def _appender(name: str, more: bytes) -> Change:
    def change(copy: Path) -> None:
        with open(copy / name, "ab") as file:
            file.write(more)

    return change


def _exchanger(a: str, b: str) -> Change:
    def change(copy: Path) -> None:
        (copy / a).rename(copy / "aside")
        (copy / b).rename(copy / a)
        (copy / "aside").rename(copy / b)

    return change


def _to_folder(name: str) -> Change:
    def change(copy: Path) -> None:
        (copy / name).unlink()
        (copy / name).mkdir()

    return change


def sampled(cases: Iterable[Case], share: float, seed: int) -> Iterator[Case]:
    """A random share of the cases."""
    draw = random.Random(seed)
    return (case for case in cases if draw.random() < share)
