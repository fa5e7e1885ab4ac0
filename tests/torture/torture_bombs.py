"""Small files that ask for a great deal: each must be refused before it gets any of it."""

from __future__ import annotations

import io
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from outcome import Budget, Outcome
from PIL import Image

from packer.errors import PackerError
from packer.format.manifest import parse_manifest
from packer.images.decode import decode
from packer.sources.voc_xml import parse_xml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "ops"))

from test_ops_header import bombs as image_bombs
from test_ops_header import with_jpeg_size

MOST_S, MOST_BYTES = 0.010, 5 << 20
ROUNDS = 5


def jpeg_937() -> bytes:
    """A JPEG of 937 bytes that says it has 30,000 x 30,000 pixels; OpenCV 5.0 spends 16 s and 4.8 GiB on such a one."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 10, 10)).save(file, "JPEG", quality=75)
    data = file.getvalue()
    # a comment fills it up
    room = 937 - len(data) - 4
    data = data[:2] + b"\xff\xfe" + struct.pack(">H", room + 2) + b"x" * room + data[2:]
    assert len(data) == 937
    return with_jpeg_size(data, 30_000, 30_000)


def billion_laughs() -> bytes:
    """XML entities of entities: 10^9 times one text."""
    entities = "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
    return f'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">{entities}]><annotation>&j;</annotation>'.encode()


def cases() -> dict[str, Callable[[], object]]:
    """Each bomb, as the call that meets it in packer."""
    quadratic = f'<!DOCTYPE a [<!ENTITY a "{"a" * 50_000}">]><annotation>{"&a;" * 50_000}</annotation>'.encode()
    external = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>'
    images = {"jpeg of 937 bytes": jpeg_937(), **image_bombs()}
    found: dict[str, Callable[[], object]] = {
        name: (lambda data=data: decode(data)) for name, data in images.items()  # type: ignore[misc]
    }
    for name, text in (("xml laughs", billion_laughs()), ("xml quadratic", quadratic), ("xml external", external)):
        found[name] = lambda text=text: parse_xml(text, b"a.xml")  # type: ignore[misc]
    found["deep manifest"] = lambda: parse_manifest("pack.json", b"[" * 100_000)
    return found


def bombs(budget: Budget) -> Outcome:
    """Time (the best of some rounds: the machine does other things too) and memory of each refusal."""
    outcome = Outcome(
        "bombs (937-byte 30000x30000 JPEG; giant PNG, GIF, WebP, TIFF, BMP; XML entities; deep JSON)",
        "refused in < 10 ms and < 5 MiB",
    )
    for name, call in cases().items():
        times = []
        for number in range(ROUNDS):
            before, started = _resident(), time.perf_counter()
            try:
                call()
                outcome.faults.append(f"{name}: was not refused")
            except PackerError:
                times.append(time.perf_counter() - started)
            if number and _resident() - before > MOST_BYTES:  # the first call loads libraries
                outcome.faults.append(f"{name}: {(_resident() - before) >> 20} MiB")
        if times and min(times) > MOST_S:
            outcome.faults.append(f"{name}: {min(times) * 1000:.1f} ms")
        outcome.count("bombs")
        outcome.count("slowest, microseconds", 0)
        outcome.done["slowest, microseconds"] = max(outcome.done["slowest, microseconds"], round(min(times) * 1e6))
    return outcome


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
