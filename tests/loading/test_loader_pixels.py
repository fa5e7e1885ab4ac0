"""Pixels stay under their labels in every encoding; JPEGs that were copied are read as those that packer made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from indexing import NATIVE
from loader_packs import alike
from packs import noise
from PIL import Image

from packer import BuildOptions, CenterCrop, PackedLoader, RandomResizedCrop, Resize, build_pack, open_pack
from packer.errors import DamagedPack
from packer.images.decode import orient
from packer.loading import decoding, fill

EXIF_ORIENTATION = 0x0112
BLOBS = 12


def saved(path, pixels, orientation=1, **options):
    """Write an upright image, stored turned."""
    back = {5: 5, 6: 8, 7: 7, 8: 6}.get(orientation, orientation)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(orient(pixels, back)).save(path, exif=exif, **options)


def drawn_blobs(root, large, turned):
    """A round spot on each image, and its centre as its landmark."""
    lines = []
    rng = np.random.default_rng(5)
    for i in range(BLOBS):
        width, height = (803 + 3 * i, 601 + 5 * i) if large else (127 + i, 93 + 2 * i)
        x, y = rng.uniform(0.4, 0.6) * width, rng.uniform(0.4, 0.6) * height
        radius = height / 12
        distance = ((np.arange(width) + 0.5 - x) ** 2)[None] + ((np.arange(height) + 0.5 - y) ** 2)[:, None]
        light = 20 + 200 * np.exp(-distance / (2 * radius**2))
        pixels = np.repeat(np.rint(light).astype(np.uint8)[..., None], 3, axis=2)
        saved(root / "images" / f"{i:02}.jpg", pixels, 1 + i % 8 if turned else 1, quality=95, subsampling=i % 3)
        lines.append(f"images/{i:02}.jpg {x} {y}")
    (root / "centres.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    """blobs(encode, large, turned): the directory of a pack of spots."""
    home = tmp_path_factory.mktemp("blobs")

    def make(encode, large, turned):
        source, out = home / f"{large}{turned}", home / f"{encode}{large}{turned}.lmdb"
        if not source.exists():
            drawn_blobs(source, large, turned)
        if not out.exists():
            labels = (f"list:{source / 'centres.txt'}",)
            options = {"labels": labels, "columns": ("path x y",), "encode": encode}
            build_pack(BuildOptions(str(source), str(out), workers=1, **options))
        return out

    return make


def centre_of(image):
    """x, y of the bright spot of an image (3, height, width), None if the edge cuts it."""
    light = image.double().mean(0).numpy() - 20
    light = np.clip(light - light.max() / 10, 0, None)  # without the JPEG's noise around it
    height, width = light.shape
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    edges = np.concatenate([light[0], light[-1], light[:, 0], light[:, -1]])
    return None if edges.any() else np.array([light.sum(0) @ x, light.sum(1) @ y]) / light.sum()


@dataclass(frozen=True)
class Within:
    """A crop of the caller's own, whose edges lie within pixels; `around`: so much of the sides reaches beyond them."""

    interpolation: str
    around: float = 0.0
    num_random: int = 2

    def output(self, shape):
        return 60, 72

    def regions(self, widths, heights, random):
        x, y = widths * (random[:, 0] / 4 - self.around), heights * (random[:, 1] / 4 - self.around)
        share = 0.7 + 2 * self.around
        return np.stack([x, y, widths * share, heights * share], axis=1)


@pytest.mark.parametrize("encode, turned, large", [
    ("raw", False, False), ("png", False, False), ("jpeg", True, False), ("jpeg", True, True), ("copy", True, True),
    pytest.param("jpeg", True, False, marks=NATIVE), pytest.param("jpeg", True, True, marks=NATIVE),
], ids=["raw", "png", "jpeg", "jpeg at a fraction", "copy at a fraction", "native", "native, fraction"])  # fmt: skip
@pytest.mark.parametrize("crop", [
    *(RandomResizedCrop(48, (0.3, 1.0), interpolation=name) for name in ("area", "bilinear", "fast")),
    RandomResizedCrop((150, 130), (0.3, 1.0)), CenterCrop(48, resize=56), CenterCrop(48, 56, "area"),
    CenterCrop(170, resize=150), Resize((40, 70)), Resize((40, 70), "area"), Within("area"), Within("bilinear"),
    CenterCrop((91, 170), resize=80), CenterCrop((91, 170), 80, "area"),
    *(Within(name, around=0.15) for name in ("area", "bilinear", "fast")),
], ids=str)  # fmt: skip
def test_a_spot_stays_on_its_landmark(blobs, encode, turned, large, crop):
    path, seen = blobs(encode, large, turned), 0
    for flip in (0.0, 1.0):
        for images, targets in PackedLoader(path, 5, crop=crop, flip=flip, seed=2, threads=1):
            for image, target in zip(images, targets, strict=True):
                if (centre := centre_of(image)) is not None:
                    assert np.abs(centre - target["landmarks"][0].numpy()).max() <= 0.05
                    seen += 1
    assert seen >= BLOBS


def test_scaled_decodes_happen_in_the_test_above(blobs, monkeypatch):
    factors = []
    decode_into = decoding.decode_into

    def watched(data, row, factor):
        factors.append(factor)
        decode_into(data, row, factor)

    monkeypatch.setattr(decoding, "decode_into", watched)
    for encode, turned in (("jpeg", True), ("copy", True)):
        list(PackedLoader(blobs(encode, True, turned), 5, crop=RandomResizedCrop(48, (0.3, 1.0))))
        assert {2, 4} & {*factors}
        factors.clear()


def mixed(root):
    """Files of all kinds, 20x16, of one class."""
    pixels = [noise(i, 16, 20) for i in range(8)]
    for i in range(3):
        saved(root / "all" / f"a{i}.jpg", pixels[i], quality=90)
    saved(root / "all" / "b.jpg", pixels[3], orientation=6)
    saved(root / "all" / "c.jpg", pixels[4], progressive=True)
    Image.fromarray(pixels[5]).convert("CMYK").save(root / "all" / "d.jpg")
    Image.fromarray(pixels[6]).convert("L").save(root / "all" / "e.jpg")
    Image.fromarray(pixels[7]).save(root / "all" / "f.png")


@pytest.fixture
def files(tmp_path):
    """A pack of copied files of all kinds."""
    mixed(tmp_path / "source")
    out = tmp_path / "pack.lmdb"
    build_pack(BuildOptions(str(tmp_path / "source"), str(out), encode="copy", workers=1))
    return out


@pytest.mark.parametrize("crop", [None, RandomResizedCrop(9), CenterCrop((12, 12))], ids=str)
def test_copied_files_are_what_the_pack_says(files, crop):
    """Read with the fewest checks, and with all of them, record by record."""
    pack = open_pack(files)
    whole = [torch.from_numpy(pack.image(i).copy()).permute(2, 0, 1) for i in range(len(pack))]
    for _ in range(2):
        if crop is None:
            images = torch.cat([images for images, _ in PackedLoader(files, 3)])
            assert torch.equal(images, torch.stack(whole))
        quick = list(PackedLoader(files, 3, crop=crop, seed=1))
        slow = list(PackedLoader(files, 3, crop=crop, seed=1, decoder="opencv"))
        for (here, _), (there, _) in zip(quick, slow, strict=True):
            assert (here.int() - there.int()).abs().max() <= 2  # OpenCV's own libjpeg, another way from CMYK to RGB


def test_the_header_of_a_copied_jpeg_is_read_once(files, monkeypatch):
    looked, decoded = [], []
    is_plain, decode = decoding.is_plain_jpeg, decoding.decode
    monkeypatch.setattr(decoding, "is_plain_jpeg", lambda *given: looked.append(is_plain(*given)) or looked[-1])
    monkeypatch.setattr(decoding, "decode", lambda *a, **k: decoded.append(1) or decode(*a, **k))
    loader = PackedLoader(files, 3, threads=1)
    first, second = list(loader), list(loader)
    assert alike(first, second)
    # turned, CMYK and PNG take the long way each time
    assert looked == [True] * 3 + [False, True, False, True, False] and len(decoded) == 2 * 3


@pytest.mark.parametrize("crop", [None, RandomResizedCrop(9)], ids=str)
@pytest.mark.parametrize("size", [(16, 20), (40, 32), (8, 10), (20, 16), (4000, 4000)], ids=str)
@pytest.mark.parametrize("encode", ["jpeg", "copy"])
def test_a_jpeg_of_another_size_than_the_index_says_is_damage(tmp_path, monkeypatch, encode, size, crop):
    """Nothing is written beyond its row: neither by one that says so, nor by one whose header was found good before."""
    import simplejpeg

    for i in range(3):
        saved(tmp_path / "source" / "all" / f"{i}.jpg", noise(i, 16, 20), quality=90)
    build_pack(BuildOptions(str(tmp_path / "source"), str(tmp_path / "pack"), encode=encode, workers=1))
    pack = open_pack(tmp_path / "pack")
    augmentation = fill.Augmentation(crop, 0.0, 0)
    filler = fill.ImageFiller(pack, augmentation)
    records = np.arange(3)
    rows = np.full((5, *filler.row_shape), 77, np.uint8)
    params = filler.params(records, 0)
    filler.fill(records, params, rows[1:4])
    good = rows.copy()
    other = simplejpeg.encode_jpeg(np.zeros((*size, 3), np.uint8))
    regions = [memoryview(bytes(part)) for part in decoding.data_of(pack, records)]
    regions[1] = memoryview(other)
    monkeypatch.setattr(decoding, "data_of", lambda pack, some: [regions[i] for i in some.tolist()])
    for known in (True, False):
        if not known:
            filler.row_decoder.__dict__.pop("_kinds", None)
        if size == (16, 20):
            filler.fill(records, params, rows[1:4])
        else:
            with pytest.raises(DamagedPack, match=r"record 00000001 .*cannot be decoded"):
                filler.fill(records, params, rows[1:4])
        assert np.array_equal(rows[[0, 4]], good[[0, 4]])
