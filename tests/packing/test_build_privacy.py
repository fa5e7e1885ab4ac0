"""What a pack tells of the machine that built it, and of the camera: docs/threats.md says so."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from drawn import pixels
from PIL import ExifTags, Image
from running import good

from packer.containers import container_names

MODEL = b"A camera of somebody"


def draw(folder: Path) -> Path:
    """Images with the metadata of a camera, and a table of labels elsewhere."""
    folder.mkdir()
    exif = Image.Exif()
    exif[ExifTags.Base.Model] = MODEL.decode()
    for i in range(3):
        Image.fromarray(pixels(i)).save(folder / f"{i}.jpg", exif=exif)
    return folder


def contents(pack: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(pack.iterdir()))


@pytest.mark.parametrize(("encode", "has_it"), [("raw", False), ("jpeg", False), ("png", False), ("copy", True)])
def test_what_a_camera_wrote_stays_in_copies_only(encode: str, has_it: bool, tmp_path: Path) -> None:
    good("build", draw(tmp_path / "src"), "-o", tmp_path / "p", "--encode", encode)
    assert (MODEL in contents(tmp_path / "p")) == has_it


@pytest.mark.parametrize("container", container_names())
def test_a_pack_names_no_machine_and_no_folder_above_its_source(container: str, tmp_path: Path) -> None:
    source = draw(tmp_path / "src")
    (tmp_path / "names.csv").write_text("path,label\n0.jpg,a\n1.jpg,b\n2.jpg,a\n", "ascii")
    labels = f"list:{tmp_path / 'names.csv'}"
    good("build", source, "-o", tmp_path / "p", "--format", container, "--labels", labels)
    found = contents(tmp_path / "p")
    assert str(tmp_path).encode() not in found and socket.gethostname().encode() not in found
