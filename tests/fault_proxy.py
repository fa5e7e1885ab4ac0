"""A server on the loopback that does what networks and stores do at their worst, and counts what is asked of it.

It stands before another server, or serves the files of a folder by itself:

    with FaultProxy("http://127.0.0.1:8333") as proxy:                     # AWS_ENDPOINT_URL=proxy.url
        proxy.faults = [Fault("delay", seconds=0.03), Fault("503", share=0.1, times=1)]
        ...
        assert max(proxy.reads().values()) == 1                            # no range was read twice

What strikes a request depends on the seed, on what it asks for and how often that was asked before, not on the moment.
Requests are passed on unchanged with the Host that the client has signed, so that signatures of S3 (SigV4) hold.
As a program, for benchmarks, it is a process of its own: `python fault_proxy.py UPSTREAM [DELAY_S]` prints its URL.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from email.utils import formatdate
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

CHUNK = 1 << 18
RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
KINDS = ("delay", "404", "503", "cut", "flip", "flips", "shift", "range", "whole", "close", "lost", "replaced")


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    start: int | None
    """First byte of the range; None: no range."""
    stop: int | None
    """Its end, exclusive."""


@dataclass(frozen=True)
class Fault:
    """What happens to some requests.

    The kinds: ``delay``: it takes `seconds` longer; ``404``: it is not there; ``503``: the store is busy; ``cut``: the
    connection ends in the middle of the body; ``flip``: one bit of the body is another; ``flips``: one in each 64
    bytes; ``shift``: the bytes beside those asked for, under the headers of these; ``range``: another range, which the
    headers say; ``whole``: all bytes with status 200; ``close``: the connection ends without an answer; ``lost``: so
    too, but after the store has done it; ``replaced``: the object has another ETag (412 for If-Match).
    """

    kind: str
    share: float = 1.0
    """Of the requests, drawn by their content."""
    times: int | None = None
    """How often it strikes requests up to the same byte of an object at most; None: every time."""
    path: str = ""
    """A part of the paths that it strikes."""
    methods: tuple[str, ...] = ("GET",)
    seconds: float = 0.0
    within: tuple[int, int] | None = None
    """Where in the object a bit is flipped: (start, stop); requests without these bytes are not struck."""
    when: Callable[[Asked], bool] | None = None
    """A condition of one's own, besides."""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind


@dataclass(frozen=True)
class Answered:
    """What became of a request."""

    asked: Asked
    status: int
    """0: none was sent."""
    sent: int
    """Bytes of the body."""
    faults: tuple[str, ...]
    at_s: float
    """When it came (`time.monotonic`)."""


class FaultProxy(ThreadingHTTPServer):
    """The server; it listens from its creation to the end of the context."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, upstream: str | os.PathLike[str], seed: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.seed = seed
        self.faults: list[Fault] = []
        self.answers: list[Answered] = []
        self.open_now = 0
        self.most_at_once = 0
        self.lock = threading.Condition()
        self._before: Counter[object] = Counter()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def name_of(self, path: str) -> str:
        """Return which file of the folder the path of a URL names."""
        return path.lstrip("/")

    def clear(self) -> None:
        """Forget the faults, and what was asked."""
        with self.settled():
            self.faults = []
            self.answers.clear()
            self._before.clear()
            self.most_at_once = 0

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Hold the lock when no request is in progress: a client has its answer before this is noted."""
        with self.lock:
            self.lock.wait_for(lambda: not self.open_now)
            yield

    def reads(self, path: str = "") -> Counter[tuple[str, int | None, int | None]]:
        """Return how often each range of each object was sent as it is: (path, start, stop) -> times."""
        with self.settled():
            return Counter(
                (a.asked.path, a.asked.start, a.asked.stop)
                for a in self.answers
                if a.asked.method == "GET" and a.status in (200, 206) and path in a.asked.path
                and not set(a.faults) - {"delay"}
            )  # fmt: skip

    def sent(self, path: str = "") -> int:
        """Return the bytes of all bodies sent of objects with `path` in their paths."""
        with self.settled():
            return sum(a.sent for a in self.answers if path in a.asked.path)

    def struck(self) -> Counter[str]:
        """Return how often each fault has struck."""
        with self.settled():
            return Counter(kind for answer in self.answers for kind in answer.faults)

    def drawn(self, asked: Asked) -> list[Fault]:
        """Return what strikes a request, and count it."""
        found = []
        with self.lock:
            for number, fault in enumerate(self.faults):
                key = (number, asked.method, asked.path, asked.stop)  # what was cut is asked for from there on
                times = self._before[key]
                dice = random.Random(f"{self.seed} {key} {times if fault.times is None else ''}")
                if (
                    asked.method in fault.methods and fault.path in asked.path
                    and (fault.times is None or times < fault.times) and dice.random() < fault.share
                    and (fault.when is None or fault.when(asked)) and (fault.within is None or _common(asked, fault))
                ):  # fmt: skip
                    found.append(fault)
                self._before[key] += 1
        return found

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that go away."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, and one to the server behind."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultProxy
    upstream: http.client.HTTPConnection | None = None

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def finish(self) -> None:
        """Close both connections."""
        if self.upstream is not None:
            self.upstream.close()
        super().finish()

    def _do(self) -> None:
        came = time.monotonic()
        match = RANGE.match(self.headers.get("Range", ""))
        start, stop = (int(match[1]), int(match[2]) + 1 if match[2] else None) if match else (None, None)
        asked = Asked(self.command, unquote(self.path), start, stop)
        proxy, status, sent = self.server, 0, 0
        faults: list[Fault] = []
        with proxy.lock:
            proxy.open_now += 1
            proxy.most_at_once = max(proxy.most_at_once, proxy.open_now)
        try:
            faults = proxy.drawn(asked)
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(sum(fault.seconds for fault in faults))
            self._within = next((_common(asked, fault) for fault in faults if fault.within), None)
            status, sent = self._answer(asked, content, [fault.kind for fault in faults])
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            with proxy.lock:
                proxy.open_now -= 1
                kinds = tuple(fault.kind for fault in faults)
                proxy.answers.append(Answered(asked, status, sent, kinds, came))
                proxy.lock.notify_all()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do  # noqa: N815 - names that http.server looks for

    def _answer(self, asked: Asked, content: bytes, kinds: list[str]) -> tuple[int, int]:
        """Send an answer; return its status and the length of what was sent of its body."""
        if "close" in kinds:
            self.close_connection = True
            return 0, 0
        if "404" in kinds:
            return 404, self._send(404, {}, b"")
        if "503" in kinds:
            return 503, self._send(503, {"Retry-After": "0"}, b"<Error><Code>SlowDown</Code></Error>")
        headers = list(self.headers.items())
        if "replaced" in kinds and self.headers.get("If-Match"):
            return 412, self._send(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
        if "whole" in kinds:
            headers = [(name, value) for name, value in headers if name.lower() != "range"]
        elif {"shift", "range"} & set(kinds) and asked.start is not None and asked.stop is not None:
            beside = (
                f"bytes={asked.start + 1}-{asked.stop}"
                if asked.start == 0
                else f"bytes={asked.start - 1}-{asked.stop - 2}"
            )
            headers = [(name, beside if name.lower() == "range" else value) for name, value in headers]
        if isinstance(self.server.upstream, str):
            status, found, length, read = self._passed_on(headers, content)
        else:
            status, found, length, read = self._from_folder(self.server.upstream, dict(headers))
        if "lost" in kinds:
            self.close_connection = True
            return 0, 0
        if "shift" in kinds and "content-range" in found and asked.start is not None and asked.stop is not None:
            total = found["content-range"].rpartition("/")[2]
            found.replace_header("content-range", f"bytes {asked.start}-{asked.stop - 1}/{total}")
        if "replaced" in kinds and "etag" in found:
            found.replace_header("etag", '"another"')
        self.send_response_only(status)
        for name, value in found.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "keep-alive"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        body = self.command != "HEAD" and status not in (204, 304)
        return status, self._relay(asked, read, length if body else 0, kinds)

    def _relay(self, asked: Asked, read: Callable[[int], bytes], length: int, kinds: list[str]) -> int:
        """Send a body, cut or with a bit flipped if a fault says so."""
        dice = random.Random(f"{self.server.seed} {asked}")
        end = dice.randrange(length) if "cut" in kinds and length else length
        first, last = self._within or (0, length)
        bit = dice.randrange(8 * first, 8 * last) if "flip" in kinds and length else None
        sent = 0
        while sent < end:
            piece = read(min(CHUNK, end - sent))
            if not piece:
                self.close_connection = True
                break
            if bit is not None and sent <= bit // 8 < sent + len(piece):
                changed = bytearray(piece)
                changed[bit // 8 - sent] ^= 1 << bit % 8
                piece = bytes(changed)
            if "flips" in kinds:
                piece = bytes(byte ^ (i % 64 == 0) for i, byte in enumerate(piece))
            self.wfile.write(piece)
            sent += len(piece)
        if end < length:
            self.close_connection = True
            self.wfile.flush()
            if self.upstream is not None:
                self.upstream.close()
        return sent

    def _passed_on(
        self, headers: list[tuple[str, str]], content: bytes
    ) -> tuple[int, Message, int, Callable[[int], bytes]]:
        """Ask the server behind; return status, headers, length of the body, and what reads it."""
        where = urlsplit(str(self.server.upstream))
        assert where.hostname is not None
        for last in (False, True):
            if self.upstream is None:
                self.upstream = http.client.HTTPConnection(where.hostname, where.port, timeout=120)
            try:
                self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in headers:
                    if name.lower() not in ("connection", "expect"):
                        self.upstream.putheader(name, value)
                self.upstream.endheaders(content or None)
                answer = self.upstream.getresponse()
                break
            except OSError:  # the server has closed a connection that was idle
                self.upstream.close()
                self.upstream = None
                if last:
                    raise
        if answer.length is None and self.command != "HEAD":  # in chunks
            whole = answer.read()
            return answer.status, answer.msg, len(whole), _reader(whole)
        length = int(answer.headers.get("Content-Length") or 0)
        if self.command == "HEAD" or not length:
            answer.read()  # else the connection waits for it
        return answer.status, answer.msg, length, answer.read

    def _from_folder(
        self, folder: os.PathLike[str], headers: dict[str, str]
    ) -> tuple[int, Message, int, Callable[[int], bytes]]:
        """Serve a file with ranges and conditions, as a static web server does."""
        given = {name.lower(): value for name, value in headers.items()}
        found = Message()
        path = Path(folder, self.server.name_of(unquote(urlsplit(self.path).path)))
        if not path.is_file() or ".." in path.parts:
            return 404, found, 0, _reader(b"")
        status = path.stat()
        found["ETag"] = _etag(path, status.st_mtime_ns, status.st_size)
        found["Last-Modified"] = formatdate(status.st_mtime, usegmt=True)
        found["Accept-Ranges"] = "bytes"
        if given.get("if-match", found["ETag"]) not in (found["ETag"], "*"):
            return 412, found, 0, _reader(b"")
        match = RANGE.match(given.get("range", ""))
        start, stop = (int(match[1]), int(match[2] or status.st_size) + 1) if match else (0, status.st_size)
        stop = min(stop, status.st_size)
        if match and start >= stop:
            found["Content-Range"] = f"bytes */{status.st_size}"
            return 416, found, 0, _reader(b"")
        if match:
            found["Content-Range"] = f"bytes {start}-{stop - 1}/{status.st_size}"
        with path.open("rb") as file:
            file.seek(start)
            return 206 if match else 200, found, stop - start, _reader(file.read(stop - start))

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> int:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return len(body)


def _common(asked: Asked, fault: Fault) -> tuple[int, int] | None:
    """Return the bytes of an answer in which a fault is, counted from its start; None if there are none."""
    if fault.within is None:
        return None
    begin = asked.start or 0
    start, stop = max(begin, fault.within[0]), min(asked.stop or fault.within[1], fault.within[1])
    return (start - begin, stop - begin) if start < stop else None


@lru_cache(maxsize=1000)
def _etag(path: Path, _time_ns: int, _size: int) -> str:
    return f'"{hashlib.md5(path.read_bytes()).hexdigest()}"'


def _reader(content: bytes) -> Callable[[int], bytes]:
    place = 0

    def read(size: int) -> bytes:
        nonlocal place
        place += size
        return content[place - size : place]

    return read


def main() -> None:
    """Serve until standard input ends; then say how many requests there were, and how many bytes."""
    upstream, delay = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    with FaultProxy(upstream if "://" in upstream else Path(upstream)) as proxy:
        proxy.faults = [Fault("delay", seconds=delay)] if delay else []
        print(proxy.url, flush=True)
        with suppress(KeyboardInterrupt):
            sys.stdin.read()
        print(len(proxy.answers), proxy.sent(), proxy.most_at_once, flush=True)


if __name__ == "__main__":
    main()
