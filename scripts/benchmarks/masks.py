"""Masks beside images: how exact they are, how fast they are decoded, read, cut and built.

Photos with drawn masks of 12 objects and a border of 255. Against images alone, against a DataLoader that reads JPEG
and PNG files and cuts them in the same way, against OpenCV's PNG, and against a bare loop that reads, resizes and
encodes both files of each image.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from torch import from_numpy
from torch.utils.data import DataLoader, Dataset

from benchmarks.build import PARTS, processes
from benchmarks.common import Table, images
from packer import BuildOptions, PackedLoader, RandomResizedCrop, build_pack, open_pack
from packer.bench.measure import take_turns
from packer.images.masks import decode_stored, encode_mask
from packer.images.opencv import resample
from packer.loading.part_rows import cut_mask, places
from packer.system import usable_cores

BATCH, SIDE = 64, 224
PNG_9 = [cv2.IMWRITE_PNG_COMPRESSION, 9]


def drawn_mask(seed: int, height: int, width: int, objects: int = 12) -> np.ndarray:
    """Draw ellipses of ids on 0, with a border of 255 around each."""
    random, mask = np.random.default_rng(seed), np.zeros((height, width), np.uint8)
    for number in range(1, objects + 1):
        center = (int(random.integers(width)), int(random.integers(height)))
        axes = (int(random.integers(4, max(5, width // 5))), int(random.integers(4, max(5, height // 5))))
        angle = int(random.integers(180))
        cv2.ellipse(mask, center, axes, angle, 0, 360, number, -1)
        cv2.ellipse(mask, center, axes, angle, 0, 360, 255, 3)
    return mask


def pixels_of(start: int, extent: int, pixels: int) -> np.ndarray:
    """Return what a loader takes of a mask along an axis."""
    found: np.ndarray = places(np.array([float(start)]), np.array([float(extent)]), pixels)[0]
    return found


def exact(table: Table, regions: int) -> None:
    """Cut random regions of masks; count the pixels that differ from the exact index, computed with whole numbers."""
    random, pixels, wrong, theirs_wrong = np.random.default_rng(1), 0, 0, 0
    masks = [drawn_mask(seed, int(random.integers(40, 700)), int(random.integers(40, 700))) for seed in range(50)]
    for number in range(regions):
        mask = masks[number % len(masks)]
        height, width = mask.shape
        high, wide = int(random.integers(1, height + 1)), int(random.integers(1, width + 1))
        top, left = int(random.integers(height - high + 1)), int(random.integers(width - wide + 1))
        rows_out, columns_out = (int(random.integers(1, 120)) for _ in range(2))
        rows = [top + (2 * i + 1) * high // (2 * rows_out) for i in range(rows_out)]
        columns = [left + (2 * i + 1) * wide // (2 * columns_out) for i in range(columns_out)]
        wanted = mask[rows][:, columns]
        out = np.empty_like(wanted)
        cut_mask(mask, pixels_of(top, high, rows_out), pixels_of(left, wide, columns_out), out, 255)
        wrong += int((out != wanted).sum())
        pixels += wanted.size
        theirs = cv2.resize(
            mask[top : top + high, left : left + wide], (columns_out, rows_out), interpolation=cv2.INTER_NEAREST_EXACT
        )
        theirs_wrong += int((theirs != wanted).sum())
    table.row(f"pixels that differ, of {pixels / 1e6:.1f} M in {regions:,} regions", "0", str(wrong))
    table.row("the same of OpenCV's NEAREST_EXACT", "", f"{theirs_wrong:,} ({theirs_wrong / pixels:.2%})")


def decoding(table: Table, rounds: int) -> None:
    """Decode masks of 512x512: as packs have them, against PNG by OpenCV; and their bytes against PNG at level 9."""
    masks = [drawn_mask(seed, 512, 512) for seed in range(20)]
    stored = [encode_mask(mask, "zstd") for mask in masks]
    pngs = [np.frombuffer(encode_mask(mask, "png"), np.uint8) for mask in masks]

    def ours() -> None:
        for _ in range(10):
            for data in stored:
                decode_stored(data, "zstd", (512, 512), "uint8")

    def theirs() -> None:
        for data in pngs:
            cv2.imdecode(data, cv2.IMREAD_UNCHANGED)

    seconds = take_turns({"": theirs, "zstd": ours}, rounds)
    ratio = seconds["zstd"].per_second(200) / seconds[""].per_second(20)
    table.figure("decoding 512x512, against PNG by OpenCV", ratio, 20, digits=1, most=False)
    best = sum(cv2.imencode(".png", mask, PNG_9)[1].size for mask in masks)
    table.row("bytes against PNG at level 9", "<= 0.9", f"{sum(map(len, stored)) / best:.2f}")


class Files(Dataset[Any]):
    """JPEG and PNG files, cut and mirrored alike, as a training script would do it."""

    def __init__(self, paths: list[str], masks: list[str]) -> None:
        self._paths, self._masks = paths, masks

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, i: int) -> Any:
        image: Any = cv2.cvtColor(cv2.imread(self._paths[i]), cv2.COLOR_BGR2RGB)
        mask: Any = cv2.imread(self._masks[i], cv2.IMREAD_UNCHANGED)
        height, width = mask.shape
        crop = RandomResizedCrop(SIDE)
        random = np.random.default_rng(i).random((1, crop.num_random))
        x, y, w, h = map(int, crop.regions(np.array([float(width)]), np.array([float(height)]), random)[0])
        image = cv2.resize(image[y : y + h, x : x + w], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        mask = cv2.resize(mask[y : y + h, x : x + w], (SIDE, SIDE), interpolation=cv2.INTER_NEAREST)
        if i % 2:
            image, mask = image[:, ::-1].copy(), mask[:, ::-1].copy()
        return from_numpy(image).permute(2, 0, 1), from_numpy(mask).long()


def drain(batches: Any) -> None:
    """Take all batches."""
    for _ in batches:
        pass


def read(path: Path, **options: Any) -> None:
    """Take all batches of a pack."""
    drain(PackedLoader(path, BATCH, **options))


def loaders(table: Table, source: Path, home: Path, given: Any) -> None:
    """Measure batches of images with masks against batches of images alone, and against a DataLoader of files."""
    common: dict[str, Any] = {"labels": ("none",), "mask": "masks", "workers": usable_cores()}
    raw, jpeg = home / "raw.lmdb", home / "jpeg.lmdb"
    build_pack(BuildOptions(str(source), str(raw), resize=f"{SIDE}x{SIDE}", **common))
    build_pack(BuildOptions(str(source), str(jpeg), resize="256", encode="jpeg", **common))
    count = len(open_pack(raw))
    works = {"": partial(read, raw, parts=()), "masks": partial(read, raw)}
    alone, masked = take_turns(works, given.rounds).values()
    table.figure("raw 224: images with masks, against images alone", alone / masked, most=False)
    # a byte for each value of an image, eight for each of a mask
    each = masked.per_second(11 * count) / alone.per_second(3 * count)
    table.figure("the same, per byte that is handed out", each, 0.9, most=False)
    crops: dict[str, Any] = {"crop": RandomResizedCrop(SIDE), "flip": True}
    works = {"": partial(read, jpeg, parts=(), **crops), "masks": partial(read, jpeg, **crops)}
    alone, masked = take_turns(works, given.rounds).values()
    table.figure("JPEG 256, crops and flips: with masks, against images alone", alone / masked, 0.9, most=False)
    pack = open_pack(jpeg)
    small = home / "small"
    paths: list[str] = []
    masks: list[str] = []
    for i in range(count):
        mask = pack.mask(i)
        assert mask is not None
        for name, data in (("images", bytes(pack.record(i))), ("masks", encode_mask(mask, "png"))):
            file = small / name / f"{i:06d}.{'jpg' if name == 'images' else 'png'}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            (paths if name == "images" else masks).append(str(file))
    originals = (
        sorted(map(str, (source / "images").rglob("*.jpg"))),
        sorted(map(str, (source / "masks").rglob("*.png"))),
    )
    works = {"packer": partial(read, jpeg, **crops)}
    for name, files in (("files of 256 px", (paths, masks)), ("the original files", originals)):
        loader = DataLoader(Files(*files), BATCH, num_workers=2, persistent_workers=True)
        works[name] = partial(drain, loader)
        drain(loader)  # its workers start
    ours, *theirs = take_turns(works, given.rounds).values()
    for name, seconds in zip(list(works)[1:], theirs, strict=True):
        what = f"JPEG 256 with masks, against a DataLoader with 2 workers of {name}, JPEG and PNG"
        table.figure(what, seconds / ours, 5, most=False)


def both(pairs: list[tuple[str, str]]) -> int:
    """Read, resize and encode an image and its mask, as fast as the libraries allow."""
    cv2.setNumThreads(0)
    total = 0
    for path, mask_path in pairs:
        with open(path, "rb") as file, open(mask_path, "rb") as other:
            data, mask = file.read(), cv2.imdecode(np.frombuffer(other.read(), np.uint8), cv2.IMREAD_UNCHANGED)
        assert mask is not None
        height, width = mask.shape
        scale = 256 / min(width, height)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        factor = next((f for f in (8, 4, 2) if width >= 2 * f * size[0] and height >= 2 * f * size[1]), 1)
        least = (-(-height // factor), -(-width // factor)) if factor > 1 else (0, 0)
        image = simplejpeg.decode_jpeg(data, min_height=least[0], min_width=least[1], min_factor=factor)
        image = resample(image, size, "area", (0, 0, image.shape[1], image.shape[0]))
        total += len(simplejpeg.encode_jpeg(image, quality=90, colorsubsampling="420"))
        small = cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST)
        total += len(encode_mask(small, "zstd"))
    return total


def shares(pairs: list[tuple[str, str]], count: int) -> Iterator[list[tuple[str, str]]]:
    """Divide the pairs among processes."""
    return (pairs[i :: count * PARTS] for i in range(count * PARTS))


def building(table: Table, source: Path, pairs: list[tuple[str, str]], home: Path, given: Any) -> None:
    """Measure a build of photos with masks against bare processes."""

    def bare() -> None:
        with processes(usable_cores()) as pool:
            sum(pool.map(both, shares(pairs, usable_cores())))

    def build() -> None:
        build_pack(
            BuildOptions(
                str(source), str(home / "built"), labels=("none",), mask="masks", resize="256", encode="jpeg",
                overwrite=True,
            )
        )  # fmt: skip

    seconds = take_turns({"": bare, "packer": build}, given.rounds)
    ratio = seconds["packer"].per_second(len(pairs)) / seconds[""].per_second(len(pairs))
    table.figure(f"building {len(pairs):,} photos with masks, against bare processes", ratio, 0.85, most=False)


def options(parser: Any) -> None:
    parser.add_argument("--photos", type=int, default=2000, help="photos with masks [%(default)s]")
    parser.add_argument("--regions", type=int, default=10_000, help="regions that are compared [%(default)s]")


def run(given: Any) -> None:
    table = Table("masks", "goal", "median (lowest to highest)")
    exact(table, given.regions)
    decoding(table, given.rounds)
    source = given.home / "set"
    paths = images("photos", given.data, source / "images", given.photos)
    pairs = []
    for number, path in enumerate(paths):
        height, width = simplejpeg.decode_jpeg_header(Path(path).read_bytes())[:2]
        mask = source / "masks" / Path(path).relative_to(source / "images").with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(mask), drawn_mask(number % 200, height, width))
        pairs.append((path, str(mask)))
    building(table, source, pairs, given.home, given)
    loaders(table, source, given.home, given)
