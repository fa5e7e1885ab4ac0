"""Functions that take any bytes as a zip or a tar."""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

from packer.errors import BadInput, UsageError
from packer.files.tar_members import one_by_one, tar_members
from packer.files.zip_members import members_by_zipfile, plain_files, zip_members
from packer.sources.coco_file import JsonMap
from packer.sources.tree import find_tree, read_file

TAR_MAGIC = b"ustar"
MOST_MEMBER_BYTES = 1 << 20


def _tar(format: int, **pax: str) -> bytes:
    """A tar with a file, a folder, a link and a long name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        files = (("a/1.jpg", b"0", ""), ("b", b"5", ""), ("l.jpg", b"2", "a/1.jpg"), ("n" * 120, b"0", ""))
        for name, kind, target in files:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size, info.pax_headers = kind, target, 9 * (kind == b"0"), pax
            tar.addfile(info, io.BytesIO(b"\xff\xd8\xffimage."))
    return file.getvalue().rstrip(b"\0") + bytes(2048 - len(file.getvalue().rstrip(b"\0")) % 512)


def _zip(method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name in ("a/1.jpg", "é.jpg", "b/", "n.tar"):
            made.writestr(zipfile.ZipInfo(name), b"" if name == "b/" else b"\xff\xd8\xffimage" * 9)
    return file.getvalue()


ARCHIVES = [
    *(b"\0" + _tar(format) for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)),
    b"\0" + _tar(tarfile.PAX_FORMAT, path="p" * 130, comment="x"),
    b"\1" + _zip(zipfile.ZIP_STORED),
    b"\1" + _zip(zipfile.ZIP_DEFLATED),
    b"\0" + _tar(tarfile.GNU_FORMAT)[:700],
    b"\1" + _zip(zipfile.ZIP_STORED)[:-30],
    b"\1",
]


def _as_archive(data: bytes) -> tuple[bool, bytes]:
    """Whether it is a zip, and its bytes; the checksums of a tar are made anew."""
    choice, archive = data[0] if data else 0, bytearray(data[1:])
    for at in range(0, len(archive) - 511, 512) if not choice & 1 else ():
        if archive[at + 257 : at + 262] == TAR_MAGIC:
            archive[at + 148 : at + 156] = b" " * 8
            archive[at + 148 : at + 156] = b"%06o\0 " % sum(archive[at : at + 512])
    return bool(choice & 1), bytes(archive)


def read_members(data: bytes) -> str:
    """The list of a zip or a tar."""
    is_zip, archive = _as_archive(data)

    def read(size: int, start: int) -> bytes:
        assert size >= 0 and start >= 0
        return archive[start : start + size]

    size, outcome = len(archive), "refused"
    try:
        listed = zip_members(io.BytesIO(archive), read, size, "x") if is_zip else tar_members(read, size, "x")
        if is_zip and (plain := plain_files(read, size)) is not None:
            same = members_by_zipfile(io.BytesIO(archive), read, size, "x")
            assert list(one_by_one(iter([plain]))) == list(same)
        for member in one_by_one(listed):
            length = member.size if member.packed < 0 else member.packed
            assert 0 <= member.offset <= member.offset + length <= size, member
            outcome = "read"
    except UsageError:
        return "refused"
    return outcome


def read_archive(data: bytes) -> str:
    """All members of a zip or a tar."""
    is_zip, archive = _as_archive(data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.zip" if is_zip else "x.tar")
        path.write_bytes(archive)
        try:
            tree, skipped = find_tree(str(path))
        except UsageError:
            return "refused"
        for member in (*tree.images, *tree.files):
            assert b".." not in member.split(b"/") and not member.startswith(b"/"), member
            with suppress(BadInput):
                assert len(read_file(tree, member, MOST_MEMBER_BYTES)) <= len(archive) * 1100
            with suppress(UsageError):
                JsonMap(tree, member, "").members(["images"])
        assert [name.name for name in Path(folder).iterdir()] == [path.name]
    return "read" if tree.images and not skipped else "refused"
