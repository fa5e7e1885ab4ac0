"""`data.pkl` of a file of torch.save: written opcode by opcode, and read without running anything.

The opcodes are those of `torch.save`, a subset of pickle's protocol 2 (pickletools documents each of them). A tensor is
a call of a function of torch with the number of a storage, which is an entry of the zip.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_STORAGES = {"uint8": "ByteStorage", "int64": "LongStorage", "float32": "FloatStorage"}
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
            _number(0) + _numbers(tensor.shape) + _numbers(_strides(tensor.shape)),
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


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor, in items."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def unpickled(data: bytes) -> Any:
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
            stack.append(_made(getattr(function, "name", ""), arguments))
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


def _made(function: str, arguments: Any) -> Any:
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
    dense = [(n, step) for n, step in zip(shape, _strides(shape), strict=True) if n != 1]
    return Tensor(str(number), dtype, tuple(shape), offset * size, apart == dense or 0 in shape)
