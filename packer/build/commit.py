"""Makes a pack appear all at once: it grows in NAME.partial and gets its name by one rename, after fsync.

Nothing else in packer creates, renames or removes a pack.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid

from packer.build.signals import held_signals
from packer.errors import StorageError, UsageError
from packer.manifest import MANIFEST_NAME, PARTIAL_SUFFIX, Manifest


class Output:
    """The directory that a build writes to. A context manager: leaving it without `publish` removes the work."""

    def __init__(self, path: str, source: str, overwrite: bool) -> None:
        """Refuse what must not be written to; nothing is created yet."""
        self.path = os.path.abspath(path)
        self.partial = self.path + PARTIAL_SUFFIX
        self._overwrite = overwrite
        self._lock: int | None = None
        self._published = False
        _check_apart(self.path, source)
        self._check_free()

    def _check_free(self) -> None:
        """Refuse to replace anything but a pack, and that only with ``--overwrite``."""
        parent = os.path.dirname(self.path)
        if not os.path.isdir(parent):
            raise UsageError(parent, "no such folder for the pack", "create it, or choose another --out")
        if not os.path.lexists(self.path):
            return
        if os.path.islink(self.path) or not os.path.isdir(self.path):
            raise UsageError(self.path, "exists and is no pack", "choose another --out")
        if not os.listdir(self.path):
            return
        if not os.path.isfile(os.path.join(self.path, MANIFEST_NAME)):
            raise UsageError(self.path, "exists and is no pack", "choose another --out")
        if not self._overwrite:
            raise UsageError(self.path, "exists", "choose another --out, or replace it with --overwrite")

    def __enter__(self) -> Output:
        try:
            with held_signals():
                self._open()
        except OSError as error:
            raise StorageError(self.partial, error.strerror or str(error)) from None
        except (KeyboardInterrupt, SystemExit):  # it came while that was done
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        os.makedirs(self.partial, exist_ok=True)
        self._lock = os.open(self.partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # the kernel drops the lock when the process ends, however it ends
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()  # it is not ours to remove
            problem = "another build is writing there"
            raise UsageError(self.partial, problem, "wait for it, or choose another --out") from None
        for name in os.listdir(self.partial):  # what a build that died has left
            _remove(os.path.join(self.partial, name))

    def __exit__(self, *_: object) -> None:
        with held_signals():
            if self._lock is not None and not self._published:
                shutil.rmtree(self.partial, ignore_errors=True)
            self._close()

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, make all of it durable, and give the directory its name."""
        try:
            _write(os.path.join(self.partial, MANIFEST_NAME), manifest.to_json())
            sync_folder(self.partial)
            self._check_free()
            with held_signals():
                old = self._take_name()
                sync_folder(os.path.dirname(self.path))
                if old is not None:
                    shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise StorageError(self.path, f"cannot be finished: {error.strerror or error}") from None

    def _take_name(self) -> str | None:
        """Rename the work to its final name; returns where the pack lies that was there before."""
        old = self._set_aside()
        try:
            os.rename(self.partial, self.path)
        except OSError:
            if old is not None:
                os.rename(old, self.path)
            raise
        self._published = True
        return old

    def _set_aside(self) -> str | None:
        if not os.path.lexists(self.path):
            return None
        old = f"{self.path}.old-{uuid.uuid4().hex[:8]}"
        os.rename(self.path, old)
        return old


def _check_apart(output: str, source: str) -> None:
    """Source and output must not lie in one another: a build would read what it writes."""
    real_output, real_source = os.path.realpath(output), os.path.realpath(source)
    if real_output == real_source or real_source.startswith(real_output.rstrip("/") + "/"):
        raise UsageError(output, "would replace the source folder", "choose another --out")
    if real_output.startswith(real_source.rstrip("/") + "/"):
        raise UsageError(output, "lies in the source folder", "choose an --out outside of it")


def sync_folder(path: str) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
