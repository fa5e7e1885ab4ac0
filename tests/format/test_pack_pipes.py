"""A pipe, a socket, a device or a folder at the name of a file of a pack: an error that names it, and nobody waits."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from drawn import draw_classes
from indexing import stand_in
from running import good, run

from packer import open_pack

SECONDS = 20
"""After which a command that waits for a writer is interrupted: none should, and a busy machine is slow."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack with every file that a pack may have."""
    w = tmp_path_factory.mktemp("pipes")
    draw_classes(w / "src", ("ant", "bee"), 2)
    (w / "src" / "ant" / "bad.jpg").write_bytes(b"no image")
    good("build", w / "src", "-o", w / "p", "--encode", "copy", "--on-bad", "skip", "--format", "tfrecord")
    with pytest.MonkeyPatch.context() as patched:
        stand_in(patched)
        good("index", w / "p")
    np.save(w / "rows.npy", np.arange(len(open_pack(w / "p"))))
    good("attach", w / "p", w / "rows.npy", "--as", "rows")
    return w


class Hangs(BaseException):
    """Nobody takes it for another error."""


@contextmanager
def interrupted() -> Iterator[None]:
    """Fail what hangs."""

    def late(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(path.parent)  # the names of sockets are short
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


PUT: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/tty"),
    "folder": lambda path: path.mkdir(),
}
FILES = {
    "manifest": "pack.json", "jpeg index": "jpeg-index.json", "index of a shard's JPEGs": "jpeg-index.*.arrow",
    "sidecars": "sidecars.json", "a sidecar": "sidecar.rows.npy",
    "list": "rejected.tsv", "shard": "*.tfrecord", "index": "*[0-9].index.arrow",
}  # fmt: skip
COMMANDS: dict[str, list[str]] = {
    "info": ["info", "p"],
    "verify": ["verify", "p"],
    "verify, deep": ["verify", "p", "--deep"],
    "stats": ["stats", "p"],
    "diff": ["diff", "p", "other"],
    "hash": ["hash", "p"],
    "convert": ["convert", "p", "out", "--format", "webdataset"],
    "merge": ["merge", "p", "other", "-o", "out"],
    "split": ["split", "p", "--parts", "a=0.5,b=0.5"],
    "extract": ["extract", "p", "out"],
    "index": ["index", "p"],
    "index, remove": ["index", "p", "--remove"],
    "repair": ["repair", "p", "-o", "out"],
    "view": ["view", "p", "--export", "sheet.html"],
    "push": ["push", "p", "file://{w}/store"],
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("command", COMMANDS)
def test_nobody_waits_for_a_pipe(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, file: str
) -> None:
    stand_in(monkeypatch)
    shutil.copytree(model / "p", tmp_path / "p")
    shutil.copytree(model / "p", tmp_path / "other")
    (path,) = (tmp_path / "p").glob(FILES[file])
    monkeypatch.chdir(tmp_path)
    for put in PUT.values():
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        put(path)
        with interrupted():
            ran = run(*(word.replace("{w}", str(tmp_path)) for word in COMMANDS[command]))
        assert ran.code in (0, 3, 4) and "Traceback" not in ran.err, ran
        assert ran.code == 0 or path.name in ran.err or command == "repair", ran
        for made in ("out", "store", "p-a", "p-b", "out.partial"):
            shutil.rmtree(tmp_path / made, ignore_errors=True)
