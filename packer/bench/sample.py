"""Samples the images to measure: from a folder, copied for the builds, or from a pack's records."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import numpy as np

from packer.bench.report import IMAGES, LEAST_IMAGES, BenchOptions
from packer.errors import BadImage, UsageError, plural
from packer.format.jpeg_index_list import JPEG_INDEX_PREFIX
from packer.format.pack import Pack
from packer.images import decoders
from packer.images.header import decoded_shape, read_header
from packer.model.annotation import Int64
from packer.packing import BuildOptions, build_pack
from packer.sources.tree import find_tree
from packer.system import available_bytes

MOST_SIDE = 224
MOST_BYTES = 1 << 30
"""Larger than the caches of a processor, and read from a slow disk in seconds."""
MOST_DECODED = 1 << 14
"""Limit for encoded images: reading them once, to warm up, should also take seconds."""
MOST_COPIED = 1 << 28
"""Limit for the JPEGs that are indexed for a measurement."""
MOST_PIXELS = 1 << 40
"""What is in a pack is not too large."""
RUNS = 16


@dataclass(frozen=True)
class Images:
    """The sample of a folder.

    Attributes:
        folder: Folder with copies of the files, named by number.
        files: The user's own files, in the order of the copies' names.
        size: (width, height) of the batches.
        found: Number of images in the whole folder.
        bytes: Size of all files of the sample.
    """

    folder: str
    files: tuple[str, ...]
    size: tuple[int, int]
    found: int
    bytes: int

    def original(self, name: str) -> str:
        """Return the user's file whose copy has this name."""
        return self.files[int(os.path.splitext(name)[0])]


def sample_images(source: str, folder: str, options: BenchOptions) -> Images:
    """Draw a sample of the images in `source`, and copy it to `folder`; raise UsageError if there are too few."""
    tree = find_tree(source, lambda path: False)[0]
    if tree.members is not None:
        raise UsageError(source, "its images are in archives", "unpack them: a folder of files is measured")
    found = list(tree.images)
    files, shapes, total, most = [], [], 0, available_bytes() // 4
    for i in np.random.default_rng(options.seed).permutation(len(found)).tolist():
        path = os.path.join(tree.root, found[i])
        shape = _shape(path)
        if shape is None:
            continue
        total += os.path.getsize(path)
        if total > most:
            break
        files.append(os.fsdecode(path))
        shapes.append(shape)
        if len(files) == (options.images or IMAGES):
            break
    if len(files) < LEAST_IMAGES:
        problem = f"has {plural(len(files), 'readable image')}"
        raise UsageError(source, problem, f"choose a folder with at least {LEAST_IMAGES}")
    # in the order of a walk over the folder, so that the sample is on the disk in the same order
    ordered = sorted(files)
    os.makedirs(folder)
    for number, file in enumerate(ordered):
        extension = os.path.splitext(file)[1].lower()
        with open(file, "rb") as own, open(os.path.join(folder, f"{number:06d}{extension}"), "xb") as copy:
            shutil.copyfileobj(own, copy)
    size = batch_size_of(np.array(shapes)) if options.resize is None else options.size_of(options.resize)
    return Images(folder, tuple(ordered), size, len(found), sum(os.path.getsize(file) for file in ordered))


def batch_size_of(sizes: Int64) -> tuple[int, int]:
    """Return the (width, height) of batches for images of these sizes, (n, 2): the median, up to MOST_SIDE."""
    width, height = (int(side) for side in np.median(sizes, axis=0))
    return max(1, min(width, MOST_SIDE)), max(1, min(height, MOST_SIDE))


def _shape(path: bytes) -> tuple[int, int] | None:
    """Return (width, height) of an image file, None if it is not one."""
    try:
        with open(path, "rb") as file:
            height, width, *_ = decoded_shape(read_header(file.read()), "rgb")
    except (OSError, BadImage):
        return None
    return width, height


def indexed_sample(pack: Pack, folder: str, options: BenchOptions) -> tuple[str, str] | None:
    """Build a pack of some of a pack's JPEGs twice, in `folder`: return the paths without and with an index of them.

    None: the native decoder is not there, or does not read this pack, or nothing could be indexed.
    """
    if decoders.native_for_auto() is None or pack.manifest.encoding not in ("jpeg", "copy") or pack.manifest.lenient:
        return None
    each = max(1.0, float(np.asarray(pack.column("size")).sum()) / len(pack))
    count = min(options.images or IMAGES, max(LEAST_IMAGES, int(MOST_COPIED / each)))
    source, plain, indexed = (os.path.join(folder, name) for name in ("images", "plain", "indexed"))
    os.makedirs(source)
    for record in sample_records(pack, count).tolist():
        if pack.encoding_of(record) == "jpeg":
            with open(os.path.join(source, f"{record}.jpg"), "xb") as file:
                file.write(pack.record(record))
    if len(os.listdir(source)) < LEAST_IMAGES:
        return None
    built = build_pack(
        BuildOptions(
            source, indexed, labels=("none",), encode="copy", jpeg_index="row", mode=pack.manifest.mode,
            max_pixels=MOST_PIXELS, on_bad="skip", workers=options.threads,
        )
    )  # fmt: skip
    if built.jpeg_index is None or not built.jpeg_index.indexed:
        return None
    shutil.copytree(indexed, plain, ignore=shutil.ignore_patterns(f"{JPEG_INDEX_PREFIX}*"))
    return plain, indexed


def sample_records(pack: Pack, images: int | None) -> Int64:
    """Return the numbers of the records to measure, ascending: `images` of them, or as many as are read in seconds.

    They are runs of neighbors from all over the pack, so that a disk reads them like the whole pack.
    """
    each = max(1.0, float(np.asarray(pack.column("size")).sum()) / len(pack))
    most = int(available_bytes() / 4 / each)
    if images is None:
        images = int(MOST_BYTES / each)
        if pack.manifest.encoding != "raw":
            images = min(images, MOST_DECODED)
    count = max(1, min(len(pack), most, images))
    if count == len(pack):
        return np.arange(count)
    runs = min(RUNS, count)
    firsts = np.arange(runs) * len(pack) // runs
    lengths = np.full(runs, count // runs) + (np.arange(runs) < count % runs)
    return np.concatenate([np.arange(first, first + n) for first, n in zip(firsts, lengths, strict=True)])
