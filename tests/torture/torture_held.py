"""Parsers alone, of texts and XML: no source, no folder, no file, so that millions of inputs take minutes.

What whole sources make of the same bytes is the matter of `torture_labels`, which is many times as slow.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from typing import Any, ClassVar

from torture_labels import IMAGES, MemoryFile, check_finite, check_named
from torture_seeds import WITH_MASKS
from torture_texts import PLAIN

from packer.errors import BadLabel, DamagedPack, PackerError, UsageError
from packer.format import lists
from packer.format.manifest import FileEntry
from packer.model.annotation import RawAnnotation
from packer.packing import input_table, recorded
from packer.packing.build_options import BuildOptions
from packer.sources import by_name, cvat, dota, json_sets, landmarks, small_formats, text_rows, voc, yolo_config
from packer.sources import yolo_source as yolo
from packer.sources.path_finder import PathFinder
from packer.sources.source import Tree


class _Bytes(MemoryFile):
    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)


class Held(Tree):
    """A tree in which each file has the same bytes."""

    data: ClassVar[bytes] = b""

    def open(self, path: bytes) -> Any:
        return _Bytes(Held.data)

    open_plain = open


HELD = Held(b"/set", IMAGES, (), (b"b",))
FRAMES = Held(b"/set", (b"frame_000000.jpg", b"frame_000002.jpg"), (), ())
FINDER = PathFinder(HELD, b"/set")


def held(data: bytes) -> Held:
    Held.data = data
    return HELD


class AllImages:
    """Stands for the finder of images."""

    def notes(self, name: str) -> list[str]:
        return []

    def find(self, written: bytes) -> list[bytes]:
        return [written] if written.endswith(b"g") else [b"1.jpg", b"2.jpg"] if written.endswith(b"2") else []


def refused(error: PackerError, name: str) -> str:
    check_named(error, {name})
    return "refused"


@contextmanager
def instead(module: Any, **others: Any) -> Iterator[None]:
    """Let a module use other functions for a while."""
    names = vars(module)
    kept = {name: names[name] for name in others if name in names}
    names.update(others)
    try:
        yield
    finally:
        for name in others:
            if name in kept:
                names[name] = kept[name]
            else:
                del names[name]


def annotations_of(entries: Iterator[by_name.ImageEntry], name: str) -> str:
    """Make annotations of entries."""
    good = "refused"
    for entry in entries:
        assert name in entry.origin
        found = by_name._annotation(entry, True)
        if isinstance(found, BadLabel):
            refused(found, entry.origin)
        else:
            check_finite(found)
            good = "read"
    return good


# -- texts


def read_pts(data: bytes) -> str:
    try:
        points = landmarks.read_points(held(data[1:]), b"a.pts")
    except BadLabel as error:
        return refused(error, "a.pts")
    check_finite(RawAnnotation(origin="a.pts", landmarks=points))
    return "read"


def read_dota(data: bytes) -> str:
    try:
        found = dota.parse_dota(data[1:], b"a.txt")
    except BadLabel as error:
        return refused(error, "a.txt")
    check_finite(found)
    return "read" if found.boxes else "refused"


def read_widerface(data: bytes) -> str:
    try:
        return annotations_of(
            small_formats._widerface_entries(held(data[1:]), b"wider_face_val_bbx_gt.txt"), "bbx_gt.txt"
        )
    except UsageError as error:
        return refused(error, "bbx_gt.txt")


def rows_of(kind: type[text_rows.RowsSource]) -> Callable[[bytes], str]:
    """Return the core of a source with a line for each object."""

    def read(data: bytes) -> str:
        there = by_name.LabelledObjects()
        for line in data[1:].splitlines():
            try:
                kind.add(there, line.strip())
            except ValueError as error:
                assert str(error) and not isinstance(error, UnicodeError)
                return "refused"
        check_finite(there.annotation("a.txt", None, True))
        return "read"

    return read


def read_crowdhuman(data: bytes) -> str:
    try:
        return annotations_of(json_sets._crowdhuman_entries(held(data[1:]), b"a.odgt"), "a.odgt")
    except UsageError as error:
        return refused(error, "a.odgt")


SHAPES = (None, None, (2, 3), (3, 2))


def read_yolo_rows(data: bytes) -> str:
    choice, text = data[0] if data else 0, data[1:]
    yolo.highest_class(text)
    oriented = choice & 3 == 1
    try:
        rows = yolo.parse_rows(text, 3 if choice & 4 else 65536, SHAPES[choice & 3], oriented)
    except yolo.BadRow as error:
        assert 1 <= error.line <= len(text) + 1 and error.problem
        return "refused"
    obb = tuple(rows.obb) if oriented else None
    check_finite(RawAnnotation(origin="", boxes=tuple(rows.boxes), polygons=tuple(rows.polygons), obb=obb))
    assert len(rows.classes) == len(rows.boxes) == len(rows.lines) == len(rows.texts) == len(rows.polygons)
    return "read"


def read_yolo_config(data: bytes) -> str:
    try:
        found = yolo_config._config(yolo_config.parse_yaml(data, b"data.yaml"), b"data.yaml")
    except UsageError as error:
        return refused(error, "data.yaml")
    return "read" if found.names else "refused"


# -- XML


def read_dlib(data: bytes) -> str:
    try:
        found = landmarks.read_dlib(held(data[1:]), b"/set/a.xml", "a.xml", AllImages())
    except UsageError as error:
        return refused(error, "a.xml")
    for error in (*(entry.problem for entry in found.of.values() if entry.problem), *found.bad):
        check_named(error, {"a.xml"})
    for box in (box for entry in found.of.values() for box in entry.boxes):
        check_finite(RawAnnotation(origin="", boxes=(box.edges,), keypoints=(found.keypoints(box),)))
    return "read" if found.of else "refused"


def read_cvat(data: bytes) -> str:
    Held.data = data[1:]
    try:
        return annotations_of(cvat._CvatFile(FRAMES, b"a.xml", WITH_MASKS).entries(), "a.xml")
    except UsageError as error:
        return refused(error, "a.xml")


def read_voc(data: bytes) -> str:
    try:
        root = voc.parse_xml(data[1:], b"a.xml")
        voc.claimed_names(root)
        check_finite(voc.read_annotation(root, b"a.xml"))
    except BadLabel as error:
        return refused(error, "a.xml")
    return "read"


# -- selections, options, lists of a pack

KEYS = {b"%08d" % number: image for number, image in enumerate(IMAGES)}


def read_selected(data: bytes) -> str:
    choice, text = data[0] if data else 0, data[1:]

    def keys(_: str, wanted: set[bytes]) -> dict[bytes, bytes]:
        return {key: KEYS[key] for key in wanted & KEYS.keys()}

    with instead(input_table, read_file=lambda *_: text, _paths_of=keys):
        try:
            found = input_table.read_selection("some.txt", IMAGES, "pack" if choice & 1 else None)
        except UsageError as error:
            return refused(error, "some.txt")
    assert found.images <= set(IMAGES)
    assert not found.unmatched or "some.txt" in found.note
    if not choice & 1 and b"\r" not in text:
        text = found.content
        with instead(input_table, read_file=lambda *_: text):
            assert input_table.read_selection("some.txt", IMAGES).images == found.images
    return "read" if found.images else "refused"


def read_options(data: bytes) -> str:
    text = data
    with instead(recorded, read_file=lambda *_: text):
        try:
            given = recorded.read_config("packer.yaml")
            given.pop("like", None)  # another pack would be opened
            options = BuildOptions(**{**given, "source": "set"})
        except PackerError as error:
            assert isinstance(error, UsageError)
            return "refused"
        text = "\n".join(recorded.as_config(options)).encode()
        assert recorded.options_from("again.yaml") == options
    return "read"


def read_pack_list(data: bytes) -> str:
    name = tuple(lists.KINDS)[data[0] % len(lists.KINDS)] if data else "rejected"
    file = lists.file_of(name)
    manifest = replace(PLAIN, lists={name: FileEntry(file, len(data) - 1, "0" * 64)})
    with instead(lists, open=lambda *_: io.BytesIO(data[1:])):
        try:
            rows = list(lists.read_list("pack", name, manifest))
        except DamagedPack as error:
            return refused(error, file)
    for row in rows:
        again = lists._row(lists.KINDS[name], lists._line(row))
        assert again.path == row.path and len(astuple(again)) == len(astuple(row))
    return "read"
