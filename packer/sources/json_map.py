"""Maps a large JSON file, and cuts its arrays into objects without keeping them.

A file of annotations may be larger than the memory. It is mapped, so that the kernel can drop its pages, and an array
is decoded in pieces of a few megabytes. What is kept of an object is its position in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError, UsageError
from packer.model.annotation import Int64
from packer.sources.source import Tree

T = TypeVar("T")
Range = tuple[int, int]
"""First byte, and the one after the last."""

PIECE_BYTES = 4 << 20
LINES_BLOCK = 1 << 13
FAR = 1000
"""A byte further inside its line is not found by the number of the line."""
BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BETWEEN = re.compile(rb"\}\s*,\s*\{")
GAP = re.compile(rb"[\s,]*")
GAP_BYTES = list(b", \t\r\n")
BYTE = re.compile(r"\(byte (\d+)\)")
NOT_JSON = re.compile(rb"-?(?:NaN|Infinity)")
FIX = "fix the file"


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """Some objects of an array."""

    heads: list[T]
    starts: Int64
    """First byte of each object in the file."""
    sizes: Int64


class JsonMap:
    """A mapped JSON file. It can be pickled, and is then mapped again.

    Attributes:
        name: The file, for messages.
        view: A buffer that ends with the file; places are those in this buffer.
        first: Where the file begins in it: other than 0 in an archive.
    """

    def __init__(self, tree: Tree, path: bytes, name: str) -> None:
        """Map a file of the source, or another by its absolute path. Raise UsageError if it cannot be read."""
        self._tree, self._path = tree, path
        self.name = name
        self._newlines: list[int] | None = None
        self._places: dict[tuple[str, ...], dict[str, Range]] = {}
        self._map()

    def __getstate__(self) -> tuple[Tree, bytes, str]:
        return self._tree, self._path, self.name

    def __setstate__(self, state: tuple[Tree, bytes, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _map(self) -> None:
        try:
            with self._tree.open_plain(self._path) as file:
                self.view, self.first = file.mapped()
        except PackerError as error:
            raise UsageError(self.name, error.problem, error.next_step) from None
        except ValueError as error:
            raise UsageError(self.name, str(error), FIX) from None
        except OSError as error:
            raise UsageError(self.name, f"cannot be read: {error.strerror}", "check its name and permissions") from None

    def members(self, names: Sequence[str]) -> dict[str, Range]:
        """Return where the values of these members of the outermost object are; those that are missing are left out.

        Raises:
            UsageError: The file is not JSON in UTF-8, or not an object; the error names the line.
        """
        if (known := self._places.get(tuple(names))) is not None:
            return known
        first = self.first
        if self.view[first : first + 2] in UTF_16:
            raise UsageError(self.name, "is in UTF-16", "save it as UTF-8")
        first += len(BOM) if self.view[first : first + len(BOM)] == BOM else 0
        data = np.frombuffer(self.view, np.uint8)[first:]
        try:
            found = msgspec.json.decode(data.data, type=_struct_of(tuple(names)))
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._not_json(error, first) from None
        base = data.ctypes.data - first
        places = self._places[tuple(names)] = {}
        for name in names:
            if size := len(raw := getattr(found, name)):
                start = np.frombuffer(raw, np.uint8).ctypes.data - base
                places[name] = (start, start + size)
        return places

    def mentions(self, name: str, place: Range) -> bool:
        """Return whether a part of the file has members of this name. A map is searched slowly, and pieces are not."""
        word, (start, stop) = b'"%b"' % name.encode(), place
        return any(
            word in self.view[at : min(stop, at + PIECE_BYTES + len(word))] for at in range(start, stop, PIECE_BYTES)
        )

    def objects(self, place: Range, kind: type[T], what: str) -> Iterator[Piece[T]]:
        """Yield the objects of an array, decoded as `kind` and with their places, a piece at a time.

        Args:
            place: Where the array is.
            kind: A msgspec.Struct of the members to decode.
            what: The name of the array, for errors.

        Raises:
            UsageError: It is not an array of objects.
        """
        at, end = place[0] + 1, place[1] - 1
        if self.view[place[0]] != ord("["):
            raise UsageError(self.where(place[0]), f'"{what}" is not a list', FIX)
        decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        while at < end:
            cut, data, heads = self._piece(at, end, decoder, what)
            starts, sizes = _cut_objects(data)
            yield Piece(heads, starts + (at - 1), sizes)
            del data, heads
            at = GAP.match(self.view, cut, end).end()  # type: ignore[union-attr]

    def _piece(
        self, at: int, end: int, decoder: msgspec.json.Decoder[list[T]], what: str
    ) -> tuple[int, bytes, list[T]]:
        """Return the end of a piece that begins with an object, and its objects as an array and decoded.

        What stands between two objects may also stand inside one. A piece that ends there has open brackets, so that it
        cannot be decoded; then a longer one is taken.
        """
        size = PIECE_BYTES
        while True:
            between = BETWEEN.search(self.view, at + size, end) if at + size < end else None
            cut = end if between is None else between.start() + 1
            data = b"".join((b"[", memoryview(self.view)[at:cut], b"]"))
            try:
                return cut, data, decoder.decode(data)
            except msgspec.ValidationError as error:
                problem = f'"{what}" cannot be read: {str(error).partition(" - at ")[0]}'
                raise UsageError(self.where(at), problem, FIX) from None
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if cut == end:
                    raise UsageError(self.name, f'"{what}" cannot be read: {error}', FIX) from None
                size = 2 * (cut - at)

    def where(self, offset: int) -> str:
        """Return file and line of a byte, and the byte itself if it is far inside its line."""
        if self._newlines is None:
            blocks = range(self.first, len(self.view), LINES_BLOCK)
            counts = (self.view[start : start + LINES_BLOCK].count(b"\n") for start in blocks)
            self._newlines = [0, *accumulate(counts)]
        block = (offset - self.first) // LINES_BLOCK
        before = self.view[self.first + block * LINES_BLOCK : offset]
        line = self._newlines[block] + before.count(b"\n") + 1
        is_far = len(before) > FAR and b"\n" not in before[-FAR:]
        return f"{self.name}:{line} (byte {offset - self.first})" if is_far else f"{self.name}:{line}"

    def _not_json(self, error: Exception, first: int) -> UsageError:
        if isinstance(error, RecursionError):
            return UsageError(self.name, "is nested too deeply", FIX)
        if isinstance(error, msgspec.ValidationError):
            return UsageError(self.name, "is not an object with members", FIX)
        byte = BYTE.search(str(error))
        if byte is None:
            return UsageError(self.name, "is not complete JSON: it ends too early", "copy or export it again")
        offset = int(byte[1]) + first
        if (word := NOT_JSON.match(self.view, offset)) is not None:
            return UsageError(self.where(offset), f"{word[0].decode()} is not JSON", "write a number or null instead")
        problem = BYTE.sub("", str(error)).removeprefix("JSON is malformed: ").strip()
        return UsageError(self.where(offset), f"is not JSON: {problem}", FIX)


def _are_gaps(data: NDArray[np.uint8], starts: Int64, width: int) -> bool:
    """Return whether objects begin at `starts`, each after a gap of this width."""
    gaps = data[starts[1:, None] - np.arange(1, width + 1)]
    return bool((data[starts] == ord("{")).all() and np.isin(gaps, GAP_BYTES).all())


@lru_cache
def _struct_of(names: tuple[str, ...]) -> Any:
    return msgspec.defstruct("Top", [(name, msgspec.Raw, msgspec.Raw()) for name in names])


def _cut_objects(data: bytes) -> tuple[Int64, Int64]:
    """Return the first byte and the size of each object of an array."""
    raws = msgspec.json.decode(data, type=list[msgspec.Raw])
    sizes: NDArray[np.int64] = np.fromiter(map(len, raws), np.int64, len(raws))
    if not len(raws):
        return sizes, sizes
    first = GAP.match(data, 1).end()  # type: ignore[union-attr]
    width = GAP.match(data, first + len(raws[0])).end() - first - len(raws[0])  # type: ignore[union-attr]
    starts = first + np.append(0, np.cumsum(sizes[:-1] + width))
    if starts[-1] < len(data) and _are_gaps(np.frombuffer(data, np.uint8), starts, width):
        return starts, sizes
    starts = np.empty(len(raws), np.int64)
    at = 1
    skip = GAP.match
    for number, size in enumerate(sizes.tolist()):
        starts[number] = at = skip(data, at).end()  # type: ignore[union-attr]
        at += size
    return starts, sizes
