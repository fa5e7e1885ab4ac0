"""Finds the files in a tar, many headers at a time.

`packer.files.tar_members` reads any tar, one header after another: a few microseconds a member, as long as
all the rest that reading an image takes. What is unusual is left to it, and so is every error.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer.files.tar_members import BLOCK, one_by_one, tar_members

SEGMENT_BLOCKS = 1 << 14
"""8 MiB: what is looked at several times should stay in the processor's cache."""
_LANES = np.uint64(0x00FF00FF00FF00FF)
USTAR = int.from_bytes(b"usta", "little")
FILES = b"0\x007"
LINKS = b"12"
FOLDER = b"5"
PAX = b"x"
MEANT = (b"path=", b"size=", b"GNU.sparse.", b"linkpath=")
"""Records of a pax header that change what its member is; others are times and owners."""
NO_BYTES = -1
"""The size of a link, or of a sparse file, which has no bytes of its own in one piece."""


def tar_files(view: mmap.mmap, path: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, first byte, size) of each file and link in a tar; NO_BYTES as the size of links and sparse files.

    Args:
        view: The tar.
        path: Its path, for errors.

    Raises:
        UsageError: It is damaged, truncated, or not a tar.
    """
    data = np.frombuffer(view, np.uint8)
    at = 0
    while (segment := _segment(data, at)) is not None:
        rows, following = segment
        yield from rows
        if following < 0:
            return
        at = following
    del data  # the map cannot be closed as long as it is there
    members = tar_members(lambda size, start: view[start : start + size], len(view), path)
    for member in one_by_one(members):
        if member.kind == "file" and member.offset >= at:
            yield member.name, member.offset, member.size
        elif member.kind in ("file", "folder", "skip", "not a regular file"):
            continue
        else:  # a link says not where it is in the file; to list it twice is better than not at all
            yield member.name, member.offset, NO_BYTES


def _segment(data: NDArray[np.uint8], at: int) -> tuple[list[tuple[bytes, int, int]], int] | None:
    """Return the files whose headers begin in a segment, and where the next one begins; -1 at the end of the tar.

    None if anything is unusual.
    """
    count = min(SEGMENT_BLOCKS, (len(data) - at) // BLOCK)
    if count < 1:
        return None
    magic = np.ndarray((count,), "<u4", data, at + 257, (BLOCK,))
    places = np.flatnonzero(magic == USTAR)
    heads = data[at : at + count * BLOCK].reshape(count, BLOCK)[places]
    kinds = heads[:, 156]
    sizes, whole = _octal(heads[:, 124:135])
    whole &= (heads[:, 135] == 0) | (heads[:, 135] == 32)
    sizes[np.isin(kinds, np.frombuffer(LINKS + FOLDER, np.uint8))] = 0
    starts = at + (places + 1) * BLOCK
    after = starts + -(-sizes // BLOCK) * BLOCK
    good = whole & _has_sum(heads) & (after <= len(data))
    order = _chain(at, starts - BLOCK, after)
    if not len(order) or not good[order].all():
        return None
    following = int(after[order[-1]])
    if following < at + count * BLOCK:
        if data[following : following + 2 * BLOCK].any() or _anything_after(data, following):
            return None
        following = -1
    found = kinds[order].tobytes()
    if found.strip(FILES + LINKS + FOLDER + PAX):
        return None
    if found[-1:] == PAX:  # its member is in the next segment
        if following < 0:
            return None
        order, following = order[:-1], int(starts[order[-1]]) - BLOCK
        if not len(order):
            return None
    pax = order[kinds[order] == PAX[0]]
    for place in pax[~_only_times(data, starts[pax], sizes[pax])].tolist():
        records = data[starts[place] : after[place]].tobytes()
        if any(name in records for name in MEANT):
            return None
    chosen = order[np.isin(kinds[order], np.frombuffer(FILES + LINKS, np.uint8))]
    sizes[np.isin(kinds, np.frombuffer(LINKS, np.uint8))] = NO_BYTES
    names = _names(heads[chosen])
    return list(zip(names, starts[chosen].tolist(), sizes[chosen].tolist(), strict=True)), following


def _only_times(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which pax headers are one record of a time, as Python writes for each member; bool (n,)."""
    begin = data[starts[:, None] + np.arange(9)]
    length = (begin[:, 0].astype(np.int64) - ord("0")) * 10 + begin[:, 1] - ord("0")
    return np.asarray((begin[:, 2:] == np.frombuffer(b" mtime=", np.uint8)).all(axis=1) & (length == sizes))


def _octal(digits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return numbers of octal digits, and which of them are; int64 (n,), bool (n,)."""
    values = digits - np.uint8(ord("0"))
    weights = 8.0 ** np.arange(digits.shape[1] - 1, -1, -1)  # exact, and several times as fast as whole numbers
    return (values @ weights).astype(np.int64), values.max(axis=1, initial=0) < 8


def _has_sum(heads: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether each header has its checksum in one of the two usual forms."""
    words = heads.view("<u8")
    varies = (words != words[:1]).any(axis=0)  # most fields are equal in all headers of a tar
    equal = words[:1, ~varies].view(np.uint8).sum(dtype=np.int64)
    words = words[:, varies]
    lanes = ((words & _LANES) + ((words >> np.uint64(8)) & _LANES)).sum(axis=1)  # four sums of 128 bytes at most
    sums: NDArray[np.int64] = lanes.view("<u2").reshape(-1, 4).sum(axis=1, dtype=np.int64)
    total = equal + sums - heads[:, 148:156].sum(axis=1, dtype=np.int64) + 8 * ord(" ")
    six, good_six = _octal(heads[:, 148:154])
    seven, good_seven = _octal(heads[:, 148:155])
    return np.asarray((good_six & (six == total) & (heads[:, 154] == 0)) | (good_seven & (seven == total)))


def _chain(at: int, heads: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which headers follow one another from byte `at` on; what looks like one may be in a member's data."""
    if len(heads) and heads[0] == at and (after[:-1] == heads[1:]).all():
        return np.arange(len(heads))
    place_of = dict(zip(heads.tolist(), range(len(heads)), strict=True))
    ends = after.tolist()
    order = []
    while (place := place_of.get(at)) is not None:
        order.append(place)
        at = max(ends[place], at + BLOCK)
    return np.array(order, np.int64)


def _anything_after(data: NDArray[np.uint8], at: int) -> bool:
    return any(data[start : start + (1 << 20)].any() for start in range(at, len(data), 1 << 20))


def _names(heads: NDArray[np.uint8]) -> list[bytes]:
    names: list[bytes] = np.ascontiguousarray(heads[:, :100]).view("S100").ravel().tolist()
    if b"\0" in b"".join(names):
        names = [name.partition(b"\0")[0] for name in names]
    for row in np.flatnonzero((heads[:, 345] != 0) & (heads[:, 262] == 0)).tolist():
        names[row] = heads[row, 345:500].tobytes().partition(b"\0")[0] + b"/" + names[row]
    return names
