"""Locks that a forked child does not inherit in a locked state."""

from __future__ import annotations

import threading
import weakref

from packer.system import at_fork


class Locked:
    """Something with a lock. In a forked child it has a new one: the thread that holds the old one is not there.

    Attributes:
        lock: The lock.
    """

    def __init__(self) -> None:
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        """Begin with a free lock: in a new object, and in a forked child."""
        self.lock = threading.Lock()


_all: weakref.WeakSet[Locked] = weakref.WeakSet()


def _in_child() -> None:
    for one in list(_all):
        one._reset()


at_fork(after_in_child=_in_child)
