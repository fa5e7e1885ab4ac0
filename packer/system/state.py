"""What packer remembers for a user between runs: small JSON files in a folder of theirs, never in a pack."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from packer.errors import PackerError, StorageError
from packer.system import open_regular
from packer.system.atomic import make_own_folder, replacing
from packer.system.locks import lock_folder

WAIT_S, POLL_S = 20.0, 0.005
"""How long a change waits for others, and how often it looks."""
T = TypeVar("T")


def state_folder() -> str:
    """Return the folder where programs of this user keep their state between runs; it may not exist."""
    home = os.path.expanduser("~")
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: relative paths are ignored
        base = {
            "darwin": os.path.join(home, "Library", "Application Support"),
            "win32": os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local"),
        }.get(sys.platform, os.path.join(home, ".local", "state"))
    return os.path.join(base, "packer")


class StateFiles:
    """Files of one kind in the user's state folder. Threads and processes may share them.

    Args:
        kind: The name of their folder.
        what: What they hold, for errors.
    """

    def __init__(self, kind: str, what: str) -> None:
        self.folder = os.path.join(state_folder(), kind)
        self._what = what

    def read(self, name: str, parse: Callable[[Any], T], default: T) -> T:
        """Return what `parse` makes of a file; `default` if there is none.

        Args:
            name: The file, without its extension.
            parse: Receives its JSON value; may raise ValueError, TypeError or KeyError.
            default: What an absent file means.

        Raises:
            StorageError: It cannot be read, or is damaged.
        """
        path = self._path(name)
        try:
            with open_regular(path) as file:
                return parse(json.load(file))
        except (FileNotFoundError, NotADirectoryError):
            return default
        except OSError as error:
            raise StorageError(path, error.strerror or str(error)) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise StorageError(path, "is damaged", f"move it away: it has only {self._what}") from None

    def write(self, name: str, value: Any, sync: bool = True) -> None:
        """Replace a file, all at once. Raise OSError if that fails.

        Args:
            name: The file.
            value: Its JSON value.
            sync: Wait until it is on the disk.
        """
        with replacing(self._path(name), sync=sync) as file:
            file.write(json.dumps(value).encode("utf-8"))

    def keep(self, most: int) -> None:
        """Remove all files but the `most` newest ones. Raise OSError if that fails."""
        with os.scandir(self.folder) as entries:
            found = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.name.endswith(".json")]
        for _, path in sorted(found)[:-most]:
            os.unlink(path)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let no other thread or process change the files. Raise StorageError if they cannot be written."""
        try:
            make_own_folder(self.folder, 0o700)
            end = time.monotonic() + WAIT_S
            while (lock := lock_folder(self.folder)) is None:
                if time.monotonic() > end:
                    raise StorageError(self.folder, "is locked by another packer", "end it, or try again")
                time.sleep(POLL_S)
            try:
                yield
            finally:
                lock.close()
        except PackerError:
            raise
        except OSError as error:
            step = "set XDG_STATE_HOME to a folder in which you can write"
            raise StorageError(self.folder, f"cannot keep {self._what}: {error.strerror or error}", step) from None

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, f"{name}.json")
