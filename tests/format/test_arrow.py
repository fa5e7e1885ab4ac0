"""`pack.to_arrow()`: what the index says, as a table that pandas and people read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from packs import MakePack

from packer import BuildOptions, Pack, build_pack, join_packs, open_pack
from packer.format import pack_files


def check(pack: Pack) -> pa.Table:
    """Compare the table with the records themselves."""
    table = pack.to_arrow()
    rows = table.to_pylist()
    assert table.num_rows == len(pack) and {f.partition(".")[0] for f in pack.manifest.fields} < {*table.column_names}
    for i, row in enumerate(rows):
        annotation = pack.annotation(i)
        assert (row["key"], row["path"]) == (pack.key(i), pack.paths[i])
        assert (row["height"], row["width"], row["channels"]) == pack.reader.shape_of(i)
        assert (row["dtype"], row["encoding"]) == (pack.reader.dtype_of(i), pack.reader.encoding_of(i))
        assert row.get("label") == annotation.label
        if "label" in row:
            assert row["label_name"] == (None if annotation.label is None else pack.classes[annotation.label])
        for name in {"boxes", "box_labels", "landmarks"} & {*row}:
            value = getattr(annotation, name)
            assert (row[name] is None) == (value is None)
            assert value is None or np.array_equal(np.reshape(row[name], np.shape(value)), value)
    return table


@pytest.mark.parametrize("kind", ["boxes", "raw", "copy", "gray16", "ragged"])
@pytest.mark.parametrize("container", ["lmdb", "parquet"])
def test_what_the_index_says(kind: str, container: str, make_pack: MakePack) -> None:
    check(open_pack(make_pack(kind, container)))


def test_joined_packs(make_pack: MakePack) -> None:
    table = check(join_packs([make_pack("boxes", "lmdb"), make_pack("boxes", "hdf5")]))
    assert table.column("label_name").type == pa.dictionary(pa.int32(), pa.string())


def numbered_differently(tmp_path: Path) -> list[str]:
    """Two packs of the classes bee and zebra, and ant and bee, with an image of each."""
    import cv2

    packs = []
    for number, names in enumerate((("bee", "zebra"), ("ant", "bee"))):
        for name in names:
            (tmp_path / f"{number}" / name).mkdir(parents=True)
            cv2.imwrite(str(tmp_path / f"{number}" / name / "a.png"), np.full((4, 4, 3), number, np.uint8))
        packs.append(build_pack(BuildOptions(str(tmp_path / f"{number}"), str(tmp_path / f"{number}.lmdb"))).path)
    return packs


@pytest.mark.parametrize("most", [pack_files.MANY_RECORDS, 0], ids=["few", "many"])
def test_class_ids_that_another_pack_numbers_differently(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_files, "MANY_RECORDS", most)
    joined = join_packs(numbered_differently(tmp_path))
    table = check(joined)
    assert joined.reader.values("label", np.array([3, 2, 0, 1])).tolist() == [0, 2, 0, 1]
    assert table.column("label").to_pylist() == [0, 1, 2, 0]
    assert table.column("label_name").to_pylist() == ["bee", "zebra", "ant", "bee"]


@pytest.mark.skipif(os.name != "posix", reason="names are text there")
def test_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    import cv2

    (tmp_path / "src").mkdir()
    ok, data = cv2.imencode(".png", np.zeros((4, 4, 3), np.uint8))
    assert ok
    (tmp_path / "src" / os.fsdecode(b"\xe4.png")).write_bytes(data.tobytes())
    pack = open_pack(build_pack(BuildOptions(str(tmp_path / "src"), str(tmp_path / "p.lmdb"))).path)
    assert pack.paths == ["\udce4.png"] and os.fsencode(pack.paths[0]) == b"\xe4.png"
    assert pack.to_arrow().column("path").to_pylist() == ["\\udce4.png"]
