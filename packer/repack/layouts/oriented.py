"""The layout of DOTA that `packer extract` writes: oriented boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from packer.errors import UsageError, option
from packer.model.annotation import Annotation
from packer.model.geometry import corners_of
from packer.repack.layouts import Item, Layout, below_images, plain
from packer.sources.dota import FACTS
from packer.sources.paths import quoted_value


def corners_in(annotation: Annotation) -> Any:
    """Return the corners of oriented boxes, or of the boxes of an image that has no others, float32 (n, 4, 2)."""
    return corners_of(annotation.boxes) if annotation.obb is None else annotation.obb  # type: ignore[arg-type]


SAME_PX = 0.01


def is_extent(box: Any, points: Any) -> bool:
    """Return whether a box (xyxy) is that around some points, but for rounding."""
    around = np.concatenate([np.min(points, axis=0), np.max(points, axis=0)])
    return bool(np.abs(around - box).max() <= SAME_PX)


class DotaLayout(Layout):
    """A text file for each image that has boxes, with the corners of each, its class and whether it is difficult."""

    name = "dota"
    holds = frozenset({"boxes", "obb", "box_fields.difficult", *(f"extras.{name}" for name in FACTS)})
    needs = frozenset({"boxes"})
    ignored_as = "difficult"
    stems = True

    def check(self) -> None:
        """Raise UsageError if a class is not one word, too."""
        super().check()
        for name in self.classes:
            if len(name.split()) > 1:
                raise UsageError(option("layout"), f"dota cannot hold a class {quoted_value(name)}", "choose yolo")

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return the path below images."""
        return b"images/" + below_images(path)

    def add(self, item: Item) -> None:
        """Write the lines of the image."""
        annotation = item.annotation
        if annotation.boxes is None or annotation.box_labels is None:
            return
        lines = [f"{name}:{annotation.extras[name]}" for name in FACTS if name in annotation.extras]
        names = item.class_names(self.classes)
        flags = annotation.box_fields.get("difficult", (0,) * len(names))
        rows = zip(corners_in(annotation).reshape(-1, 8), names, flags, annotation.ignored.tolist(), strict=True)
        for corners, name, flag, ignored in rows:
            lines.append(f"{' '.join(map(plain, corners))} {name} {int(flag or ignored)}")
        label = b"labelTxt/" + below_images(item.name).rpartition(b".")[0] + b".txt"
        self.write(label, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
