"""Decodes mutated images of every format in disposable processes: an image, or BadImage, and the parent lives."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from outcome import Budget, Outcome
from torture_mutations import SEEDS, Mutation, bit_flip, mutation, with_checksums

from packer.errors import BadImage, UsageError
from packer.images.decode import DECODERS, check_available, decode
from packer.images.header import DEFAULT_MAX_PIXELS, IncompleteHeader, check_header, decoded_shape, read_header
from packer.images.resize import Resize
from packer.packing.convert import Recipe, Row
from packer.types import Annotation

BATCH = 400
SLOW_S, HANG_S = 1.0, 20.0
MEMORY_BYTES = 6 << 30
WAITING, RUNNING, DECODED, REFUSED, FAULT, SLOW = range(6)
MODES = ("rgb", "gray", "unchanged")
RESIZES = (None, Resize(16, 12, "pad"), Resize(8, 8, "stretch"), Resize(64, 64, "crop"))
ENCODINGS = ("raw", "copy", "png", "jpeg")
FUZZED_PIXELS = 1 << 20

One = Callable[[random.Random, bytes], bool]
Make = Callable[[int, int], Mutation]


def images(budget: Budget, count: int = 100_000, one: One | None = None) -> Outcome:
    """Mutate, decode, and count what came of it. `one` takes the decoder's place in tests of this harness."""
    outcome = Outcome(
        "mutated images of each format through the decode path",
        "100,000, the parent never dies, an image or BadImage",
    )
    _run(outcome, budget, range(count), mutation, one or run_one)
    return outcome


def image_flips(budget: Budget, step: int = 1) -> Outcome:
    """Every single bit of every seed flipped, or every `step`-th of them."""
    outcome = Outcome(
        "every single-bit flip of a small image of each variant through the decode path",
        "all, the parent never dies, an image or BadImage",
    )
    _run(outcome, budget, range(0, 8 * sum(map(len, SEEDS.values())), step), bit_flip, run_one)
    return outcome


def _run(outcome: Outcome, budget: Budget, numbers: range, make: Make, one: One) -> None:
    for name in ("mutations", "decoded", "refused", "crashed", "over 1 s"):
        outcome.done[name] = 0
    at = 0
    while at < len(numbers) and not budget.spent:
        at += _batch(outcome, numbers[at : at + BATCH], lambda number: make(number, budget.seed), one)


@cache
def available() -> list[str]:
    """The decoders that there are."""
    found = []
    for decoder in DECODERS:
        with contextlib.suppress(UsageError):
            check_available(decoder)
            found.append(decoder)
    return found


def run_one(rng: random.Random, data: bytes, max_pixels: int = DEFAULT_MAX_PIXELS) -> bool:
    """The way of one file through header, decoder and recipe; whether it is an image. What it raises is a fault."""
    with contextlib.suppress(BadImage, IncompleteHeader):
        read_header(data[: rng.choice((16, 64, 512))], complete=False)
    mode, decoder = rng.choice(MODES), rng.choice(available())
    try:
        header = read_header(data)
        check_header(header, max_pixels)
        height, width, channels, dtype = decoded_shape(header, mode)
        image = decode(data, mode, decoder, max_pixels=max_pixels)
    except BadImage:
        return False
    assert image.shape == (height, width, channels) and image.dtype == dtype and image.flags.c_contiguous
    encoding = rng.choice(ENCODINGS) if mode != "unchanged" else rng.choice(("raw", "copy"))
    resize = None if encoding == "copy" or mode == "unchanged" else rng.choice(RESIZES)
    recipe = Recipe(b"/", mode, decoder, max_pixels, resize, encoding, 90)
    row = Row(b"a", len(data), height, width, header.code)
    try:
        record = recipe.record("0", row, data, Annotation())
    except BadImage:  # at a reduced size other parts of a damaged file are read
        assert resize is not None
        return False
    assert record.shape == ((height, width, channels) if resize is None else (resize.height, resize.width, channels))
    return True


def fuzz_one(data: bytes) -> None:
    """The same, for inputs that a fuzzer makes: two bytes choose, the rest is the file."""
    choice, file = data[:2], bytearray(data[2:])
    if choice[:1] and choice[0] & 1:
        file = with_checksums(file)
    run_one(random.Random(choice), bytes(file), FUZZED_PIXELS)


def _batch(outcome: Outcome, numbers: range, make: Callable[[int], Mutation], one: One) -> int:
    """Run a batch in a child; returns how many are done: those up to a crash, and it."""
    with mmap.mmap(-1, len(numbers)) as states, _report() as (read_end, write_end):
        child = os.fork()
        if child == 0:
            _in_child(states, write_end, map(make, numbers), one)
        os.close(write_end)
        status = _watched(child, states)
        said = b"".join(iter(lambda: os.read(read_end, 65536), b"")).decode("utf-8", "replace").splitlines()
        found = bytes(states)
    outcome.faults += said
    running = found.find(RUNNING)
    done = running + 1 if running >= 0 else len(numbers)
    if running >= 0 and os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
        outcome.faults.append(f"{make(numbers[running])}: hangs for more than {HANG_S:g} s")
    elif running >= 0:  # the product runs decoders in workers for that: it costs the one image
        outcome.count("crashed")
        print(f"{make(numbers[running])}: crashed with wait status {status}", flush=True)
    elif status != 0:
        outcome.faults.append(f"{make(numbers[-1])}, the last of its process, which ended with wait status {status}")
    outcome.count("mutations", done)
    for state, name in ((DECODED, "decoded"), (REFUSED, "refused"), (SLOW, "over 1 s")):
        outcome.count(name, found[:done].count(state))
    return done


@contextlib.contextmanager
def _report() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    try:
        yield read_end, write_end
    finally:
        os.close(read_end)


def _in_child(states: Any, write_end: int, mutations: Iterable[Mutation], one: One) -> None:
    """Never returns."""
    code = 1
    try:
        faulthandler.disable()  # pytest's would report crashes that are counted here
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what native libraries say of broken files
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        for i, made in enumerate(mutations):
            states[i] = RUNNING
            started = time.process_time()
            try:
                state = DECODED if one(made.rng, made.data) else REFUSED
            except BaseException as error:
                state = FAULT
                os.write(write_end, f"{made}: {error!r:.200}\n".encode())
            states[i] = SLOW if state != FAULT and time.process_time() - started > SLOW_S else state
        code = 0
    finally:
        os._exit(code)


def _watched(child: int, states: Any) -> int:
    """The child's wait status; it is killed where one image takes too long."""
    place, since = -1, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        now = bytes(states).find(RUNNING)
        if now != place:
            place, since = now, time.monotonic()
        elif now >= 0 and time.monotonic() - since > HANG_S:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
