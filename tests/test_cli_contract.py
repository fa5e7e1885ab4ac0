"""What scripts rely on, whatever goes wrong: the exit code, one line, and with ``--json`` one object."""

from __future__ import annotations

import json
import os
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from drawn import draw_plain
from hypothesis import example, given, settings
from hypothesis import strategies as st
from running import ROOT, good, run

from packer import __version__
from packer.cli.making import build

FIELDS = {"error", "where", "problem", "next_step", "exit_code", "reasons", "rejected", "pack", "shard", "key"}


def _nothing(folder: Path) -> None:
    pass


def _one_bad(folder: Path) -> None:
    (folder / "src" / "000.jpg").write_bytes(b"no image at all" * 9)


def _damaged(folder: Path) -> None:
    good("build", folder / "src", "-o", folder / "old")
    (folder / "old" / "data.mdb").write_bytes(b"gone")


FAILURES: dict[str, tuple[int, str, Callable[[Path], None], list[str]]] = {
    "bad data": (1, "TooManyBad", _one_bad, ["build", "src", "-o", "p"]),
    "bad data, listed": (1, "TooManyBad", _one_bad, ["build", "src", "-o", "p", "--quarantine", "q"]),
    "bad data, dry": (1, "TooManyBad", _one_bad, ["build", "src", "-o", "p", "--dry-run"]),
    "usage": (2, "UsageError", _nothing, ["build", "src", "-o", "p", "--format", "zip"]),
    "usage of click": (2, "UsageError", _nothing, ["build", "src", "-o", "p", "--quality", "x"]),
    "no source": (2, "UsageError", _nothing, ["build", "absent"]),
    "no pack": (2, "PackNotFound", _nothing, ["info", "src"]),
    "disk": (3, "StorageError", _nothing, ["build", "src", "-o", "p", "--quarantine", "/proc/q"]),
    "damaged": (4, "DamagedPack", _damaged, ["verify", "old"]),
}


@pytest.mark.parametrize("name", FAILURES)
def test_exit_codes_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    code, kind, prepare, command = FAILURES[name]
    draw_plain(tmp_path / "src", 3)
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    ran = run(*command)
    assert ran.code == code and ran.err and "Traceback" not in ran.err and "bug" not in ran.err
    ran = run(*command, "--json")
    facts = json.loads(ran.out)
    assert ran.code == code
    if command[0] != "verify":  # says what it has found, not what has stopped it
        assert set(facts) == FIELDS and (facts["exit_code"], facts["error"]) == (code, kind)


def test_zero_is_good(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 3)
    assert run("build", tmp_path / "src", "-o", tmp_path / "p").code == 0
    assert run("info", tmp_path / "p").code == run("verify", tmp_path / "p").code == 0


BROKEN = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"cv2", "lmdb", "h5py", "torch", "numpy", "simplejpeg", "jpeg4py", "pyarrow"}:
            raise ImportError(f"{name}: undefined symbol")

sys.meta_path.insert(0, Broken())
from packer.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["build", "--help"], ["verify", "--help"], ["-h"]])
def test_help_with_broken_libraries(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout or __version__ in done.stdout


TEXTS = st.one_of(
    st.sampled_from(["", "0", "-1", "none", "1e9", "nan", "inf", "9" * 30, "1.5", "%", "100%", "--", "\x1b[2J"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8),
    st.text(string.digits + "-+.%xKMGB_ ", max_size=6),
)
OPTIONS = [p.opts[-1] for p in build.params if isinstance(p, click.Option)]
PLACES = {"--out", "--quarantine", "--help"}  # would write to that path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("any")
    draw_plain(root / "src", 2)
    return root


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(sorted(set(OPTIONS) - PLACES)), st.none() | TEXTS), min_size=1, max_size=4))
@example([("--labels", "\x1b[2J")])
def test_any_options(folder: Path, pairs: list[tuple[str, str | None]]) -> None:
    """A dry run of whatever: it is done, or refused in one line; nothing is written, nothing is unforeseen."""
    given_options = [part for option, value in pairs for part in ((option,) if value is None else (option, value))]
    ran = run("build", folder / "src", "-o", folder / "p", *given_options, "--dry-run")
    assert ran.code in (0, 1, 2), (given_options, ran)
    assert "Traceback" not in ran.err and "bug" not in ran.err, (given_options, ran.err)
    if ran.code == 2:
        assert len(ran.error_lines) == 1 and ran.err.startswith("packer: ")
        assert len(ran.steps) == 1 and all(line.isprintable() for line in ran.err.splitlines())
    assert os.listdir(folder) == ["src"]
