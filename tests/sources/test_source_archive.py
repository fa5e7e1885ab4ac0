"""Archives: what would be unpacked, found without unpacking; each trap is read rightly or refused by name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import system
from packer.errors import BadImage, BadLabel, PackerError, UsageError
from packer.files.tar_members import Files as PlainFiles
from packer.files.tar_members import one_by_one, tar_members
from packer.files.zip_members import members_by_zipfile, plain_files
from packer.packing.build_options import BuildOptions
from packer.sources import open_source, places, recognize
from packer.sources.places import Archive, Place, SourceFile, held_open
from packer.sources.source import SourceOptions, Tree
from packer.sources.tree import find_tree, read_file, read_head
from packer.system import PORTABLE

IMAGE = b"\xff\xd8\xff image"
Files = Mapping[str, bytes]


def a_tar(*members: tuple[tarfile.TarInfo | str, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format, encoding="utf-8", errors="surrogateescape") as tar:
        for info, data in members:
            made = tarfile.TarInfo(info) if isinstance(info, str) else info
            made.size = len(data) if made.isreg() else 0
            tar.addfile(made, io.BytesIO(data))
    return file.getvalue()


def a_zip(
    files: Files, method: int = zipfile.ZIP_STORED, change: Callable[[zipfile.ZipInfo], None] | None = None
) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type, info.create_system = method, 3
            if change is not None:
                change(info)
            made.writestr(info, data)
    return file.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., tuple[Tree, dict[bytes, str]]]:
    def find(data: bytes, name: str = "set.tar") -> tuple[Tree, dict[bytes, str]]:
        (tmp_path / name).write_bytes(data)
        (tmp_path / "scratch").mkdir(exist_ok=True)
        tree, skipped = find_tree(str(tmp_path / name), scratch=lambda _: str(tmp_path / "scratch" / "0.tar"))
        assert os.path.realpath(tmp_path / name) == os.fsdecode(tree.root)
        return tree, dict(skipped)

    return find


def content(tree: Tree, path: bytes) -> bytes:
    return read_file(tree, path, 1 << 20)


FILES = {"b/2.jpg": IMAGE + b"2", "a/1.jpg": IMAGE + b"1", "labels.csv": b"path,label\n" * 900, "empty.jpg": b""}


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_a_tar_is_the_folder_that_it_holds(found, format, prefix):
    members = [(f"{prefix}{name}", data) for name, data in FILES.items()]
    tree, skipped = found(a_tar(special("./", tarfile.DIRTYPE), special("c", tarfile.DIRTYPE), *members, format=format))
    assert (tree.images, tree.files) == ([b"a/1.jpg", b"b/2.jpg", b"empty.jpg"], [b"labels.csv"])
    assert tree.folders == [b"a", b"b", b"c"] and not skipped
    assert all(content(tree, name.encode()) == data for name, data in FILES.items())
    assert read_head(tree, b"labels.csv", 6, 6) == b"path,llabel\n"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_is_the_folder_that_it_holds(found, method):
    tree, skipped = found(a_zip({**FILES, "c/": b""}, method), "set.zip")
    assert (tree.images, tree.files) == ([b"a/1.jpg", b"b/2.jpg", b"empty.jpg"], [b"labels.csv"])
    assert tree.folders == [b"a", b"b", b"c"] and not skipped
    assert all(content(tree, name.encode()) == data for name, data in FILES.items())
    assert read_head(tree, b"labels.csv", 6, 6) == b"path,llabel\n"
    with tree.open(b"labels.csv") as file:
        assert bytes(file.view()[5:10]) == b"label" and len(file.view()) == file.size


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/."), min_size=1, max_size=40)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map("/".join), st.binary(max_size=1200), max_size=6),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_tars_are_read_as_tarfile_reads_them(files, format):
    data = a_tar(*files.items(), format=format)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(m.name.encode(), m.offset_data, m.size) for m in tar]
    members = tar_members(lambda size, start: data[start : start + size], len(data), "x.tar")
    assert [(m.name, m.offset, m.size) for m in one_by_one(members)] == expected


def test_large_numbers_and_global_headers(found):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "0" * 40}) as tar:
        info = tarfile.TarInfo("a.jpg")
        info.size, info.mtime, info.uid = len(IMAGE), 1.5, 1 << 40
        tar.addfile(info, io.BytesIO(IMAGE))
    assert content(found(file.getvalue())[0], b"a.jpg") == IMAGE


def test_links_stay_in_the_archive(found):
    tree, skipped = found(
        a_tar(
            ("a/1.jpg", IMAGE), (".store/x", IMAGE + b"h"), special("hard.jpg", tarfile.LNKTYPE, "a/1.jpg"),
            special("a/soft.jpg", tarfile.SYMTYPE, "1.jpg"), special("chain.jpg", tarfile.SYMTYPE, "./a/soft.jpg"),
            special("hidden.jpg", tarfile.SYMTYPE, ".store/x"), special("out.jpg", tarfile.SYMTYPE, "../x.jpg"),
            special("passwd", tarfile.SYMTYPE, "/etc/passwd"), special("loop.jpg", tarfile.SYMTYPE, "loop.jpg"),
            special("dir", tarfile.SYMTYPE, "a"), special("pipe", tarfile.FIFOTYPE), special("dev", tarfile.CHRTYPE),
        )
    )  # fmt: skip
    assert tree.images == [b"a/1.jpg", b"a/soft.jpg", b"chain.jpg", b"hard.jpg", b"hidden.jpg"]
    assert content(tree, b"hidden.jpg") == IMAGE + b"h" and content(tree, b"chain.jpg") == IMAGE
    assert skipped == {
        b"out.jpg": "unreadable: is a symlink to no file of the archive: unpack the archive",
        b"loop.jpg": "unreadable: is a symlink to no file of the archive: unpack the archive",
        b"passwd": "is a symlink to no file of the archive",
        b"pipe": "not a regular file", b"dev": "not a regular file",
        b"dir": "unreadable: links to a folder: unpack the archive",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "bad", "problem"),
    [
        (["../a.jpg"], "../a.jpg", 'has ".." in its name'),
        (["a/../../b.jpg"], "a/../../b.jpg", 'has ".." in its name'),
        (["/etc/a.jpg"], "/etc/a.jpg", "absolute name"),
        (["C:/a.jpg"], "C:/a.jpg", "absolute name"),
        (["a.jpg", "a.jpg"], "a.jpg", "several members have this name"),
        (["a.jpg", "./a.jpg"], "a.jpg", "several members have this name"),
        (["a", "a/b.jpg"], "a", "several members have this name"),
    ],
)
@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_lead_out_or_repeat_are_refused_by_name(found, tmp_path, names, bad, problem, kind):
    if kind == "tar":
        data = a_tar(("ok.jpg", IMAGE), *((name, IMAGE) for name in names))
    else:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as made:
            for name in ("ok.jpg", *names):
                made.writestr(name, IMAGE)
        data = file.getvalue()
    tree, skipped = found(data, f"set.{kind}")
    assert list(skipped) == [bad.encode()] and problem in skipped[bad.encode()]
    assert b"ok.jpg" in tree.images and bad.encode() not in tree.images
    assert sorted(os.listdir(tmp_path)) == ["scratch", f"set.{kind}"]


def test_hidden_members_are_counted_as_in_a_folder(found):
    tree, skipped = found(
        a_zip({"a.jpg": IMAGE, "__MACOSX/._a.jpg": b"x", ".DS_Store": b"x", ".git/b.png": b""}), "s.zip"
    )
    assert (tree.images, tree.files, tree.folders) == ([b"a.jpg"], [], [])
    assert skipped == {b"__MACOSX/._a.jpg": "hidden", b".git/b.png": "hidden"}


def test_sparse_members_are_refused_by_name(found):
    header = bytearray(a_tar(("s.jpg", IMAGE))[:512])
    header[156:157] = b"S"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 256)
    gnu = bytes(header) + IMAGE.ljust(512, b"\0") + a_tar(("a.jpg", IMAGE))
    assert found(gnu)[1] == {b"s.jpg": "unreadable: is stored as a sparse file, in pieces: unpack the archive"}
    info = tarfile.TarInfo("GNUSparseFile.0/s.jpg")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s.jpg"}
    assert b"s.jpg" in found(a_tar((info, IMAGE), format=tarfile.PAX_FORMAT))[1]


TWO = a_tar(("a.jpg", IMAGE), ("b.jpg", IMAGE))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (TWO[:1400], "is truncated"),
        (TWO[:1024], "has no end mark: it may be truncated"),
        (TWO[:1024] + b"x" * 512 + TWO[1536:], "has no valid header at byte 1024"),
        (TWO + a_tar(("c.jpg", IMAGE)), "has data after its end mark, at byte 10240"),
        (TWO[:124] + b"77777777777\0" + TWO[136:], "has no valid header|is not a zip or tar archive"),
        (b"text" * 999, "is not a"),
    ],
)
def test_damaged_tars_are_never_taken_for_shorter_ones(found, data, problem):
    with pytest.raises(UsageError, match=problem):
        found(data)


def test_damaged_and_encrypted_zips(found):
    data = a_zip(FILES)
    for cut in (data[:-30], data[40:60] + data[60:], b"PK\x03\x04" + b"\0" * 99):
        with pytest.raises(UsageError, match=r"is not a|damaged"):
            found(cut, "s.zip")
    for offset, mark in ((6, b"PK\x03\x04"), (8, b"PK\x01\x02")):
        at = data.index(mark) + offset
        data = data[:at] + struct.pack("<H", 1) + data[at + 2 :]
    with pytest.raises(UsageError, match=r"is encrypted \(b/2.jpg\)"):
        found(data, "s.zip")
    _, skipped = found(a_zip({"a.jpg": IMAGE * 9, "b.jpg": IMAGE}, zipfile.ZIP_BZIP2), "s.zip")
    assert "is compressed with bzip2, not stored or deflated" in skipped[b"a.jpg"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_member_is_an_error_of_its_own(found, method):
    data = bytearray(a_zip({"a.jpg": IMAGE * 50, "l.csv": b"path,label\n" * 50}, method))
    data[data.index(b"a.jpg") + 10] ^= 0x55
    tree, _ = found(bytes(data), "s.zip")
    with pytest.raises(BadImage, match="damaged in its archive"), tree.open(b"a.jpg") as file:
        file.content(len(IMAGE) * 50)
    with pytest.raises(BadLabel, match="damaged in its archive"):
        content(tree, b"a.jpg")
    assert content(tree, b"l.csv") == b"path,label\n" * 50


def test_zip64_and_data_descriptors(found):
    class Stream(io.RawIOBase):  # cannot seek: sizes follow the data
        def __init__(self) -> None:
            self.data = b""

        def writable(self) -> bool:
            return True

        def write(self, data) -> int:
            self.data += bytes(data)
            return len(data)

    stream = Stream()
    with zipfile.ZipFile(stream, "w") as made:
        for name, data in FILES.items():
            with made.open(name, "w", force_zip64=True) as member:
                member.write(data)
    tree, _ = found(stream.data, "s.zip")
    assert all(content(tree, name.encode()) == data for name, data in FILES.items())


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda size, start: data[start : start + size]


def changed_in_zip(**fields: object) -> Callable[[zipfile.ZipInfo], None]:
    def change(info: zipfile.ZipInfo) -> None:
        for name, value in fields.items():
            setattr(info, name, value)

    return change


def zip64_end(data: bytes) -> bytes:
    """The same zip with the end that an archive of more than 65,535 members has."""
    *_, count, length, start, _ = struct.unpack("<4s4H2LH", data[-22:])
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, start)
    return data[:-22] + end + struct.pack("<4sLQL", b"PK\6\7", 0, len(data) - 22, 1) + data[-22:]


NAMED = {"b/1.jpg": IMAGE, "a/": b"", "a/é.jpg": IMAGE * 9, ".x": b"", "__MACOSX/._1.jpg": IMAGE, "z//1.jpg": IMAGE}


@pytest.mark.parametrize(
    "data",
    [
        a_zip(NAMED),
        a_zip(NAMED, zipfile.ZIP_DEFLATED),
        a_zip(NAMED, change=changed_in_zip(extra=struct.pack("<2HBL", 0x5455, 5, 3, 9), comment=b"of one")),
        a_zip(NAMED, change=changed_in_zip(create_system=0)),
        zip64_end(a_zip(NAMED)),
    ],
)
def test_plain_zips_are_listed_as_zipfile_lists_them(data):
    plain = plain_files(reader(data), len(data))
    assert plain is not None
    expected = list(members_by_zipfile(io.BytesIO(data), reader(data), len(data), "x.zip"))
    assert list(one_by_one(iter([plain]))) == expected
    assert [member.kind for member in expected] == ["file", "folder", "file", "file", "file", "file"]


PLAIN = a_zip({"a.jpg": IMAGE, "b.jpg": IMAGE})
SECOND = PLAIN.rindex(b"PK\1\2")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PLAIN[:-1],
        PLAIN[:-2] + b"\1\0c",
        b"before" + PLAIN,
        a_zip({}),
        a_zip({"a.jpg": IMAGE}, zipfile.ZIP_BZIP2),
        a_zip({"a.jpg": IMAGE}, change=changed_in_zip(external_attr=0o120777 << 16)),
        a_zip({"a.jpg": IMAGE}, change=changed_in_zip(external_attr=0o040777 << 16)),
        a_zip({"a\\b.jpg": IMAGE}, change=changed_in_zip(create_system=0)),
        a_zip({"a.jpg": IMAGE}).replace(b"a.jpg", b"\xff.jpg"),
        a_zip({"a.jpg": IMAGE}, change=changed_in_zip(extra=struct.pack("<2H", 0x7075, 0))),
        a_zip({"a.jpg": IMAGE}, change=changed_in_zip(extra=struct.pack("<2H", 0x5455, 9))),
        PLAIN[:SECOND] + b"PK\1\3" + PLAIN[SECOND + 4 :],
        PLAIN[: SECOND + 6] + b"\x40" + PLAIN[SECOND + 7 :],
        PLAIN[: SECOND + 8] + b"\1" + PLAIN[SECOND + 9 :],
        PLAIN[: SECOND + 20] + b"\x0b\0\0\0" + PLAIN[SECOND + 24 :],
        PLAIN[: SECOND + 20] + b"\xff" * 8 + PLAIN[SECOND + 28 :],
        PLAIN[: SECOND + 42] + b"\1" + PLAIN[SECOND + 43 :],
        PLAIN.replace(b"b.jpg", b"c.jpg", 1),
        zip64_end(PLAIN).replace(b"PK\6\6", b"PK\6\5"),
    ],
)
def test_whatever_is_unusual_in_a_zip_is_left_to_zipfile(data):
    assert plain_files(reader(data), len(data)) is None


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_plain_members_of_a_tar_are_listed_at_once(format):
    members = [special("a/", tarfile.DIRTYPE), ("a/1.jpg", IMAGE), ("2.jpg", b""), ("n" * 100, IMAGE), ("./3", IMAGE)]
    data = a_tar(*members, format=format)
    listed = list(tar_members(reader(data), len(data), "x.tar"))
    assert [isinstance(found, PlainFiles) for found in listed] == [True, False, True]
    assert [(member.kind, member.name) for member in one_by_one(iter(listed))] == [
        ("folder", b"a/"), ("file", b"a/1.jpg"), ("file", b"2.jpg"), ("file", b"n" * 100), ("file", b"./3"),
    ]  # fmt: skip


def test_peculiar_names_among_plain_ones(found):
    names = ("./a/1.jpg", "a//2.jpg", "b/.3.jpg", "__MACOSX/4.jpg", "/5.jpg", "../6.jpg", "C:/7.jpg", "8", "d.jpg/9")
    for name, data in (("s.tar", a_tar(*((n, IMAGE) for n in names))), ("s.zip", a_zip(dict.fromkeys(names, IMAGE)))):
        tree, skipped = found(data, name)
        assert tree.images == [b"a/1.jpg", b"a/2.jpg"] and tree.files == [b"8", b"d.jpg/9"]
        assert list(tree.folders) == [b"a", b"d.jpg"]
        assert sorted(skipped) == [b"../6.jpg", b"/5.jpg", b"C:/7.jpg", b"__MACOSX/4.jpg", b"b/.3.jpg"]


@pytest.mark.skipif(PORTABLE, reason="each read opens the archive there")
def test_archives_are_held_open_for_many_reads(tmp_path):
    path = tmp_path / "s.zip"
    path.write_bytes(PLAIN)
    archive = Archive.of(os.fsencode(path))
    with held_open((archive, Archive(os.fsencode(tmp_path / "absent"), 1, 1))) as held:
        for _ in range(2):
            with SourceFile(b"", Place(0, 30 + len("a.jpg"), len(IMAGE)), held) as file:
                assert file.content(len(IMAGE)) == IMAGE and file.descriptor == held[0].descriptor
        assert held[1].descriptor == -1
        path.write_bytes(PLAIN + b"more")
        with pytest.raises(BadImage, match="changed while"):
            SourceFile(b"", Place(0, 0, 1), held)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held[0].descriptor)
    with held_open((archive,) * 17) as held:
        assert held == (archive,) * 17


@pytest.mark.parametrize("portable", [PORTABLE, True])
def test_threads_read_from_one_archive(tmp_path, monkeypatch, portable):
    """Also where reading at a place means to go there first: each thread, then both read."""
    path = tmp_path / "a.tar"
    path.write_bytes(b"12")
    seek, both = os.lseek, threading.Barrier(2, timeout=30)
    monkeypatch.setattr(os, "lseek", lambda *given: (seek(*given), both.wait()))
    monkeypatch.setattr(system, "PORTABLE", portable)
    monkeypatch.setattr(places, "PORTABLE", portable)

    def read(start: int) -> bytes:
        with SourceFile(b"", Place(0, start, 1), held) as file:
            return file.content(1)

    with held_open((Archive.of(os.fsencode(path)),)) as held, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(read, (0, 1))) == [b"1", b"2"]


def test_names_in_zips(found):
    def dos(info: zipfile.ZipInfo) -> None:
        info.create_system = 0

    tree, _ = found(a_zip({"é/ü.jpg": IMAGE}), "s.zip")
    assert tree.images == ["é/ü.jpg".encode()]
    raw = a_zip({"xx/yy.jpg": IMAGE})
    tree, _ = found(raw.replace(b"xx/yy", "é/ü".encode()), "s.zip")  # UTF-8 without its flag, as macOS writes
    assert tree.images == ["é/ü.jpg".encode()]
    tree, _ = found(raw.replace(b"xx/yy", b"x\xff/yy"), "s.zip")
    assert tree.images == [b"x\xff/yy.jpg"]
    tree, _ = found(a_zip({"a\\x1.jpg": IMAGE}, change=dos).replace(b"x1", b"\x821"), "s.zip")
    assert tree.images == ["a/é1.jpg".encode()]  # code page 437, and DOS's slashes


def test_a_symlink_in_a_zip(found):
    def link(info: zipfile.ZipInfo) -> None:
        if info.filename == "b.jpg":
            info.external_attr = 0o120777 << 16

    tree, skipped = found(a_zip({"a/1.jpg": IMAGE, "b.jpg": b"a/1.jpg"}, change=link), "s.zip")
    assert content(tree, b"b.jpg") == IMAGE and not skipped


def test_archives_in_archives_and_in_a_folder(found, tmp_path):
    inner = {
        name: a_tar((f"{name}/x.jpg" if name == "own" else "x.jpg", IMAGE + name.encode())) for name in ("n1", "own")
    }
    inner["n2"] = a_zip({"d/y.jpg": IMAGE})
    names = {
        "n1.tar": inner["n1"],
        "own.tar": inner["own"],
        "n2.zip": inner["n2"],
        "n3.tgz": gzip.compress(inner["n1"]),
    }
    expected = [b"n1/x.jpg", b"n2/d/y.jpg", b"n3/x.jpg", b"own/x.jpg"]
    for data, name in ((a_tar(*names.items()), "s.tar"), (a_zip(names), "s.zip")):
        tree, skipped = found(data, name)
        assert tree.images == expected and tree.folders == [b"n1", b"n2", b"n2/d", b"n3", b"own"] and not skipped
        assert content(tree, b"own/x.jpg") == IMAGE + b"own" and content(tree, b"n3/x.jpg") == IMAGE + b"n1"
        (tmp_path / "scratch" / "0.tar").unlink()
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, data in {**names, "labels.csv": b"n1/x.jpg,a\n", "bad.tar": inner["n1"][:800]}.items():
        (folder / name).write_bytes(data)
    tree, skipped = find_tree(str(folder), scratch=lambda _: str(tmp_path / "scratch" / "1.tar"))
    assert (tree.images, tree.files) == (expected, [b"labels.csv"]) and content(tree, b"labels.csv") == b"n1/x.jpg,a\n"
    assert [path for path, _ in skipped] == [b"bad.tar"] and "truncated" in skipped[0][1]
    (folder / "z.jpg").write_bytes(IMAGE)
    tree, skipped = find_tree(str(folder))
    assert tree.images == [b"z.jpg"] and dict(skipped)[b"n2.zip"] == "archive beside images, which is not read"


def test_a_bomb_of_archives_ends(found):
    data = a_tar(("a.jpg", IMAGE))
    for _ in range(8):
        data = a_tar(("n.tar", data))
    tree, skipped = found(data)
    assert not tree.images and "is an archive in 4 archives" in next(iter(skipped.values()))


def compressed(data: bytes, kind: str) -> bytes:
    if kind == "zst":
        return bytes(pa.compress(data, "zstd", asbytes=True))
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](data)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst", "gz in gz", "zip", "two in a tar"])
def test_a_bomb_is_written_only_as_far_as_the_limit(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(places, "ALLOWED_BYTES", 300_000)
    monkeypatch.setattr(places, "COPIED_BYTES", 10_000)
    plain = a_tar(("a.jpg", IMAGE + bytes(200_000)))
    bomb = a_tar(("a.jpg", IMAGE + bytes(6_000_000)))
    if kind == "zip":
        small, large = (a_zip({"a.tar": data}, zipfile.ZIP_DEFLATED) for data in (plain, bomb))
    elif kind == "two in a tar":
        small, large = (
            a_tar(("a.tgz", gzip.compress(plain))),
            a_tar(*((f"{i}.tgz", gzip.compress(plain)) for i in range(2))),
        )
        monkeypatch.setattr(places, "MOST_RATIO", 1)
    elif kind == "gz in gz":
        small, large = gzip.compress(gzip.compress(plain)), gzip.compress(gzip.compress(bomb))
    else:
        small, large = compressed(plain, kind), compressed(bomb, kind)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    numbers = count()

    def found(data: bytes) -> tuple[Tree, list[tuple[bytes, str]]]:
        (tmp_path / "set.tar").write_bytes(data)
        return find_tree(str(tmp_path / "set.tar"), scratch=lambda _: str(scratch / str(next(numbers))))

    tree, _ = found(small)
    assert [path.rpartition(b"/")[2] for path in tree.images] == [b"a.jpg"]
    for left in scratch.iterdir():
        left.unlink()
    problem = "becomes more than"
    if kind in ("zip", "two in a tar"):
        _, skipped = found(large)
        assert any(problem in reason for _, reason in skipped)
    else:
        with pytest.raises(UsageError, match=rf"{problem} .*decompress it and give the result"):
            found(large)
    assert sum(path.stat().st_size for path in scratch.iterdir()) <= 300_000


def test_an_archive_that_changes_is_noticed(found, tmp_path):
    tree, _ = found(TWO)
    os.utime(tmp_path / "set.tar", (1, 1))
    with pytest.raises(BadLabel, match="changed while the source was being read"):
        content(tree, b"a.jpg")


def test_compressed_archives_need_a_place_and_are_whole(found, tmp_path):
    with pytest.raises(UsageError, match="cannot be decompressed"):
        found(gzip.compress(TWO)[:-9], "s.tar.gz")
    (tmp_path / "s.tgz").write_bytes(gzip.compress(TWO))
    with pytest.raises(UsageError, match="is compressed"):
        find_tree(str(tmp_path / "s.tgz"))


def test_own_files_are_read_as_before(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    with SourceFile(os.fsencode(path)) as file:
        assert (file.read(3), file.read(99, 3), file.content(5)) == (b"123", b"45", b"12345")
        path.write_bytes(b"123456")
        with pytest.raises(BadImage, match="changed while"):
            file.content(5)


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("one.jpg", b"\xff\xd8\xff\xe0" + b"\0" * 99, "is one image; give the folder that holds the images"),
        (
            "labels.csv",
            b"a,b\n",
            "is a list, not a folder or archive of images; give the folder of the images, with --labels",
        ),
        ("x.json", b"{}", "is a file of labels; give the folder that holds the images and this file"),
        ("x.rar", b"Rar!\x1a\x07\x01\0", "is a RAR archive, which packer does not read; unpack it"),
        ("x", b"", "is not a folder, a zip or a tar"),
    ],
)
def test_files_that_are_no_source_say_what_to_give(tmp_path, name, data, problem):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError) as error:
        find_tree(str(tmp_path / name))
    assert problem in error.value.line


def test_datumaro_reads_no_archives(found):
    tree, _ = found(a_zip({"mot/img1/1.png": IMAGE, "mot/gt/gt.txt": b"1,1,1,1,9,9,1,1,1\n"}), "s.zip")
    with pytest.raises(UsageError, match="reads no archives"):
        open_source("auto", tree, SourceOptions())


def test_a_folder_in_an_archive(found, tmp_path):
    """By its path in the archive; in a folder of archives also by the path that its images have."""
    files = {"a/b/1.jpg": IMAGE, "a/b/c/2.jpg": IMAGE, "a/bb.jpg": IMAGE, "a/b/1.txt": b"", "a/b/.3.jpg": IMAGE}
    found(a_zip(files), "s.zip")
    for place in ("s.zip/a/b", "s.zip/a/b/", "s/a/b"):
        tree, skipped = find_tree(str(tmp_path / place))
        assert (tree.images, tree.files, tree.folders) == ([b"1.jpg", b"c/2.jpg"], [b"1.txt"], [b"c"])
        assert skipped == [(b".3.jpg", "hidden")] and content(tree, b"c/2.jpg") == IMAGE
    with pytest.raises(UsageError, match="no such folder in the archive"):
        find_tree(str(tmp_path / "s.zip" / "a" / "c"))
    assert BuildOptions(str(tmp_path / "s.zip" / "a" / "b")).output == str(tmp_path / "b.lmdb")


def test_labels_beside_the_archive_and_in_it(found, tmp_path, monkeypatch):
    (tmp_path / "outside").mkdir()
    monkeypatch.chdir(tmp_path / "outside")
    (tmp_path / "outside" / "a.csv").write_bytes(b"1.jpg,cat\n")
    tree, _ = found(a_zip({"1.jpg": IMAGE, "2.jpg": IMAGE, "l/a.csv": b"1.jpg,dog\n2.jpg,dog\n"}), "s.zip")
    for file, label in (("a.csv", "cat"), ("l/a.csv", "dog"), ("../s.zip/l/a.csv", "dog"), ("./l/a.csv", "dog")):
        assert open_source(f"list:{file}", tree, SourceOptions(columns="path label")).annotate(b"1.jpg").label == label
    for kind in ("list", "coco", "dlib", "cvat", "via", "labelstudio", "createml", "vott", "widerface"):
        with pytest.raises(UsageError, match="there is no such file; name the file, relative to this folder or to the"):
            open_source(f"{kind}:b.csv", tree, SourceOptions())


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("kind", "name"), [("coco", "a.json"), ("dlib", "a.xml"), ("cvat", "a.xml"), ("vott", "a.json")]
)
def test_damaged_labels_are_refused(found, kind, name, method):
    """Also those that are mapped, or read as a stream."""
    data = bytearray(a_zip({"1.jpg": IMAGE, name: b'<annotations a="%s"/>' % (b" " * 99)}, method))
    data[data.index(name.encode()) + len(name) + 17] ^= 1
    tree, _ = found(bytes(data), "s.zip")
    with pytest.raises(PackerError, match="is damaged in its archive"):
        open_source(f"{kind}:{name}", tree, SourceOptions())


def test_a_zip_whose_first_member_begins_before_it(found):
    data = bytearray(a_zip({"a.jpg": IMAGE}))
    end = data.rindex(b"PK\x05\x06")
    data[end + 16 : end + 20] = struct.pack("<L", struct.unpack("<L", data[end + 16 : end + 20])[0] + 9)
    with pytest.raises(UsageError, match="is damaged"):
        found(bytes(data), "s.zip")


@pytest.mark.parametrize(("count", "spec"), [(1, "none"), (2, "none"), (3, "folder")])
def test_archives_are_classes_only_if_each_has_several_images(tmp_path, count, spec):
    """As ImageNet has a tar for each class; two zips of downloads are none."""
    for name, images in (("cat", count), ("dog", 9)):
        (tmp_path / f"{name}.zip").write_bytes(a_zip({f"{name}{i}.jpg": IMAGE for i in range(images)}))
    tree, _ = find_tree(str(tmp_path))
    assert recognize(tree, SourceOptions()).spec == spec
