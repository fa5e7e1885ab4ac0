"""Keras on torch reads each record once per epoch, from a DataLoader or a generator, which resumes after an epoch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import RECORDS
from doc_blocks import ROOT, blocks_of
from drawn import draw_classes
from torch.utils.data import DataLoader

from packer import BuildOptions, PackedDataset, PackedLoader, build_pack
from packer.samplers import ShuffleSampler

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="keras is not installed")
if keras.backend.backend() != "torch":
    pytest.skip("Keras does not run on torch", allow_module_level=True)

BATCH = 8


def fit(data: Any, epochs: int, first: int = 0) -> list[list[int]]:
    """The records of each epoch, in order, as the model sees them."""
    seen: list[list[int]] = []

    class Seeing(keras.Model):
        def call(self, images: torch.Tensor) -> torch.Tensor:
            return images

        def train_step(self, batch: Any) -> dict[str, float]:
            images, labels = batch
            assert images.shape == (BATCH, 3, 6, 6) and images.dtype == torch.uint8
            seen[-1].extend(labels.tolist())
            return {"loss": 0.0}

    model = Seeing()
    model.compile()
    each = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append([]))
    options = {"steps_per_epoch": RECORDS // BATCH} if isinstance(data, Iterator) else {}
    model.fit(data, epochs=epochs, initial_epoch=first, shuffle=False, verbose=0, callbacks=[each], **options)
    return seen


def orders(*epochs: int) -> list[list[int]]:
    return [ShuffleSampler(RECORDS).order(epoch).tolist() for epoch in epochs]


def test_a_generator_of_a_loader(numbered_pack: Path) -> None:
    loader = PackedLoader(numbered_pack, BATCH, shuffle=True)
    assert fit((batch for _ in range(3) for batch in loader), 3) == orders(0, 1, 2)
    loader.set_epoch(1)
    assert fit((batch for _ in range(2) for batch in loader), 3, first=1) == orders(1, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader(numbered_pack: Path, workers: int) -> None:
    data = PackedDataset(numbered_pack)
    for order in ({"shuffle": True}, {"sampler": ShuffleSampler(data)}):
        epochs = fit(DataLoader(data, BATCH, num_workers=workers, **order), 2)
        assert epochs[0] != epochs[1]
        assert [sorted(epoch) for epoch in epochs] == [list(range(RECORDS))] * 2


@pytest.mark.interpreter
def test_on_jax_a_script_ends_without_a_word(tmp_path: Path) -> None:
    """JAX keeps the generators to the end of the interpreter: their loops ended when OpenCV's functions were gone."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    for name, each in (("imgs", 16), ("val", 3)):
        draw_classes(tmp_path / name, each=each)
        build_pack(BuildOptions(str(tmp_path / name), str(tmp_path / f"{name}.lmdb"), workers=1, resize="32x32"))
    (block,) = [block for block in blocks_of(ROOT / "docs" / "guides" / "keras.md") if '= "jax"' in block.text]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax"}
    command = [sys.executable, "-W", "ignore", "-c", block.text]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "accuracy" in done.stdout
    assert "Exception ignored" not in done.stderr
