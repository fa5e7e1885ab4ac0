"""Lets Ctrl-C, SIGTERM and SIGHUP wait for the few steps that must not be cut in half."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_signals() -> Iterator[None]:
    """A signal that comes meanwhile is acted on at the end. Processes started meanwhile never see Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs no signal handler in this thread
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in HELD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by what is started
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for sent in came:  # the first one ends the build, unless it is ignored (nohup)
            signal.raise_signal(sent)
