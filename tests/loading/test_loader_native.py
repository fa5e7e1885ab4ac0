"""The native decoder in the loader, against simplejpeg and OpenCV: the same whole images, nearly the same crops."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draw, image_file
from PIL import Image

from packer import BuildOptions, CenterCrop, PackedLoader, RandomResizedCrop, Resize, build_pack, join_packs, open_pack
from packer.errors import DamagedPack, UsageError
from packer.format.pack import Pack
from packer.images import fast

MODULE, REASON = fast.native()
native = pytest.mark.native
needs_module = pytest.mark.skipif(MODULE is None, reason=f"dataset-packer-fast {REASON}: scripts/test_fast.sh")
CROPS = (
    RandomResizedCrop(48), RandomResizedCrop((40, 56), interpolation="area"),
    RandomResizedCrop(48, interpolation="bilinear"),
    Resize((60, 44)), CenterCrop(40, resize=48), CenterCrop((31, 57)),
)  # fmt: skip
COUNT = 40


@dataclass(frozen=True)
class Within:
    """A crop of the caller's own, whose edges lie within pixels."""

    num_random: int = 2

    def output(self, shape: Any) -> tuple[int, int]:
        return 30, 36

    def regions(self, widths: Any, heights: Any, random: Any) -> Any:
        return np.stack([widths * random[:, 0] / 4, heights * random[:, 1] / 4, widths * 0.7, heights * 0.7], axis=1)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smooth pictures as JPEGs of all samplings and sizes; every fifth one is progressive."""
    home = tmp_path_factory.mktemp("native")
    for i in range(COUNT):
        options = {"subsampling": i % 3, "progressive": i % 5 == 4, "quality": 90}
        draw(home / "src" / "all" / f"{i:03d}.jpg", i, 60 + 3 * i, 130 - 2 * i, **options)
    return home


def pack_of(home: Path, **options: Any) -> Pack:
    out = home / "-".join(map(str, ["pack", *options.values()]))
    if not out.exists():
        build_pack(BuildOptions(str(home / "src"), str(out), workers=1, **options))
    return open_pack(out)


def images(pack: Any, decoder: str = "auto", batch: int = 7, **options: Any) -> torch.Tensor:
    loader = PackedLoader(pack, batch, decoder=decoder, **{"shuffle": True, "seed": 3, "threads": 2, **options})
    return torch.cat([images.clone() for images, *_ in loader])


def alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Nearly the same pictures: those of another decoder and another resize."""
    difference = (found.double() - expected.double()).abs()
    squares = (difference**2).mean(dim=(1, 2, 3)).clamp(min=1e-3)
    assert difference.mean() < 0.6 and float((10 * torch.log10(255**2 / squares)).median()) >= 50


@needs_module
@native
@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("encode", ["jpeg", "copy"])
@pytest.mark.parametrize("crop", CROPS, ids=str)
def test_crops_and_flips_are_those_of_others(sources: Path, crop: Any, encode: str, mode: str) -> None:
    pack = pack_of(sources, encode=encode, mode=mode)
    found, expected = (images(pack, name, crop=crop, flip=True) for name in ("fast", "simplejpeg"))
    alike(found, expected)
    assert torch.equal(found, images(pack, "auto", crop=crop, flip=True, threads=1))


@needs_module
@native
@pytest.mark.parametrize("encode", ["jpeg", "copy"])
def test_whole_images_are_the_same_to_the_last_bit(sources: Path, encode: str) -> None:
    pack = pack_of(sources, resize="48x40", encode="jpeg")
    assert torch.equal(images(pack, "fast", flip=True), images(pack, "simplejpeg", flip=True))
    assert np.array_equal(pack.image(3, "fast"), pack.image(3))


@needs_module
@native
def test_what_it_does_not_decode_is_decoded_by_others(tmp_path: Path) -> None:
    """PNG, CMYK, turned and odd ones among plain JPEGs, in their places."""
    for i in range(12):
        draw(tmp_path / "src" / "a" / f"{i:02d}.jpg", i, 90, 70)
    Image.open(tmp_path / "src" / "a" / "03.jpg").save(tmp_path / "src" / "a" / "03.png")
    Image.open(tmp_path / "src" / "a" / "05.jpg").convert("CMYK").save(tmp_path / "src" / "a" / "05c.jpg")
    turned = Image.open(tmp_path / "src" / "a" / "06.jpg")
    turned.getexif()[0x0112] = 6
    turned.save(tmp_path / "src" / "a" / "06t.jpg", exif=turned.getexif())
    pack = build_pack(BuildOptions(str(tmp_path / "src"), str(tmp_path / "p"), encode="copy", workers=1)).path
    found, expected = (images(pack, name, crop=RandomResizedCrop(40), flip=True) for name in ("fast", "simplejpeg"))
    alike(found, expected)
    same = [torch.equal(a, b) for a, b in zip(found, expected, strict=True)]
    assert 3 <= sum(same) < len(same)
    for crop in (Within(), RandomResizedCrop(40, interpolation="nearest")):  # left to others whole
        assert torch.equal(images(pack, "fast", crop=crop), images(pack, "simplejpeg", crop=crop))


@needs_module
@native
def test_a_damaged_jpeg_is_named_as_by_others(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = pack_of(sources, encode="jpeg")
    starts, sizes = pack.where(np.arange(COUNT))
    content = bytearray(pack.region.data[0 : len(pack.region)])
    content[int(starts[5] + sizes[5] // 2) : int(starts[5] + sizes[5])] = bytes(int(sizes[5] - sizes[5] // 2))
    damaged = np.frombuffer(content, np.uint8)
    monkeypatch.setattr(pack.region, "parts", [damaged])
    monkeypatch.setattr(pack.region, "_data", damaged.data)
    said = []
    for decoder in ("fast", "simplejpeg"):
        with pytest.raises(DamagedPack, match=r"record 00000005 .*cannot be decoded") as caught:
            images(pack, decoder, crop=Resize((60, 60)), verify=False)
        said.append(str(caught.value))
    assert said[0] == said[1]


@needs_module
@native
def test_stats_and_states_say_which_decoder_ran(sources: Path) -> None:
    pack = pack_of(sources, encode="jpeg")
    loaders = {name: PackedLoader(pack, 7, crop=Resize((40, 40)), decoder=name) for name in ("fast", "simplejpeg")}
    for name, loader in loaders.items():
        next(iter(loader))
        assert loader.stats()["decoder"].partition(" ")[0] == loader.state_dict()["decoder"] == name
    with pytest.warns(UserWarning, match=r'JPEG decoder fast, and this loader uses simplejpeg: .* pass decoder="fast"'):
        loaders["simplejpeg"].load_state_dict(loaders["fast"].state_dict())
    loaders["fast"].load_state_dict(loaders["fast"].state_dict())
    old = loaders["fast"].state_dict()
    del old["decoder"]  # a state of an older version
    loaders["fast"].load_state_dict(old)


@needs_module
@native
@pytest.mark.parametrize("interval", ["row", "4"])
def test_an_index_changes_no_pixel(sources: Path, tmp_path: Path, interval: str) -> None:
    from packer.repack.index_jpegs import index_jpegs

    out = tmp_path / "p"
    build_pack(BuildOptions(str(sources / "src"), str(out), encode="copy", workers=1, shard_bytes=20_000))
    without = images(out, "fast", crop=CROPS[0], flip=True)
    assert index_jpegs(out, interval, workers=1).indexed == COUNT * 4 // 5  # progressive ones have none
    assert torch.equal(images(out, "fast", crop=CROPS[0], flip=True), without)
    joined = join_packs([open_pack(out), pack_of(sources, encode="copy")])
    found = images(joined, "fast", crop=Resize((40, 40)), shuffle=False)
    assert torch.equal(found[:COUNT], found[COUNT:])


@needs_module
@native
def test_an_index_of_other_bytes_is_an_error(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packer.format.jpeg_index import JpegIndexes
    from packer.repack.index_jpegs import index_jpegs

    out = tmp_path / "p"
    build_pack(BuildOptions(str(sources / "src"), str(out), encode="jpeg", workers=1))
    index_jpegs(out, workers=1)
    where = JpegIndexes.where
    monkeypatch.setattr(JpegIndexes, "where", lambda self, records: where(self, (records + 1) % COUNT))
    with pytest.raises(
        DamagedPack, match=r"the index of its JPEG is not that of these bytes; make it again: packer in"
    ):
        images(out, "fast", crop=Resize((20, 20)))


def test_without_the_module(sources: Path) -> None:
    """As for all tests without its mark, it is left out here."""
    pack = pack_of(sources, encode="jpeg")
    step = r'pip install "dataset-packer\[fast\]", or choose'
    with pytest.raises(UsageError, match=f"^decoder fast: dataset-packer-fast is left out by the tests; {step}"):
        PackedLoader(pack, 7, crop=Resize((40, 40)), decoder="fast")
    loader = PackedLoader(pack, 7, crop=Resize((40, 40)))
    next(iter(loader))
    assert loader.stats()["decoder"] == loader.state_dict()["decoder"] == "simplejpeg"


def test_a_raw_pack_has_no_decoder(tmp_path: Path) -> None:
    (tmp_path / "src" / "a").mkdir(parents=True)
    (tmp_path / "src" / "a" / "1.jpg").write_bytes(image_file(1))
    build_pack(BuildOptions(str(tmp_path / "src"), str(tmp_path / "p"), workers=1))
    loader = PackedLoader(tmp_path / "p", 1)
    assert "decoder" not in loader.stats() and "decoder" not in loader.state_dict()
