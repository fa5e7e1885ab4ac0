"""Headers of large files, of which only a little is read: the same as of all their bytes, and safe if they shrink."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.errors import BadImage
from packer.images.header import IncompleteHeader, read_header
from packer.packing import make_record
from packer.packing.make_record import read_file_header
from packer.sources import places
from packer.sources.places import FileView

FORMATS: dict[str, dict[str, Any]] = {
    "PNG": {"compress_level": 0},
    "TIFF": {},
    "WEBP": {"lossless": True},
    "GIF": {},
    "JPEG": {"quality": 100},
}


def tiff(pixels: Any) -> bytes:
    """A TIFF with its directory behind its pixels, as libtiff writes it."""
    height, width, channels = pixels.shape
    end = 8 + pixels.nbytes
    fields = [
        (256, width), (257, height), (258, end), (259, 1), (262, 2), (273, 8), (274, 6), (277, channels), (278, height),
        (279, pixels.nbytes),
    ]  # fmt: skip
    entries = b"".join(
        struct.pack("<HHII", tag, 3, 3, value) if tag == 258 else struct.pack("<HHII", tag, 4, 1, value)
        for tag, value in fields
    )
    bits = struct.pack("<HHH", 8, 8, 8)
    directory = struct.pack("<H", len(fields)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", end + len(bits)) + pixels.tobytes() + bits + directory


@pytest.fixture(params=FORMATS)
def large(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """More than 256 KB of noise, whose header does not lie in the first 16 KB."""
    noise = np.random.default_rng(3).integers(0, 256, (500, 400, 3), np.uint8)
    image, exif, file = Image.fromarray(noise), Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    exif[0x010E] = "x" * 30_000
    if request.param == "TIFF":
        file.write(tiff(noise))
    else:
        image.save(file, request.param, **FORMATS[request.param], **({} if request.param == "GIF" else {"exif": exif}))
    path = tmp_path / "large"
    path.write_bytes(file.getvalue())
    assert path.stat().st_size > make_record.READ_WHOLE_BYTES
    with pytest.raises(IncompleteHeader):
        read_header(file.getvalue()[: make_record.HEAD_BYTES], complete=False)
    return path


def test_as_of_the_whole_bytes(large: Path) -> None:
    header, size = read_file_header(os.fsencode(large))
    data = large.read_bytes()
    assert (header, size) == (read_header(data), len(data))
    assert header.orientation == (1 if header.format == "gif" else 6)


def test_a_file_that_shrinks_under_the_reader(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it mapped, it would be a SIGBUS."""
    begin = FileView.__init__

    def shrunk(self: FileView, *facts: Any) -> None:
        os.truncate(large, 17_000)
        begin(self, *facts)

    monkeypatch.setattr(FileView, "__init__", shrunk)
    with pytest.raises(BadImage, match="changed while the source was being read"):
        read_file_header(os.fsencode(large))


def test_a_file_that_the_disk_does_not_give(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(places, "read_at", broken)
    with pytest.raises(BadImage, match="cannot be read: Input/output error"):
        read_file_header(os.fsencode(large))
