"""Names of packer's own at which somebody else has put a link, a pipe or a folder: nothing behind them changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from packer.errors import StorageError
from packer.system import PORTABLE, atomic, open_regular
from packer.system.atomic import is_own_file, make_own_folder, open_own, remove, replacing
from packer.system.locks import LOCK, lock_folder, remove_folder


@pytest.fixture(params=["flags", "no flags"])
def flags(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as on a system that has no O_NOFOLLOW."""
    if request.param == "no flags":
        monkeypatch.setattr(atomic, "OWN_FLAGS", os.O_RDWR | getattr(os, "O_NONBLOCK", 0))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_bytes(b"mine")
    (folder / "sub" / "other").write_bytes(b"mine, too")
    return folder


def world(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


TARGETS = ("file", "sub", "absent")


@pytest.mark.parametrize("target", TARGETS)
def test_a_link_is_replaced_itself(tmp_path: Path, outside: Path, target: str) -> None:
    before, path = world(outside), tmp_path / "name"
    path.symlink_to(outside / target)
    with replacing(str(path)) as file:
        file.write(b"new")
    assert is_own_file(str(path)) and path.read_bytes() == b"new" and world(outside) == before
    with pytest.raises(ZeroDivisionError), replacing(str(path)) as file:
        file.write(b"half" + bytes(1 // 0))
    assert path.read_bytes() == b"new" and sorted(os.listdir(tmp_path)) == ["name", "outside"]


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    with pytest.raises(OSError), replacing(str(tmp_path / "name")):
        pass
    assert os.listdir(tmp_path) == ["name"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.usefixtures("flags")
def test_no_file_is_opened_through_a_link(tmp_path: Path, outside: Path, target: str) -> None:
    before, path = world(outside), tmp_path / "name"
    path.symlink_to(outside / target)
    with pytest.raises(StorageError, match="name: is a link that packer did not make; remove it"):
        open_own(str(path))
    assert world(outside) == before and not is_own_file(str(path))


@pytest.mark.usefixtures("flags")
def test_a_pipe_is_not_opened_and_blocks_nobody(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(tmp_path / "name")
    with pytest.raises(StorageError, match="is in the way: it was not made by packer"):
        open_own(str(tmp_path / "name"))
    with pytest.raises(OSError, match="is a pipe or a device, not a file"):
        open_regular(str(tmp_path / "name"))


def test_a_folder_is_read_as_none(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(str(tmp_path))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("act", [make_own_folder, lock_folder], ids=["make", "lock"])
def test_no_folder_is_taken_that_is_a_link(
    tmp_path: Path, outside: Path, target: str, act: Callable[[str], object]
) -> None:
    before, path = world(outside), tmp_path / "name"
    path.symlink_to(outside / target)
    with pytest.raises(StorageError, match="name: is a link that packer did not make"):
        act(str(path))
    assert world(outside) == before


@pytest.mark.parametrize("target", TARGETS)
def test_no_lock_is_made_through_a_link(tmp_path: Path, outside: Path, target: str) -> None:
    before = world(outside)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / LOCK).symlink_to(outside / target)
    if PORTABLE:
        pytest.skip("locks are files in another folder")
    with pytest.raises(StorageError, match=f"{LOCK}: is a link that packer did not make"):
        lock_folder(str(tmp_path / "p"))
    assert world(outside) == before


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_removed_is_the_link(tmp_path: Path, outside: Path, target: str) -> None:
    before, folder = world(outside), tmp_path / "p"
    (folder / "in").mkdir(parents=True)
    for path in (folder / "link", folder / "in" / "link"):
        path.symlink_to(outside / target)
    remove(str(folder / "link"))
    remove(str(folder / "link"))  # there may be nothing
    (folder / "link").symlink_to(outside / target)
    lock = lock_folder(str(folder))
    assert lock is not None
    remove_folder(str(folder), lock)
    assert not folder.exists() and world(outside) == before


def test_a_locked_folder_that_has_become_a_link_is_not_emptied(tmp_path: Path, outside: Path) -> None:
    folder, before = tmp_path / "p", world(outside)
    lock = lock_folder(str(folder))
    assert lock is not None
    folder.rename(tmp_path / "q")
    folder.symlink_to(outside)
    remove_folder(str(folder), lock)
    assert world(outside) == before


def test_a_parent_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    make_own_folder(str(tmp_path / "link" / "a" / "b"))
    with replacing(str(tmp_path / "link" / "a" / "file")) as file:
        file.write(b"new")
    os.close(open_own(str(tmp_path / "link" / "a" / "own")))
    assert sorted(os.listdir(tmp_path / "real" / "a")) == ["b", "file", "own"]


def test_a_folder_above_that_is_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be one that this user may not write to, such as / or a mount that is read-only."""
    made: list[str] = []
    mkdir = os.mkdir
    monkeypatch.setattr(os, "mkdir", lambda path, *mode: made.append(path) or mkdir(path, *mode))
    make_own_folder(str(tmp_path / "a"))
    make_own_folder(str(tmp_path / "b" / "c"))
    assert made == [str(tmp_path / name) for name in ("a", "b", "b/c")]
