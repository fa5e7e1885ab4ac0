"""Listens on 127.0.0.1 until Ctrl-C, a thread for each connection."""

from __future__ import annotations

import secrets
import socketserver
from typing import Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from packer.errors import UsageError
from packer.format.pack import Pack
from packer.view.app import App

ADDRESS = "127.0.0.1"


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # one connection for many requests

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Say nothing: the terminal is the user's."""

    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing of broken connections either: a browser breaks many."""

    def version_string(self) -> str:
        """No versions to whoever asks."""
        return "packer"


class Server(ThreadedWSGIServer):
    """The server of one pack; it listens when it is made. `url` is the whole address."""

    daemon_threads = True

    def __init__(self, pack: Pack, port: int = 0) -> None:
        """Args: a port, 0 for any that is free. Raises UsageError where it cannot be had."""
        token = secrets.token_urlsafe(24)
        super().__init__(ADDRESS, port, App(pack, token), _Handler)
        self.url = f"http://{ADDRESS}:{self.port}/{token}/"

    def server_bind(self) -> None:
        """Without looking names up, as the base class would."""
        try:
            socketserver.TCPServer.server_bind(self)
        except OSError as error:
            problem = f"{self.port} cannot be had: {error.strerror or error}"
            raise UsageError("--port", problem, "choose another, or leave it out") from None
        self.server_name, self.server_port = ADDRESS, int(self.server_address[1])
