"""Ways to damage bytes at random: of images, labels, manifests and indexes."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

PNG = b"\x89PNG\r\n\x1a\n"


def mutated(seeds: Sequence[bytes], number: int, seed: int, keep: int = 0) -> bytes:
    """Return one of the seeds, damaged; the same numbers always give the same bytes.

    Args:
        seeds: They take turns, so that each has its share.
        number: Number of the mutation.
        seed: Another one gives other mutations.
        keep: Leave so many bytes at the start alone half of the time: they choose how the rest is read.
    """
    dice = random.Random(f"{seed} {number}")
    data = bytearray(seeds[number % len(seeds)])
    keep = min(keep, len(data) - 1) if dice.random() < 0.5 else 0
    head, data = data[:keep], data[keep:]
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        data = dice.choice(KINDS)(data or bytearray(1), dice, seeds) or data
    if dice.random() < 0.7:
        data = with_checksums(data)
    return bytes(head + data)


def _flip(data: bytearray, dice: random.Random, seeds: Sequence[bytes]) -> bytearray:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return data


def _set(data: bytearray, dice: random.Random, seeds: Sequence[bytes]) -> bytearray:
    data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, dice.randrange(256)))
    return data


def _number(data: bytearray, dice: random.Random, seeds: Sequence[bytes]) -> bytearray:
    """A number of 1, 2, 4 or 8 bytes, such as sizes and offsets are made of, near the start."""
    width = dice.choice((1, 2, 4, 8))
    at = dice.randrange(min(max(1, len(data) - width), 400))
    value = dice.choice((0, 1, 255, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, (1 << 32) - 1, dice.randrange(4000)))
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, dice.choice(("little", "big")))
    return data


def _cut(data: bytearray, dice: random.Random, seeds: Sequence[bytes]) -> bytearray:
    return data[: dice.randrange(1, len(data))] if len(data) > 1 else data


def _splice(data: bytearray, dice: random.Random, seeds: Sequence[bytes]) -> bytearray:
    """A piece of another seed, inserted or as the end."""
    other = dice.choice(seeds)
    start, at = dice.randrange(len(other) or 1), dice.randrange(len(data))
    return data[:at] + other[start:] if dice.random() < 0.3 else data[:at] + other[start : start + 64] + data[at:]


def _move(data: bytearray, dice: random.Random, seeds: Sequence[bytes]) -> bytearray:
    """A piece is doubled, left out, or put elsewhere."""
    start, at = dice.randrange(len(data)), dice.randrange(len(data))
    piece = data[start : start + dice.choice((1, 2, 4, 16, 64, 512))]
    rest = data if dice.random() < 0.5 else data[:start] + data[start + len(piece) :]
    return rest[:at] + piece * dice.randrange(3) + rest[at:]


def _exif(data: bytearray, dice: random.Random, seeds: Sequence[bytes]) -> bytearray:
    """Bytes of the Exif block, or of a TIFF's directory; any bytes if there is none."""
    at = max(data.find(b"II*\0"), data.find(b"MM\0*"))
    if at < 0:
        return _set(data, dice, seeds)
    data[min(len(data) - 1, at + dice.randrange(48))] = dice.choice((0, 1, 3, 8, 0xFF, dice.randrange(256)))
    return data


KINDS: tuple[Callable[[bytearray, random.Random, Sequence[bytes]], bytearray], ...] = (
    _flip, _set, _number, _cut, _splice, _move, _exif,
)  # fmt: skip


def with_checksums(data: bytearray) -> bytearray:
    """Return a PNG with right checksums, so that the damage is not found by them; other bytes as they are."""
    at = 8 if data.startswith(PNG) else len(data)
    while at + 12 <= len(data):
        stop = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if stop + 4 > len(data):
            break
        data[stop : stop + 4] = zlib.crc32(data[at + 4 : stop]).to_bytes(4, "big")
        at = stop + 4
    return data
