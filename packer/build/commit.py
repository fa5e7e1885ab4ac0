"""Makes a pack appear all at once: it grows in NAME.partial/pack and gets its name by one rename, after fsync.

Nothing else in packer creates, renames or removes a pack.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from packer.build.exchange import exchange
from packer.build.journal import Journal
from packer.build.locks import try_lock, wait_until_unused
from packer.errors import StorageError, UsageError, shown
from packer.manifest import MANIFEST_NAME, PARTIAL_SUFFIX, Manifest
from packer.processes.signals import held_signals

WORKERS_END_S = 30.0
JOURNAL, TABLE, PACK, OLD = "journal", "inputs.arrow", "pack", "old"


class Output:
    """The directory that a build writes to. A context manager: entering it takes the lock, leaving it gives it back.

    What is not published by then stays for the next build if a shard is finished, and is removed if none is.
    """

    def __init__(self, path: str, source: str, overwrite: bool) -> None:
        """Refuse what must not be written to; nothing is created yet."""
        self.path = os.path.abspath(path)
        self.partial = self.path + PARTIAL_SUFFIX
        self.folder = os.path.join(self.partial, PACK)
        """Where the pack grows."""
        self.table = os.path.join(self.partial, TABLE)
        self.journal = Journal("")
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
            self._close()
            raise StorageError(self.partial, error.strerror or str(error)) from None
        except (KeyboardInterrupt, SystemExit):  # it came while that was done
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        while self._lock is None:
            os.makedirs(self.partial, exist_ok=True)
            lock = try_lock(self.partial)
            if lock is None:
                problem = "another build is writing there"
                raise UsageError(self.partial, problem, "wait for it, or choose another --out")
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self.partial), os.fstat(lock)):
                    self._lock = lock
                    break
            os.close(lock)  # a build that ended just now has removed it
        strangers = sorted(set(os.listdir(self.partial)) - {JOURNAL, TABLE, PACK, OLD})
        if strangers:
            self._close()
            problem = f"holds {shown(strangers[0])}, which no build has left there"
            raise UsageError(self.partial, problem, "move it away, or choose another --out")
        # its workers end a moment later than a build that is killed, and until then they write and rename
        if os.path.isdir(self.folder) and not wait_until_unused(self.folder, WORKERS_END_S):
            self._close()
            problem = "workers of a build that was killed are still writing there"
            raise UsageError(self.partial, problem, "wait for them, or end them")
        self.journal = Journal(os.path.join(self.partial, JOURNAL))

    def restart(self) -> None:
        """Forget all that earlier builds have done."""
        for name in os.listdir(self.partial):
            _remove(os.path.join(self.partial, name))
        self.journal = Journal(os.path.join(self.partial, JOURNAL))

    def clear(self) -> None:
        """Keep the files of finished shards, and remove what else is there."""
        os.makedirs(self.folder, exist_ok=True)
        entries = [result.entry for result in self.journal.finished.values() if result.entry is not None]
        self._keep_only({file.name for entry in entries for file in (entry.container, entry.index)})
        for name in (TABLE, OLD):
            _remove(os.path.join(self.partial, name))

    def _keep_only(self, names: set[str]) -> None:
        for name in set(os.listdir(self.folder)) - names:
            _remove(os.path.join(self.folder, name))

    def __exit__(self, *_: object) -> None:
        with held_signals():
            if self._lock is not None and not self._published:
                if self.journal.finished:
                    with suppress(OSError):
                        self.clear()
                else:
                    shutil.rmtree(self.partial, ignore_errors=True)
            self._close()

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, make all of it durable, and give the directory its name."""
        try:
            self._keep_only({file.name for shard in manifest.shards for file in (shard.container, shard.index)})
            _write(os.path.join(self.folder, MANIFEST_NAME), manifest.to_json())
            sync_folder(self.folder)
            self._check_free()
            with held_signals():
                self._take_name()
                self._published = True
                sync_folder(os.path.dirname(self.path))
                shutil.rmtree(self.partial, ignore_errors=True)
        except OSError as error:
            raise StorageError(self.path, f"cannot be finished: {error.strerror or error}") from None

    def _take_name(self) -> None:
        """Rename the work to its final name; a pack that has it now changes places with it, in one step if possible."""
        if not os.path.lexists(self.path):
            os.rename(self.folder, self.path)
        elif not exchange(self.folder, self.path):
            old = os.path.join(self.partial, OLD)
            os.rename(self.path, old)
            try:
                os.rename(self.folder, self.path)
            except OSError:
                os.rename(old, self.path)
                raise


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
        with suppress(FileNotFoundError):
            os.unlink(path)
