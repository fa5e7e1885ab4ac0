"""`packer view` as a process: where it listens, what it prints, how it ends."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path

import looking
import pytest
from drawn import draw_plain
from running import good, killed_at_last, refused, start

from packer.view.app import opened_in_browser


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    draw_plain(tmp_path / "src", 3)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "none")
    return tmp_path / "pack"


def listening(pid: int) -> set[str]:
    """The addresses, as the kernel writes them, on which a process listens."""
    inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def test_it_listens_on_loopback_only_and_two_tokens_differ(pack: Path) -> None:
    with looking.served(pack) as one, looking.served(pack) as other:
        assert listening(one.pid) == {"0100007F"}
        assert one.url.split("/")[3] != other.url.split("/")[3] and len(one.url.split("/")[3]) >= 32
        with urllib.request.urlopen(one.url, timeout=120) as answer:
            assert b"packer view" in answer.read()
        # the token is not in what other users of the machine can read
        assert one.url.split("/")[3].encode() not in Path(f"/proc/{one.pid}/cmdline").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once(pack: Path, number: int) -> None:
    with start("view", pack, "--no-browser") as process, killed_at_last(process):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert f"{pack}: 3 records at http://127.0.0.1:" in lines[0] and lines[1] == "press Ctrl-C to stop\n"
    assert "Traceback" not in err and process.returncode in {0, 130, 143}


def test_a_port_that_is_taken(pack: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = refused(2, "view", pack, "--no-browser", "--port", taken.getsockname()[1])
        assert f"port {taken.getsockname()[1]} is in use; choose another, or leave it out" in said


def test_the_same_port_and_token_give_the_same_address(pack: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--port", str(port), "--token", "0123456789-token")
    for _ in range(2):
        with looking.served(pack, *options) as served:
            assert served.url == f"http://127.0.0.1:{port}/0123456789-token/"
            with urllib.request.urlopen(served.url, timeout=120) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("token", ["", "0123456789abcde", "with a space 0123456789", "0123456789/abcdef", "x" * 129])
def test_a_token_that_can_be_guessed_or_needs_quoting(pack: Path, token: str) -> None:
    assert "--token: must have 16 to 128 letters" in refused(2, "view", pack, "--no-browser", "--token", token)


def test_no_pack(tmp_path: Path) -> None:
    assert "no such pack" in refused(2, "view", tmp_path / "none")


def test_the_browser_gets_a_file_that_only_the_user_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command lines can be read by everybody on the machine; the address holds the token."""
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or True)
    monkeypatch.setenv("DISPLAY", ":7")
    with opened_in_browser("http://127.0.0.1:1/token/"):
        (url,) = asked
        assert "token" not in url
        path = Path(url.removeprefix("file://"))
        assert "http://127.0.0.1:1/token/" in path.read_text()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


def test_without_a_screen_no_browser_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: pytest.fail("opened a browser"))
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with opened_in_browser("http://127.0.0.1:1/token/"):
        pass


def test_only_batches_need_torch(pack: Path, tmp_path: Path) -> None:
    """A packing server may lack it: page, tiles, statistics and contact sheet work, and one line says what to do."""
    program = f"""
import sys
sys.modules["torch"] = None  # importing it raises ImportError
from werkzeug.test import Client
from packer import open_pack
from packer.view.app import App
from packer.view.export import export

pack = open_pack({os.fspath(pack)!r})
client = Client(App(pack, "0123456789abcdef"))
for path in ("", "style.css", "app.js", "api/pack", "api/tiles", "api/record?record=0", "api/charts", "api/rejected"):
    answer = client.get("/0123456789abcdef/" + path)
    assert answer.status_code == 200, (path, answer.text)
assert export(pack, {os.fspath(tmp_path / "sheet.html")!r}, 3) == 3
answer = client.get("/0123456789abcdef/api/batch")
assert (answer.status_code, answer.json["error"]) == (400, "batches: need PyTorch; pip install torch")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
