"""Reads packs at URLs in processes of their own, which may be killed, and compares every image with the local pack."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

from packer import BuildOptions, Pack, PackedLoader, build_pack, open_pack
from packer.errors import PackerError

HANGS_S = 120
"""A process that reads nothing for so long hangs."""
RIGHT, WRONG, REFUSED = 0, 3, 4
STARTS = multiprocessing.get_context("forkserver")
STARTS.set_forkserver_preload(["packer.loading.loader"])  # it does not find modules of tests


def build(home: Path, images: int, side: int, shard_bytes: int) -> Path:
    """Build a raw pack of noise in shards of this size."""
    (home / "source").mkdir()
    for number in range(images):
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
        Image.fromarray(pixels).save(home / "source" / f"{number:04d}.bmp")
    pack = home / "pack"
    build_pack(BuildOptions(str(home / "source"), str(pack), labels=("none",), workers=1, shard_bytes=shard_bytes))
    return pack


class Job:
    """What a process does: reads all of a pack in the order of a seed.

    Args:
        url: of the pack.
        cache: the cache folder.
        local: the same pack in a folder.
        seed: of the order.
        options: `cache_bytes` of the pack; `faults` of its disk; `records` to read at random.
    """

    def __init__(self, url: str, cache: Path, local: Path, seed: int, **options: Any) -> None:
        self.url, self.cache, self.local, self.seed, self.options = url, cache, local, seed, options

    @property
    def log(self) -> Path:
        """Where a process says what went wrong."""
        return self.cache.with_name(f"{self.cache.name}-{self.seed}.log")

    def start(self) -> Any:
        """Start the process."""
        process = STARTS.Process(target=_run, args=(self,), daemon=True)
        process.start()
        return process

    def end(self, process: Any) -> int | None:
        """Wait for it; return its exit code. AssertionError if it hangs or has read something wrong."""
        process.join()
        text = self.log.read_text() if self.log.exists() else ""
        assert not text.startswith("Timeout"), f"hung, seed {self.seed}\n{text}"
        assert process.exitcode in (RIGHT, REFUSED, -9), f"exit code {process.exitcode}\n{text}"
        return int(process.exitcode)

    def read(self, going_on: Callable[[], None]) -> None:
        """Read and compare, in this process, and call `going_on` now and then."""
        faults = self.options.get("faults")
        with mock.patch("os.pwrite", Full(*faults) if faults else os.pwrite):
            here = open_pack(self.local)
            pack = open_pack(self.url, cache_dir=self.cache, cache_bytes=self.options.get("cache_bytes"))
            if count := self.options.get("records"):
                with ThreadPoolExecutor(2) as threads:
                    list(threads.map(lambda number: self._some(pack, here, count, number, going_on), range(2)))
                return
            both = [PackedLoader(one, 8, shuffle=True, seed=self.seed, threads=1) for one in (pack, here)]
            count = 0
            for (images, _), (expected, _) in zip(*both, strict=True):
                assert torch.equal(images, expected), f"batch after {count} records"
                going_on()
                count += len(images)
            assert count == len(here)

    def _some(self, pack: Pack, here: Pack, count: int, number: int, going_on: Callable[[], None]) -> None:
        """Compare records drawn at random."""
        dice = random.Random(f"{self.seed} {number}")
        for _ in range(count):
            i = dice.randrange(len(here))
            assert bytes(pack.record(i)) == bytes(here.record(i)), f"record {i}"
            going_on()


class Full:
    """A disk that is full from a write on, or for one write (`os.pwrite`)."""

    def __init__(self, after: int, once: bool, code: int) -> None:
        self.left, self.once, self.code, self.write = after, once, code, os.pwrite

    def __call__(self, *args: Any) -> int:
        self.left -= 1
        if self.left == -1 or (self.left < 0 and not self.once):
            raise OSError(self.code, os.strerror(self.code))
        return self.write(*args)


def _run(job: Job) -> None:
    code = WRONG
    log = job.log.open("w")
    going_on = partial(faulthandler.dump_traceback_later, HANGS_S, exit=True, file=log)
    going_on()
    try:
        job.read(going_on)
        faulthandler.cancel_dump_traceback_later()
        code = RIGHT
    except PackerError as error:
        job.log.write_text(f"{type(error).__name__}: {error}")
        code = REFUSED
    except BaseException:
        job.log.write_text(traceback.format_exc())
    os._exit(code)


def foreign(cache: Path) -> Callable[[], None]:
    """Put files beside those of the cache that are not its own; return what asserts that they are as they were."""
    dice = random.Random(0)
    files = [
        cache / "notes.txt", cache / "packs" / "mine" / "pack.json", cache / "packs" / "mine" / "shard-00000.lmdb",
        cache / "packs" / "blocks", cache / "packs" / "0123456789abcdef" / "blocks",
        cache / "packs" / "fedcba9876543210" / "origin.json",
    ]  # fmt: skip
    content = {file: dice.randbytes(20_000) for file in files}
    for file, data in content.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def check() -> None:
        for file, data in content.items():
            assert file.read_bytes() == data, f"{file} was changed"

    return check
