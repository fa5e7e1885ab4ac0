"""Small images of every variant, and the ways in which they are damaged."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "ops"))

from ops_images import FILES, RGB, oriented

from packer.images.png_header import SIGNATURE as PNG


def seeds() -> dict[str, bytes]:
    """A small file of each variant of each format, with and without Exif."""
    files = {name: data for name, data in FILES.items() if len(data) <= 4096}
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        files[f"{kind} exif"] = oriented(RGB, kind, 6)
    files["JPEG progressive exif"] = oriented(RGB, "JPEG", 5, progressive=True)
    return files


SEEDS = seeds()
NAMES = sorted(SEEDS)


@dataclass(frozen=True)
class Mutation:
    """One case; the same number and seed always give the same bytes."""

    number: int
    name: str
    kind: str
    data: bytes
    rng: random.Random

    def __str__(self) -> str:
        return f"mutation {self.number}: {self.name}, {self.kind}"


def mutation(number: int, seed: int) -> Mutation:
    """The mutation of a number; seeds take turns, so that every format has its share."""
    rng = random.Random(f"{seed} {number}")
    name = NAMES[number % len(NAMES)]
    kind = rng.choice(sorted(KINDS))
    data = bytearray(SEEDS[name])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = KINDS[kind](data, rng, name) or data
    if data.startswith(PNG) and rng.random() < 0.7:
        data = with_checksums(data)
    return Mutation(number, name, kind, bytes(data), rng)


def bit_flip(number: int, seed: int) -> Mutation:
    """A seed with one bit flipped, counted through all of them; `seed` decides only how it is decoded."""
    bit = number
    for name in NAMES:
        if bit < 8 * len(SEEDS[name]):
            break
        bit -= 8 * len(SEEDS[name])
    data = bytearray(SEEDS[name])
    data[bit >> 3] ^= 1 << (bit & 7)
    return Mutation(number, name, f"bit {bit}", bytes(data), random.Random(f"{seed} {number}"))


def _flip(data: bytearray, rng: random.Random, name: str) -> bytearray:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _set(data: bytearray, rng: random.Random, name: str) -> bytearray:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))
    return data


def _number(data: bytearray, rng: random.Random, name: str) -> bytearray:
    """A number of 2 or 4 bytes, such as sizes and offsets are made of, near the file's start."""
    width = rng.choice((2, 4))
    at = rng.randrange(min(len(data) - width, 400))
    value = rng.choice((0, 1, 2, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, rng.randrange(4000)))
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "big")))
    return data


def _cut(data: bytearray, rng: random.Random, name: str) -> bytearray:
    return data[: rng.randrange(1, len(data))] if len(data) > 1 else data


def _piece(data: bytearray, rng: random.Random) -> slice:
    start = rng.randrange(len(data))
    return slice(start, min(len(data), start + rng.choice((1, 2, 4, 16, 64, 512))))


def _splice(data: bytearray, rng: random.Random, name: str) -> bytearray:
    """A piece of another file of the same format, or of any."""
    alike = [other for other in NAMES if other.split()[0] == name.split(maxsplit=1)[0]]
    other = SEEDS[rng.choice(alike if rng.random() < 0.8 else NAMES)]
    start = rng.randrange(len(other))
    at = rng.randrange(len(data))
    return data[:at] + other[start:] if rng.random() < 0.3 else data[:at] + other[start : start + 64] + data[at:]


def _swap(data: bytearray, rng: random.Random, name: str) -> bytearray:
    """Two pieces change places; or one is doubled, or left out."""
    a, b = sorted((_piece(data, rng), _piece(data, rng)), key=lambda piece: piece.start)
    how = rng.randrange(3)
    if how == 0 and a.stop <= b.start:
        return data[: a.start] + data[b] + data[a.stop : b.start] + data[a] + data[b.stop :]
    return data[: a.stop] + data[a] + data[a.stop :] if how == 1 else data[: a.start] + data[a.stop :] or data


def _exif(data: bytearray, rng: random.Random, name: str) -> bytearray:
    """Bytes of the Exif block, or of a TIFF's directory; any bytes where there is none."""
    at = max(data.find(b"II*\0"), data.find(b"MM\0*"))
    if at < 0:
        return _set(data, rng, name)
    place = min(len(data) - 1, at + rng.randrange(48))
    data[place] = rng.choice((0, 1, 3, 8, 0xFF, rng.randrange(256)))
    return data


KINDS: dict[str, Callable[[bytearray, random.Random, str], bytearray]] = {
    "flip": _flip, "set": _set, "number": _number, "cut": _cut, "splice": _splice, "swap": _swap, "exif": _exif,
}  # fmt: skip


def with_checksums(data: bytearray) -> bytearray:
    """A PNG whose chunks have right checksums again, so that the change comes past them."""
    at = 8
    while at + 12 <= len(data):
        stop = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if stop + 4 > len(data):
            break
        data[stop : stop + 4] = zlib.crc32(data[at + 4 : stop]).to_bytes(4, "big")
        at = stop + 4
    return data
