"""Masks over their images, in the page and in sheets: the color of each class, hatching where pixels are ignored."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from drawn_masks import draw_mask, image_of, picture, write_files
from PIL import Image, ImageColor

import packer
from packer import BuildOptions, build_pack
from packer.view.export import color_of, export
from packer.view.facts import record_facts, tile_facts
from packer.view.pictures import color_of_class

NAMES = ("background", "ant", "bee & <b>", "cat")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> packer.Pack:
    """Three images of 40x30; a corner of each mask is ignored."""
    home, files = tmp_path_factory.mktemp("view"), {"classes.txt": "\n".join(NAMES).encode()}
    for seed in range(3):
        mask = draw_mask(seed)
        files[f"images/im{seed}.png"] = image_of(mask)
        mask[:6, :6] = 255
        files[f"masks/im{seed}.png"] = picture(mask)
    build_pack(BuildOptions(str(write_files(home / "set", files)), str(home / "set.lmdb"), workers=1))
    return packer.open_pack(home / "set.lmdb")


def laid_over(uri: str) -> np.ndarray:
    assert uri.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_each_class_has_its_color(pack: packer.Pack) -> None:
    for record in range(3):
        facts, mask = record_facts(pack, record), pack.mask(record)
        over = laid_over(facts["mask"])
        for number in range(4):
            assert {tuple(pixel) for pixel in over[mask == number].tolist()} <= {(*color_of_class(number), 140)}
        ignored = {tuple(pixel) for pixel in over[mask == 255].tolist()}
        assert ignored == {(0, 0, 0, 0), (255, 255, 255, 255)}
        rows = {number: (name, share) for number, name, share in facts["mask_ids"]}
        assert rows[255] == ("ignored", 3.0) and rows[0][0] == "background"
        assert abs(sum(share for _, share in rows.values()) - 100) < 0.5


def test_colors_are_those_of_boxes() -> None:
    for number in range(40):
        css = ImageColor.getrgb(re.sub(r"hsl\((\d+) (\d+)% (\d+)%\)", r"hsl(\1, \2%, \3%)", color_of(number)))
        assert max(abs(a - b) for a, b in zip(css, color_of_class(number), strict=True)) <= 3


def test_large_masks_are_small_over_tiles(tmp_path: Path) -> None:
    mask = np.kron(draw_mask(1), np.ones((20, 20), np.uint8))
    files = {"images/a.png": image_of(mask), "masks/a.png": picture(mask)}
    files |= {"images/b.png": image_of(mask), "masks/b.png": picture(mask)}
    build_pack(BuildOptions(str(write_files(tmp_path / "set", files)), str(tmp_path / "set.lmdb"), workers=1))
    pack = packer.open_pack(tmp_path / "set.lmdb")
    assert laid_over(tile_facts(pack, 0)["mask"]).shape == (192, 256, 4)
    assert laid_over(record_facts(pack, 0)["mask"]).shape == (600, 800, 4)


def test_a_sheet_shows_masks_and_their_classes(pack: packer.Pack, tmp_path: Path) -> None:
    export(pack, tmp_path / "sheet.html", 3)
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("image-rendering:pixelated") == 3
    assert "bee &amp; &lt;b&gt;" in page and "<b>" not in page and "ignored" not in page
