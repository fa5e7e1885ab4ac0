"""A pack of a source in a store is the pack of the folder, byte for byte."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawn import draw_classes, image_file
from running import digests, good
from test_build_archives import as_tar, as_zip, compressed

pytest.importorskip("obstore", reason="needs obstore (packer[remote])")

from packer import open_pack
from packer.model.annotation import Progress
from packer.packing import BuildOptions, build_pack
from packer.packing.make_record import Recipe
from packer.packing.publish import Output
from packer.stores.obstore import ObstoreStore

CHOICES: dict[str, tuple[str, list[Any]]] = {
    "raw": ("classes", []),
    "copy": ("classes", ["--encode", "copy", "--shard-size", "4KB"]),
    "one shape": ("plain", ["--resize", "9x7", "--labels", "none", "--shuffle", 3, "--shard-size", "1KB"]),
    "one shape, jpeg": ("classes", ["--resize", 12, "--fit", "pad", "--encode", "jpeg", "--mode", "gray"]),
    "voc": ("voc", ["--resize", 16, "--encode", "png"]),
    "two sources": ("shots", ["--labels", "voc", "--labels", "list:landmarks.txt", "--columns", "path (x y)*5 label"]),
    "odd images": ("odd", ["--encode", "copy", "--labels", "folder"]),
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of which a mode loses something, and that are turned."""
    root = tmp_path_factory.mktemp("odd") / "odd"
    draw_classes(root)
    (root / "ant" / "gray.png").write_bytes(image_file(1, format="PNG"))
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 30), (200, 10, 10)).save(root / "ant" / "turned.jpg", exif=exif)
    Image.new("RGBA", (40, 30), (200, 10, 10, 99)).save(root / "bee" / "alpha.png")
    Image.new("CMYK", (40, 30)).save(root / "bee" / "cmyk.jpg")
    return root


@pytest.mark.parametrize("choice", CHOICES)
def test_the_same_bytes(sources: Path, odd: Path, tmp_path: Path, choice: str) -> None:
    name, options = CHOICES[choice]
    source = odd if name == "odd" else sources / name
    good("build", source, "-o", tmp_path / "a", *options)
    good("build", f"file://{source}", "-o", tmp_path / "b", *options)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    good("verify", tmp_path / "b", "--deep")


def as_tgz(folder: Path, to: Path) -> Path:
    return compressed(folder, to, gzip.compress)


@pytest.mark.parametrize("make", [as_zip, as_tar, as_tgz])
def test_archives(sources: Path, tmp_path: Path, make: Callable[[Path, Path], Path]) -> None:
    (tmp_path / "src").mkdir()
    archive = make(sources / "voc", tmp_path / "src" / f"voc.{make.__name__[3:]}")
    good("build", archive, "-o", tmp_path / "a")
    good("build", f"file://{archive}", "-o", tmp_path / "b")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    good("build", archive.parent, "-o", tmp_path / "a", "--overwrite")
    good("build", f"file://{archive.parent}", "-o", tmp_path / "b", "--overwrite")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_a_parquet_file(sources: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted((sources / "plain").iterdir())
    rows = [{"image": {"bytes": file.read_bytes(), "path": file.name}, "label": i % 2} for i, file in enumerate(files)]
    (tmp_path / "src").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "src" / "a.parquet")
    good("build", tmp_path / "src" / "a.parquet", "-o", tmp_path / "a")
    good("build", f"file://{tmp_path}/src/a.parquet", "-o", tmp_path / "b")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


class At(Progress):
    """Calls something when a stage begins."""

    def __init__(self, stage: str, call: Callable[[], object]) -> None:
        self._stage, self._call = stage, call

    def stage(self, name: str, total: int | None = None, unit: str = "images") -> None:
        if name == self._stage:
            self._call()


@pytest.mark.parametrize("encode", ["copy", "raw"])
def test_objects_that_vanish_or_change_are_rejected(tmp_path: Path, encode: str) -> None:
    source = draw_classes(tmp_path / "src")
    gone, changed = sorted((source / "ant").iterdir())[:2]
    reads = At("packing", lambda: (gone.unlink(), os.utime(changed, (1, 1))))
    options = {"encode": encode, "on_bad": "skip", "workers": 1}
    summary = build_pack(BuildOptions(f"file://{source}", str(tmp_path / "p"), **options), reads)
    rejected = {row.path: row.problem for row in summary.manifest.rejected}
    assert rejected.keys() == {f"ant/{gone.name}", f"ant/{changed.name}"}
    assert "vanished" in rejected[f"ant/{gone.name}"]
    assert "changed while the source was being read" in rejected[f"ant/{changed.name}"]
    assert summary.manifest.records == 13


def test_bad_images_are_found_late(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src")
    (source / "ant" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    (source / "ant" / "text.jpg").write_bytes(b"no image at all, but a text")
    for name, url in (("a", str(source)), ("b", f"file://{source}")):
        build_pack(BuildOptions(url, str(tmp_path / name), encode="copy", on_bad="skip", workers=1))
    here, there = open_pack(tmp_path / "a").manifest, open_pack(tmp_path / "b").manifest
    assert here.rejected == there.rejected and len(here.rejected) == 2
    assert (here.records, here.shape, here.notes[1:]) == (there.records, there.shape, there.notes[1:])
    from running import run

    ran = run("build", f"file://{source}", "-o", tmp_path / "c", "--encode", "copy")
    assert ran.code == 1 and "2 of 17 inputs are bad" in ran.err


def test_a_resumed_build_reads_no_object_of_a_finished_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = draw_classes(tmp_path / "src")
    options = BuildOptions(f"file://{source}", str(tmp_path / "p"), encode="copy", shard_bytes=3000, workers=1)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Output, "publish", fail)
        with pytest.raises(KeyboardInterrupt):
            build_pack(options)
    read: list[str] = []
    real = ObstoreStore.read

    def counted(self: ObstoreStore, name: str, *more: Any, **given: Any) -> Any:
        read.append(name)
        return real(self, name, *more, **given)

    monkeypatch.setattr(ObstoreStore, "read", counted)
    changed = sorted((source / "cat").iterdir())[-1]
    os.utime(changed, (1, 1))
    build_pack(options)
    assert 0 < len(read) < 15 and any(os.fspath(changed).endswith(name) for name in read)  # in threads: in any order
    shutil.rmtree(tmp_path / "p")
    build_pack(options)
    assert open_pack(tmp_path / "p").manifest.records == 15


def test_images_are_read_ahead_and_in_order(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src", each=60)
    recipe = Recipe(f"file://{source}".encode(), "rgb", "auto", 10**6, None, "copy", 90)
    from packer.packing.make_record import InputRow

    files = sorted(source.rglob("*.*"))
    rows = [InputRow(os.fsencode(file.relative_to(source)), file.stat().st_size, 1, 1, -1, etag="") for file in files]
    assert [(row, read().image) for row, read in recipe.reads(iter(rows))] == [
        (row, file.read_bytes()) for row, file in zip(rows, files, strict=True)
    ]
