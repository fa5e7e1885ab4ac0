"""What libraries in C do by themselves: the system calls of whole commands, which no hook of Python sees."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from audit_guard import GUARD, ROOT
from drawn import draw_classes

CALL = re.compile(r'^(\w+)\((?:AT_FDCWD, )?"((?:[^"\\]|\\.)*)"')
SYSTEM = ("/etc/", "/usr/share", "/usr/lib", "/dev/shm", "/sys", "/proc")
"""What libc and OpenMP look at in any program."""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("container", ["lmdb", "hdf5"])  # those of libraries in C
def test_commands_touch_what_their_line_names(container: str, tmp_path: Path) -> None:
    """build, verify --deep and a reader: no network, no other program, no file elsewhere."""
    source, pack = draw_classes(tmp_path / "src", each=2), tmp_path / "pack"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    reader = f"import packer; p = packer.open_pack({str(pack)!r}); [p.image(i) for i in range(len(p))]"
    for line, writable in (
        (["-m", "packer", "build", source, "-o", pack, "--format", container, "--workers", "1"], True),
        (["-m", "packer", "verify", "--deep", pack], False),
        (["-c", reader], False),
    ):
        trace = tmp_path / "trace"  # a file for each process: lines of several would be cut
        command = [
            "strace",
            "-ff",
            "--seccomp-bpf",
            "-qq",
            "-o",
            trace,
            "-e",
            "trace=%network,%file,execve",
            sys.executable,
            *line,
        ]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PACKER_AUDIT")}
        environment |= {"PYTHONPATH": ROOT, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(scratch)}
        environment |= {"XDG_STATE_HOME": str(tmp_path / "state")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
        if "ptrace" in done.stderr:
            pytest.skip(f"strace may not watch: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        lines = []
        for file in tmp_path.glob("trace.*"):
            # letters outside ASCII as octal numbers
            text = re.sub(rb"\\([0-7]{1,3})", lambda escape: bytes([int(escape[1], 8)]), file.read_bytes())
            lines += text.decode(errors="replace").splitlines()
            file.unlink()
        places = ["/dev/null", "/dev/shm", str(scratch), *([str(pack), str(tmp_path / "state")] if writable else [])]
        assert _strange(lines, tmp_path, tuple(places)) == []


def _strange(trace: list[str], work: Path, written: tuple[str, ...]) -> list[str]:
    readable = (*SYSTEM, *GUARD.always, str(work))
    found = []
    for line in trace:
        if re.match(r"^socket\(AF_(?!UNIX|LOCAL)", line):
            found.append(line)
        elif line.startswith("execve(") and sys.executable not in line and '"uname", "-p"' not in line:
            found.append(line)  # h5py's import asks Python's platform module, which asks uname
        elif (match := CALL.match(line)) and match[1] in ("open", "openat", "creat") and " = -1 " not in line:
            path = os.path.realpath(os.path.join(work, match[2]))
            writes = re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC)", line) is not None
            if not path.startswith(written if writes else readable) and path != ROOT:  # Python looks for modules there
                found.append(line)
    return found
