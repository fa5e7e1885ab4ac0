"""`packer attach` and `detach`: what is read and joined, refused, written beside the shards and taken along."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import flip
from drawn_masks import picture, write_files
from packs import MakePack
from pyarrow import parquet
from running import digests, good, refused, run

from packer import BuildOptions, attach, build_pack, convert, detach, merge, open_pack, pull, push, split
from packer.errors import BadInput, DamagedPack, StorageError, UsageError
from packer.format.beside import read_beside
from packer.format.sidecar_list import ITEM_BYTES, SidecarList
from packer.format.verify import verify
from packer.repack import attach as attaching
from packer.repack.url_packs import clean, find_unreferenced
from packer.system.locks import lock_folder

COUNT = 24


@pytest.fixture
def pack(copied: MakePack, container: str) -> Path:
    """A pack of 24 images in three folders, which have the same names, in each container."""
    return copied("raw", container)


@pytest.fixture
def lmdb(copied: MakePack) -> Path:
    return copied("raw", "lmdb")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A pack of 6 images in one folder, which are called 0.png, 1.png, ..."""
    drawn = {f"{i}.png": picture(np.full((8, 9, 3), 40 * i, np.uint8)) for i in range(6)}
    source = write_files(tmp_path / "set", drawn)
    return Path(build_pack(BuildOptions(str(source), out=str(tmp_path / "flat"), labels=("none",), workers=1)).path)


def rows(dtype: str = "float16", shape: tuple[int, ...] = (5,)) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(0).integers(0, 200, (COUNT, *shape))
    return values.astype(dtype)


def saved(path: Path, values: Any) -> Path:
    np.save(path, values)
    return path


def state_of(pack: Path) -> dict[str, str]:
    """The files of the pack itself."""
    return {name: digest for name, digest in digests(pack).items() if not name.startswith("sidecar")}


def test_a_pack_stays_as_it_is(pack: Path, tmp_path: Path) -> None:
    before, values = digests(pack), rows()
    said = good("attach", pack, saved(tmp_path / "clip.npy", values), "--as", "clip").out
    assert "clip: array float16 (5,), 368 bytes; 24 records in their order" in said and 'parts=("clip",)' in said
    assert state_of(pack) == before
    assert np.array_equal(np.load(pack / "sidecar.clip.npy"), values)
    opened = open_pack(pack)
    assert [opened.part(i, "clip").tolist() for i in range(COUNT)] == values.tolist()
    assert "sidecar    clip: array float16 (5,), 368 bytes" in good("info", pack).out
    (facts,) = json.loads(good("info", pack, "--json").out)["sidecars"]
    assert (facts["kind"], facts["dtype"], facts["shape"], facts["bytes"]) == ("array", "float16", [5], 368)
    assert verify(pack).problems == verify(pack).unknown_files == ()
    assert good("detach", pack, "clip").out.endswith("clip removed, 368 bytes\n")
    assert digests(pack) == before
    assert "attached to it: nothing" in refused(2, "detach", pack, "clip")


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 4)])
@pytest.mark.parametrize("form", ["plain", "big-endian", "Fortran"])
def test_every_array(lmdb: Path, tmp_path: Path, dtype: str, shape: tuple[int, ...], form: str) -> None:
    values = rows(dtype, shape)
    written = np.asfortranarray(values) if form == "Fortran" else values
    written = values.astype(values.dtype.newbyteorder(">")) if form == "big-endian" else written
    report = attach(lmdb, saved(tmp_path / "v.npy", written), "v")
    assert (report.dtype, report.shape) == (dtype, shape)
    found = open_pack(lmdb).sidecar("v").read(np.array([23, 0, 7, 7]))
    assert found.dtype == values.dtype and np.array_equal(found, values[[23, 0, 7, 7]])
    assert np.array_equal(np.load(lmdb / "sidecar.v.npy"), values)


@pytest.mark.parametrize("size", [1, 1000, 1 << 16, (1 << 20) - 128, 3 << 20])
def test_files_of_all_sizes(lmdb: Path, tmp_path: Path, size: int) -> None:
    """Pieces with a checksum each, and what is read back at once, end where they want."""
    values = np.random.default_rng(size).integers(0, 256, (COUNT, -(-size // COUNT)), np.uint8)
    attach(lmdb, saved(tmp_path / "v.npy", values), "v")
    assert verify(lmdb).problems == ()
    assert np.array_equal(open_pack(lmdb).sidecar("v").read(np.arange(COUNT)), values)
    flip(lmdb / "sidecar.v.npy", 128 + values.nbytes - 1)
    with pytest.raises(DamagedPack, match=r"sidecar\.v\.npy: was altered: it does not match its checksums"):
        open_pack(lmdb).part(23, "v")


def write_table(path: Path, columns: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **{name: np.array(values) for name, values in columns.items()})
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path, row_group_size=7)
    elif path.suffix == ".jsonl":
        lines = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([columns, *zip(*columns.values(), strict=True)])
    return path


WAYS: dict[str, tuple[str, Callable[[str, str], str], str]] = {
    "key": ("key", lambda key, path: key, "by key"),
    "path": ("file_name", lambda key, path: path, "by path"),
    "elsewhere": ("image", lambda key, path: f"/data/set/{path}", "by the end of the path"),
    "stem": ("id", lambda key, path: path.partition(".")[0], "without extension"),
}


@pytest.mark.parametrize("ending", [".npz", ".parquet", ".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("way", WAYS)
def test_tables_are_joined(lmdb: Path, tmp_path: Path, ending: str, way: str) -> None:
    opened, order = open_pack(lmdb), np.random.default_rng(1).permutation(COUNT).tolist()
    name, of, joined = WAYS[way]
    cells = [of(opened.keys[i], opened.paths[i]) for i in order]
    table = write_table(tmp_path / f"t{ending}", {name: cells, "score": [i / 8 for i in order]})
    report = attach(lmdb, table, "v")
    assert joined in report.joined and (report.kind, report.dtype) == ("array", "float64")
    assert open_pack(lmdb).sidecar("v").read(np.arange(COUNT)).tolist() == [i / 8 for i in range(COUNT)]


@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
def test_columns_of_vectors_texts_and_json(lmdb: Path, tmp_path: Path, ending: str) -> None:
    keys, values = open_pack(lmdb).keys, rows("float32", (2, 3))
    meta = [{"camera": i % 3, "at": None if i % 2 else "noon"} for i in range(COUNT)]
    texts = [f"Bild „{i}“\n2" for i in range(COUNT)]
    columns = {"key": keys, "vector": values.tolist(), "meta": meta, "caption": texts}
    table = write_table(tmp_path / f"t{ending}", columns)
    assert attach(lmdb, table, "vector").shape == (2, 3)
    assert attach(lmdb, table, "m", column="meta").kind == "json"
    assert attach(lmdb, table, "prompt").kind == "text"  # of the columns, the one of captions
    opened = open_pack(lmdb)
    assert np.array_equal(opened.sidecar("vector").read(np.arange(COUNT)), values)
    assert [opened.part(i, "m") for i in range(COUNT)] == meta
    assert [opened.part(i, "prompt") for i in range(COUNT)] == texts
    lines = (lmdb / "sidecar.prompt.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == texts


def test_several_captions_of_an_image(lmdb: Path, tmp_path: Path) -> None:
    """As Flickr8k has them: a line for each, in any order of images."""
    paths, order = open_pack(lmdb).paths, np.random.default_rng(2).permutation(3 * COUNT).tolist()
    columns = {"image": [paths[i % COUNT] for i in order], "caption": [f"{i // COUNT} of {i % COUNT}" for i in order]}
    report = attach(lmdb, write_table(tmp_path / "captions.csv", columns), "caption")
    assert (report.kind, report.shape) == ("text", (-1,)) and "lists of text" in report.text
    opened = open_pack(lmdb)
    for i in range(COUNT):
        assert opened.part(i, "caption") == [f"{k // COUNT} of {i}" for k in order if k % COUNT == i]


@pytest.mark.parametrize("kind", ["npy", "txt", "json"])
def test_folders(lmdb: Path, tmp_path: Path, kind: str) -> None:
    """Files of the names of the images, in folders of the same names; others are left out with a note."""
    opened, values = open_pack(lmdb), rows()
    for i, path in enumerate(opened.paths):
        file = (tmp_path / "there" / path).with_suffix(f".{kind}")
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind == "npy":
            np.save(file, values[i])
        else:
            file.write_text({"txt": f"text {i}\n", "json": f'{{"i": {i}}}'}[kind])
    (tmp_path / "there" / "read.me").touch()
    report = attach(lmdb, tmp_path / "there", "v")
    assert report.joined == "by file name" and "1 other file in " in report.notes[0]
    found = [open_pack(lmdb).part(i, "v") for i in range(COUNT)]
    wanted: dict[str, Any] = {
        "npy": values.tolist(), "txt": [f"text {i}" for i in range(COUNT)],
        "json": [{"i": i} for i in range(COUNT)],
    }  # fmt: skip
    assert [one.tolist() for one in found] == wanted[kind] if kind == "npy" else found == wanted[kind]
    next((tmp_path / "there").rglob("0.*")).unlink()
    with pytest.raises(BadInput, match=r"has nothing for 1 record \(ant/0\.png\)|\(bee/0\.png\)|\(cat/0\.png\)"):
        attach(lmdb, tmp_path / "there", "w")


@pytest.mark.parametrize("exact", ["key", "file_name", "path"])
def test_a_number_of_a_row_does_not_beat_a_path(flat: Path, tmp_path: Path, exact: str) -> None:
    """Images that are called 0.png, 1.png, ..., and a table whose rows are numbered, too, in another order."""
    opened, order = open_pack(flat), np.random.default_rng(5).permutation(6).tolist()
    cells = [f"/data/{opened.paths[i]}" if exact == "path" else opened.paths[i] for i in order]
    cells = [opened.keys[i] for i in order] if exact == "key" else cells
    table = write_table(tmp_path / "t.csv", {"id": range(6), exact: cells, "caption": [f"of {i}" for i in order]})
    assert f"(column {exact})" in good("attach", flat, table, "--as", "c").out
    assert [open_pack(flat).part(i, "c") for i in range(6)] == [f"of {i}" for i in range(6)]
    write_table(table, {"id": range(6), "name": order, "caption": [f"of {i}" for i in order]})
    assert "two columns that name records, id and name, and they disagree" in refused(
        1, "attach", flat, table, "--as", "d"
    )
    cells[0] = "nowhere.png"  # nor does it if one of the paths is wrong
    write_table(table, {"id": range(6), exact: cells, "caption": [f"of {i}" for i in order]})
    assert "has 1 row for no record (nowhere.png)" in refused(1, "attach", flat, table, "--as", "d")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".npz"])
def test_hashes_of_64_bits_stay_what_they_are(lmdb: Path, tmp_path: Path, ending: str) -> None:
    values = np.arange(COUNT, dtype="uint64") + np.uint64(2**64 - 100)
    table = write_table(tmp_path / f"t{ending}", {"key": open_pack(lmdb).keys, "hash": values.tolist()})
    assert attach(lmdb, table, "hash").dtype == "uint64"
    assert open_pack(lmdb).sidecar("hash").read(np.arange(COUNT)).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("cell", "problem"), [("007", "leading zeros in n, such as"), (str(2**64), "nor uint64 can hold")]
)
def test_digits_that_are_no_number(lmdb: Path, tmp_path: Path, cell: str, problem: str) -> None:
    cells = [cell, *map(str, range(1, COUNT))]
    table = write_table(tmp_path / "t.csv", {"key": open_pack(lmdb).keys, "n": cells})
    said = refused(1, "attach", lmdb, table, "--as", "n")
    assert problem in said and "pass --kind text" in said
    good("attach", lmdb, table, "--as", "n", "--kind", "text")
    assert [open_pack(lmdb).part(i, "n") for i in range(COUNT)] == cells


def test_a_file_in_another_form_is_named(lmdb: Path, tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {"key": open_pack(lmdb).keys, "n": ["Bär"] * COUNT})
    for encoding in ("latin-1", "utf-16"):
        (tmp_path / "u.csv").write_bytes(path.read_text("utf-8").encode(encoding))
        with pytest.raises(BadInput, match=r"u\.csv: is not UTF-8; save it as UTF-8"):
            attach(lmdb, tmp_path / "u.csv", "v")
    path.write_text(path.read_text("utf-8").replace(",", ";"))
    with pytest.raises(BadInput, match="has columns that are separated by ';', not ','; save it with commas"):
        attach(lmdb, path, "v")
    for dtype in ("M8[s]", "g", "S1", "f4,i4"):
        with pytest.raises(BadInput, match=r"has values of .*; save it as one of bool, .*, or as texts"):
            attach(lmdb, saved(tmp_path / "v.npy", np.zeros(COUNT, dtype)), "v")
    with pytest.raises(BadInput, match=r"Python objects.*; save it as one of bool, "):
        attach(lmdb, saved(tmp_path / "v.npy", np.array([object] * COUNT)), "v")


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("value", [date(2026, 1, 2), Decimal("1.10")])
def test_dates_and_decimals_are_texts(lmdb: Path, tmp_path: Path, ending: str, value: Any) -> None:
    table = write_table(tmp_path / f"t{ending}", {"key": open_pack(lmdb).keys, "when": [value] * COUNT})
    if ending == ".parquet":
        said = refused(1, "attach", lmdb, table, "--as", "v")
        assert f"t{ending}: has values in when that JSON cannot hold: d" in said and "pass --kind text" in said
    good("attach", lmdb, table, "--as", "v", "--kind", "text")
    assert open_pack(lmdb).part(3, "v") == str(value)


def test_json_in_cells_of_a_csv(lmdb: Path, tmp_path: Path) -> None:
    """As pandas writes lists."""
    values = [[i, 1.5] for i in range(COUNT)]
    table = write_table(tmp_path / "t.csv", {"key": open_pack(lmdb).keys, "v": values})
    assert attach(lmdb, table, "a", "array").shape == (2,)
    assert np.array_equal(open_pack(lmdb).sidecar("a").read(np.arange(COUNT)), values)
    attach(lmdb, table, "j", "json")
    assert json.dumps([open_pack(lmdb).part(i, "j") for i in range(COUNT)]) == json.dumps(values)
    attach(lmdb, table, "t")
    assert open_pack(lmdb).part(3, "t") == "[3, 1.5]"


def test_names_that_repeat_in_folders_are_not_clear(lmdb: Path, tmp_path: Path) -> None:
    """All three folders have a 0.png."""
    paths = open_pack(lmdb).paths
    names = [path.rpartition("/")[2] for path in paths]
    table = write_table(tmp_path / "t.csv", {"file": names, "n": range(COUNT)})
    said = refused(1, "attach", lmdb, table, "--as", "v")
    assert f"{names[0]} fits 3 records (ant/" in said and "give the paths with their folders" in said
    write_files(tmp_path / "flat", {name.replace(".png", ".txt"): b"a" for name in names})
    assert "0.txt fits 3 images equally well: ant/0.png" in refused(1, "attach", lmdb, tmp_path / "flat", "--as", "v")


def without(cells: list[Any], *places: int) -> list[Any]:
    return [cell for place, cell in enumerate(cells) if place not in places]


def test_what_does_not_fit_is_named(lmdb: Path, tmp_path: Path) -> None:
    keys, before = open_pack(lmdb).keys, digests(lmdb)
    numbers = list(range(COUNT))

    def said(columns: dict[str, Any], name: str = "t.jsonl", **options: Any) -> str:
        with pytest.raises((BadInput, UsageError)) as caught:
            attach(lmdb, write_table(tmp_path / name, columns), "v", **options)
        assert digests(lmdb) == before
        return str(caught.value)

    found = said({"key": [*without(keys, 3, 4, 5, 6), keys[0], "x"], "n": without([*numbers, 1, 2], 0, 1, 2, 3)})
    assert "has nothing for 4 records (ant/3.png, ant/4.png, ant/5.png and 1 more)" in found
    assert "has 1 row for no record (x)" in found and "has several rows for 1 record (ant/0.png)" in found
    found = said({"key": [*keys[:3], None, "", *keys[5:]], "n": numbers})
    assert "has 2 rows without a key, the first is line 4" in found
    assert "1 row without a n, the first is line 2" in said({"key": keys, "n": [0, None, *numbers[2:]]})
    assert "1 row without a n" in said({"key": keys, "n": ["a", None, *map(str, numbers[2:])]})
    assert "without a key, the first is row 1" in said({"key": [np.nan, *numbers[1:]], "n": numbers}, "t.npz")
    assert "has no column of keys or paths; its columns are: a, n" in said({"a": keys, "n": numbers}, "t.csv")
    assert "has the columns key, a, b, any of which may be meant" in said({"key": keys, "a": numbers, "b": numbers})
    assert "its columns are: key, n" in said({"key": keys, "n": numbers}, column="c")
    assert "is not an array of numbers" in said({"key": keys, "n": list(map(str, numbers))}, kind="array")
    assert "t.parquet: has a value in n that JSON cannot hold" in said({"key": keys, "n": [b"b"] * COUNT}, "t.parquet")
    assert "t.jsonl:1: is not JSON" in said({"key": keys, "n": [float("nan")] * COUNT})
    for more in (-1, 1, 3):
        found = said({"key": keys, "n": np.zeros((COUNT + more, 2))}, "t.npz")
        assert f"has columns of different length: n has {COUNT + more} rows, key {COUNT}" in found
    assert "n has 1 row, key 24" in said({"key": keys, "n": 5}, "t.npz")
    assert "is not an array of numbers" in said({"key": keys, "n": [[0] * (1 + i % 2) for i in numbers]}, kind="array")
    found = said({"key": keys, "n": [*numbers[:4], "n/a", *numbers[5:]]}, "t.csv")
    assert 'has 1 row without a n, the first is line 6, where it is "n/a"' in found
    found = said({"key": keys, "n": ["[1]\n", *numbers[1:5], "[1 2]", *numbers[6:]]}, "t.csv", kind="array")
    assert 't.csv: has a cell in n that is not JSON, in line 8: "[1 2]"; correct it, or pass kind="text"' in found
    no_text = np.full(COUNT, 0x7FFFFFFF, "<u4").view("<U1")  # characters that do not exist
    for wrong in (np.zeros((23, 2)), np.zeros(()), np.zeros((COUNT, 0)), np.array([object()] * COUNT), no_text):
        with pytest.raises(BadInput):
            attach(lmdb, saved(tmp_path / "v.npy", wrong), "v")
    assert digests(lmdb) == before


@pytest.mark.parametrize("name", ["v.npy", "v.npz"])
@pytest.mark.parametrize("damage", ["cut", "header", "values", "other"])
def test_a_damaged_file_of_numpy_is_named(lmdb: Path, tmp_path: Path, name: str, damage: str) -> None:
    path = tmp_path / name
    if name == "v.npy":
        saved(path, rows())
    else:
        np.savez_compressed(path, key=open_pack(lmdb).keys, v=rows())
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "header":
        at = data.index(b"'shape'") if name == "v.npy" else 0
        data[at : at + 7] = b"'shape("
    elif damage == "values" and name == "v.npz":
        data[-200:-150] = bytes(50)
    else:
        (np.savez if name == "v.npy" else np.save)(tmp_path / "other", rows())
        data = bytearray(next(tmp_path.glob("other.*")).read_bytes())
    path.write_bytes(data)
    with pytest.raises(BadInput, match=f"{name}: (is not|has)"):
        attach(lmdb, path, "v")


def test_commands_say_what_to_do(lmdb: Path, tmp_path: Path) -> None:
    array = saved(tmp_path / "v.npy", rows())
    assert "the pack 24 records" in refused(1, "attach", lmdb, saved(tmp_path / "s.npy", rows()[:-1]), "--as", "v")
    assert "a folder, or a file that ends in .npy" in refused(2, "attach", lmdb, lmdb / "pack.json", "--as", "v")
    assert "'label'" in refused(2, "attach", lmdb, array, "--as", "label")
    assert "'extra' is not a name for a part: it is reserved" in refused(2, "attach", lmdb, array, "--as", "extra")
    assert "'image_id'" in refused(2, "attach", lmdb, array, "--as", "image_id")
    assert "cannot be read" in refused(3, "attach", lmdb, tmp_path / "none.npy", "--as", "v")
    assert "cannot be read: No such file" in refused(3, "attach", lmdb, tmp_path / "none", "--as", "v")
    (tmp_path / "none").mkdir()
    assert "has no files of .caption, .json, .npy, .txt" in refused(
        2, "attach", lmdb, lmdb.parent / "none", "--as", "v"
    )
    assert "is there" in refused(3, "attach", lmdb, tmp_path / "none.npy", "--as", "v")
    assert "save one file for each image" in refused(1, "attach", lmdb, array, "--as", "v", "--kind", "mask")
    assert "copy it first: packer pull" in refused(2, "attach", f"file://{lmdb}", array, "--as", "v")
    good("attach", lmdb, array, "--as", "v")
    assert "packer detach" in refused(2, "attach", lmdb, array, "--as", "v")
    assert "attached to it: v" in refused(2, "detach", lmdb, "w")
    (tmp_path / "mixed").mkdir()
    for name in ("0.npy", "0.txt"):
        (tmp_path / "mixed" / name).touch()
    assert "pass --kind" in refused(2, "attach", lmdb, tmp_path / "mixed", "--as", "w")
    with pytest.raises(UsageError, match="has no part w; its records have nothing but images"):
        open_pack(lmdb).part(0, "w")


def test_an_end_in_the_middle_leaves_the_pack_as_it_was(
    lmdb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (saved(tmp_path / f"{name}.npy", rows(name)) for name in ("float32", "int8"))
    attach(lmdb, first, "first")
    before = digests(lmdb)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    for place in (attaching.np.lib.format, os, SidecarList):
        name = {os: "fsync", SidecarList: "write"}.get(place, "write_array_header_1_0")
        with monkeypatch.context() as patch:
            patch.setattr(place, name, stop)
            with pytest.raises(KeyboardInterrupt):
                attach(lmdb, second, "second")
        assert {n: d for n, d in digests(lmdb).items() if n != "sidecar.second.npy"} == before
        assert list(open_pack(lmdb).sidecars) == ["first"] and verify(lmdb).problems == ()
    (lmdb / "sidecars.partial" / "files").mkdir(parents=True)  # of a process that was killed
    (lmdb / "sidecars.partial" / "attach").touch()
    (lmdb / "sidecars.partial" / "files" / "sidecar.second.npy").write_bytes(b"half")
    attach(lmdb, second, "second")
    assert list(open_pack(lmdb).sidecars) == ["first", "second"] and not (lmdb / "sidecars.partial").exists()
    detach(lmdb, "second")
    assert digests(lmdb) == before  # nor is left what was published without its list
    lock = lock_folder(str(lmdb / "sidecars.partial"))
    assert lock is not None
    with pytest.raises(UsageError, match="another packer attach or packer detach is writing"):
        attach(lmdb, second, "second")
    lock.close()


def test_a_full_disk(lmdb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digests(lmdb)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(attaching.os, "fsync", full)
    with pytest.raises(StorageError, match=r"cannot write: No space left on device; free some space$"):
        attach(lmdb, saved(tmp_path / "v.npy", rows()), "v")
    assert digests(lmdb) == before


def test_damage_is_found(lmdb: Path, tmp_path: Path) -> None:
    attach(lmdb, saved(tmp_path / "v.npy", rows()), "v")
    attach(lmdb, write_table(tmp_path / "t.csv", {"key": open_pack(lmdb).keys, "text": ["a"] * COUNT}), "t")
    whole = digests(lmdb)
    for name in ("sidecar.v.npy", "sidecar.t.jsonl", "sidecar.t.offsets.npy", "sidecars.json"):
        kept = (lmdb / name).read_bytes()
        flip(lmdb / name, len(kept) // 2 + 20)
        found = run("verify", lmdb)
        assert name in found.err and found.code == 4 and "packer repair" not in found.err
        step = (
            "sidecars.json and attach them"
            if name == "sidecars.json"
            else f"packer detach {lmdb} {name.split('.')[1]} and"
        )
        assert "try: restore it, or " in found.err and step in found.err and step in run("repair", lmdb).out
        assert "sidecar" in good("info", lmdb).out
        assert "sidecars are not repaired" in good("repair", lmdb).out
        with pytest.raises(DamagedPack, match=name):
            opened = open_pack(lmdb)
            for part in ("v", "t"):
                opened.sidecar(part).read(np.arange(COUNT))
        (lmdb / name).write_bytes(kept[:-1])
        with pytest.raises(DamagedPack, match=name):
            opened = open_pack(lmdb)
            for part in ("v", "t"):
                opened.sidecar(part).read(np.arange(COUNT))
        (lmdb / name).write_bytes(kept)
    assert digests(lmdb) == whole and verify(lmdb).problems == ()
    flip(lmdb / "sidecar.t.jsonl", 3)
    flip(next(lmdb.glob("*.index.arrow")), 900)
    assert "try: packer repair" in run("verify", lmdb).err and "packer detach" in run("verify", lmdb).err
    detach(lmdb, "t")  # which leaves the others
    assert open_pack(lmdb).sidecars.keys() == {"v"}


def test_a_list_that_somebody_made_up(lmdb: Path, copied: MakePack, tmp_path: Path) -> None:
    """Nothing is read beyond a file, or outside the folder; nor that of another pack."""
    attach(lmdb, saved(tmp_path / "v.npy", rows()), "v")
    listed = read_beside(SidecarList, str(lmdb), open_pack(lmdb).manifest)
    assert listed is not None
    (facts,) = listed.sidecars
    (file,) = facts.files
    for wrong in (
        replace(facts, shape=(500,)), replace(facts, shape=(-5,)), replace(facts, dtype="O"), replace(facts, kind="x"),
        replace(facts, files=(replace(file, name="../v.npy"),)), replace(facts, name="a/b"), replace(facts, files=()),
        replace(facts, files=(replace(file, crc32c=""),)), replace(facts, files=(replace(file, bytes=-1),)),
    ):  # fmt: skip
        replace(listed, sidecars=(wrong,)).write(str(lmdb))
        with pytest.raises(DamagedPack, match=r"sidecars\.json"):
            open_pack(lmdb).part(0, "v")
    replace(listed, rows_sha256="0" * 64).write(str(lmdb))
    with pytest.raises(DamagedPack, match="was made for other records than those of the pack"):
        open_pack(lmdb).sidecars  # noqa: B018


def test_pushed_and_pulled_along(lmdb: Path, tmp_path: Path) -> None:
    attach(lmdb, saved(tmp_path / "v.npy", rows()), "v")
    store = tmp_path / "store"
    url = f"file://{store}"
    push(lmdb, url)
    assert push(lmdb, url).sent == 0
    assert pull(url, tmp_path / "back").files == len(digests(lmdb)) - 2
    assert digests(tmp_path / "back") == digests(lmdb) == digests(store)
    good("verify", url)
    assert "sidecar    v: array" in good("info", url).out
    assert find_unreferenced(url, 0).objects == ()
    attach(lmdb, saved(tmp_path / "w.npy", rows("int8")), "w")
    assert push(lmdb, url).sent == 2  # what is new, and the list
    assert digests(store) == digests(lmdb)
    flip(store / "sidecars.json", 50)
    assert "sidecars.json and its files are not copied" in good("pull", url, tmp_path / "without").out
    assert state_of(tmp_path / "without") == state_of(lmdb) == digests(tmp_path / "without")
    clean(find_unreferenced(url, 0))
    assert digests(store) == state_of(lmdb)


def test_converted_packs_have_none(lmdb: Path, tmp_path: Path) -> None:
    note = (
        "sidecars are not copied: packer attach PACK WHERE --as NAME --extra-rows skip adds one to a new pack, "
        "if WHERE has keys, paths or file names"
    )
    shutil.copytree(lmdb, tmp_path / "plain")
    attach(lmdb, saved(tmp_path / "v.npy", rows()), "v")
    assert note in good("convert", lmdb, tmp_path / "converted").out
    assert note not in good("convert", tmp_path / "plain", tmp_path / "plainly").out
    convert(tmp_path / "plain", tmp_path / "other")
    (said,) = merge([lmdb, tmp_path / "other"], tmp_path / "merged").notes
    assert said == f"v: not attached to all records of the packs in one form; {note}"
    assert "note: sidecars are not extracted: v" in good("extract", lmdb, tmp_path / "files").out
    said = good("diff", lmdb, tmp_path / "plain").out
    assert "sidecars differ, which does not count: v" in said and "equal" in said
    attach(tmp_path / "plain", tmp_path / "v.npy", "v")
    assert "sidecar" not in good("diff", lmdb, tmp_path / "plain").out


@pytest.mark.parametrize("form", [".csv", ".npz", ".txt", "captions"])
def test_what_was_attached_is_attached_to_the_packs_of_a_split(lmdb: Path, tmp_path: Path, form: str) -> None:
    """Its rows are those of all of them: they fit one of them with --extra-rows skip."""
    paths, where = open_pack(lmdb).paths, tmp_path / "folder"
    cells = [f"of {path}" for path in paths]
    if form == ".txt":
        write_files(where, {path.replace(".png", ".txt"): f"of {path}".encode() for path in paths})
    elif form == "captions":
        where = write_table(tmp_path / "t.csv", {"image": paths * 2, "caption": cells * 2})
    else:
        where = write_table(tmp_path / f"t{form}", {"path": paths, "caption": cells})
    parts = split(lmdb, "a=0.75,b=0.25", tmp_path).parts
    attach(lmdb, where, "c")
    for part in parts:
        said = refused(1, "attach", part.path, where, "--as", "c")
        assert "for no record" in said and "leave them out: --extra-rows skip" in said
        said = good("attach", part.path, where, "--as", "c", "--extra-rows", "skip").out
        assert f"note: {(COUNT - part.records) * (2 if form == 'captions' else 1)} rows for no record left out" in said
        opened = open_pack(part.path)
        wanted = [f"of {path}" for path in opened.paths]
        found = [opened.part(i, "c") for i in range(len(opened))]
        assert found == ([[one, one] for one in wanted] if form == "captions" else wanted)
        assert verify(part.path).problems == ()
    with pytest.raises(BadInput, match="has nothing for 24 records"):
        attach(lmdb, write_table(tmp_path / "t.csv", {"path": ["x"], "n": [1]}), "n", extra_rows="skip")
    with pytest.raises(UsageError, match="extra_rows: must be fail or skip, got 'x'"):
        attach(lmdb, where, "n", extra_rows="x")
