"""The tensors of a file of torch.save. Its `data.pkl` is read opcode by opcode, and nothing is run or imported.

The opcodes are those of `torch.save`, a subset of pickle's protocol 2 (pickletools documents each of them). A tensor is
a call of a function of torch with the number of a storage, which is an entry of the zip. `torch.load` with
`weights_only=True` is no substitute for files of strangers: before torch 2.6 they could run code (CVE-2025-32434).
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.files.array_files import ArrayFile, Chunks, StoredEntries, array_errors
from packer.system.storage import mapped

_DTYPES = {
    "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32",
    "LongStorage": "int64", "HalfStorage": "float16", "FloatStorage": "float32", "DoubleStorage": "float64",
    "BoolStorage": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file of torch.save."""

    storage: str
    """Name of the entry with its data."""
    dtype: str
    """As numpy calls it."""
    shape: tuple[int, ...]
    start: int = 0
    """Its first byte in the storage."""
    contiguous: bool = True
    """Whether its items lie one after another, in C order."""

    @property
    def bytes(self) -> int:
        """Size of its data."""
        return int(np.prod(self.shape, dtype=object)) * np.dtype(self.dtype).itemsize


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in items."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def read_pickle(data: bytes) -> Any:
    """Return the content of a `data.pkl`: dicts, lists, tuples, texts, numbers and `Tensor`; other objects are None.

    Raises:
        ValueError: It is not a pickle, or one with opcodes that torch.save does not write.
    """
    try:
        return _Machine().run(data)
    except (IndexError, KeyError, TypeError, RecursionError, AttributeError) as error:
        raise ValueError(f"data.pkl cannot be read: {error!r}") from error


_MARK = object()


@dataclass(frozen=True, slots=True)
class _Name:
    """A class or function; it is only compared, never imported."""

    name: str


class _Machine:
    """Runs the opcodes that make plain values; a call makes a `Tensor` or None."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        argument: Any
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name in ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"):
                self._stack.append(argument)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name]())
            elif name in ("BINPUT", "LONG_BINPUT"):
                self._memo[argument] = self._stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                self._stack.append(self._memo[argument])
            elif name == "GLOBAL":
                self._stack.append(_Name(argument))
            elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
                count = int(name[-1])
                self._stack[-count:] = [tuple(self._stack[-count:])]
            elif name == "STOP":
                return self._stack.pop()
            elif name != "PROTO":
                self._call(name)
        raise ValueError("it does not end")

    def _call(self, name: str) -> None:
        stack = self._stack
        if name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif name in ("APPEND", "SETITEM"):
            items = [stack.pop() for _ in range(1 if name == "APPEND" else 2)][::-1]
            self._fill(items)
        elif name in ("APPENDS", "SETITEMS"):
            self._fill(self._marked())
        elif name == "BINPERSID":
            pass  # the tuple that says where a storage is stays on the stack
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            stack.append(_call_result(getattr(function, "name", ""), arguments))
        elif name == "BUILD":
            stack.pop()
        else:
            raise ValueError(f"data.pkl has the opcode {name}, which torch.save does not write for tensors")

    def _marked(self) -> list[Any]:
        """Take the values after the last mark."""
        values = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _fill(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, dict):
            target.update(zip(items[::2], items[1::2], strict=True))
        elif isinstance(target, list):
            target.extend(items)


_CONSTANTS: dict[str, Any] = {
    "MARK": lambda: _MARK, "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "NONE": lambda: None,
    "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
}  # fmt: skip


def _call_result(function: str, arguments: Any) -> Any:
    """Return the result of a call: a tensor, the dict of an OrderedDict, or None for anything else."""
    if function == "collections OrderedDict":
        return {}
    if function not in ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"):
        return None
    (kind, storage, number, _, _), offset, shape, strides = arguments[:4]
    if kind != "storage":
        raise ValueError("a tensor without a storage")
    dtype = _DTYPES.get(storage.name.removeprefix("torch "), "")
    if function.endswith("3"):
        dtype = arguments[6].name.removeprefix("torch ")
    size = np.dtype(dtype or "V").itemsize  # V: bfloat16, complex and others
    numbers = (offset, *shape, *strides)
    if not size or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers) or len(shape) != len(strides):
        raise ValueError(f"a tensor of {storage.name}, shape {shape}")
    apart = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    dense = [(n, step) for n, step in zip(shape, strides_of(shape), strict=True) if n != 1]
    return Tensor(str(number), dtype, tuple(shape), offset * size, apart == dense or 0 in shape)


PICKLE = "data.pkl"


@contextmanager
def open_tensors(path: str) -> Iterator[ArrayFile]:
    """Open a file of torch.save. Raise DamagedPack if it is not one; nothing is unpickled."""
    with array_errors(path, "a torch.save file"), mapped(path) as view, memoryview(view) as data:
        yield _arrays(StoredEntries(path, data), data)


def _arrays(files: StoredEntries, data: memoryview) -> ArrayFile:
    folders = [name.removesuffix(PICKLE) for name in files.names if name.endswith(f"/{PICKLE}")]
    if len(folders) != 1:
        raise ValueError(f"{len(folders)} entries {PICKLE}")
    content = read_pickle(files.read(folders[0] + PICKLE))
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
