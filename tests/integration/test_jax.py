"""Batches as arrays of JAX: the values of torch's, in the memory that the loader filled, which then stays theirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import draw_classes, draw_shots

from packer import BuildOptions, CenterCrop, PackedLoader, build_pack

jax = pytest.importorskip("jax", reason="jax is optional, and not installed here")


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("jax")
    draw_classes(home / "classes", each=40)
    draw_shots(home / "boxes", 9)
    made = {"classes": home / "classes.lmdb", "boxes": home / "boxes.lmdb"}
    build_pack(BuildOptions(str(home / "classes"), str(made["classes"]), workers=1, resize="64x64"))
    build_pack(BuildOptions(str(home / "boxes"), str(made["boxes"]), workers=1, labels=("voc",)))
    return made


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float32}, {"memory_format": torch.contiguous_format}], ids=str)
def test_the_values_of_tensors(packs: dict[str, Path], options: dict) -> None:
    def made(output: str) -> PackedLoader:
        return PackedLoader(packs["classes"], 16, shuffle=True, output=output, with_index=True, **options)

    epochs = [[(np.array(images.permute(0, 2, 3, 1) if not options.get("memory_format") else images), labels, numbers)
               for images, labels, numbers in made("torch")] for _ in range(1)]  # fmt: skip
    loader = made("jax")
    kept = list(loader)
    for _ in loader:  # another epoch, while the first is kept: its memory is not used again
        pass
    for (images, labels, records), (expected, its, numbers) in zip(kept, epochs[0], strict=True):
        assert isinstance(images, jax.Array) and images.shape == expected.shape
        assert np.array_equal(np.asarray(images), expected)
        assert np.array_equal(np.asarray(labels), its.numpy()) and np.array_equal(np.asarray(records), numbers.numpy())


def test_images_are_not_copied(packs: dict[str, Path]) -> None:
    """JAX takes memory as it is if it is aligned to 64 bytes: that of whole batches of the loader is."""
    loader = PackedLoader(packs["classes"], 16, output="jax", dtype=torch.float32)
    buffers = loader._host._buffers
    images, _ = next(iter(loader))
    start = images.unsafe_buffer_pointer()
    assert any(0 <= start - memory.ctypes.data < memory.nbytes for memory in buffers._buffers)


def test_boxes_are_arrays_too(packs: dict[str, Path]) -> None:
    _, targets = next(iter(PackedLoader(packs["boxes"], 4, crop=CenterCrop(40), output="jax")))
    _, expected = next(iter(PackedLoader(packs["boxes"], 4, crop=CenterCrop(40))))
    for target, its in zip(targets, expected, strict=True):
        assert isinstance(target["boxes"], jax.Array) and np.array_equal(target["boxes"], its["boxes"].numpy())


def test_a_jitted_step(packs: dict[str, Path]) -> None:
    step = jax.jit(lambda images, labels: (images.mean(), labels.sum()))
    for images, labels in PackedLoader(packs["classes"], 16, output="jax", mean=(0.5,) * 3, std=(0.5,) * 3):
        mean, total = step(images, labels)
        assert abs(float(mean)) < 1 and int(total) >= 0
