"""An HTTP server on the loopback that answers ranges of the files of a folder, and can be told to answer badly."""

from __future__ import annotations

import hashlib
import re
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np

from packer import Pack
from packer.stores.layout import Layout


class Served(socketserver.ThreadingTCPServer):
    """The server. Its URL may end in any name.

    Attributes:
        sent: (name in the URL, name, start, stop) of each range that was sent as it should be.
        asked: (name, start, stop) of them, when no request is in progress: a client has its answer before it is noted.
        fault: called with (name, start, stop) of each GET; returns None, or cut, close, flip, wrong, 404, 503.
        etags: whether ETags are sent.
    """

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.folder = folder
        self.sent: list[tuple[str, str, int, int]] = []
        self.open_now = 0
        self.changed = threading.Condition()
        self.fault: Callable[[str, int, int], Any] = lambda name, start, stop: None
        self.etags = True
        self._digests: dict[tuple[str, int, int], str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/pack"

    @property
    def asked(self) -> list[tuple[str, int, int]]:
        self.settle()
        return [one[1:] for one in self.sent]

    def settle(self) -> None:
        """Wait until no request is in progress."""
        with self.changed:
            self.changed.wait_for(lambda: not self.open_now)

    def blocks(self, by: str = "") -> Counter[tuple[str, int]]:
        """How often each block of a container was sent, to those with this name in their URL."""
        self.settle()
        found: Counter[tuple[str, int]] = Counter()
        for who, name, start, stop in self.sent:
            if by in ("", who) and not name.endswith((".json", ".arrow")):
                found.update(
                    (name, block) for block in range(start // Layout.BLOCK_BYTES, -(-stop // Layout.BLOCK_BYTES))
                )
        return found

    def etag(self, path: Path) -> str:
        found = path.stat()
        key = str(path), found.st_mtime_ns, found.st_size
        if key not in self._digests:
            self._digests[key] = f'"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}"'
        return self._digests[key]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may go away."""


class Answer(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Served

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        with self.server.changed:
            self.server.open_now += 1
        try:
            self._get()
        finally:
            with self.server.changed:
                self.server.open_now -= 1
                self.server.changed.notify_all()

    def _get(self) -> None:
        _, who, name = self.path.split("/")
        path = self.server.folder / name
        size = path.stat().st_size if path.is_file() else 0
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(found[1]) if found else 0
        stop = min(size, int(found[2]) + 1) if found and found[2] else size
        fault = self.server.fault(path.name, start, stop) if self.command == "GET" else None
        if fault in (404, 503) or not path.is_file():
            self._head(fault or 404, 0, {})
            return
        if self.headers.get("If-Match") not in (None, self.server.etag(path)):
            self._head(412, 0, {})
            return
        data = path.read_bytes()[start:stop]
        if fault == "flip":
            flipped = bytearray(data)
            flipped[::100] = bytes(byte ^ 1 for byte in flipped[::100])
            data = bytes(flipped)
        if fault == "wrong":
            data = path.read_bytes()[: stop - start]
        headers = {"ETag": self.server.etag(path)} if self.server.etags else {}
        if found:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        if fault == "close":
            self.close_connection = True
            return
        self._head(206 if found else 200, len(data), headers)
        if self.command == "GET":
            self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
            self.close_connection = fault == "cut"
            if fault is None:
                self.server.sent.append((who, path.name, start, stop))

    def _head(self, code: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {
            **headers,
            "Content-Length": str(length),
            "Last-Modified": formatdate(0, usegmt=True),
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """The files of a folder, meanwhile."""
    with Served(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def all_of(pack: Pack) -> list[tuple[bytes, object]]:
    """(bytes, annotation) of each record."""
    return [(bytes(pack.record(i)), repr(pack.annotation(i))) for i in range(len(pack))]


def settle(pack: Pack) -> None:
    """Wait until nothing is being fetched: it may come after what was read, and is not evicted until then."""
    assert pack.remote is not None
    while pack.remote.is_fetching():
        time.sleep(0.001)


def shuffled(pack: Pack, seed: int = 0) -> list[int]:
    """All record numbers, in any order."""
    return np.random.default_rng(seed).permutation(len(pack)).tolist()
