"""Records of every kind for the tests of containers and index, made with numpy and Pillow alone."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

from packer.containers import open_container
from packer.containers.container import Entry, ShardSpec
from packer.model.annotation import Annotation, Part, PartSpec, Record

CLASSES = ("ant", "bee", "caf\u00e9")
IMAGES = ("raw", "ragged", "raw16", "gray", "jpeg", "png", "mixed", "parts")
PARTS = (PartSpec("aux"), PartSpec("zed"))
PATHS = (
    b"ant/1.jpg",
    b"bee/\xff\xfe.jpg",
    b"new\nline\t'\".jpg",
    "caf\u00e9/\u2028.jpg".encode(),
    b"a" * 300,
)


def _f32(values: object, *shape: int) -> np.ndarray:
    return np.array(values, np.float32).reshape(shape)


_BOXES = _f32([0.1, 0, 5, 6, 1 / 3, 2, 3, 4.5], 2, 4)
_POLYGON = _f32([1, 1, 2, 2.25, 3, 1], 3, 2)
ANNOTATIONS = {
    "none": Annotation(),
    "label": Annotation(label=2),
    "boxes": Annotation(
        boxes=_BOXES,
        box_labels=np.array([2, 0]),
        box_fields={"difficult": (0, 1), "truncated": (1, 0), "pose": ("Left", "\udcff")},
    ),
    "empty": Annotation(label=0, boxes=_f32([], 0, 4), box_labels=np.zeros(0, np.int64)),
    "landmarks": Annotation(label=1, landmarks=_f32([1, 2, -3.5, 4, 1e6, 0], 3, 2)),
    "polygons": Annotation(
        boxes=_BOXES, box_labels=np.array([1, 1]), polygons=(_POLYGON, np.zeros((0, 2), np.float32))
    ),
    "keypoints": Annotation(boxes=_BOXES, box_labels=np.array([0, 1]), keypoints=_f32(np.arange(12) / 7, 2, 2, 3)),
    "obb": Annotation(boxes=_BOXES, box_labels=np.array([0, 1]), obb=_f32(np.arange(16) / 3 - 1, 2, 4, 2)),
    "extras": Annotation(
        label=0, extras={"\u00e9": ["\udcff", 1, None, {"a": 0.1}], "source": "VOC", "ok": True, "big": 2**63}
    ),
}


def picture(seed: int, height: int, width: int, channels: int = 3, dtype: str = "uint8") -> np.ndarray:
    """Noise, so that no two pictures and no two places are alike."""
    top = 1 << (8 * np.dtype(dtype).itemsize)
    return np.random.default_rng(seed).integers(0, top, (height, width, channels)).astype(dtype)


def image_record(kind: str, number: int, annotation: Annotation) -> Record:
    """Record `number` of a shard whose images are of `kind`."""
    height, width, channels, dtype = 8, 6, 3, "uint8"
    encoding = "raw"
    if kind == "ragged":
        height, width = 5 + number % 3, 4 + number % 2
    elif kind == "raw16":
        dtype = "uint16"
    elif kind == "gray":
        channels = 1
    elif kind not in ("raw", "parts"):
        encoding = kind if kind != "mixed" else ("jpeg", "png", "bmp", "webp", "gif", "tiff")[number % 6]
    pixels = picture(number, height, width, channels, dtype)
    if encoding == "raw":
        data = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
    else:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, encoding)
        data = file.getvalue()
    path = PATHS[number % len(PATHS)]
    digest = hashlib.md5(data).digest()  # any 16 bytes will do
    parts = parts_of(number) if kind == "parts" else ()
    return Record(f"{number:08d}", data, encoding, height, width, channels, dtype, annotation, path, digest, parts)


def parts_of(number: int) -> tuple[Part, ...]:
    """Bytes that look like a picture, none at all, or no part."""
    aux = (b"\xff\xd8\xff" + bytes(range(number % 256)) * 30, b"", None)[number % 3]
    zed = b"zed %d" % number * 400 if number % 2 else None
    return tuple(Part(name, data) for name, data in (("aux", aux), ("zed", zed)) if data is not None)


def records_of(kind: str, annotations: Iterable[Annotation], first: int = 0) -> list[Record]:
    return [image_record(kind, first + i, a) for i, a in enumerate(annotations)]


def spec_of(kind: str, records: list[Record]) -> ShardSpec:
    shape = records[0].shape if kind in ("raw", "raw16", "gray", "parts") and records else None
    encoding = {"ragged": "raw", "raw16": "raw", "gray": "raw", "parts": "raw", "mixed": "copy"}.get(kind, kind)
    dtype = "uint16" if kind == "raw16" else "uint8"
    size, parts = sum(len(r.data) for r in records), PARTS if kind == "parts" else ()
    return ShardSpec(CLASSES, encoding, shape, dtype, len(records), size, parts)


def write_shard(container: str, path: str, kind: str, records: list[Record]) -> list[Entry]:
    """Write and scan; a scan must find the places that the writer returns."""
    home = open_container(container)
    writer = home.create(path, spec_of(kind, records))
    for record in records:
        writer.write(record)
    places = writer.close()
    entries = list(home.scan(path))
    assert [entry.offset for entry in entries] == places.offsets.tolist()
    assert [entry.size for entry in entries] == places.sizes.tolist()
    for name, found in places.parts.items():
        wanted = zip(found.offsets.tolist(), found.sizes.tolist(), strict=True)
        for entry, place in zip(entries, wanted, strict=True):
            assert entry.parts.get(name, (0, -1)) == place or place[1] == 0  # no bytes may have no place
    return entries


def expected_json(record: Record) -> dict[str, object]:
    """What docs/formats.md promises of the annotation's JSON."""
    a = record.annotation
    members: dict[str, object] = {
        "key": record.key,
        "path": record.path.decode("utf-8", "surrogateescape"),
        "source_xxh3": record.source_xxh3.hex(),
        "height": record.height,
        "width": record.width,
        "channels": record.channels,
        "dtype": record.dtype,
        "encoding": record.encoding,
    }
    if a.label is not None:
        members |= {"label": a.label, "class": CLASSES[a.label]}
    for name in ("boxes", "box_labels", "landmarks", "keypoints", "obb"):
        if (value := getattr(a, name)) is not None:
            members[name] = value.tolist()
    if a.box_labels is not None:
        members["box_classes"] = [CLASSES[i] for i in a.box_labels]
    if a.polygons is not None:
        members["polygons"] = [p.tolist() for p in a.polygons]
    if a.box_fields:
        members["box_fields"] = {k: list(v) for k, v in a.box_fields.items()}
    if a.extras:
        members["extras"] = dict(a.extras)
    if record.parts:
        members["parts"] = {part.name: {"encoding": "bytes", "bytes": len(part.data)} for part in record.parts}
    return members


def assert_same_annotation(a: Annotation, b: Annotation) -> None:
    assert a.label == b.label
    for name in ("boxes", "box_labels", "landmarks", "keypoints", "obb"):
        assert_same_array(getattr(a, name), getattr(b, name))
    assert (a.polygons is None) == (b.polygons is None)
    for p, q in zip(a.polygons or (), b.polygons or (), strict=True):
        assert_same_array(p, q)
    assert dict(a.box_fields) == dict(b.box_fields)
    assert dict(a.extras) == dict(b.extras)


def assert_same_array(a: np.ndarray | None, b: np.ndarray | None) -> None:
    assert (a is None) == (b is None)
    if a is not None and b is not None:
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.tobytes() == b.tobytes()  # -0.0 too
