"""Masks of classes in pictures beside the images: found, read, moved with the pixels, and refused if they are wrong."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from drawn import voc_xml
from drawn_masks import COLORS, draw_mask, image_of, nearest_by_hand, pairs, picture, write_files
from PIL import Image

import packer
from packer import BuildOptions, build_pack
from packer.containers import CONTAINERS
from packer.errors import TooManyBad, UsageError
from packer.packing.build import build_packs, plan_pack
from packer.sources.mask_values import CITYSCAPES_CLASSES, CITYSCAPES_IDS, VOC_CLASSES

NAMES = "background\nant\nbee\ncat\n"


def build(source: Path, **options: Any) -> packer.Pack:
    out = source.parent / f"{source.name}.{options.pop('format', 'lmdb')}"
    build_pack(BuildOptions(str(source), str(out), workers=1, **options))
    return packer.open_pack(out)


def masks_of(pack: packer.Pack) -> dict[str, Any]:
    return {Path(path).stem: pack.mask(i) for i, path in enumerate(pack.paths)}


def drawn(count: int = 4) -> dict[str, Any]:
    return {f"im{seed}": draw_mask(seed) for seed in range(count)}


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)


LAYOUTS = {
    "images and masks": ("images/{}.png", "masks/{}.png", "masks/"),
    "splits inside": ("images/train/{}.png", "masks/train/{}.png", "masks/"),
    "inside splits": ("train/images/{}.png", "train/masks/{}.png", "train/masks/"),
    "VOC": ("JPEGImages/{}.png", "SegmentationClass/{}.png", "SegmentationClass/"),
    "labels of pictures": ("images/{}.png", "labels/{}.png", "labels/"),
    "annotations": ("images/{}.png", "annotations/{}.png", "annotations/"),
    "folder and its masks": ("train/{}.png", "train_masks/{}.png", "train_masks/"),
    "CamVid": ("train/{}.png", "trainannot/{}.png", "trainannot/"),
    "beside": ("{}.png", "{}_mask.png", "*_mask"),
    "endings in a folder": ("PNGImages/{}.png", "PedMasks/{}_mask.png", "PedMasks/*_mask"),
    "other extension": ("images/{}.png", "masks/{}.bmp", "masks/"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_are_found_by_their_names(layout: str, tmp_path: Path) -> None:
    images, masks, where = LAYOUTS[layout]
    kind = "BMP" if masks.endswith("bmp") else "PNG"
    pack = build(write_files(tmp_path / "set", pairs(images, masks, kind=kind)))
    assert same(masks_of(pack), drawn())
    assert f"--mask {where}: 4 masks fit images" in pack.manifest.notes[0]
    assert pack.manifest.parts == {"mask": "mask"} and pack.manifest.fields == ()


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("options", [{}, {"resize": "17x13"}, {"resize": "24", "encode": "jpeg"}], ids=str)
def test_every_container_holds_masks(container: str, options: dict[str, Any], tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", pairs(masks="masks/{}.png"))
    pack = build(source, format=container, **options)
    height, width, _ = pack.manifest.shape or (0, 0, 0)
    assert same(masks_of(pack), {name: nearest_by_hand(mask, height, width) for name, mask in drawn().items()})
    assert not packer.verify(pack.path).problems


@pytest.mark.parametrize("encode", ["raw", "zstd", "png"])
@pytest.mark.parametrize("deep", [False, True])
def test_masks_are_stored_as_asked(encode: str, deep: bool, tmp_path: Path) -> None:
    masks = {name: mask.astype(np.uint16) * (300 if deep else 1) for name, mask in drawn().items()}
    files = pairs() | {f"masks/{name}.png": picture(mask) for name, mask in masks.items()}
    pack = build(write_files(tmp_path / "set", files), mask_encode=encode)
    assert pack.manifest.masks["mask"].dtype == "uint16"
    assert same(masks_of(pack), masks)


def test_palettes_stay_indices(tmp_path: Path) -> None:
    files = pairs("JPEGImages/{}.png", "SegmentationClass/{}.png", palette=True)
    pack = build(write_files(tmp_path / "set", files))
    assert same(masks_of(pack), drawn())
    assert pack.manifest.masks["mask"].classes == VOC_CLASSES == tuple(pack.classes)
    assert pack.manifest.masks["mask"].ignore == 255


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_levels_of_few_bits_are_those_of_the_file(bits: int, tmp_path: Path) -> None:
    files = pairs()
    for name, mask in drawn().items():
        levels = Image.fromarray(mask % (1 << bits))
        levels.putpalette([0] * 768)
        file = io.BytesIO()
        levels.save(file, "PNG", bits=bits)
        files[f"masks/{name}.png"] = file.getvalue()
    pack = build(write_files(tmp_path / "set", files))
    assert same(masks_of(pack), {name: mask % (1 << bits) for name, mask in drawn().items()})


def test_gray_levels_of_four_bits_without_a_palette(tmp_path: Path) -> None:
    """A PNG of 2 levels of gray in each 4 bits, written by hand: no library writes one."""
    import struct
    import zlib

    mask = draw_mask(0)
    rows = b"".join(b"\0" + bytes(int(a) << 4 | int(b) for a, b in row.reshape(-1, 2)) for row in mask)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 40, 30, 4, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    pack = build(write_files(tmp_path / "set", pairs() | {"masks/im0.png": data}))
    assert same(masks_of(pack), drawn())


@pytest.mark.parametrize("fit", ["stretch", "short", "long", "crop", "pad"])
@pytest.mark.parametrize("size", [(40, 30), (30, 40), (33, 57)])
def test_masks_move_with_the_pixels(fit: str, size: tuple[int, int], tmp_path: Path) -> None:
    masks = {f"im{seed}": draw_mask(seed, *size) for seed in range(3)}
    files = {f"images/{name}.png": image_of(mask) for name, mask in masks.items()}
    files |= {f"masks/{name}.png": picture(mask) for name, mask in masks.items()}
    target = "60" if fit in ("short", "long") else "90x60"
    pack = build(write_files(tmp_path / "set", files), resize=target, fit=fit, ignore_id=9)
    for i in range(len(pack)):
        image, mask = pack[i].image, pack.mask(i)
        assert mask is not None and mask.shape == image.shape[:2]
        # the pixels of one color, away from the edges of blocks, have its id; those of a border are ignored
        for number, color in enumerate(COLORS[:4]):
            assert set(np.unique(mask[(image == color).all(axis=2)])) <= {number}
        assert (mask[image.max(axis=2) == 0] == 9).all() and (9 in mask) == (fit == "pad")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("frame", ["upright", "stored"])
def test_masks_follow_the_orientation(orientation: int, frame: str, tmp_path: Path) -> None:
    """A mask of the upright size is upright; one of the stored size, if that is another, turns with the pixels."""
    if frame == "stored" and orientation < 5:
        pytest.skip("both frames have the same size: such a mask is upright")
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
              8: Image.Transpose.ROTATE_90}  # fmt: skip
    files, wanted = {}, {}
    for name, mask in drawn().items():
        files[f"images/{name}.png"] = image_of(mask, exif=exif)
        upright = np.asarray(Image.fromarray(mask).transpose(turned[orientation])) if orientation > 4 else mask
        files[f"masks/{name}.png"] = picture(mask if frame == "stored" else upright)
        wanted[name] = upright
    pack = build(write_files(tmp_path / "set", files))
    assert same(masks_of(pack), wanted)
    assert any("masks taken to be upright" in note for note in pack.manifest.notes) == (1 < orientation < 5)


def test_black_and_white_is_two_classes(tmp_path: Path) -> None:
    files = pairs() | {f"masks/{name}.png": picture((mask > 0) * np.uint8(255)) for name, mask in drawn().items()}
    pack = build(write_files(tmp_path / "set", files))
    assert same(masks_of(pack), {name: mask > 0 for name, mask in drawn().items()})
    assert pack.classes == ["background", "foreground"]


def test_jpegs_in_black_and_white_are_read_by_their_half(tmp_path: Path) -> None:
    masks = {name: (np.kron(mask, np.ones((8, 8), np.uint8)) > 0) * np.uint8(255) for name, mask in drawn().items()}
    files = {f"images/{name}.jpg": picture(np.dstack([mask] * 3), "JPEG") for name, mask in masks.items()}
    files |= {f"masks/{name}.jpg": picture(mask, "JPEG", quality=90) for name, mask in masks.items()}
    pack = build(write_files(tmp_path / "set", files))
    assert same(masks_of(pack), {name: mask > 0 for name, mask in masks.items()})


COLOR_FILES = {
    "labelmap.txt": "# label:color_rgb:parts:actions\nbackground:20,20,20::\nant:220,30,30::\n"
    "bee:30,220,30::\ncat:30,30,220::\n",
    "class_dict.csv": "name,r,g,b\nbackground,20,20,20\nant,220,30,30\nbee,30,220,30\ncat,30,30,220\n",
    "label_colors.txt": "20 20 20\tbackground\n220 30 30\tant\n30 220 30\tbee\n30 30 220\tcat\n",
}


@pytest.mark.parametrize("file", COLOR_FILES)
def test_colors_are_read_from_the_file_beside(file: str, tmp_path: Path) -> None:
    files = pairs() | {f"masks/{name}.png": picture(COLORS[mask]) for name, mask in drawn().items()}
    pack = build(write_files(tmp_path / "set", files | {file: COLOR_FILES[file].encode()}))
    assert same(masks_of(pack), drawn())
    assert pack.classes == ["background", "ant", "bee", "cat"]


def test_colors_and_maps_that_are_given(tmp_path: Path) -> None:
    files = pairs() | {f"masks/{name}.png": picture(COLORS[mask]) for name, mask in drawn().items()}
    source = write_files(tmp_path / "set", files)
    with pytest.raises(UsageError, match="masks in colors, and no file says what they mean"):
        build(source)
    (tmp_path / "colors").write_text("background #141414\nant #dc1e1e\nbee #1edc1e\ncat #1e1edc\n")
    pack = build(source, mask_values=f"colors:{tmp_path / 'colors'}")
    assert same(masks_of(pack), drawn())
    (tmp_path / "map").write_text("0 1 rest\n1 0 ant\n2 0\n3 255\n")
    pack = build(write_files(tmp_path / "ids", pairs()), mask_values=f"map:{tmp_path / 'map'}")
    wanted = {name: np.array([1, 0, 0, 255], np.uint8)[mask] for name, mask in drawn().items()}
    assert same(masks_of(pack), wanted) and pack.classes == ["ant", "rest"]
    (tmp_path / "map.json").write_text('{"0": 0, "1": 1, "2": 1, "3": 2}')
    pack = build(write_files(tmp_path / "json", pairs()), mask_values=f"map:{tmp_path / 'map.json'}")
    assert same(masks_of(pack), {name: np.array([0, 1, 1, 2])[mask] for name, mask in drawn().items()})


@pytest.mark.parametrize(
    ("form", "text", "problem"),
    [
        ("colors", "a 1 2\n", "line 1 has no color"),
        ("colors", "a 1 2 3\nb 1 2 3\n", r"line 2 has the color \(1, 2, 3\) of a"),
        ("colors", "\n", "holds no colors"),
        ("map", "0 a\n", "line 1 is not VALUE ID"),
        ("map", "[]", "is not an object of whole numbers"),
        ("map", '{"a": 1}', "is not an object of whole numbers"),
        ("map", "70000 1\n", "a number above 65535"),
    ],
)
def test_bad_files_of_values(form: str, text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(UsageError, match=problem):
        build(write_files(tmp_path / "set", pairs()), mask_values=f"{form}:{tmp_path / 'file'}")


@pytest.mark.parametrize("values", ["colours", "colors", "ids:x", "map:", ""])
def test_unknown_values_are_refused(values: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mask_values"):
        build(write_files(tmp_path / "set", pairs()), mask_values=values or "x")


def test_masks_without_names_are_said_to_have_none(tmp_path: Path) -> None:
    """Numbers of objects look like ids of classes: only the user knows."""
    source = write_files(tmp_path / "set", pairs())
    for asked in (None, "ids"):
        pack = build(source, mask_values=asked, overwrite=True)
        assert any("no names of classes" in note for note in pack.manifest.notes) == (asked is None)


def test_names_beside_the_masks(tmp_path: Path) -> None:
    pack = build(write_files(tmp_path / "set", pairs() | {"classes.txt": NAMES.encode()}))
    assert pack.classes == NAMES.split() == list(pack.manifest.masks["mask"].classes)
    assert "left unread" not in pack.manifest.notes[0] or "0 files left unread" in pack.manifest.notes[0]
    for asked, what in (("label", "labels of images"), ("box_label", "boxes with classes")):
        with pytest.raises(UsageError, match=f"has no {what}; its labels are: mask"):
            pack.where(**{asked: 0})
    assert not any("no names of classes" in note for note in pack.manifest.notes)


YAML = "names: [background, ant, bee, cat]\n"


@pytest.mark.parametrize(
    ("text", "ids", "ignore"),
    [
        ("masks_dir: masks\n", {}, None),
        ("label_mapping: {-1: ignore_label, 0: 1, 1: 0, 3: ignore_label}\n", {0: 1, 1: 0, 3: 255}, None),
        ("masks_dir: masks\nlabel_mapping: {2: null, 3: 255}\n", {2: 7, 3: 7}, 7),
    ],
)
def test_a_data_yaml_of_masks(text: str, ids: dict[int, int], ignore: int | None, tmp_path: Path) -> None:
    """As Ultralytics reads it: tests/integration/test_ultralytics.py compares them."""
    source = write_files(tmp_path / "set", pairs() | {"data.yaml": (YAML + text).encode()})
    pack = build(source, ignore_id=ignore)
    table = np.array([ids.get(value, value) for value in range(4)])
    assert same(masks_of(pack), {name: table[mask] for name, mask in drawn().items()})
    assert pack.classes == ["background", "ant", "bee", "cat"]
    assert pack.manifest.masks["mask"].ignore == (ignore or 255) and "0 files left unread" in pack.manifest.notes[0]


def test_a_data_yaml_of_one_class(tmp_path: Path) -> None:
    masks = {name: mask.clip(0, 1) for name, mask in drawn().items()}
    files = pairs() | {f"masks/{name}.png": picture(mask) for name, mask in masks.items()}
    pack = build(write_files(tmp_path / "set", files | {"data.yaml": b"names: {0: ant}\nmasks_dir: masks\n"}))
    assert same(masks_of(pack), masks) and pack.classes == ["background", "ant"]


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ("[0, 1]", "label_mapping: is not a mapping of values to class ids"),
        ("{0: ant}", 'label_mapping: "0" has no class id, and is not ignore_label'),
        ("{x: 1}", 'label_mapping: "x" has no class id'),
        ("{0: 4}", "label_mapping: names class 4, and names: has 4"),
    ],
)
def test_bad_mappings_of_a_data_yaml(mapping: str, problem: str, tmp_path: Path) -> None:
    text = f"{YAML}label_mapping: {mapping}\n"
    with pytest.raises(UsageError, match=problem):
        build(write_files(tmp_path / "set", pairs() | {"data.yaml": text.encode()}))


def test_cityscapes(tmp_path: Path) -> None:
    """labelTrainIds are preferred; labelIds alone become them, by the published table; all else is ignored."""
    wanted = {}
    files: dict[str, bytes] = {}
    for seed in range(3):
        name, mask = f"aachen_00000{seed}_000019", draw_mask(seed)
        ids = np.array([4, 7, 26, 33], np.uint8)[mask]
        files[f"leftImg8bit/train/aachen/{name}_leftImg8bit.png"] = image_of(mask)
        files[f"gtFine/train/aachen/{name}_gtFine_labelIds.png"] = picture(ids)
        files[f"gtFine/train/aachen/{name}_gtFine_instanceIds.png"] = picture(ids.astype(np.uint16) * 1000)
        files[f"gtFine/train/aachen/{name}_gtFine_color.png"] = picture(COLORS[mask])
        wanted[f"{name}_leftImg8bit"] = np.array([255, 0, 13, 18], np.uint8)[mask]
    assert [CITYSCAPES_IDS[i] for i in (0, 13, 18)] == [7, 26, 33]
    pack = build(write_files(tmp_path / "set", files))
    assert same(masks_of(pack), wanted) and tuple(pack.classes) == CITYSCAPES_CLASSES
    assert any("not packed" in note and "instance" in note.lower() for note in pack.manifest.notes)
    for name, mask in wanted.items():
        stem = name.removesuffix("_leftImg8bit")
        files[f"gtFine/train/aachen/{stem}_gtFine_labelTrainIds.png"] = picture(mask)
    assert same(masks_of(build(write_files(tmp_path / "both", files))), wanted)


def test_scene_parsing(tmp_path: Path) -> None:
    names = "Idx\tRatio\tTrain\tVal\tName\n1\t.1\t1\t1\twall\n2\t.1\t1\t1\tbuilding, edifice\n3\t.1\t1\t1\tsky\n"
    files = pairs("images/training/{}.png", "annotations/training/{}.png") | {"objectInfo150.txt": names.encode()}
    pack = build(write_files(tmp_path / "set", files))
    assert same(masks_of(pack), {name: np.array([255, 0, 1, 2])[mask] for name, mask in drawn().items()})
    assert pack.classes == ["wall", "building, edifice", "sky"]


@pytest.mark.parametrize("where", ["masks", "masks/", "{dir}/../masks/{stem}.png", "./masks", "ABSOLUTE", "OUTSIDE"])
def test_where_masks_are(where: str, tmp_path: Path) -> None:
    outside = where == "OUTSIDE"
    files = pairs(masks="../elsewhere/{}.png" if outside else "masks/{}.png")
    source = write_files(tmp_path / "set", files)
    place = {"ABSOLUTE": str(source / "masks"), "OUTSIDE": str(tmp_path / "elsewhere")}.get(where, where)
    pack = build(source, mask=place)
    assert same(masks_of(pack), drawn())
    assert len(pack) == 4


def test_a_place_without_masks(tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", pairs())
    with pytest.raises(
        UsageError, match=r"has no pictures in \"nothing/\"; its folders with pictures are: images/, masks/"
    ):
        build(source, mask="nothing")
    with pytest.raises(UsageError, match="names no file"):
        build(source, mask="{dir}/{stem}_x.png")
    with pytest.raises(UsageError, match="is not a pattern"):
        build(source, mask="{folder}/x.png")


BAD = {
    "size": (picture(draw_mask(9, 39, 30)), "bad-mask", "has 39x30 pixels, but the image 40x30"),
    "unknown id": (picture(np.full((30, 40), 7, np.uint8)), "bad-mask",
                   r"has the value 7 \(1,200 pixels\), which no class has; the classes are 0 \(background\) to 3, 255"),
    "empty": (b"", "bad-mask", "the file is empty"),
    "cut short": (picture(draw_mask(0))[:-30], "bad-mask", "truncated PNG file"),
    "text": (b"no picture at all, but a long text" * 9, "bad-mask", "not an image"),
    "jpeg": (picture(draw_mask(0), "JPEG"), "bad-mask", "is a JPEG, which changes the values"),
    "16 bits in colors": (cv2.imencode(".png", np.dstack([draw_mask(0).astype(np.uint16) + 256] * 3))[1].tobytes(),
                          "bad-mask", "has 3 channels of 16 bits"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("white", [1, 255, 65535])
def test_binary_masks(white: int, dtype: Any, tmp_path: Path) -> None:
    """Black and white, or 0 and 1; ids of classes are refused, which would all be black."""
    white = min(white, np.iinfo(dtype).max)
    drawn_ones = {f"im{i}": (draw_mask(i) == 1).astype(dtype) for i in range(4)}
    files = pairs() | {f"masks/{name}.png": picture(ones * dtype(white)) for name, ones in drawn_ones.items()}
    source = write_files(tmp_path / "set", files)
    assert same(masks_of(build(source, mask="masks", mask_values="binary")), drawn_ones)
    again = {"overwrite": True, "mask": "masks", "mask_values": "binary"}
    (source / "masks/im1.png").write_bytes(picture(draw_mask(1) % 3))
    with pytest.raises(TooManyBad, match="largest value is 2; if its values are numbers of classes, --mask-values ids"):
        build(source, **again)


@pytest.mark.parametrize("case", BAD)
def test_bad_masks_are_named(case: str, tmp_path: Path) -> None:
    data, reason, problem = BAD[case]
    files = pairs(count=6) | {"classes.txt": NAMES.encode(), "masks/im1.png": data}
    source = write_files(tmp_path / "set", files)
    with pytest.raises(TooManyBad, match=problem) as caught:
        build(source, mask="masks")
    assert [(bad.path, bad.reason) for bad in caught.value.rejected] == [("images/im1.png", reason)]
    assert "masks/im1.png" in caught.value.rejected[0].problem
    pack = build(source, mask="masks", max_bad="1")
    wanted = drawn(6)
    del wanted["im1"]
    assert same(masks_of(pack), wanted)


def test_missing_masks_and_images(tmp_path: Path) -> None:
    files = pairs()
    del files["masks/im1.png"], files["images/im2.png"]
    source = write_files(tmp_path / "set", files)
    with pytest.raises(TooManyBad) as caught:
        build(source, mask="masks")
    assert sorted((bad.path, bad.reason) for bad in caught.value.rejected) == [
        ("images/im1.png", "no-label"), ("masks/im2.png", "no-image")
    ]  # fmt: skip
    assert len(build(source, mask="masks", max_bad="1", missing_labels="skip")) == 2
    pack = build(source, mask="masks", max_bad="1", missing_labels="empty", overwrite=True)
    assert [pack.mask(i) is None for i in range(3)] == [False, True, False]


def test_masks_of_other_names_than_the_images(tmp_path: Path) -> None:
    files = {name.replace(".png", "_rgb.png" if "images" in name else "_x.png"): data for name, data in pairs().items()}
    source = write_files(tmp_path / "set", files)
    with pytest.raises(TooManyBad, match=r"say how the files are named: a pattern such as"):
        build(source, mask="masks", labels=("none",))


def test_two_masks_of_one_image(tmp_path: Path) -> None:
    files = pairs() | {"masks/im1.bmp": picture(draw_mask(1), "BMP")}
    with pytest.raises(TooManyBad, match="2 label files fit it equally well"):
        build(write_files(tmp_path / "set", files), mask="masks")


NOT_MASKS = {
    "faces with masks": {
        f"{folder}/{i}.png": ("mask" in folder, i) for folder in ("mask", "no_mask") for i in range(4)
    },
    "faces with and without": {
        f"{folder}/{folder}_{i}.png": (0, i) for folder in ("with_mask", "without_mask") for i in range(4)
    },
}


@pytest.mark.parametrize("case", NOT_MASKS)
def test_photos_are_no_masks(case: str, tmp_path: Path) -> None:
    """Classes whose names speak of masks: photos are packed as photos, or there is a question, never as masks."""
    files = {}
    for number, name in enumerate(NOT_MASKS[case]):
        files[name] = picture(np.random.default_rng(number).integers(0, 256, (30, 40, 3)).astype(np.uint8))
    source = write_files(tmp_path / "set", files)
    try:
        pack = build(source)
    except UsageError:
        pack = build(source, labels=("folder",))
    assert pack.manifest.parts == {} and len(pack.classes) == 2 and len(pack) == 8


def test_masks_beside_other_labels(tmp_path: Path) -> None:
    files = pairs("JPEGImages/{}.png", "SegmentationClass/{}.png", palette=True)
    files |= {f"Annotations/im{i}.xml": voc_xml(f"im{i}.png", [("cat", 2, 3, 20, 20)]).encode() for i in range(4)}
    source = write_files(tmp_path / "set", files)
    pack = build(source)
    assert same(masks_of(pack), drawn()) and len(pack[0].annotation.boxes) == 1
    assert pack.classes == ["cat"] and pack.manifest.masks["mask"].classes == VOC_CLASSES
    assert pack.manifest.options["labels"] == ["voc", "masks"]
    only = build(write_files(tmp_path / "boxes", files), labels=("voc",))
    assert only.manifest.parts == {} and len(only) == 4
    both = build(write_files(tmp_path / "both", files), labels=("voc",), mask="SegmentationClass")
    assert both.manifest.digest == pack.manifest.digest or same(masks_of(both), drawn())


def test_few_masks_beside_other_labels_are_left_out_and_said(tmp_path: Path) -> None:
    files = pairs("JPEGImages/{}.png", "SegmentationClass/{}.png", count=10)
    files |= {f"Annotations/im{i}.xml": voc_xml(f"im{i}.png", [("cat", 2, 3, 20, 20)]).encode() for i in range(10)}
    for i in range(3, 10):
        del files[f"SegmentationClass/im{i}.png"]
    pack = build(write_files(tmp_path / "set", files))
    assert len(pack) == 10 and pack.manifest.parts == {}
    assert any("3 masks" in note and "--mask" in note for note in pack.manifest.notes)


def test_splits(tmp_path: Path) -> None:
    files = {}
    for split, seeds in (("train", range(3)), ("val", range(3, 5))):
        for seed in seeds:
            files[f"images/{split}/im{seed}.png"] = image_of(draw_mask(seed))
            files[f"masks/{split}/im{seed}.png"] = picture(draw_mask(seed))
    source = write_files(tmp_path / "set", files)
    summaries = build_packs(BuildOptions(str(source), str(tmp_path / "out.lmdb"), workers=1))
    assert [summary.manifest.records for summary in summaries] == [3, 2]
    found = masks_of(packer.open_pack(tmp_path / "out-train.lmdb")) | masks_of(
        packer.open_pack(tmp_path / "out-val.lmdb")
    )
    assert same(found, drawn(5))


@pytest.mark.parametrize("kind", ["zip", "deflated", "tar"])
def test_masks_in_archives(kind: str, tmp_path: Path) -> None:
    files, path = pairs(), tmp_path / ("set.tar" if kind == "tar" else "set.zip")
    if kind == "tar":
        with tarfile.open(path, "w") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    build_pack(BuildOptions(str(path), str(tmp_path / "out.lmdb"), workers=1))
    assert same(masks_of(packer.open_pack(tmp_path / "out.lmdb")), drawn())


def test_a_dry_run_finds_bad_masks(tmp_path: Path) -> None:
    files = pairs(count=6) | {"classes.txt": NAMES.encode(), "masks/im1.png": BAD["unknown id"][0]}
    source = write_files(tmp_path / "set", files)
    with pytest.raises(TooManyBad, match="which no class has"):
        plan_pack(BuildOptions(str(source), workers=1), deep=True)


def test_the_same_bytes_for_any_workers(tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", pairs(count=12))
    digests = set()
    for workers in (1, 2):
        out = tmp_path / f"{workers}.lmdb"
        build_pack(BuildOptions(str(source), str(out), workers=workers, shard_bytes=4000))
        digests.add(packer.open_pack(out).manifest.digest)
    assert len(digests) == 1


def test_voc_splits_of_segmentation(tmp_path: Path) -> None:
    """Packed without boxes, the splits are those of ImageSets/Segmentation."""
    files = pairs("JPEGImages/{}.png", "SegmentationClass/{}.png", count=5, palette=True)
    lists = {"train": (0, 2), "val": (4,), "trainval": (0, 2, 4)}
    for name, seeds in lists.items():
        files[f"ImageSets/Segmentation/{name}.txt"] = "".join(f"im{i}\n" for i in seeds).encode()
    source = write_files(tmp_path / "VOC2012", files)
    pack = build(source, labels=("masks",), split="train")
    assert same(masks_of(pack), {f"im{i}": draw_mask(i) for i in (0, 2)})
    options = BuildOptions(str(source), str(tmp_path / "all.lmdb"), labels=("masks",), workers=1)
    assert [one.manifest.records for one in build_packs(options)] == [2, 1]
    with pytest.raises(UsageError, match=r"has no test\.txt"):
        build(source, labels=("masks",), split="test", overwrite=True)
    found = build(source, split="val", overwrite=True).manifest.notes[0]
    assert "0 files left unread" in found


def test_masks_beside_a_list(tmp_path: Path) -> None:
    files = pairs(count=4)
    rows = [f"images/im{i}.png,{'ab'[i % 2]}" for i in range(4)]
    source = write_files(tmp_path / "set", files | {"labels.csv": "\n".join(["path,label", *rows]).encode()})
    pack = build(source, labels=(f"list:{source / 'labels.csv'}",), mask="masks")
    assert pack.manifest.options["labels"] == ["list", "masks"] and len(pack) == 4
    assert [pack.annotation(i).label for i in range(4)] == [0, 1, 0, 1] and pack.mask(0) is not None
