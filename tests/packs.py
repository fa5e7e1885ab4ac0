"""Packs that many tests share, as fixtures: small, drawn, of several shards, built once a session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw_dota, draw_shots
from PIL import Image

from packer import BuildOptions, build_pack
from packer.system.storage import HAS_BYTE_LOCKS

MakePack = Callable[..., Path]
CLASSES = ("ant", "bee", "cat")
WIDE = ("lmdb", "hdf5", "tfrecord", "webdataset")
"""The containers of suites that take long: one that shares blocks, one of datasets, two of records. All are read by the
same code, and tests/containers holds every one of `packer.containers.CONTAINERS` to its contract."""
needs_cache = pytest.mark.skipif(not HAS_BYTE_LOCKS, reason="the cache of packs at URLs needs the locks of Linux")


def noise(seed: int, height: int, width: int, channels: int = 3, dtype: str = "uint8") -> np.ndarray:
    """(height, width, channels); no two places and no two images are alike."""
    top = 1 << (8 * np.dtype(dtype).itemsize)
    return np.random.default_rng(seed).integers(0, top, (height, width, channels)).astype(dtype)


def draw_kind(kind: str, root: Path) -> dict[str, object]:
    """Draw the source of a kind of pack; the options to build it with.

    raw: fixed size. jpeg: encoded again. ragged: sizes differ. boxes: VOC boxes, landmarks, labels.
    gray16: one channel, 16 bits. copy: files of three formats as they are. oriented: oriented boxes.
    """
    if kind == "oriented":
        draw_dota(root)
        return {}
    if kind == "boxes":
        draw_shots(root, 9)
        labels = ("voc", f"list:{root / 'landmarks.txt'}")
        return {"labels": labels, "columns": ("path (x y)*5 label",), "shard_bytes": 10_000}
    for c, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(8):
            seed = 8 * c + i
            height, width = (9 + i % 3, 7 + i % 2) if kind == "ragged" else (10, 12)
            channels = 1 if kind == "gray16" else 3
            pixels = noise(seed, height, width, channels, "uint16" if kind == "gray16" else "uint8")
            suffix = ("png", "jpg", "bmp")[i % 3] if kind == "copy" else "png"
            Image.fromarray(pixels.squeeze()).save(root / name / f"{i}.{suffix}")
    options: dict[str, object] = {"shard_bytes": 3000, "encode": kind if kind in ("jpeg", "copy") else "raw"}
    return options | ({"mode": "unchanged"} if kind == "gray16" else {})


def packs_of(draw: Callable[[str, Path], dict[str, Any]], factory: pytest.TempPathFactory) -> MakePack:
    """Return make(kind, container): the pack of what `draw` draws and the options that it gives, built once."""
    homes: dict[str, tuple[Path, dict[str, Any]]] = {}

    def make(kind: str, container: str = "lmdb") -> Path:
        if kind not in homes:
            home = factory.mktemp(kind)
            homes[kind] = home, draw(kind, home / "source")
        home, options = homes[kind]
        out = home / f"pack.{container}"
        if not out.exists():
            build_pack(
                BuildOptions(str(home / "source"), str(out), container, workers=1, no_fingerprints=True, **options)
            )
        return out

    return make


@pytest.fixture(scope="session")
def make_pack(tmp_path_factory: pytest.TempPathFactory) -> MakePack:
    """make_pack(kind, container): the pack's directory; its source is the folder `source` beside it."""
    return packs_of(draw_kind, tmp_path_factory)


@pytest.fixture(params=WIDE)
def container(request: pytest.FixtureRequest) -> str:
    """Each container in turn."""
    name: str = request.param
    return name


@pytest.fixture
def copied(tmp_path: Path, make_pack: MakePack) -> MakePack:
    """Like make_pack, but a copy of the pack, to be damaged."""

    def copy(kind: str, container: str) -> Path:
        return Path(shutil.copytree(make_pack(kind, container), tmp_path / f"{kind}.{container}"))

    return copy
