"""Lets Ctrl-C, SIGTERM and SIGHUP wait for the few steps that must not be cut in half."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HELD = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
OF_THE_GROUP = [getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)]
"""What a terminal sends to all processes of a command at once."""


@contextmanager
def held_signals() -> Iterator[None]:
    """A signal that comes meanwhile is acted on at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs no signal handler in this thread
        return
    came: list[int] = []
    before = {}
    try:
        for number in HELD:
            handler = signal.getsignal(number)
            if handler is not None:  # None: not Python's, and could not be put back
                before[number] = handler
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for sent in came:  # the first one ends the build, unless it is ignored (nohup)
            signal.raise_signal(sent)


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Processes started meanwhile by this thread do not notice what a terminal sends, until they unblock it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_THE_GROUP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
