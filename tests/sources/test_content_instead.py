"""Sources without images: what they have instead is named, with the command for it."""

from __future__ import annotations

import pytest

from packer.sources.content_instead import content_instead


@pytest.mark.parametrize(
    ("name", "what", "step"),
    [
        ("a/train.tfrecord", "TFRecord files", "packer adopt {root} -o PACK"),
        ("train.tfrecord-00000-of-00010", "TFRecord files", "packer adopt {root} -o PACK"),
        ("train-images-idx3-ubyte", "arrays of images", "packer adopt {root}/train-images-idx3-ubyte --labels LABELS"),
        ("train-images-idx3-ubyte.gz", "compressed arrays", "gunzip --keep {root}/*.gz, then packer adopt IMAGES"),
        ("cifar-10-batches-py/data_batch_1", "pickles, as CIFAR has", "numpy.save"),
        ("clip {x}.MP4", "videos", 'ffmpeg -i "clip {{x}}.MP4" FRAMES/%06d.jpg'),
    ],
)
def test_what_is_there_instead_of_images(make_tree, name, what, step):
    tree = make_tree({name: "", "readme.txt": ""})
    found = content_instead(tree)
    assert found is not None and what in found[0] and name in found[0]
    assert step.format(root=tree.root.decode()) in found[1]


def test_nothing_that_is_known(make_tree):
    assert content_instead(make_tree({"a.txt": "", "b.csv": ""})) is None
