"""When a JPEG may be decoded at a fraction of its size: libjpeg's scaled decode, by 1/2, 1/4 and 1/8."""

from __future__ import annotations

HEADROOM = 2
"""How much larger than the result a JPEG's scaled decode must be. libjpeg cuts frequencies off where area
averaging fades them out; at 1 the result differs visibly (100 photos to 32..224 px: worst 27 dB, median
37), at 2 not (worst 35 dB, median 45), and it is nearly as fast (500x375 to 64 px: 1.4 times, not 1.5)."""
_SIDE_MIN = 16
"""Smaller sides come out alike from several of libjpeg's sixteen factors, so the one it takes is unknown."""

_REVERSES_X = frozenset((2, 3, 6, 7))
_REVERSES_Y = frozenset((3, 4, 7, 8))


def extents(side: int, factor: int) -> int:
    """Pixels of a side decoded at 1/factor: libjpeg rounds up, the last pixel may lie partly outside."""
    return -(-side // factor)


def reduction(size: tuple[int, int], at_least: tuple[int, int], orientation: int = 1) -> int:
    """1, 2, 4 or 8: the most by which an image of that size may shrink and still cover `at_least`.

    Never another factor: libjpeg has fast paths for these three, 6/8 and the like cost more than a full
    decode. Both sizes are (width, height), upright. Where the orientation reverses an axis, its size must
    be a multiple: libjpeg's partly filled last pixel would come first, and push all others out of place.
    """
    width, height = size
    if min(width, height) >= _SIDE_MIN:
        for factor in (8, 4, 2):
            if width < factor * at_least[0] or height < factor * at_least[1]:
                continue
            if (orientation in _REVERSES_X and width % factor) or (orientation in _REVERSES_Y and height % factor):
                continue
            return factor
    return 1
