"""Records are found in blocks: in many Examples and behind many headers at once."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.containers import tfrecord, webdataset
from packer.containers.base import ShardSpec
from packer.containers.tf_example import _example_class
from packer.containers.tf_places import Places, find_bytes_features
from packer.errors import DamagedPack
from packer.types import Annotation, Record

NAMES = (b"image/source_id", b"image/encoded")
OTHERS = st.dictionaries(st.text(max_size=20), st.binary(max_size=300), max_size=6)


def example(features: dict[str, bytes]) -> bytes:
    message = _example_class()()
    for name, value in features.items():
        message.features.feature[name].bytes_list.value.append(value)
    return bytes(message.SerializeToString())


def found(examples: list[bytes]) -> list[list[bytes]]:
    data = b"".join(examples)
    stops = np.cumsum([len(one) for one in examples])
    starts = stops - [len(one) for one in examples]
    places = find_bytes_features(np.frombuffer(data, np.uint8), Places(starts, stops), NAMES)
    return [[data[a:b] for a, b in zip(*place, strict=True)] for place in places]


@given(st.lists(st.tuples(OTHERS, st.binary(max_size=20), st.binary(max_size=20_000)), min_size=1, max_size=5))
def test_values_are_found_among_any_others(rows: list[tuple[dict[str, bytes], bytes, bytes]]) -> None:
    examples = [example({**others, "image/source_id": key, "image/encoded": image}) for others, key, image in rows]
    assert found(examples) == [[key for _, key, _ in rows], [image for _, _, image in rows]]


@given(st.data())
def test_altered_examples_are_refused_or_lie_inside(data: st.DataObject) -> None:
    """Bounds: what is found never lies outside of its example, whatever the bytes say."""
    good = bytearray(example({"image/source_id": b"1", "image/encoded": b"x" * 200, "z": b"2"}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    whole = Places(np.array([0]), np.array([len(good)]))
    try:
        places = find_bytes_features(np.frombuffer(bytes(good), np.uint8), whole, NAMES)
    except ValueError:
        return
    for starts, stops in places:
        assert 0 <= starts[0] <= stops[0] <= len(good)


@pytest.mark.parametrize("missing", ["image/source_id", "image/encoded"])
def test_a_missing_feature_is_an_error(missing: str) -> None:
    whole = {"image/source_id": b"1", "image/encoded": b"x"}
    with pytest.raises(ValueError, match=missing):
        found([example(whole), example({name: value for name, value in whole.items() if name != missing})])


@pytest.mark.parametrize("module", [tfrecord, webdataset], ids=lambda module: module.CONTAINER.name)
def test_more_records_than_a_block(module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images with and without .npy headers, of different sizes, in blocks of three."""
    monkeypatch.setattr(module, "_BLOCK_FRAMES" if module is tfrecord else "_BLOCK_MEMBERS", 3)
    path, container = tmp_path / "shard", module.CONTAINER
    records = [
        Record(f"{i:08d}", bytes([i]) * (12 * side), "raw", 2, 2 * side, 3, "uint8", Annotation(label=i), b"%d" % i)
        if i % 3
        else Record(f"{i:08d}", bytes([i]) * (100 * side), "jpeg", 2, 2, 3, "uint8", Annotation(label=i), b"%d" % i)
        for i, side in enumerate((1, 2, 2, 1, 200, 3, 3, 3, 1, 1, 30))
    ]
    writer = container.create(str(path), ShardSpec((), "copy", None, "uint8", len(records), 10_000))
    for record in records:
        writer.write(record)
    writer.close()
    data = path.read_bytes()
    places = list(container.locate(str(path)))
    assert [(key, data[offset : offset + size]) for key, offset, size in places] == [(r.key, r.data) for r in records]


@pytest.mark.parametrize("at", [*range(100), 130, 150, 154, 155, 156, 300, 511])
def test_tar_notices_every_byte_of_a_header(at: int, tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    writer = webdataset.CONTAINER.create(str(path), ShardSpec((), "jpeg", None, "uint8", 1, 10))
    writer.write(Record("00000000", b"x" * 10, "jpeg", 2, 2, 3, "uint8", Annotation(), b"a"))
    writer.close()
    data = bytearray(path.read_bytes())
    data[at] ^= 2
    path.write_bytes(data)
    with pytest.raises((DamagedPack, tarfile.TarError)):
        list(webdataset.CONTAINER.locate(str(path)))
