"""Masks that a list names, or that are in the same file as the images: Parquet, tars of WebDataset."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_masks import COLORS, draw_mask, image_of, picture, write_files
from running import good

import packer
from packer import BuildOptions, build_pack
from packer.errors import TooManyBad, UsageError
from packer.packing.build import build_packs

IMAGES, MASKS = "pictures/{}.jpg", "maps/x{}.png"
"""Neither folder is called as those of masks are, and the names differ: only the list says what belongs together."""


def scene(root: Path, lists: dict[str, str], count: int = 4, images: str = IMAGES, masks: str = MASKS) -> Path:
    files = {images.format(i): image_of(draw_mask(i), "JPEG") for i in range(count)}
    files |= {masks.format(i): picture(draw_mask(i)) for i in range(count)}
    return write_files(root / "set", files | {name: text.encode() for name, text in lists.items()})


def build(source: Path, **options: Any) -> packer.Pack:
    out = source.parent / "out.lmdb"
    build_pack(BuildOptions(str(source), str(out), workers=1, **options))
    return packer.open_pack(out)


def check(pack: packer.Pack, count: int = 4) -> None:
    assert sorted(Path(path).stem for path in pack.paths) == [str(i) for i in range(count)]
    for i, path in enumerate(pack.paths):
        assert np.array_equal(pack.mask(i), draw_mask(int(Path(path).stem)))


def rows(text: str, count: int = 4) -> str:
    return "".join(text.format(i=i) + "\n" for i in range(count))


PAIRS = rows("pictures/{i}.jpg{sep}maps/x{i}.png".replace("{sep}", "SEP"))
LISTS = {
    "image,mask": ("a.csv", "image,mask\n" + PAIRS.replace("SEP", ",")),
    "mask first": ("a.csv", "mask_path,image_path\n" + rows("maps/x{i}.png,pictures/{i}.jpg")),
    "label_path": ("a.tsv", "filename\tlabel_path\n" + PAIRS.replace("SEP", "\t")),
    "annotation": ("a.csv", "img;annotation\n" + PAIRS.replace("SEP", ";")),
    "label with pictures": ("a.csv", "image,label\n" + PAIRS.replace("SEP", ",")),
    "PaddleSeg": ("train_list.txt", PAIRS.replace("SEP", " ")),
    "from elsewhere": ("a.txt", rows("/data/set/pictures/{i}.jpg /data/set/maps/x{i}.png")),
    "more columns": ("a.csv", "id,image,width,segmentation\n" + rows("9{i},pictures/{i}.jpg,40,maps/x{i}.png")),
    "beside the list": ("lists/a.csv", "image,mask\n" + rows("../pictures/{i}.jpg,../maps/x{i}.png")),
}


@pytest.mark.parametrize("by", ["auto", "list"])
@pytest.mark.parametrize("kind", LISTS)
def test_lists_name_masks(kind: str, by: str, tmp_path: Path) -> None:
    name, text = LISTS[kind]
    source = scene(tmp_path, {name: text})
    pack = build(source, **({} if by == "auto" else {"labels": f"list:{source / name}"}))
    check(pack)
    assert pack.manifest.parts == {"mask": "mask"} and pack.manifest.fields == ()
    if by == "auto":
        assert f"masks are those in {name}: 4 masks fit images" in pack.manifest.notes


def test_columns_name_the_masks(tmp_path: Path) -> None:
    source = scene(tmp_path, {"a.csv": rows("{i},pictures/{i}.jpg,x{i}")})
    check(build(source, labels=f"list:{source / 'a.csv'}", columns="_ path mask"))


def test_the_options_of_a_pack_make_it_again(tmp_path: Path) -> None:
    source = scene(tmp_path, {"a.csv": "image,mask\n" + PAIRS.replace("SEP", ",")})
    build(source)
    good("build", str(source), "-o", str(tmp_path / "again.lmdb"), "--like", str(tmp_path / "out.lmdb"))
    check(packer.open_pack(tmp_path / "again.lmdb"))


def test_a_list_and_a_folder_of_masks(tmp_path: Path) -> None:
    files = {f"images/{i}.jpg": image_of(draw_mask(i), "JPEG") for i in range(4)}
    files |= {f"masks/{i}.png": picture(draw_mask(i)) for i in range(4)}
    source = write_files(tmp_path / "set", files | {"a.csv": b"image,label\n" + rows("images/{i}.jpg,c{i}").encode()})
    pack = build(source, labels=f"list:{source / 'a.csv'}", mask="masks")
    check(pack)
    assert len(pack.classes) == 4


def test_a_list_chooses_the_images(tmp_path: Path) -> None:
    source = scene(tmp_path, {"a.csv": "image,mask\n" + rows("pictures/{i}.jpg,maps/x{i}.png", 3)})
    check(build(source, labels=f"list:{source / 'a.csv'}"), 3)


def test_a_list_wins_over_names(tmp_path: Path) -> None:
    """The list says that the masks are shifted by one; their names say something else."""
    lines = "".join(f"images/{i}.jpg,masks/{(i + 1) % 4}.png\n" for i in range(4))
    files = {f"images/{i}.jpg": image_of(draw_mask((i + 1) % 4), "JPEG") for i in range(4)}
    files |= {f"masks/{i}.png": picture(draw_mask(i)) for i in range(4)}
    pack = build(write_files(tmp_path / "set", files | {"all.csv": b"image,mask\n" + lines.encode()}))
    for i, path in enumerate(pack.paths):
        assert np.array_equal(pack.mask(i), draw_mask((int(Path(path).stem) + 1) % 4))


def test_lists_of_splits(tmp_path: Path) -> None:
    def lines(first: int, stop: int) -> str:
        return "".join(f"pictures/{i}.jpg maps/x{i}.png\n" for i in range(first, stop))

    source = scene(tmp_path, {"train.txt": lines(0, 3), "val.txt": lines(3, 5)}, 5)
    made = build_packs(BuildOptions(str(source), str(tmp_path / "out.lmdb"), workers=1))
    packs = [packer.open_pack(one.path) for one in made]
    assert [len(pack) for pack in packs] == [3, 2]
    check(packs[0], 3)
    assert np.array_equal(packs[1].mask(1), draw_mask(4))


def test_a_list_of_one_split_is_one_pack(tmp_path: Path) -> None:
    """As CamVid's train.txt in its folder: the folders of the other splits are not asked for."""
    lines = {split: rows(f"/SegNet/CamVid/{split}/{split}_{{i}}.jpg /SegNet/CamVid/{split}annot/{split}annot_{{i}}.png")
             for split in ("train", "val")}  # fmt: skip
    files = {f"{split}.txt": text.encode() for split, text in lines.items()}
    for i in range(4):
        for split in lines:
            files[f"{split}/{split}_{i}.jpg"] = image_of(draw_mask(i), "JPEG")
            files[f"{split}annot/{split}annot_{i}.png"] = picture(draw_mask(i))
    source = write_files(tmp_path / "set", files)
    for labels, count in ((f"list:{source / 'train.txt'}", 1), ("auto", 2)):
        out = tmp_path / f"{count}.lmdb"
        made = build_packs(BuildOptions(str(source), str(out), labels=labels, workers=1))
        packs = [packer.open_pack(one.path) for one in made]
        assert [len(pack) for pack in packs] == [4] * count
        for pack in packs:
            assert all(np.array_equal(pack.mask(i), draw_mask(i)) for i in range(4))


def test_a_column_of_splits(tmp_path: Path) -> None:
    text = "image,mask,split\n" + "".join(
        f"pictures/{i}.jpg,maps/x{i}.png,{'train' if i < 2 else 'val'}\n" for i in range(4)
    )
    source = scene(tmp_path, {"a.csv": text})
    made = build_packs(BuildOptions(str(source), str(tmp_path / "out.lmdb"), workers=1))
    assert [len(packer.open_pack(one.path)) for one in made] == [2, 2]


def test_labels_and_masks_of_one_list(tmp_path: Path) -> None:
    text = "image,label,mask\n" + rows("pictures/{i}.jpg,class{i},maps/x{i}.png")
    pack = build(scene(tmp_path, {"a.csv": text}))
    check(pack)
    assert [pack.annotation(i).label for i in range(4)] == [0, 1, 2, 3]
    assert pack.manifest.masks["mask"].classes == () and len(pack.classes) == 4


def test_names_of_the_classes(tmp_path: Path) -> None:
    names = {"classes.txt": "background\nant\nbee\ncat\n", "a.csv": "image,mask\n" + PAIRS.replace("SEP", ",")}
    pack = build(scene(tmp_path, names))
    assert pack.manifest.masks["mask"].classes == ("background", "ant", "bee", "cat") == tuple(pack.classes)


def test_masks_that_are_not_there(tmp_path: Path) -> None:
    text = "image,mask\n" + rows("pictures/{i}.jpg,maps/x{i}.png") + "pictures/4.jpg,maps/none.png\npictures/5.jpg,\n"
    source = scene(tmp_path, {"a.csv": text}, 6)
    spec = f"list:{source / 'a.csv'}"
    with pytest.raises(TooManyBad) as error:
        build(source, labels=spec)
    assert 'has the mask "maps/none.png" in a.csv:6, which is not there' in str(error.value)
    assert "pictures/5.jpg: has no mask in a.csv" in str(error.value)
    check(build(source, labels=spec, max_bad="2"))
    (source / "b.csv").write_text("image,mask\npictures/0.jpg,maps/none.png\n")
    with pytest.raises(UsageError, match=r"b\.csv: an image has the mask .*none\.png"):
        build(source, labels=f"list:{source / 'b.csv'}", overwrite=True)


def test_two_masks_of_one_image(tmp_path: Path) -> None:
    text = "image,mask,xmin,ymin,xmax,ymax,class\n" + rows("pictures/{i}.jpg,maps/x{i}.png,1,2,9,9,cat")
    text += "pictures/0.jpg,maps/x1.png,1,2,8,8,cat\npictures/1.jpg,maps/x1.png,1,2,8,8,cat\n"
    source = scene(tmp_path, {"a.csv": text})
    pack = build(source, labels=f"list:{source / 'a.csv'}", max_bad="1")
    assert len(pack) == 3 and len(pack.annotation(0).boxes) == 2  # type: ignore[arg-type]
    assert "has several masks in a.csv:2,6" in pack.manifest.rejected[0].problem


def test_pairs_of_images_are_no_masks(tmp_path: Path) -> None:
    files = {f"photos/{i}.jpg": image_of(draw_mask(i), "JPEG") for i in range(4)}
    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)
    files |= {f"targets/x{i}.png": picture(noise) for i in range(4)}
    text = "image,target\n" + rows("photos/{i}.jpg,targets/x{i}.png")
    source = write_files(tmp_path / "set", files | {"pairs.csv": text.encode()})
    with pytest.raises(UsageError):
        build(source)


def test_run_lengths_are_not_masks(tmp_path: Path) -> None:
    source = scene(tmp_path, {"a.csv": "image,class,mask\n" + rows("pictures/{i}.jpg,c{i},1 5 9 7")})
    pack = build(source, labels=f"list:{source / 'a.csv'}")
    assert not pack.manifest.parts and "columns that are skipped: mask" in str(pack.manifest.notes)


def test_colors_need_their_table(tmp_path: Path) -> None:
    files = {f"pictures/{i}.jpg": image_of(draw_mask(i), "JPEG") for i in range(3)}
    files |= {f"maps/x{i}.png": picture(COLORS[draw_mask(i)]) for i in range(3)}
    table = "".join(f"{' '.join(map(str, COLORS[i]))} name{i}\n" for i in range(4))
    text = "image,mask\n" + rows("pictures/{i}.jpg,maps/x{i}.png", 3)
    source = write_files(tmp_path / "set", files | {"a.csv": text.encode(), "maps/label_colors.txt": table.encode()})
    check(build(source), 3)


def test_columns_of_several_lists(tmp_path: Path) -> None:
    source = scene(tmp_path, {"a.csv": rows("1,pictures/{i}.jpg,x{i}"), "b.csv": rows("pictures/{i}.jpg,c{i}")})
    pack = build(
        source, labels=(f"list:{source / 'a.csv'}", f"list:{source / 'b.csv'}"), columns=("_ path mask", "path label")
    )
    check(pack)
    assert len(pack.classes) == 4


def test_a_note_says_if_masks_of_a_list_are_not_packed(tmp_path: Path) -> None:
    files = {f"images/{i}.jpg": image_of(draw_mask(i), "JPEG") for i in range(4)}
    text = "image,label,mask\n" + rows("images/{i}.jpg,c{i},elsewhere/{i}.png")
    pack = build(write_files(tmp_path / "set", files | {"a.csv": text.encode()}))
    assert "a.csv: the masks that it names are not packed" in pack.manifest.notes


def write_parquet(path: Path, column: str = "annotation", first: int = 0, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(first, first + 4)
    found: dict[str, Any] = {"image": [{"bytes": image_of(draw_mask(i), "JPEG"), "path": f"{i}.jpg"} for i in numbers]}
    found[column] = [{"bytes": picture(draw_mask(i), palette=True), "path": None} for i in numbers]
    pq.write_table(pa.table(found | {name: [value(i) for i in numbers] for name, value in columns.items()}), path)
    return path


@pytest.mark.parametrize("column", ["annotation", "label", "segmentation_mask"])
@pytest.mark.parametrize(
    "options", [{}, {"labels": "parquet"}, {"labels": "masks"}, {"labels": "none", "mask": "COLUMN"}], ids=str
)
def test_a_second_column_of_images_in_parquet(options: dict[str, Any], column: str, tmp_path: Path) -> None:
    options = {name: value.replace("COLUMN", column) for name, value in options.items()}
    (tmp_path / "names.txt").write_text("background\nant\nbee\ncat\n")
    pack = build(write_parquet(tmp_path / "a.parquet", column), classes=str(tmp_path / "names.txt"), **options)
    check(pack)
    assert pack.manifest.masks["mask"].classes == ("background", "ant", "bee", "cat") == tuple(pack.classes)


def test_parquet_with_labels_and_masks(tmp_path: Path) -> None:
    pack = build(write_parquet(tmp_path / "a.parquet", "mask", label=lambda i: i % 3, id=lambda i: f"x{i}"))
    check(pack)
    assert [pack.annotation(i).label for i in range(4)] == [0, 1, 2, 0]
    assert pack.annotation(1).extras == {"id": "x1"}


def test_parquet_files_of_splits(tmp_path: Path) -> None:
    for name, first in (("train-00000-of-00002", 0), ("train-00001-of-00002", 4), ("test-00000-of-00001", 8)):
        write_parquet(tmp_path / "set" / f"{name}.parquet", first=first)
    made = build_packs(BuildOptions(str(tmp_path / "set"), str(tmp_path / "out.lmdb"), workers=2))
    packs = [packer.open_pack(one.path) for one in made]
    assert [len(pack) for pack in packs] == [8, 4]
    check(packs[0], 8)


def test_masks_of_parquet_are_never_images(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", "mask", label=lambda i: i % 3)
    assert [len(build(file, labels=labels, overwrite=True)) for labels in ("none", "parquet:label")] == [4, 4]
    for i in range(4):
        write_files(tmp_path / "maps", {f"{i}.png": picture(draw_mask(i))})
    check(build(file, mask=str(tmp_path / "maps"), overwrite=True))


def test_rows_of_parquet_without_a_mask(tmp_path: Path) -> None:
    table = pq.read_table(write_parquet(tmp_path / "a.parquet", "mask"))
    masks = [*table["mask"].to_pylist()[:3], None]
    pq.write_table(table.set_column(1, "mask", pa.array(masks, table.schema.field(1).type)), tmp_path / "a.parquet")
    with pytest.raises(TooManyBad, match=r"3\.jpg: has no mask in mask"):
        build(tmp_path / "a.parquet")
    pack = build(tmp_path / "a.parquet", missing_labels="empty")
    assert [pack.mask(i) is None for i in range(4)] == [False, False, False, True]


def test_other_pictures_in_parquet_are_left_with_a_note(tmp_path: Path) -> None:
    noise = [{"bytes": picture(np.random.default_rng(i).integers(0, 255, (30, 40, 3), np.uint8))} for i in range(4)]
    table = pq.read_table(write_parquet(tmp_path / "a.parquet"))
    pq.write_table(table.set_column(1, "target", pa.array(noise)), tmp_path / "a.parquet")
    pack = build(tmp_path / "a.parquet")
    assert len(pack) == 4 and not pack.manifest.parts
    assert "pictures in target not packed: --mask target packs them as masks" in pack.manifest.notes


def test_parquet_of_images_alone(tmp_path: Path) -> None:
    pq.write_table(pq.read_table(write_parquet(tmp_path / "a.parquet")).select(["image"]), tmp_path / "a.parquet")
    assert len(build(tmp_path / "a.parquet")) == 4


@pytest.mark.parametrize("ending", ["mask", "seg", "segmentation", "label"])
def test_a_tar_of_webdataset(ending: str, tmp_path: Path) -> None:
    members = [
        member
        for i in range(4)
        for member in ((f"{i}.jpg", image_of(draw_mask(i), "JPEG")), (f"{i}.{ending}.png", picture(draw_mask(i))))
    ]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    check(build(tmp_path / "a.tar"))


@pytest.mark.parametrize(("valid", "names"), [
    ("Pixel Value, Class\n0, background\n1, red ant\n2, bee\n3, cat\n", ("background", "red ant", "bee", "cat")),
    ("Pixel Value, Class\n0, background\n1, other\n2, bee\n3, cat\n", ()),
])  # fmt: skip
def test_the_table_of_names_beside_masks_of_roboflow(tmp_path, valid, names):
    """It has a table in the folder of each split; tables that differ name nothing."""
    table = "Pixel Value, Class\n0, background\n1, red ant\n2, bee\n3, cat\n"
    files = {"train/_classes.csv": table.encode(), "valid/_classes.csv": valid.encode()}
    for i in range(6):
        where = f"{('train', 'valid')[i > 3]}/{i}_jpg.rf.{i}"
        files |= {f"{where}.jpg": image_of(draw_mask(i), "JPEG"), f"{where}_mask.png": picture(draw_mask(i))}
    source = write_files(tmp_path / "set", files)
    for one in build_packs(BuildOptions(str(source), str(tmp_path / "out.lmdb"), workers=1)):
        pack = packer.open_pack(one.path)
        assert pack.manifest.masks["mask"].classes == names
        assert all(
            np.array_equal(pack.mask(i), draw_mask(int(Path(p).name.partition("_")[0])))
            for i, p in enumerate(pack.paths)
        )
