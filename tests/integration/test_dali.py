"""packer.dali on DALI's CPU backend, and on a GPU if there is one, against PackedLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from decoding_contract import NVJPEG, DecodingContract, needs_gpu, photos, waves  # noqa: F401
from doc_blocks import ROOT, blocks_of
from PIL import Image
from running import until

import packer.dali
from packer import BuildOptions, PackedLoader, RandomResizedCrop, build_pack
from packer.errors import UsageError

pytest.importorskip("nvidia.dali", reason="DALI is optional, and not installed here")


class TestDali(DecodingContract):
    def make(self, data: Any, batch_size: int, **options: Any) -> PackedLoader:
        return packer.dali.pipeline(data, batch_size, device=self.device, threads=2, **options)


@needs_gpu
class TestMixed(TestDali):
    device = "mixed"
    most = NVJPEG


@pytest.mark.parametrize("prefetch", [1, 4])
def test_fewer_batches_than_are_made_ahead(photos, prefetch):  # noqa: F811
    loader = packer.dali.pipeline(
        photos("photos"), 20, device="cpu", prefetch=prefetch, crop=RandomResizedCrop(16), dtype=torch.float32
    )
    assert [len(images) for _ in range(3) for images, _ in loader] == [20, 4] * 3


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_a_loop_that_is_left_early_leaves_no_threads(photos):  # noqa: F811
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    loader = packer.dali.pipeline(photos("photos"), 4, device="cpu", prefetch=4, crop=RandomResizedCrop(16))
    next(iter(loader))  # what DALI starts once
    before = threads()
    for _ in range(5):
        next(iter(loader))
    assert until(lambda: threads() <= before, 60)


def test_mean_and_std_of_other_channels(photos):  # noqa: F811
    with pytest.raises(UsageError, match="mean: has 1 number, but the images have 3 channels"):
        packer.dali.pipeline(photos("photos"), 4, device="cpu", crop=RandomResizedCrop(16), mean=(0.5,), std=(0.5,))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_says_what_to_write(photos):  # noqa: F811
    with pytest.raises(UsageError, match=r'torch cannot use here.*device="cpu"'):
        packer.dali.pipeline(photos("photos"), 4, crop=RandomResizedCrop(16))


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for i in range(160):
        path = tmp_path / "imgs" / ("ant", "bee")[i % 2] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(waves(260, 270, i)).save(path)
    monkeypatch.chdir(tmp_path)
    build_pack(BuildOptions("imgs", "jpegs.lmdb", encode="copy", workers=1))
    (block,) = [b for b in blocks_of(ROOT / "docs" / "guides" / "dali.md") if "packer.dali.pipeline" in b.text]
    on_cpu = block.text.replace('"mixed"', '"cpu"').replace('"cuda"', '"cpu"').replace("range(90)", "range(2)")
    assert on_cpu.count('"cpu"') == 2
    ran: dict[str, Any] = {}
    exec(compile(on_cpu, "dali.md", "exec"), ran)
    assert ran["images"].shape[1:] == (3, 224, 224) and ran["loss"].isfinite()
