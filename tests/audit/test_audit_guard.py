"""The guard that watches the whole suite sees what it is there for: code that claims to be packer's is stopped."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import audit_guard
import pytest
from audit_guard import PACKER, Forbidden

FORBIDDEN = {
    "unpickles": "pickle.loads(data)",
    "unpickles beside a pipe": "pickle.Unpickler(__import__('io').BytesIO(data)).load()",
    "starts a program": "subprocess.run(['true'])",
    "a shell": "os.system('true')",
    "looks up a name": "socket.getaddrinfo('example.org', 80)",
    "connects": "with socket.socket() as s: s.connect(('127.0.0.1', 9))",
    "listens to the world": "with socket.socket() as s: s.bind(('0.0.0.0', 0))",
    "reads a foreign file": "open('/etc/passwd')",
    "reads by os.open": "os.open('/etc/passwd', os.O_RDONLY)",
    "lists a foreign folder": "os.listdir('/root')",
    "writes beside the sources": "open('/work.txt', 'w')",
    "writes to an installed file": "open(os.__file__, 'a')",
    "makes a folder": "os.mkdir('/opt/packer')",
    "removes": "os.remove('/etc/nothing')",
    "renames out of the place of work": "os.rename(inside, '/etc/nothing')",
    "follows a symlink out": "open(link)",
    "loads a library": "ctypes.CDLL('libssl.so.3')",
}
ALLOWED = {
    "reads a file of the test": "with open(inside) as f: f.read()",
    "writes there": "open(inside, 'a').close()",
    "asks the kernel": "with open('/proc/self/statm') as f: f.read()",
    "reads its own code": "open(os.__file__).close()",
}


@pytest.fixture
def as_packer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a line as if it stood in a module of packer; what the guard has reported is returned."""
    log = tmp_path / "log.txt"
    log.touch()
    monkeypatch.setenv(audit_guard.LOG, str(log))
    (tmp_path / "inside").write_text("x")
    (tmp_path / "link").symlink_to("/etc/passwd")

    def run(line: str) -> str:
        import ctypes

        code = compile(line, f"{PACKER}made_up.py", "exec")
        names = {"pickle": pickle, "os": os, "socket": socket, "subprocess": subprocess, "ctypes": ctypes}
        data = pickle.dumps(Path("x"))
        exec(code, {**names, "data": data, "inside": str(tmp_path / "inside"), "link": str(tmp_path / "link")})
        return log.read_text()

    return run


@pytest.mark.parametrize("line", FORBIDDEN.values(), ids=FORBIDDEN)
def test_is_stopped(as_packer, line: str, tmp_path: Path) -> None:
    with pytest.raises(Forbidden):
        as_packer(line)
    assert "made_up.py:1" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("line", ALLOWED.values(), ids=ALLOWED)
def test_goes_on(as_packer, line: str) -> None:
    assert as_packer(line) == ""


def test_a_command_may_open_what_its_line_names(as_packer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with audit_guard.command(["info", str(other)]), pytest.raises(Forbidden):
        as_packer("open(inside)")
    with audit_guard.command(["verify", str(tmp_path)]), pytest.raises(Forbidden):
        as_packer("open(inside, 'w')")
    with audit_guard.command(["build", str(other), "-o", str(tmp_path / "inside")]):
        as_packer("open(inside, 'w').close()")


def test_sits_in_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.txt"
    log.touch()
    monkeypatch.setenv(audit_guard.LOG, str(log))
    line = f"exec(compile('open(\"/etc/passwd\")', {PACKER + 'made_up.py'!r}, 'exec'))"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Forbidden" in done.stderr
    assert "/etc/passwd" in log.read_text()


def test_the_place_of_work_is_for_temporary_files(tmp_path: Path) -> None:
    assert tmp_path.is_relative_to(tempfile.gettempdir())
