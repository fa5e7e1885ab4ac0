"""A source in a store: what is listed, what is opened, and what an inventory says."""

from __future__ import annotations

import gzip
import os
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import draw_classes, draw_shots, draw_voc, image_file
from fault_proxy import FaultProxy

pytest.importorskip("obstore", reason="needs obstore (packer[remote])")

import obstore

from packer.errors import StorageError, UsageError
from packer.packing.build_options import BuildOptions
from packer.packing.scan import read_inputs
from packer.sources import store_files
from packer.sources.store_files import SourceObject, located
from packer.sources.store_tree import find_store_tree, read_inventory
from packer.sources.tree import find_tree
from packer.stores import open_store
from packer.stores.obstore import ObstoreStore
from packer.stores.store import NoObject, Object


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each object was read, and the store asked for something else, from now on."""
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def counted(method: str) -> None:
        real = getattr(ObstoreStore, method)

        def call(self: ObstoreStore, name: str = "", *more: Any, **options: Any) -> Any:
            with lock:
                counts[os.path.basename(name) if method == "read" else method] += 1
            return real(self, name, *more, **options)

        monkeypatch.setattr(ObstoreStore, method, call)

    for method in ("read", "size", "names", "folders"):
        counted(method)
    return counts


def image_reads(asked: Counter[str]) -> int:
    return sum(count for name, count in asked.items() if name.endswith((".jpg", ".png")))


def same_tree(source: Path) -> None:
    tree, skipped = find_tree(os.fsencode(source))
    other, others = find_store_tree(f"file://{source}/")
    assert other.root == b"file://" + os.fsencode(source)
    assert (other.images, other.files, other.folders) == (tree.images, tree.files, tree.folders)
    assert sorted(others) == sorted(skipped)


def test_the_tree_is_that_of_the_folder(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    for name in (
        "a b/é.jpg",
        "a/x.jpg",
        "a.jpg",
        "a-b/x.jpg",
        "100%25.jpg",
        "#1?.jpg",
        ".hidden/x.jpg",
        "b/.x.jpg",
        "B.JPG",
    ):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(image_file(1))
    (source / "no_extension").write_bytes(image_file(2))
    (source / "notes").write_text("these are notes, which are no image")
    (source / "beside.zip").write_bytes(b"PK")
    same_tree(source)


def test_many_folders_at_several_depths(tmp_path: Path) -> None:
    for number in range(70):
        path = tmp_path / "src" / f"{number % 7}" / f"{number:02}" / "deep" / "x.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    (tmp_path / "src" / "top.txt").write_text("")
    same_tree(tmp_path / "src")


def test_texts_are_not_opened_to_see_whether_they_are_images(tmp_path: Path, asked: Counter[str]) -> None:
    source = draw_voc(tmp_path / "src")
    tree, _ = find_store_tree(f"file://{source}")
    assert tree.images and tree.files
    assert not asked.keys() - {"folders", "names"}


def test_a_label_is_read_once_however_often_it_is_opened(tmp_path: Path, asked: Counter[str]) -> None:
    source = draw_voc(tmp_path / "src", count=80)
    inputs = read_inputs(BuildOptions(f"file://{source}", "x"))
    assert (inputs.asked, inputs.labels) == (80, ("voc",))
    labels = [path.name for path in source.rglob("*.xml")]
    assert len(labels) == 80
    assert {asked[name] for name in labels} == {1}


@pytest.mark.parametrize(
    "options",
    [
        {"encode": "copy"},
        {"resize": "8x8"},
        {"resize": "8", "fit": "pad"},
        {"resize": "8", "fit": "crop", "mode": "gray"},
    ],
    ids=str,
)
def test_no_image_is_opened_where_sizes_are_enough(
    tmp_path: Path, asked: Counter[str], options: dict[str, Any]
) -> None:
    source = draw_classes(tmp_path / "src")
    inputs = read_inputs(BuildOptions(f"file://{source}", "x", **options))
    assert image_reads(asked) == 0
    here = read_inputs(BuildOptions(str(source), "x", **options))
    assert inputs.table.column("bytes") == here.table.column("bytes")
    assert inputs.table.column("label") == here.table.column("label")


@pytest.mark.parametrize(
    "options",
    [{}, {"resize": "8"}, {"resize": "8x8", "mode": "unchanged"}, {"encode": "copy", "decoder": "lenient"}],
    ids=str,
)
def test_headers_are_read_where_the_plan_needs_them(
    tmp_path: Path, asked: Counter[str], options: dict[str, Any]
) -> None:
    source = draw_classes(tmp_path / "src")
    read_inputs(BuildOptions(f"file://{source}", "x", **options))
    assert image_reads(asked) == 15


def test_headers_are_read_for_boxes(tmp_path: Path, asked: Counter[str]) -> None:
    source = draw_voc(tmp_path / "src")
    inputs = read_inputs(BuildOptions(f"file://{source}", "x", encode="copy"))
    assert image_reads(asked) == len(inputs.table) == 8


def test_labels_may_lie_elsewhere_in_a_store(tmp_path: Path) -> None:
    source = draw_shots(tmp_path / "src")
    labels = tmp_path / "elsewhere.txt"
    (source / "landmarks.txt").rename(labels)
    options = {"columns": ("path (x y)*5 label",), "labels": (f"list:file://{labels}",)}
    there = read_inputs(BuildOptions(f"file://{source}", "x", **options))
    from_folder = read_inputs(BuildOptions(str(source), "x", **options))
    assert there.count("landmarks") == from_folder.count("landmarks") > 0
    with pytest.raises(UsageError, match="there is no such file"):
        read_inputs(BuildOptions(f"file://{source}", "x", labels=(f"list:file://{labels}.absent",)))


def test_a_list_may_name_urls(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    lines = [f"file://{path},{path.parent.name}\n" for path in sorted(source.rglob("*.*"))]
    (tmp_path / "list.csv").write_text("".join(lines))
    inputs = read_inputs(
        BuildOptions(f"file://{source}", "x", labels=(f"list:{tmp_path}/list.csv",), columns=("path label",))
    )
    assert (len(inputs.table), len(inputs.rejected), inputs.classes) == (15, 0, ("ant", "bee", "cat"))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://example.org/images", "is on a web server, which does not list its files; .*inventory"),
        ("file://{tmp}/absent", "no such folder or archive"),
        ("file://{tmp}/src/ant/0.jpg", "is one image"),
        ("file://{tmp}/list.txt", "is a list"),
        ("file://{tmp}/pack", "is a pack"),
        ("s3://user:secret@bucket/x", "^s3://bucket/x: holds credentials"),
        ("s3://", "names no bucket"),
    ],
)
def test_one_line_for_what_is_no_source(tmp_path: Path, url: str, problem: str) -> None:
    draw_classes(tmp_path / "src")
    first = next((tmp_path / "src" / "ant").iterdir())
    first.rename(first.with_name("0.jpg"))
    (tmp_path / "list.txt").write_text("a.jpg 1\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "pack.json").write_text("{}")
    (tmp_path / "pack" / "0.jpg").write_bytes(image_file(0))
    with pytest.raises(UsageError, match=problem) as caught:
        read_inputs(BuildOptions(url.format(tmp=tmp_path), "x"))
    assert "secret" not in str(caught.value)


def test_an_output_is_asked_for() -> None:
    with pytest.raises(UsageError, match="needs an output"):
        _ = BuildOptions("s3://bucket/images").output


# inventories


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    return draw_classes(tmp_path / "src")


def files_of(source: Path) -> list[tuple[str, int]]:
    return [(str(path.relative_to(source)), path.stat().st_size) for path in sorted(source.rglob("*.*"))]


def inventories(source: Path, folder: Path) -> Iterator[Path]:
    files = files_of(source)
    key = str(source).lstrip("/")
    others = [("elsewhere/x.jpg", 10), (f"{key}/", 0), (f"{key}-other/x.jpg", 3)]

    def made(name: str, text: str | bytes) -> Path:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder / name

    table = pa.table({"Key": [f"{key}/{name}" for name, _ in files] + [name for name, _ in others],
                      "Size": [size for _, size in files] + [size for _, size in others],
                      "storage_class": ["STANDARD"] * (len(files) + len(others))})  # fmt: skip
    pq.write_table(table, folder / "a.parquet")
    yield folder / "a.parquet"
    yield made("b.csv", "path,size,other\n" + "".join(f"{name},{size},x\n" for name, size in files))
    yield made("c.csv", "".join(f'"{key}/{name}","{size}"\n' for name, size in files))
    yield made("e.tsv", "size\turl\n" + "".join(f"{size}\tfile://{source}/{name}\n" for name, size in files))
    yield made("f.txt", "\ufeff" + "\r\n".join(name for name, _ in files))


def test_an_inventory_is_as_good_as_a_listing(classes: Path, tmp_path: Path, asked: Counter[str]) -> None:
    listed, _ = find_store_tree(f"file://{classes}")
    count = 0
    for file in inventories(classes, tmp_path):
        asked.clear()
        tree, skipped = find_store_tree(f"file://{classes}", inventory=str(file))
        assert (tree.images, tree.files, tree.folders, skipped) == (listed.images, listed.files, listed.folders, []), (
            file
        )
        assert tree.members is not None and listed.members is not None
        assert (tree.members.places == listed.members.places).all(), file
        assert asked == ({"size": 15} if file.suffix == ".txt" else {}), file
        count += 1
    assert count == 5


def test_the_files_of_s3_inventory(tmp_path: Path) -> None:
    etag = "d41d8cd98f00b204e9800998ecf8427e-3"
    keys = (("imgs/", 0), ("imgs/a%20b/%C3%A9+1%2B.jpg", 12), ("imgs/c.jpg", 3), ("other/d.jpg", 4))
    rows = [f'"0123","{key}","{size}","2026-01-01T00:00:00.000Z","{etag}","STANDARD",""\n' for key, size in keys]
    parts = ["".join(rows[:2]), "".join(rows[2:])]  # of several files, joined
    (tmp_path / "data.csv.gz").write_bytes(b"".join(gzip.compress(part.encode()) for part in parts))
    found = read_inventory(str(tmp_path / "data.csv.gz"), "s3://0123/imgs/")
    assert found == [Object("a b/é 1+.jpg", 12, f'"{etag}"', 0.0), Object("c.jpg", 3, f'"{etag}"', 0.0)]
    table = pa.table({"bucket": ["pets"], "key": ["imgs/c.jpg"], "size": [3], "e_tag": ["abd"]})
    pq.write_table(table, tmp_path / "data.parquet")
    assert read_inventory(str(tmp_path / "data.parquet"), "s3://pets/imgs") == [Object("c.jpg", 3, '"abd"', 0.0)]


def test_the_files_of_azure_inventory(tmp_path: Path) -> None:
    (tmp_path / "blobs.csv").write_text("Name,Creation-Time,Etag,Content-Length\nbox/imgs/a.jpg,2026,0x8D,12\n")
    assert read_inventory(str(tmp_path / "blobs.csv"), "az://box/imgs") == [Object("a.jpg", 12, '"0x8D"', 0.0)]


def test_what_is_not_there_is_rejected(classes: Path, tmp_path: Path) -> None:
    names = [name for name, _ in files_of(classes)]
    (tmp_path / "names.txt").write_text("\n".join([*names, "bee/absent.jpg"]))
    inputs = read_inputs(BuildOptions(f"file://{classes}", "x", inventory=str(tmp_path / "names.txt")))
    assert [(row.path, row.reason) for row in inputs.rejected] == [("bee/absent.jpg", "bad-input")]
    assert "there is no such object" in next(iter(inputs.rejected)).problem
    sizes = [*files_of(classes), ("bee/absent.jpg", 100)]
    (tmp_path / "sizes.csv").write_text("key,size\n" + "".join(f"{name},{size}\n" for name, size in sizes))
    inputs = read_inputs(BuildOptions(f"file://{classes}", "x", inventory=str(tmp_path / "sizes.csv")))
    assert [row.path for row in inputs.rejected] == ["bee/absent.jpg"]
    assert "vanished" in next(iter(inputs.rejected)).problem


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", "x.jpg\nx.jpg\n", "names x.jpg twice"),
        ("a.txt", "\n", "names nothing below"),
        ("a.csv", "one,size\n1,2\n", "has no column of names"),
        ("a.csv", "", "cannot be read"),
        ("a.csv", "key,size\na.jpg,many\n", "cannot be read"),
        ("a.parquet", "PAR1", "cannot be read"),
        ("a.doc", "x.jpg", "is not a kind of inventory"),
        ("absent.csv", None, "there is no such file"),
    ],
)
def test_one_line_for_a_bad_inventory(tmp_path: Path, name: str, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=problem) as caught:
        find_store_tree(f"file://{tmp_path}/src", inventory=str(tmp_path / name))
    assert caught.value.line.count(name) == 1 and caught.value.next_step


def test_an_inventory_is_for_a_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inventory"):
        BuildOptions(str(tmp_path), "x", inventory="keys.csv")


# reading


def test_an_object_is_read_as_a_file(tmp_path: Path, asked: Counter[str]) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "f").write_bytes(content)
    file = SourceObject(os.fsencode(f"file://{tmp_path}/f"))
    assert (file.size, asked["size"]) == (len(content), 1)
    assert file.read(10, 5) == content[5:15]
    assert file.read(10, len(content) - 3) == content[-3:]
    assert file.read(10, len(content)) == b""
    asked.clear()
    assert b"".join(file.read(1000, at) for at in range(0, len(content), 1000)) == content
    assert asked["f"] < 20  # reading ahead, further and further


def test_a_replaced_object_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"before")
    store, name = located(f"file://{path}")
    before = store.size(name)
    path.unlink()
    path.write_bytes(b"behind")
    os.utime(path, (1, 1))
    with pytest.raises(Exception, match="changed while the source was being read"):
        SourceObject(os.fsencode(f"file://{path}"), before.size, before.etag or "").read(6, 0)
    path.unlink()
    with pytest.raises(NoObject):
        SourceObject(os.fsencode(f"file://{path}"), 6, "").read(6, 0)


@pytest.mark.parametrize("name", [b"a\x01.jpg", b"a\xff.jpg"])
def test_a_name_that_stores_do_not_have(tmp_path: Path, name: bytes) -> None:
    source = draw_classes(tmp_path / "src")
    (source / os.fsdecode(name)).write_bytes(b"")
    with pytest.raises(StorageError, match=r"has an object whose name cannot be used: .*; rename that object"):
        find_store_tree(f"file://{source}")


def test_a_name_that_begins_with_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"common_prefixes": ["", "a"], "objects": []}
    monkeypatch.setattr("obstore.list_with_delimiter", lambda store, prefix: listed)
    with pytest.raises(StorageError, match="has objects whose names begin with a slash; rename that object"):
        find_store_tree(f"file://{tmp_path}")


def test_a_nameless_object_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that ends in a slash is that of a folder, and has no bytes: one with bytes cannot be read."""
    source = draw_classes(tmp_path / "src")
    real = obstore.list_with_delimiter

    def more(store: Any, prefix: str | None) -> Any:
        found = dict(real(store, prefix))
        if prefix and prefix.endswith("ant"):
            when = datetime.now(timezone.utc)
            marks = [{"path": prefix, "size": size, "e_tag": None, "last_modified": when} for size in (0, 9)]
            found["objects"] = [*found["objects"], *marks]
        return found

    monkeypatch.setattr("obstore.list_with_delimiter", more)
    tree, _ = find_store_tree(f"file://{source}")
    assert len(tree.images) == 15 and list(tree.files) == [b"ant"]


def test_unusable_names_in_an_inventory_are_rejected(classes: Path, tmp_path: Path) -> None:
    odd = ["ant//x.jpg", "/x.jpg", "ant/../x.jpg", "./x.jpg", "ant/\x01.jpg"]
    names = [*(name for name, _ in files_of(classes)), *odd]
    (tmp_path / "names.txt").write_text("\n".join(names))
    sizes = [*files_of(classes), *((name, 9) for name in odd)]
    (tmp_path / "sizes.csv").write_text("key,size\n" + "".join(f"{name},{size}\n" for name, size in sizes))
    for file in ("names.txt", "sizes.csv"):
        inputs = read_inputs(BuildOptions(f"file://{classes}", "x", inventory=str(tmp_path / file)))
        assert sorted(row.path for row in inputs.rejected) == sorted(odd), file
        assert all("its name has //" in row.problem for row in inputs.rejected)
    with pytest.raises(NoObject, match="no object can have this name"):
        open_store(f"file://{classes}").read("ant//x.jpg")


def test_an_object_that_vanishes_before_it_is_sniffed(
    tmp_path: Path, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = draw_classes(tmp_path / "src")
    (source / "ant" / "unknown").write_bytes(image_file(1))
    real = ObstoreStore.folders

    def folders(self: ObstoreStore, prefix: str = "") -> Any:
        found = real(self, prefix)
        if prefix.endswith("ant"):
            (source / "ant" / "unknown").unlink()
        return found

    monkeypatch.setattr(ObstoreStore, "folders", folders)
    tree, _ = find_store_tree(f"file://{source}")
    assert len(tree.images) == 15 and asked["unknown"] == 1


def test_a_small_file_that_its_followers_displace() -> None:
    size = store_files.SMALL_BYTES
    count = store_files.MOST_HELD_BYTES // size
    names = [b"%06d.xml" % number for number in range(count + 3)]
    small = store_files.SmallFiles(names, [size] * len(names), lambda number: names[number])
    for number in (3, *range(5, count + 3), 0, 3):  # the last one follows, and is the oldest that is held
        assert small.content(number) == names[number]


def test_a_store_that_cannot_be_reached_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_classes(tmp_path / "src")

    def read(self: ObstoreStore, name: str, *more: Any, **options: Any) -> bytes:
        raise StorageError(name, "cannot be reached", "check the network")

    monkeypatch.setattr(ObstoreStore, "read", read)
    with pytest.raises(StorageError, match="cannot be reached"):
        read_inputs(BuildOptions(f"file://{source}", "x", on_bad="skip"))


def test_a_web_server_with_an_inventory(tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    files = sorted(path for path in source.rglob("*") if path.is_file())
    (tmp_path / "names.txt").write_text("".join(f"{path.relative_to(source)}\n" for path in files))
    here = read_inputs(BuildOptions(str(source), "x"))
    with FaultProxy(tmp_path) as server:
        options = BuildOptions(f"{server.url}/src", "x", inventory=str(tmp_path / "names.txt"))
        inputs = read_inputs(options)
        with pytest.raises(UsageError, match="does not list its files"):
            read_inputs(BuildOptions(f"{server.url}/src", "x"))
    assert inputs.table.drop_columns(["etag"]).equals(here.table)
    assert inputs.notes == here.notes


def test_a_large_file_of_labels_is_copied_once(
    tmp_path: Path, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packer.sources.source.HELD_BYTES", 1000)
    (tmp_path / "src").mkdir()
    content = os.urandom(2 << 20)
    (tmp_path / "src" / "instances.json").write_bytes(content)
    tree, _ = find_store_tree(f"file://{tmp_path}/src", scratch=lambda _: str(tmp_path / "copy"))
    for _ in range(2):
        with tree.open_plain(b"instances.json") as file:
            view, first = file.mapped()
            assert view[first:] == content
    assert (tmp_path / "copy").read_bytes() == content
    assert asked["instances.json"] < 10
