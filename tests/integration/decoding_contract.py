"""What every decoder behind PackedLoader keeps: records, order, ranks, regions, targets, states. Not the last level."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draw_shots, pixels
from PIL import Image

from packer import BuildOptions, CenterCrop, Letterbox, PackedLoader, RandomResizedCrop, Resize, build_pack, open_pack
from packer.errors import DamagedPack
from packer.loading.crop import INTERPOLATIONS
from packer.loading.to_device import map_tensors
from packer.samplers import ShuffleSampler

Photos = Callable[[str], Path]
RECORDS = 24
CROPS = (
    *(RandomResizedCrop(64, interpolation=name) for name in INTERPOLATIONS if name != "nearest"),
    RandomResizedCrop(160), CenterCrop(96), CenterCrop(300), CenterCrop(64, resize=80), Resize((90, 100)),
    CenterCrop(90, resize=70), CenterCrop((71, 91), resize=80), CenterCrop((300, 251), 120, "area"),
    Letterbox((150, 120), "bilinear", fill=114),
)  # fmt: skip
"""Smaller with each filter, larger, as it is, with a border, of a part, of all, of both, with a gray border."""
MOST = {
    "photos": (0.2, 1), "gray": (0.2, 1), "copy": (1.2, 7), "boxes": (2, 14), "normalized": (0.01, 0.04),
    "noise": (0, 0), "gray noise": (0, 0), "whole": (0, 0),
}  # fmt: skip
"""Kind of pack -> mean and largest difference of pixels, in levels of 255. `copy` changes by 34 levels in a pixel.
"whole" is of images without a crop, "normalized" in units of the standard deviation, where a level is 1 / 255 / 0.2 and
the 8 bits of a bfloat16 are one more."""
NVJPEG = {
    **MOST, "photos": (0.4, 4), "copy": (4.5, 26), "boxes": (5, 30), "normalized": (0.02, 0.1), "gray noise": (0.5, 2),
    "whole": (5.5, 30),
}  # fmt: skip
"""The same where nvJPEG decodes: it does not smooth the colors between the pixels that share one, as libjpeg does."""


def waves(height: int, width: int, seed: int) -> np.ndarray:
    """uint8 (height, width, 3), of its own for each seed; a shift by a pixel changes it by 3 levels at the most."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 100 * np.sin(x / (40 + 5 * c) + c + seed) * np.cos(y / (45 + 3 * c)) for c in range(3)]
    return np.stack(planes, axis=2).astype(np.uint8)


def draw_photos(kind: str, root: Path) -> dict[str, Any]:
    """Draw 24 images of two classes; the options to pack them with.

    photos: JPEGs of differing size. noise: the same, no two pixels alike. gray, gray noise: one channel.
    copy: files as they are: JPEGs turned in all ways that Exif has, one CMYK, some PNG and BMP.
    boxes: 9 images with VOC boxes, landmarks and labels.
    """
    if kind == "boxes":
        draw_shots(root, 9)
        labels = ("voc", f"list:{root / 'landmarks.txt'}")
        return {"labels": labels, "columns": ("path (x y)*5 label",), "encode": "jpeg"}
    for i in range(RECORDS):
        image = pixels(i, 140 + i % 4, 130 + i % 3) if kind == "copy" else waves(150 + 2 * i, 190 + 3 * i, i)
        if kind.endswith("noise"):
            image = np.random.default_rng(i).integers(0, 256, image.shape, np.uint8)
        suffix = ("png", "jpg", "jpg", "bmp")[i % 4] if kind == "copy" else "png"
        path = root / ("ant", "bee")[i % 2] / f"{i:02d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 1 + i // 2 % 8
        jpeg = {"exif": exif.tobytes(), "quality": 92} if suffix == "jpg" else {}
        drawn = Image.fromarray(image)
        (drawn.convert("CMYK") if (kind, i) == ("copy", 5) else drawn).save(path, **jpeg)
    return {"encode": "copy" if kind == "copy" else "jpeg", "mode": "gray" if kind.startswith("gray") else "rgb"}


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    """photos(kind): the directory of a pack of several shards (`draw_photos`)."""
    homes: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in homes:
            home = tmp_path_factory.mktemp(kind)
            options = draw_photos(kind, home / "source")
            source, out = str(home / "source"), str(home / "pack")
            build_pack(BuildOptions(source, out, "lmdb", shard_bytes=50_000, workers=1, **options))
            homes[kind] = home / "pack"
        return homes[kind]

    return make


def same(a: Any, b: Any) -> bool:
    """Whether two targets, or batches of them, are equal."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else a == b


def assert_close(ours: Any, theirs: Any, mean: float, most: float) -> None:
    """Batches with the same targets, in the same order, whose pixels differ by so much at most."""
    for one, other in zip(ours, theirs, strict=True):
        (x, a), (y, b) = (map_tensors(batch, lambda tensor, images: tensor.cpu()) for batch in (one, other))
        assert same(a, b)
        assert y.shape == x.shape and y.dtype == x.dtype and y.is_contiguous(memory_format=torch.channels_last)
        difference = (x.double() - y.double()).abs()
        assert difference.mean() <= mean and difference.max() <= most, (difference.mean(), difference.max())


def epoch_of(loader: PackedLoader) -> list[tuple[torch.Tensor, Any]]:
    """The batches of an epoch: kept, so that none may lie in memory that is used again."""
    return list(loader)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


class DecodingContract:
    """Subclasses say how their loader is made, and where it decodes."""

    device = "cpu"
    most: Mapping[str, tuple[float, float]] = MOST

    def make(self, data: Any, batch_size: int, **options: Any) -> PackedLoader:
        raise NotImplementedError

    @pytest.mark.parametrize("crop", CROPS, ids=str)
    @pytest.mark.parametrize("kind", ["photos", "gray", "copy"])
    def test_same_records_targets_and_pixels_as_on_the_host(self, photos, kind, crop):
        options = {"shuffle": True, "seed": 3, "crop": crop, "flip": True}
        theirs = self.make(photos(kind), 5, **options)
        for epoch in range(2):
            host = PackedLoader(photos(kind), 5, **options)
            host.set_epoch(epoch)
            assert_close(epoch_of(host), epoch_of(theirs), *self.most[kind])

    @pytest.mark.parametrize("kind", ["noise", "gray noise"])
    def test_regions_and_flips_are_packers_to_the_pixel(self, photos, kind):
        # one source pixel for each output pixel: another region by one pixel is another picture
        if kind == "noise" and self.most["photos"] != MOST["photos"]:
            pytest.skip("colors of single pixels are decoded differently there")
        options = {"shuffle": True, "seed": 3, "crop": RandomResizedCrop(64, interpolation="nearest"), "flip": True}
        theirs = self.make(photos(kind), 5, **options)
        assert_close(epoch_of(PackedLoader(photos(kind), 5, **options)), epoch_of(theirs), *self.most[kind])

    @pytest.mark.parametrize("kind", ["photos", "gray", "copy", "boxes"])
    def test_vertical_flips_and_turns(self, photos, kind):
        options = {"shuffle": True, "crop": RandomResizedCrop(64), "flip": True, "vflip": True}
        options |= {"rotate90": True, "seed": 3, **({"flip_index": range(5)} if kind == "boxes" else {})}
        theirs = self.make(photos(kind), 5, **options)
        assert_close(epoch_of(PackedLoader(photos(kind), 5, **options)), epoch_of(theirs), *self.most[kind])

    def test_boxes_and_points_move_with_the_image(self, photos):
        options = {"shuffle": True, "crop": RandomResizedCrop(24, scale=(0.3, 1.0)), "flip": True}
        host = epoch_of(PackedLoader(photos("boxes"), 4, **options))
        assert_close(host, epoch_of(self.make(photos("boxes"), 4, **options)), *self.most["boxes"])
        assert sum(len(target["boxes"]) for _, targets in host for target in targets) > 3

    def test_whole_images_without_a_crop(self, photos):
        host, theirs = PackedLoader(photos("boxes"), 4), self.make(photos("boxes"), 4)
        assert_close(epoch_of(host), epoch_of(theirs), *self.most["whole"])

    def test_every_epoch_has_each_record_once(self, photos):
        loader = self.make(photos("photos"), 5, shuffle=True, crop=Resize((30, 40)), seed=1)
        orders = []
        for _ in range(3):
            loader.sampler.set_epoch(len(orders))
            orders.append(loader.sampler.order().tolist())
            names = [tuple(image.flatten()[::97].tolist()) for images, _ in loader for image in images]
            assert len(set(names)) == RECORDS
        assert orders[0] != orders[1] != orders[2]

    @pytest.mark.parametrize("taken", [1, 3])
    def test_a_state_goes_on_in_the_middle_here_and_on_the_host(self, photos, taken):
        options = {"shuffle": True, "seed": 2, "crop": RandomResizedCrop(64), "flip": True}
        whole = self.make(photos("photos"), 5, **options)
        whole.set_epoch(1)
        expected = epoch_of(whole)
        stopped = self.make(photos("photos"), 5, **options)
        stopped.set_epoch(1)
        for number, _ in enumerate(stopped, 1):
            if number == taken:
                break
        for loader in (self.make(photos("photos"), 5, **options), PackedLoader(photos("photos"), 5, **options)):
            loader.load_state_dict(stopped.state_dict())
            assert_close(expected[taken:], epoch_of(loader), *self.most["photos"])

    def test_two_ranks_share_an_epoch(self, photos):
        pack = open_pack(photos("photos"))
        options = {"crop": RandomResizedCrop(64), "flip": True}

        def ranks(make):
            samplers = [ShuffleSampler(pack, 4, rank=rank, world_size=2) for rank in range(2)]
            return [epoch_of(make(pack, 5, sampler=sampler, **options)) for sampler in samplers]

        ours, theirs = ranks(PackedLoader), ranks(self.make)
        for a, b in zip(ours, theirs, strict=True):
            assert_close(a, b, *self.most["photos"])
        assert sum(len(images) for batches in theirs for images, _ in batches) == RECORDS

    @pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("normal", [True, False])
    def test_normalized(self, photos, normal, dtype):
        if dtype is None and not normal:
            return
        options = {"crop": Resize((100, 120)), "dtype": dtype}
        options |= {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)} if normal else {}
        host = epoch_of(PackedLoader(photos("photos"), 5, **options))
        assert_close(host, epoch_of(self.make(photos("photos"), 5, **options)), *self.most["normalized"])

    def test_left_early_and_two_at_once(self, photos):
        loader = self.make(photos("photos"), 5, shuffle=True, crop=Resize((20, 30)))
        expected = epoch_of(loader)
        for _ in range(3):
            loader.set_epoch(0)
            assert_close(expected[:1], [next(iter(loader))], 0, 0)
        loader.set_epoch(0)
        pairs = list(zip(loader, self.make(photos("photos"), 5, shuffle=True, crop=Resize((20, 30))), strict=True))
        assert_close([a for a, _ in pairs], [b for _, b in pairs], 0, 0)
        loader.set_epoch(0)
        first = iter(loader)
        batch = next(first)
        loader.set_epoch(0)
        assert_close(expected, epoch_of(loader), 0, 0)
        assert_close(expected, [batch, *first], 0, 0)

    @pytest.mark.filterwarnings("ignore::packer.errors.DamagedRecordWarning")  # once per record and process
    def test_a_damaged_record_comes_in_its_turn_or_is_replaced(self, photos, tmp_path):
        path = Path(shutil.copytree(photos("photos"), tmp_path / "damaged"))
        _damage(path, 12)
        loader = self.make(path, 5, crop=Resize((20, 30)))
        seen = 0
        with pytest.raises(DamagedPack, match="does not match its checksum") as caught:
            for images, _ in loader:
                seen += len(images)
        assert seen == 10 and caught.value.key == open_pack(path).key(12)
        options = {"shuffle": True, "crop": Resize((100, 120)), "on_error": "replace"}
        host = PackedLoader(path, 5, **options)
        expected = epoch_of(host)
        theirs = self.make(path, 5, **options)
        assert_close(expected, epoch_of(theirs), *self.most["photos"])
        assert theirs.replaced == host.replaced and theirs.stats()["replaced"] == 1

    def test_a_record_that_cannot_be_decoded_is_named(self, photos, tmp_path):
        path = Path(shutil.copytree(photos("photos"), tmp_path / "damaged"))
        _damage(path, 12)
        with pytest.raises(DamagedPack, match=open_pack(path).key(12)):
            epoch_of(self.make(path, 5, crop=Resize((20, 30)), verify=False))

    @pytest.mark.parametrize("crop", [RandomResizedCrop(224), CenterCrop(224, resize=256)], ids=str)
    def test_real_photos(self, real_data, tmp_path, crop):
        source, out = str(real_data / "photos"), str(tmp_path / "photos")
        build_pack(BuildOptions(source, out, "lmdb", encode="copy", workers=1))
        options = {"shuffle": True, "crop": crop, "flip": True}
        pairs = zip(PackedLoader(out, 16, **options), self.make(out, 16, **options), strict=True)
        for _, ((x, _), (y, _)) in zip(range(2), pairs, strict=False):
            difference = (x.double() - y.cpu().double()).flatten(1)
            assert difference.abs().mean() < 1.5  # of 255, as on the page
            assert 65025 / difference.square().mean(dim=1).max() > 10**3.0, "30 dB, the worst one"

    def test_stats_count(self, photos):
        loader = self.make(photos("photos"), 5, crop=Resize((20, 30)))
        epoch_of(loader)
        assert loader.stats()["images"] == RECORDS and loader.stats()["decode_s"] > 0


def _damage(path: Path, record: int) -> None:
    """Overwrite the begin of a record's bytes."""
    pack = open_pack(path)
    number, _ = pack.reader.locate(record)
    data = bytes(pack.record(record))
    file = path / pack.reader.shards[number].container.name
    content = bytearray(file.read_bytes())
    at = content.index(data)
    content[at : at + 40] = bytes(40)
    file.write_bytes(content)
