"""Tiles of large images: windows, labels and pixels as SAHI and numpy cut them, in every container; what refuses."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from drawn import draw_voc
from drawn_instances import draw_instances, read_masks
from drawn_masks import pairs, write_files
from running import good, refused

import packer
from packer import BuildOptions, PackedDataset, PackedLoader, build_pack
from packer.containers import CONTAINERS
from packer.errors import EXIT_USAGE
from packer.model.annotation import Annotation
from packer.model.geometry import clip_polygon, extent_inside, polygon_area
from packer.model.tiles import TileCutter, Tiling

TILE = Tiling(16, 12, 0.3, 0.25)


def build(source: Path, name: str, **options: Any) -> packer.Pack:
    out = source.parent / name
    given = {"workers": 1, "split": "all", "tile": "16x12", "overlap": 0.3, "min_visible": 0.25, **options}
    build_pack(BuildOptions(str(source), str(out), **{k: v for k, v in given.items() if v is not None}))
    return packer.open_pack(out)


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    return draw_voc(tmp_path / "voc")


def of_image(pack: packer.Pack) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, path in enumerate(pack.paths):
        found.setdefault(path, []).append(number)
    return found


# -- windows


def windows_by_loops(width: int, height: int, tile: Tiling) -> list[list[int]]:
    """As SAHI's `get_slice_bboxes` finds them."""
    overlaps = int(tile.overlap * tile.width), int(tile.overlap * tile.height)
    found, y_min, y_max = [], 0, 0
    while y_max < height:
        x_min = x_max = 0
        y_max = y_min + tile.height
        while x_max < width:
            x_max = x_min + tile.width
            if y_max > height or x_max > width:
                x_max, y_max = min(width, x_max), min(height, y_max)
                x_min, y_min = max(0, x_max - tile.width), max(0, y_max - tile.height)
            found.append([x_min, y_min, x_max - x_min, y_max - y_min])
            x_min = x_max - overlaps[0]
        y_min = y_max - overlaps[1]
    return found


@pytest.mark.parametrize("overlap", [0, 0.2, 0.5, 0.99])
def test_windows_are_those_of_sahi(overlap: float) -> None:
    for width, height in itertools.product((1, 9, 10, 11, 19, 20, 33), (1, 7, 8, 15, 40)):
        tile = Tiling(10, 8, overlap)
        assert tile.windows(width, height).tolist() == windows_by_loops(width, height, tile)


# -- labels


def boxes_by_hand(pack: packer.Pack, i: int, window: list[int]) -> list[list[float]]:
    x, y, width, height = window
    found = []
    whole = pack.annotation(i)
    assert whole.boxes is not None
    for left, top, right, bottom in whole.boxes.tolist():
        cut = [max(left - x, 0), max(top - y, 0), min(right - x, width), min(bottom - y, height)]
        area = max(cut[2] - cut[0], 0) * max(cut[3] - cut[1], 0)
        if area and cut[2] > cut[0] and int(area) >= TILE.min_visible * int((right - left) * (bottom - top)):
            found.append(cut)
    return found


@pytest.mark.parametrize("format", CONTAINERS)
def test_tiles_are_cut_out_of_images(format: str, voc: Path) -> None:
    whole = build(voc, "whole", tile=None, overlap=None, min_visible=None, encode="png")
    shared = build(voc, "shared", format=format, encode="copy", shard_bytes=1500)
    single = build(voc, "single", format=format, encode="png")
    assert shared.manifest.version == 3 and len(shared.manifest.shards) > 2 and single.manifest.version == 2
    for pack in (shared, single):
        assert good("verify", pack.path, "--deep").out.endswith("files\n")
        numbers = of_image(pack)
        assert [*numbers] == whole.paths
        for i, tiles in enumerate(numbers.values()):
            image, (height, width, _) = whole.image(i), whole.reader.shape_of(i)
            expected = windows_by_loops(width, height, TILE)
            assert [pack.annotation(t).window.tolist() for t in tiles] == [[*one, width, height] for one in expected]
            for tile, (x, y, w, h) in zip(tiles, expected, strict=True):
                assert (pack.image(tile) == image[y : y + h, x : x + w]).all()
                assert pack.annotation(tile).boxes.tolist() == boxes_by_hand(whole, i, [x, y, w, h])
    assert sum(map(len, of_image(shared).values())) == len(shared) > len(whole)
    assert len(set(shared.keys)) == len(shared)
    digests = [bytes(one) for one in shared.column("source_xxh3")]
    assert len({*digests}) == len(digests)


def test_an_image_smaller_than_a_tile_is_one_record(voc: Path) -> None:
    pack = build(voc, "large", tile="400")
    assert len(pack) == 8 and [*pack.window(0)] == [0, 0, 40, 30, 40, 30]


def test_outlines_decide_where_there_are_any(tmp_path: Path) -> None:
    ring = np.array([(0, 0), (20, 0), (20, 20), (0, 20)], np.float32)
    spike = np.array([(0, 0), (4, 0), (4, 30), (0, 30)], np.float32)
    wedge = np.array([(2, 2), (30, 2), (2, 30)], np.float32)
    polygons = ring, spike, wedge
    boxes = np.array([[*one.min(0), *one.max(0)] for one in polygons], np.float32)
    points = np.array([[(1, 1, 2), (30, 30, 2)]] * 3, np.float32)
    whole = Annotation(boxes=boxes, box_labels=np.arange(3), polygons=polygons, keypoints=points, label=1)
    found = TileCutter(whole, (40, 40), 0.3).cut((0, 0, 16, 16))
    assert found.label == 1 and found.box_labels.tolist() == [0, 1, 2]
    # of the wedge 182.5 of 392 square pixels are inside; its box ends where the slope leaves the tile
    assert found.boxes.tolist() == [[0, 0, 16, 16], [0, 0, 4, 16], [2, 2, 16, 16]]
    assert [round(polygon_area(one)) for one in found.polygons] == [256, 64, 196]
    assert found.keypoints[0].tolist() == [[1, 1, 2], [30, 30, 0]]
    far = TileCutter(whole, (40, 40), 0.3).cut((16, 16, 16, 16))
    assert far.boxes.tolist() == [] and far.polygons == ()


@pytest.mark.parametrize("seed", range(20))
def test_the_extent_of_what_is_inside(seed: int) -> None:
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
    polygon = rng.uniform(-5, 25, 2) + np.stack([np.cos(angles), np.sin(angles)], axis=1) * rng.uniform(5, 25)
    cut = clip_polygon(polygon.astype(np.float32), 20, 16)
    if len(cut):  # convex, so that this is exact
        expected = [*cut.min(axis=0), *cut.max(axis=0)]
        assert extent_inside(polygon, 20, 16) == pytest.approx(expected, abs=1e-3)


def test_lines_there_and_back_do_not_count() -> None:
    two = [(1, 1), (3, 1), (3, 3), (1, 3), (1, 1), (30, 30), (34, 30), (34, 34), (30, 34), (30, 30)]
    assert extent_inside(np.array(two, np.float64), 10, 10).tolist() == [1, 1, 3, 3]


def test_masks_of_objects_are_cut(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    source = draw_instances(tmp_path / "src")
    options: dict[str, Any] = {"labels": ("coco",), "instance_masks": True, "encode": "png", "min_visible": 0.0}
    pack = build(source, "tiles", **options)
    whole = build(source, "whole", **{**options, "tile": None, "overlap": None, "min_visible": None})
    for i, tiles in enumerate(of_image(pack).values()):
        masks = read_masks(whole, i)
        for tile in tiles:
            x, y, w, h, _, _ = pack.window(tile).tolist()
            cut = masks[:, y : y + h, x : x + w]
            there = [one for one in cut if one.any()]
            mine = [one for one in read_masks(pack, tile) if one.any()]
            assert len(there) == len(mine) and all((a == b).all() for a, b in zip(there, mine, strict=True))


def test_masks_are_cut_and_resized_with_their_tiles(tmp_path: Path) -> None:
    source = write_files(tmp_path / "src", pairs())
    whole = build(source, "whole", tile=None, overlap=None, min_visible=None, encode="png")
    pack = build(source, "tiles", encode="png")
    for i, tiles in enumerate(of_image(pack).values()):
        for tile in tiles:
            x, y, w, h, _, _ = pack.window(tile).tolist()
            assert (pack.mask(tile) == whole.mask(i)[y : y + h, x : x + w]).all()
    small = build(source, "small", resize="8x6")
    assert small.image(0).shape[:2] == small.mask(0).shape == (6, 8)
    assert (small.column("window").flat() == pack.column("window").flat()).all()
    said = refused(EXIT_USAGE, "build", source, "-o", tmp_path / "no", "--tile", "16", "--encode", "copy")
    assert "cannot cut the mask" in said and "--encode jpeg" in said


def test_an_image_is_decoded_once(voc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packer.packing import make_record
    from packer.packing.decoded_once import DecodedOnce
    from packer.packing.make_record import Recipe, rows_of
    from packer.packing.scan import read_inputs

    inputs = read_inputs(BuildOptions(str(voc), tile="16", labels=("none",)))
    decoded = []
    decode = make_record.decode
    monkeypatch.setattr(make_record, "decode", lambda *given: decoded.append(1) or decode(*given))
    recipe, whole = Recipe(str(voc).encode(), "rgb", "auto", 1 << 20, None, "png", 90), DecodedOnce()
    windows = inputs.table.column("window").to_pylist()
    for (row, read), window in zip(recipe.reads(rows_of(inputs.table)), windows, strict=True):
        recipe.record("1", row, read(), Annotation(window=np.array(window, np.int32)), whole)
    assert len(decoded) == 8 < len(windows)


# -- reading


@pytest.mark.parametrize("crop", [None, packer.CenterCrop(10), packer.RandomResizedCrop(7), packer.Resize(9)])
def test_a_loader_sees_no_more_than_the_tile(crop: Any, voc: Path) -> None:
    shared, single = build(voc, "shared"), build(voc, "single", encode="raw")
    loaders = [PackedLoader(pack, 8, crop=crop, shuffle=True, seed=4) for pack in (shared, single)]
    for (images, targets), (others, its) in zip(*loaders, strict=True):
        assert images.shape == others.shape
        assert (images.int() - others.int()).abs().max() <= (1 if crop is None else 12)  # packer-fast may decode them
        for one, other in zip(targets, its, strict=True):
            assert one["window"].tolist() == other["window"].tolist()
            assert one["boxes"].tolist() == other["boxes"].tolist()


def test_a_dataset_gives_tiles_and_labels_stay_numbers(voc: Path, tmp_path: Path) -> None:
    shared, single = build(voc, "shared"), build(voc, "single", encode="raw")
    images = PackedDataset(shared).__getitems__([5, 1])
    assert all((image.int() - single_image.int()).abs().max() <= 1 for (image, _), single_image in zip(
        images, (PackedDataset(single)[i][0] for i in (5, 1)), strict=True))  # fmt: skip
    from drawn import draw_classes

    plain = build(draw_classes(tmp_path / "classes"), "labels")
    assert PackedDataset(plain).targets == plain.column("label").tolist()


def test_the_page_says_which_tile_it_is(voc: Path) -> None:
    from packer.view.facts import record_facts

    assert "16 x 12 at 12, 0 of 40 x 30" in str(record_facts(build(voc, "shared"), 1))


# -- packs of packs


def test_tiles_of_an_image_stay_together(voc: Path) -> None:
    pack = build(voc, "shuffled", shuffle=2, shard_bytes=1500)
    order = [path for path, _ in itertools.groupby(pack.paths)]
    assert len(order) == 8 and order != sorted(order)
    firsts = np.cumsum([0, *(shard.records for shard in pack.manifest.shards)])[:-1]
    assert all(i == 0 or pack.paths[i - 1] != pack.paths[i] for i in firsts.tolist())
    good("split", pack.path, "--parts", "train=0.5,val=0.5")
    parts = [packer.open_pack(f"{pack.path}-{name}") for name in ("train", "val")]
    assert not {*parts[0].paths} & {*parts[1].paths}
    merged = good("merge", parts[0].path, parts[1].path, "-o", f"{pack.path}-again", "--duplicates", "drop")
    again = packer.open_pack(f"{pack.path}-again")
    assert merged.code == 0 and len(again) == len(pack) and again.manifest.windows
    assert good("hash", again.path, "--by-path").out.split()[0] == good("hash", pack.path, "--by-path").out.split()[0]


def test_a_conversion_stores_each_tile(voc: Path) -> None:
    shared, single = build(voc, "shared"), build(voc, "single", encode="raw")
    good("convert", shared.path, f"{shared.path}-raw", "--encode", "raw")
    made = packer.open_pack(f"{shared.path}-raw")
    assert made.manifest.version == 2 and not made.manifest.windows and not made.manifest.linked
    assert all((made.image(i) == single.image(i)).all() for i in range(len(single)))


def test_extracted_tiles_are_named_by_their_place(voc: Path, tmp_path: Path) -> None:
    pack = build(voc, "shared")
    good("extract", pack.path, tmp_path / "files", "--layout", "voc")
    names = sorted(file.stem for file in (tmp_path / "files").rglob("*.png"))
    stems = (f"{Path(path).stem}_{x}_{y}" for path, (x, y, *_) in zip(pack.paths, pack.column("window"), strict=True))
    assert names == sorted(stems)
    first = cv2.imread(str(next((tmp_path / "files").rglob(f"{Path(pack.paths[1]).stem}_12_0.png"))))
    assert (first[..., ::-1] == pack.image(1)).all()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("convert", "PACK", "OUT"), "as often as it has tiles"),
        (("update", "PACK", "SRC"), "are not updated"),
        (("edit", "PACK", "--source", "SRC"), "the pack has tiles"),
        (("edit", "PACK", "--delete", "KEYS"), "is the key of a tile"),
        (("merge", "PACK", "SINGLE", "-o", "OUT"), "are not merged"),
    ],
)
def test_what_cannot_be_done_with_shared_images_is_refused(words: Any, problem: str, voc: Path, tmp_path: Path) -> None:
    shared, single = build(voc, "shared"), build(voc, "single", encode="png")
    (tmp_path / "keys.txt").write_text("00000001\n")
    places = {"PACK": shared.path, "SINGLE": single.path, "OUT": tmp_path / "out", "SRC": voc}
    places["KEYS"] = tmp_path / "keys.txt"
    before = packer.open_pack(shared.path).manifest.digest
    assert problem in refused(EXIT_USAGE, *(places.get(word, word) for word in words))
    assert packer.open_pack(shared.path).manifest.digest == before


def test_a_deleted_image_goes_with_its_tiles_and_purge_refuses(voc: Path, tmp_path: Path) -> None:
    pack = build(voc, "shared")
    (tmp_path / "gone.txt").write_text(f"{pack.paths[0]}\n")
    good("edit", pack.path, "--delete", tmp_path / "gone.txt")
    left = packer.open_pack(pack.path)
    assert pack.paths[0] not in left.paths and (left.image(0) == pack.image(len(pack) - len(left))).all()
    assert good("verify", pack.path, "--deep").code == 0
    assert "are not written again" in refused(EXIT_USAGE, "purge", pack.path)


def test_a_window_that_is_none_of_its_image_is_damage(voc: Path) -> None:
    pack = build(voc, "shared")
    pack.reader.rows = lambda names, records: [[np.array([30, 0, 16, 12, 40, 30])] * len(records)]  # type: ignore[method-assign]
    with pytest.raises(packer.PackerError, match="none of its image"):
        pack.image(0)


def test_a_window_of_other_numbers_is_damage(voc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = build(voc, "tiles", encode="png")
    monkeypatch.setattr(packer.Pack, "annotation", lambda *_: Annotation(window=np.array([3], np.int32)))
    with pytest.raises(packer.PackerError, match="which is none"):
        pack.window(0)
    with pytest.raises(packer.PackerError, match="which is none"):
        packer.extract(pack.path, voc.parent / "out", "voc")


# -- back to the images


def found_on(pack: packer.Pack, i: int) -> dict[str, Any]:
    """The labels of a tile as predictions."""
    annotation = pack.annotation(i)
    assert annotation.boxes is not None
    scores = np.full(len(annotation.boxes), 0.5, np.float32)
    return {"boxes": annotation.boxes, "scores": scores, "labels": annotation.box_labels}


@pytest.mark.parametrize(("resize", "fit"), [(None, None), ("32x24", None), ("48x48", "pad"), ("64x24", "pad")])
def test_labels_of_tiles_become_those_of_the_images(resize: str | None, fit: str | None, voc: Path) -> None:
    options = {"tile": "28x22", "overlap": 0.5, "min_visible": 0.0}
    pack = build(voc, "tiles", encode="png", resize=resize, fit=fit, **options)
    whole = build(voc, "whole", tile=None, overlap=None, min_visible=None)
    merged = packer.merge_tiles([found_on(pack, i) for i in range(len(pack))], pack, threshold=0.1)
    for i, path in enumerate(whole.paths):
        assert merged[path]["size"] == (40, 30)
        for box in whole.annotation(i).boxes.tolist():
            nearest = np.abs(merged[path]["boxes"] - box).max(axis=1).min()
            assert nearest < 1e-3


@pytest.mark.parametrize("fit", ["pad", "crop"])
def test_tiles_that_nobody_knows_how_to_undo(fit: str, voc: Path) -> None:
    pack = build(voc, "tiles", encode="png", resize="20x30", fit="stretch", tile="28x22")
    given = {"resize": "64x64", "fit": fit}
    packer.convert(pack.path, voc.parent / "again", encode="png", **given)
    again = packer.open_pack(voc.parent / "again")
    assert again.reader.shape_of(0)[:2] == (64, 64)
    again.manifest.options["resize"] = "63x64"  # as of two conversions
    with pytest.raises(packer.PackerError, match="more than once"):
        packer.merge_tiles([found_on(again, i) for i in range(len(again))], again)


def test_overlapping_predictions_are_merged_or_dropped() -> None:
    windows = [[0, 0, 10, 10, 16, 10], [6, 0, 10, 10, 16, 10]]
    left = {"boxes": [[4, 2, 10, 6]], "scores": [0.9], "labels": [1], "keypoints": [[[5, 3, 2]]]}
    right = {"boxes": [[0, 2, 6, 6]], "scores": [0.8], "labels": [1], "keypoints": [[[1, 3, 2]]]}

    def of(**given: Any) -> dict[str, Any]:
        return packer.merge_tiles([left, right], windows, images=["a", "a"], **given)["a"]

    assert of()["boxes"].tolist() == [[4, 2, 12, 6]] and of()["scores"].tolist() == [0.9]
    assert of(method="nms")["boxes"].tolist() == [[4, 2, 10, 6]]
    none = of(method="none")
    assert none["boxes"].tolist() == [[4, 2, 10, 6], [6, 2, 12, 6]] and none["keypoints"][1].tolist() == [[7, 3, 2]]
    assert len(of(metric="iou", threshold=0.6)["boxes"]) == 2
    right["labels"] = [0]
    assert len(of()["boxes"]) == 2 and len(of(class_agnostic=True)["boxes"]) == 1


@pytest.mark.parametrize(
    "given", [{"method": "soft"}, {"metric": "giou"}, {"threshold": 0}, {"records": [0, 1]}, {"images": None}]
)
def test_wrong_arguments_of_merge_tiles(given: dict[str, Any]) -> None:
    boxes = {"boxes": [[0, 0, 1, 1]], "scores": [1.0], "labels": [0]}
    with pytest.raises(packer.PackerError):
        packer.merge_tiles([boxes], [[0, 0, 4, 4, 4, 4]], **{"images": ["a"], **given})


def test_the_command_counts_tiles(voc: Path) -> None:
    ran = good("build", voc, "-o", voc.parent / "p.lmdb", "--tile", "16x12", "--split", "all")
    count = f"{len(packer.open_pack(voc.parent / 'p.lmdb')):,} tiles"
    assert f"plan: {count}, " in ran.out and f"packed {count}: " in ran.out
