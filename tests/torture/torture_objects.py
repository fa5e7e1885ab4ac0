"""Parsers alone, of JSON: any bytes, or edits of a good file."""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torture_held import AllImages, annotations_of, held, instead, refused
from torture_labels import VALUES, check_finite
from torture_seeds import BASES, WITH_MASKS

from packer.errors import BadLabel, UsageError
from packer.model.annotation import RawAnnotation
from packer.sources import (
    by_name,
    coco_file,
    coco_objects,
    datumaro_json,
    json_lines,
    json_sets,
    labelme,
    labelstudio,
    sa1b,
    small_formats,
    supervisely,
    via,
)
from packer.sources.coco_objects import Rules, far_off, key_of, shape_of
from packer.sources.paths import json_text


def places_in(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value in JSON."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield (*above, key)
        if isinstance(value[key], (dict, list)):
            yield from places_in(value[key], (*above, key))


COPIES = [marshal.dumps(value) for value in VALUES]


def editor_of(base: Any) -> Callable[[bytes], bytes]:
    """Return what makes JSON of edits of `base`, as `torture_labels.edited` does, which is slower."""
    packed, places = marshal.dumps(base), list(places_in(base))

    def edit(program: bytes) -> bytes:
        content = marshal.loads(packed)
        for place, value in zip(program[:12:2], program[1:12:2], strict=False):
            where, (*above, key) = content, places[place % len(places)]
            try:
                for step in above:
                    where = where[step]
                if value == 255:
                    del where[key]
                elif value == 254:
                    where["more"] = where.pop(key)
                elif value == 253:
                    where.append(where[key])
                elif value == 252:
                    where[key] = [where[key]]
                elif value == 251:
                    where[key] = -where[key]
                else:
                    where[key] = marshal.loads(COPIES[value % len(COPIES)])
            except (LookupError, TypeError, AttributeError, ValueError):
                continue  # an earlier edit has removed it, or it is of another kind
        return json.dumps(content).encode()

    return edit


def of_json(kind: str, entries: Callable[[Any], Iterator[by_name.ImageEntry]]) -> Callable[[bytes], str]:
    """Return the core of a source of JSON files."""
    edit = editor_of(BASES[kind])

    def read(data: bytes) -> str:
        try:
            text = edit(data[1:]) if data[:1] and data[0] & 16 else data[1:]
            return annotations_of(entries(held(text)), "a.json")
        except (UsageError, BadLabel) as error:
            return refused(error, "a.json")

    return read


def of_text(entries: Callable[[Any], Iterator[by_name.ImageEntry]], name: str) -> Callable[[bytes], str]:
    """Return the core of a source of texts."""

    def read(data: bytes) -> str:
        try:
            return annotations_of(entries(held(data[1:])), name)
        except (UsageError, BadLabel) as error:
            return refused(error, name)

    return read


def of_labelme(tree: Any) -> Iterator[by_name.ImageEntry]:
    content = by_name.read_json(tree, b"a.json")
    if isinstance(content, dict) and "shapes" in content:
        source = object.__new__(labelme.LabelMeSource)
        source._with_masks = WITH_MASKS
        yield from by_name.with_landmarks([source._entry(b"a.json", content, {b"a"})])


def of_createml(tree: Any) -> Iterator[by_name.ImageEntry]:
    return small_formats._createml_entries(tree, b"a.json")


def of_vott(tree: Any) -> Iterator[by_name.ImageEntry]:
    return small_formats._vott_entries(tree, b"a.json")


def of_jsonl(tree: Any) -> Iterator[by_name.ImageEntry]:
    source = object.__new__(json_lines.JsonLinesSource)
    source._words, source._more = None, []
    yield from source.entries(tree, [b"a.json"])


read_jsonl = of_json("jsonl", of_jsonl)


def of_named(kind: type[by_name.NamedFilesSource], file: bytes) -> Callable[[Any], Iterator[by_name.ImageEntry]]:
    """Return what reads the entries of a source from one file."""

    def entries(tree: Any) -> Iterator[by_name.ImageEntry]:
        source = object.__new__(kind)
        source.notes, source.instance_masks = [], WITH_MASKS
        yield from by_name.with_landmarks(list(source.entries(tree, [file])))

    return entries


def of_web(tree: Any) -> Iterator[by_name.ImageEntry]:
    yield from by_name.with_landmarks(list(labelme.xml_entries(replace(tree, files=(b"a.xml",)), [], WITH_MASKS)))


def of_sa1b(tree: Any) -> Iterator[by_name.ImageEntry]:
    source = object.__new__(sa1b.Sa1bSource)
    source._tree, source._with_masks = tree, WITH_MASKS
    source.label_file = lambda image: b"a.json"  # type: ignore[method-assign]
    check_finite(source.annotate(b"a.jpg"))
    yield by_name.ImageEntry("a.json", b"a.jpg", by_name.LabelledObjects())


read_sa1b = of_json("sa1b", of_sa1b)
read_datumaro = of_json("datumaro", lambda tree: iter(datumaro_json.datumaro_entries(tree, [b"a.json"], WITH_MASKS)))
read_via_3 = of_json("via-3", of_named(via.ViaSource, b"a.json"))
read_studio_table = of_text(of_named(labelstudio.LabelStudioSource, b"a.csv"), "a.csv")
read_via = of_json("via", of_named(via.ViaSource, b"a.json"))
read_via_table = of_text(of_named(via.ViaSource, b"a.csv"), "a.csv")
read_labelstudio = of_json("labelstudio", of_named(labelstudio.LabelStudioSource, b"a.json"))
read_supervisely = of_json("supervisely", of_named(supervisely.SuperviselySource, b"ann/a.json"))
read_labelme_web = of_text(of_web, "a.xml")
read_labelme, read_createml = of_json("labelme", of_labelme), of_json("createml", of_createml)
read_vott = of_json("vott", of_vott)
read_bdd100k = of_json("bdd100k", lambda tree: json_sets._bdd_entries(tree, b"a.json", WITH_MASKS))
RULES = [Rules(points, {3: 2, 1: 0}, polygons) for points in (0, 2) for polygons in (False, True)]
COCO = BASES["coco"]["annotations"]
OBJECTS = [editor_of(thing) for thing in COCO]


def read_coco_object(data: bytes) -> str:
    choice, text = data[0] if data else 0, data[1:]
    if choice & 16:
        text = OBJECTS[choice & 3](text)
    try:
        found = coco_objects.read_object(text)
    except ValueError:  # msgspec's too
        return "refused"
    json_text(found.id).encode()
    key_of(found.category_id)
    try:
        shape = shape_of(found, (40, 30) if choice & 32 else None, RULES[choice >> 2 & 3])
    except ValueError as error:
        assert str(error) and not isinstance(error, UnicodeError)
        return "refused"
    if far_off([shape.polygon]):
        return "refused"
    shapes = RawAnnotation(origin="", boxes=(shape.box,), polygons=(shape.polygon,), keypoints=(shape.keypoints,))
    check_finite(shapes)
    return "read"


EDIT_COCO = editor_of(BASES["coco"])


def read_coco_map(data: bytes) -> str:
    """A whole file, or its objects, which must be the same ones if it is cut into small pieces."""
    choice, text = data[0] if data else 0, data[1:]
    if choice & 16:
        text = EDIT_COCO(text)
    try:
        file = coco_file.JsonMap(held(text), b"a.json", "a.json")
        if choice & 32:
            coco_file.CocoFile(file, AllImages(), False)
            return "read"
        place = file.members(coco_file.MEMBERS).get("annotations", (0, 0))
    except UsageError as error:
        return refused(error, "a.json")
    if not place[1]:
        return "refused"
    found = _objects(file, place)
    with instead(coco_file, PIECE_BYTES=1 + choice):
        assert _objects(file, place) == found
    for start, stop in found or ():
        assert "a.json:" in file.where(start) and text[start] == ord("{") and text[stop - 1] == ord("}")
    return "read" if found else "refused"


def _objects(file: coco_file.JsonMap, place: coco_file.Range) -> list[coco_file.Range] | None:
    places = []
    try:
        for piece in file.objects(place, coco_file._Head, "annotations"):
            assert len(piece.heads) == len(piece.starts) == len(piece.sizes)
            places += zip(piece.starts.tolist(), (piece.starts + piece.sizes).tolist(), strict=True)
    except UsageError as error:
        refused(error, "a.json")
        return None
    return places
