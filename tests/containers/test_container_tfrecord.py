"""What only TFRecord has: Examples, whose features say their kind also where they are empty, and stand in any order."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from packer.containers.tfrecord import example_parts
from packer.files.record_frames import bytes_features
from packer.model.annotation import Annotation, Record

NAMES = (b"image/source_id", b"image/encoded", b"not there")
OTHERS = st.dictionaries(st.text(max_size=20), st.binary(max_size=300), max_size=6)


def example_class():
    """tf.train.Example as protobuf's own library makes it, from TensorFlow's definition."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    for name, kind in (("BytesList", 12), ("FloatList", 2), ("Int64List", 3)):
        file.message_type.add(name=name).field.add(name="value", number=1, label=3, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("bytes_list", "float_list", "int64_list"), 1):
        kind = f".tensorflow.{name.title().replace('_', '')}"
        feature.field.add(name=name, number=number, label=1, type=11, type_name=kind, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".tensorflow.Feature")
    kind = ".tensorflow.Features.FeatureEntry"
    features.field.add(name="feature", number=1, label=3, type=11, type_name=kind)
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=1, type=11, type_name=".tensorflow.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


EXAMPLE = example_class()


def example(features: dict[str, bytes]) -> bytes:
    message = EXAMPLE()
    for name, value in features.items():
        message.features.feature[name].bytes_list.value.append(value)
    message.features.feature["a number"].int64_list.value.extend([-1, 300])
    return bytes(message.SerializeToString())


def test_an_empty_list_says_its_kind() -> None:
    """Parsers with a fixed schema take a feature without a kind for a missing one."""
    nothing = Annotation(boxes=np.zeros((0, 4), np.float32), box_labels=np.zeros(0, np.int64))
    record = Record("00000000", b"\0" * 12, "raw", 2, 2, 3, "uint8", nothing, b"a.jpg")
    feature = EXAMPLE.FromString(b"".join(example_parts(record, "{}", ("cat",))[0])).features.feature
    assert feature["image/object/bbox/xmin"].WhichOneof("kind") == "float_list"
    assert feature["image/object/class/label"].WhichOneof("kind") == "int64_list"
    assert list(feature["image/object/class/text"].bytes_list.value) == []


@given(OTHERS, st.binary(max_size=20), st.binary(max_size=20_000))
def test_values_are_found_among_any_others(others: dict[str, bytes], key: bytes, image: bytes) -> None:
    features = {"image/source_id": key, "image/encoded": image}
    data = example({**others, **features})
    found = {name.decode(): data[a:b] for name, (a, b) in bytes_features(memoryview(data), NAMES).items()}
    assert found == features


@given(st.data())
def test_altered_examples_are_refused_or_lie_inside(data: st.DataObject) -> None:
    """Bounds: what is found never lies outside of its example, whatever the bytes say."""
    good = bytearray(example({"image/source_id": b"1", "image/encoded": b"x" * 200, "z": b"2"}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = bytes_features(memoryview(good), NAMES)
    except ValueError:
        return
    assert all(0 <= start <= stop <= len(good) for start, stop in found.values())


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_a_cut_example_is_an_error(cut: int) -> None:
    with pytest.raises(ValueError, match="before byte"):
        bytes_features(memoryview(example({"image/encoded": b"x" * 200})[:-cut]), NAMES)
