"""Listens on 127.0.0.1 until Ctrl-C, with a thread per connection, and opens the page in the browser."""

from __future__ import annotations

import errno
import html
import os
import re
import secrets
import socketserver
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from packer.errors import AnyPath, UsageError, option
from packer.format.pack import Pack
from packer.view.app import App

ADDRESS = "127.0.0.1"
MOST_PORT = 65_535
TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")


class _RequestHandler(WSGIRequestHandler):
    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Print nothing: the terminal is the user's."""

    def log(self, type: str, message: str, *args: Any) -> None:
        """Print nothing about broken connections: a browser breaks many."""

    def version_string(self) -> str:
        """Send no version numbers."""
        return "packer"


class Server(ThreadedWSGIServer):
    """The server of one pack, which listens from its creation. `url` is its whole address.

    Args:
        pack: The pack.
        port: The port; 0 for any free port.
        token: The secret part of the address, at least 16 letters, digits, ``-`` or ``_``; default: a random one.
        framed: Whether another page of this machine, such as a notebook, may show this one in a frame.
        source: The folder that the pack was built from; default: the one beside it that is called like it.

    Raises:
        UsageError: If the port is in use, the token can be guessed, or the source is not a folder.
    """

    daemon_threads = True

    def __init__(
        self, pack: Pack, port: int = 0, token: str | None = None, framed: bool = False, source: AnyPath | None = None
    ) -> None:
        if token is None:
            token = secrets.token_urlsafe(24)
        elif not TOKEN.fullmatch(token):
            step = f"for example {secrets.token_urlsafe(24)}"
            raise UsageError(
                option("token"), "must have 16 to 128 letters, digits, - or _, so that nobody guesses it", step
            )
        if not 0 <= port <= MOST_PORT:  # the system would take another one, modulo 65,536
            raise UsageError(
                option("port"), f"must be 0 to {MOST_PORT:,}, got {port:,}", "leave it out for any free port"
            )
        super().__init__(ADDRESS, port, App(pack, token, framed, source), _RequestHandler)
        self.url = f"http://{ADDRESS}:{self.port}/{token}/"

    def server_bind(self) -> None:
        """Bind without the name lookup of the base class."""
        try:
            socketserver.TCPServer.server_bind(self)
        except OSError as error:
            problem = f"cannot listen on port {self.port}: {error.strerror or error}"
            if error.errno == errno.EADDRINUSE:
                problem = f"port {self.port} is in use"
            raise UsageError(option("port"), problem, "choose another, or leave it out for any free port") from None
        self.server_name, self.server_port = ADDRESS, int(self.server_address[1])


@contextmanager
def opened_in_browser(url: str) -> Iterator[None]:
    """Open `url` in the user's browser if there is a screen.

    The browser opens a file that redirects to it and that only this user can read: the address holds the token, and
    all users of the machine can read a command line.
    """
    screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not screen:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="packer-view-") as folder:
        path = os.path.join(folder, "open.html")
        with open(path, "x", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">packer view')
        webbrowser.open(f"file://{path}")
        yield
