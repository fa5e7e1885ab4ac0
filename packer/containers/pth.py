"""PyTorch shards: one file of tensors as `torch.save` writes it; choose it for code that begins with `torch.load`.

The file is written without torch, so that it has the same bytes for any version of it: a zip of stored entries, one for
each tensor, and `data.pkl`, which names them (packer/containers/pth_pickle.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from packer.containers.arrays import ArrayFile, ArraysWriter, Chunks, array_errors, scanned
from packer.containers.base import Entry, ShardSpec
from packer.containers.pth_pickle import Tensor, pickled, unpickled
from packer.containers.storage import mapped
from packer.containers.stored_zip import StoredEntries

_ALIGNMENT = 64
_PICKLE = "data.pkl"


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

    def _begin_bytes(self, name: str, total: int) -> int:
        base = self._zip.begin(f"archive/data/{len(self._tensors)}", _ALIGNMENT)
        if not total:
            self._zip.end()
        return base

    def _end_bytes(self, name: str, total: int) -> None:
        self._tensors[name] = Tensor(str(len(self._tensors)), "uint8", (total,))

    def _write_root(self, attributes: dict[str, Any]) -> None:
        self._zip.add(f"archive/{_PICKLE}", pickled({**self._tensors, **attributes}))
        self._zip.add("archive/byteorder", b"little")
        self._zip.add("archive/version", b"3\n")


class PthContainer:
    """``--format pth``."""

    name = "pth"
    suffix = ".pth"
    block_bytes = 1
    overhead_bytes = 192

    def create(self, path: str, spec: ShardSpec) -> PthWriter:
        return PthWriter(path, spec)

    def scan(self, path: str) -> Iterator[Entry]:
        """Yield the items of the tensor ``images`` of a dict, else of the first tensor of three or more dimensions.

        It must be contiguous. Images of different sizes need ``image_offsets`` (docs/formats.md). The names come from
        ``keys``, or are numbers. Nothing is unpickled.
        """
        with open_arrays(path) as arrays:
            yield from scanned(arrays)


@contextmanager
def open_arrays(path: str) -> Iterator[ArrayFile]:
    """Open a file of torch.save. Raise DamagedPack if it is none; nothing is unpickled."""
    with array_errors(path, "a torch.save file"), mapped(path) as view, memoryview(view) as data:
        yield _arrays(StoredEntries(path, data), data)


def _arrays(files: StoredEntries, data: memoryview) -> ArrayFile:
    folders = [name.removesuffix(_PICKLE) for name in files.names if name.endswith(f"/{_PICKLE}")]
    if len(folders) != 1:
        raise ValueError(f"{len(folders)} entries {_PICKLE}")
    content = unpickled(files.read(folders[0] + _PICKLE))
    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    elif not isinstance(content, dict):
        content = {"images": content}
    tensors = {f"{name}/": value for name, value in content.items() if isinstance(value, Tensor)}

    def chunks(name: str) -> Chunks:
        tensor = tensors[name]
        if not tensor.contiguous:
            raise ValueError(f"the tensor {name.rstrip('/')} is not contiguous; save {name.rstrip('/')}.contiguous()")
        if 0 in tensor.shape[1:]:
            raise ValueError(f"the tensor {name.rstrip('/')} has items without a number")
        start, stop = files.place(f"{folders[0]}data/{tensor.storage}")
        if start + tensor.start + tensor.bytes > stop:
            raise ValueError(f"the tensor {name.rstrip('/')} extends beyond its storage")
        dtype = np.dtype(tensor.dtype).newbyteorder("<")
        return Chunks(tensor.shape, dtype, np.array([start + tensor.start]), tensor.shape[0])

    return ArrayFile({name: len(tensor.shape) for name, tensor in tensors.items()}, chunks, data, content)


CONTAINER = PthContainer()
