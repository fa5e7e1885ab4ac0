"""Maps of the records by their embeddings: places and colors as bytes, areas and neighbors as sets of the catalog."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError, printable, size_text
from packer.format.pack import Pack
from packer.model.annotation import Progress
from packer.stats.columns import value_columns
from packer.stats.embeddings import LARGE_BYTES, Embedding, embedding_names
from packer.stats.problems.neighborhood import embedding_problems
from packer.stats.problems.problem import DataProblem, ProblemColumns
from packer.stats.projection import METHODS, projected
from packer.system.registry import choose
from packer.view.catalog import Catalog, RecordSet, number
from packer.view.charts import PixelStats
from packer.view.facts import tag_set

NOWHERE = 65_535
"""Both places of a record that has none; others are 0 to 65,534, in steps of the same size in both directions."""
MOST_SIMILAR = 1000
"""Records of the set of those that are similar to one."""
MOST_SHOWN = 24
MOST_CORNERS = 200
SHADES = 255
_KEPT = 8
"""Areas and neighbors that are kept."""
_AREA = re.compile(r"(\w+)\.(\w+)\.((?:[0-9a-f]{8})+)")


class EmbeddingMaps:
    """The maps of a pack, each computed in the background when it is first asked for. Threads may share it.

    Args:
        pack: The pack.
        catalog: Gets the sets ``area:EMBEDDING.METHOD.CORNERS`` and ``similar:EMBEDDING.RECORD``. Corners are places of
            a polygon, four hexadecimal digits for x and four for y.
    """

    def __init__(self, pack: Pack, catalog: Catalog) -> None:
        self._pack, self._catalog = pack, catalog
        self._maps: dict[tuple[str, str], PixelStats] = {}
        self._places: dict[tuple[str, str], NDArray[np.uint16]] = {}
        self._looks: dict[str, PixelStats] = {}
        self._problems: dict[str, list[DataProblem]] = {}
        self._kept: OrderedDict[tuple[str, ...], Any] = OrderedDict()
        self._lock = Lock()
        catalog.add_sets("area", self._area)
        catalog.add_sets("similar", self._similar_set)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The embeddings that the pack has."""
        return embedding_names(self._pack)

    @property
    def listed(self) -> list[dict[str, str]]:
        """Each embedding, and how much must be ``fetched`` of a URL to compare all of it, if that is much."""
        is_remote = any(part.reader.remote is not None for part in self._pack.packs)
        sizes = {name: self._pack.sidecars[name].bytes for name in self.names}
        return [
            {"name": name, "fetched": size_text(size) if is_remote and size >= LARGE_BYTES else ""}
            for name, size in sizes.items()
        ]

    def facts(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return how far a map is, or about the one that is there: ``view`` is where nearly all records are."""
        name, method = self._asked(given)
        with self._lock:
            job = self._maps.setdefault((name, method), PixelStats(self._pack, partial(self._map, name, method)))
        facts = job.facts(given.get("start") == "1")
        return {**facts, "colors": self._colors_of} if "ready" in facts else facts

    def _asked(self, given: Mapping[str, str]) -> tuple[str, str]:
        if not self.names:
            raise UsageError("embedding", "the pack has none", "packer attach PACK vectors.npy --as NAME")
        name = choose("embedding", given.get("embedding", self.names[0]), self.names)
        return name, choose("method", given.get("method", METHODS[0]), METHODS)

    def _map(self, name: str, method: str, pack: Pack, progress: Progress) -> dict[str, Any]:
        coordinates, known = projected(Embedding(pack, name), method, progress)
        some = coordinates[known]
        places = np.full((2, len(pack)), NOWHERE, np.uint16)
        low = some.min(axis=0) if len(some) else np.zeros(2)
        side = float(max((some.max(axis=0) - low).max(), 1e-12)) if len(some) else 1.0
        middle = (side - (some.max(axis=0) - low)) / 2 if len(some) else np.zeros(2)
        at = (some - low + middle) / side * (NOWHERE - 1)
        places[0, known], places[1, known] = np.rint(at[:, 0]), np.rint(NOWHERE - 1 - at[:, 1])
        self._places[name, method] = places
        shown = places[:, known]
        view = np.quantile(shown, (0.001, 0.999), axis=1).reshape(-1).tolist() if len(some) else [0, 0, 1, 1]
        left_out = int((~known).sum())
        return {"ready": True, "view": view, "left_out": left_out, "shown": len(pack) - left_out}

    def places(self, given: Mapping[str, str]) -> bytes:
        """Return the x of all records and then the y, uint16 of low byte first.

        Raises:
            UsageError: There is no map yet.
        """
        return self._placed(*self._asked(given)).astype("<u2").tobytes()

    def _placed(self, name: str, method: str) -> NDArray[np.uint16]:
        if (name, method) not in self._places:
            raise UsageError("set", f"area: {name} has no map by {method} yet", "open the tab Map")
        return self._places[name, method]

    @cached_property
    def _color_columns(self) -> dict[str, Callable[[], tuple[str, Any]]]:
        """By name: what returns the kind of the colors, and a number of each record: a class, or NaN for no value."""
        pack = self._pack
        found: dict[str, Callable[[], tuple[str, Any]]] = {}
        if "label" in pack.manifest.fields:
            found["class"] = lambda: ("class", np.asarray(self._catalog.labels))
        if len(pack.packs) > 1:
            sizes = [len(part) for part in pack.packs]
            found["pack"] = lambda: ("pack", np.repeat(np.arange(len(sizes)), sizes))
        if "boxes" in pack.manifest.fields:
            found["boxes"] = lambda: ("value", np.asarray(self._catalog.box_counts, np.float64))
        for name, column in value_columns(pack).items():
            found[name] = partial(_as_value, column)
        for at, tag in enumerate(pack.manifest.tags):
            found[f"tag {printable(tag)}"] = partial(self._tagged, at)
        return found

    def _tagged(self, at: int) -> tuple[str, NDArray[np.int64]]:
        found = np.zeros(len(self._pack), np.int64)
        found[tag_set(self._pack, at).records] = 1
        return "tag", found

    @cached_property
    def _colors_of(self) -> list[dict[str, Any]]:
        found = []
        for name, column in self._color_columns.items():
            kind, values = column()
            facts: dict[str, Any] = {"name": name, "kind": kind}
            if kind == "value":
                known = values[np.isfinite(values)]
                facts["ends"] = np.quantile(known, (0.02, 0.98)).tolist() if len(known) else [0, 0]
            found.append(facts)
        return found

    def colors(self, given: Mapping[str, str]) -> bytes:
        """Return a number for each record, uint16 of low byte first: a class, pack, tag or shade; NOWHERE for none."""
        name = choose("color", given.get("color", ""), list(self._color_columns))
        kind, values = self._color_columns[name]()
        if kind == "value":
            (low, high) = next(one["ends"] for one in self._colors_of if one["name"] == name)
            shades = np.clip((values - low) / max(high - low, 1e-300), 0, 1) * SHADES
            values = np.where(np.isfinite(shades), np.rint(np.nan_to_num(shades)), NOWHERE)
        values = np.asarray(values, np.int64)
        return np.where((values >= 0) & (values < NOWHERE), values, NOWHERE).astype("<u2").tobytes()

    def _keep(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """Return what was made of a key before, or make it: a set is asked for with each block of tiles."""
        with self._lock:
            found = self._kept.pop(key, None)
        found = make() if found is None else found
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _area(self, name: str) -> RecordSet:
        asked = _AREA.fullmatch(name)
        if asked is None or not 3 <= len(asked[3]) // 8 <= MOST_CORNERS or asked[1] not in self.names:
            raise UsageError(
                "set", f"area:{name[:40]} is not EMBEDDING.METHOD and 3 to {MOST_CORNERS} corners of 8 digits"
            )
        places = self._placed(asked[1], choose("method", asked[2], METHODS))
        corners = np.array([int(asked[3][at : at + 4], 16) for at in range(0, len(asked[3]), 4)]).reshape(-1, 2)
        records = self._keep(("area", name), lambda: inside(places, corners))
        return RecordSet(f"area of the map of {asked[1]}", records)

    def _nearest(self, name: str, record: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        if name not in self.names or not 0 <= record < len(self._pack):
            raise UsageError(
                "set", f"similar:{printable(name[:40])}.{record} is not an embedding and a record of this pack"
            )
        key = ("similar", name, str(record))
        found: tuple[NDArray[np.int64], NDArray[np.float32]]
        found = self._keep(key, lambda: Embedding(self._pack, name).similar(record, MOST_SIMILAR))
        return found

    def _similar_set(self, name: str) -> RecordSet:
        name, _, record = name.rpartition(".")
        at = number({"set": record}, "set", 0, 0, len(self._pack) - 1)
        return RecordSet(f"similar to record {at} ({printable(name)}), the nearest first", self._nearest(name, at)[0])

    def similar(self, given: Mapping[str, str]) -> list[tuple[int, float]]:
        """Return the records nearest to one, and their cosine distances."""
        name, _ = self._asked(given)
        record = number(given, "record", 0, 0, len(self._pack) - 1)
        count = number(given, "count", MOST_SHOWN, 1, MOST_SHOWN)
        records, distances = self._nearest(name, record)
        return list(zip(records[:count].tolist(), np.round(distances[:count].astype(float), 4).tolist(), strict=True))

    def look(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Return how far the search for outliers and suspects is, or what it found: the kinds, and notes."""
        name, _ = self._asked(given)
        with self._lock:
            job = self._looks.setdefault(name, PixelStats(self._pack, partial(self._look, name)))
        return job.facts(given.get("start") == "1")

    def _look(self, name: str, pack: Pack, progress: Progress) -> dict[str, Any]:
        found, notes = embedding_problems(ProblemColumns(pack), name, progress)
        if len(self.names) > 1:
            found = [replace(one, kind=f"{one.kind}.{name}") for one in found]
        self._problems[name] = found
        return {"ready": True, "kinds": [one.kind for one in found], "notes": notes}

    @property
    def problems(self) -> list[DataProblem]:
        """What was found in each embedding that was looked at."""
        return [one for found in list(self._problems.values()) for one in found]


def _as_value(column: NDArray[np.float64]) -> tuple[str, NDArray[np.float64]]:
    return "value", column


def inside(places: NDArray[np.uint16], corners: NDArray[Any]) -> NDArray[np.int64]:
    """Return the records whose place is inside of a polygon (even-odd rule), in order.

    Args:
        places: x and y of all records, (2, n); NOWHERE for none.
        corners: (m, 2).
    """
    (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
    x, y = places
    near = np.flatnonzero((x >= left) & (x <= right) & (y >= top) & (y <= bottom) & (x != NOWHERE))
    x, y = x[near].astype(np.float64), y[near].astype(np.float64)
    odd = np.zeros(len(near), np.bool_)
    for (x1, y1), (x2, y2) in zip(corners.astype(float), np.roll(corners, -1, axis=0).astype(float), strict=True):
        if y1 != y2:
            crosses = (y1 > y) != (y2 > y)
            odd ^= crosses & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
    return near[odd]
