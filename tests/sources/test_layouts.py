"""Layouts as their tools write them: each is read right, or refused with a line that works. None loses its labels.

A row says what `packer build FOLDER` finds, or the message that it ends with, and then the options that the message
suggests and what they find.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import layouts as draw
import pytest
from layouts import BOXES, FACES, PHOTO, Files

from packer.errors import UsageError
from packer.packing.build_options import BuildOptions
from packer.packing.make_record import ETAG_SCHEMA, PLACE_SCHEMA
from packer.packing.scan import read_inputs


@dataclass(frozen=True)
class Found:
    """What a source finds."""

    labels: str
    images: int = 4
    classes: int = 2
    boxes: int = 4
    landmarks: int = 0
    skipped: int = 0
    note: str = ""
    """Part of a note."""
    unlabeled: int = 0
    """Images without a label: bad inputs, for which there is --missing-labels."""


@dataclass(frozen=True)
class Layout:
    """One row; its options name files relative to the source."""

    name: str
    files: Files
    auto: Found | str
    """What auto finds, or part of the line that refuses it."""
    then: dict[str, Any] = field(default_factory=dict)
    """The options that the line suggests; `below`: a folder of the source, as the source."""
    finds: Found | None = None
    needs: str | None = None
    """A library; without it auto asks for it."""
    source: str = ""
    """The source below the folder that is drawn."""


NAMES = list(BOXES)
FIRST, LAST = NAMES[:2], NAMES[2:]
YAML = "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: dog\n  1: bird\n"
ROBOFLOW_YAML = "train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['dog', 'bird']\n"
YEARS = {"VOC2007": FIRST, "VOC2012": LAST}
VOCDEVKIT = {
    f"VOCdevkit/{year}/{path}": content
    for year, names in YEARS.items()
    for path, content in {
        **draw.voc(names=names), "ImageSets/Main/train.txt": f"{names[0]}\n", "ImageSets/Main/val.txt": f"{names[1]}\n",
        f"SegmentationClass/{names[0]}.png": PHOTO, f"SegmentationObject/{names[0]}.png": PHOTO,
    }.items()
}  # fmt: skip
FACE_PHOTOS = draw.photos(names=FACES)
LANDMARKS = "".join(f"{name}.jpg {' '.join(f'{x} {y}' for x, y in points)}\n" for name, points in FACES.items())
EVENTS = draw.photos("WIDER_train/images/0--Parade/")
POINTS = Found("pts", 4, 0, 0, 12)
BY_FOLDER = Found("folder", boxes=0)

LAYOUTS = [
    # classes by folder
    Layout("class folders", draw.classes(), BY_FOLDER),
    Layout("class folders of images", draw.classes("images/"), BY_FOLDER),
    Layout("class folders of splits", draw.classes("train/") | draw.classes("val/"),
           "choose one: --split train", {"split": "train"}, BY_FOLDER_SKIPPED := Found("folder", boxes=0, skipped=4)),
    Layout("images by split and class", draw.classes("images/train/") | draw.classes("images/val/"),
           "choose one: --split train", {"split": "train"}, BY_FOLDER_SKIPPED),
    Layout("an archive's folder around class folders", draw.classes("set-main/"),
           "/set-main as the source (the images are in 2 class folders)", {"below": "set-main"}, BY_FOLDER),
    Layout("one folder is not a class", draw.photos("cats/"),
           Found("none", classes=0, boxes=0, note="--labels folder takes a folder as a class")),
    Layout("no labels", draw.photos() | {"README.md": "four photos"},
           Found("none", classes=0, boxes=0, note="1 file left unread (README.md)")),
    Layout("unlabelled splits", draw.photos("train/", FIRST) | draw.photos("test/", LAST),
           Found("none", classes=0, boxes=0, note="train/, test/ are packed together (--split train packs one)")),
    Layout("images beside class folders", draw.classes() | draw.photos("images/"),
           '"images/" is not a class by its name, but lies beside ant/, bee/', {"labels": ("folder",)},
           Found("folder", 8, 3, 0)),
    Layout("a split beside class folders", draw.classes() | draw.photos("train/"),
           '"train/" is not a class by its name', {"labels": ("none",)}, Found("none", 8, 0, 0)),
    # Pascal VOC
    Layout("Pascal VOC", draw.voc(),
           Found("voc", note="4 images, 2 classes, 4 boxes, 0 landmarks; 0 files left unread")),
    Layout("LabelImg, beside the images", draw.voc("", ""), Found("voc")),
    Layout("VOCdevkit of two years", {k.removeprefix("VOCdevkit/"): v for k, v in VOCDEVKIT.items()},
           Found("voc", skipped=4)),
    Layout("the parent of VOCdevkit", VOCDEVKIT, Found("voc", skipped=4)),
    Layout("VOC of Roboflow", draw.voc("train/", "train/", FIRST) | draw.voc("valid/", "valid/", LAST),
           Found("voc", note="--split train packs one")),
    Layout("VOC beside a table of another tool", draw.voc() | {"scores.csv": "model,map\nyolo,0.5\n"},
           Found("voc", note="1 file left unread (scores.csv)")),
    Layout("VOC with a class in two spellings", draw.voc("", "") | {
        "x.jpg": PHOTO, "x.xml": draw.voc_xml("x.jpg", [("Dog", 1, 1, 9, 9)])},
        Found("voc", 5, 3, 5, note='class names that differ only in case or blanks: "Dog" and "dog"')),
    # YOLO
    Layout("YOLO of Ultralytics", draw.yolo("images/train/", "labels/train/", FIRST)
           | draw.yolo("images/val/", "labels/val/", LAST) | {"data.yaml": YAML}, Found("yolo")),
    Layout("YOLO of Roboflow", draw.yolo("train/images/", "train/labels/", FIRST)
           | draw.yolo("valid/images/", "valid/labels/", LAST) | {"data.yaml": ROBOFLOW_YAML,
           "README.roboflow.txt": "animals - v1"}, Found("yolo", note="1 file left unread (README.roboflow.txt)")),
    Layout("YOLO of CVAT and darknet", draw.yolo("obj_train_data/", "obj_train_data/") | {
        "obj.names": "dog\nbird\n", "obj.data": "classes = 2\ntrain = data/train.txt\n",
        "train.txt": "".join(f"data/obj_train_data/{name}.jpg\n" for name in NAMES)}, Found("yolo")),
    Layout("YOLO of Label Studio", draw.yolo("images/", "labels/") | {
        "classes.txt": "dog\nbird\n", "notes.json": '{"categories": [{"id": 0, "name": "dog"}], "info": {}}'},
        Found("yolo", note="1 file left unread (notes.json)")),
    Layout("YOLO in an archive's folder", draw.below("animals", draw.yolo("images/", "labels/") | {"data.yaml": YAML}),
           "/animals as the source", {"below": "animals"}, Found("yolo")),
    Layout("YOLO polygons", draw.yolo("images/", "labels/", kind="polygons") | {"data.yaml": YAML}, Found("yolo")),
    Layout("YOLO poses", draw.yolo("images/", "labels/", kind="poses") | {"data.yaml": YAML + "kpt_shape: [2, 3]\n"},
           Found("yolo")),
    Layout("YOLO oriented boxes", draw.yolo("images/", "labels/", kind="obb") | {"data.yaml": YAML}, Found("yolo")),
    # COCO
    Layout("COCO", draw.coco("annotations/instances_train2017.json", "train2017/", FIRST)
           | draw.coco("annotations/instances_val2017.json", "val2017/", LAST), Found("coco")),
    Layout("COCO of Roboflow", draw.coco("train/_annotations.coco.json", "train/", FIRST)
           | draw.coco("valid/_annotations.coco.json", "valid/", LAST), Found("coco")),
    Layout("COCO of CVAT", draw.coco("annotations/instances_default.json", "images/"), Found("coco")),
    Layout("COCO of Label Studio", draw.coco("result.json", "images/", prefix="images/"), Found("coco")),
    Layout("COCO keypoints", draw.coco("annotations/person_keypoints_val2017.json", "val2017/", keypoints=True),
           Found("coco")),
    # archives and tables with images in them
    Layout("a zip", {"set.zip": draw.zipped(draw.classes())}, BY_FOLDER, source="set.zip"),
    Layout("a tar", {"set.tar": draw.tarred(draw.voc())}, Found("voc"), source="set.tar"),
    Layout("Parquet of Hugging Face", {"data/train-00000-of-00001.parquet": draw.parquet()},
           Found("parquet", boxes=0, note='classes are those of the column "label"')),
    # points of faces
    Layout("300-W", FACE_PHOTOS | {f"{name}.pts": draw.pts(name) for name in FACES}, POINTS),
    Layout("dlib", FACE_PHOTOS | {"labels_ibug_300W_train.xml": draw.dlib()}, Found("dlib", 4, 1, 4, 0)),
    Layout("a list of landmarks", FACE_PHOTOS | {"landmarks.txt": LANDMARKS}, '--columns "path (x y)*3"',
           {"columns": ("path (x y)*3",)}, Found("list", 4, 0, 0, 12)),
    # tables
    Layout("a list of classes", draw.photos() | {"labels.csv": draw.table(
        [[f"{name}.jpg", ("ant", "bee")[i % 2]] for i, name in enumerate(NAMES)], "filename,label")},
        Found("list", boxes=0)),
    Layout("CSV of TensorFlow", draw.photos("images/") | {"train_labels.csv": draw.table(
        draw.each_box("path", "w", "h", "class", "x1", "y1", "x2", "y2"),
        "filename,width,height,class,xmin,ymin,xmax,ymax")}, Found("list", 3, unlabeled=1)),
    Layout("CSV of RetinaNet", draw.photos("images/") | {"annotations.csv": "images/img_0001.jpg,,,,,\n" + draw.table(
        draw.each_box("path", "x1", "y1", "x2", "y2", "class", prefix="images/")),
        "classes.csv": "dog,0\nbird,1\n"}, Found("list")),
    Layout("CSV of VoTT", draw.photos() | {"animals-export.csv": draw.table(
        draw.each_box("path", "x1", "y1", "x2", "y2", "class"), '"image","xmin","ymin","xmax","ymax","label"')},
        Found("list", 3, unlabeled=1)),
    Layout("CSV of Open Images", draw.photos("images/") | {"train-annotations.csv": draw.table(
        draw.each_box("id", "source", "class", "1", "fx1", "fx2", "fy1", "fy2", "0", "0", "0", "0", "0"),
        "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside")},
        Found("list", 3, unlabeled=1)),
    Layout("CSV of Kaggle", draw.photos("train/") | {"train.csv": draw.table(
        [[name, ("ant", "bee")[i % 2]] for i, name in enumerate(NAMES)], "id,label")},
        Found("list", boxes=0)),
    Layout("CSV of Roboflow, several classes", draw.photos("train/") | {"train/_classes.csv": draw.table(
        [[f"{name}.jpg", i % 2, 1 - i % 2] for i, name in enumerate(NAMES)], "filename, ant, bee")},
        Found("list", classes=0, boxes=0)),
    Layout("metadata.csv of Hugging Face", draw.photos("train/") | {"train/metadata.csv": draw.table(
        [[f"{name}.jpg", ("ant", "bee")[i % 2]] for i, name in enumerate(NAMES)], "file_name,label")},
        Found("list", boxes=0)),
    Layout("landmarks of CelebA", draw.photos("img_align_celeba/", FACES) | {
        "list_landmarks_align_celeba.txt": "4\nlefteye_x lefteye_y righteye_x righteye_y nose_x nose_y\n" + LANDMARKS},
        Found("list", 4, 0, 0, 12)),
    # tools that draw
    Layout("CVAT for images", draw.photos("images/") | {"annotations.xml": draw.cvat()}, Found("cvat")),
    Layout("a project of CVAT", draw.photos("images/Train/") | {"annotations.xml": draw.cvat(subset=True)},
           Found("cvat")),
    Layout("CVAT for video", {f"images/frame_{i:06d}.png": PHOTO for i in range(4)} | {
        "annotations.xml": draw.cvat_video()}, Found("cvat", 4, 1, 2)),
    Layout("LabelMe", draw.photos() | {f"{name}.json": draw.labelme(name, f"{name}.jpg") for name in NAMES},
           Found("labelme")),
    Layout("LabelMe in a folder of its own", draw.photos("images/") | {
        f"jsons/{name}.json": draw.labelme(name, f"..\\images\\{name}.jpg") for name in NAMES}, Found("labelme")),
    Layout("Create ML of Roboflow", draw.photos("train/") | {"train/_annotations.createml.json": draw.createml()},
           Found("createml")),
    Layout("imagefolder of Hugging Face", draw.photos("train/") | {"train/metadata.jsonl": draw.metadata()},
           Found("jsonl")),
    Layout("VoTT", draw.photos() | {"vott-json-export/animals-export.json": draw.vott()}, Found("vott")),
    Layout("LabelMe of the web", draw.photos("Images/animals/") | {
        f"Annotations/animals/{name}.xml": draw.labelme_web(name) for name in NAMES}, Found("labelme")),
    Layout("VIA's project", draw.photos("images/") | {"animals.json": draw.via(project=True)}, Found("via")),
    Layout("VIA's JSON", draw.photos() | {"via_region_data.json": draw.via()}, Found("via")),
    Layout("VIA's JSON, version 1", draw.photos("train/") | {"train/via_region_data.json": draw.via(1)}, Found("via")),
    Layout("VIA's CSV", draw.photos() | {"via_export_csv.csv": draw.via_csv()}, Found("via")),
    Layout("VIA's COCO", draw.photos() | {"via_export_coco.json": draw.via_coco()}, Found("coco")),
    Layout("Label Studio's JSON", draw.photos() | {"project-1-at-2024.json": draw.label_studio()},
           Found("labelstudio")),
    Layout("Label Studio's JSON-MIN", draw.photos("set/") | {"result.json": draw.label_studio_min()},
           Found("labelstudio")),
    Layout("Supervisely", draw.supervisely_project(), Found("supervisely", note="1 file left unread (meta.json)")),
    # sets with formats of their own
    Layout("WIDER FACE", EVENTS | {"wider_face_split/wider_face_train_bbx_gt.txt": draw.wider(),
           "wider_face_split/readme.txt": "x, y, w, h"}, Found("widerface", 4, 1)),
    Layout("DOTA", draw.photos("train/images/", ending=".png") | {
        f"train/labelTxt/{name}.txt": draw.dota(name) for name in NAMES}, Found("dota")),
    Layout("DOTA8 of Ultralytics", draw.photos("images/train/") | {
        f"labels/train/{name}.txt": draw.yolo_corners(name) for name in NAMES} | {"dota8.yaml": "names: [dog, bird]\n"},
        Found("yolo", note="oriented boxes with --labels yolo-obb")),
    Layout("KITTI", draw.photos("training/image_2/", ending=".png") | {
        f"training/label_2/{name}.txt": draw.kitti(name) for name in NAMES},
        Found("kitti", note="4 images, 2 classes, 4 boxes, 0 landmarks; 0 files left unread")),
    Layout("VisDrone", draw.photos("images/") | {f"annotations/{n}.txt": draw.visdrone(n) for n in NAMES},
           Found("visdrone", classes=11)),
    Layout("ICDAR 2015", draw.photos("ch4_training_images/") | {
        f"ch4_training_localization_transcription_gt/gt_{n}.txt": draw.icdar(n) for n in NAMES},
        Found("icdar", classes=1)),
    Layout("EAST, beside the images", draw.photos() | {f"{n}.txt": draw.icdar(n) for n in NAMES},
           Found("icdar", classes=1)),
    Layout("BDD100K", draw.photos("images/100k/train/") | {"labels/det_20/det_train.json": draw.bdd100k()},
           Found("bdd100k")),
    Layout("BDD100K, a file for each image", draw.photos("images/100k/train/") | {
        f"labels/100k/train/{n}.json": draw.bdd100k_image(n) for n in NAMES}, Found("bdd100k")),
    Layout("CrowdHuman", draw.photos("Images/") | {"annotation_train.odgt": draw.crowdhuman()},
           Found("crowdhuman")),
    Layout("Open Images with labels of images", draw.photos("train/") | {
        "train-annotations-human-imagelabels.csv": draw.table(
            [[n, "verification", f"/m/0{i % 2}", 1] for i, n in enumerate(NAMES)],
            "ImageID,Source,LabelName,Confidence"),
        "train-annotations-bbox.csv": draw.table(
            draw.each_box("id", "source", "class", "1", "fx1", "fx2", "fy1", "fy2", "0", "0", "0", "0", "0"),
            "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,"
            "IsInside")}, Found("openimages")),
    Layout("VGG-Face2", {f"train/n00000{i}/000{i}_01.jpg": PHOTO for i in range(4)} | {
        "bb_landmark/loose_bb_train.csv": draw.table(
            [[f"n00000{i}/000{i}_01", 2, 3, 20, 21] for i in range(4)], "NAME_ID,X,Y,W,H")},
        "datumaro:vgg_face2", {"labels": ("datumaro:vgg_face2",)}, Found("datumaro", 4, 4), needs="datumaro"),
    Layout("MATLAB files", draw.photos("images/") | {f"groundTruth/{name}.mat": b"MATLAB 5.0" for name in NAMES},
           "4 .mat files have names of images", {"labels": ("none",)}, Found("none", 4, 0, 0)),
    Layout("labels that only their folder tells", draw.photos("images/") | {"Anno/list.bin.npy": b"\x93NUMPY"},
           "Anno/list.bin.npy lies in a folder of annotations", {"labels": ("none",)}, Found("none", 4, 0, 0)),
    # masks
    Layout("images and masks", draw.photos("images/") | draw.photos("masks/", ending=".png"),
           "they do not look like masks; if they are: --mask FOLDER", {"below": "images"}, Found("none", 4, 0, 0)),
    Layout("images and masks with other names", draw.photos("images/") | {f"masks/m{i}.png": PHOTO for i in range(4)},
           '"images/" is not a class by its name, but lies beside masks/', {"below": "images"}, Found("none", 4, 0, 0)),
    Layout("masks of Carvana", draw.photos("train/") | draw.photos("train_masks/", ending="_mask.gif"),
           '"train/" and "train_masks/" hold images of the same names', {"below": "train"}, Found("none", 4, 0, 0)),
    Layout("masks of CamVid", draw.photos("train/", ending=".png") | draw.photos("trainannot/", ending=".png"),
           '"train/" and "trainannot/" hold images of the same names', {"below": "train"}, Found("none", 4, 0, 0)),
    Layout("masks of Cityscapes", draw.photos("leftImg8bit/train/ulm/", ending="_leftImg8bit.png")
           | draw.photos("gtFine/train/ulm/", ending="_gtFine_labelIds.png"),
           "hold images of the same names; they do not look like masks", {"below": "leftImg8bit"},
           Found("none", 4, 0, 0)),
    Layout("masks in the class folders", draw.classes() | {
        f"{c}/{c}_{i}_mask.png": PHOTO for c in ("ant", "bee") for i in range(2)},
        "4 images are named like masks of others", {"labels": ("folder",)}, Found("folder", 8, 2, 0)),
]  # fmt: skip


def found(source: Path, expected: Found, **options: Any) -> None:
    copy = source.parent / "copy"
    inputs = read_inputs(BuildOptions(str(source), **options), scratch=lambda _: str(copy))
    facts = (
        inputs.labels,
        len(inputs.table),
        len(inputs.classes),
        inputs.count("boxes"),
        inputs.count("landmarks"),
        len(inputs.skipped),
    )
    wanted = (
        (expected.labels,), expected.images, expected.classes, expected.boxes, expected.landmarks, expected.skipped
    )  # fmt: skip
    assert facts == wanted, list(inputs.rejected)
    assert [rejected.reason for rejected in inputs.rejected] == ["no-label"] * expected.unlabeled
    assert not expected.note or any(expected.note in note for note in inputs.notes), inputs.notes


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_it_is_read_right_or_refused_with_a_line_that_works(layout: Layout, tmp_path: Path) -> None:
    draw.write(tmp_path / "src", layout.files)
    source = tmp_path / "src" / layout.source
    missing = layout.needs is not None and importlib.util.find_spec(layout.needs) is None
    if isinstance(layout.auto, Found) and not missing:
        found(source, layout.auto)
        return
    with pytest.raises(UsageError) as caught:
        read_inputs(BuildOptions(str(source)))
    if missing and isinstance(layout.auto, Found):
        assert f"pip install {layout.needs}" in caught.value.line
        return
    assert isinstance(layout.auto, str)
    assert layout.auto in caught.value.line
    options = dict(layout.then)
    source /= options.pop("below", "")
    if missing:
        with pytest.raises(UsageError, match=f"pip install {layout.needs}"):
            read_inputs(BuildOptions(str(source), **options))
        return
    assert layout.finds is not None
    found(source, layout.finds, **options)


def outcome(source: Path | str, **options: Any) -> Any:
    """What is read of a source, or the line that refuses it."""
    try:
        inputs = read_inputs(BuildOptions(str(source), **options))
    except UsageError as error:
        return error.line.replace(str(source), "SRC")
    names = [name for name in inputs.table.column_names if name not in (*PLACE_SCHEMA.names, *ETAG_SCHEMA.names)]
    notes = [note.replace(str(source), "SRC") for note in inputs.notes]
    return inputs.table.select(names).to_pylist(), inputs.labels, inputs.classes, notes, [*inputs.skipped]


@pytest.mark.parametrize(
    "layout",
    [one for one in LAYOUTS if not one.source and not one.needs and "Parquet" not in one.name],
    ids=lambda one: one.name,
)
def test_an_archive_is_read_as_its_folder(layout: Layout, tmp_path: Path) -> None:
    draw.write(tmp_path / "src", layout.files)
    archives = {"src.zip": draw.zipped(layout.files, zipfile.ZIP_DEFLATED), "src.tar": draw.tarred(layout.files)}
    options = dict(layout.then)
    below = options.pop("below", "")
    for name, data in archives.items():
        (tmp_path / name).write_bytes(data)
        assert outcome(tmp_path / name) == outcome(tmp_path / "src"), name
        if layout.then:
            assert outcome(tmp_path / name / below, **options) == outcome(tmp_path / "src" / below, **options), name


@pytest.mark.parametrize(
    "layout",
    [one for one in LAYOUTS if not one.needs and "Parquet" not in one.name],
    ids=lambda one: one.name,
)
def test_a_store_is_read_as_its_folder(layout: Layout, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="needs obstore (packer[remote])")
    draw.write(tmp_path / "src", layout.files)
    options = dict(layout.then)
    source = tmp_path / "src" / layout.source
    assert outcome(f"file://{source}") == outcome(source)
    source /= options.pop("below", "")
    assert outcome(f"file://{source}", **options) == outcome(source, **options)


def test_the_table_has_forty_rows_with_names_of_their_own() -> None:
    names = [layout.name for layout in LAYOUTS]
    assert len(names) == len(set(names)) >= 40
