"""The problems of a pack as the page shows them: what was found, examples, and a set of records for each."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np

from packer.errors import PackerError, UsageError, printable
from packer.format.pack import Pack
from packer.stats.problems import Example, Problem, Problems, find_problems
from packer.view.catalog import RecordSet
from packer.view.facts import drawn_boxes, numbers, tile_facts
from packer.view.pictures import Pictures, data_uri, problem_of

SIDE = 240
"""Longer side of the picture of an example, pixels."""
AROUND = 3.0
"""Side of the part of an image that an example of a box shows, in sides of the box."""
LEAST_PX = 96
"""And in pixels, at least."""


class ProblemSets:
    """The problems of a pack, found when first asked for. Threads may share it."""

    def __init__(self, pack: Pack, pictures: Pictures) -> None:
        self._pack, self._pictures = pack, pictures
        self._lock = Lock()
        self._problems: Problems | None = None

    @property
    def _all(self) -> Problems:
        with self._lock:
            if self._problems is None:
                self._problems = find_problems(self._pack)
        return self._problems

    def facts(self) -> dict[str, Any]:
        """Return all problems, without examples."""
        found = [
            {
                "kind": one.kind, "level": one.level, "title": one.title, "text": one.text,
                "records": one.count, "objects": one.objects,
            }
            for one in self._all.found
        ]  # fmt: skip
        return {"problems": found, "notes": list(self._all.notes)}

    def examples(self, kind: str) -> dict[str, Any]:
        """Return the examples of a kind: tiles with a ``detail``, cut out around the boxes that they are about."""
        return {"examples": [self._example(one) for one in self._of(kind).examples]}

    def set_of(self, name: str) -> RecordSet:
        """Return the records of a kind as a set of the catalog: ``problem:leak``."""
        problem = self._of(name)
        return RecordSet(problem.title, problem.records)

    def _of(self, kind: str) -> Problem:
        for one in self._all.found:
            if one.kind == kind:
                return one
        raise UsageError("set", f"problem:{printable(kind[:40])} is not a kind of problem that this pack has")

    def _example(self, example: Example) -> dict[str, Any]:
        about = {"detail": example.detail, "path": example.path, "pack": example.pack}
        try:
            facts = tile_facts(self._pack, example.record)
            if not example.boxes or max(example.boxes) >= len(facts["boxes"]):
                return {**facts, **problem_of(lambda: self._pictures.uri(example.record, SIDE)), **about}
            facts = drawn_boxes(facts, example.boxes)
            if (part := _part(facts)) is None:
                return {**facts, **problem_of(lambda: self._pictures.uri(example.record, SIDE)), **about}
            left, top, right, bottom = part
            image = self._pack.image(example.record)[top:bottom, left:right]
            facts.update(picture=data_uri(np.ascontiguousarray(image)), width=right - left, height=bottom - top)
            facts["boxes"] = numbers(np.asarray(facts["boxes"]) - [left, top, left, top])
            return {**facts, **about}
        except PackerError as error:
            return {"record": example.record, "key": example.key, "error": str(error), **about}


def _part(facts: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """Return the part of the image that shows the first box (x1, y1, x2, y2); None if that is all of it."""
    if any(None in box for box in facts["boxes"]):  # not numbers
        return None
    x1, y1, x2, y2 = facts["boxes"][0]
    width, height = facts["width"], facts["height"]
    side = max(AROUND * max(x2 - x1, y2 - y1), LEAST_PX)
    if side > 0.7 * max(width, height):
        return None
    wide, high = min(int(side), width), min(int(side), height)
    left = int(min(max((x1 + x2 - wide) / 2, 0), width - wide))
    top = int(min(max((y1 + y2 - high) / 2, 0), height - high))
    return left, top, left + wide, top + high
