"""Functions that take any bytes as files of labels.

Each returns an outcome; any exception that is not packer's, or does not name the file, leaves it. Files are written
over and over in one folder: a new one for each input would take most of the time.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from drawn import image_file
from torture_seeds import WITH_MASKS

from packer.errors import BadInput, PackerError, UsageError, printable
from packer.format import lists
from packer.images.header import Header
from packer.model.annotation import Point, Polygon, RawAnnotation
from packer.packing.make_record import rejected
from packer.packing.partition import checked_texts
from packer.packing.resolve import ClassIds, Resolver
from packer.sources import open_source, recognize, source, tree
from packer.sources.coco_masks import categories_of, panoptic_in
from packer.sources.source import SourceOptions, Tree

TESTS = Path(__file__).resolve().parent.parent
GOLDEN = TESTS / "golden" / "0.1.0"
CORPUS = Path(__file__).resolve().parent / "corpus"


class Target(NamedTuple):
    """One parser."""

    read: Callable[[bytes], str]
    """Reads one input and returns the outcome; raises an exception for a fault."""
    seeds: list[bytes]

    def inputs(self, name: str) -> list[bytes]:
        """Return the seeds, and the inputs of the corpus: one JSON text a line, a character for each byte."""
        path = CORPUS / f"{name}.jsonl"
        kept = path.read_text().splitlines() if path.exists() else []
        return [*self.seeds, *(json.loads(line).encode("latin-1") for line in kept)]


IMAGES = (b"7.jpg", b"a.jpg", b"b/c d.png", b'q"q.jpg', "é,1.jpg".encode())
FRAMES = (b"a.jpg", b"b/c.png", b"frame_000000.jpg", b"frame_000001.jpg", b"train/a.jpg", b"val/d.jpg")
NO_OPTIONS = SourceOptions()
PHOTO = image_file(0, 40, 30, "PNG")
"""What the images have, of which a few are read."""
HEADER = Header("jpeg", 40, 30, 3, 8, orientation=6)
ROOT = os.path.realpath(tempfile.mkdtemp(prefix="packer-torture-"))
atexit.register(shutil.rmtree, ROOT, ignore_errors=True)
os.mkdir(f"{ROOT}/ann")
_written: list[str] = []
_contents: dict[str, bytes] = {}


def written(files: dict[str, bytes]) -> str:
    """Write these files into the folder in place of those of the last input, and return the folder."""
    if _contents:
        _contents.clear()
        _contents.update({f"{ROOT}/{name}": data for name, data in files.items()}, there=b"")
        return ROOT
    while _written:
        os.unlink(_written.pop())  # not overwritten: the file of the last input may still be mapped
    for name, data in files.items():
        path = f"{ROOT}/{name}"
        with open(path, "wb") as file:
            file.write(data)
        _written.append(path)
    return ROOT


class MemoryFile:
    """A file that is `written`, in place of a `SourceFile`."""

    is_deflated = False

    def __init__(self, path: bytes, *_: object) -> None:
        self._data = _contents.get(os.fsdecode(path), PHOTO)
        self.size = len(self._data)

    def __enter__(self) -> MemoryFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, size: int, start: int = 0) -> bytes:
        return self._data[start : start + size]

    def chunks(self) -> Iterator[bytes]:
        return iter([self._data] if self._data else [])

    def mapped(self) -> tuple[bytes, int]:
        if not self._data:
            raise ValueError("is empty")
        return self._data, 0


def in_memory() -> None:
    """Let the parsers read from memory what is `written` from now on, which is several times as fast."""
    for name in ("list.txt", "class-descriptions.csv"):
        Path(ROOT, name).touch()
    _contents["there"] = b""
    for module in (source, tree):
        vars(module)["SourceFile"] = MemoryFile
    vars(lists)["open"] = lambda path, mode: io.BytesIO(_contents[os.fsdecode(path)])


def _labels(
    spec: str, choice: int, files: dict[str, bytes], options: SourceOptions = NO_OPTIONS, auto: bool = False
) -> str:
    """Read these label files for some images, as `read_inputs` does, and make annotations of what they say.

    Args:
        spec: The kind of labels.
        choice: Whether there is a list of classes (1), and boxes are compared with images (64) as --boxes says (% 3).
        files: The files.
        options: How to read them.
        auto: Let --labels auto look at them, too.
    """
    root = written(files)
    images = IMAGES if spec.partition(":")[0] in ("yolo", "voc", "list") else FRAMES
    here = Tree(root.encode(), images, sorted(name.encode() for name in files), (b"b", b"train", b"val"))
    names = {root, *(printable(name) for name in files)}
    classes = ClassIds(("dog", "7") if choice & 1 else None)
    resolver = Resolver(classes, ("fail", "clip", "drop")[choice % 3], options.instance_masks)
    good = 0
    try:
        if auto:
            with suppress(UsageError):
                recognize(here, options)
        source = open_source(spec.format(root=root), here, options)
    except UsageError as error:
        check_named(error, names | {"--columns"})
        return "refused"
    for image in images:
        left_out = getattr(source, "left_out", None)
        if (left_out and left_out(image)) or not source.in_split(image):
            continue
        try:  # no label, or a bad one
            raws = [source.annotate(image)]
            if choice & 64:  # takes longer than most parsers
                annotation = resolver.annotation(raws, HEADER, image)
                checked_texts(annotation, image)
            else:
                check_finite(raws[0])
            good += 1
        except BadInput as error:
            check_named(error, names | {printable(image)})
            rejected(image, error)
    for left in source.unmatched_labels():
        assert isinstance(left, BadInput)
        check_named(left, names)
        rejected(os.fsencode(left.where), left)
    try:
        found, _ = classes.final([] if source.classes is None else [source.classes])
    except UsageError:
        return "refused"
    for text in (*found, *source.notes):
        text.encode("utf-8", "surrogateescape")
    return "read" if good else "refused"


def points_of(polygon: Polygon) -> Sequence[Point]:
    return list(zip(polygon[::2], polygon[1::2], strict=True)) if isinstance(polygon, array) else polygon


def check_finite(raw: RawAnnotation) -> None:
    points = [*(raw.landmarks or ()), *chain(*map(points_of, raw.polygons or ()), *(raw.keypoints or ()))]
    points += chain(*(raw.obb or ()))
    assert raw.obb is None or [len(corners) for corners in raw.obb] == [4] * len(raw.boxes or ())
    assert all(-4e9 < value < 4e9 for value in chain(*(raw.boxes or ()), *points, raw.value or ()))
    for name in (*(raw.box_labels or ()), raw.label or "", raw.origin):
        assert isinstance(name, str)


def check_named(error: PackerError, names: set[str]) -> None:
    assert any(name in error.line for name in names), f"names no file: {error.line}"


def read_yolo(data: bytes) -> str:
    """Rows of objects, with and without keypoints."""
    choice, rows = data[0] if data else 0, data[1:]
    shape = ("", "task: obb\n", "kpt_shape: [2, 3]\n", "kpt_shape: [3, 2]\n")[choice & 3]
    names = "" if choice & 4 else "names: [a, b, c]\n"
    return _labels(
        "yolo", choice >> 4 | choice & 64, {"a.txt": rows, "data.yaml": f"{shape}{names}train: .\n".encode()}
    )


def read_yaml(data: bytes) -> str:
    """data.yaml."""
    return _labels("yolo", 0, {"a.txt": b"0 .5 .5 .2 .2\n", "data.yaml": data})


def read_list(data: bytes) -> str:
    """A list, behind the --columns that are written before it and end with a zero byte."""
    choice, (columns, _, text) = data[0] if data else 0, data[1:].partition(b"\0")
    given = columns.decode("utf-8", "surrogateescape") if choice & 1 else None
    options = SourceOptions(columns=given, split="val" if choice & 2 else None)
    files = {"list.txt": text}
    if choice & 4:  # of Open Images
        files["list.txt"], _, files["class-descriptions.csv"] = text.partition(b"\0")
    return _labels("list:{root}/list.txt", choice >> 4 | choice & 64, files, options, auto=choice & 0x38 == 0x38)


def read_voc(data: bytes) -> str:
    """A VOC XML file."""
    return _labels("voc", data[0] if data else 0, {"a.xml": data[1:]})


# -- labels of other tools

LABEL_FILES = {
    "coco": ("train.json", "val.json"),
    "pts": ("a.pts", "c.pts"),
    "dota": ("a.txt", "c.txt"),
    "dlib": ("faces.xml",),
    "cvat": ("annotations.xml", "more.xml"),
    "labelme": ("frame_000000.json", "c.json"),
    "labelme-web": ("frame_000000.xml", "c.xml"),
    "via": ("via.json", "more.csv"),
    "labelstudio": ("train.json", "val.json"),
    "supervisely": ("ann/frame_000000.jpg.json", "ann/c.json"),
    "createml": ("train.json", "val.json"),
    "vott": ("a-export.json", "b-export.json"),
    "widerface": ("wider_face_train_bbx_gt.txt", "wider_face_val_bbx_gt.txt"),
    "kitti": ("a.txt", "c.txt"),
    "visdrone": ("a.txt", "c.txt"),
    "icdar": ("gt_a.txt", "c.txt"),
    "bdd100k": ("det_train.json", "det_val.json"),
    "crowdhuman": ("annotation_train.odgt", "annotation_val.odgt"),
    "openimages": ("train.csv", "class-descriptions.csv"),
    "jsonl": ("metadata.jsonl", "train-output.manifest"),
}
"""Kind of labels -> the names of its files."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e300, float("nan"), float("inf"), 1 << 31, 1 << 63, 10**30, 10**400,
    4096, 8192, 1e9, "", "a", "a.jpg", "c.png", "../a.jpg", "/etc/passwd", "\0", "\ud800", "\udcff", "\x1b[2J",
    "9" * 70, "nan", "1", "dog", [], {}, [[]], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 2, 3, 4, 2],
    [[1, 2], [3, 4]],    [[1, 2, 3, 4, 5, 6], [7, 8, 9, 9, 8, 7]], ["left_eye", "right_eye"], [None],
    {"size": [30, 40], "counts": "PdX1"},
    {"size": [30, 40], "counts": [600, 5, 595]}, {"size": [512, 512], "counts": [0, 1 << 18]}, {"a": 1},
    {"x": 1, "y": 2}, "rectangle", "polygon", "point", "circle", "RECTANGLE", "POLYGON",
)  # fmt: skip
"""What an edit may put anywhere in JSON."""


def reader_of(kind: str, json_base: Any = None) -> Callable[[bytes], str]:
    """Return the target of one kind of labels.

    Its first byte says how: with or without a list of classes, which --boxes, --rle polygons with --instance-masks, a
    second file, --split, edits of `json_base` in place of any bytes.
    """

    written_base = json.dumps(json_base)

    def read(data: bytes) -> str:
        choice, text = data[0] if data else 0, data[1:]
        if choice & 16 and json_base is not None:
            parts = (text[:8], text[8:16]) if choice & 8 else (text[:16],)
            texts = [json.dumps(edited(written_base, part)).encode() for part in parts]
        else:
            texts = text.split(b"\0\0", 1)
        texts = texts if choice & 8 else texts[:1]
        masks = bool(choice & 4) and WITH_MASKS and kind != "openimages"  # they are files of their own
        options = SourceOptions(split="train" if choice & 32 else None, rle_polygons=masks, instance_masks=masks)
        files = dict(zip(LABEL_FILES[kind], texts, strict=False))
        return _labels(kind.partition("-")[0], choice, files, options, auto=choice & 0xE0 == 0xE0)

    return read


def read_panoptic(data: bytes, base: str) -> str:
    """A panoptic file of COCO, which is also looked at as a file of stuff; or edits of a good one."""
    choice, text = data[0] if data else 0, data[1:]
    text = json.dumps(edited(base, text[:16])).encode() if choice & 16 else text
    root = written({"some.json": text})
    here = Tree(root.encode(), (), (b"some.json",), ())
    categories_of(here, b"some.json", 255)
    try:
        found = panoptic_in(here, f"panoptic:{root}/some.json", ())
    except UsageError as error:
        check_named(error, {"some.json"})
        return "refused"
    assert found is not None
    for ids in found.ids.values():
        assert all(0 <= color < 1 << 24 for color in ids[::2])
        assert all(0 <= number < len(found.classes) for number in ids[1::2])
    return "read"


def edited(text: str, program: bytes) -> Any:
    """Return a copy of JSON after edits: each is the number of a place, and of what is put there."""
    content = json.loads(text)
    places = list(places_of(content))
    for place, value in zip(program[::2], program[1::2], strict=False):
        where, key = places[place % len(places)]
        if len(where) <= key if isinstance(where, list) else key not in where:
            continue  # an earlier edit has removed it
        if value == 255:
            del where[key]
        elif value == 254 and isinstance(where, dict):
            where["more"] = where.pop(key)
        elif value == 253 and isinstance(where, list):
            where.append(where[key])
        elif value == 252:
            where[key] = [where[key]]
        elif value == 251 and isinstance(where[key], (int, float)):
            where[key] = -where[key]
        else:
            where[key] = VALUES[value % len(VALUES)]
    return content


def places_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each list or mapping with each of its indices or keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places_of(value[key])
