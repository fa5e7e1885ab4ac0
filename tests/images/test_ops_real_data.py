"""Real files: each decodes to what its header says and Pillow shows, or is refused with a reason."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest
from ops_images import STRICT, difference, needs, pillow_pixels

from packer.errors import BadImage
from packer.images.decode import Decoder, decode
from packer.images.header import Mode, decoded_shape, losses, read_header
from packer.images.opencv import quiet_opencv

MODES: tuple[Mode, ...] = ("rgb", "gray", "unchanged")


@pytest.mark.parametrize("scene", ["Landscape", "Portrait"])
def test_all_orientations_show_the_same_scene(real_data: Path, scene: str) -> None:
    def upright(orientation: int, decoder: Decoder) -> np.ndarray:
        data = (real_data / "odd" / "exif" / f"{scene}_{orientation}.jpg").read_bytes()
        header = read_header(data)
        assert header.orientation == max(1, orientation)
        image = decode(data, decoder=decoder, at_least=(200, 200), header=header)
        assert (image.shape[1] > image.shape[0]) == (scene == "Landscape")
        return cv2.resize(image, (90, 90), interpolation=cv2.INTER_AREA).astype(float)

    expected = upright(1, "auto")
    # each file has the number of its orientation drawn on it, so the scenes differ a little
    for orientation in range(9):
        assert np.abs(upright(orientation, "auto") - expected).mean() < 6
        assert np.abs(upright(orientation, "opencv") - expected).mean() < 6
    assert np.abs(expected[:, ::-1] - expected).mean() > 20


@pytest.mark.parametrize("decoder", STRICT)
@quiet_opencv()
def test_every_odd_file_is_decoded_or_refused_with_a_reason(
    real_data: Path, decoder: Decoder, capfd: pytest.CaptureFixture[str]
) -> None:
    needs(decoder)
    decoded, refused = [], {}
    for path in sorted((real_data / "odd").rglob("*")):
        if not path.is_file() or path.parent.name == "exif":
            continue
        data = path.read_bytes()
        for mode in MODES:
            begin = time.thread_time()
            try:
                image = decode(data, mode, decoder)
            except BadImage as error:
                refused[path.name] = str(error)
                assert time.thread_time() - begin < 0.5
                continue
            header = read_header(data)
            height, width, channels, dtype = decoded_shape(header, mode)
            assert (image.shape, image.dtype) == ((height, width, channels), dtype), path.name
            decoded.append(path.name)
            if dtype == "uint16" and channels > 1:
                image = (image >> 8).astype(np.uint8)  # Pillow has no 16-bit colour
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's about palettes with transparency
                expected = pillow_pixels(data, channels, deep=image.dtype == np.uint16)
            if header.hidden_alpha:
                assert "alpha dropped" in losses(header, mode)
            assert difference(image, expected) <= (2 if header.format == "jpeg" else 1), (path.name, mode)
    assert capfd.readouterr() == ("", "")
    assert not set(decoded) & set(refused)
    assert {name for name in refused if name.startswith("x")} == {
        path.name for path in (real_data / "odd" / "pngsuite").glob("x*.png")
    }
    for name, reason in {
        "giant-image.jpg": "20000x14000 pixels are more than",
        "65536-uint32-limit.png": "65536x65536 pixels are more than",
        "monkey12.jpg": "12-bit",
        "truncated.jpg": "10000 bytes",
        "truncated.png": "truncated",
        "truncated_image.png": "truncated",
        "truncated_jpeg.jpg": "truncated",
        "corrupt-header.jpg": "truncated",
        "junk_jpeg_header.jpg": "stray bytes",
        "truncated_app14.jpg": "stray bytes",
        "photoshop-200dpi-broken.jpg": "stray bytes",
        "LICENSE.txt": "not an image",
    }.items():
        assert reason in refused[name]
    for name in (
        "testorig.ppm",
        "testimgari.jpg",
        "stray_byte_after_eoi.jpg",
        "pil_sample_cmyk.jpg",
        "vgl_6434_0018a.bmp",
    ):
        assert name in decoded


def test_ordinary_photos_decode_alike_with_every_decoder(real_data: Path) -> None:
    needs("jpeg4py")
    files = [path for path in sorted((real_data / "photos").rglob("*")) if path.suffix.lower() == ".jpeg"]
    for path in files[::6]:
        data = path.read_bytes()
        images = [decode(data, decoder=decoder) for decoder in ("auto", "opencv", "jpeg4py")]
        assert difference(images[0], pillow_pixels(data, 3)) <= 2
        assert difference(images[0], images[1]) <= 1
        assert difference(images[0], images[2]) <= 1


@pytest.mark.parametrize("folder", ["photos", "voc_bccd", "yolo_coco128", "list_landmarks", "folder_cifar10"])
def test_ordinary_headers_are_read_from_the_first_bytes(real_data: Path, folder: str) -> None:
    files = [p for p in sorted((real_data / folder).rglob("*")) if p.suffix.lower() in (".jpg", ".jpeg")]
    assert len(files) > 100
    for path in files[::7]:
        data = path.read_bytes()
        header = read_header(data[: 1 << 16], complete=False)
        assert header == read_header(data)
        assert decode(data).shape[1::-1] == header.upright_size
