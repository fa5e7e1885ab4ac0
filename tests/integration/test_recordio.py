"""Packs of RecordIO, read by DALI's `readers.mxnet` on the CPU, and by MXNet 1.9.1 in an environment of its own."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HERE, ROOT, build_numbered
from doc_blocks import run_elsewhere
from drawn import draw_shots

from packer import BuildOptions, build_pack, open_pack

MXNET = ROOT / ".venv-mxnet" / "bin" / "python"


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory, real_data: Path) -> dict[str, Path]:
    """One shard of copied files with labels; several shards of JPEGs with boxes; raw pixels."""
    home = tmp_path_factory.mktemp("recordio")
    build_numbered(home / "images", home / "unused")
    labels = {"labels": (f"list:{home / 'images' / 'list.txt'}",), "columns": ("path label",), "workers": 1}
    boxes = {"labels": ("voc",), "boxes": "drop", "resize": "96x72", "workers": 1, "shard_bytes": 300_000}
    asked: dict[str, tuple[Path, dict[str, Any]]] = {
        "copy": (home / "images", {"encode": "copy", "shard_bytes": None, **labels}),
        "raw": (home / "images", {"encode": "raw", "shard_bytes": None, **labels}),
        "boxes": (real_data / "voc_bccd", {"encode": "jpeg", **boxes}),
    }
    for name, (source, options) in asked.items():
        build_pack(BuildOptions(str(source), str(home / name), "recordio", **options))
    return {name: home / name for name in asked}


def expected_label(pack: Any, i: int) -> np.ndarray:
    """The label vector of im2rec."""
    annotation, (height, width, _) = pack.annotation(i), pack.reader.shape_of(i)
    if annotation.boxes is None:
        return np.array([annotation.label], np.float32)
    objects = np.column_stack([annotation.box_labels, annotation.boxes / [width, height, width, height]])
    return np.array([2, 5, *objects.ravel()], np.float32)


@pytest.mark.parametrize("name", ["copy", "boxes", "raw"])
def test_dali_reads_it(packs: dict[str, Path], name: str, tmp_path: Path) -> None:
    fn: Any = pytest.importorskip("nvidia.dali.fn", reason="DALI is optional, and not installed here")
    from nvidia.dali import pipeline_def

    pack = open_pack(packs[name])
    shards = sorted(packs[name].glob("*.rec"))
    assert (len(shards) > 1) == (name == "boxes")
    # DALI takes one list, of places in all files as if they were one (docs/formats.md)
    index, start = tmp_path / "all.idx", 0
    with open(index, "w") as file:
        for shard in shards:
            for line in shard.with_suffix(".idx").read_text().splitlines():
                number, place = line.split("\t")
                file.write(f"{number}\t{start + int(place)}\n")
            start += shard.stat().st_size

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline() -> Any:
        files, labels = fn.readers.mxnet(path=list(map(str, shards)), index_path=str(index), name="reader")
        return (files if name == "raw" else fn.decoders.image(files, device="cpu")), labels

    made = pipeline()
    made.build()
    assert made.epoch_size("reader") == len(pack)
    for i in range(len(pack)):
        images, labels = made.run()
        image, label = np.array(images[0]), np.array(labels[0])
        np.testing.assert_allclose(label, expected_label(pack, i), rtol=1e-6)
        if name == "raw":
            pixels = image[128 : 128 + len(pack.record(i))].tobytes()
            assert pixels == bytes(pack.record(i))
        else:
            assert np.abs(image.astype(int) - pack.image(i)).max() <= (2 if name == "boxes" else 0)


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is optional, and not installed here")
    draw_shots(tmp_path / "shots", 9)
    monkeypatch.chdir(tmp_path)
    options = {"labels": ("voc",), "encode": "jpeg", "shard_bytes": 4096, "workers": 1}
    build_pack(BuildOptions("shots", "jpegs.rec", **options))
    assert run_elsewhere(ROOT / "docs" / "formats.md", "test_recordio.py") == 1


@pytest.mark.skipif(not MXNET.exists(), reason="MXNet needs numpy below 1.24: scripts/test_integrations.sh installs it")
@pytest.mark.parametrize("name", ["copy", "boxes", "raw"])
def test_mxnet_reads_it(packs: dict[str, Path], name: str) -> None:
    pack = open_pack(packs[name])
    command = [str(MXNET), "-W", "ignore", str(HERE / "with_mxnet.py"), *map(str, sorted(packs[name].glob("*.rec")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == len(pack)
    for i, (number, label, size, sha256) in enumerate(records):
        assert number == i
        np.testing.assert_allclose(label, expected_label(pack, i), rtol=1e-6)
        image = bytes(pack.record(i))
        if name == "raw":
            assert size[0] == 128 + len(image)
        else:
            assert tuple(size) == pack.reader.shape_of(i)[:2]
        assert sha256 == hashlib.sha256(image).hexdigest()
