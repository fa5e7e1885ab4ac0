"""Keeps what is decoded of the last images, so that all tiles of one are cut out of one decoding."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from packer.errors import BadInput

LAST_IMAGES = 2
"""One thread may begin the next image while another makes the last tiles of this one."""


class DecodedOnce:
    """What is decoded of the last images, so that all tiles of one need it once, in any of several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: dict[bytes, dict[str, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedOnce, ()

    def get(self, path: bytes, what: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, or raise what it raises, called once for each `what` of an image."""
        with self._lock:
            made = self._of(path)
            if what not in made:
                try:
                    made[what] = make()
                except BadInput as error:
                    made[what] = error
            if isinstance(made[what], BadInput):
                raise made[what]
            return made[what]

    def refuse(self, path: bytes, error: BadInput) -> None:
        """Let all further tiles of an image fail with this error: its decoder crashes or hangs."""
        with self._lock:
            self._of(path)[""] = error

    def _of(self, path: bytes) -> dict[str, Any]:
        while path not in self._made and len(self._made) >= LAST_IMAGES:
            del self._made[next(iter(self._made))]
        return self._made.setdefault(path, {})
