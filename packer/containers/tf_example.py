"""tf.train.Example without TensorFlow: the features of a record."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from packer.containers.annotation_json import class_name
from packer.containers.npy import image_file
from packer.types import Record

_FLAGS = ("difficult", "truncated", "occluded")


_Values = tuple[str, list[Any]]
"""Which kind of list a feature is, and its values."""


def example_bytes(record: Record, annotation: str, classes: tuple[str, ...]) -> bytes:
    """The record as a serialised Example with the feature names of TF object detection (docs/formats.md)."""
    a = record.annotation
    features: dict[str, _Values] = {
        "image/encoded": _bytes([b"".join(image_file(record))]),
        "image/format": _bytes(["npy" if record.encoding == "raw" else record.encoding]),
        "image/height": _integers([record.height]),
        "image/width": _integers([record.width]),
        "image/channels": _integers([record.channels]),
        "image/filename": _bytes([record.path]),
        "image/source_id": _bytes([record.key]),
        "packer/annotation": _bytes([annotation]),
    }
    if a.label is not None:
        features["image/class/label"] = _integers([a.label])
        features["image/class/text"] = _bytes([class_name(a.label, classes)])
    if a.boxes is not None:
        features.update(_box_features(record))
    if a.box_labels is not None:
        features["image/object/class/label"] = _integers(a.box_labels.tolist())
        features["image/object/class/text"] = _bytes(class_name(i, classes) for i in a.box_labels.tolist())
    if a.landmarks is not None:
        features["image/landmarks/x"] = _floats(a.landmarks[:, 0])
        features["image/landmarks/y"] = _floats(a.landmarks[:, 1])
    message = _example_class()()
    for name, (kind, values) in features.items():  # protobuf before 5 takes no dicts for messages in a map
        values_of = getattr(message.features.feature[name], kind)
        values_of.SetInParent()  # an empty list says its kind, too
        values_of.value.extend(values)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _box_features(record: Record) -> dict[str, _Values]:
    boxes, fields = record.annotation.boxes, record.annotation.box_fields
    assert boxes is not None
    fractions = boxes / np.array([record.width, record.height] * 2, np.float32)
    names = ("xmin", "ymin", "xmax", "ymax")
    features = {f"image/object/bbox/{name}": _floats(fractions[:, i]) for i, name in enumerate(names)}
    for name in _FLAGS:
        values = fields.get(name, (None,))
        if all(isinstance(value, int) for value in values):
            features[f"image/object/{name}"] = _integers(int(value) for value in values)
    if all(isinstance(value, str) for value in fields.get("pose", (None,))):
        features["image/object/view"] = _bytes(fields["pose"])
    return features


def _bytes(values: Iterable[bytes | str]) -> _Values:
    encoded = [v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in values]
    return "bytes_list", encoded


def _integers(values: Iterable[int]) -> _Values:
    return "int64_list", list(values)


def _floats(values: Any) -> _Values:
    return "float_list", values.tolist()


@lru_cache(maxsize=1)
def _example_class() -> Any:
    """The message class, from a descriptor in a pool of its own: TensorFlow's may live in the same process."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="packer/example.proto", package="tensorflow", syntax="proto3"
    )

    def message(name: str, parent: Any = file.message_type) -> Any:
        return parent.add(name=name)

    def add(owner: Any, name: str, number: int, kind: Any, type_name: str = "") -> Any:
        return owner.field.add(
            name=name, number=number, type=kind, label=field.LABEL_OPTIONAL, type_name=type_name or None
        )

    for name, kind in (("Bytes", field.TYPE_BYTES), ("Float", field.TYPE_FLOAT), ("Int64", field.TYPE_INT64)):
        add(message(f"{name}List"), "value", 1, kind).label = field.LABEL_REPEATED
    feature = message("Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("Bytes", "Float", "Int64"), start=1):
        kind_field = add(
            feature, f"{name.lower()}_list", number, field.TYPE_MESSAGE, f".tensorflow.{name}List"
        )
        kind_field.oneof_index = 0
    features = message("Features")
    entry = message("FeatureEntry", features.nested_type)
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING)
    add(entry, "value", 2, field.TYPE_MESSAGE, ".tensorflow.Feature")
    entries = add(features, "feature", 1, field.TYPE_MESSAGE, ".tensorflow.Features.FeatureEntry")
    entries.label = field.LABEL_REPEATED
    add(message("Example"), "features", 1, field.TYPE_MESSAGE, ".tensorflow.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
