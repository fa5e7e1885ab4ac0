"""The sources on real data sets: nothing lost, the known oddities found."""

from __future__ import annotations

import pytest

from packer.errors import NoImage, NoLabel, UsageError
from packer.sources import open_source, recognize
from packer.sources.source import SourceOptions
from packer.sources.tree import find_tree


def tree_of(folder):
    return find_tree(str(folder), lambda path: False)[0]


def read(source, images):
    annotations, unlabelled = {}, []
    for image in images:
        try:
            annotations[image] = source.annotate(image)
        except NoLabel:
            unlabelled.append(image)
    return annotations, unlabelled


def test_bccd(real_data):
    tree = tree_of(real_data / "voc_bccd")
    assert recognize(tree, SourceOptions()).spec == "voc"
    source = open_source("voc", tree, SourceOptions())
    annotations, unlabelled = read(source, tree.images)
    assert len(annotations) == 364 and not unlabelled and not list(source.unmatched_labels())
    boxes = [(image, box) for image, a in annotations.items() for box in a.boxes]
    assert len(boxes) == 4888
    assert {name for a in annotations.values() for name in a.box_labels} == {"RBC", "WBC", "Platelets"}
    flat = [image[-9:-4] for image, (x1, y1, x2, y2) in boxes if x1 == x2 or y1 == y2]
    assert flat == [b"00338", b"00343"]
    assert all(a.image_size == (640, 480) for a in annotations.values())
    parts = [open_source("voc", tree, SourceOptions(split)) for split in ("train", "val", "test")]
    counts = [sum(map(part.in_split, tree.images)) for part in parts]
    assert sum(counts) == 364 and not [x for part in parts for x in part.unmatched_labels()]


def test_coco128(real_data):
    tree = tree_of(real_data / "yolo_coco128")
    assert recognize(tree, SourceOptions()).spec == "yolo"
    source = open_source("yolo", tree, SourceOptions())
    annotations, unlabelled = read(source, tree.images)
    assert len(annotations) == 254 and len(source.classes) == 80 and source.classes[79] == "toothbrush"
    assert [image[-7:-4] for image in unlabelled] == [b"250", b"508"]
    unmatched_labels = list(source.unmatched_labels())
    assert [error.where[-7:-4] for error in unmatched_labels] == [b"656", b"659"]
    assert all(isinstance(error, NoImage) for error in unmatched_labels)
    val = open_source("yolo", tree, SourceOptions("val"))
    assert sum(map(val.in_split, tree.images)) == 128


def test_landmarks(real_data):
    tree = tree_of(real_data / "list_landmarks")
    file = real_data / "list_landmarks" / "landmarks.txt"
    with pytest.raises(UsageError, match=r"labels=.folder. .*labels=.list:/.*landmarks\.txt"):
        recognize(tree, SourceOptions())
    with pytest.raises(UsageError, match=r'"path \(x y\)\*5" .*"path x\*5 y\*5"'):
        open_source(f"list:{file}", tree, SourceOptions())
    source = open_source(f"list:{file}", tree, SourceOptions(columns="path x*5 y*5"))
    annotations, unlabelled = read(source, tree.images)
    assert len(annotations) == 900 and not unlabelled and not list(source.unmatched_labels())
    # eyes above nose above mouth, left before right: only x..y.. gives a face
    faces = [a.landmarks for a in annotations.values()]
    assert sum(f[0][0] < f[1][0] and f[0][1] < f[2][1] < f[3][1] for f in faces) > 850
    assert any(value < 0 for face in faces for point in face for value in point)


def test_cifar_folders(real_data):
    tree = tree_of(real_data / "folder_cifar10")
    source = open_source("auto", tree, SourceOptions())
    annotations, unlabelled = read(source, tree.images)
    assert len(annotations) == 2000 and not unlabelled and len(source.classes) == 10
    assert source.classes[0] == "airplane" and source.classes[-1] == "truck"
    assert {a.label for a in annotations.values()} == set(source.classes)


def test_photos_have_no_labels(real_data):
    tree = tree_of(real_data / "photos")
    assert len(tree.images) == 125 and recognize(tree, SourceOptions()).spec == "none"
