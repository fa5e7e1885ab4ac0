"""Mean and std of the channels, computed in the background when the page asks for them."""

from __future__ import annotations

from threading import Lock, Thread
from typing import Any

from packer.errors import PackerError
from packer.format.pack import Pack
from packer.model.annotation import Progress
from packer.stats.pixels import ChannelStats, channel_stats


class PixelStats(Progress):
    """The statistics of all pixels of a pack. Threads may share it."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._lock = Lock()
        self._thread: Thread | None = None
        self._done, self._error = 0, ""
        self._found: tuple[ChannelStats, ...] | None = None

    def facts(self, start: bool) -> dict[str, Any]:
        """Return how far it is (``done`` of ``images``), the ``error``, or the ``channels`` when all are read.

        Args:
            start: Whether to begin, if it has not begun.
        """
        with self._lock:
            if start and (self._thread is None or self._error):
                self._done, self._error = 0, ""
                # its end is not waited for when the server ends
                self._thread = Thread(target=self._work, daemon=True)
                self._thread.start()
            begun = self._thread is not None
        facts: dict[str, Any] = {"begun": begun, "done": self._done, "images": len(self._pack)}
        if self._error:
            facts["error"] = self._error
        if self._found is not None:
            options = [part.manifest.options for part in self._pack.packs]
            facts["padded"] = any(one.get("resize") is not None and one.get("fit") == "pad" for one in options)
            facts["channels"] = [
                {"channels": one.channels, "dtype": one.dtype, "images": one.images, "mean": one.mean, "std": one.std}
                for one in self._found
            ]
        return facts

    def advance(self, done: int, bad: int = 0) -> None:
        """Count images."""
        self._done += done

    def _work(self) -> None:
        try:
            self._found = channel_stats(self._pack, self)
        except PackerError as error:
            self._error = str(error)
        except Exception as error:  # the page would wait for a thread that has ended
            self._error = f"{type(error).__name__}: {error}"
