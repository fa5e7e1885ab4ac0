"""What only TFRecord has: an Example whose features say their kind, also where they are empty."""

from __future__ import annotations

import numpy as np

from packer.containers.tf_example import _example_class, example_bytes
from packer.types import Annotation, Record


def test_an_empty_list_says_its_kind() -> None:
    """Parsers with a fixed schema take a feature without a kind for a missing one."""
    nothing = Annotation(boxes=np.zeros((0, 4), np.float32), box_labels=np.zeros(0, np.int64))
    record = Record("00000000", b"\0" * 12, "raw", 2, 2, 3, "uint8", nothing, b"a.jpg")
    example = _example_class().FromString(example_bytes(record, "{}", ("cat",)))
    feature = example.features.feature
    assert feature["image/object/bbox/xmin"].WhichOneof("kind") == "float_list"
    assert feature["image/object/class/label"].WhichOneof("kind") == "int64_list"
    assert list(feature["image/object/class/text"].bytes_list.value) == []
