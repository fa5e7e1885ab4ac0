"""Any annotation comes back exactly, from each container and from the index."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from container_records import assert_same_annotation, expected_json, image_record, write_shard
from foreign_readers import READERS
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from packer.containers import open_container
from packer.containers.container import Places
from packer.format.index import IndexBuilder, read_index
from packer.model.annotation import Annotation, Record
from packer.model.annotation_columns import annotation_of, column

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
text = st.text(st.characters(codec=None), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | text | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


def floats(*shape: int) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float32, shape, elements=numbers)


@st.composite
def annotations(draw: st.DrawFn) -> Annotation:
    n = draw(st.integers(0, 3))
    if not draw(st.booleans()):
        return Annotation(
            label=draw(st.none() | st.integers(0, 2)),
            extras=draw(st.dictionaries(text, json_values, max_size=3)),
        )
    return Annotation(
        label=draw(st.none() | st.integers(0, 2)),
        boxes=draw(floats(n, 4)),
        box_labels=draw(hnp.arrays(np.int64, n, elements=st.integers(0, 2))),
        landmarks=draw(st.none() | st.integers(0, 4).flatmap(lambda k: floats(k, 2))),
        polygons=draw(st.none() | st.tuples(*[st.integers(0, 3).flatmap(lambda m: floats(m, 2))] * n)),
        # no object, no number of points: (0, 0, 3)
        keypoints=draw(st.none() | floats(n, 2 if n else 0, 3)),
        obb=draw(st.none() | floats(n, 4, 2)),
        box_fields=draw(st.dictionaries(text, st.tuples(*[json_values] * n), max_size=2)),
    )


@st.composite
def shards(draw: st.DrawFn) -> list[Record]:
    kind = draw(st.sampled_from(["raw", "ragged", "png"]))
    notes = draw(st.lists(annotations(), min_size=1, max_size=4))
    made = [image_record("raw" if kind == "raw" else kind, i, a) for i, a in enumerate(notes)]
    paths = draw(st.lists(st.binary(min_size=1, max_size=20), min_size=len(made), max_size=len(made)))
    return [
        Record(r.key, r.data, r.encoding, r.height, r.width, r.channels, r.dtype, r.annotation, p)
        for r, p in zip(made, paths, strict=True)
    ]


@pytest.mark.parametrize("container", READERS)
@settings(max_examples=25, deadline=None)
@given(records=shards())
def test_container_keeps_any_record(container: str, records: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/shard.tar"
        kind = "png" if records[0].encoding == "png" else "ragged"
        write_shard(container, path, kind, records)
        for record, (key, _, note) in zip(records, READERS[container](path), strict=True):
            assert (key, note) == (record.key, expected_json(record))
            assert note["path"].encode("utf-8", "surrogateescape") == record.path
    assert open_container(container).name == container


@settings(max_examples=100, deadline=None)
@given(records=shards())
def test_index_keeps_any_record(records: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        builder = IndexBuilder()
        for record in records:
            assert builder.add(record) == record.crc32c()
        builder.write(Path(folder) / "i", Places.of([0] * len(records), [len(r.data) for r in records]))
        table = read_index(Path(folder) / "i")
        for i, record in enumerate(records):
            assert_same_annotation(annotation_of(table, i), record.annotation)
            assert column(table, "path")[i].tobytes() == record.path
            assert column(table, "source_xxh3")[i].tobytes() == record.source_xxh3
