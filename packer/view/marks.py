"""The records that the user has marked, and why: kept in a file for each pack in the user's state folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from packer.errors import UsageError, printable
from packer.format.lists import Listing, Skipped, header_of
from packer.format.pack import Pack
from packer.system.state import StateFiles
from packer.view.catalog import RecordSet

REASONS = ("wrong label", "bad box", "bad image", "duplicate")
"""Those that the page offers; others can be written."""
LONGEST_REASON = 200
MOST_AT_ONCE = 10_000
"""Maximum number of records that one request may mark."""
NO_REASON = "marked"
"""What a list says of a mark without a reason."""


class Marks:
    """The marks of a pack, or of each pack of a joined one. Threads, servers and packs may share the files.

    A pack is known by its digest, so its marks are found wherever it is moved or copied.
    """

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._begins = [0, *accumulate(len(part) for part in pack.packs)]
        self._files = StateFiles("marks", "marks")

    def all(self) -> dict[int, str]:
        """Return the reason of each marked record, in the order of marking; "" for none."""
        return {
            self._begins[number] + record: reason
            for number in range(len(self._pack.packs))
            for record, reason in self._read(number).items()
        }

    def change(self, wanted: Mapping[int, str | None]) -> dict[int, str | None]:
        """Mark records, give a mark another reason, or remove marks (None).

        Args:
            wanted: The reason of each record.

        Returns:
            What the records had before; passed to `change`, it undoes the change.

        Raises:
            UsageError: A record does not exist, or a reason is too long.
            StorageError: The marks cannot be written.
        """
        for record, reason in wanted.items():
            if not 0 <= record < len(self._pack):
                raise UsageError("record", f"must be 0 to {len(self._pack) - 1}, got {record}")
            if reason is not None and len(reason) > LONGEST_REASON:
                raise UsageError("reason", f"must have at most {LONGEST_REASON} characters, got {len(reason)}")
        before: dict[int, str | None] = {}
        for number, (begin, end) in enumerate(zip(self._begins, self._begins[1:], strict=False)):
            if of_part := {record - begin: reason for record, reason in wanted.items() if begin <= record < end}:
                with self._files.changing():
                    marks = self._read(number)
                    before.update((begin + record, marks.get(record)) for record in of_part)
                    kept = {record: reason for record, reason in marks.items() if of_part.get(record, "") is not None}
                    kept.update((record, reason) for record, reason in of_part.items() if reason is not None)
                    self._write(number, kept)
        return before

    def listing(self, number: int = 0) -> bytes:
        """Return the marked records of pack `number` of the joined ones: a list of paths that ``--exclude`` takes.

        It has the form of the lists of a pack, whose escapes keep any file name.
        """
        rows = ((record, reason or NO_REASON) for record, reason in self._read(number).items())
        return path_list(self._pack.packs[number], rows)

    def set_of(self, name: str) -> RecordSet:
        """Return the marked records as a set of the catalog: ``marked:all``; raise UsageError for another name."""
        if name != "all":
            raise UsageError("set", f"must be marked:all, got marked:{name[:40]}")
        return RecordSet("marked", np.array(list(self.all()), np.int64))

    def facts(self) -> dict[str, Any]:
        """Return the marks as a JSON value, and the number of marks in each pack."""
        marks = self.all()
        parts = zip(self._pack.packs, self._begins, self._begins[1:], strict=False)
        return {
            "marks": list(marks.items()),
            "reasons": REASONS,
            "packs": [
                {"name": printable(os.path.basename(part.path)), "count": sum(first <= r < end for r in marks)}
                for part, first, end in parts
            ],
        }

    def _name(self, number: int) -> str:
        return self._pack.packs[number].manifest.digest[:32]

    def _read(self, number: int) -> dict[int, str]:
        def parse(content: Any) -> dict[int, str]:
            return {int(record): str(reason) for record, reason in content["marks"]}

        records = len(self._pack.packs[number])
        marks: dict[int, str] = self._files.read(self._name(number), parse, {})
        return {record: reason for record, reason in marks.items() if 0 <= record < records}

    def _write(self, number: int, marks: Mapping[int, str]) -> None:
        """Replace the marks of a pack, all at once. Raise OSError if that fails."""
        pack = printable(self._pack.packs[number].path)
        self._files.write(self._name(number), {"pack": pack, "marks": list(marks.items())})


def path_list(pack: Pack, rows: Iterable[tuple[int, str]]) -> bytes:
    """Return a list of the source paths of records, each with a reason."""
    paths = pack.column("path")
    listed = (Skipped(os.fsdecode(bytes(paths[record])), reason) for record, reason in rows)
    return header_of(Skipped) + b"".join(Listing(Skipped, listed).lines())


def wanted_marks(
    body: Callable[[], Any], marks: Marks, records_of: Callable[[Mapping[str, str], int, int], Iterable[int]]
) -> Any:
    """Return what a request of the page asks `Marks.change` for.

    Args:
        body: Returns ``{"set": {record: reason or null}}``; or ``{"range": [first, last], "query": {...}}``, which
            marks the records at these places in the order of the query; or ``{"clear": true}``.
        marks: The marks.
        records_of: Returns the records of a query from one place to another, without the last.

    Raises:
        UsageError: It is something else.
    """
    try:
        return dict(_wanted_marks(body(), marks, records_of))
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError("marks", "are not in the form that the page sends") from None


def _wanted_marks(
    body: Any, marks: Marks, records_of: Callable[[Mapping[str, str], int, int], Iterable[int]]
) -> Iterator[tuple[int, str | None]]:
    if "set" in body:
        if len(body["set"]) > MOST_AT_ONCE:
            raise _too_many(len(body["set"]))
        for record, reason in body["set"].items():
            if not (reason is None or isinstance(reason, str)):
                raise TypeError
            yield int(record), reason if reason is None else " ".join(reason.split())
    elif "range" in body:
        first, last = sorted(map(int, body["range"]))
        query = {str(name): str(value) for name, value in body["query"].items()}
        if last - first >= MOST_AT_ONCE:
            raise _too_many(last - first + 1)
        marked = marks.all()
        yield from ((record, "") for record in records_of(query, first, last + 1) if record not in marked)
    elif body["clear"] is True:
        yield from dict.fromkeys(marks.all()).items()


def _too_many(count: int) -> UsageError:
    return UsageError("marks", f"at most {MOST_AT_ONCE:,} records can be marked at once, got {count:,}")
