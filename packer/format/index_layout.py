"""Refuses an index whose parts are compressed, before Arrow allocates what they claim to hold.

packer writes none compressed, and 16 kB of zstd may stand for gigabytes. Arrow decompresses unasked and tells only
afterwards, so the few numbers that say so are read here (Flatbuffers tables; Arrow's Footer.fbs and Message.fbs).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_TRAILER = 10  # int32 length of the footer, b"ARROW1"
_BLOCK = struct.Struct("<qi4xq")  # offset of the message, bytes of its head, bytes of its body
_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_MESSAGE_HEAD_KIND, _MESSAGE_HEAD = 1, 2
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_DICTIONARY_DATA, _BATCH_COMPRESSION = 1, 3
_PARTS_MAX = 16


def check_plain(data: memoryview) -> None:
    """Raises ValueError where a part of the Arrow file `data` is compressed, or is not where the footer says."""
    try:
        end = len(data) - _TRAILER
        footer = _pointed(data, end - _number(data, "<i", end))
        for kind, blocks in ((_DICTIONARY_BATCH, _FOOTER_DICTIONARIES), (_RECORD_BATCH, _FOOTER_BATCHES)):
            for offset in _offsets(data, _field(data, footer, blocks)):
                if _is_compressed(data, offset, kind):
                    raise ValueError("a part of it is compressed")
    except (struct.error, IndexError) as error:
        raise ValueError("its parts are not where its footer says") from error


def _offsets(data: memoryview, field: int | None) -> Iterator[int]:
    """Where the messages of a list of blocks begin."""
    if field is None:
        return
    start = _pointed(data, field)
    count = _number(data, "<I", start)
    if count > _PARTS_MAX:
        raise ValueError(f"it has {count} parts")
    for i in range(count):
        offset, _, _ = _BLOCK.unpack_from(data, _inside(data, start + 4 + i * _BLOCK.size))
        yield offset


def _is_compressed(data: memoryview, offset: int, kind: int) -> bool:
    if _number(data, "<i", offset) != -1:  # what begins every message since Arrow 0.15
        raise ValueError("a part of it is no message")
    message = _pointed(data, offset + 8)
    head_kind, head = _field(data, message, _MESSAGE_HEAD_KIND), _field(data, message, _MESSAGE_HEAD)
    if head_kind is None or head is None or data[head_kind] != kind:
        raise ValueError("a part of it is of another kind than its footer says")
    batch = _pointed(data, head)
    if kind == _DICTIONARY_BATCH:
        inner = _field(data, batch, _DICTIONARY_DATA)
        if inner is None:
            raise ValueError("a dictionary is missing")
        batch = _pointed(data, inner)
    return _field(data, batch, _BATCH_COMPRESSION) is not None


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a Flatbuffers table stands, None where it is left out."""
    about = table - _number(data, "<i", table)
    at = 4 + 2 * number
    if at + 2 > _number(data, "<H", about):
        return None
    distance = _number(data, "<H", about + at)
    return _inside(data, table + distance) if distance else None


def _pointed(data: memoryview, at: int) -> int:
    return at + int(_number(data, "<I", at))


def _number(data: memoryview, form: str, at: int) -> Any:
    return struct.unpack_from(form, data, _inside(data, at))[0]


def _inside(data: memoryview, at: int) -> int:
    if not 0 <= at < len(data):  # struct would count negative places from the end
        raise IndexError(at)
    return at
