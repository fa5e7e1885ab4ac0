"""decode="device" through torchcodec, on the CPU and on a GPU if there is one, against the threads of PackedLoader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding_contract import NVJPEG, DecodingContract, assert_close, epoch_of, needs_gpu, photos  # noqa: F401

from packer import PackedLoader, RandomResizedCrop

why = "torchcodec is optional, and not installed here"
pytest.importorskip("torchcodec", reason=why, exc_type=(ImportError, RuntimeError))


class TestTorchcodec(DecodingContract):
    def make(self, data: Any, batch_size: int, **options: Any) -> PackedLoader:
        return PackedLoader(data, batch_size, decode="device", device=self.device, **options)


@needs_gpu
class TestNvjpeg(TestTorchcodec):
    device = "cuda"
    most = NVJPEG


def test_what_the_device_cannot_decode_is_decoded_on_the_host(photos, monkeypatch):  # noqa: F811
    from torchcodec import decoders

    decode, refused = decoders.decode_jpeg, []

    def picky(data: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
        if any(len(one) % 2 for one in data):
            refused.append(len(data))
            raise RuntimeError("nvJPEG does not know this one")
        return decode(data, **options)

    options: dict[str, Any] = {"crop": RandomResizedCrop(64)}
    expected = epoch_of(PackedLoader(photos("photos"), 8, decode="device", **options))
    monkeypatch.setattr(decoders, "decode_jpeg", picky)
    assert_close(expected, epoch_of(PackedLoader(photos("photos"), 8, decode="device", **options)), 0, 0)
    assert 8 in refused and 1 in refused

    def broken(data: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
        raise RuntimeError("no such device")

    monkeypatch.setattr(decoders, "decode_jpeg", broken)
    with pytest.raises(RuntimeError, match="no such device"):
        epoch_of(PackedLoader(photos("photos"), 8, decode="device", **options))
