"""Opens the page in the user's browser."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opened(url: str) -> Iterator[None]:
    """Open `url` where there is a screen to open it on; does nothing elsewhere.

    The browser is given a file that leads there, which only this user can read: a command line can be read by all
    users of the machine, and the address holds the token.
    """
    screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not screen:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="packer-view-") as folder:
        path = os.path.join(folder, "open.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">packer view')
        webbrowser.open(f"file://{path}")
        yield
