"""Starts `packer view` and a real browser that looks at it; for the tests, and for the scripts that measure it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--force-color-profile=srgb", "--hide-scrollbars=false"),
)


@dataclass(frozen=True)
class Served:
    """A running `packer view`."""

    url: str
    pid: int


@contextmanager
def served(pack: Path | str, *options: str) -> Iterator[Served]:
    """`packer view` of a pack, in a process of its own."""
    command = [sys.executable, "-m", "packer", "view", os.fspath(pack), "--no-browser", "--json", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield Served(json.loads(process.stdout.readline())["url"], process.pid)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def missing() -> str:
    """Why no browser is available; empty if one is."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install playwright"
    return "" if browser_path() else "no chromium: apt-get install chromium"


def browser_path() -> str | None:
    """The system's browser."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def browser(width: int = 1280, height: int = 800) -> Iterator[Any]:
    """A page of a new browser; `page.said` are the messages and errors of its console, and what it asked elsewhere."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser_path(), args=list(FLAGS), timeout=120_000)
        try:
            page = started.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(30_000)
            page.said = []
            page.on("console", lambda message: _noted(page, message.text))
            page.on("pageerror", lambda error: page.said.append(str(error)))
            page.on("request", lambda request: _elsewhere(page, request.url))
            yield page
        finally:
            started.close()


def shows(page: Any, selector: str, count: int) -> None:
    """Wait until the page has so many elements of a kind: what an action changes is drawn in a later frame."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_count(count, timeout=30_000)


ENDED = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
"""What the browser says of a server that ends while the page asks it; the page asks again whether it is back."""


def _noted(page: Any, text: str) -> None:
    if not any(error in text for error in ENDED):
        page.said.append(text)


def _elsewhere(page: Any, url: str) -> None:
    if not url.startswith(("http://127.0.0.1:", "data:", "about:", "file:")):
        page.said.append(f"asked for {url}")


FILLED = """() => {
  const view = document.getElementById("scroller").getBoundingClientRect();
  const tiles = [...document.querySelectorAll("#canvas .tile")].filter((tile) => {
    const at = tile.getBoundingClientRect();
    return at.bottom > view.top + 1 && at.top < view.bottom - 1;
  });
  return tiles.length > 0 && tiles.every((tile) => {
    const image = tile.querySelector("img");
    return tile.querySelector(".broken") || (image && image.complete && image.naturalWidth > 0);
  });
}"""
"""Whether every tile in sight shows its picture."""
