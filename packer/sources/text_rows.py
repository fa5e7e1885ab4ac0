"""Sets with a text file for each image, a line for each object: KITTI, VisDrone, texts of ICDAR and EAST."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

from packer.errors import BadLabel, UsageError, printable
from packer.model.annotation import IGNORED, Json, RawAnnotation
from packer.sources.by_name import LabelledObjects
from packer.sources.by_stem import ByStemSource, Matches, Rounds, choice_by_stem, match_by_stem
from packer.sources.paths import (
    FolderSplit,
    as_text,
    exact_number,
    extension_of,
    folder_of,
    folder_splits,
    is_utf8,
    number,
    quoted_value,
    spread,
    stem_of,
)
from packer.sources.source import LOOKS, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, lines_of, read_file, read_head

MOST_BYTES = 16 * MIB
HEAD_BYTES = 4096


class RowsSource(ByStemSource):
    """Text files of one of these sets.

    Raises:
        UsageError: No such file has the name of an image.
    """

    kind: ClassVar[str]
    ending = b".txt"
    of: ClassVar[str]
    """Whose the files are, for messages."""
    rows: ClassVar[tuple[re.Pattern[bytes], ...]]
    """What its lines may be."""
    rounds: ClassVar[Rounds | None] = None
    splits = staticmethod(folder_splits)

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        matches = self._matched(tree)
        if not matches.fitting:
            raise UsageError(tree.root, f"no image has a file of {self.of}", "choose another kind of --labels")
        folders = {folder_of(path) for path in matches.label_of.values()}
        matches.unclaimed = [
            path for path in matches.unclaimed if folder_of(path) in folders and self._is_label(tree, path)
        ]
        super().__init__(tree, matches)
        self.of_split = FolderSplit.of(tree, options.split)

    @classmethod
    def recognize(cls, tree: Tree) -> list[Choice]:
        """Return this source if there are such files, and some have names of images."""
        if not any(cls._is_label(tree, path) for path in spread(_texts(tree), LOOKS)):
            return []
        fitting = cls._matched(tree).fitting
        return choice_by_stem(cls.kind, f"file of {cls.of}", fitting, len(tree.images), (True,))

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the objects of the image.

        Raises:
            NoLabel: No file fits the image.
            BadLabel: Several files fit equally well, or a line is invalid.
        """
        path = self.label_file(image)
        objects, places = LabelledObjects(), []
        for count, line in enumerate(lines_of(read_file(self._tree, path, MOST_BYTES)), 1):
            if line.strip():
                try:
                    self.add(objects, line.strip())
                except ValueError as error:
                    raise BadLabel(f"{printable(path)}:{count}", str(error), "fix the line") from None
                places.append(count)
        return replace(objects.annotation(as_text(path), None, has_boxes=True), box_lines=tuple(places))

    @staticmethod
    def name(path: bytes) -> bytes:
        """Return what the names of an image and of its file have in common."""
        return stem_of(path)

    @staticmethod
    def add(objects: LabelledObjects, line: bytes) -> None:
        """Add the object of a line. Raise ValueError if it is invalid."""
        raise NotImplementedError

    @classmethod
    def _matched(cls, tree: Tree) -> Matches:
        return match_by_stem(tree.images, _texts(tree), cls.name, cls.rounds)

    @classmethod
    def _is_label(cls, tree: Tree, path: bytes) -> bool:
        try:
            head = read_head(tree, path, HEAD_BYTES)
        except BadLabel:
            return False
        lines = [line.strip() for line in lines_of(head if len(head) < HEAD_BYTES else head[: head.rfind(b"\n") + 1])]
        lines = [line for line in lines if line]
        return bool(lines) and all(any(row.fullmatch(line) for row in cls.rows) for line in lines)


def _texts(tree: Tree) -> list[bytes]:
    return [path for path in tree.files if extension_of(path) == b".txt"]


def _around(folder: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(?:(?<=/)|\A)%b/" % folder)


LEFT_CAMERA, ITS_LABELS = _around(b"image_2"), _around(b"label_2")
COLUMNS = (15, 16)


class KittiSource(RowsSource):
    """Objects of KITTI: class, truncation, occlusion, alpha, a box, height, width and length, x, y and z, rotation."""

    kind, of = "kitti", "KITTI"
    rows = (re.compile(rb"[A-Za-z_]\S*(?:[ \t]+[-+.0-9eE]+){14,15}"),)
    rounds = (
        (lambda image: folder_of(LEFT_CAMERA.sub(b"", image)), lambda label: folder_of(ITS_LABELS.sub(b"", label))),
        (folder_of, folder_of),
        (lambda image: b"", lambda label: b""),
    )

    @staticmethod
    def add(objects: LabelledObjects, line: bytes) -> None:
        """Add the object of a line. Raise ValueError if it is invalid."""
        name, *cells = line.split()
        if len(cells) + 1 not in COLUMNS:
            raise ValueError(f"has {len(cells) + 1} columns, not the 15 of KITTI")
        values = [number(cell) for cell in cells]
        box = values[3:7]
        if name == b"DontCare":
            objects.add(IGNORED, box)
            return
        fields = {
            "truncation": values[0], "occlusion": exact_number(cells[1]), "alpha": values[2],
            "dimensions": values[7:10], "location": values[10:13], "rotation_y": values[13], "ignore": 0,
        }  # fmt: skip
        objects.add(as_text(name), box, fields=fields if len(values) == 14 else {**fields, "score": values[14]})


VISDRONE = (
    "pedestrian", "people", "bicycle", "car", "van", "truck", "tricycle", "awning-tricycle", "bus", "motor", "others",
)  # fmt: skip
"""Categories 1 to 11 of VisDrone's toolkit for detection; 0 is an ignored region."""


VISDRONE_ROW = re.compile(rb"(?:-?[0-9]+,){4}[01],(?:[0-9]|1[01]),[01],[0-2],?")


class VisDroneSource(RowsSource):
    """Objects of VisDrone: x, y, width, height, score, category, truncation, occlusion. A score of 0 is ignored."""

    kind, of = "visdrone", "VisDrone"
    rows = (VISDRONE_ROW,)
    classes = VISDRONE

    @staticmethod
    def add(objects: LabelledObjects, line: bytes) -> None:
        """Add the object of a line. Raise ValueError if it is invalid."""
        cells = line.removesuffix(b",").split(b",")
        if len(cells) != 8:
            raise ValueError(f"has {len(cells)} columns, not the 8 of VisDrone")
        x, y, width, height, score, category, truncation, occlusion = (number(cell.strip()) for cell in cells)
        if category not in range(len(VISDRONE) + 1):
            raise ValueError(f"category {category:g} is not one of 0 to {len(VISDRONE)}")
        name = VISDRONE[int(category) - 1] if category else IGNORED
        fields = {"truncation": int(truncation), "occlusion": int(occlusion)}
        objects.add(name, (x, y, x + width, y + height), fields={**fields, "ignore": int(not (score and category))})


TEXT, UNREADABLE = "text", "###"
SCRIPTS = rb"Arabic|Bangla|Chinese|Devanagari|Hindi|Japanese|Korean|Latin|Mixed|None|Symbols"
NUMBER = rb"[-+]?[0-9]+(?:\.[0-9]*)?"
QUAD = re.compile(
    rb"(?P<numbers>(?:%b\s*,\s*){7}%b)\s*(?:,(?:(?P<script>%b),|(?P<difficult>[01]),(?=\"))?(?P<text>.*))?"
    % (NUMBER, NUMBER, SCRIPTS)
)
"""ICDAR 2015 and EAST; with a script, MLT 2017 and 2019; with a difficulty and quotes, RCTW 2017."""
RECTANGLE = re.compile(rb"(?P<numbers>(?:%b(?:\s*,\s*|\s+)){4})(?P<text>\".*\")" % NUMBER)
"""ICDAR 2013."""


class IcdarSource(RowsSource):
    """Texts of ICDAR and EAST: the corners of a quadrangle, or left, top, right and bottom; then the text."""

    kind, of = "icdar", "ICDAR or EAST"
    # neither VisDrone's nor landmarks
    rows = (
        re.compile(rb"(?!%b\Z|(?:%b\s*,\s*){9,}(?:%b)?\Z)%b" % (VISDRONE_ROW.pattern, NUMBER, NUMBER, QUAD.pattern)),
        RECTANGLE,
    )
    classes = (TEXT,)

    @staticmethod
    def name(path: bytes) -> bytes:
        """Return the name of an image: gt_img_1.txt is of img_1.jpg."""
        return stem_of(path).removeprefix(b"gt_")

    @staticmethod
    def add(objects: LabelledObjects, line: bytes) -> None:
        """Add the object of a line. Raise ValueError if it is invalid."""
        if (found := QUAD.fullmatch(line) or RECTANGLE.fullmatch(line)) is None:
            raise ValueError(f"{quoted_value(line)} is neither 8 numbers and a text nor 4 numbers and a quoted one")
        values = [number(cell) for cell in re.split(rb"[\s,]+", found["numbers"].strip(b", \t"))]
        members = found.groupdict()
        text, difficult = members["text"] or b"", members.get("difficult")
        if len(text) > 1 and text[:1] == text[-1:] == b'"':
            text = text[1:-1]
        if not is_utf8(text):
            raise ValueError(f"{quoted_value(text)} is not UTF-8; convert the file")
        fields: dict[str, Json] = {TEXT: text.decode(), "ignore": int(text.decode() == UNREADABLE)}
        if script := members.get("script"):
            fields["script"] = script.decode()
        if difficult:
            fields["difficult"] = int(difficult)
        if len(values) == 4:
            objects.add(TEXT, values, fields=fields)
        else:
            objects.add(TEXT, polygon=zip(values[::2], values[1::2], strict=True), fields=fields)
