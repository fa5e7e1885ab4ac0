"""`packer.view(pack)`: what a notebook shows, and who may frame the page."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError

import looking
import pytest
from drawn import draw_plain
from running import good

import packer
from packer import open_pack
from packer.errors import UsageError


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebook")
    draw_plain(folder / "src", 5)
    good("build", folder / "src", "-o", folder / "pack", "--labels", "none")
    return folder / "pack"


def fetched(url: str) -> Any:
    return urllib.request.urlopen(url, timeout=60)


def test_the_page_is_served_until_it_is_closed(pack: Path) -> None:
    shown = packer.view(pack, height=500)
    assert f'src="{shown.url}"' in shown._repr_html_() and 'height="500"' in shown._repr_html_()
    with fetched(shown.url) as answer:
        assert b"packer view" in answer.read()
    shown.close()
    shown.close()
    with pytest.raises(URLError):
        fetched(shown.url)
    assert "was closed" in shown._repr_html_() and "closed" in repr(shown)
    assert "packer view" not in {thread.name for thread in threading.enumerate()}


def test_an_address_that_stays(pack: Path) -> None:
    with packer.view(open_pack(pack), token="0123456789-token") as shown:
        port = int(shown.url.split(":")[2].split("/")[0])
        with pytest.raises(UsageError, match=rf"port: port {port} is in use"):
            packer.view(pack, port=port)
    with packer.view(pack, port=port, token="0123456789-token") as again:
        assert again.url == shown.url
    with pytest.raises(UsageError, match="token: must have 16 to 128"):
        packer.view(pack, token="short")
    for wrong in (-1, 65_536, 99_999):
        with pytest.raises(UsageError, match=r"^port: must be an integer from 0 to 65535, got "):
            packer.view(pack, port=wrong)


def test_a_contact_sheet_needs_no_server(pack: Path) -> None:
    before = threading.active_count()
    shown = packer.view(pack, sheet=3, seed=1)
    assert threading.active_count() == before and shown.html.count("<figure>") == 3
    text = shown._repr_html_()
    assert text.startswith("<iframe srcdoc=") and " sandbox" in text
    assert shown.html in unescape(text) and packer.view(pack, sheet=True).html.count("<figure>") == 5


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        *(({"sheet": wrong}, r"sheet: must be True, False or a number") for wrong in (0, -3, 10_001, 2.5, "5", None)),
        *(({"sheet": 2, "seed": wrong}, r"seed: must be an integer") for wrong in (-1, True, "0", 1.5)),
        *(({"port": wrong}, r"port: must be an integer") for wrong in (True, "8765")),
        *(({"height": wrong}, r"height: must be an integer") for wrong in (0, "500")),
        *(({"token": wrong}, r"token: must be text, got ") for wrong in (5, b"0123456789-token")),
        ({"seed": 0}, r"seed: needs sheet; "),
        ({"sheet": True, "port": 8765}, r"port: has no effect with sheet; "),
        ({"sheet": 2, "token": "0123456789-token"}, r"token: has no effect with sheet; "),
        ({"pack": 5}, r"pack: must be a pack, "),
        ({"pack": []}, r"packs: is empty"),
    ],
)
def test_a_wrong_value_is_named(pack: Path, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=f"^{problem}"):
        packer.view(**{"pack": pack, **given})


def test_several_packs_are_shown_together(pack: Path, tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 3)
    good("build", tmp_path / "src", "-o", tmp_path / "other", "--labels", "none")
    assert packer.view([pack, open_pack(tmp_path / "other")], sheet=True).html.count("<figure>") == 8
    assert packer.view((pack,), sheet=1).html.count("<figure>") == 1


def test_only_a_page_in_a_notebook_may_be_framed(pack: Path) -> None:
    with packer.view(pack) as shown, fetched(shown.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "frame-ancestors http://127.0.0.1:* https://127.0.0.1:* http://localhost:*" in policy
        assert answer.headers["X-Frame-Options"] is None and "'none'" in policy
    with looking.served(pack) as served, fetched(served.url) as answer:
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("first", ["", "import packer.view.app"])
def test_the_module_stays_a_module(pack: Path, first: str) -> None:
    """It can be called and imported from, in whatever order, and its call has a signature."""
    program = f"""
{first}
import inspect
import packer
with packer.view({str(pack)!r}) as shown:
    assert shown.url
import packer.view.app
from packer import view
from packer.view.app import App
assert view is packer.view
assert packer.view.app.Server and packer.view.app.App is App
assert list(inspect.signature(packer.view).parameters)[:2] == ["pack", "height"]
assert "contact sheet" in packer.view.__call__.__doc__
import pydoc
shown = pydoc.plain(pydoc.render_doc(packer.view))
assert "packer.view(pack: " in shown and "token: The secret part" in shown
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[str]:
    """The address of a page of another server of this machine, with an empty page in it."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


@pytest.mark.skipif(bool(looking.missing()), reason=looking.missing() or "-")
def test_a_browser_shows_it_in_a_frame(page: Any, pack: Path, tmp_path: Path, notebook: str) -> None:
    with packer.view(pack) as shown:
        sheet = packer.view(pack, sheet=True)
        (tmp_path / "index.html").write_text(shown._repr_html_() + sheet._repr_html_())
        page.goto(notebook)
        page.frames[1].wait_for_function(looking.FILLED)
        page.frames[1].focus("#scroller")
        page.keyboard.press("x")  # marks are changed from within the frame, too
        page.frames[1].wait_for_selector(".tile.marked")
        page.keyboard.press("u")
        page.frames[1].wait_for_selector(".tile.marked", state="detached")
        looking.shows(page.frames[2], "figure svg image", 5)
        page.goto("about:blank")
    with looking.served(pack) as served:
        (tmp_path / "index.html").write_text(f'<iframe src="{served.url}"></iframe>')
        page.goto(notebook)
        assert page.frames[1].locator("#name").count() == 0
    page.said.clear()
