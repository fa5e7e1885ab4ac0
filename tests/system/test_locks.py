"""Locks on folders, by `flock` and by files: one process at a time, gone with its process, and nothing stays."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from packer.system import locks
from packer.system.locks import in_use, lock_folder, wait_until_unused

HOLD = (
    "import sys, tempfile\nfrom packer.system import locks\nlocks.PORTABLE = {portable}\n"
    "tempfile.tempdir = sys.argv[2]\n"
    "lock = locks.lock_folder(sys.argv[1])\nwith locks.in_use(sys.argv[1] + '/pack'):\n"
    "    print(lock is not None, flush=True)\n    sys.stdin.read()\n"
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
    """Another process that has the lock of the folder, and uses the folder in it."""
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


def test_several_use_a_folder(portable: bool, folder: Path) -> None:
    with in_use(str(folder)):
        with in_use(str(folder)):
            assert not wait_until_unused(str(folder), 0.05)
        assert not wait_until_unused(str(folder), 0.05)
        assert wait_until_unused(str(folder / "pack"), 0.05)
    assert wait_until_unused(str(folder), 0.05)


@pytest.mark.usefixtures("holder")
def test_another_process_has_it(folder: Path) -> None:
    assert lock_folder(str(folder)) is None
    assert not wait_until_unused(str(folder / "pack"), 0.05)


def test_a_lock_ends_with_its_process(holder: subprocess.Popen[str], folder: Path) -> None:
    holder.kill()
    holder.wait()
    lock = lock_folder(str(folder))
    assert lock is not None and wait_until_unused(str(folder / "pack"), 0)
    lock.close()
