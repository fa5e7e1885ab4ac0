"""Standard output and error that are closed, full, or whose reader leaves."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from drawn import draw_plain
from running import ROOT

from packer.format.pack import open_pack

PACKER = f"{shlex.quote(sys.executable)} -m packer"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_plain(tmp_path_factory.mktemp("streams") / "src", 4)


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Runs with bash; its exit code is that of the first command of a pipe."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = f"{command}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(
    ("streams", "code"),
    [("| true", 0), ("2>&-", 0), (">&- 2>&- <&-", 0), (">/dev/full", 3), ("2>/dev/full", 0)],
)
def test_build(source: Path, tmp_path: Path, streams: str, code: int) -> None:
    done = shell(f"{PACKER} build {source} -o {tmp_path}/p --workers 1 {streams}")
    assert done.returncode in (code, 3) if "true" in streams else done.returncode == code
    assert "Traceback" not in done.stderr and "bug" not in done.stderr and "Exception" not in done.stderr
    if code == 0:
        assert len(open_pack(tmp_path / "p")) == 4  # the pack is wanted, whoever reads the messages
    else:
        assert done.stderr == "packer: error: standard output: No space left on device\n"


@pytest.mark.parametrize("streams", ["| true", ">&-", ">/dev/full"])
def test_json(source: Path, tmp_path: Path, streams: str) -> None:
    done = shell(f"{PACKER} build {source} -o {tmp_path}/p --workers 1 --json {streams}")
    assert done.returncode in ((3,) if "full" in streams else (0, 3))
    assert "Traceback" not in done.stderr and "bug" not in done.stderr
    assert len(open_pack(tmp_path / "p")) == 4


@pytest.mark.parametrize(
    ("command", "streams"),
    [
        *(("--help", streams) for streams in ("| true", "| head -1", ">&-", "2>&-", ">/dev/full")),
        *(("info absent", streams) for streams in (">&-", "2>&-")),
        *(("verify absent --json", streams) for streams in ("| true", ">&-", ">/dev/full")),
    ],
)
def test_other_commands(command: str, streams: str) -> None:
    done = shell(f"{PACKER} {command} {streams}")
    # click itself ends help with 1 where nobody reads it
    assert done.returncode in (0, 2, 3) or (command == "--help" and done.returncode == 1)
    assert "Traceback" not in done.stderr and "bug" not in done.stderr and "Exception" not in done.stderr


def test_errors_stay_off_standard_output(source: Path, tmp_path: Path) -> None:
    done = shell(f"{PACKER} build {source} --format zip --json 2>&-")
    assert done.returncode == 2 and json.loads(done.stdout)["exit_code"] == 2
    done = shell(f"{PACKER} build {source} --format zip 2>&-")
    assert done.returncode == 2 and done.stdout == ""
