"""The web application. It answers only requests with the token and under this machine's own names.

They are GET requests, but for marks, which the page itself posts: all that a request can change.

All data is sent as JSON; the page inserts it into the document as text, never as HTML.
"""

from __future__ import annotations

import errno
import hmac
import html
import json
import os
import re
import secrets
import socketserver
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
from werkzeug.wrappers import Request, Response

from packer.errors import AnyPath, PackerError, UsageError, option
from packer.format.pack import Pack
from packer.stats.html import html_page, read_static, stylesheet
from packer.view.catalog import Catalog, Records, number, query_of
from packer.view.charts import PixelStats, channel_facts, class_facts
from packer.view.embedding_maps import EmbeddingMaps
from packer.view.facts import ProblemSets, crop_facts, pack_facts, record_facts, rejected_facts, tag_set, tile_facts
from packer.view.marks import Marks, wanted_marks
from packer.view.pictures import LARGEST_SIDE, Originals, Pictures, problem_of
from packer.view.predictions import PredictionSets
from packer.view.record_tags import RecordTags, change_tags
from packer.view.windows import Windows, level_facts, windows_of

HOSTS = frozenset(("127.0.0.1", "localhost"))
"""Accepted host names, with any port (a tunnel has its own). A page of another site whose name resolves to this
machine (DNS rebinding) sends another name."""
MOST_TILES = 64
MOST_POSTED = 4 << 20
"""Maximum size of the body of a request, bytes."""
SMALLEST_SIDE, LARGEST_TILE = 16, 512
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOCAL_PAGES = " ".join(f"{scheme}://{host}:*" for host in sorted(HOSTS) for scheme in ("http", "https"))
FRAMED_HEADERS = {name: value for name, value in HEADERS.items() if name != "X-Frame-Options"}
FRAMED_HEADERS["Content-Security-Policy"] = HEADERS["Content-Security-Policy"].replace(
    "frame-ancestors 'none'", f"frame-ancestors {LOCAL_PAGES}"
)
KINDS = {".js": "text/javascript", ".css": "text/css"}
FILES = frozenset(os.listdir(os.path.join(os.path.dirname(__file__), "static")))
LINKS = '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="style.css">\n'
LINKS += '<link rel="stylesheet" href="view.css">\n<script type="module" src="app.js"></script>\n'
# fetched together, not one after the other as they import each other
LINKS += "\n".join(f'<link rel="modulepreload" href="{name}">' for name in sorted(FILES) if name.endswith(".js"))


class App:
    """The WSGI application of one pack. Its paths begin with ``/TOKEN/``; threads may share it.

    Args:
        pack: The pack.
        token: The secret part of its address.
        framed: Whether pages of this machine may show it in a frame.
        source: The folder that the pack was built from (`Originals`).
    """

    def __init__(self, pack: Pack, token: str, framed: bool = False, source: AnyPath | None = None) -> None:
        if len(token) < 16:
            raise ValueError("a token of fewer than 16 characters can be guessed")
        self._pack = pack
        self._token = token
        self._headers = FRAMED_HEADERS if framed else HEADERS
        self._catalog = Catalog(pack)
        self._pictures = Pictures(pack)
        self._originals = Originals(pack, source)
        self._marks = Marks(pack)
        self._tags = RecordTags(pack)
        pixels, masks = PixelStats(pack, channel_facts), PixelStats(pack, class_facts)
        maps = EmbeddingMaps(pack, self._catalog)
        problems = ProblemSets(pack, self._pictures, lambda: maps.problems)
        self._predictions = predictions = PredictionSets(pack)
        self._catalog.add_sets("predictions", predictions.set_of)
        self._catalog.add_sets("marked", self._marks.set_of)
        self._catalog.add_sets("tagged", self._tags.set_of)
        self._catalog.add_sets("problem", problems.set_of)
        self._catalog.add_sets("tag", lambda name: tag_set(pack, number({"tag": name}, "tag", 0, 0, 1 << 40)))
        self._api: dict[str, Callable[[Mapping[str, str]], Any]] = {
            "pack": lambda given: {**pack_facts(pack), "embeddings": maps.listed},
            "rejected": lambda given: rejected_facts(pack),
            "tiles": self._tiles,
            "record": self._record,
            "tile": lambda given: self._tile(self._number_of(given), self._side_of(given), windows_of(given)),
            "map": maps.facts,
            "neighborhoods": maps.look,
            "similar": lambda given: [
                {"distance": far, **self._tile(record, self._side_of(given), windows_of(given))}
                for record, far in maps.similar(given)
            ],
            "place": self._place,
            "original": lambda given: self._originals.facts(self._number_of(given)),
            "charts": lambda given: self._charts,
            "batch": self._batch,
            "pixels": lambda given: pixels.facts(given.get("start") == "1"),
            "masks": lambda given: masks.facts(given.get("start") == "1"),
            "problems": lambda given: problems.facts(),
            "predictions": predictions.facts,
            "problem": lambda given: problems.examples(given.get("kind", "")),
            "marks": lambda given: self._marks.facts(),
            "tags": lambda given: self._tags.facts(),
        }
        self._bytes = {"places.bin": maps.places, "colors.bin": maps.colors}

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        response = self._answer(request)
        response.headers.update(self._headers)
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        host = request.headers.get("Host", "")
        if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
            return Response("packer view answers only under 127.0.0.1\n", 403)
        given, _, path = request.path.lstrip("/").partition("/")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode()):
            return Response("open the whole address that packer view printed\n", 403)
        if request.method == "POST" and path in ("api/marks", "api/tags"):
            return self._posted(request, path)
        if request.method not in ("GET", "HEAD"):
            return Response("only GET\n", 405, {"Allow": "GET, HEAD"})
        if path in ("marks.txt", "tags.txt"):
            return self._list(request.args.to_dict())
        if path.startswith("api/"):
            answer = self._api.get(path.removeprefix("api/"))
            if answer is not None:
                return _json(lambda: answer(request.args.to_dict()))
            return Response("nothing here\n", 404)
        if (content := self._bytes.get(path)) is not None:
            return _sent(
                lambda: Response(content(request.args.to_dict()), 200, content_type="application/octet-stream")
            )
        return self._file(path or "index.html")

    def _posted(self, request: Request, path: str) -> Response:
        """Change marks or tags, as the page asks; a page of another site cannot send JSON without being asked first."""
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "same-origin")
        if site != "same-origin" or origin not in (None, f"http://{request.headers.get('Host')}"):
            return Response("only the page itself may change marks\n", 403)
        if request.mimetype != "application/json":
            return Response("only JSON\n", 415)
        if request.content_length is None or request.content_length > MOST_POSTED:
            return Response("too large\n", 413)

        def changed() -> Any:
            if path == "api/tags":
                return change_tags(lambda: request.get_json(silent=True), self._tags, self._between)
            wanted = wanted_marks(lambda: request.get_json(silent=True), self._marks, self._between)
            return {"before": self._marks.change(wanted), "after": wanted}

        return _json(changed)

    def _between(self, given: Mapping[str, str], first: int, end: int) -> list[int]:
        return list(dict.fromkeys(self._found(given)[0][first:end].tolist()))

    def _found(self, given: Mapping[str, str]) -> tuple[Records, Records | None]:
        """Return the records that match, and the rows of their boxes if single boxes are shown."""
        query = query_of(given)
        return self._catalog.crops(query) if given.get("crops") == "1" else (self._catalog.find(query), None)

    def _list(self, given: Mapping[str, str]) -> Response:
        """Return the marks of one pack, or those of its records with a ``tag``, as a file to save."""
        try:
            pack = number(given, "pack", 0, 0, len(self._pack.packs) - 1)
            content = self._tags.listing(given["tag"], pack) if "tag" in given else self._marks.listing(pack)
        except PackerError as error:
            return Response(f"{error}\n", 422, content_type="text/plain; charset=utf-8")
        headers = {"Content-Disposition": f"attachment; filename={'tags' if 'tag' in given else 'marks'}.txt"}
        return Response(content, 200, headers, content_type="text/plain; charset=utf-8")

    def _file(self, name: str) -> Response:
        kind = KINDS.get(os.path.splitext(name)[1])
        if name == "index.html":
            text, kind = html_page("packer view", read_static(__file__, "view.html"), LINKS, "app"), "text/html"
        elif name == "style.css":
            text = stylesheet()
        elif name in FILES and kind:
            text = read_static(__file__, name)
        else:
            return Response("nothing here\n", 404)
        return Response(text, 200, content_type=f"{kind}; charset=utf-8")

    def _tiles(self, given: Mapping[str, str]) -> Any:
        """Return a range of the matching records, or of their boxes: {"count", "sets": titles, "tiles": [...]}."""
        start = number(given, "start", 0, 0, 1 << 62)
        count = number(given, "count", MOST_TILES, 0, MOST_TILES)
        side = self._side_of(given)
        found, rows = self._found(given)
        windows = windows_of(given)
        if rows is not None:
            shown = zip(found[start : start + count].tolist(), rows[start : start + count].tolist(), strict=True)
            tiles = [self._crop(record, row, side, windows) for record, row in shown]
        else:
            tiles = [self._tile(i, side, windows) for i in found[start : start + count].tolist()]
        sets = query_of(given).sets
        tiles = [self._predictions.marked(tile, sets) for tile in tiles]
        return {"count": len(found), "sets": self._catalog.titles(sets), "tiles": tiles}

    def _tile(self, record: int, side: int, windows: Windows) -> dict[str, Any]:
        try:
            facts = tile_facts(self._pack, record, colors=windows.maps)
        except PackerError as error:
            return {"record": record, "key": str(record), "width": 1, "height": 1, "error": str(error)}
        return {**facts, **problem_of(lambda: self._pictures.uri(record, side, windows.images))}

    def _crop(self, record: int, row: int, side: int, windows: Windows) -> dict[str, Any]:
        box = self._catalog.box_number(record, row)
        try:
            facts, region = crop_facts(self._pack, record, box, windows.maps)
        except PackerError as error:
            return {"record": record, "box": box, "key": str(record), "width": 1, "height": 1, "error": str(error)}
        return {**facts, **problem_of(lambda: self._pictures.crop(record, region, side, windows.images))}

    @staticmethod
    def _side_of(given: Mapping[str, str]) -> int:
        return number(given, "side", 160, SMALLEST_SIDE, LARGEST_TILE)

    def _number_of(self, given: Mapping[str, str]) -> int:
        return number(given, "record", 0, 0, len(self._pack) - 1)

    def _record(self, given: Mapping[str, str]) -> Any:
        record = self._number_of(given)
        windows = windows_of(given)
        picture: dict[str, Any] = {**problem_of(lambda: self._pictures.uri(record, LARGEST_SIDE, windows.images))}
        if "picture" in picture and self._pack.reader.dtype_of(record) == "uint16":
            picture["levels"] = level_facts(self._pack.image(record), windows.images)
        facts = self._predictions.marked(record_facts(self._pack, record, windows.maps), query_of(given).sets)
        return {**facts, "original": self._originals.where(record), **picture}

    def _place(self, given: Mapping[str, str]) -> Any:
        """Return the record (and box) at a position among the matches, or the position of one; None if no match."""
        found, rows = self._found(given)
        if "record" in given:
            record = self._number_of(given)
            match = found == record
            if rows is not None and given.get("object"):
                match &= rows == self._catalog.row_of(record, number(given, "object", 0, 0, 1 << 40))
            places = np.flatnonzero(match)
            return {"record": record, "at": int(places[0]) if len(places) else None}
        if not len(found):
            return {"record": None, "at": None}
        at = number(given, "at", 0, 0, len(found) - 1)
        record = int(found[at])
        box = {} if rows is None else {"box": self._catalog.box_number(record, int(rows[at]))}
        return {"record": record, "at": at, **box}

    @cached_property
    def _charts(self) -> Any:
        from packer.view.charts import chart_facts

        return chart_facts(self._pack, self._catalog)

    def _batch(self, given: Mapping[str, str]) -> Any:
        # torch is loaded only here: it takes long and needs the most memory
        try:
            from packer.view.batches import LARGEST_CROP, MOST_SAMPLES, BatchQuery, batch_facts
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            raise UsageError("batches", "need PyTorch", "pip install torch") from None

        asked = BatchQuery(
            batch=number(given, "batch", 0, 0, 1 << 40),
            epoch=number(given, "epoch", 0, 0, 1 << 40),
            seed=number(given, "seed", 0, 0, 1 << 62),
            samples=number(given, "samples", 16, 1, MOST_SAMPLES),
            crop=given.get("crop", "random"),
            side=number(given, "side", 224, 1, LARGEST_CROP),
            flip=number(given, "flip", 1, 0, 1) == 1,
        )
        try:
            return batch_facts(self._pack, asked, lambda record: self._tile(record, asked.shown_side, Windows()))
        except PackerError:
            raise
        except ValueError as error:  # raised by the loader: images of different sizes need a crop
            raise UsageError("crop", str(error)) from None


def _json(make: Callable[[], Any]) -> Response:
    return _sent(lambda: _as_json(make(), 200))


def _sent(make: Callable[[], Response]) -> Response:
    """Return the response, or one that says what is wrong."""
    try:
        return make()
    except UsageError as error:
        return _as_json({"error": str(error), "where": error.where}, 400)
    except PackerError as error:  # a damaged index: the page shows the error, and the server continues
        return _as_json({"error": str(error)}, 422)


def _as_json(facts: Any, status: int) -> Response:
    # "<" is escaped in case anything shows it as HTML
    text = json.dumps(facts, allow_nan=False).replace("<", "\\u003c")
    return Response(text, status, content_type="application/json")


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
