"""A store for the check: a web server that answers ranges of files after a delay, for little processor time.

As a program, `server.py FOLDER DELAY_S` prints its URL, serves until its input ends, and prints requests and bytes.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

RANGE = re.compile(r"bytes=(\d+)-(\d+)$")


class Server(ThreadingHTTPServer):
    """Counts what it answers."""

    daemon_threads = True
    request_queue_size = 256
    folder, delay_s = Path(), 0.0
    answers: ClassVar[list[int]] = []
    """Bytes of each answer."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that go away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path = self.server.folder / self.path.lstrip("/")
        time.sleep(self.server.delay_s)
        if not path.is_file():
            self.send_response_only(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        status = path.stat()
        match = RANGE.match(self.headers.get("Range", ""))
        start, stop = (int(match[1]), min(int(match[2]) + 1, status.st_size)) if match else (0, status.st_size)
        self.send_response_only(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{status.st_size}")
        self.send_header("ETag", f'"{status.st_mtime_ns}-{status.st_size}"')
        self.send_header("Last-Modified", formatdate(status.st_mtime, usegmt=True))
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "GET":
            with path.open("rb") as file:
                self.connection.sendfile(file, start, stop - start)
            self.server.answers.append(stop - start)

    do_HEAD = do_GET  # noqa: N815 - a name that http.server looks for


def main() -> None:
    """Serve a folder."""
    Server.folder, Server.delay_s = Path(sys.argv[1]), float(sys.argv[2])
    with Server(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        sys.stdin.read()
        print(len(server.answers), sum(server.answers), flush=True)
        server.shutdown()


if __name__ == "__main__":
    main()
