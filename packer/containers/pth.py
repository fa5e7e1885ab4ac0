"""PyTorch shards: one file of tensors as `torch.save` writes it; choose it for code that begins with `torch.load`.

The file is written without torch, so that it has the same bytes for any version of it: a zip of stored entries, one for
each tensor, and `data.pkl`, which names them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from packer.containers.arrays import ArraysWriter, array_format
from packer.containers.container import ShardSpec
from packer.files.torch_tensors import PICKLE, Tensor, open_tensors, strides_of

_ALIGNMENT = 64

_STORAGES = {"uint8": "ByteStorage", "int64": "LongStorage", "float32": "FloatStorage"}


class PthWriter(ArraysWriter):
    """Writes the images as they come, as the first tensor."""

    def __init__(self, path: str, spec: ShardSpec) -> None:
        super().__init__(path, spec)
        self._tensors: dict[str, Tensor] = {}
        self._images = self._zip.begin("archive/data/0", _ALIGNMENT)

    def _append_image(self, data: bytes) -> None:
        self._zip.append(data)

    def _write_images(self) -> Any:
        self._zip.end()
        starts = self._starts()
        images = Tensor("0", "uint8", (int(starts[-1]),))
        if self._item_shape is not None:
            images = Tensor("0", self._spec.dtype, (len(starts) - 1, *self._item_shape))
        self._tensors["images"] = images
        return self._images + starts[:-1]

    def _write_array(self, name: str, array: Any) -> None:
        tensor = Tensor(str(len(self._tensors)), array.dtype.name, array.shape)
        self._zip.begin(f"archive/data/{tensor.storage}", _ALIGNMENT)
        self._zip.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        self._zip.end()
        self._tensors[name] = tensor

    def _begin_bytes(self, name: str, shape: tuple[int, ...], dtype: Any) -> int:
        return self._zip.begin(f"archive/data/{len(self._tensors)}", _ALIGNMENT)

    def _end_bytes(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        self._zip.end()
        self._tensors[name] = Tensor(str(len(self._tensors)), dtype.name, shape)

    def _write_root(self, attributes: dict[str, Any]) -> None:
        self._zip.add(f"archive/{PICKLE}", pickled({**self._tensors, **attributes}))
        self._zip.add("archive/byteorder", b"little")
        self._zip.add("archive/version", b"3\n")


def pickled(content: dict[str, Any]) -> bytes:
    """Return the pickle of a dict of tensors, texts and lists of texts; `torch.load(weights_only=True)` reads it."""
    items = b"".join(_text(name) + _value(value) for name, value in content.items())
    return b"\x80\x02}(" + items + b"u."


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        return b"](" + b"".join(map(_text, value)) + b"e"
    return _tensor(value) if isinstance(value, Tensor) else _text(value)


def _tensor(tensor: Tensor) -> bytes:
    """Return the call that makes a tensor; dtypes without a storage class need another function."""
    function, storage, dtype = "_rebuild_tensor_v3", "torch.storage\nUntypedStorage", _global(f"torch\n{tensor.dtype}")
    count = tensor.bytes
    if tensor.dtype in _STORAGES:
        function, storage, dtype = "_rebuild_tensor_v2", f"torch\n{_STORAGES[tensor.dtype]}", b""
        count //= np.dtype(tensor.dtype).itemsize
    return b"".join(
        (
            _global(f"torch._utils\n{function}"),
            b"((" + _text("storage") + _global(storage) + _text(tensor.storage) + _text("cpu") + _number(count) + b"tQ",
            _number(0) + _numbers(tensor.shape) + _numbers(strides_of(tensor.shape)),
            b"\x89" + _global("collections\nOrderedDict") + b")R" + dtype + b"tR",
        )
    )


def _global(name: str) -> bytes:
    return b"c" + name.encode("ascii") + b"\n"


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def _number(number: int) -> bytes:
    return b"J" + struct.pack("<i", number) if number < 1 << 31 else b"\x8a\x08" + struct.pack("<q", number)


def _numbers(numbers: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_number, numbers)) + b"t"


CONTAINER = array_format("pth", ".pth", overhead_bytes=192, create=PthWriter, open_arrays=open_tensors)
