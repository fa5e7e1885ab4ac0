"""What a source without images has instead of them, and the command for that."""

from __future__ import annotations

import re

from packer.errors import printable
from packer.sources.paths import quoted_value
from packer.sources.source import Tree

OTHER_CONTENT = (
    (
        re.compile(rb"\.(?:mp4|avi|mov|mkv|webm|m4v|mpg|mpeg)\Z"),
        "videos", "extract frames as images first: ffmpeg -i {quoted} FRAMES/%06d.jpg",
    ),
    (re.compile(rb"\.tfrecords?(?:-[0-9]+-of-[0-9]+)?\Z"), "TFRecord files", "packer adopt {folder} -o PACK"),
    (
        re.compile(rb"-idx3-ubyte\Z"),
        "arrays of images (IDX)", "packer adopt {folder}/{name} --labels LABELS-idx1-ubyte -o PACK",
    ),
    (
        re.compile(rb"-idx3-ubyte\.gz\Z"),
        "compressed arrays of images (IDX)",
        "gunzip --keep {folder}/*.gz, then packer adopt IMAGES-idx3-ubyte --labels LABELS-idx1-ubyte -o PACK",
    ),
    (
        re.compile(rb"(?:\A|/)(?:data_batch_[1-5]|test_batch|batches\.meta|meta)\Z"),
        "pickles, as CIFAR has, which packer never reads: they may run code",
        "write its images as files, or as arrays with numpy.save, which packer adopt reads",
    ),
)  # fmt: skip
"""What sources without images have instead: names of files in lower case, what they are, what to do."""


def content_instead(tree: Tree) -> tuple[str, str] | None:
    """Return what a source without images has instead, and what to do about it; None if nothing is known."""
    for pattern, what, step in OTHER_CONTENT:
        if path := next((path for path in tree.files if pattern.search(path.lower())), None):
            names = {"folder": printable(tree.root), "name": printable(path), "quoted": quoted_value(path)}
            return f", but {what}: {quoted_value(path)}", step.format(**names)
    return None
