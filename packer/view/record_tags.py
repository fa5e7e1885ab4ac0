"""The tags that the user has given records in the page, several at once: kept as marks are, in a file for each pack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from packer.errors import UsageError, printable
from packer.format.pack import Pack
from packer.system.state import StateFiles
from packer.view.catalog import RecordSet
from packer.view.marks import MOST_AT_ONCE, path_list

LONGEST_TAG, MOST_TAGS = 60, 100


class RecordTags:
    """The tags of a pack, or of each pack of a joined one. Threads, servers and packs may share the files.

    A pack is known by its digest, as for marks.
    """

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._begins = [0, *accumulate(len(part) for part in pack.packs)]
        self._files = StateFiles("tags", "tags")

    def all(self) -> dict[str, list[int]]:
        """Return the records of each tag, in the order of tagging."""
        found: dict[str, list[int]] = {}
        for number, begin in enumerate(self._begins[:-1]):
            for tag, records in self._read(number).items():
                found.setdefault(tag, []).extend(begin + record for record in records)
        return found

    def change(self, tag: str, records: Iterable[int], on: bool) -> list[int]:
        """Give records a tag, or take it from them.

        Args:
            tag: Its name; a new one is made.
            records: The records.
            on: Whether they shall have it.

        Returns:
            The records that this changed.

        Raises:
            UsageError: The name or a record is wrong, or there are too many tags.
            StorageError: The tags cannot be written.
        """
        wanted = list(dict.fromkeys(records))
        if not tag or len(tag) > LONGEST_TAG or "," in tag or printable(tag) != tag:
            raise UsageError(
                "tag", f"must have 1 to {LONGEST_TAG} characters and no comma, got {printable(tag[:80])!r}"
            )
        if wanted and not 0 <= min(wanted) <= max(wanted) < len(self._pack):
            raise UsageError("record", f"must be 0 to {len(self._pack) - 1}, got {min(wanted)} to {max(wanted)}")
        changed: list[int] = []
        for number, (begin, end) in enumerate(zip(self._begins, self._begins[1:], strict=False)):
            if inside := [record - begin for record in wanted if begin <= record < end]:
                with self._files.changing():
                    changed += [begin + record for record in self._changed(number, tag, inside, on)]
        return changed

    def _changed(self, number: int, tag: str, records: list[int], on: bool) -> list[int]:
        tags = self._read(number)
        if tag not in tags and len(tags) >= MOST_TAGS:
            raise UsageError("tag", f"there are {MOST_TAGS} tags already", "remove one in the tab Marked")
        before = tags.get(tag, [])
        having = set(before)
        changed = [record for record in records if (record in having) != on]
        gone = set() if on else set(changed)
        tags[tag] = [*(record for record in before if record not in gone), *(changed if on else ())]
        self._write(number, {name: of for name, of in tags.items() if of})
        return changed

    def listing(self, tag: str, number: int = 0) -> bytes:
        """Return the records with a tag in pack `number`: a list of paths that ``--include`` and ``--exclude`` take."""
        return path_list(self._pack.packs[number], ((record, tag) for record in self._read(number).get(tag, ())))

    def set_of(self, tag: str) -> RecordSet:
        """Return the records with a tag as a set of the catalog, ``tagged:NAME``; empty if none has it."""
        return RecordSet(printable(tag), np.array(self.all().get(tag, []), np.int64))

    def facts(self) -> dict[str, Any]:
        """Return the tags as a JSON value, with the number of records of each in each pack."""
        ends = self._begins[1:]
        tags = [
            {
                "tag": tag,
                "records": records,
                "packs": np.bincount(np.searchsorted(ends, records, "right"), minlength=len(ends)).tolist(),
            }
            for tag, records in self.all().items()
        ]
        return {"tags": tags}

    def _name(self, number: int) -> str:
        return self._pack.packs[number].manifest.digest[:32]

    def _read(self, number: int) -> dict[str, list[int]]:
        most = len(self._pack.packs[number])

        def parse(content: Any) -> dict[str, list[int]]:
            return {str(tag): [int(r) for r in records if 0 <= int(r) < most] for tag, records in content["tags"]}

        found: dict[str, list[int]] = self._files.read(self._name(number), parse, {})
        return found

    def _write(self, number: int, tags: Mapping[str, list[int]]) -> None:
        pack = printable(self._pack.packs[number].path)
        self._files.write(self._name(number), {"pack": pack, "tags": list(tags.items())})


def change_tags(
    body: Callable[[], Any], tags: RecordTags, records_of: Callable[[Mapping[str, str], int, int], Iterable[int]]
) -> dict[str, Any]:
    """Do what a request of the page asks for: {"tag", "on", "records"}, the ones that it changed.

    Args:
        body: Returns {"tag": name, "on": whether} with ``"records": [...]``, or ``"range": [first, last]`` and
            ``"query"``, the records at these places in its order.
        tags: The tags.
        records_of: Returns the records of a query from one place to another, without the last.

    Raises:
        UsageError: It is something else.
    """
    try:
        given = body()
        tag, on = " ".join(given["tag"].split()), given["on"] is True
        if "range" in given:
            first, last = sorted(map(int, given["range"]))
            query = {str(name): str(value) for name, value in given["query"].items()}
            count = last - first + 1
        else:
            count = len(given["records"])
        if count > MOST_AT_ONCE:
            raise UsageError("tag", f"at most {MOST_AT_ONCE:,} records can be tagged at once, got {count:,}")
        records = records_of(query, first, last + 1) if "range" in given else map(int, given["records"])
        return {"tag": tag, "on": on, "records": tags.change(tag, records, on)}
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError("tag", "is not in the form that the page sends") from None
