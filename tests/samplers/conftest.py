"""The packs that the tests of samplers share: of several shards, built once a session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drawn import draw_shots
from PIL import Image

from packer import BuildOptions, build_pack

COUNTS = {"ant": 90, "bee": 30, "cat": 6}


def _draw_classes(root: Path) -> None:
    for c, (name, count) in enumerate(COUNTS.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.full((4, 5 + i % 4, 3), c, np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i:03}.png")


@pytest.fixture(scope="session")
def classes_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three classes, 90, 30 and 6 images of 4 rows and 5 to 8 columns."""
    root = tmp_path_factory.mktemp("sampled") / "source"
    _draw_classes(root)
    return root


@pytest.fixture(scope="session")
def sorted_pack(classes_source: Path) -> Path:
    """126 records, class by class, in shards of about 20."""
    out = classes_source.parent / "sorted.lmdb"
    build_pack(BuildOptions(str(classes_source), str(out), "lmdb", workers=1, encode="raw", shard_bytes=2000))
    return out


@pytest.fixture(scope="session")
def shuffled_pack(classes_source: Path) -> Path:
    """The same records in a random order."""
    out = classes_source.parent / "shuffled.lmdb"
    options = BuildOptions(
        str(classes_source), str(out), "lmdb", workers=1, encode="raw", shard_bytes=2000, shuffle=1, resize="5x4"
    )
    build_pack(options)
    return out


@pytest.fixture(scope="session")
def boxes_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with boxes and no labels."""
    root = tmp_path_factory.mktemp("boxes")
    draw_shots(root / "source", 12)
    build_pack(BuildOptions(str(root / "source"), str(root / "pack"), "tfrecord", workers=1, labels=("voc",)))
    return root / "pack"
