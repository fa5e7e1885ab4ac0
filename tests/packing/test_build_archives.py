"""A pack of an archive is the pack of the folder that it holds, byte for byte; nothing is unpacked."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from drawn import draw_classes, tree_state
from running import digests, good, refused

from packer.errors import StorageError
from packer.packing import BuildOptions, build_pack
from packer.packing.publish import Output
from packer.system.locks import LOCK

FORMATS = ("lmdb", "tfrecord", "webdataset", "hdf5")
SMALL = ["--shard-size", "12KB"]


def as_zip(folder: Path, to: Path, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(to, "w", method) as made:
        for path in sorted(folder.rglob("*"), reverse=True):
            made.write(path, path.relative_to(folder))
    return to


def as_tar(folder: Path, to: Path) -> Path:
    with tarfile.open(to, "w") as tar:
        tar.add(folder, ".")
    return to


def compressed(folder: Path, to: Path, compress: Callable[[bytes], bytes]) -> Path:
    plain = as_tar(folder, to.with_name("plain.tar"))
    to.write_bytes(compress(plain.read_bytes()))
    plain.unlink()
    return to


def tars(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        if path.is_dir():
            as_tar(path, to / f"{path.name}.tar")
        else:
            shutil.copy(path, to)
    return to


def tar_of_tars(folder: Path, to: Path) -> Path:
    as_tar(tars(folder, to.with_name("parts")), to)
    shutil.rmtree(to.with_name("parts"))
    return to


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


ARCHIVES: dict[str, Callable[[Path, Path], Path]] = {
    "set.zip": as_zip,
    "deflated.zip": lambda folder, to: as_zip(folder, to, zipfile.ZIP_DEFLATED),
    "set.tar": as_tar,
    "set.tar.gz": lambda folder, to: compressed(folder, to, gzip.compress),
    "set.txz": lambda folder, to: compressed(folder, to, lzma.compress),
    "set.tar.zst": lambda folder, to: compressed(folder, to, zstd),
    "imagenet.tar": tar_of_tars,
    "folder": tars,
}


@cache
def made_of_folder(folder: Path, *options: str) -> dict[str, str]:
    """The digests of its pack, which is made once."""
    with tempfile.TemporaryDirectory() as home:
        return made_of(folder, Path(home, "pack"), *options)


def made_of(source: Path, out: Path, *options: str) -> dict[str, str]:
    good("build", source, "-o", out, *options)
    return {name: digest for name, digest in digests(out).items() if name != "pack.json"}  # names the list


def same_packs(folder: Path, archive: Path, *options: str) -> None:
    made = made_of(archive, archive.with_name(f"{archive.name}.pack"), *options)
    assert made == made_of_folder(folder, *options) and len(made) > 3


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("labels", ["classes", "voc", "faces"])
def test_the_same_bytes_as_of_the_folder(sources: Path, tmp_path: Path, name: str, labels: str) -> None:
    archive = ARCHIVES[name](sources / labels, tmp_path / name)
    before = tree_state(tmp_path)
    a_list = ["--labels", "list:landmarks.txt", "--columns", "path x*5 y*5"]
    same_packs(sources / labels, archive, *SMALL, *(a_list if labels == "faces" else []))
    after = tree_state(tmp_path)
    assert {path: state for path, state in after.items() if b".pack" not in path} == before


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["deflated.zip", "imagenet.tar"])
def test_every_container_shuffled_and_copied(sources: Path, tmp_path: Path, name: str, format: str) -> None:
    archive = ARCHIVES[name](sources / "classes", tmp_path / name)
    same_packs(sources / "classes", archive, *SMALL, "--format", format, "--shuffle", "3", "--encode", "copy")


@pytest.mark.workers
def test_in_worker_processes(sources: Path, tmp_path: Path) -> None:
    archive = ARCHIVES["set.tar.gz"](sources / "voc", tmp_path / "set.tar.gz")
    same_packs(sources / "voc", archive, *SMALL, "--workers", "2")


def test_the_name_of_the_pack_and_a_dry_run(sources: Path, tmp_path: Path) -> None:
    as_zip(sources / "classes", tmp_path / "set.zip")
    archive = ARCHIVES["set.tar.gz"](sources / "classes", tmp_path / "pets.tar.gz")
    assert "plan: 15 images" in good("build", archive, "--dry-run").out
    assert sorted(os.listdir(tmp_path)) == ["pets.tar.gz", "set.zip"]
    good("build", archive)
    assert sorted(os.listdir(tmp_path)) == ["pets.lmdb", "pets.tar.gz", "set.zip"]


@pytest.mark.parametrize("name", ["set.zip", "set.tar.gz"])
def test_a_build_resumes_and_packs_again_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = draw_classes(tmp_path / "set")
    archive = ARCHIVES[name](folder, tmp_path / name)
    options = BuildOptions(str(archive), str(tmp_path / "p"), labels=("folder",), shard_bytes=12_000)

    def full(*_: object) -> None:
        raise StorageError("", "full")

    with monkeypatch.context() as patch:
        patch.setattr(Output, "publish", full)
        with pytest.raises(StorageError, match="full"):
            build_pack(options)
    left = {*os.listdir(tmp_path / "p.partial")} - {LOCK}
    assert left == {"journal", "pack"}, "and no decompressed copy"
    image = folder / "bee" / "002.jpg"
    data = bytearray(image.read_bytes())
    data[300] ^= 1  # in the tables: of the same size, and other pixels
    image.write_bytes(data)
    archive.unlink()
    ARCHIVES[name](folder, archive)
    notes: list[str] = []

    class Notes:
        def stage(self, name: str, total: int | None = None) -> None: ...
        def advance(self, done: int, bad: int = 0) -> None: ...
        def note(self, text: str) -> None:
            notes.append(text)

    build_pack(options, Notes())  # type: ignore[arg-type]
    assert any("1 packed again: their inputs or files have changed" in note for note in notes), notes
    build_pack(BuildOptions(str(folder), str(tmp_path / "q"), labels=("folder",), shard_bytes=12_000))
    assert digests(tmp_path / "p") == digests(tmp_path / "q")


def test_bad_members_are_rejected_by_name(sources: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as made:
        made.write(sources / "plain" / "000.jpg", "a.jpg")
        made.write(sources / "plain" / "001.jpg", "../b.jpg")
    line = refused_lines("build", tmp_path / "s.zip", "-o", tmp_path / "p", "--labels", "none")
    assert '../b.jpg: cannot be read: has ".." in its name: unpack the archive' in line
    good("build", tmp_path / "s.zip", "-o", tmp_path / "p", "--labels", "none", "--max-bad", "1")


def refused_lines(*arguments: object) -> str:
    from running import run

    ran = run(*arguments)
    assert ran.code == 1, ran
    return ran.err


@pytest.mark.parametrize("format", FORMATS)
def test_an_output_whose_name_is_not_utf_8(sources: Path, tmp_path: Path, format: str) -> None:
    out = os.fsdecode(os.fsencode(tmp_path) + b"/out\xff")
    os.mkdir(out)
    good("build", sources / "classes", "-o", f"{out}/p", "--format", format, "--workers", 1)
    good("verify", f"{out}/p", "--deep")


def test_one_line_for_what_is_no_source(sources: Path, tmp_path: Path) -> None:
    good("build", sources / "classes", "-o", tmp_path / "p")
    assert "is a pack, not a folder of images; give the folder of its images" in refused(2, "build", tmp_path / "p")
    assert "is one image; give the folder" in refused(2, "build", sources / "plain" / "000.jpg", "-o", tmp_path / "q")
    assert "is a list" in refused(2, "build", sources / "faces" / "landmarks.txt", "-o", tmp_path / "q")
