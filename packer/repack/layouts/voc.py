"""Pascal VOC: JPEGImages/1.jpg and Annotations/1.xml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from packer.model.annotation import Annotation
from packer.repack.layouts.base import Item, Layout, plain
from packer.sources.paths import as_text, stem_of

FLAGS = ("difficult", "truncated", "occluded")
IMAGES, LABELS = b"JPEGImages/", b"Annotations/"


class VocLayout(Layout):
    """An XML file for each image that has boxes, even if they are none."""

    name = "voc"
    needs = frozenset({"boxes"})
    holds = frozenset({"boxes", "box_fields.pose", "box_fields.voc_bndbox", *(f"box_fields.{name}" for name in FLAGS)})
    stems = True

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return the path below JPEGImages."""
        return IMAGES + path.removeprefix(IMAGES)

    def add(self, item: Item) -> None:
        """Write the XML file."""
        annotation = item.annotation
        if annotation.boxes is None or annotation.box_labels is None:
            return
        below = item.name.removeprefix(IMAGES)
        folder = below[: below.rfind(b"/") + 1]
        name = escape(_known(as_text(item.name.rpartition(b"/")[2])))
        lines = [
            "<annotation>", f"  <filename>{name}</filename>",
            f"  <size><width>{item.width}</width><height>{item.height}</height><depth>3</depth></size>",
        ]  # fmt: skip
        written = annotation.box_fields.get("voc_bndbox", ())
        for number, (box, label) in enumerate(
            zip(annotation.boxes.tolist(), item.class_names(self.classes), strict=True)
        ):
            edges = _edges(box, written[number] if number < len(written) else None)
            if edges[2] <= edges[0] or edges[3] <= edges[1]:
                self.lost["the area of a box of at most one pixel, which VOC cannot hold"] += 1
            lines += ["  <object>", f"    <name>{escape(label)}</name>"]
            for field in ("pose", *FLAGS):
                values = annotation.box_fields.get(field)
                if values is not None and values[number] is not None:
                    lines.append(f"    <{field}>{escape(str(values[number]))}</{field}>")
            corners = "".join(
                f"<{tag}>{plain(edge)}</{tag}>"
                for tag, edge in zip(("xmin", "ymin", "xmax", "ymax"), edges, strict=True)
            )
            lines += [f"    <bndbox>{corners}</bndbox>", "  </object>"]
        text = "\n".join([*lines, "</annotation>", ""])
        self.write(LABELS + folder + stem_of(item.name) + b".xml", text.encode())

    def close(self) -> None:
        """Write the order of the classes."""
        self.write_classes()


def _known(name: str) -> str:
    """Return a file name as XML can hold it; it is only for people, never followed."""
    return "".join(c if c.isprintable() else "?" for c in name)


def _edges(box: Sequence[float], written: Any) -> Sequence[float]:
    """Return the pixels of a box, counted from 1 and inclusive: those of its file, if they still hold."""
    edges = (box[0] + 1, box[1] + 1, box[2], box[3])
    are_numbers = isinstance(written, list) and all(isinstance(edge, int | float) for edge in written)
    if are_numbers and [w - (i < 2) for i, w in enumerate(written)] == list(box):
        return list(written)
    return edges
