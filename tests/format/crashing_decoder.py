"""A decoder that crashes on one record, and a scan that crashes; imported in worker processes."""

from __future__ import annotations

import os
import signal
from typing import Any

from packer.format import verify_records

CRASHES_ON = "00000003"
_real = verify_records._wrong_image


def _crashing(rows: Any, row: int, *others: Any) -> str | None:
    if rows.key(row) == CRASHES_ON:
        os.kill(os.getpid(), signal.SIGSEGV)
    return _real(rows, row, *others)


def decode_rows(job: Any, report: Any, decoding_row: Any) -> Any:
    """The real work, with that decoder."""
    verify_records._wrong_image = _crashing
    try:
        return _work(job, report, decoding_row)
    finally:
        verify_records._wrong_image = _real


_work = verify_records.decode_rows


def scan(job: Any, *_: Any) -> Any:
    """Crash, as the library of a format may on a damaged file."""
    os.kill(os.getpid(), signal.SIGSEGV)
