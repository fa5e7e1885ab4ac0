"""What packer remembers for a user: where it is, and that it is no stranger's."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer.errors import StorageError
from packer.system import state
from packer.system.locks import lock_folder
from packer.system.state import StateFiles, state_folder


@pytest.mark.parametrize(
    ("platform", "given", "expected"),
    [
        ("linux", {}, ".local/state/packer"),
        ("linux", {"XDG_STATE_HOME": "relative"}, ".local/state/packer"),
        ("darwin", {}, "Library/Application Support/packer"),
        ("win32", {}, "AppData/Local/packer"),
    ],
)
def test_the_state_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, given: dict[str, str], expected: str
) -> None:
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), **given}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert state_folder() == str(tmp_path / expected)


def test_a_change_waits_for_another_and_gives_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(state, "WAIT_S", 0.01)
    files = StateFiles("things", "things")
    with files.changing():
        files.write("one", {"a": 1})
    assert oct((tmp_path / "packer" / "things").stat().st_mode & 0o777) == "0o700"
    lock = lock_folder(files.folder)
    assert lock is not None
    with pytest.raises(StorageError, match="is locked by another packer"), files.changing():
        pass
    lock.close()
    with files.changing():
        assert files.read("one", dict, {}) == {"a": 1} and files.read("two", dict, {}) == {}
