"""Whole packs of the formats that Pillow reads: built, read in threads and processes, verified, counted and shown."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from PIL import Image, ImageOps
from running import good
from torch.utils.data import ConcatDataset, DataLoader

from packer import BuildOptions, PackedDataset, PackedLoader, Resize, build_pack, open_pack
from packer.containers import CONTAINERS
from packer.errors import TooManyBad
from packer.format.lists import read_list
from packer.format.manifest import read_manifest
from packer.format.salvage import repair
from packer.format.verify import verify
from packer.packing.recorded import command_of
from packer.stats import pack_stats
from packer.view.pictures import Pictures

HEIGHT, WIDTH = 24, 32
_Y, _X = np.mgrid[0:HEIGHT, 0:WIDTH]
RGB = np.stack([_X * 8, _Y * 10, (_X + _Y) * 4], axis=-1).astype(np.uint8)
KINDS = {"avif": "AVIF", "jp2": "JPEG2000", "j2k": "JPEG2000", "ppm": "PPM", "png": "PNG", "jpg": "JPEG"}
ANIMATED = {"gif": "GIF", "webp": "WEBP", "avif": "AVIF", "tif": "TIFF", "png": "PNG", "apng": "PNG"}


def pillow(path):
    with Image.open(path) as image:
        return np.asarray((ImageOps.exif_transpose(image) or image).convert("RGB"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A still image of each kind."""
    folder = tmp_path_factory.mktemp("formats") / "still"
    folder.mkdir()
    for number, (extension, kind) in enumerate(KINDS.items()):
        Image.fromarray(RGB + np.uint8(number)).save(folder / f"{number}.{extension}", kind)
    Image.fromarray(RGB).convert("L").save(folder / "6.pgm")
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(RGB).save(folder / "7.avif", exif=exif)
    Image.fromarray(RGB).convert("P").convert("PA").save(folder / "8.tif")
    return folder


@pytest.fixture(scope="module")
def animations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats") / "moving"
    folder.mkdir()
    for extension, kind in ANIMATED.items():
        frames = [Image.fromarray(RGB), Image.fromarray(255 - RGB)]
        frames[0].save(folder / f"a.{extension}", kind, save_all=True, append_images=frames[1:])
    return folder


def build(source, out, **options):
    options = {"labels": ("none",), "workers": 1, **options}
    return build_pack(BuildOptions(str(source), str(out), **options)).path


def same_as_files(pack, folder, tolerance=0):
    dataset = PackedDataset(pack)
    names = [os.fsdecode(path) for path in open_pack(pack).paths]
    assert names == sorted(os.listdir(folder))
    for name, (image, _) in zip(names, dataset, strict=True):
        expected = pillow(folder / name)
        allowed = 2 if name.endswith(("jpg", "webp")) else tolerance
        assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - expected).max() <= allowed, name


@pytest.mark.parametrize("container", sorted(CONTAINERS))
@pytest.mark.parametrize("encode", ["raw", "copy"])
def test_still_images_in_every_container(images, tmp_path, container, encode):
    pack = build(images, tmp_path / "p", format=container, encode=encode)
    same_as_files(pack, images)
    assert verify(pack, deep=True).problems == ()
    if encode == "copy":
        opened = open_pack(pack)
        assert [opened.reader.encoding_of(i) for i in range(9)] == [
            "avif", "jp2", "jp2", "pnm", "png", "jpeg", "pnm", "avif", "tiff"
        ]  # fmt: skip
        assert bytes(opened.record(0)) == (images / "0.avif").read_bytes()
        os.unlink(os.path.join(pack, opened.reader.shards[0].index.name))
        assert repair(pack, str(tmp_path / "repaired")).lost == ()
        same_as_files(str(tmp_path / "repaired"), images)


@pytest.mark.workers
def test_copies_are_read_in_threads_and_processes(images, animations, tmp_path):
    pack = build(images, tmp_path / "p", encode="copy")
    moving = build(animations, tmp_path / "q", encode="copy", on_animation="first")
    for path, count in ((pack, 9), (moving, 6)):
        crop = Resize((20, 30), interpolation="bilinear")
        (batch, _), *_ = PackedLoader(path, count, crop=crop, threads=3)
        again = torch_batch(PackedLoader(path, 2, crop=crop, threads=1))
        assert np.array_equal(batch.numpy(), again)
    both = ConcatDataset([PackedDataset(pack), PackedDataset(moving)])
    loader = DataLoader(both, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    for (image, _), number in zip(loader, range(len(both)), strict=True):
        assert np.array_equal(image.numpy(), both[number][0].numpy())


def torch_batch(loader):
    return np.concatenate([images.numpy() for images, _ in loader])


def test_copies_are_counted_shown_and_measured(images, animations, tmp_path):
    pack = build(images, tmp_path / "p", encode="copy")
    moving = build(animations, tmp_path / "q", encode="copy", on_animation="first", mode="unchanged")
    for path, count in ((pack, 9), (moving, 6)):
        stats = pack_stats(path)
        assert sum(kind.images for kind in stats.channels) == count
        pictures = Pictures(open_pack(path))
        for record in range(count):
            for side in (16, 400):
                assert pictures.uri(record, side).startswith("data:image/")
    assert verify(moving, deep=True).problems == ()


@pytest.mark.parametrize("encode", ["raw", "copy", "jpeg"])
def test_animations_are_refused_or_their_first_frame_is_packed(animations, tmp_path, encode):
    with pytest.raises(TooManyBad, match='take the first frame of animations with on_animation="first"') as error:
        build(animations, tmp_path / "p", encode=encode)
    assert [(reason, count) for reason, count, _ in error.value.reasons] == [("animation", 6)]
    pack = build(animations, tmp_path / "p", encode=encode, on_animation="first")
    if encode != "jpeg":
        same_as_files(pack, animations)
    manifest = read_manifest(pack)
    assert manifest.options["on_animation"] == "first"
    assert "--on-animation first" in command_of(manifest, pack)
    assert "all frames but the first dropped in 5 images" in manifest.notes
    assert "all pages but the first dropped in 1 image" in manifest.notes


def test_the_default_is_not_recorded(images, tmp_path):
    assert "on_animation" not in read_manifest(build(images, tmp_path / "p")).options


def damaged(folder):
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 99, (HEIGHT * 4, WIDTH * 4, 3), np.uint8)
    for extension, kind in (("jpg", "JPEG"), ("png", "PNG"), ("bmp", "BMP"), ("ppm", "PPM"), ("tif", "TIFF")):
        out = io.BytesIO()
        Image.fromarray(noise).save(out, kind)
        (folder / f"whole.{extension}").write_bytes(out.getvalue())
        (folder / f"cut.{extension}").write_bytes(out.getvalue()[: len(out.getvalue()) * 3 // 4])
    return folder


@pytest.mark.parametrize("encode", ["raw", "copy", "png"])
def test_lenient_packs_damaged_images_and_lists_them(tmp_path, encode):
    source = damaged(tmp_path / "src")
    with pytest.raises(TooManyBad, match="5 of 10 inputs are bad"):
        build(source, tmp_path / "p", encode=encode)
    pack = build(source, tmp_path / "p", encode=encode, decoder="lenient")
    manifest = read_manifest(pack)
    assert (manifest.counts["packed"], manifest.counts["lenient"], manifest.counts["changed"]) == (10, 5, 5)
    changed = list(read_list(pack, "changed"))
    assert [(row.path, row.change) for row in changed] == [
        (f"cut.{extension}", "lenient") for extension in ("bmp", "jpg", "png", "ppm", "tif")
    ]
    assert all("truncated" in row.before for row in changed)
    assert manifest.lenient == (encode == "copy")
    dataset = PackedDataset(pack)
    assert dataset[0][0].any() and len(dataset) == 10
    assert not np.array_equal(dataset[1][0].numpy(), dataset[6][0].numpy())  # a part of it is gray
    assert verify(pack, deep=True).problems == ()
    batches = torch_batch(PackedLoader(pack, 4))
    assert all(np.array_equal(batch, image.numpy()) for batch, (image, _) in zip(batches, dataset, strict=True))
    assert sum(kind.images for kind in pack_stats(pack).channels) == 10
    assert all(Pictures(open_pack(pack)).uri(i, 40) for i in range(10))
    again = build(source, tmp_path / "again", encode=encode, decoder="lenient", workers=2)
    assert read_manifest(again).shards == manifest.shards


def test_lenient_is_auto_for_good_images(images, tmp_path):
    strict, lenient = build(images, tmp_path / "a"), build(images, tmp_path / "b", decoder="lenient")
    assert read_manifest(strict).shards == read_manifest(lenient).shards
    assert read_manifest(strict).counts == read_manifest(lenient).counts


def test_commands(tmp_path):
    source = damaged(tmp_path / "src")
    pack = str(tmp_path / "p.lmdb")
    options = ("--labels", "none", "--encode", "copy", "--decoder", "lenient", "--workers", "1")
    done = good("build", source, *options, "-o", pack)
    assert (
        "images: 5 damaged, packed as far as they can be decoded (packer info --changed lists them)"
        in done.out + done.err
    )
    assert "cut.jpg: lenient: truncated JPEG" in good("info", pack, "--changed").out
    assert "--decoder lenient" in good("info", pack, "--command").out
    assert good("verify", pack, "--deep").out
