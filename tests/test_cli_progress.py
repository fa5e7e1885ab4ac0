"""The progress bar: on a terminal it shows images, rate and what is bad; nothing of it stays behind."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from drawn import draw_plain
from running import ROOT


def on_a_terminal(*arguments: str) -> tuple[str, int]:
    """What a command shows on a terminal of 120 columns, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = [sys.executable, "-m", "packer", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT) as process:
        os.close(theirs)
        printable = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how a terminal says that its other end is closed
                break
            if not part:
                break
            printable += part
    os.close(ours)
    return printable.decode(), process.returncode


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = draw_plain(tmp_path_factory.mktemp("bar") / "src", 60, width=320, height=240)
    (root / "000.jpg").write_bytes((root / "000.jpg").read_bytes()[:-500])
    return root


def test_bar(source: Path, tmp_path: Path) -> None:
    options = ["--encode", "png", "--max-bad", "1", "--workers", "1"]
    printable, code = on_a_terminal("build", str(source), "-o", f"{tmp_path}/p", *options)
    assert code == 0
    assert "packing:" in printable and "/60 [" in printable and "images/s" in printable
    # the bar is wiped before each line, so that the lines stand alone
    lines = [line.rpartition("\r")[2] for line in printable.replace("\r\n", "\n").split("\n")]
    assert [line.partition(" ")[0] for line in lines] == ["note:", "plan:", "rejected:", "60", "read", ""]


def test_quiet_and_json_show_no_bar(source: Path, tmp_path: Path) -> None:
    options = [str(source), "--max-bad", "1", "--workers", "1"]
    assert on_a_terminal("build", *options, "-o", f"{tmp_path}/a", "--quiet") == ("", 0)
    printable, code = on_a_terminal("build", *options, "-o", f"{tmp_path}/b", "--json")
    assert code == 0 and printable.startswith("{") and printable.count("\n") == 1


def test_an_error_stands_on_its_own_line(source: Path, tmp_path: Path) -> None:
    printable, code = on_a_terminal("build", str(source), "-o", f"{tmp_path}/p", "--workers", "1", "--encode", "png")
    lines = [line.rpartition("\r")[2] for line in printable.replace("\r\n", "\n").split("\n")]
    assert code == 1 and any(line.startswith(f"packer: {source}: 1 of 60 inputs are bad") for line in lines)
