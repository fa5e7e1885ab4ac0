"""A device that is not there is refused in words."""

from __future__ import annotations

import pytest
import torch

from packer import CudaPrefetcher, PackedLoader
from packer.errors import UsageError


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu(pack):
    with pytest.raises(UsageError, match=r"device: is cuda, which torch cannot use here: .*; use device=\"cpu\""):
        PackedLoader(pack("raw"), 4, device="cuda")
    with pytest.raises(UsageError, match="device"):
        CudaPrefetcher([], "cuda:0")


def test_a_loader_says_what_it_is(pack):
    text = repr(PackedLoader(pack("raw"), 4, shuffle=True))
    assert "batches of 4 to cpu" in text and "ShuffleSampler" in text
