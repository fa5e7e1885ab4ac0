"""Breaks copies of a pack on purpose, as `packer demo --break` does, and looks at what packer says.

Each step runs the commands that a user would run, in processes of their own.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from packer.errors import EXIT_BAD_DATA, EXIT_DAMAGED_PACK, EXIT_OK, plural, words_of
from packer.format.pack import open_pack
from packer.system.atomic import remove
from packer.system.command import Ran, run_packer

SHARDS = 24
"""Most shards of the build that is killed."""
TRIES = 5


@dataclass(frozen=True)
class Step:
    """One thing that was broken.

    Attributes:
        name: What it is about.
        done: What was done.
        expected: What packer promises.
        seen: What it did.
        good: Whether it kept the promise; None: it could not be tested.
    """

    name: str
    done: str
    expected: str
    seen: str
    good: bool | None


def break_pack(pack: str, build: list[str], folder: str, seed: int) -> Iterator[Step]:
    """Yield the steps, each when it is done. `pack` itself is only read.

    Args:
        pack: A pack.
        build: The arguments of the build that made it, without ``--out``.
        folder: An empty folder for copies.
        seed: Chooses records, bits and moments.
    """
    chance = random.Random(seed)
    yield _flip(pack, os.path.join(folder, "flipped"), chance)
    yield from _kill(pack, build, folder, chance)
    yield from _truncate(pack, os.path.join(folder, "truncated"), chance)
    ran = run_packer(["verify", pack])
    yield Step("the pack itself", "nothing", "packer verify finds nothing", _last(ran), ran.code == EXIT_OK)


def _flip(pack: str, copy: str, chance: random.Random) -> Step:
    shutil.copytree(pack, copy)
    opened = open_pack(pack)
    record = chance.randrange(len(opened))
    key, size = opened.key(record), int(opened.column("size")[record])
    shard, _ = opened.locate(record)
    offset = opened.indexes.value("offset", shard, record)
    byte, bit = chance.randrange(size), chance.randrange(8)
    name = opened.manifest.shards[shard].container.name
    with open(os.path.join(copy, name), "r+b") as file:
        file.seek(offset + byte)
        value = file.read(1)[0]
        file.seek(offset + byte)
        file.write(bytes([value ^ (1 << bit)]))
    ran = run_packer(["verify", copy])
    said = next((line for line in ran.text.splitlines() if f"record {key}" in line), _last(ran))
    done = f"flipped bit {bit} of byte {byte:,} of record {key} in {copy}"
    good = ran.code == EXIT_DAMAGED_PACK and f"{name}: record {key} does not match its checksum" in ran.text
    return Step("a flipped bit", done, f"packer verify exits with 4 and names record {key}", said, good)


def _kill(pack: str, build: list[str], folder: str, chance: random.Random) -> Iterator[Step]:
    out = os.path.join(folder, "killed")
    opened = open_pack(pack)
    size = sum(shard.container.bytes for shard in opened.manifest.shards)
    shards = min(SHARDS, len(opened))
    command = ["build", *build, "-o", out, *words_of({"shard-size": max(1, size // SHARDS), "workers": 1})]
    work = os.path.join(f"{out}.partial", "pack")
    share = chance.uniform(0.2, 0.7)

    def half_way() -> bool:
        try:
            return sum(name.endswith(".index.arrow") for name in os.listdir(work)) >= share * shards
        except OSError:
            return False

    for _ in range(TRIES):
        ran = run_packer(command, half_way)
        if ran.killed and ran.code not in (EXIT_OK, EXIT_BAD_DATA):
            break
        share *= 0.5  # it was faster
        remove(out, ignore_errors=True)
    else:
        seen = f"the build was faster, {TRIES} times; take more images"
        yield Step("a killed build", f"tried to kill packer {' '.join(command)}", "it is killed", seen, None)
        return
    done = f"killed packer {' '.join(command)} when about {share:.0%} of its shards were finished"
    seen = f"exit code {ran.code}, {'a' if os.path.exists(out) else 'no'} pack at {out}"
    good = ran.killed and not os.path.exists(out) and os.path.isdir(work)
    yield Step("a killed build", done, "no pack, and the finished shards are kept", seen, good)
    again = run_packer(command)
    resumed = next((line for line in again.text.splitlines() if "resuming" in line), _last(again))
    good = again.code == EXIT_OK and "resuming" in again.text
    yield Step("the same command again", "ran it again", "it resumes from the finished shards", resumed, good)
    digests = [_digest(run_packer(["hash", path])) for path in (pack, out)]
    done = f"packer hash of {pack}, which was not interrupted, and of {out}"
    seen = " and ".join(digest[:16] or "none" for digest in digests)
    yield Step("its digest", done, "the same digest", seen, digests[0] == digests[1] != "")


def _truncate(pack: str, copy: str, chance: random.Random) -> Iterator[Step]:
    shutil.copytree(pack, copy)
    opened = open_pack(pack)
    entry = chance.choice(opened.manifest.shards).container
    left = chance.randrange(entry.bytes // 4, entry.bytes)
    os.truncate(os.path.join(copy, entry.name), left)
    ran = run_packer(["verify", copy])
    said = next((line for line in ran.text.splitlines() if entry.name in line), _last(ran))
    done = f"truncated {entry.name} of {copy} from {entry.bytes:,} to {left:,} bytes"
    good = ran.code == EXIT_DAMAGED_PACK and entry.name in said
    yield Step("a truncated shard", done, f"packer verify exits with 4 and names {entry.name}", said, good)
    saved = f"{copy}.repaired"
    repair = ["repair", copy, *words_of({"out": saved})]
    ran = run_packer(repair)
    checked = run_packer(["verify", *words_of({"deep": True}), saved])
    lost = len(opened) - (len(open_pack(saved)) if checked.code == EXIT_OK else 0)
    good = ran.code in (EXIT_OK, EXIT_BAD_DATA) and checked.code == EXIT_OK
    good = good and (lost == 0 or plural(lost, "record is", "records are") in ran.text)
    expected = "all records that are left, in a pack that verifies; the lost ones are counted"
    yield Step("its repair", f"packer {' '.join(repair)}", expected, _last(ran), good)


def _last(ran: Ran) -> str:
    lines = [line for line in ran.text.splitlines() if line.strip()]
    return lines[-1] if lines else f"nothing; exit code {ran.code}"


def _digest(ran: Ran) -> str:
    found = re.match(r"[0-9a-f]{64}\b", ran.text)
    return found[0] if found else ""
