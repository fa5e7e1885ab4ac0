"""Objects that are given to tools which write labels, and what packer reads compared with them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from drawn import image_file

from packer import BuildOptions, Pack, build_pack, open_pack

CLASSES = ["ant", "bee", "wasp"]
WIDTH, HEIGHT = 64, 48
MILLI = 1e-3
"""Of a pixel: float32, and fractions of five or six digits."""


@dataclass(frozen=True)
class Thing:
    """An object as it is given to a tool."""

    name: str
    box: tuple[float, float, float, float]
    """xmin, ymin, xmax, ymax in pixels."""
    ring: tuple[tuple[float, float], ...]
    """A polygon in the box, which reaches its edges."""
    angle: float
    """Of the box around its center, in degrees."""

    @property
    def corners(self) -> list[tuple[float, float]]:
        """Those of the turned box, in their order."""
        (x1, y1, x2, y2), turn = self.box, math.radians(self.angle)
        cx, cy, cos, sin = (x1 + x2) / 2, (y1 + y2) / 2, math.cos(turn), math.sin(turn)
        ring = ((x1, y1), (x2, y1), (x2, y2), (x1, y2))
        return [(cx + (x - cx) * cos - (y - cy) * sin, cy + (x - cx) * sin + (y - cy) * cos) for x, y in ring]


Drawn = dict[str, list[Thing]]


def things_of(seed: str, step: float = 0.25) -> Drawn:
    """Twelve images with up to four objects; coordinates are multiples of a step."""
    dice = random.Random(seed)
    found: Drawn = {}
    for number in range(12):
        things = []
        for _ in range(number % 5):
            x, y = dice.randrange(10, 30), dice.randrange(10, 20)
            w, h = (step * dice.randrange(int(8 / step), int(20 / step)) for _ in "wh")
            ring = ((x, y + h / 2), (x + w / 2, y), (x + w, y + h / 2), (x + w / 2, y + h))
            ring = tuple((step * round(px / step), step * round(py / step)) for px, py in ring)
            things.append(Thing(dice.choice(CLASSES), (x, y, x + w, y + h), ring, dice.uniform(-20, 20)))
        found[f"img_{number:02d}"] = things
    return found


def write_images(folder: Path, drawn: Drawn) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.jpg" for name in drawn}
    for number, path in enumerate(paths.values()):
        path.write_bytes(image_file(number, WIDTH, HEIGHT))
    return paths


def packed(root: Path, spec: str = "auto", **options: Any) -> Pack:
    out = root.parent / "pack.lmdb"
    build_pack(BuildOptions(str(root), str(out), labels=(spec,), encode="copy", workers=1, overwrite=True, **options))
    return open_pack(str(out))


def each(pack: Pack, drawn: Drawn) -> Iterator[tuple[int, list[Thing]]]:
    """Each image with what was drawn in it, and the classes compared."""
    names = [Path(path).stem for path in pack.paths]
    assert sorted(names) == sorted(drawn) and sum(map(len, drawn.values())) > 20
    for i, name in enumerate(names):
        assert [pack.classes[label] for label in pack.annotation(i).box_labels] == [one.name for one in drawn[name]]
        yield i, drawn[name]


def assert_boxes(pack: Pack, drawn: Drawn) -> None:
    for i, things in each(pack, drawn):
        wanted = np.array([thing.box for thing in things]).reshape(-1, 4)
        np.testing.assert_allclose(pack.annotation(i).boxes, wanted, atol=MILLI, rtol=0)


def blob_in(thing: Thing) -> Any:
    """A mask with holes that reaches the edges of the box, whose sides it rounds to pixels."""
    x1, y1, x2, y2 = map(round, thing.box)
    found = np.zeros((HEIGHT, WIDTH), np.uint8)
    found[y1:y2, x1:x2] = 1
    found[y1 + 2 : y2 - 2 : 2, x1 + 2 : x2 - 3] = 0
    return found
