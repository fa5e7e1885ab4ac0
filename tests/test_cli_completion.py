"""Completion in real shells: installed by one command, then asked with the Tab key."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from shlex import quote

import pytest
from drawn import draw_plain
from running import ROOT, good, refused, run

from packer.cli.group import PROGRAMS, SHELLS

WAIT_S = 60.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory with a pack, the program under both its names, and their completion in each shell."""
    home = tmp_path_factory.mktemp("the home of ü")
    (home / "bin").mkdir()
    for program in (home / "bin" / name for name in PROGRAMS):
        program.write_text(f'#!/bin/sh\nPYTHONPATH={quote(str(ROOT))} exec {quote(sys.executable)} -m packer "$@"\n')
        program.chmod(0o755)
    (home / ".bashrc").write_text("PS1='ready '")  # without a line break at its end
    (home / ".zshrc").write_text("PS1='ready '\n")
    work = home / "work"
    good("build", draw_plain(work / "imgs", 2), "-o", work / "imgs.lmdb", "--quiet")
    (work / "imgs" / "names.txt").write_text("a\n")
    with pytest.MonkeyPatch.context() as patched:
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
            patched.delenv(name, raising=False)
        patched.setenv("HOME", str(home))
        for program in PROGRAMS:
            patched.setattr(sys, "argv", [f"/usr/bin/{program}"])
            for shell in SHELLS:
                good("completion", shell, "--install")
    return home


def completed(shell: str, home: Path, line: str, expected: str) -> bool:
    """Whether a shell shows `expected` after a Tab at the end of `line`."""
    ours, theirs = pty.openpty()
    environment = {"HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}", "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    command = [shell, "-i"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=home / "work", env=environment, start_new_session=True
    ) as process:
        os.close(theirs)
        seen, end, sent = b"", time.monotonic() + WAIT_S, False
        try:
            while time.monotonic() < end and (not sent or expected.encode() not in seen):
                if select.select([ours], [], [], 0.2)[0]:
                    seen += os.read(ours, 65536)
                elif not sent and b"ready " in seen:
                    seen, sent = b"", True
                    os.write(ours, f"{line}\t".encode())
        finally:
            process.kill()
    os.close(ours)
    assert sent, seen
    return expected.encode() in seen


CASES = {
    "packer bui": "build ",
    "packer build imgs --format lm": "lmdb ",
    "packer build imgs --format=tfr": "tfrecord ",
    "packer build imgs --encode jp": "jpeg ",
    "packer build imgs --labels wid": "widerface ",
    "packer build imgs --labels list:imgs/na": "list:imgs/names.txt",
    "packer info im": "imgs.lmdb ",
    "dataset-packer info im": "imgs.lmdb ",
    "packer build imgs --like im": "imgs.lmdb ",
}


@pytest.mark.parametrize("line", CASES)
def test_bash(home: Path, line: str) -> None:
    assert completed("bash", home, line, CASES[line])


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh(home: Path) -> None:
    assert completed("zsh", home, "packer build imgs --format tfr", "ecord")  # it draws only what is new


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(home: Path) -> None:
    command = ["fish", "-c", 'complete -C "packer build imgs --format tfr"']
    environment = {**os.environ, "HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    environment.pop("XDG_CONFIG_HOME", None)
    done = subprocess.run(command, env=environment, cwd=home / "work", capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tfrecord"]


def test_install_and_uninstall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in (("HOME", ""), ("XDG_CONFIG_HOME", "config"), ("XDG_DATA_HOME", "data"), ("ZDOTDIR", "")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'")
    for shell in SHELLS:
        monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
        first = good("completion", "--install").out
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert all(str(path) in first for path in files if shell in path.name)
        assert "--uninstall\n" in first and good("completion", shell, "--install").code == 0
        assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert (tmp_path / ".bashrc").read_text().startswith("alias ll='ls -l'\n[ -f ")
    for shell in SHELLS:
        assert "removed from: " in good("completion", shell, "--uninstall").out
        assert "was not installed" in good("completion", shell, "--uninstall").out
    left = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {".bashrc": "alias ll='ls -l'\n", ".zshrc": ""}


def test_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in SHELLS:
        assert f"_PACKER_COMPLETE={shell}_complete" in good("completion", shell).out
    monkeypatch.setenv("SHELL", "/bin/zsh")
    assert good("completion").out == good("completion", "zsh").out
    facts = json.loads(good("completion", "--json").out)
    assert (facts["shell"], facts["done"], facts["files"]) == ("zsh", "printed", [])
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "$SHELL is tcsh; name one: packer completion bash" in refused(2, "completion")
    assert "excludes --uninstall" in refused(2, "completion", "bash", "--install", "--uninstall")
    assert run("completion", "pwsh").code == 2
