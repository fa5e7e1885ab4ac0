"""Lists exactly as their tools write them, on drawn folders; no ``--columns`` and no other help."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from drawn import packed_of

from packer.errors import BadLabel, UsageError
from packer.sources import open_source
from packer.sources.list_source import ListSource
from packer.sources.source import SourceOptions

BOX = ((1.0, 2.0, 30.0, 40.0), (5.0, 6.0, 20.0, 30.0))


@pytest.fixture
def read(make_tree):
    """Write these files, open `file`, and return the source and {image: annotation} of the images in it."""

    def of(files: dict[str, str | bytes], file: str, **options: Any):
        tree = make_tree(files)
        source = open_source(f"list:{os.fsdecode(tree.root)}/{file}", tree, SourceOptions(**options))
        found = {os.fsdecode(i): source.annotate(i) for i in packed_of(tree, source)}
        assert list(source.unmatched_labels()) == []
        return source, found

    return of


def photos(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "")


def check_boxes(found, first, second, negative=None):
    """`first` has both boxes, `second` the first one, `negative` none."""
    assert found[first].boxes == BOX and found[first].box_labels == ("cat", "dog")
    assert found[second].boxes == BOX[:1] and found[second].box_labels == ("cat",)
    assert len(found) == 2 + (negative is not None)
    assert negative is None or (found[negative].boxes == () and found[negative].box_labels == ())


def test_tensorflow(read):
    text = """\
filename,width,height,class,xmin,ymin,xmax,ymax
a.jpg,64,48,cat,1,2,30,40
a.jpg,64,48,dog,5,6,20,30
b.jpg,64,48,cat,1,2,30,40
"""
    _, found = read(
        photos("images/a.jpg", "images/b.jpg", "images/c.jpg") | {"train_labels.csv": text}, "train_labels.csv"
    )
    check_boxes(found, "images/a.jpg", "images/b.jpg")
    assert found["images/a.jpg"].image_size == (64, 48)


def test_roboflow_boxes(read):
    """The same columns, beside the images of each split, with CRLF."""
    text = (
        "filename,width,height,class,xmin,ymin,xmax,ymax\r\n"
        "a_jpg.rf.0f1.jpg,64,48,cat,1,2,30,40\r\na_jpg.rf.0f1.jpg,64,48,dog,5,6,20,30\r\n"
        "b_jpg.rf.77e.jpg,64,48,cat,1,2,30,40\r\n"
    )
    files = photos("train/a_jpg.rf.0f1.jpg", "train/b_jpg.rf.77e.jpg", "valid/v.jpg") | {"train/_annotations.csv": text}
    check_boxes(read(files, "train/_annotations.csv")[1], "train/a_jpg.rf.0f1.jpg", "train/b_jpg.rf.77e.jpg")


def test_roboflow_classes(read):
    text = "filename, ant, bee, cat\na_jpg.rf.1.jpg, 1, 0, 1\nb_jpg.rf.2.jpg, 0, 0, 0\n"
    source, found = read(
        photos("train/a_jpg.rf.1.jpg", "train/b_jpg.rf.2.jpg") | {"train/_classes.csv": text}, "train/_classes.csv"
    )
    assert source.tags == ("ant", "bee", "cat")
    assert [a.tags for a in found.values()] == [(True, False, True), (False, False, False)]


@pytest.mark.parametrize("header", ["", "path,x1,y1,x2,y2,class\n"])
def test_retinanet(read, header):
    """Empty columns are an image without objects."""
    text = (
        header
        + "images/a.jpg,1,2,30,40,cat\nimages/a.jpg,5,6,20,30,dog\nimages/b.jpg,1,2,30,40,cat\nimages/c.jpg,,,,,\n"
    )
    files = photos("images/a.jpg", "images/b.jpg", "images/c.jpg") | {
        "annotations.csv": text,
        "classes.csv": "cat,0\ndog,1\n",
    }
    check_boxes(read(files, "annotations.csv")[1], "images/a.jpg", "images/b.jpg", "images/c.jpg")


def test_retinanet_with_a_negative_first(read):
    text = "c.jpg,,,,,\na.jpg,1,2,30,40,cat\na.jpg,5,6,20,30,dog\nb.jpg,1,2,30,40,cat\n"
    check_boxes(read(photos("a.jpg", "b.jpg", "c.jpg") | {"l.csv": text}, "l.csv")[1], "a.jpg", "b.jpg", "c.jpg")


def test_boxes_by_width_and_height_are_not_taken_for_corners(read):
    text = "a.jpg,10,20,5,6,cat\nb.jpg,10,20,30,6,cat\n"
    with pytest.raises(UsageError, match="columns are not clear"):
        read(photos("a.jpg", "b.jpg") | {"l.csv": text}, "l.csv")


def test_vott(read):
    text = (
        '"image","xmin","ymin","xmax","ymax","label"\n"a.jpg",1.0,2.0,30.0,40.0,"cat"\n'
        '"a.jpg",5.0,6.0,20.0,30.0,"dog"\n"b.jpg",1.0,2.0,30.0,40.0,"cat"\n'
    )
    files = photos("vott-csv-export/a.jpg", "vott-csv-export/b.jpg") | {"vott-csv-export/Pets-export.csv": text}
    check_boxes(read(files, "vott-csv-export/Pets-export.csv")[1], "vott-csv-export/a.jpg", "vott-csv-export/b.jpg")


OPEN_IMAGES = """\
ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside
000a1249af2bc5f0,xclick,/m/011k07,1,0.0125,0.195312,0.148438,0.5875,0,1,0,0,0
000a1249af2bc5f0,xclick,/m/011q46kg,1,0.025,0.276563,0.714063,0.948438,1,0,1,0,0
0001eeaf4aed83f9,activemil,/m/011k07,1,0.5,0.75,0.25,1.0,-1,-1,-1,-1,-1
"""
DESCRIPTIONS = "/m/011k07,Tortoise\n/m/011q46kg,Container\n/m/012074,Magpie\n"


@pytest.mark.parametrize(("name", "described"), [
    ("class-descriptions-boxable.csv", DESCRIPTIONS),
    ("oidv7-class-descriptions-boxable.csv", "LabelName,DisplayName\n" + DESCRIPTIONS),
    (None, None),
])  # fmt: skip
def test_open_images(read, name, described):
    """Fractions, minimum beside maximum, ids without extension, and a file with the names of the classes."""
    files = photos("train/000a1249af2bc5f0.jpg", "train/0001eeaf4aed83f9.jpg") | {
        "train-annotations-bbox.csv": OPEN_IMAGES
    }
    source, found = read(files | ({name: described} if name else {}), "train-annotations-bbox.csv")
    first = found["train/000a1249af2bc5f0.jpg"]
    assert first.relative and first.boxes == (
        (0.0125, 0.148438, 0.195312, 0.5875),
        (0.025, 0.714063, 0.276563, 0.948438),
    )
    assert first.box_labels == (("Tortoise", "Container") if name else ("/m/011k07", "/m/011q46kg"))
    assert first.box_fields == {"truncated": (1, 0), "occluded": (0, 1), "iscrowd": (0, 1)}
    assert any("compared by the end of the path without extension" in note for note in source.notes)
    assert any(("put class-descriptions" in note) == (name is None) for note in source.notes if "class-desc" in note)


@pytest.mark.parametrize(("text", "names"), [
    ("id,label\n0001,cat\n0002,dog\n0003,cat\n", ("0001", "0002", "0003")),
    ("id,breed\n000bec180eb18c76,boston_bull\n001513dfcb2ffafc,dingo\n", ("000bec180eb18c76", "001513dfcb2ffafc")),
    ("Image,Id\n0000e88ab.jpg,w_f48451c\n0001f9222.jpg,w_c3d896a\n", ("0000e88ab", "0001f9222")),
    ("image_id,label\n1.jpg,2\n2.jpg,0\n", ("1", "2")),
    ("id,has_cactus\n0004.jpg,1\n000c.jpg,0\n", ("0004", "000c")),
])  # fmt: skip
def test_kaggle(read, text, names):
    source, found = read(
        photos(*(f"train/{name}.jpg" for name in names), "test/x.jpg") | {"train.csv": text}, "train.csv"
    )
    labels = [line.split(",")[1] for line in text.split("\n")[1:] if line]
    assert [found[f"train/{name}.jpg"].label for name in names] == labels and len(found) == len(names)
    assert (source.classes is None) == (not labels[0].isdigit())
    assert sum("compared by" in note for note in source.notes) == 1


def test_kaggle_in_several_folders(read):
    """As HAM10000: images in two parts, a metadata file whose label must be named."""
    text = "lesion_id,image_id,dx,dx_type,age\nHAM_1,ISIC_1,bkl,histo,80.0\nHAM_2,ISIC_2,nv,histo,60.0\n"
    files = photos("part_1/ISIC_1.jpg", "part_2/ISIC_2.jpg") | {"HAM10000_metadata.csv": text}
    with pytest.raises(UsageError, match=r"not clear: lesion_id, image_id, dx, .* columns=\"label path _ _ _\""):
        read(files, "HAM10000_metadata.csv")
    _, found = read(files, "HAM10000_metadata.csv", columns="_ path label _*2")
    assert {k: a.label for k, a in found.items()} == {"part_1/ISIC_1.jpg": "bkl", "part_2/ISIC_2.jpg": "nv"}


CELEBA = photos("img_align_celeba/000001.jpg", "img_align_celeba/000002.jpg", "img_align_celeba/000003.jpg")


@pytest.mark.parametrize("csv", [False, True])
def test_celeba_attributes(read, csv):
    text = (
        "5_o_Clock_Shadow Arched_Eyebrows Attractive \n000001.jpg -1  1  1\n000002.jpg -1 -1 -1\n000003.jpg  1 -1 -1\n"
    )
    text = "image_id," + ",".join(text.split(" ")).replace(",\n", "\n").replace(",,", ",") if csv else f"3\n{text}"
    name = f"list_attr_celeba.{'csv' if csv else 'txt'}"
    source, found = read(CELEBA | {name: text}, name)
    assert source.tags == ("5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive")
    assert [sum(a.tags) for a in found.values()] == [2, 0, 1] and found["img_align_celeba/000003.jpg"].tags[0]


def test_celeba_landmarks(read):
    text = (
        "3\nlefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y rightmouth_x rightmouth_y\n"
        "000001.jpg 69  109  106  113   77  142   73  152  108  154\n"
        "000002.jpg 69  110  107  112   81  135   70  151  108  153\n"
        "000003.jpg 76  112  104  106  108  128   74  156   98  158\n"
    )
    source, found = read(CELEBA | {"list_landmarks_align_celeba.txt": text}, "list_landmarks_align_celeba.txt")
    assert found["img_align_celeba/000001.jpg"].landmarks == ((69, 109), (106, 113), (77, 142), (73, 152), (108, 154))
    assert source.flip_index == (1, 0, 2, 4, 3)


def test_celeba_boxes_identities_and_partition(read):
    boxes = "000001.jpg    95  71 226 313\n000002.jpg    72  94 221 306\n000003.jpg   216  59  91 126\n"
    boxes = f"3\nimage_id x_1 y_1 width height\n{boxes}"
    _, found = read(CELEBA | {"list_bbox_celeba.txt": boxes}, "list_bbox_celeba.txt")
    assert found["img_align_celeba/000001.jpg"].boxes == ((95, 71, 321, 384),)
    assert found["img_align_celeba/000001.jpg"].box_labels == ("object",)
    source, found = read(
        CELEBA | {"identity_CelebA.txt": "000001.jpg 2880\n000002.jpg 2937\n000003.jpg 8692\n"}, "identity_CelebA.txt"
    )
    assert [a.label for a in found.values()] == ["2880", "2937", "8692"] and len(source.classes) == 8693
    for text, name in (
        ("000001.jpg 0\n000002.jpg 1\n000003.jpg 0\n", "list_eval_partition.txt"),
        ("image_id,partition\n000001.jpg,0\n000002.jpg,1\n000003.jpg,0\n", "list_eval_partition.csv"),
    ):
        for split in ("train", "0"):
            _, found = read(CELEBA | {name: text}, name, split=split)
            assert list(found) == ["img_align_celeba/000001.jpg", "img_align_celeba/000003.jpg"]
        with pytest.raises(UsageError, match="has no split test; its splits are 0, 1"):
            read(CELEBA | {name: text}, name, split="test")


def test_huggingface(read):
    """metadata.csv is beside the images of a split; a text with commas and quotes is kept, and is no class."""
    files = photos("train/0001.png", "train/sub/0002.png")
    _, found = read(
        files | {"train/metadata.csv": "file_name,label\n0001.png,cat\nsub/0002.png,dog\n"}, "train/metadata.csv"
    )
    assert [a.label for a in found.values()] == ["cat", "dog"]
    text = 'file_name,text\n0001.png,"a ""cat"", sleeping"\nsub/0002.png,two dogs\n'
    _, found = read(files | {"train/metadata.csv": text}, "train/metadata.csv")
    assert [a.extras for a in found.values()] == [{"text": 'a "cat", sleeping'}, {"text": "two dogs"}]
    assert all(a.label is None for a in found.values())


def test_gtsrb(read):
    """Semicolons between the columns; the whole-number classes are those of the boxes."""
    text = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n00000_00000.png;29;30;5;6;24;25;0\n"
    _, found = read(photos("00000/00000_00000.png") | {"00000/GT-00000.csv": text}, "00000/GT-00000.csv")
    annotation = found["00000/00000_00000.png"]
    assert (
        annotation.boxes == ((5, 6, 24, 25),) and annotation.box_labels == ("0",) and annotation.image_size == (29, 30)
    )


def table(header: str, *rows: str, separator: str = ",") -> str:
    """Return a table of these images a0.jpg, a1.jpg, ... with the header in front."""
    lines = [f"a{number}.jpg{separator}{row}" for number, row in enumerate(rows)]
    return "\n".join([f"file{separator}{header}", *lines, ""])


CORNERS = [
    ("x0,y0,x1,y1,label", "1,2,30,40,cat", "path xmin ymin xmax ymax class"),
    ("x,y,x2,y2,label", "1,2,30,40,cat", "path xmin ymin xmax ymax class"),
    ("label,x,y,xmax,ymax", "cat,1,2,30,40", "path class xmin ymin xmax ymax"),
    ("x1,y1,x2,y2,label", "1,2,30,40,cat", "path xmin ymin xmax ymax class"),
]


@pytest.mark.parametrize(("header", "row", "columns"), CORNERS)
def test_corners_by_other_words(read, header, row, columns):
    _, found = read(photos("a0.jpg", "a1.jpg") | {"list.csv": table(header, row, row)}, "list.csv")
    assert all(one.boxes == ((1, 2, 30, 40),) and one.box_labels == ("cat",) for one in found.values())


@pytest.mark.parametrize("header", ["x1,y1,x2,y2,x3,y3,x4,y4", "x0,y0,x1,y1,x2,y2,x3,y3", "x1,x2,x3,x4,y1,y2,y3,y4"])
def test_more_than_two_corners_are_points(read, header):
    """They were a box of the first two, which the others contradict."""
    numbers = {"x": iter((1, 20, 22, 3)), "y": iter((2, 4, 30, 28))}
    row = ",".join(str(next(numbers[word[0]])) for word in header.split(","))
    _, found = read(photos("a0.jpg", "a1.jpg") | {"list.csv": table(header, row, row)}, "list.csv")
    assert found["a0.jpg"].boxes is None and found["a0.jpg"].landmarks == ((1, 2), (20, 4), (22, 30), (3, 28))


ASKED = [
    ("Pawpularity", [f"{i * 2 + 1}" for i in range(20)], ["path label", "path value"]),
    ("age,gender", [f"{i * 3 + 1},{'mf'[i % 2]}" for i in range(20)], ["path value _", "path _ label"]),
    ("boneage,male", [f"{i * 3 + 1},{i % 2 == 0}" for i in range(20)], ["path value _", "path _ label"]),
    ("u,v,n", [f"{i}.5,{i}.25,{i + 3}" for i in range(20)], ["path value value value"]),
]


@pytest.mark.parametrize(("header", "rows", "columns"), ASKED)
def test_numbers_are_offered_as_values(read, header, rows, columns):
    """Numbers below a word that packer does not know are no classes of their own accord."""
    images = photos(*(f"a{number}.jpg" for number in range(len(rows))))
    with pytest.raises(UsageError) as caught:
        read(images | {"list.csv": table(header, *rows)}, "list.csv")
    assert re.findall(r'columns[= ]"([^"]+)"', str(caught.value)) == columns
    for text in columns:
        _, found = read(images | {"list.csv": table(header, *rows)}, "list.csv", columns=text)
        assert all((one.value is None) == ("value" not in text) for one in found.values())


def test_whole_numbers_below_an_id_are_classes(read):
    images = photos(*(f"a{number}.jpg" for number in range(40)))
    _, found = read(images | {"list.csv": table("breed_id", *(str(i // 2) for i in range(40)))}, "list.csv")
    assert found["a7.jpg"].label == "3"


@pytest.mark.parametrize(("header", "row"), [("calories", "12,5"), ("calories;fat", "12,5;0,25")])
def test_decimal_commas_are_named(read, header, row):
    text = table(header, *[row] * 3, separator=";")
    with pytest.raises(UsageError, match=r'decimal comma, such as "12,5".*write 12\.5'):
        read(photos("a0.jpg", "a1.jpg", "a2.jpg") | {"list.csv": text}, "list.csv")


def test_boxes_with_decimal_commas_and_ids(read):
    """Without extensions, only the header says that the semicolon separates."""
    text = "id;xmin;ymin;xmax;ymax\na0;1,5;2,5;30,5;40,5\na1;1,5;2,5;30,5;40,5\n"
    with pytest.raises(BadLabel, match='"1,5" is not a number: it has a decimal comma'):
        read(photos("a0.jpg", "a1.jpg") | {"list.csv": text}, "list.csv")


@pytest.mark.parametrize(("last", "splits"), [("TEST", ("TRAIN", "VALIDATE", "TEST")), ("UNASSIGNED", ())])
def test_the_splits_of_automl_vision(make_tree, last, splits):
    lines = [f"{split},gs://b/a{i}.jpg,{'cd'[i % 2]}" for i, split in enumerate(("TRAIN", "VALIDATE", last))]
    tree = make_tree(photos("a0.jpg", "a1.jpg", "a2.jpg") | {"l.csv": "\n".join(lines)})
    options = SourceOptions(file=f"{os.fsdecode(tree.root)}/l.csv")
    assert {*ListSource.splits(tree, options)} == {*splits}
    packed_together = f"packed together: {', '.join(sorted(('TRAIN', 'VALIDATE', last)))}"
    assert any(packed_together in note for note in ListSource(tree, options).notes)


QUADS = ((6, 2, 10, 6, 6, 10, 2, 6), (3, 3, 9, 4, 8, 11, 2, 10))


def quad(values):
    return tuple(zip(values[::2], values[1::2], strict=True))


@pytest.mark.parametrize("first", [0, 1])
def test_corners_of_oriented_boxes(read, first):
    """x1 y1 x2 y2 are no corners of a box where a third and a fourth point follow."""
    head = ",".join(f"{axis}{i + first}" for i in range(4) for axis in "xy")
    rows = [f"a.jpg,{','.join(map(str, values))},{name}\n" for values, name in zip(QUADS, ("cat", "dog"), strict=True)]
    text = f"image,{head},class\n{''.join(rows)}b.jpg,{','.join(map(str, QUADS[0]))},cat\n"
    source, found = read(photos("a.jpg", "b.jpg") | {"boxes.csv": text}, "boxes.csv")
    assert 'boxes.csv: --columns "path x1 y1 x2 y2 x3 y3 x4 y4 class"' in source.notes
    assert found["a.jpg"].obb == tuple(map(quad, QUADS)) and found["a.jpg"].box_labels == ("cat", "dog")
    assert found["a.jpg"].boxes == ((2, 2, 10, 10), (2, 3, 9, 11))
    assert found["b.jpg"].obb == (quad(QUADS[0]),) and found["b.jpg"].boxes == ((2, 2, 10, 10),)


@pytest.mark.parametrize(("columns", "text"), [
    ("path x1 y1 x2 y2 x3 y3 x4 y4 class difficult", "a.jpg {} cat 0\na.jpg {} dog 2\n"),
    ("path (x1 y1 x2 y2 x3 y3 x4 y4 class difficult)*", "a.jpg {} cat 0 {} dog 2\n"),
    ("path [class x1 y1 x2 y2 x3 y3 x4 y4]", 'a.jpg,"cat {} dog {}"\n'),
])  # fmt: skip
def test_corners_by_columns(read, columns, text):
    text = text.format(*(" ".join(map(str, values)) for values in QUADS))
    _, found = read(photos("a.jpg") | {"boxes.txt": text}, "boxes.txt", columns=columns)
    assert found["a.jpg"].obb == tuple(map(quad, QUADS)) and found["a.jpg"].box_labels == ("cat", "dog")
    assert found["a.jpg"].box_fields == ({} if "[" in columns else {"difficult": (0, 2)})


def test_four_points_may_be_landmarks(read):
    row = f"a.jpg,{','.join(map(str, QUADS[0]))},cat\n"
    text = f"image,x1,y1,x2,y2,x3,y3,x4,y4,class\n{row}"
    with pytest.raises(UsageError) as error:
        read(photos("a.jpg") | {"points.csv": text}, "points.csv")
    assert "may be the corners of a box, or four landmarks" in str(error.value)
    for columns in ("path x1 y1 x2 y2 x3 y3 x4 y4 class", "path x y x y x y x y label"):
        assert f'"{columns}"' in str(error.value)
        _, found = read(photos("a.jpg") | {"points.csv": text}, "points.csv", columns=columns)
        assert quad(QUADS[0]) in (found["a.jpg"].landmarks, (found["a.jpg"].obb or [()])[0])


def test_numbered_points_are_no_box(read):
    """The first two of five points were taken for the corners of a box."""
    text = "image,x1,y1,x2,y2,x3,y3,x4,y4,x5,y5\na.jpg,1,2,3,4,5,6,7,8,9,10\nb.jpg,1,2,3,4,5,6,7,8,9,11\n"
    _, found = read(photos("a.jpg", "b.jpg") | {"points.csv": text}, "points.csv")
    assert found["a.jpg"].boxes is None and found["a.jpg"].landmarks == ((1, 2), (3, 4), (5, 6), (7, 8), (9, 10))


def test_a_header_names_the_tags_before_boxes(read):
    text = "path,sunny,wet\na.jpg,1,0,1,2,30,40,cat,5,6,20,30,dog\nb.jpg,0,1,1,2,30,40,cat\n"
    columns = "path tag*2 (xmin ymin xmax ymax class)*"
    source, found = read(photos("a.jpg", "b.jpg") | {"all.csv": text}, "all.csv", columns=columns)
    assert source.tags == ("sunny", "wet") and found["a.jpg"].tags == (True, False)
    check_boxes(found, "a.jpg", "b.jpg")


def test_words_of_icdar_are_texts(read):
    """The list of its recognition tasks: a mark at the start, a blank after the comma, and quotes around each word."""
    words = ["Tiredness", "kills, A", "###", "2013"]
    lines = "".join(f'word_{number}.png, "{word}"\r\n' for number, word in enumerate(words))
    files = {f"word_{number}.png": "" for number in range(len(words))} | {"gt.txt": "\ufeff" + lines}
    _, found = read(files, "gt.txt", columns="path text")
    assert [one.extras for one in found.values()] == [{"text": word} for word in words]
    assert all(one.label is None for one in found.values())
