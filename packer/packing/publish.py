"""Publishes a pack in one step: it grows in NAME.partial/pack, is synced, and gets its final name by one rename.

Nothing else in packer creates, renames or removes a pack.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from packer.errors import AnyPath, StorageError, UsageError, plural, printable
from packer.format.beside import BesideList
from packer.format.lists import Listing, write_lists
from packer.format.manifest import Manifest, read_manifest
from packer.format.pack_paths import MANIFEST_NAME, PARTIAL_SUFFIX
from packer.format.verify_records import write_companions
from packer.packing.journal import Journal, ShardResult
from packer.packing.write_shard import name_files
from packer.stores import clean_url, is_url
from packer.system import exchange_names, sync_path
from packer.system.atomic import check_own_folder, make_own_folder, remove
from packer.system.locks import LOCK, FolderLock, lock_folder, remove_folder
from packer.system.pool import held_signals, run_held

JOURNAL, PLAN, PACK, OLD, SOURCE = "journal", "plan", "pack", "old", "source"
PART = re.compile(r"part-([1-9]\d{0,5})-of-([1-9]\d{0,5})")
"""Names of the folders of a build in parts."""
TAKEN = "parts"
"""The folder for their shards when all are packed."""


class Output:
    """The directory that a build writes to. A context manager: entering locks it, exiting unlocks it.

    On exit, unpublished work is kept for the next build if at least one shard is finished, and removed otherwise.
    """

    def __init__(self, path: str, source: str, overwrite: bool, there: bool = False) -> None:
        """Check the path without creating anything. Raise UsageError if it must not be written to.

        Args:
            path: The new pack.
            source: The folder or file that it is made from; empty if that is not on a disk.
            overwrite: Replace a pack that is there.
            there: The pack is there, and is compared (`check_same`) instead of published.
        """
        self.path, self._given = os.path.abspath(path), path.rstrip("/") or path
        self._work_in(self.path + PARTIAL_SUFFIX)
        self._overwrite = overwrite
        if source:
            check_apart(self.path, source)
        if not there:
            self._check_free()

    def _work_in(self, partial: str) -> None:
        self.partial = self.rest = partial
        """Where it works; and the folder that is locked meanwhile, and removed when the pack is published."""
        self.folder = os.path.join(self.partial, PACK)
        """The folder in which the pack grows."""
        self.source = os.path.join(self.partial, SOURCE)
        """The folder for archives that must be decompressed."""
        self.beside: Sequence[BesideList] = ()
        """Lists of files beside the shards; they and their files are in `folder`."""
        self.journal = Journal("")
        self._lock: FolderLock | None = None
        self._published = False

    def _check_free(self) -> None:
        """Raise UsageError if the path exists, unless it is a pack and ``--overwrite`` is given."""
        parent = os.path.dirname(self.path)
        if not os.path.isdir(parent):
            raise UsageError(parent, "no such folder for the pack", "create it, or choose another --out")
        if not os.path.lexists(self.path):
            return
        is_folder = os.path.isdir(self.path) and not os.path.islink(self.path)
        if is_folder and not os.listdir(self.path):
            return
        if not is_folder or not os.path.isfile(os.path.join(self.path, MANIFEST_NAME)):
            raise UsageError(self.path, "exists and is not a pack", "choose another --out")
        if not self._overwrite:
            raise UsageError(self.path, "exists", "choose another --out, or replace it with --overwrite")

    def check_same(self, manifest: Manifest) -> None:
        """Raise UsageError unless the pack that is there is the one that would be published with this manifest."""
        if replace(read_manifest(self.path), companions={}).digest != manifest.digest:  # they are made of the shards
            self._check_free()

    def __enter__(self) -> Output:
        try:
            with held_signals():
                self._open()
        except StorageError:
            self._close()
            raise
        except OSError as error:
            self._close()
            raise StorageError(self.partial, error.strerror or str(error), "choose another --out") from None
        except (KeyboardInterrupt, SystemExit):  # raised at the end of `held_signals`
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        self._lock = lock_folder(self.rest)
        if self._lock is None:
            problem = "another build is writing to it"
            raise UsageError(self.place, problem, "wait for it, or choose another --out")
        make_own_folder(self.partial)  # if it is not what is locked
        names = os.listdir(self.partial)
        parts = [name for name in names if name == TAKEN or PART.fullmatch(name)]
        if parts and not self._overwrite:
            self._close()
            problem = "holds parts of a build"
            raise UsageError(self.partial, problem, "publish them with --finish, or discard them with --overwrite")
        for name in parts:
            lock = lock_folder(os.path.join(self.partial, name))
            if lock is None:
                self._close()
                raise UsageError(self.place, f"{name} is still being built", "wait until it has ended")
            lock.close()
        self._check_names(self.partial, {JOURNAL, PLAN, PACK, OLD, SOURCE, LOCK, *parts})
        if os.path.lexists(self.folder):
            check_own_folder(self.folder)
        self.journal = Journal(os.path.join(self.partial, JOURNAL))

    def _check_names(self, folder: str, known: set[str]) -> None:
        """Raise UsageError if a folder that will be removed holds something else."""
        unknown_files = sorted({*os.listdir(folder)} - known)
        if unknown_files:
            self._close()
            problem = f"holds {printable(unknown_files[0])}, which was not left by a build"
            raise UsageError(folder, problem, "move it away, or choose another --out")

    def read_journal(self, head: Mapping[str, Any]) -> list[str]:
        """Look for the work of a build with the options `head`: a folder has one journal, which is read already.

        Returns:
            Notes for the user.
        """
        return []

    def add(self, name: str, result: ShardResult) -> None:
        """Give the files of a finished shard their names, and record it. Raise StorageError on failure."""
        with held_signals():  # Ctrl-C in between would leave a line of a shard whose files are removed
            self._name_files(name, result)
            self.journal.add(name, result)

    def _name_files(self, name: str, result: ShardResult) -> None:
        if result.entry is not None:
            name_files(self.folder, name, result.attempt)

    @property
    def lock_works(self) -> bool:
        """Whether other builds notice that this one writes there."""
        return self._lock is not None and self._lock.works

    @property
    def kept(self) -> str:
        """What is left for the next attempt, as a note; empty if nothing is."""
        finished = self.journal.finished_shards
        shards = plural(finished, "finished shard is", "finished shards are")
        return f"{shards} kept in {printable(self.place)}" if finished and not self._published else ""

    resumes_with = "run the same command to resume"
    checked = False
    """Whether the files of finished shards are not in `folder`, and were found unchanged."""

    @property
    def place(self) -> str:
        """Where unfinished work is kept, as the path of the pack was given."""
        return f"{self._given}{self.partial.removeprefix(self.path)}"

    def restart(self) -> None:
        """Remove the work of earlier builds."""
        self._remove_all()
        self.journal = Journal(os.path.join(self.partial, JOURNAL))

    def _remove_all(self) -> None:
        for name in set(os.listdir(self.partial)) - {LOCK}:
            remove(os.path.join(self.partial, name))

    def clear(self) -> None:
        """Remove everything but the files of finished shards."""
        make_own_folder(self.folder)
        entries = [result.entry for result in self.journal.finished.values() if result.entry is not None]
        self._keep_only({file.name for entry in entries for file in (entry.container, entry.index)})
        self._clear_work()

    def _clear_work(self) -> None:
        for name in (PLAN, OLD, SOURCE):
            remove(os.path.join(self.partial, name))

    def _keep_only(self, names: set[str]) -> None:
        for name in set(os.listdir(self.folder)) - names:
            remove(os.path.join(self.folder, name))

    def __exit__(self, *_: object) -> None:
        run_held(self._leave)

    def _leave(self) -> None:
        if self._lock is not None and not self._published:
            if self._is_kept:
                with suppress(OSError):
                    self.clear()
            elif self.partial == self.rest:
                remove_folder(self.partial, self._lock)
            else:
                remove(self.partial, ignore_errors=True)
        self._close()

    @property
    def _is_kept(self) -> bool:
        return self.journal.finished_shards > 0

    def _close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def publish(
        self, manifest: Manifest, listings: Iterable[Listing[Any]], selections: Mapping[str, bytes] | None = None
    ) -> Manifest:
        """Write the lists of the inputs and the manifest, sync the pack, and rename it to its final name.

        Args:
            manifest: The manifest, without its lists.
            listings: The rejected, skipped and changed inputs.
            selections: Name of an option -> the file that it named (include, exclude).

        Returns:
            The manifest with the entries of the lists and of the companions of shards.
        """
        manifest = replace(manifest, base="")
        try:
            beside = (file for listed in self.beside for file in listed.files)
            self._keep_only({file.name for file in (*manifest.files, *beside)})
            lists = write_lists(self.folder, listings, selections or {})
            companions = write_companions(self.folder, manifest)
            manifest = replace(manifest, lists=lists, companions=companions)
        except OSError as error:
            raise StorageError(self.path, f"cannot be published: {error.strerror or error}") from None
        self.publish_folder(manifest)
        return manifest

    def discard(self) -> None:
        """Remove what was written: a pack elsewhere has it."""
        with held_signals():
            self._published = True
            if self._lock is not None:
                remove_folder(self.rest, self._lock)

    def publish_folder(self, manifest: Manifest) -> None:
        """Write the manifest of the pack in the folder, sync it, and rename it to its final name."""
        try:
            _write(os.path.join(self.folder, MANIFEST_NAME), manifest.to_json())
            sync_path(self.folder)
            self._check_free()
            with held_signals():
                self._take_name()
                self._published = True
                sync_path(os.path.dirname(self.path))
                if self._lock is not None:
                    remove_folder(self.rest, self._lock)
        except OSError as error:
            raise StorageError(self.path, f"cannot be published: {error.strerror or error}") from None

    def _take_name(self) -> None:
        """Rename the new pack to its final name, exchanging names with an existing pack in one step if possible."""
        if not os.path.lexists(self.path):
            os.rename(self.folder, self.path)
        elif not exchange_names(self.folder, self.path):
            old = os.path.join(self.partial, OLD)
            os.rename(self.path, old)
            try:
                os.rename(self.folder, self.path)
            except OSError:
                os.rename(old, self.path)
                raise


def check_folder(out: AnyPath, command: str) -> None:
    """Raise UsageError if the output of `command`, whose packs share the files of others, is a URL."""
    if is_url(out):
        problem = f"is a URL, and packer {command} links files of a disk"
        raise UsageError(clean_url(out), problem, "choose a folder as --out, then packer push it there")


def check_apart(output: str, source: str) -> None:
    """Raise UsageError if source and output, which may be URLs, overlap: a build would read what it writes."""
    output, source = (path.removeprefix("file://") for path in (output, source))
    if is_url(output) != is_url(source):
        return
    real_output, real_source = (
        clean_url(path) if is_url(path) else os.path.realpath(path) for path in (output, source)
    )
    what = "the source folder" if os.path.isdir(source) else "a file that it is made from"
    if real_output == real_source or real_source.startswith(real_output.rstrip("/") + "/"):
        raise UsageError(output, f"would replace {what}", "choose another --out")
    if real_output.startswith(real_source.rstrip("/") + "/"):
        raise UsageError(output, "is inside the source folder", "choose an --out outside it")


class Outputs:
    """The outputs of several packs, entered and left as one.

    Not by ExitStack: a second Ctrl-C in its own code would leave out what is left to do.
    """

    def __init__(self, outputs: Iterable[Output]) -> None:
        self._outputs = tuple(outputs)
        self._entered: list[Output] = []

    def __enter__(self) -> None:
        try:
            for output in self._outputs:
                output.__enter__()
                self._entered.append(output)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def __exit__(self, kind: Any = None, *rest: object) -> None:
        raised: BaseException | None = None
        while True:
            try:
                while self._entered:
                    self._entered[-1].__exit__(kind, *rest)
                    self._entered.pop()
                break
            except (KeyboardInterrupt, SystemExit) as error:
                raised, kind = error, type(error)  # again: what has been left already, is left at once
            except BaseException as error:
                raised = error
                self._entered.pop()
        if raised is not None:
            raise raised


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
