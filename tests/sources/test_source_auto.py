"""What --labels auto decides, and when it refuses; the names of sources and their options."""

from __future__ import annotations

import json
import os

import pytest
from drawn import packed_of

from packer.errors import NoLabel, UsageError
from packer.sources import check_options, check_sources, open_source, recognize
from packer.sources.source import SourceOptions

XML = "<annotation/>"
FOLDER = {"cat/1.jpg": "", "dog/1.jpg": ""}
VOC = {"JPEGImages/1.jpg": "", "Annotations/1.xml": XML}
YOLO = {"images/train/1.jpg": "", "labels/train/1.txt": "0 .5 .5 1 1"}
IDS = {f"train/{i}.png": "" for i in range(8)}


@pytest.mark.parametrize(("files", "spec"), [
    (FOLDER, "folder"), (VOC, "voc"), (YOLO, "yolo"), ({"1.jpg": "", "notes.txt": "hello"}, "none"),
    ({"1.jpg": "", "1.xml": XML}, "voc"), ({"1.jpg": "", "1.txt": "0 .5 .5 1 1"}, "yolo"),
    ({"1.jpg": "", "1.txt": "a caption"}, "none"), ({"1.jpg": "", "1.xml": "<project/>"}, "none"),
    ({"train/1.jpg": "", "train/1.xml": XML, "test/2.jpg": "", "test/2.xml": XML}, "voc"),
    ({"train/images/1.jpg": "", "train/labels/1.txt": "", "data.yaml": "names: [a]"}, "yolo"),
    (VOC | {"ImageSets/Main/train.txt": "1\n"}, "voc"), (YOLO | {"train.txt": "images/train/1.jpg\n"}, "yolo"),
    ({"JPEGImages/cat/1.jpg": "", "JPEGImages/dog/2.jpg": ""}, "folder"),
    ({"train/1.jpg": "", "val/1.jpg": ""}, "none"),
])  # fmt: skip
def test_one_fits(make_tree, files, spec):
    choice = recognize(make_tree(files), SourceOptions())
    assert choice.spec == spec and choice.why


def test_images_without_an_extension_are_no_masks_of_each_other(make_tree):
    tree = make_tree({f"{name}/{i}": b"\xff\xd8\xff image" for name in ("cat", "dog") for i in range(4)})
    assert len(tree.images) == 8 and recognize(tree, SourceOptions()).spec == "folder"


def test_a_cache_of_hugging_face_is_not_two_classes(make_tree):
    files = {f"blobs/{i}a": b"\xff\xd8\xff image" for i in range(4)} | {f"snapshots/ab1/{i}.jpg": "" for i in range(4)}
    with pytest.raises(UsageError, match=r"images of blobs/ again in snapshots/ab1/; choose .* alone as the source"):
        recognize(make_tree(files | {"refs/main": "ab1"}), SourceOptions())


def test_a_list_is_found(make_tree):
    tree = make_tree({"1.jpg": "", "labels.csv": "filename,label\n1.jpg,cat\n"})
    source = open_source("auto", tree, SourceOptions())
    assert source.annotate(b"1.jpg").label == "cat"
    assert source.notes[0].startswith("--labels list:/") and "labels.csv" in source.notes[0]


@pytest.mark.parametrize(("files", "image"), [
    ({"b.jpg": "", "c.jpg": "", "x.csv": "C:\\set\\b.jpg,cat\nC:\\set\\c.jpg,dog\n"}, b"b.jpg"),
    (IDS | {"labels.csv": "id,label\n" + "".join(f"{i},frog\n" for i in range(8))}, b"train/1.png"),
    ({"000bec18.jpg": "", "001513df.jpg": "", "x/y.csv": "id,breed\n000bec18,a\n001513df,b\n"}, b"000bec18.jpg"),
])  # fmt: skip
def test_a_list_is_found_whose_paths_are_other_ones(make_tree, files, image):
    source = open_source("auto", make_tree(files), SourceOptions())
    assert source.annotate(image).label in ("cat", "frog", "a")


def test_an_image_outside_of_a_list_that_auto_found_is_bad(make_tree):
    """The list may be of other images; only a list that is given by name selects."""
    tree = make_tree({"1.jpg": "", "2.jpg": "", "labels.csv": "1.jpg,cat\n"})
    source = open_source("auto", tree, SourceOptions())
    assert source.in_split(b"2.jpg")
    with pytest.raises(NoLabel, match=r"is not in labels\.csv; .* to pack only the images that it names"):
        source.annotate(b"2.jpg")


def test_columns_mean_a_list(make_tree):
    tree = make_tree(FOLDER | {"l.txt": "cat/1.jpg 1 2\n"})
    assert recognize(tree, SourceOptions(columns="path x y")).spec.endswith("/l.txt")
    with pytest.raises(UsageError, match="no list was found"):
        recognize(make_tree({"l.txt": ""}), SourceOptions(columns="path x y"))


@pytest.mark.parametrize("files", [
    {"cats/1.jpg": "", "cats/2.jpg": ""}, {"train/cats/1.jpg": "", "val/cats/1.jpg": ""}, {"set/images/1.jpg": ""},
    {"set/images/1.jpg": "", "set/README.txt": "1.jpg"},
])  # fmt: skip
def test_one_folder_is_no_class_by_itself(make_tree, files):
    choice = recognize(make_tree(files), SourceOptions())
    assert choice.spec == "none" and "(--labels folder" in choice.why


COCO = '{"images": [{"id": 1, "file_name": "a 1.jpg"}, {"id": 2, "file_name": "b.jpg"}], "annotations": []}'
PLAIN = {"a 1.jpg": "", "b.jpg": "", "c.jpg": ""}
WIDER = "0--Parade/0_Parade_1.jpg\n2\n1 2 3 4 0\n5 6 7 8 0\n1--Fair/1_Fair_2.jpg\n1\n1 2 3 4 0\n"


@pytest.mark.parametrize(("files", "message"), [
    (PLAIN | {"annotations/instances.json": COCO}, r"annotations/instances\.json names images"),
    (PLAIN | {"x.json": '{"annotations": [' + "0, " * 900_000 + "0]," + COCO[1:]}, r"x\.json names images"),
    (PLAIN | {"x.json": COCO.replace("jpg", "png")}, r"x\.json names images"),  # converted since
    ({"imgs/a 1.jpg": "", "imgs/b.jpg": "", "x.json": COCO}, r"x\.json names images"),
    ({"cat/a 1.jpg": "", "dog/b.jpg": "", "x.json": COCO}, r"names images.*labels=.folder. \(.*2 class folders"),
    (PLAIN | {"dlib.xml": "<images><image file='a 1.jpg'/><image file='b.jpg'/></images>"}, r"dlib\.xml names images"),
    (PLAIN | {"x/1.xml": "<p><f>a 1.jpg</f></p>", "x/2.xml": "<p><f>b.jpg</f></p>"}, r"x/1\.xml, x/2\.xml name images"),
    (PLAIN | {"x.yaml": "- file: a 1.jpg\n- file: b.jpg\n"}, r"x\.yaml names images"),
    (PLAIN | {"b.pts": "", "c.pts": ""}, r"2 \.pts files have names of images \(b\.pts, c\.pts\).*labels=.none."),
    (PLAIN | {"ann/b.jpg.json": "", "ann/c.jpg.json": ""}, r"2 \.json files have names of images"),
    (PLAIN | {"labels/b.txt": "cat 1 2 3 4\n", "labels/c.txt": "dog 1 2 3 4\n"}, r"2 \.txt files have names of images"),
    (PLAIN | {"labels/b.txt": "0 .5 .5 1 1\n", "labels/c.txt": "0 .5 .5 1 1\n"}, r"2 \.txt files have names of images"),
    ({"cat/1.jpg": "", "cat/1.mat": "", "dog/2.jpg": "", "dog/2.mat": ""}, r"2 \.mat files have names of images"),
    (PLAIN | {"x.json": COCO.encode("utf-16")}, r"x\.json names images"),
    ({"cat/a1.jpg": "", "dog/b1.jpg": "", "Annotation/cat/a1": "", "Annotation/dog/b1": ""}, r"2 files without an ext"),
    ({"im/img_1.jpg": "", "im/img_2.jpg": "", "t/gt_img_1.txt": "1,2,x", "t/gt_img_2.txt": ""}, r"2 \.txt files have"),
    (PLAIN | {"b_boxes.txt": "", "c_boxes.txt": ""}, r"2 \.txt files have names of images"),
    ({"0_Parade_1.jpg": "", "1_Fair_2.jpg": "", "wider.txt": WIDER}, r"wider\.txt names images"),
])  # fmt: skip
def test_labels_that_cannot_be_read_stop(make_tree, files, message):
    with pytest.raises(UsageError, match=message):
        recognize(make_tree(files), SourceOptions())
    assert open_source("none", make_tree(files), SourceOptions()).annotate(b"x").label is None


README = "These are photos: b.jpg and c.jpg and a 1.jpg,\nall taken in 2007 and 2008\nand free to use,\nas you like\n"


@pytest.mark.parametrize("files", [
    {"a/b/README.txt": README}, {"LICENSE.txt": "Version 1.1, 2 b and 3 c\n" * 9}, {"requirements.txt": "b==1\nc==2\n"},
    {"classes.txt": "b\nc\n"}, {"names.csv": "0,b jpg\n1,cat\n2,dog\n3,bird\n4,b\n"}, {"train.txt": "a 1.jpg\nb.jpg\n"},
    {"b.xml": "<project/>"}, {"b.json": "{}", "c.txt": "a photo"}, {"package.json": '{"name": "b", "x": "1.jpg"}'},
    {"x.json": '["b.jpg"]'}, {"b.thm": "", "c.thm": ""}, {"x.json": b"\xff" * 99}, {"x.csv": "", "x.xml": ""},
])  # fmt: skip
def test_other_files_stop_nothing(make_tree, files):
    assert recognize(make_tree(PLAIN | files), SourceOptions()).spec == "none"
    classes = {f"{name}/{i}.jpg": "" for name in ("cat", "dog") for i in range(9)}
    assert recognize(make_tree(PLAIN | files | classes), SourceOptions()).spec == "folder"


def test_a_map_of_class_numbers_is_no_label(make_tree):
    classes = {f"{c}/{i}.jpg": "" for c in range(3) for i in range(40)}
    maps = {"classes.csv": "0,cat\n1,dog\n2,bird\n", "names.json": '{"0": "cat", "1": "dog", "2": "bird"}'}
    assert recognize(make_tree(classes | maps), SourceOptions()).spec == "folder"


@pytest.mark.parametrize(("files", "message"), [
    ({"images/1.jpg": "", "masks/1.png": ""}, '"images/" and "masks/"'),
    ({"images/1.jpg": "", "masks/1_mask.png": ""}, '"images/" and "masks/"'),
    ({"train/image/1.jpg": "", "train/label/1.jpg": "", "val/image/2.jpg": "", "val/label/2.jpg": ""}, "train/image/"),
    ({"image/train/1.png": "", "gt/train/1.png": ""}, '"gt/train/" and "image/train/"'),
    ({"rgb/1.jpg": "", "depth/1.png": "", "gray/1.png": ""}, '"depth/" and '),
    ({"set/1.jpg": "", "set/masks/1.png": ""}, '"set/" and "set/masks/"'),
    ({f"{d}/{i}.{e}": "" for d, e in (("a", "jpg"), ("b", "png")) for i in range(3)}, '"a/" and "b/"'),
    ({f"{d}/{i}.png": "" for d in "AB" for i in ("sea", "sky")}, '"A/" and "B/"'),
    ({f"{d}_prepped_train/{i}.png": "" for d in ("images", "annotations") for i in range(3)}, '"annotations_prepped_'),
    ({f"{d}Left/{i:06d}.png": "" for d in ("RGB", "GT", "Depth") for i in range(3)}, '"DepthLeft/" and '),
    ({f"{d}/{i:04d}.png": "" for d in ("left", "right", "disparity") for i in range(3)}, '"disparity/" and "left/"'),
    ({f"{d}/{i}.png": "" for d in "AB" for i in (139, 285, 632)}, '"A/" and "B/"'),
])  # fmt: skip
def test_folders_of_pairs_stop(make_tree, files, message):
    with pytest.raises(UsageError, match=f"{message}.* hold images of the same names; .*choose one: labels=.folder. "):
        recognize(make_tree(files), SourceOptions())


def test_pairs_are_packed_where_the_labels_are_said(make_tree):
    tree = make_tree({"images/1.jpg": "", "masks/1.png": ""})
    assert open_source("folder", tree, SourceOptions()).classes == ("images", "masks")


@pytest.mark.parametrize("files", [
    {f"{d}/{i:03d}.jpg": "" for d in ("cat", "dog") for i in range(5)},  # counted alike
    {f"{d}/img_{i}.jpg": "" for d in ("cat", "dog", "ant") for i in range(5)},
    {f"{d}/{i}.jpg": "" for d in ("happy", "sad", "calm") for i in ("ann", "bob")},
    {f"{d}/1 ({i}).jpg": "" for d in ("cat", "dog") for i in range(5)},
    {"mask/1.jpg": "", "mask/2.jpg": "", "no mask/3.jpg": "", "no mask/4.jpg": ""},
    {f"{d}/{i}.jpg": "" for d in ("mask", *"abcdefgh") for i in range(3)},
    {f"{d}/{d}{i}.jpg": "" for d in ("depth charge", "flowGauge") for i in range(5)},
])  # fmt: skip
def test_class_folders_may_share_names(make_tree, files):
    assert recognize(make_tree(files), SourceOptions()).spec == "folder"


def test_two_that_fit_are_refused_with_both_options(make_tree):
    with pytest.raises(UsageError, match=r"2 kinds of labels fit.*labels=.voc. .*labels=.folder. "):
        recognize(make_tree(FOLDER | {"cat/1.xml": XML, "dog/1.xml": "", "x.xml": ""}), SourceOptions())


def test_splits_of_class_folders_lead_to_the_option(make_tree):
    tree = make_tree({"train/cat/1.jpg": "", "train/dog/1.jpg": "", "val/cat/1.jpg": ""})
    with pytest.raises(UsageError, match=r"choose one: split=.train."):
        open_source("auto", tree, SourceOptions())
    assert open_source("auto", tree, SourceOptions("train")).classes == ("cat", "dog")


@pytest.mark.parametrize("spec", ["cooc", "", "list", "list:", "voc:x", "none:", "cvat:"])
def test_unknown_names(make_tree, spec):
    with pytest.raises(UsageError, match="must be one of auto, none, folder, voc, yolo, "):
        open_source(spec, make_tree(FOLDER), SourceOptions())


def test_options_that_nobody_can_use(make_tree):
    check_options(["voc", "list:x"], SourceOptions("train", "path label"))
    check_options(["auto"], SourceOptions("train", "path label"))
    list_of_paths = make_tree({"1.jpg": "", "l.csv": "1.jpg,cat\n"})
    source = open_source(f"list:{os.fsdecode(list_of_paths.root)}/l.csv", list_of_paths, SourceOptions("train"))
    with pytest.raises(UsageError, match="the list has no column of splits"):
        check_sources([source], "train")
    with pytest.raises(UsageError, match="columns is for lists"):
        check_options(["voc"], SourceOptions(columns="path label"))


def test_the_path_may_stand_at_the_end_of_a_long_line(make_tree):
    """As in sets of 98 landmarks and more; of a million columns only the ends are looked at."""
    numbers = " ".join(str(i) for i in range(300))
    tree = make_tree({"cat/1.jpg": "", "dog/2.jpg": "", "faces.txt": f"{numbers} 1.jpg\n{numbers} cat/1.jpg\n"})
    with pytest.raises(UsageError, match=r"2 kinds of labels fit.*faces\.txt"):
        recognize(tree, SourceOptions())


BOXES_OF = "".join(f"v_{image}.jpg,1,2,3,{4 + box},cat\n" for image in range(3) for box in range(50))


@pytest.mark.parametrize("lines", [
    "filename,xmin,ymin,xmax,ymax,class\n" + BOXES_OF,
    "".join(f"v_{image % 2}.jpg\tcat\t1\t2\t3\t{4 + image}\n" for image in range(40)),
    "\ufefffilename\tlabel\r\nv_0.jpg\tcat\r\nv_1.jpg\tdog\r\n".encode("utf-16-le"),
])  # fmt: skip
def test_a_list_of_many_lines_per_image_or_in_utf16_is_found(make_tree, lines):
    tree = make_tree({f"images/v_{image}.jpg": "" for image in range(4)} | {"data/labels.csv": lines})
    assert recognize(tree, SourceOptions()).spec.endswith("data/labels.csv")


SPLIT_LISTS = {
    f"{split}/{name}": f"file_name,label\n{split}.jpg,cat\n" if name == "metadata.csv" else ""
    for split in ("train", "test")
    for name in ("metadata.csv", f"{split}.jpg")
}


def test_a_split_chooses_among_lists(make_tree):
    tree = make_tree(SPLIT_LISTS)
    with pytest.raises(
        UsageError, match="2 kinds of labels fit; choose one, or pass several that label the same images"
    ):
        recognize(tree, SourceOptions())
    choice = recognize(tree, SourceOptions(split="test"))
    assert choice.spec.endswith("/test/metadata.csv")
    source = open_source(choice.spec, tree, SourceOptions(split="test", by_auto=True))
    assert source.in_split(b"test/test.jpg") and not source.in_split(b"train/train.jpg")


def test_the_splits_of_a_list_are_folders_where_it_has_no_column(make_tree):
    tree = make_tree({"train/1.jpg": "", "val/2.jpg": "", "l.csv": "file,label\ntrain/1.jpg,cat\nval/2.jpg,dog\n"})
    choice = recognize(tree, SourceOptions())
    assert "--split train packs one" in choice.why
    source = open_source(choice.spec, tree, SourceOptions(split="train"))
    check_sources([source], "train")
    assert source.in_split(b"train/1.jpg") and not source.in_split(b"val/2.jpg")
    with pytest.raises(UsageError, match="the list has no column of splits"):
        check_sources([open_source(choice.spec, tree, SourceOptions(split="extra"))], "extra")


def test_the_events_of_wider_face_are_no_classes(make_tree):
    wider = "0--Parade/0_Parade_1.jpg\n1\n1 2 3 4 0 0 0 0 0 0\n1--Fair/1_Fair_2.jpg\n1\n1 2 3 4 0 0 0 0 0 0\n"
    images = {"WIDER_train/images/0--Parade/0_Parade_1.jpg": "", "WIDER_train/images/1--Fair/1_Fair_2.jpg": ""}
    tree = make_tree(images | {"wider_face_split/wider_face_train_bbx_gt.txt": wider})
    assert recognize(tree, SourceOptions()).spec == "widerface"


def test_a_box_list_of_open_images_is_one_kind(make_tree):
    lines = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax\n" + "0a1b2c,x,/m/01,1,.1,.2,.1,.2\n" * 2
    tree = make_tree(
        {
            "train/0a1b2c.jpg": "",
            "train/0a1b2d.jpg": "",
            "oidv6-train-annotations-bbox.csv": lines + lines.replace("2c", "2d"),
        }
    )
    assert recognize(tree, SourceOptions()).spec.startswith("list:")


PARTS = ("seg_pred", "seg_test", "seg_train"), ("images_part_1", "images_part_2")


@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_a_dataset_are_no_classes(make_tree, parts):
    tree = make_tree({f"{part}/{i}{part}.jpg": "" for part in parts for i in range(2)})
    assert recognize(tree, SourceOptions()).spec == "none"


@pytest.mark.parametrize("parts", PARTS)
def test_classes_below_the_parts_of_a_dataset_are_named(make_tree, parts):
    images = (f"{part}/{part}/{name}/{i}.jpg" for part in parts for name in ("ant", "bee") for i in range(2))
    first = "seg_train/seg_train" if "seg_train" in parts else "images_part_1/images_part_1"
    with pytest.raises(UsageError, match=rf'"{first}/" and .* are not classes; .*/{first} as the source'):
        recognize(make_tree(dict.fromkeys(images, "")), SourceOptions())


def test_the_names_of_a_known_set_come_before_its_folders(make_tree):
    names = [f"bbox_train/{i:04}/{i:04}C1T000{i}F001.jpg" for i in (1, 3)]
    tree = make_tree(dict.fromkeys([*names, "bbox_test/00-1/00-1C2T0081F201.jpg"], ""))
    with pytest.raises(
        UsageError, match=r'choose one: labels="name:\(\?P<class>.*C\(\?P<cam.*bbox_train as the source'
    ):
        recognize(tree, SourceOptions())


def test_parts_that_folders_are_named_after_are_a_command(make_tree):
    files = {f"{folder}Left/{i:06}.png": "" for folder in ("RGB", "GT", "Depth") for i in range(2)}
    with pytest.raises(UsageError, match=r"if they belong together: mask=.GTLeft. part=.depth=DepthLeft:map.; choose"):
        recognize(make_tree(files), SourceOptions())
    with pytest.raises(UsageError, match=r"if they belong together: mask=.FOLDER. or part=.NAME=FOLDER:KIND."):
        recognize(make_tree(files | {f"FlowLeft/{i:06}.png": "" for i in range(2)}), SourceOptions())


def test_a_class_may_have_the_word_of_a_split(make_tree):
    tree = make_tree({f"{name}/{name}.jpg": "" for name in ("bullet_train", "test tube", "ant", "bee", "cat")})
    assert recognize(tree, SourceOptions()).spec == "folder"


@pytest.mark.parametrize("name", [
    "imagelabels.mat", "human_pose_v1_u12_1.mat", "labels.npy", "labels.xlsx", "train_labels.csv",
    "ILSVRC2012_validation_ground_truth.txt",
])  # fmt: skip
def test_files_with_a_name_of_labels_stop_auto(make_tree, name):
    """They name no image, so that nothing else would show that they are labels."""
    tree = make_tree({f"{i}.jpg": "" for i in range(3)} | {name: "3\n1\n2\n"})
    with pytest.raises(UsageError, match=r"seems to be labels; choose one: .*labels=.none."):
        recognize(tree, SourceOptions())


STRANGE = [
    "id,label\n1,cat\n2,dog\n3,cat\n",  # 00001.jpg; pandas took away the zeros
    "image_id,xmin,ymin,xmax,ymax\nq,1,2,3,4\nr,1,2,3,4\ns,1,2,3,4\n",
    "img;age\nq;20\nr;30\ns;40\n",
    "ImageId,EncodedPixels\nq,1 3 10 5\nr,\ns,1 1\n",
]


@pytest.mark.parametrize("text", STRANGE)
def test_a_table_of_labels_that_names_no_image_stops_auto(make_tree, text):
    """The images were packed without labels."""
    images = {f"train/{number:05d}.jpg": "" for number in range(1, 4)}
    with pytest.raises(UsageError, match=r"train\.csv has a header of labels, but its lines name none of the images"):
        recognize(make_tree(images | {"train.csv": text}), SourceOptions())


@pytest.mark.parametrize("text", ["name,category_id\nant,7\nbee,9\ncat,2\n", "id,label\n0,ant\n1,bee\n2,cat\n"])
def test_a_table_of_classes_does_not(make_tree, text):
    tree = make_tree({f"{number}.png": "" for number in range(70, 80)} | {"names.csv": text})
    assert recognize(tree, SourceOptions()).spec == "none"


@pytest.mark.parametrize("name", ["sample_submission.csv", "sampleSubmission.csv", "sample_submission_v2.csv"])
def test_a_sample_of_a_submission_is_no_label(make_tree, name):
    images = dict.fromkeys([f"train/a{i}.jpg" for i in range(3)] + [f"test/b{i}.jpg" for i in range(3)], "")
    sample = {name: "id,label\nb0,1\nb1,0\nb2,0\n"}
    assert recognize(make_tree(images | sample), SourceOptions()).spec == "none"
    table = {"train.csv": "id,label\na0,1\na1,0\na2,0\n"}
    assert recognize(make_tree(images | sample | table), SourceOptions()).spec.endswith("/train.csv")


def test_class_names_beside_class_folders_do_not(make_tree):
    tree = make_tree({"a/1.jpg": "", "b/2.jpg": "", "labels.txt": "a\nb\n"})
    assert recognize(tree, SourceOptions()).spec == "folder"


def test_a_split_chooses_among_coco_files(make_tree):
    """COCO 2017 as it is: boxes and keypoints of both splits."""
    files = {f"{split}2017/1.jpg": "" for split in ("train", "val")}
    for split in ("train", "val"):
        for kind, more in (("instances", {}), ("person_keypoints", {"keypoints": [1, 1, 2]})):
            thing = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 2, 2], "segmentation": [], **more}
            files[f"annotations/{kind}_{split}2017.json"] = json.dumps({
                "images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [thing],
                "categories": [{"id": 1, "name": "person", **({"keypoints": ["nose"]} if more else {})}],
            })  # fmt: skip
    tree = make_tree(files)
    with pytest.raises(UsageError, match="2 kinds of labels fit") as caught:
        recognize(tree, SourceOptions("val"))
    assert "train2017.json" not in caught.value.line and "person_keypoints_val2017.json" in caught.value.line
    source = open_source(
        f"coco:{os.fsdecode(tree.root)}/annotations/instances_val2017.json", tree, SourceOptions("val")
    )
    assert packed_of(tree, source) == [b"val2017/1.jpg"]


def test_parts_of_landmarks_are_no_classes(make_tree):
    """300-W."""
    points = "version: 1\nn_points: 1\n{\n1 1\n}\n"
    tree = make_tree(
        {"01_Indoor/1.png": "", "02_Outdoor/1.png": "", "01_Indoor/1.pts": points, "02_Outdoor/1.pts": points}
    )
    assert recognize(tree, SourceOptions()).spec == "pts"


@pytest.mark.parametrize("paths", [
    "imgsFine/leftImg8bit/train/a_leftImg8bit.png gtFine/train/a_gtFine_color.png", "HR/1.png LR/1.png upsampled/1.png",
    "training/image_2/1.png training/semantic/1.png training/instance/1.png",
], ids=["Cityscapes", "super-resolution", "KITTI"])  # fmt: skip
def test_folders_of_other_images_are_no_classes(make_tree, paths):
    tree = make_tree(dict.fromkeys(paths.split(), ""))
    for split in (None, "training"):
        with pytest.raises(UsageError):
            recognize(tree, SourceOptions(split))


def test_a_list_of_images_and_masks_has_no_classes(make_tree):
    """CamVid."""
    lines = "".join(f"/SegNet/CamVid/train/{i}.png /SegNet/CamVid/trainannot/{i}.png\n" for i in range(3))
    images = {f"{folder}/{i}.png": "" for folder in ("train", "trainannot") for i in range(3)}
    tree = make_tree(images | {"train.txt": lines})
    with pytest.raises(UsageError, match="they do not look like masks"):
        recognize(tree, SourceOptions())
    spec = f"list:{os.fsdecode(tree.root)}/train.txt"
    assert open_source(spec, tree, SourceOptions()).classes is None
    with pytest.raises(UsageError, match=r'its labels are images, such as .*; name them as masks, columns="path mask"'):
        open_source(spec, tree, SourceOptions(columns="path label"))


def test_a_list_beside_the_files_of_open_images_is_another_kind(make_tree):
    labels = "ImageID,Source,LabelName,Confidence\n" + "".join(f"00000{i}a,x,/m/0{i},1\n" for i in range(4))
    files = {f"00000{i}a.jpg": "" for i in range(4)} | {"train-annotations-human-imagelabels.csv": labels}
    assert recognize(make_tree(files), SourceOptions()).spec == "openimages"
    other = "filename,label\n" + "".join(f"00000{i}a.jpg,c{i % 2}\n" for i in range(4))
    with pytest.raises(UsageError, match=r"2 kinds of labels fit.*list:.*mine\.csv.*openimages"):
        recognize(make_tree(files | {"mine.csv": other}), SourceOptions())
