"""Shows what packing does to a folder, as `packer demo`: packs it, and reads both as a training script would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from packer.bench.options import Job
from packer.bench.process import measuring, one_round
from packer.bench.report import Row
from packer.bench.sample import MOST_SIDE
from packer.errors import StorageError, UsageError, words_of
from packer.format.lists import cell_of
from packer.format.pack import open_pack
from packer.model.annotation import Progress
from packer.packing import BuildOptions, BuildSummary, build_pack
from packer.sources.synthetic import draw_sample
from packer.sources.tree import find_tree
from packer.system import usable_cores
from packer.system.atomic import remove

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
    chosen = None if source is None else _sampled(source, images, seed)
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


def _sampled(source: str, images: int, seed: int) -> list[bytes] | None:
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
