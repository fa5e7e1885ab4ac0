"""Joined packs: every public method and property of Pack gives what the packs themselves give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from large_packs import large_pack
from packs import MakePack

from packer import join_packs, open_pack
from packer.format.mmap import MANY_FILES
from packer.format.pack import Pack
from packer.format.records import Records
from packer.model.annotation_columns import Ragged
from packer.system import PORTABLE

ONE_OF_ITS_OWN = {
    "by_files", "cache_options", "classes", "files", "files_of", "folder", "indexes", "is_remote", "manifest",
    "note_whole", "open_all", "own_places", "pack_at", "packs", "part_of", "path", "record_bytes",
    "region", "remote", "shards",
}  # fmt: skip
"""What a test of its own shows."""
OF_A_RECORD = {
    "annotation", "damage_error", "dtype_of", "encoding_of", "image", "key", "locate", "record", "sample", "shape_of",
    "span", "window",
}  # fmt: skip
OF_RECORDS = {"approximate_extents", "check", "firsts_of_images", "held", "places", "rows", "values", "windows"}
COLUMNS = {"column", "keys", "paths", "shard_columns", "to_arrow"}


@pytest.fixture(params=["boxes", "raw", "copy", "ragged", "gray16"])
def joined(request: pytest.FixtureRequest, make_pack: Callable[[str, str], Path]) -> Pack:
    return join_packs([make_pack(request.param, "tfrecord"), make_pack(request.param, "lmdb")])


def public(pack: Pack | Records) -> set[str]:
    return {name for name in {*dir(type(pack)), *vars(pack)} if not name.startswith("_")}


def of(pack: Pack, name: str) -> Any:
    """What a pack, or its reader, has under this name."""
    return getattr(pack if hasattr(pack, name) else pack.reader, name)


def test_a_pack_has_few_names(joined: Pack) -> None:
    assert public(joined) == public(joined.packs[0]) == {
        "annotation", "classes", "column", "image", "instance_masks", "key", "keys", "manifest", "mask", "packs",
        "part", "part_of", "path", "paths", "reader", "record", "sample", "sidecar", "sidecars", "to_arrow", "where",
        "window",
    }  # fmt: skip


def test_all_that_a_pack_has_is_here(joined: Pack) -> None:
    of_a_pack = (public(joined.packs[0]) | public(joined.packs[0].reader)) - {"reader"}
    shown = (
        ONE_OF_ITS_OWN
        | OF_A_RECORD
        | OF_RECORDS
        | COLUMNS
        | {"instance_masks", "mask", "part", "sidecar", "sidecars", "where"}
    )
    assert of_a_pack == shown  # anything new belongs in a test here
    assert public(joined.reader) == public(joined.packs[0].reader)


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal; also those with arrays in them."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Ragged):
        return isinstance(b, Ragged) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Exception):
        return str(a) == str(b)
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_a_record_is_that_of_its_pack(joined: Pack) -> None:
    arguments = {"damage_error": ("is bad",)}
    assert joined.classes == joined.packs[0].classes  # and so class ids are the same
    for i in range(len(joined)):
        number, inside = joined.part_of(i)
        pack = joined.packs[number]
        for name in OF_A_RECORD - {"locate", "span"}:
            given = arguments.get(name, ())
            assert same(of(joined, name)(i, *given), of(pack, name)(inside, *given)), name
        shard, row = joined.reader.locate(i)
        assert (
            joined.reader.shards[shard] is pack.reader.shards[pack.reader.locate(inside)[0]]
            and row == pack.reader.locate(inside)[1]
        )
        start, stop = joined.reader.span(i)
        assert bytes(joined.reader.region.data[start:stop]) == bytes(pack.record(inside))
    for name in OF_A_RECORD:
        for outside in (-1, len(joined)):
            with pytest.raises(IndexError, match=f"record {outside} of {len(joined)}"):
                of(joined, name)(outside, *arguments.get(name, ()))


def test_records_are_those_of_their_packs(joined: Pack) -> None:
    records = np.random.default_rng(0).permutation(len(joined))
    joined.reader.check(records)
    starts, sizes = joined.reader.places(records)
    with joined.reader.held(records):
        for i, start, size in zip(records.tolist(), starts.tolist(), sizes.tolist(), strict=True):
            assert bytes(joined.reader.region.data[start : start + size]) == bytes(joined.record(i))
    for name in ("label", "height", "crc32c"):
        assert same(joined.reader.values(name, records), np.asarray(joined.column(name))[records])
    if "boxes" in joined.manifest.fields:
        boxes, tags = joined.reader.rows(["boxes", "box_labels"], records)
        for i, found, labels in zip(records.tolist(), boxes, tags, strict=True):
            assert same(found, joined.annotation(i).boxes) and same(labels, joined.annotation(i).box_labels)
    none = np.zeros(0, np.int64)
    assert same(joined.reader.places(none), (none, none)) and not len(joined.reader.values("label", none))
    joined.reader.check(none)
    for outside in (-1, len(joined)):
        with pytest.raises(IndexError, match=f"record {outside} of {len(joined)}"):
            joined.reader.own_places(np.array([0, outside]))


def test_runs_are_those_of_their_packs(joined: Pack) -> None:
    middle = len(joined.packs[0])
    runs = np.array([[middle, middle + 1], [middle - 1, middle], [0, 1], [middle + 1, middle + 2]])
    assert same(joined.reader.approximate_extents(runs), joined.reader.places(runs[:, 0]))


def test_columns_are_those_of_all_packs(joined: Pack) -> None:
    assert joined.keys == [key for pack in joined.packs for key in pack.keys]
    assert joined.paths == [path for pack in joined.packs for path in pack.paths]
    for name in ("label", "offset", "path", "boxes", "box_labels"):
        column = joined.column(name)
        rows = [row for pack in joined.packs for row in pack.column(name)]
        assert len(column) == len(joined) and all(map(same, list(column), rows))
        assert sum(len(part) for part in joined.reader.shard_columns(name)) == len(joined)
        assert joined.column(name) is column
    labels = joined.column("label")
    assert isinstance(labels, np.ndarray) and not labels.flags.writeable


def test_what_it_is(joined: Pack) -> None:
    first, second = joined.packs
    assert len(joined) == joined.manifest.records == 2 * len(first)
    assert (
        joined.path == f"{first.path} + {second.path}"
        and joined.reader.shards == first.reader.shards + second.reader.shards
    )
    assert joined.reader.record_bytes == first.reader.record_bytes == second.reader.record_bytes
    assert joined.reader.remote is None and not joined.reader.is_remote and not joined.reader.folder
    fresh = join_packs([open_pack(pack.path) for pack in joined.packs])
    fresh.reader.open_all()
    assert fresh.reader._open_shards.all()
    found = [(files.path, its.tolist()) for files, its in joined.reader.by_files(np.array([0, len(first), 1]))]
    assert found == [(first.path, [0, 1]), (second.path, [len(first)])]


def test_packs_at_urls(make_pack: Callable[[str, str], Path]) -> None:
    first, second = (open_pack(make_pack("raw", name).as_uri(), cache_bytes=0) for name in ("tfrecord", "lmdb"))
    joined, own = join_packs([first, second]), open_pack(make_pack("raw", "lmdb"))
    assert joined.reader.cache_options == (None, None) and joined.packs[1].reader.cache_options == (None, 0)
    assert joined.reader.is_remote and first.reader.remote is not None and second.reader.remote is not None
    assert bytes(joined.record(len(first) + 3)) == bytes(own.record(3))
    ours, theirs = joined.reader.files
    assert ours.remote is not None and theirs.remote is not None
    with ours.remote.all_pinned(), theirs.remote.all_pinned():
        assert not joined.reader.note_whole(theirs)
        with joined.reader.held(np.arange(len(joined))):
            pass
        assert joined.reader.note_whole(theirs) and theirs.remote.is_whole() and not ours.remote.is_whole()
        assert not second.reader.remote.is_whole()  # which has not looked yet


@pytest.mark.skipif(PORTABLE, reason="each file has a map and a descriptor there")
@pytest.mark.parametrize("shards", [(MANY_FILES // 2 + 1, MANY_FILES // 2), (MANY_FILES + 1, 2)], ids=str)
def test_packs_of_many_shards(tmp_path: Path, shards: tuple[int, int]) -> None:
    joined = join_packs([large_pack(tmp_path / str(n), n, 3, 4) for n in shards])
    last = len(joined) - 1
    runs = np.array([[last - 2, last + 1], [0, 3]])
    places, sizes = joined.reader.approximate_extents(runs)
    starts = [
        start for first, end in runs.tolist() for start in joined.reader.places(np.arange(first, end))[0].tolist()
    ]
    assert int(sizes.sum()) == 6 * 48 and {*places.tolist()} <= {*starts}
    assert joined.reader.span(last) == (starts[2], starts[2] + 48) and joined.key(last) == "00000002"
    joined.reader.open_all()
    assert joined.reader._open_shards.all()


@pytest.mark.parametrize(("kind", "which"), [("boxes", "box_label"), ("raw", "label")])
def test_records_of_a_class_in_all_packs(kind: str, which: str, make_pack: MakePack, tmp_path: Path) -> None:
    paths = [make_pack(kind, "lmdb"), make_pack("boxes" if kind == "boxes" else "jpeg", "hdf5")]
    joined = join_packs([paths[0], paths[1]])
    some = 0
    for number, name in enumerate(joined.classes):
        expected: list[int] = []
        for i, (_, annotation) in enumerate(joined):
            ids = annotation.box_labels if kind == "boxes" else [annotation.label]
            expected += [i] if ids is not None and number in list(ids) else []
        assert joined.where(**{which: name}).tolist() == expected  # type: ignore[arg-type]
        some += len(expected)
    assert some
