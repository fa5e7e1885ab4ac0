"""The progress bar and colors: on a terminal only; in a pipe, a line every 30 seconds."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from drawn import draw_plain
from running import ROOT, good

from packer.cli import output


def on_a_terminal(*arguments: str, **variables: str) -> tuple[str, int]:
    """What a command shows on a terminal of 120 columns, and its exit code; without colors, if no others are given."""
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    environment |= variables or {"NO_COLOR": "1"}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = [sys.executable, "-m", "packer", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment) as process:
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
    assert [line.partition(" ")[0] for line in lines] == ["plan:", "rejected:", "packed", ""]


def test_quiet_and_json_show_no_bar(source: Path, tmp_path: Path) -> None:
    options = [str(source), "--max-bad", "1", "--workers", "1"]
    assert on_a_terminal("build", *options, "-o", f"{tmp_path}/a", "--quiet") == ("", 0)
    printable, code = on_a_terminal("build", *options, "-o", f"{tmp_path}/b", "--json")
    assert code == 0 and printable.startswith("{") and printable.count("\n") == 1


def test_an_error_stands_on_its_own_line(source: Path, tmp_path: Path) -> None:
    printable, code = on_a_terminal("build", str(source), "-o", f"{tmp_path}/p", "--workers", "1", "--encode", "png")
    lines = [line.rpartition("\r")[2] for line in printable.replace("\r\n", "\n").split("\n")]
    assert code == 1 and any(line.startswith(f"packer: error: {source}: 1 of 60 inputs is bad") for line in lines)


def test_colors(source: Path, tmp_path: Path) -> None:
    """Error red, notes yellow, headings bold; none with NO_COLOR, in a pipe, or with --json."""
    wrong = ("build", str(source), "-o", f"{tmp_path}/p", "--format", "lmbd")
    red = "packer: \x1b[31m\x1b[1merror:\x1b[0m --format"
    shown = on_a_terminal(*wrong, TERM="xterm")[0]
    assert shown.startswith(red) and "\n\x1b[32m\x1b[1mtry:\x1b[0m write --format lmdb" in shown
    for variables in ({"NO_COLOR": "yes", "TERM": "xterm"}, {"TERM": "dumb"}):
        assert on_a_terminal(*wrong, **variables)[0].startswith("packer: error: --format")
    assert "\x1b" not in on_a_terminal(*wrong, "--json", TERM="xterm")[0]
    assert on_a_terminal("verify", "-h", TERM="xterm")[0].startswith("\x1b[1mUsage:\x1b[0m packer verify")
    asked = ("build", str(source), "--dry-run", "--max-bad", "1", "--quality", "5")
    shown = on_a_terminal(*asked, TERM="xterm", NO_COLOR="")[0]
    assert "\x1b[33mnote:\x1b[0m headers and labels" in shown and "\x1b[33m\x1b[1mwarning:\x1b[0m --quality 5" in shown
    assert "\x1b" not in good(*asked).out


def test_lines_in_a_pipe(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("build", source, "-o", tmp_path / "p", "--max-bad", "1", "--overwrite")
    assert good(*asked).err == ""  # it takes less than 30 seconds
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    lines = good(*asked).error_lines
    number = r"[\d,]+"
    state = rf"packer: packing: {number} of 60 images \(\d+%\), {number} images/s(, about [\d.]+ s left)?(, 1 bad)?"
    assert [line for line in lines if re.fullmatch(state, line)]
    assert re.fullmatch(state, lines[-1]) and lines[-1].startswith("packer: packing: 60 of 60 images (100%)")
    assert good(*asked, "--quiet").err == good(*asked, "--json").err == ""
    with output.ProgressBar() as progress, redirect_stderr(io.StringIO()) as said:
        progress.stage("fetching", 4 << 20, "bytes")
        progress.advance(1 << 20)
        progress.stage("reading")
        progress.advance(1000)
    first, second = said.getvalue().splitlines()
    assert first.startswith("packer: fetching: 1.0 MB of 4.0 MB (25%), ") and "/s, about " in first
    assert second.startswith("packer: reading: 1,000 images, ")
