"""Locks on folders, by `flock` and by files: one process at a time, gone with its process, and nothing stays."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from packer.system import locks
from packer.system.locks import LOCK, lock_folder, remove_folder

HOLD = (
    "import sys, tempfile\nfrom packer.system import locks\nlocks.PORTABLE = {portable}\n"
    "tempfile.tempdir = sys.argv[2]\n"
    "lock = locks.lock_folder(sys.argv[1])\nprint(lock is not None, flush=True)\nsys.stdin.read()\n"
)


@pytest.fixture(params=[False, True], ids=["flock", "files"])
def portable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bool:
    if locks.PORTABLE and not request.param:
        pytest.skip("PACKER_PORTABLE: locks are files")
    monkeypatch.setattr(locks, "PORTABLE", request.param)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return bool(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p" / "pack").mkdir(parents=True)
    return tmp_path / "p"


@pytest.fixture
def holder(portable: bool, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock of the folder."""
    command = [sys.executable, "-c", HOLD.format(portable=portable), str(folder), str(tempfile.tempdir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_one_at_a_time(portable: bool, folder: Path) -> None:
    lock = lock_folder(str(folder))
    assert lock is not None and lock_folder(str(folder)) is None
    lock.close()
    lock.close()
    again = lock_folder(str(folder / "new"))
    assert again is not None and (folder / "new").is_dir()
    again.close()
    assert not list(Path(str(tempfile.tempdir)).iterdir())


@pytest.mark.usefixtures("holder")
def test_another_process_has_it(folder: Path) -> None:
    assert lock_folder(str(folder)) is None


def test_a_lock_ends_with_its_process(holder: subprocess.Popen[str], folder: Path) -> None:
    holder.kill()
    holder.wait()
    lock = lock_folder(str(folder))
    assert lock is not None
    lock.close()


def test_a_folder_is_removed_with_its_lock(portable: bool, folder: Path) -> None:
    lock = lock_folder(str(folder))
    assert lock is not None
    (folder / "file").touch()
    remove_folder(str(folder), lock)
    assert not folder.exists() and not list(Path(str(tempfile.tempdir)).iterdir())


@pytest.mark.skipif(locks.PORTABLE, reason="PACKER_PORTABLE: locks are files")
def test_who_waited_for_a_folder_that_is_removed_makes_a_new_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner removes the folder when another process has opened its lock file, and not yet locked it."""
    fcntl = pytest.importorskip("fcntl")
    first = lock_folder(str(folder))
    flock, calls = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            assert first is not None
            remove_folder(str(folder), first)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    second = lock_folder(str(folder))
    assert second is not None and len(calls) == 2
    assert (folder / LOCK).exists() and lock_folder(str(folder)) is None
    second.close()


@pytest.mark.skipif(locks.PORTABLE, reason="PACKER_PORTABLE: locks are files")
def test_a_lock_file_that_nfs_can_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS locks a range of bytes instead, which must be of a file that is open for writing."""
    fcntl = pytest.importorskip("fcntl")

    def flock(descriptor: int, operation: int) -> None:
        fcntl.lockf(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = lock_folder(str(folder))
    assert lock is not None and lock.works
    lock.close()


@pytest.mark.skipif(locks.PORTABLE, reason="PACKER_PORTABLE: locks are files")
def test_a_file_system_without_locks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = lock_folder(str(folder))
    assert lock is not None and not lock.works
    lock.close()
