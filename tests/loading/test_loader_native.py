"""The native decoder in the loader, against simplejpeg and OpenCV: the same whole images, nearly the same crops."""

from __future__ import annotations

import ctypes
import io
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draw, image_file
from indexing import needs_fast
from PIL import Image

from packer import (
    BuildOptions,
    CenterCrop,
    CropView,
    PackedLoader,
    RandomResizedCrop,
    Resize,
    build_pack,
    join_packs,
    open_pack,
)
from packer.errors import DamagedPack, UsageError
from packer.format.pack import Pack
from packer.images import decoders
from packer.repack.adopt import adopt
from packer.repack.index_jpegs import index_jpegs

CROPS = (
    RandomResizedCrop(48), RandomResizedCrop((40, 56), interpolation="area"),
    RandomResizedCrop(48, interpolation="bilinear"),
    Resize((60, 44)), CenterCrop(40, resize=48), CenterCrop((31, 57)),
)  # fmt: skip
COUNT = 40
LOOK_UP = decoders.native
MODULE, _ = decoders.native()


@dataclass(frozen=True)
class Within:
    """A crop of the caller's own, whose edges lie within pixels."""

    num_random: int = 2

    def output(self, shape: Any) -> tuple[int, int]:
        return 30, 36

    def regions(self, widths: Any, heights: Any, random: Any) -> Any:
        return np.stack([widths * random[:, 0] / 4, heights * random[:, 1] / 4, widths * 0.7, heights * 0.7], axis=1)


@dataclass(frozen=True)
class Corner:
    """The first pixels of each image."""

    num_random: int = 0

    def output(self, shape: Any) -> tuple[int, int]:
        return 16, 16

    def regions(self, widths: Any, heights: Any, random: Any) -> Any:
        return np.tile([0.0, 0.0, 16.0, 16.0], (len(widths), 1))


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


@needs_fast
@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("encode", ["jpeg", "copy"])
@pytest.mark.parametrize("crop", CROPS, ids=str)
def test_crops_and_flips_are_those_of_others(sources: Path, crop: Any, encode: str, mode: str) -> None:
    pack = pack_of(sources, encode=encode, mode=mode)
    found, expected = (images(pack, name, crop=crop, flip=True) for name in ("fast", "simplejpeg"))
    alike(found, expected)
    assert torch.equal(found, images(pack, "auto", crop=crop, flip=True, threads=1))


VIEWS = {
    "global": (2, RandomResizedCrop(48, (0.4, 1.0))),
    "local": CropView(RandomResizedCrop(24, (0.05, 0.4), interpolation="area"), 3, flip=1.0, vflip=True, rotate90=True),
    "whole": (1, Resize((44, 60), interpolation="bilinear")),
}


def crops_of(pack: Any, decoder: str, **options: Any) -> dict[str, torch.Tensor]:
    batches = [views for views, *_ in PackedLoader(pack, 8, decoder=decoder, views=VIEWS, flip=True, seed=3, **options)]
    return {name: torch.cat([batch[name] for batch in batches]) for name in VIEWS}


@needs_fast
@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("encode", ["jpeg", "copy"])
def test_views_are_those_of_others_out_of_one_decode(
    sources: Path, encode: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fifth image is progressive, and left to others where it is a copy."""
    pack = pack_of(sources, encode=encode, mode=mode)
    expected = crops_of(pack, "simplejpeg")
    decoded: list[int] = []
    decode = MODULE.decode_crops
    monkeypatch.setattr(
        MODULE, "decode_crops", lambda crops, *rest, **o: (decoded.append(len(crops)), decode(crops, *rest, **o))[1]
    )
    found = crops_of(pack, "fast", threads=1)
    assert decoded == [6] * (COUNT // 8)
    for name in VIEWS:
        alike(found[name], expected[name])
        same = (found[name] == expected[name]).flatten(1).all(dim=1).double().mean()
        assert (encode == "copy") == (same >= 0.2) and same < 0.5
    assert all(torch.equal(found[name], crops) for name, crops in crops_of(pack, "auto", threads=3).items())


@needs_fast
@pytest.mark.parametrize("encode", ["jpeg", "copy"])
def test_whole_images_are_the_same_to_the_last_bit(sources: Path, encode: str) -> None:
    pack = pack_of(sources, resize="48x40", encode="jpeg")
    assert torch.equal(images(pack, "fast", flip=True), images(pack, "simplejpeg", flip=True))
    assert np.array_equal(pack.image(3, "fast"), pack.image(3))


@needs_fast
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


@needs_fast
def test_a_damaged_jpeg_is_named_as_by_others(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = pack_of(sources, encode="jpeg")
    starts, sizes = pack.reader.places(np.arange(COUNT))
    content = bytearray(pack.reader.region.data[0 : len(pack.reader.region)])
    content[int(starts[5] + sizes[5] // 2) : int(starts[5] + sizes[5])] = bytes(int(sizes[5] - sizes[5] // 2))
    damaged = np.frombuffer(content, np.uint8)
    monkeypatch.setattr(pack.reader.region, "parts", [damaged])
    monkeypatch.setattr(pack.reader.region, "_data", damaged.data)
    said = []
    for decoder in ("fast", "simplejpeg"):
        with pytest.raises(DamagedPack, match=r"record 00000005 .*cannot be decoded") as caught:
            images(pack, decoder, crop=Resize((60, 60)), verify=False)
        said.append(str(caught.value))
    assert said[0] == said[1]


@needs_fast
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("how", [{"crop": Corner()}, {"crop": Corner(), "repeats": 2}], ids=["crop", "repeats"])
def test_damage_outside_the_crop_is_found_once(
    tmp_path: Path, indexed: bool, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In packs whose images no build has decoded: those that were adopted, or made of other packs."""
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for i in range(8):
            data = image_file(i, 90, 120)
            for name, content in ((f"{i}.jpg", data[: len(data) * 2 // 3] if i == 5 else data), (f"{i}.cls", b"0")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    adopt([tmp_path / "0.tar"], tmp_path / "p")
    if indexed:
        assert index_jpegs(tmp_path / "p", workers=1).without == {"damaged": 1}
    for decoder in ("fast", "simplejpeg"):
        with pytest.raises(DamagedPack, match=r"record 00000005 .* cannot be decoded: truncated JPEG"):
            images(tmp_path / "p", decoder, **how)
    times = how.get("repeats", 1)
    unseen = images(tmp_path / "p", "fast", **how, verify=False)
    loader = PackedLoader(tmp_path / "p", 4, **how, indices=[0, 1, 2, 3, 4, 6, 7])
    asked: list[bool] = []
    decode = MODULE.decode_crops
    monkeypatch.setattr(MODULE, "decode_crops", lambda *given, **o: (asked.append(o["verify"]), decode(*given, **o))[1])
    epochs = [torch.cat([batch.clone() for batch, *_ in loader]) for _ in range(2)]
    assert torch.equal(*epochs) and (len(epochs[0]), len(unseen)) == (7 * times, 8 * times)
    assert asked == [not indexed] * (len(asked) // 2) + [False] * (len(asked) // 2) and len(asked) >= 4


@needs_fast
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


@needs_fast
@pytest.mark.parametrize("interval", ["row", "4"])
def test_an_index_changes_no_pixel(sources: Path, tmp_path: Path, interval: str) -> None:
    out = tmp_path / "p"
    build_pack(BuildOptions(str(sources / "src"), str(out), encode="copy", workers=1, shard_bytes=20_000))
    without = images(out, "fast", crop=CROPS[0], flip=True)
    assert index_jpegs(out, interval, workers=1).indexed == COUNT * 4 // 5  # progressive ones have none
    assert torch.equal(images(out, "fast", crop=CROPS[0], flip=True), without)
    assert torch.equal(images(out.as_uri(), "fast", crop=CROPS[0], flip=True, cache_bytes=0), without)
    joined = join_packs([open_pack(out), pack_of(sources, encode="copy")])
    found = images(joined, "fast", crop=Resize((40, 40)), shuffle=False)
    assert torch.equal(found[:COUNT], found[COUNT:])


@needs_fast
def test_an_index_of_other_bytes_is_an_error(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packer.format.jpeg_index import JpegIndexes

    out = tmp_path / "p"
    build_pack(BuildOptions(str(sources / "src"), str(out), encode="jpeg", workers=1))
    index_jpegs(out, workers=1)
    places = JpegIndexes.places
    monkeypatch.setattr(JpegIndexes, "places", lambda self, records: places(self, (records + 1) % COUNT))
    with pytest.raises(
        DamagedPack, match=r"has an index of its JPEG that was made of other bytes; make it again: packer in"
    ):
        images(out, "fast", crop=Resize((20, 20)))


def test_without_the_module(sources: Path) -> None:
    """As for all tests without its mark, it is left out here."""
    pack = pack_of(sources, encode="jpeg")
    step = "pip install ./packer-fast in a clone of packer, or choose"
    with pytest.raises(UsageError, match=f'^decoder="fast": needs dataset-packer-fast, which is not installed; {step}'):
        PackedLoader(pack, 7, crop=Resize((40, 40)), decoder="fast")
    loader = PackedLoader(pack, 7, crop=Resize((40, 40)))
    next(iter(loader))
    assert loader.stats()["decoder"] == loader.state_dict()["decoder"] == "simplejpeg"


@needs_fast
def test_plain_c_is_not_chosen_but_can_be(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ARM, where it is slower than the vector instructions of others."""
    monkeypatch.setattr(MODULE, "version", lambda: "0.2.0 (libjpeg-turbo 3.2.0, plain C)")
    pack = pack_of(sources, encode="jpeg")
    for decoder, used in (("auto", "simplejpeg"), ("fast", "fast 0.2.0 (libjpeg-turbo 3.2.0, plain C)")):
        loader = PackedLoader(pack, 7, crop=Resize((40, 40)), decoder=decoder)
        assert loader.stats()["decoder"] == used


def test_a_library_that_cannot_be_loaded(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel of another system: whatever needs it says so, and all else works without."""
    module: Any = ModuleType("packer_fast")
    module.version = lambda: ctypes.CDLL(str(tmp_path / "absent.so"))
    monkeypatch.setitem(sys.modules, "packer_fast", module)
    monkeypatch.setattr(decoders, "native", LOOK_UP.__wrapped__)
    pack = pack_of(sources, encode="jpeg")
    with pytest.warns(UserWarning, match=r"dataset-packer-fast cannot be used: .*; JPEGs are decoded without it"):
        found = images(pack, crop=Resize((40, 40)), threads=1)
    assert torch.equal(found, images(pack, "simplejpeg", crop=Resize((40, 40))))
    with pytest.raises(UsageError, match='decoder="fast": needs dataset-packer-fast, which cannot be used: '):
        images(pack, "fast", crop=Resize((40, 40)))
    with pytest.raises(UsageError, match="packer index: needs dataset-packer-fast, which cannot be used: "):
        index_jpegs(pack.path)


def test_a_raw_pack_has_no_decoder(tmp_path: Path) -> None:
    (tmp_path / "src" / "a").mkdir(parents=True)
    (tmp_path / "src" / "a" / "1.jpg").write_bytes(image_file(1))
    build_pack(BuildOptions(str(tmp_path / "src"), str(tmp_path / "p"), workers=1))
    loader = PackedLoader(tmp_path / "p", 1)
    assert "decoder" not in loader.stats() and "decoder" not in loader.state_dict()
