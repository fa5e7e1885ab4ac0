"""The walk: byte order, bytes over extensions, nothing outside the folder, nothing that blocks."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.sources.paths import PathList
from packer.sources.tree import find_tree

IMAGE = b"\xff\xd8\xff image"


def is_image(path: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(8) == IMAGE[:8]


def test_a_file_is_what_its_bytes_or_its_extension_say(make_tree):
    tree = make_tree({"a.JPG": "", "b.JpEg": "html", "c": IMAGE, "d.txt": IMAGE, "e.txt": "text", "f": ""})
    assert tree.images == [b"a.JPG", b"b.JpEg", b"c", b"d.txt"]
    assert tree.files == [b"e.txt", b"f"]


def test_names_of_any_bytes_survive(make_tree):
    stems = [b"\xff\xfe", "é".encode(), "e\u0301".encode(), b"a\nb", b"-rf", b" ", b"x" * 251]
    names = [stem + b".jpg" for stem in stems]
    assert make_tree(dict.fromkeys(names, "")).images == sorted(names)


parts = st.binary(min_size=1, max_size=4).filter(lambda b: not set(b) & {0, 47} and not b.startswith(b"."))


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.sets(st.lists(parts, min_size=1, max_size=3).map(b"/".join), max_size=12))
def test_order_is_that_of_the_path_bytes(tmp_path_factory, paths):
    root = os.fsencode(tmp_path_factory.mktemp("tree"))
    for path in paths:
        try:
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path + b".png"), "wb"):
                pass
        except (FileExistsError, NotADirectoryError):
            pass
    expected = sorted(
        os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names
    )
    tree, skipped = find_tree(root, is_image)
    assert tree.images == expected and not skipped
    shutil.rmtree(root)


def test_order_does_not_depend_on_the_directory(make_tree, monkeypatch):
    tree = make_tree({f"{a}/{b}.png": "" for a in ("a", "a.b", "a-b", "a0") for b in "21"})
    scandir = os.scandir

    class Shuffled:
        def __init__(self, path):
            with scandir(path) as entries:
                self.entries = list(entries)
            random.Random(4).shuffle(self.entries)

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *args):
            pass

        def close(self):
            pass

    monkeypatch.setattr(os, "scandir", Shuffled)
    assert find_tree(tree.root, is_image)[0] == tree
    assert tree.images == sorted(tree.images)
    assert tree.folders == [b"a-b", b"a.b", b"a", b"a0"]


def test_hidden_names_are_left_out_and_counted(make_tree):
    tree = make_tree({
        "a/1.jpg": "", "a/._1.jpg": "", ".git/config": "", ".git/x.png": "", "__MACOSX/a/2.jpg": "", ".x": "",
    })  # fmt: skip
    again, skipped = find_tree(tree.root, is_image)
    assert again.images == [b"a/1.jpg"] and again.files == [] and again.folders == [b"a"]
    assert skipped == [(b".git/x.png", "hidden"), (b"__MACOSX/a/2.jpg", "hidden"), (b"a/._1.jpg", "hidden")]


def test_symlinks(make_tree, tmp_path):
    tree = make_tree({"a/1.jpg": ""})
    root = Path(os.fsdecode(tree.root))
    (tmp_path / "out.jpg").write_bytes(IMAGE)
    (tmp_path / "src2").mkdir()  # a sibling whose name begins like the root's
    (tmp_path / "src2" / "x.jpg").write_bytes(IMAGE)
    for name, target in {
        "in.jpg": "a/1.jpg", "loop": ".", "dir": "a", "out.jpg": "../out.jpg", "elsewhere": "../src2", "self": "self",
        "dangling.jpg": "nothing", "sibling.jpg": "../src2/x.jpg",
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    again, skipped = find_tree(os.fsdecode(tree.root), is_image)
    assert again.images == [b"a/1.jpg", b"dir/1.jpg", b"in.jpg", b"out.jpg", b"sibling.jpg"]
    assert again.folders == [b"a", b"dir"]
    assert dict(skipped) == {
        b"dangling.jpg": "unreadable: symlink that leads to no file; fetch it, or remove the link",
        b"elsewhere": "symlink to a folder outside the source (--follow-links reads it)",
        b"loop": "symlink to a folder that it is in", b"self": "symlink that leads to no file",
    }  # fmt: skip
    assert b"elsewhere/x.jpg" in find_tree(tree.root, is_image, follow_links=True)[0].images


def test_links_to_folders_in_a_circle(make_tree):
    root = Path(os.fsdecode(make_tree({"a/1.jpg": "", "b/2.jpg": ""}).root))
    (root / "a" / "to_b").symlink_to("../b")
    (root / "b" / "to_a").symlink_to("../a")
    tree, skipped = find_tree(str(root), is_image)
    assert tree.images == [b"a/1.jpg", b"a/to_b/2.jpg", b"b/2.jpg", b"b/to_a/1.jpg"]
    assert [path for path, _ in skipped] == [b"a/to_b/to_a", b"b/to_a/to_b"]


def test_a_cache_of_links_is_a_folder_of_images(make_tree, tmp_path):
    """As Hugging Face's cache and DVC lay them out: every file is a link to a blob elsewhere."""
    root = Path(os.fsdecode(make_tree({"cat/": "", "here.jpg": ""}).root))
    (tmp_path / "blobs").mkdir()
    for i in range(10):
        (tmp_path / "blobs" / f"{i}").write_bytes(IMAGE)
        (root / "cat" / f"{i}.jpg").symlink_to(tmp_path / "blobs" / f"{i}")
    tree, skipped = find_tree(str(root), is_image)
    assert len(tree.images) == 11 and not skipped


def test_pipes_are_skipped_without_waiting(make_tree):
    tree = make_tree({"a.jpg": "", "dir.jpg/": ""})
    os.mkfifo(os.path.join(tree.root, b"pipe.jpg"))
    again, skipped = find_tree(tree.root, is_image)
    assert again.images == [b"a.jpg"] and again.folders == [b"dir.jpg"]
    assert skipped == [(b"pipe.jpg", "not a regular file")]


def test_unreadable_folders_and_files_are_listed(make_tree):
    tree = make_tree({"a/1.jpg": "", "b/1.jpg": "", "c": "text"})
    os.chmod(os.path.join(tree.root, b"b"), 0)
    os.chmod(os.path.join(tree.root, b"c"), 0)
    code = (
        "import sys; from packer.sources.tree import find_tree\n"
        "tree, skipped = find_tree(sys.argv[1], lambda p: bool(open(p, 'rb').close()))\n"
        "print(list(tree.images), skipped)"
    )
    command = [sys.executable, "-c", code, os.fsdecode(tree.root)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is needed to drop root's rights")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, timeout=240)
    os.chmod(os.path.join(tree.root, b"b"), 0o755)
    assert done.stdout.strip() == "[b'a/1.jpg'] [(b'b', 'permission'), (b'c', 'permission')]", done.stderr


def test_deep_folders(make_tree):
    tree = make_tree({"a.jpg": ""})
    folder = os.open(tree.root, os.O_RDONLY)
    for _ in range(1100):  # more than Python calls itself; os.makedirs itself would go too deep
        os.mkdir(b"d", dir_fd=folder)
        above, folder = folder, os.open(b"d", os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)
    try:
        assert len(find_tree(tree.root, is_image)[0].folders) == 1100
    finally:
        subprocess.run(["rm", "-rf", os.path.join(tree.root, b"d")], check=True)


def test_a_root_that_is_none(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        find_tree(str(tmp_path / "x"), is_image)
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(UsageError, match="is not a folder"):
        find_tree(str(tmp_path / "x"), is_image)


def test_a_list_of_paths_is_like_a_list(monkeypatch):
    monkeypatch.setattr("packer.system.storage.MEMORY_BYTES", 1000)
    monkeypatch.setattr("packer.sources.paths.AT_ONCE", 7)
    for count in (0, 1, 7, 500):
        paths = sorted(b"%d/\xff%d" % (i % 9, i) for i in range(count))
        found = PathList.of(paths)
        assert found == paths and len(found) == count and list(map(found.__getitem__, range(count))) == paths
        for cut in (slice(None), slice(2, 5), slice(5, 2), slice(-3, None), slice(1, 400, 3), slice(None, None, -1)):
            assert found[cut] == paths[cut]
        assert all(path in found for path in paths) and b"5" not in found and b"~" not in found
        assert pickle.loads(pickle.dumps(found)) == paths
        with pytest.raises(IndexError):
            found[count]
        if paths:
            assert found[-1] == paths[-1] and found.index(paths[0]) == 0


@pytest.mark.parametrize(("few", "jobs"), [(1, 1), (4, 3), (9, 64)])
def test_a_walk_in_parts_finds_the_same(make_tree, monkeypatch, few, jobs):
    names = [f"{a}/{b}/{i}.jpg" for a in ("x", "x.y", "z") for b in "pq" for i in range(3)]
    tree = make_tree(dict.fromkeys([*names, "x/1.jpg", "x/a.txt", "y.jpg", "x/.hidden.jpg", "z/q/.h/8.png"], ""))
    os.symlink("../x", os.path.join(tree.root, b"z/to_x"))
    os.symlink(".", os.path.join(tree.root, b"z/p/itself"))
    os.mkdir(os.path.join(tree.root, b"empty"))
    whole = find_tree(tree.root, follow_links=True)
    assert whole[0].image_folders == {image[: image.rfind(b"/") + 1] for image in whole[0].images}
    monkeypatch.setattr("packer.sources.walk.FEW", few)
    monkeypatch.setattr("packer.sources.walk.JOBS", jobs)
    ran = []

    def run(work, jobs):
        ran.extend(jobs)
        yield from ((number, pickle.loads(pickle.dumps(work(jobs[number])))) for number in reversed(range(len(jobs))))

    assert find_tree(tree.root, follow_links=True, run=run) == whole
    assert ran
