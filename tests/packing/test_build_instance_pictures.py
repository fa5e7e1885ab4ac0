"""Pictures with the numbers of objects: as Penn-Fudan, Pascal VOC, Cityscapes and COCO panoptic have them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import image_file
from drawn_instances import Masks, read_masks
from drawn_masks import picture, write_files
from PIL import Image
from running import good

import packer
from packer import BuildOptions, build_pack
from packer.errors import TooManyBad, UsageError

SIZE = (30, 40)


def build(source: Path, labels: Any = "instances", **options: Any) -> packer.Pack:
    out = source.parent / f"{source.name}-{len(list(source.parent.iterdir()))}.lmdb"
    build_pack(BuildOptions(str(source), str(out), labels=labels, workers=1, **options))
    return packer.open_pack(out)


def numbers(seed: int, most: int = 5) -> Masks:
    """Numbers of objects: rectangles, which partly hide each other, on 0."""
    random, found = np.random.default_rng(seed), np.zeros(SIZE, np.uint8)
    for number in range(1, most):
        y, x = random.integers(0, 20), random.integers(0, 30)
        found[y : y + 9, x : x + 11] = number
    return found


def assert_objects(pack: packer.Pack, i: int, wanted: dict[int, Masks], names: list[str]) -> None:
    """An object for each number, in order, with the bounds of its pixels as its box."""
    found, annotation = read_masks(pack, i), pack.annotation(i)
    assert np.array_equal(found, np.stack([*wanted.values()]))
    assert [pack.classes[one] for one in annotation.box_labels] == names
    for mask, box in zip(found, annotation.boxes.tolist(), strict=True):
        ys, xs = np.nonzero(mask)
        assert box == [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]


def masks_in(values: Masks, *ignored: int) -> dict[int, Masks]:
    return {n: values == n for n in np.unique(values).tolist() if n and n not in ignored}


def drawn_pairs(where: str, count: int = 3) -> dict[str, bytes]:
    files = {f"PNGImages/im{i}.png": image_file(i, *SIZE[::-1], "PNG") for i in range(count)}
    return files | {where.format(f"im{i}"): picture(numbers(i)) for i in range(count)}


@pytest.mark.parametrize("labels", ["instances", "instances:PedMasks", "instances:PedMasks/{stem}_mask.png"])
def test_numbers_of_one_class(labels: str, tmp_path: Path) -> None:
    pack = build(write_files(tmp_path / "set", drawn_pairs("PedMasks/{}_mask.png")), labels)
    for i in range(3):
        wanted = masks_in(numbers(i))
        assert_objects(pack, i, wanted, ["object"] * len(wanted))
    assert len(pack) == 3 and pack.manifest.parts == {}


@pytest.mark.parametrize("form", ["colors", "16 bits", "8 bits"])
def test_only_the_255_of_8_bits_is_ignored(form: str, tmp_path: Path) -> None:
    """In colors it is blue, and in pictures of 16 bits the 255th object."""
    values = numbers(1).astype(np.uint16)
    values[values == 4] = 255
    pixels = np.dstack([np.zeros_like(values), values * 0, values]) if form == "colors" else values
    data = picture(pixels if form == "16 bits" else pixels.astype(np.uint8))
    files = drawn_pairs("PedMasks/{}_mask.png") | {"PedMasks/im0_mask.png": data}
    source = write_files(tmp_path / "set", files)
    wanted = masks_in(values, *([255] if form == "8 bits" else []))
    assert 255 in values
    assert_objects(build(source), 0, wanted, ["object"] * len(wanted))
    left = {n: mask for n, mask in masks_in(values).items() if n != 2}
    assert_objects(build(source, ignore_id=2), 0, left, ["object"] * len(left))


def test_the_class_has_the_name_of_the_list(tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", {**drawn_pairs("PedMasks/{}_mask.png"), "names": b"person\n"})
    assert build(source, classes=str(source / "names")).classes == ["person"]


def test_auto_says_which_option_reads_numbers(tmp_path: Path) -> None:
    pack = build(write_files(tmp_path / "set", drawn_pairs("PedMasks/{}_mask.png")), "auto")
    assert any("--labels=instances packs a mask of each object" in note for note in pack.manifest.notes)


def voc(palette: bool = True) -> dict[str, bytes]:
    files = {}
    for i in range(2):
        values = numbers(i)
        values[5, :] = 255  # a border
        classes = np.select([values == 1, values == 2, values == 255], [15, 3, 255], 8).astype(np.uint8)
        classes[values == 0] = 0
        files[f"JPEGImages/im{i}.jpg"] = image_file(i, *SIZE[::-1])
        files[f"SegmentationObject/im{i}.png"] = picture(values, palette=palette)
        files[f"SegmentationClass/im{i}.png"] = picture(classes, palette=palette)
    return files


def test_pascal_voc(tmp_path: Path) -> None:
    source = write_files(tmp_path / "VOC2012", voc())
    pack = build(source)
    for i in range(2):
        values = numbers(i)
        values[5, :] = 255
        wanted = masks_in(values, 255)
        assert_objects(pack, i, wanted, [{1: "person", 2: "bird"}.get(n, "cat") for n in wanted])
    assert pack.classes[0] == "aeroplane" and len(pack.classes) == 20
    wanted = masks_in(values, 255, 1)
    assert_objects(build(source, ignore_id=1), 1, wanted, [{2: "bird"}.get(n, "cat") for n in wanted])
    both = build(source, ("masks", "instances"))
    assert both.manifest.masks["mask"].classes[0] == "background" and both.annotation(0).rles is not None
    assert set(np.unique(both.mask(0))) <= {0, 3, 8, 15, 255}
    notes = build(source, "auto").manifest.notes
    assert any('SegmentationObject/" (--labels=instances packs objects)' in note for note in notes)


def test_a_class_picture_that_is_missing_or_of_other_classes(tmp_path: Path) -> None:
    files = voc()
    with pytest.raises(UsageError, match=r"im1.png has no picture in SegmentationClass/"):
        build(write_files(tmp_path / "a", {n: data for n, data in files.items() if n != "SegmentationClass/im1.png"}))
    files["SegmentationClass/im1.png"] = picture(np.full(SIZE, 77, np.uint8))
    with pytest.raises(TooManyBad) as caught:
        build(write_files(tmp_path / "b", files))
    assert "gives object 1 the class 77, which has no name" in str(caught.value.rejected)


def test_cityscapes(tmp_path: Path) -> None:
    values = np.full(SIZE, 7, np.uint16)  # road
    values[2:9, 3:9], values[12:20, 5:9], values[12:20, 20:29], values[25:, :] = 26001, 24000, 25, 26
    name = "aachen/aachen_000000_000019"
    files = {f"leftImg8bit/train/{name}_leftImg8bit.png": image_file(1, *SIZE[::-1], "PNG")}
    files[f"gtFine/train/{name}_gtFine_instanceIds.png"] = picture(values)
    files[f"gtFine/train/{name}_gtFine_labelIds.png"] = picture((values // 1000).astype(np.uint8))
    files |= {path.replace("000019", "000020"): data for path, data in files.items()}
    pack = build(write_files(tmp_path / "city", files))
    numbers_there = [25, 26, 24000, 26001]
    assert_objects(pack, 0, {n: values == n for n in numbers_there}, ["rider", "car", "person", "car"])
    assert pack.annotation(0).box_fields["iscrowd"] == (1, 1, 0, 0)
    assert pack.classes == ["person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"]


@pytest.mark.parametrize("labels", ["instances", "instances:annotations/panoptic_val.json"])
def test_coco_panoptic(labels: str, tmp_path: Path) -> None:
    ids = {1: 70000, 2: 258, 3: 7, 4: 16777215}
    files, entries = {}, []
    for i in range(2):
        values = numbers(i)
        pixels = np.zeros((*SIZE, 3), np.uint8)
        for n, key in ids.items():
            pixels[values == n] = (key & 255, key >> 8 & 255, key >> 16)
        files[f"val/im{i}.jpg"] = image_file(i, *SIZE[::-1])
        files[f"annotations/panoptic_val/im{i}.png"] = picture(pixels)
        infos = [{"id": key, "category_id": 10 + n, "iscrowd": int(n == 2)} for n, key in ids.items()]
        entries.append({"file_name": f"im{i}.png", "image_id": i, "segments_info": infos})
    categories = [{"id": 10 + n, "name": f"thing {n}", "isthing": int(n != 3)} for n in ids]
    content = {"images": [], "annotations": entries, "categories": categories}
    files["annotations/panoptic_val.json"] = json.dumps(content).encode()
    pack = build(write_files(tmp_path / "coco", files), labels)
    order = sorted((n for n in ids if n != 3), key=lambda n: int.from_bytes(ids[n].to_bytes(3, "little"), "big"))
    for i in range(2):
        values = numbers(i)
        wanted = {n: values == n for n in order if (values == n).any()}
        assert_objects(pack, i, wanted, [f"thing {n}" for n in wanted])
        assert pack.annotation(i).box_fields["iscrowd"] == tuple(int(n == 2) for n in wanted)
    assert pack.classes == ["thing 1", "thing 2", "thing 4"]


@pytest.mark.parametrize("name", ["jpeg", "size", "cut"])
def test_bad_pictures(name: str, tmp_path: Path) -> None:
    files = drawn_pairs("PedMasks/{}_mask.png")
    data = {"size": picture(numbers(1)[:20]), "cut": files["PedMasks/im1_mask.png"][:90]}
    if name == "jpeg":
        files["PedMasks/im1_mask.jpg"] = picture(numbers(1), "JPEG")
        del files["PedMasks/im1_mask.png"]
    else:
        files["PedMasks/im1_mask.png"] = data[name]
    with pytest.raises(TooManyBad) as caught:
        build(write_files(tmp_path / "set", files), "instances:PedMasks")
    assert len(caught.value.rejected) == 1 and "im1" in caught.value.rejected[0].path


def test_no_pictures(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no pictures were found"):
        build(write_files(tmp_path / "set", {"a.png": image_file(1, 40, 30, "PNG")}))


def test_real_pedestrians(real_data: Path, tmp_path: Path) -> None:
    source = real_data / "masks_pennfudan"
    good("build", source, "-o", tmp_path / "p.lmdb", "--labels", "instances", "--workers", 1)
    pack = packer.open_pack(tmp_path / "p.lmdb")
    for i, path in enumerate(pack.paths):
        values = np.asarray(Image.open(source / "PedMasks" / f"{Path(path).stem}_mask.png"))
        wanted = masks_in(values)
        assert_objects(pack, i, wanted, ["object"] * len(wanted))


def coded(codes: dict[int, int], seed: int) -> Any:
    """Numbers of objects as other values, uint16."""
    return np.array([codes.get(n, 0) for n in range(5)], np.uint16)[numbers(seed)]


def test_mots(tmp_path: Path) -> None:
    """KITTI MOTS: class * 1000 + track; 10000 is an ignored region. auto names the command."""
    codes = {1: 1002, 2: 2005, 3: 1001, 4: 10000}
    files = {f"images/0001/{i:06}.png": image_file(i, *SIZE[::-1], "PNG") for i in range(3)}
    files |= {f"instances/0001/{i:06}.png": picture(coded(codes, i)) for i in range(3)}
    source = write_files(tmp_path / "mots", files)
    with pytest.raises(UsageError, match=r"choose one: labels=.instances. \(a mask of each object"):
        build(source, "auto")
    pack = build(source)
    for i in range(3):
        values = coded(codes, i)
        there = [n for n in np.unique(values).tolist() if n]
        names = [{1: "car", 2: "pedestrian", 10: "__ignore__"}[n // 1000] for n in there]
        assert_objects(pack, i, {n: values == n for n in there}, names)
        fields = pack.annotation(i).box_fields
        assert fields["track"] == tuple(n % 1000 for n in there)
        assert fields["ignore"] == tuple(int(n == 10000) for n in there)


def test_mots_with_names(tmp_path: Path) -> None:
    codes = {1: 1002, 2: 3005, 3: 3001, 4: 4007}
    files = {f"train/images/{i}.png": image_file(i, *SIZE[::-1], "PNG") for i in range(2)}
    files |= {f"train/instances/{i}.png": picture(coded(codes, i)) for i in range(2)}
    pack = build(write_files(tmp_path / "mots", files | {"train/instances/labels.txt": b"a\nb\nc\nd\n"}), split="train")
    values = coded(codes, 0)
    there = [n for n in np.unique(values).tolist() if n]
    assert_objects(pack, 0, {n: values == n for n in there}, ["abcd"[n // 1000 - 1] for n in there])


def test_numbers_that_hold_no_class(tmp_path: Path) -> None:
    """In a folder called as that of MOTS they are just numbers."""
    files = {f"images/{i}.png": image_file(i, *SIZE[::-1], "PNG") for i in range(2)}
    files |= {f"instances/{i}.png": picture(numbers(i).astype(np.uint16)) for i in range(2)}
    pack = build(write_files(tmp_path / "set", files))
    assert_objects(pack, 1, masks_in(numbers(1)), ["object"] * len(masks_in(numbers(1))))


def test_instances_of_kitti(tmp_path: Path) -> None:
    """labelIds of Cityscapes * 256 + number, 0 for groups; what is no thing, as road, is no object."""
    codes = {0: 7 * 256, 1: 26 * 256 + 1, 2: 26 * 256 + 2, 3: 24 * 256, 4: 11 * 256}
    files = {f"training/image_2/{i:06}_10.png": image_file(i, *SIZE[::-1], "PNG") for i in range(2)}
    files |= {f"training/instance/{i:06}_10.png": picture(coded(codes, i)) for i in range(2)}
    pack = build(write_files(tmp_path / "kitti", files))
    values = numbers(0)
    wanted = [n for n in (3, 1, 2) if (values == n).any()]
    assert_objects(pack, 0, {n: values == n for n in wanted}, [{3: "person"}.get(n, "car") for n in wanted])
    assert pack.annotation(0).box_fields["iscrowd"] == tuple(int(n == 3) for n in wanted)


def test_instances_of_mapillary_vistas(tmp_path: Path) -> None:
    """Class * 256 + number, from 0; of two versions the newer one; classes without instances are none."""
    codes = {0: 2 * 256, 1: 0, 2: 1, 3: 256, 4: 257}
    rows = [{"name": name, "instances": name != "sky"} for name in ("bird", "car", "sky")]
    files = {"config_v2.0.json": json.dumps({"labels": rows}).encode(), "config_v1.2.json": b'{"labels": []}'}
    for i in range(2):
        files[f"training/images/{i}.jpg"] = image_file(i, *SIZE[::-1])
        files[f"training/v2.0/instances/{i}.png"] = picture(coded(codes, i))
        files[f"training/v1.2/instances/{i}.png"] = picture(np.zeros(SIZE, np.uint16))
    pack = build(write_files(tmp_path / "vistas", files))
    values = numbers(1)
    wanted = [n for n in (1, 2, 3, 4) if (values == n).any()]
    assert_objects(pack, 1, {n: values == n for n in wanted}, ["bird" if n < 3 else "car" for n in wanted])


def ade20k(year: int) -> dict[str, bytes]:
    """Two images of the full ADE20K, with pictures of parts and, of 2020, of each object."""
    names = {1: "sky", 2: "person, individual", 3: "café", 4: "sky"}
    kinds = {"sky": 2420, "person, individual": 1831, "café": 401}
    files = {}
    for i in range(2):
        stem = f"training/urban/street/ADE_train_0000000{i}"
        values, pixels = numbers(i), np.zeros((*SIZE, 3), np.uint8)
        for n, name in names.items():
            pixels[values == n] = (kinds[name] // 256 * 10, kinds[name] % 256, n)
        files[f"{stem}.jpg"] = image_file(i, *SIZE[::-1])
        files[f"{stem}_seg.png"] = picture(pixels)
        files[f"{stem}_parts_1.png"] = picture(np.zeros_like(pixels))
        if year == 2017:
            rows = [f'{n:03} # 0 # 0 # {name} # {name} # "red"' for n, name in names.items()]
            files[f"{stem}_atr.txt"] = "\n".join([*rows, '001 # 1 # 0 # wheel # wheel # ""']).encode("latin-1")
        else:
            objects = [{"id": n, "name": name, "name_ndx": kinds[name]} for n, name in names.items()]
            content = {"annotation": {"filename": "1.jpg", "object": objects}}
            files[f"{stem}.json"] = json.dumps(content, ensure_ascii=False).encode("latin-1")
            files |= {f"{stem}/instance_00{n}_ADE_train_0000000{i}.png": picture(values == n) for n in names}
    return files


@pytest.mark.parametrize("year", [2017, 2020])
def test_one_image_of_ade20k(year: int, tmp_path: Path) -> None:
    files = {name: data for name, data in ade20k(year).items() if "00000001" not in name}
    with pytest.raises(UsageError, match=r'labels=.instances. \(a mask of each object: "\*_seg"\)'):
        build(write_files(tmp_path / "ADE20K", files), "auto")


@pytest.mark.parametrize("year", [2017, 2020])
def test_ade20k(year: int, tmp_path: Path) -> None:
    source = write_files(tmp_path / "ADE20K", ade20k(year))
    with pytest.raises(UsageError, match=r'labels=.instances. \(a mask of each object: "\*_seg"\)'):
        build(source, "auto")
    pack = build(source)
    assert len(pack) == 2 and pack.classes == ["café", "person, individual", "sky"]
    for i in range(2):
        values = numbers(i)
        order = {2017: (3, 2, 1, 4), 2020: (3, 2, 1, 4)}[year]  # by their colors: red, green, number
        wanted = {n: values == n for n in order if (values == n).any()}
        assert_objects(pack, i, wanted, [{2: "person, individual", 3: "café"}.get(n, "sky") for n in wanted])


@pytest.mark.parametrize(
    ("file", "data", "problem"),
    [
        ("_atr.txt", b'001 # 0 # 0 # sky # sky # ""\n', "which training/.*_atr.txt does not name"),
        ("_atr.txt", b"sky\n", "is not an object of ADE20K"),
        ("_atr.txt", None, "has no file of the names"),
        (".json", b'{"annotation": 3}', "is not as ADE20K has it"),
    ],
)
def test_bad_names_of_ade20k(file: str, data: bytes | None, problem: str, tmp_path: Path) -> None:
    files = ade20k(2017 if "atr" in file else 2020)
    name = f"training/urban/street/ADE_train_00000001{file}"
    del files[name]
    with pytest.raises(TooManyBad) as caught:
        build(write_files(tmp_path / "ADE20K", files if data is None else files | {name: data}))
    assert len(caught.value.rejected) == 1 and re.search(problem, caught.value.rejected[0].problem)
