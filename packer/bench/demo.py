"""Shows what packing does to a folder, as `packer demo`: packs it, and reads both as a training script would."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.bench.process import measuring, one_round
from packer.bench.report import Job, Row
from packer.bench.sample import MOST_SIDE
from packer.errors import EXIT_BAD_DATA, EXIT_DAMAGED_PACK, EXIT_OK, StorageError, UsageError, plural, words_of
from packer.format.lists import cell_of
from packer.format.pack import open_pack
from packer.model.annotation import Progress
from packer.packing import BuildOptions, BuildSummary, build_pack
from packer.sources.synthetic import draw_sample
from packer.sources.tree import find_tree
from packer.system import usable_cores
from packer.system.atomic import remove
from packer.system.pool import Ran, run_packer

DRAWN, DRAWN_SIZE = 400, 320
ROUNDS, SECONDS, BATCH = 2, 0.5, 64


@dataclass(frozen=True)
class Demo:
    """What the demo made.

    Attributes:
        source: The folder that was packed.
        build: The arguments of its build, without ``--out``.
        summary: Of the build.
        files_bytes: Bytes of the packed images' files.
    """

    source: str
    build: list[str]
    summary: BuildSummary
    files_bytes: int


def make_demo(
    source: str | None, folder: str, images: int, seed: int, progress: Progress, labels: tuple[str, ...] = ()
) -> Demo:
    """Draw or sample images, and pack them in `folder`.

    Args:
        source: A folder of images, which is only read. None: shapes are drawn.
        folder: A new folder, for all that the demo makes. If this fails, it is removed.
        images: The most images to pack.
        seed: Of the drawing and of the sample.
        progress: Receives the stages and notes.
        labels: Kinds of the labels of `source`; none: they are recognized.

    Raises:
        UsageError: The folder exists, or the source has no images, or several kinds of labels.
    """
    chosen = None if source is None else _sample_paths(source, images, seed)
    try:
        os.makedirs(folder)
    except FileExistsError:
        raise UsageError(folder, "exists", "choose another --out, or remove it") from None
    except OSError as error:
        raise StorageError(folder, error.strerror or str(error)) from None
    with _removed_on_failure(folder):
        given: dict[str, Any] = {"resize": f"{MOST_SIDE}x{MOST_SIDE}"} | ({"labels": labels} if labels else {})
        if source is None:
            source = os.path.join(folder, "shapes")
            progress.stage("drawing", min(images, DRAWN))
            draw_sample(source, "voc", min(images, DRAWN), DRAWN_SIZE, seed, progress.advance)
            given |= {"labels": ("voc",), "fit": "pad"}
        elif chosen is not None:
            given["include"] = os.path.join(folder, "images.txt")
            with open(given["include"], "xb") as file:  # with the escapes of a list of packer, for any name
                file.write(b"path\t\n")
                file.writelines(cell_of(os.fsdecode(path)).encode() + b"\t\n" for path in chosen)
        out = os.path.join(folder, "demo.lmdb")
        summary = build_pack(BuildOptions(source, out, on_bad="skip", **given), progress)
        words = [source, *words_of({"on-bad": "skip", **given})]
        pack = open_pack(out)
        files = [os.path.getsize(os.path.join(source, path)) for path in pack.paths]
        return Demo(source, words, summary, sum(files))


@contextmanager
def _removed_on_failure(folder: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remove(folder, ignore_errors=True)
        raise


def _sample_paths(source: str, images: int, seed: int) -> list[bytes] | None:
    """Return the paths of a random sample of the images; None: all, or an archive."""
    tree = find_tree(source, lambda path: False)[0]
    found = list(tree.images)
    if tree.members is not None:
        raise UsageError(source, "its images are in archives", "unpack them: the demo reads plain files, too")
    if len(found) <= images:
        return None
    drawn = np.random.default_rng(seed).permutation(len(found))[:images]
    return [found[i] for i in sorted(drawn.tolist())]


def before_and_after(demo: Demo, progress: Progress) -> list[Row]:
    """Read the plain files and the pack as a training script does, in turns; needs torch."""
    pack = open_pack(demo.summary.path)
    files = tuple(os.path.join(demo.source, path) for path in pack.paths)
    job = Job("folder-pil", (MOST_SIDE, MOST_SIDE), BATCH, usable_cores(), SECONDS, files=files, images=len(files))
    stored = demo.summary.pack_bytes / len(files)
    rows = [
        Row("the folder, by a DataLoader", job, demo.files_bytes / len(files), disk_bytes=demo.files_bytes),
        Row(
            "the pack, by PackedLoader",
            Job("pack", job.size, BATCH, job.threads, SECONDS, pack=demo.summary.path, images=len(files)),
            stored,
            disk_bytes=demo.summary.pack_bytes,
        ),
    ]
    progress.stage("reading both", ROUNDS * len(rows), "measurements")
    with measuring() as pool:
        for _ in range(ROUNDS):
            one_round(pool, rows, progress)
    return rows


SHARDS = 24
"""Most shards of the build that is killed."""
TRIES = 5


# Breaks copies of a pack on purpose, as `packer demo --break` does, and looks at what packer says.
#
# Each step runs the commands that a user would run, in processes of their own.


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
    shard, _ = opened.reader.locate(record)
    offset = opened.reader.indexes.value("offset", shard, record)
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
