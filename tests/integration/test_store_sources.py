"""Sources in SeaweedFS: packs of them have the bytes of those of the folder, also behind a proxy that does faults."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from drawn import draw_classes, draw_shots, draw_voc
from fault_proxy import Fault, FaultProxy
from running import digests, good, run

pytest.importorskip("obstore", reason="needs obstore (packer[remote])")

from packer.sources.store_tree import find_store_tree
from packer.sources.tree import find_tree
from packer.stores import open_store


def upload(folder: Path, url: str) -> None:
    store = open_store(url)
    files = [path for path in folder.rglob("*") if path.is_file()]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: store.write(str(path.relative_to(folder)), path.read_bytes()), files))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("classes", []),
        ("classes", ["--encode", "copy"]),
        ("classes", ["--resize", "9x9", "--shuffle", 1, "--shard-size", "1KB"]),
        ("voc", ["--encode", "jpeg"]),
        ("shots", ["--labels", "voc", "--labels", "list:landmarks.txt", "--columns", "path (x y)*5 label"]),
    ],
)
def test_the_same_bytes(kind: str, options: list[Any], bucket_url: str, tmp_path: Path) -> None:
    draw = {"classes": draw_classes, "voc": draw_voc, "shots": draw_shots}[kind]
    source = draw(tmp_path / "src")
    upload(source, bucket_url)
    good("build", source, "-o", tmp_path / "a", *options)
    good("build", bucket_url, "-o", tmp_path / "b", *options)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


@pytest.mark.parametrize("format", ["zip", "tar", "gztar"])
def test_archives(format: str, bucket_url: str, tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    archive = Path(shutil.make_archive(str(tmp_path / "archives" / "voc"), format, source))
    upload(archive.parent, bucket_url)
    good("build", source, "-o", tmp_path / "a")
    good("build", f"{bucket_url}/{archive.name}", "-o", tmp_path / "b")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_odd_names_and_objects_that_stand_for_folders(bucket_url: str, tmp_path: Path) -> None:
    names = ["a b/é.jpg", "a/x.jpg", "a.jpg", "a-b/x.jpg", "100%25.jpg", "#1?.jpg", "a+b=c&d.jpg", "~x.jpg", "B.JPG"]
    for name in names:
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(name.encode())
    upload(tmp_path / "src", bucket_url)
    open_store(bucket_url).write("a/", b"")
    tree, skipped = find_store_tree(bucket_url)
    here, _ = find_tree(os.fsencode(tmp_path / "src"))
    assert (tree.images, tree.files, tree.folders, skipped) == (here.images, [], here.folders, [])
    for image in tree.images:
        with tree.open(image) as file:
            assert file.read(100) == image


def test_more_objects_than_a_page(bucket_url: str) -> None:
    store = open_store(bucket_url)
    names = [f"{number % 3}/{number:04}.jpg" for number in range(3300)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.write(name, b"x"), names))
    tree, _ = find_store_tree(bucket_url)
    assert [image.decode() for image in tree.images] == sorted(names)


@pytest.mark.parametrize("kind", ["503", "close", "cut", "whole"])
def test_a_server_that_fails_now_and_then(kind: str, bucket_url: str, proxy: FaultProxy, tmp_path: Path) -> None:
    source = draw_voc(tmp_path / "src")
    upload(source, bucket_url)
    good("build", source, "-o", tmp_path / "a", "--workers", 1)
    proxy.faults = [Fault(kind, share=0.3, times=2, when=lambda asked: kind != "whole" or asked.start is not None)]
    done = run("build", bucket_url, "-o", tmp_path / "b", "--workers", 1)
    if kind == "whole":  # the server does not know ranges
        assert done.code == 3, done
    else:
        assert done.code == 0, done
        assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert proxy.struck()[kind] > 0
