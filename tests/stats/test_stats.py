"""`packer stats` against brute force: numpy over the pixels that Pillow decodes, plain loops over the labels."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from drawn import draw, draw_classes, draw_plain, voc_xml
from drawn_masks import draw_mask, image_of, picture, write_files
from packs import WIDE, MakePack
from PIL import Image
from running import good, refused

from packer import BuildOptions, PackWriter, build_pack, open_pack
from packer.stats import pack_stats
from packer.stats.pixels import SHARES, Sums, _add_pixels, channel_stats


def moments(images: list[np.ndarray], highest: int) -> tuple[list[float], list[float]]:
    """Mean and std of each channel of images (height, width, channels), in whole numbers."""
    pixels = np.concatenate([image.reshape(-1, image.shape[2]) for image in images]).astype(object)
    n = len(pixels)
    sums, squares = pixels.sum(axis=0), (pixels * pixels).sum(axis=0)
    mean = [int(s) / n / highest for s in sums]
    std = [float(np.sqrt((int(q) * n - int(s) ** 2) / n**2)) / highest for s, q in zip(sums, squares, strict=True)]
    return mean, std


def require_same(found, images: list[np.ndarray], highest: int = 255) -> None:
    mean, std = moments(images, highest)
    assert found.images == len(images) and found.pixels == sum(i.shape[0] * i.shape[1] for i in images)
    assert np.allclose(found.mean, mean, rtol=1e-14, atol=0) and np.allclose(found.std, std, rtol=1e-12, atol=0)


def opened(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("container", WIDE)
@pytest.mark.parametrize("options", [("--encode", "raw"), ("--encode", "png"), ("--encode", "raw", "--mode", "gray")])
def test_mean_and_std_are_exact(tmp_path: Path, container: str, options: tuple[str, ...]) -> None:
    """Images of different sizes; PNG sources, so that Pillow and OpenCV decode the same."""
    for i in range(9):
        draw(tmp_path / "src" / f"{i}.png", i, 20 + i, 31 - i, format="PNG")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--format", container, *options)
    (found,) = pack_stats(tmp_path / "pack").channels
    images = [opened(path) for path in (tmp_path / "src").iterdir()]
    if "gray" in options:
        pack = open_pack(tmp_path / "pack")
        images = [np.array(pack.image(i)) for i in range(len(pack))]
        assert images[0].shape[2] == 1
    require_same(found, images)


@pytest.mark.parametrize("container", WIDE)
@pytest.mark.parametrize("size", ["7x5", "40x30", "300x400"])
def test_raw_images_of_one_shape(tmp_path: Path, container: str, size: str) -> None:
    """Summed many at once, where they lie: several shards, and pages or headers between them."""
    draw_classes(tmp_path / "src", each=4)
    resize = ("--resize", size, "--fit", "stretch", "--shard-size", "1MB")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--format", container, *resize)
    pack = open_pack(tmp_path / "pack")
    (found,) = channel_stats(pack)
    require_same(found, [np.array(pack.image(i)) for i in range(len(pack))])


def test_jpeg_packs_are_decoded(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 12)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--encode", "jpeg")
    pack = open_pack(tmp_path / "pack")
    (found,) = channel_stats(pack)
    files = [np.frombuffer(pack.record(i), np.uint8) for i in range(len(pack))]
    require_same(found, [cv2.cvtColor(cv2.imdecode(file, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB) for file in files])


def test_each_kind_of_image_has_its_own(tmp_path: Path) -> None:
    """16 bits, alpha and gray in one pack."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 65536, (8, 9), np.uint16), rng.integers(0, 256, (8, 9, 4), np.uint8),
              rng.integers(0, 65536, (5, 6), np.uint16), rng.integers(0, 256, (8, 9), np.uint8)]  # fmt: skip
    (tmp_path / "src").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "src" / f"{i}.png")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--mode", "unchanged")
    gray16, gray, rgba = pack_stats(tmp_path / "pack").channels
    assert [(k.channels, k.dtype) for k in (gray16, gray, rgba)] == [(1, "uint16"), (1, "uint8"), (4, "uint8")]
    require_same(gray, [images[3][:, :, None]])
    require_same(gray16, [images[0][:, :, None], images[2][:, :, None]], 65535)
    require_same(rgba, [images[1]])


@pytest.mark.parametrize("value", [0, 1, 254, 255])
def test_sums_stay_exact_where_they_are_largest(value: int) -> None:
    image = np.full((5000, 4000, 3), value, np.uint8)
    image[0, 0] = 255 - value
    sums = Sums(3)
    _add_pixels(sums, image)
    assert sums.sums == [value * (20_000_000 - 1) + 255 - value] * 3
    assert sums.squares == [value**2 * (20_000_000 - 1) + (255 - value) ** 2] * 3


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    draw_classes(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--resize", "32x32", "--fit", "stretch")
    pack = open_pack(tmp_path / "pack")
    shard, place = tmp_path / "pack" / pack.reader.shards[0].container.name, pack.reader.span(3)[0] + 5
    data = bytearray(shard.read_bytes())
    data[place] ^= 1
    shard.write_bytes(data)
    assert "record 00000003" in refused(4, "stats", tmp_path / "pack")
    good("stats", tmp_path / "pack", "--no-pixels")


def boxes_of(root: Path) -> Path:
    """Four images of 40x30 with 0, 1, 2 and 3 boxes."""
    rows = [("cat", 1, 1, 11, 6), ("dog", 5, 5, 40, 30), ("cat", 2, 3, 4, 5)]
    for i in range(4):
        draw(root / "JPEGImages" / f"{i}.jpg", i)
        path = root / "Annotations" / f"{i}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(voc_xml(f"{i}.jpg", rows[:i]))
    return root


def test_boxes(tmp_path: Path) -> None:
    good("build", boxes_of(tmp_path / "src"), "-o", tmp_path / "pack")
    found = pack_stats(tmp_path / "pack", pixels=False)
    assert found.channels == () and found.landmarks is None
    (counts,) = found.classes
    assert counts.of == "boxes" and dict(zip(counts.names, counts.counts, strict=True)) == {"cat": 4, "dog": 2}
    assert counts.imbalance == 2 and counts.empty == ()
    boxes = found.boxes
    assert boxes is not None
    assert (boxes.boxes, boxes.images_without, boxes.empty) == (6, 1, 0)
    assert (boxes.small, boxes.medium, boxes.large) == (6, 0, 0)  # 36x26 is less than 32x32
    widths = [11, 11, 36, 11, 36, 3]
    assert (boxes.width.lowest, boxes.width.median, boxes.width.highest) == (3, 11, 36)
    assert boxes.width.mean == pytest.approx(np.mean(widths))
    assert boxes.area_share.highest == pytest.approx(36 * 26 / 1200)
    assert (boxes.per_image.lowest, boxes.per_image.mean, boxes.per_image.highest) == (0, 1.5, 3)


def test_classes_that_do_not_occur(tmp_path: Path) -> None:
    draw_classes(tmp_path / "src", ("ant", "bee"), 3)
    (tmp_path / "names.txt").write_text("ant\nbee\nw$asp\n")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--classes", tmp_path / "names.txt")
    said = good("stats", tmp_path / "pack").out
    assert "1 without any: w$asp" in said and "class imbalance 1.0 : 1" in said


def test_duplicates_and_leaks(tmp_path: Path) -> None:
    """The same bytes under three names, one of them in the other set too."""
    for name, seed in (("a", 1), ("b", 2), ("c", 1), ("d", 1), ("e", 2)):
        draw(tmp_path / "train" / f"{name}.jpg", seed)
    for name, seed in (("x", 3), ("y", 1)):
        draw(tmp_path / "val" / f"{name}.jpg", seed)
    for name in ("train", "val"):
        good("build", tmp_path / name, "-o", tmp_path / f"{name}.pack")
    facts = json.loads(good("stats", tmp_path / "train.pack", "--against", tmp_path / "val.pack", "--json").out)
    groups = [[place["path"] for place in group] for group in facts["duplicates"]["listed"]]
    assert groups == [["a.jpg", "c.jpg", "d.jpg"], ["b.jpg", "e.jpg"]]
    assert (facts["duplicates"]["groups"], facts["duplicates"]["surplus"]) == (2, 3)
    assert facts["leaks"]["records"] == 3
    assert [[[p["path"] for p in side] for side in pair] for pair in facts["leaks"]["listed"]] == [
        [["a.jpg", "c.jpg", "d.jpg"], ["y.jpg"]]
    ]
    said = good("stats", tmp_path / "train.pack", "--against", tmp_path / "val.pack", "--no-pixels").out
    assert "3 records too many: 2 files" in said and "00000001 (y.jpg)" in said
    assert "duplicates none" in good("stats", tmp_path / "val.pack", "--no-pixels").out


def test_what_is_no_pack(tmp_path: Path) -> None:
    refused(2, "stats", tmp_path)
    draw_plain(tmp_path / "src", 2)
    good("build", tmp_path / "src", "-o", tmp_path / "pack")
    refused(2, "stats", tmp_path / "pack", "--against", tmp_path / "no")


def test_keypoints_and_their_visibility(tmp_path: Path) -> None:
    """YOLO pose: two points a box; one image without a box."""
    (tmp_path / "src" / "labels").mkdir(parents=True)
    for i, rows in enumerate(["0 .5 .5 1 1 .1 .2 2 .3 .4 0\n0 .5 .5 .5 .5 .5 .5 2 .5 .5 1\n", ""]):
        draw(tmp_path / "src" / "images" / f"{i}.jpg", i)
        (tmp_path / "src" / "labels" / f"{i}.txt").write_text(rows)
    (tmp_path / "src" / "data.yaml").write_text("names: [hand]\nkpt_shape: [2, 3]\n")
    good("build", tmp_path / "src", "-o", tmp_path / "pack")
    found = pack_stats(tmp_path / "pack", pixels=False).keypoints
    assert found is not None and found.visibility == ((0, 1), (1, 1), (2, 2))
    assert (found.per_box.count, found.per_box.lowest, found.per_box.highest) == (2, 2, 2)
    assert "visibility 0 (1), 1 (1), 2 (2)" in good("stats", tmp_path / "pack").out


def test_padding_is_named(tmp_path: Path) -> None:
    """Black bars darken the mean: who pastes it should know."""
    draw_plain(tmp_path / "src", 3)
    for fit, named in (("pad", True), ("stretch", False)):
        good("build", tmp_path / "src", "-o", tmp_path / fit, "--resize", "50x20", "--fit", fit)
        assert ("the padding" in good("stats", tmp_path / fit).out) is named
        assert "the padding" not in good("stats", tmp_path / fit, "--no-pixels").out


def test_paths_are_shown_as_they_were_typed(make_pack: MakePack, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = make_pack("boxes", "lmdb")
    monkeypatch.chdir(pack.parent)
    for options in (("--no-pixels",), ("--problems",), ("--no-pixels", "--against", pack.name)):
        said = good("stats", pack.name, *options).out
        assert said.startswith(f"{pack.name}: 9 records") and str(pack.parent) not in said


@pytest.mark.parametrize("deep", [False, True])
def test_classes_in_masks(deep: bool, tmp_path: Path) -> None:
    """Pixels and images of each class, counted again with numpy; an image without a mask counts for none."""
    masks = [draw_mask(seed, 30 + seed, 20 + seed).astype(np.uint16 if deep else np.uint8) for seed in range(6)]
    masks[2][:] = 0
    masks[3][:4] = 255
    masks[4] *= 100 if deep else 1
    files = {} if deep else {"classes.txt": b"rest\nant\nbee\ncat\ndog\n"}
    for seed, mask in enumerate(masks):
        files[f"images/im{seed}.png"] = image_of(np.zeros(mask.shape, np.uint8))
        files[f"masks/im{seed}.png"] = picture(mask)
    del files["masks/im5.png"]
    source = write_files(tmp_path / "set", files)
    build_pack(BuildOptions(str(source), str(tmp_path / "p.lmdb"), mask="masks", missing_labels="empty", workers=1))
    (found,) = pack_stats(tmp_path / "p.lmdb").masks
    there = masks[:5]
    assert (found.part, found.masks, found.pixels) == ("mask", 5, sum(mask.size for mask in there))
    assert found.ignored == sum(int((mask == 255).sum()) for mask in there)
    ids = sorted({value for mask in there for value in np.unique(mask).tolist()} - {255} | (set() if deep else {4}))
    assert [one.id for one in found.classes] == ids
    for one in found.classes:
        assert one.pixels == sum(int((mask == one.id).sum()) for mask in there)
        assert one.images == sum(bool((mask == one.id).any()) for mask in there)
        shares = [(mask == one.id).mean() for mask in there if (mask == one.id).any()]
        assert one.shares == (pytest.approx(np.quantile(shares, SHARES)) if shares else ())
        assert one.name == ("" if deep else ("rest", "ant", "bee", "cat", "dog")[one.id])
    out = good("stats", tmp_path / "p.lmdb").out
    assert "mask: of 5 images, " in out and (deep or "dog" in out)
    assert pack_stats(tmp_path / "p.lmdb", pixels=False).masks == ()


@pytest.mark.parametrize("sample", [1000, 3])
def test_maps_and_texts(sample: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Range, quantiles and what is unknown, computed again with numpy; one image has no text."""
    monkeypatch.setattr("packer.stats.pixels.SAMPLE", sample)
    random = np.random.default_rng(0)
    maps = [random.random((50, 60, 2), np.float32) * (i + 1) for i in range(5)]
    for i, one in enumerate(maps):
        one[: 3 * i, 0] = np.nan
    texts = ["", "ä", "three", None, "a text"]
    with PackWriter(tmp_path / "pack", parts={"far": "map", "said": "text", "code": "array"}) as writer:
        for far, said in zip(maps, texts, strict=True):
            parts = {"far": far, "said": said, "code": np.zeros(3)}
            writer.write(np.zeros((50, 60, 3), np.uint8), parts={n: v for n, v in parts.items() if v is not None})
    far, said = pack_stats(tmp_path / "pack").parts
    read = np.stack(maps[:: 1 if sample == 1000 else 2])
    known, quantiles = read[np.isfinite(read)], (0, *SHARES, 1)
    assert (far.part, far.kind, far.count, far.read) == ("far", "map", 5, len(read))
    assert far.unknown == pytest.approx(np.isnan(read).mean())
    assert (far.quantiles[0], far.quantiles[-1]) == (known.min(), known.max())
    assert far.quantiles == pytest.approx(np.quantile(known, quantiles), rel=0.1)  # of some of the numbers
    lengths = [0, 1, 5, 6] if sample == 1000 else [0, 1, 6]
    assert (said.part, said.kind, said.count, said.read) == ("said", "text", 4, len(lengths))
    assert said.quantiles == pytest.approx(np.quantile(lengths, quantiles)) and said.unknown == 0
    out = good("stats", tmp_path / "pack").out
    assert "far        5 maps" in out and "said       4 texts" in out and "highest 6\n" in out
    assert pack_stats(tmp_path / "pack", pixels=False).parts == ()


def test_masks_of_objects(tmp_path: Path) -> None:
    """How many and how large they are, counted again from the decoded masks; an object may have none."""
    random, areas = np.random.default_rng(0), {"ant": [], "bee": [], "": []}
    with PackWriter(tmp_path / "pack", classes=["ant", "bee", "cow"]) as writer:
        for i in range(6):
            masks = (random.random((3, 20, 30)) < random.random((3, 1, 1))).astype(np.uint8)
            names = [("ant", "bee", "ant"), ("bee", "bee", "ant"), ("", "", "")][i % 3]
            given = {"masks": masks} if i != 4 else {}
            boxes = np.tile(np.float32([0, 0, 30, 20]), (3, 1))
            labels = names if names[0] else None
            writer.write(np.zeros((20, 30, 3), np.uint8), boxes=boxes, box_labels=labels, **given)
            for name, mask in zip(names if given else (), masks, strict=bool(given)):
                areas[name].append(int(mask.sum()))
    found = pack_stats(tmp_path / "pack", pixels=False).instances
    assert [(one.id, one.name, one.masks) for one in found] == [
        (id, name, len(areas[name])) for id, name in ((-1, ""), (0, "ant"), (1, "bee"))
    ]
    for one in found:
        assert one.areas == pytest.approx(np.quantile(areas[one.name], SHARES))
    assert "masks of objects" in good("stats", tmp_path / "pack", "--no-pixels").out


def test_real_masks(real_data: Path, tmp_path: Path) -> None:
    """The street scenes of CamVid: pixels and shares of each class, counted from the files."""
    good("build", real_data / "masks_camvid", "-o", tmp_path / "pack")
    (found,) = pack_stats(tmp_path / "pack").masks
    masks = []
    for path in sorted((real_data / "masks_camvid" / "masks").glob("*.png")):
        with Image.open(path) as image:
            masks.append(np.asarray(image))
    assert found.masks == len(masks) and len(found.classes) == 12
    for one in found.classes:
        shares = [(mask == one.id).mean() for mask in masks if (mask == one.id).any()]
        assert one.pixels == sum(int((mask == one.id).sum()) for mask in masks) and one.images == len(shares)
        assert one.shares == pytest.approx(np.quantile(shares, SHARES))
