"""Lets Ctrl-C, SIGTERM and SIGHUP wait for the few steps that must not be cut in half."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from packer.system import ENDING_SIGNALS


@contextmanager
def held_signals() -> Iterator[None]:
    """Act at the end on a signal that comes meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs no signal handler in this thread
        return
    came: list[int] = []
    before = {}
    try:
        for number in ENDING_SIGNALS:
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


def run_held(action: Callable[[], None]) -> None:
    """Run an action that may be run twice to its end, also if signals come just before they are held.

    What they raise is raised afterwards.
    """
    came: BaseException | None = None
    while True:
        try:
            with held_signals():
                action()
            break
        except (KeyboardInterrupt, SystemExit) as error:
            came = error
    if came is not None:
        raise came
