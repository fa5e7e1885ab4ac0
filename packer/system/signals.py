"""Delays Ctrl-C, SIGTERM and SIGHUP during the few steps that must not be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from packer.system import ENDING_SIGNALS


@contextmanager
def held_signals() -> Iterator[None]:
    """Delay signals that arrive in this context until its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs no signal handler in this thread
        return
    came: list[int] = []
    before = {}
    try:
        for number in ENDING_SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None:  # None: not installed by Python, so it could not be restored
                before[number] = handler
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for sent in came:  # the first one ends the build unless it is ignored (nohup)
            signal.raise_signal(sent)


def run_held(action: Callable[[], None]) -> None:
    """Run an action to its end even if signals arrive just before they are delayed. It may run twice.

    Exceptions that the signals raise are raised afterwards.
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
