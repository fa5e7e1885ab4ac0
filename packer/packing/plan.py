"""Plans the shards of a pack: its size, the inputs of each shard, and whether it fits on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.containers import open_container
from packer.containers.base import ShardSpec
from packer.errors import plural, printable, size_text
from packer.format.schema import ANNOTATION_FIELDS
from packer.images.base import OnAnimation
from packer.images.decode import Decoder
from packer.images.encode import Encoding
from packer.images.header import Mode
from packer.images.resize import Resize
from packer.packing.convert import UNREAD, MeasureJob, Recipe, rows_of
from packer.packing.options import BuildOptions
from packer.packing.space import check_space, free_bytes
from packer.packing.table import Inputs
from packer.packing.write_shard import ShardJob
from packer.samplers.order import derive, permutation
from packer.sources.archives.places import Archive
from packer.sources.paths import as_bytes
from packer.stores import clean_url, is_url

Measure = Callable[[MeasureJob], Sequence[tuple[int, int]]]
SAMPLED_IMAGES = 16
INDEX_ROW_BYTES = 100
JSON_BYTES = 195
"""Of an annotation in a container, without path and labels."""
NPY_HEADER_BYTES = 128
ANNOTATION_COPIES = 3  # in the container, in the index, and one for longer names: measured


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The plan of a build."""

    options: BuildOptions
    inputs: Inputs
    table: Any
    """The inputs in packing order (shuffled if requested)."""
    recipe: Recipe
    spec: ShardSpec
    cuts: tuple[int, ...]
    """Shard i takes the rows from cuts[i] to cuts[i + 1]."""
    shape: tuple[tuple[int, int, int] | None, str | None]
    """((height, width, channels), dtype) of every decoded image; None if they differ."""
    late_sizes: bool
    """Whether the sizes of images are read in the shards only, and the shape is None for that."""
    image_bytes: NDArray[np.int64]
    """Stored size of each image, in packing order."""
    pack_bytes: int
    """Exact for raw images, except for the container's overhead; else estimated from a sample."""
    source_bytes: int
    free_bytes: int

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.cuts) - 1

    @property
    def key_digits(self) -> int:
        """Digits of a key: eight, or more if the last number needs them."""
        return max(8, len(str(max(0, len(self.table) - 1))))

    def jobs(self, table: str, folder: str) -> list[ShardJob]:
        """Return one job per shard; `table` is the path of the written table of inputs."""
        allowed = len(self.table)  # all bad inputs are to be found
        if self.options.fail_fast:
            allowed = self.options.bad_allowed(self.inputs.asked) - self.inputs.bad
        bounds = zip(self.cuts[:-1], self.cuts[1:], strict=True)
        return [
            ShardJob(
                table=table,
                start=start,
                stop=stop,
                folder=folder,
                name=shard_name(self.options.container, number, self.shards),
                container=self.options.container,
                spec=replace(
                    self.spec,
                    planned_records=stop - start,
                    planned_bytes=int(self.image_bytes[start:stop].sum()),
                ),
                recipe=self.recipe,
                key_digits=self.key_digits,
                bad_allowed=allowed,
            )
            for number, (start, stop) in enumerate(bounds)
        ]

    @property
    def summary(self) -> str:
        """The plan in one line. Labels that were not found show as 0."""
        inputs, options = self.inputs, self.options
        about = "" if options.encode == "raw" else "about "
        shape, _ = self.shape
        sizes = "different sizes" if shape is None else f"{shape[1]}x{shape[0]}x{shape[2]}"
        sizes = "sizes read later" if self.late_sizes else sizes
        labels: tuple[tuple[int, str], ...] = (
            (len(inputs.classes), "class"),
            (inputs.boxes, "box"),
            (inputs.landmarks, "landmark"),
        )
        where = f" in {printable(options.scratch_folder)}" if options.to_store else ""
        if inputs.tags:
            labels = (*labels, (len(inputs.tags), "tag"))
        return (
            f"plan: {plural(len(self.table), 'image')}, {size_text(self.source_bytes)} -> "
            f"{printable(options.output)}: {about}{size_text(self.pack_bytes)} in {plural(self.shards, 'shard')} "
            f"({options.container}, {options.encode}, {sizes}), {size_text(self.free_bytes)} free{where}; "
            f"{', '.join(plural(count, noun) for count, noun in labels)}; "
            f"{inputs.bad} rejected, {len(inputs.skipped)} skipped"
        )

    def check_space(self) -> None:
        """Raise StorageError if the pack will not fit on the disk, unless ``--force`` is given."""
        if not self.options.force:
            smaller = "--resize" if self.options.encode != "raw" else "--encode jpeg or --resize"
            step = f"make it smaller with {smaller}, choose another disk with --out, or try it with --force"
            check_space(self.options, self.pack_bytes, self.shards, self.free_bytes, step)


def shard_name(container: str, number: int, shards: int) -> str:
    """Return the file name of the container of shard `number` of `shards`.

    A single LMDB shard is called data.mdb, so that `lmdb.open(PACK)` opens the directory.
    """
    if shards == 1 and container == "lmdb":
        return "data.mdb"
    return f"shard-{number:05d}{open_container(container).suffix}"


def recipe_of(options: BuildOptions, archives: tuple[Archive, ...]) -> Recipe:
    """Return the conversion of every image."""
    source, resize = options.source, None
    if options.resize is not None:
        resize = Resize.of(options.resize, options.fit, options.pad_value, options.interpolation)
    return Recipe(
        root=as_bytes(clean_url(source)) if is_url(source) else os.fsencode(os.path.abspath(source)),
        mode=cast(Mode, options.mode),
        decoder=cast(Decoder, options.decoder),
        max_pixels=options.max_pixels,
        resize=resize,
        encode=cast(Encoding, options.encode),
        quality=options.quality,
        archives=archives,
        on_animation=cast(OnAnimation, options.on_animation),
    )


def make_plan(options: BuildOptions, inputs: Inputs, measure: Measure) -> Plan:
    """Divide the inputs into shards of about ``--shard-size``, the same way for any number of workers.

    `measure` encodes a few images in a worker, because a decoder may crash.
    """
    recipe = recipe_of(options, inputs.archives)
    resize = recipe.resize
    table = inputs.table
    if options.shuffle is not None:
        table = table.take(pa.array(permutation(len(table), derive(options.shuffle))))
    facts = Facts(table, resize)
    image_bytes = facts.raw_bytes if options.encode == "raw" else _encoded_bytes(table, facts, recipe, measure)
    shape, dtype = facts.uniform()
    spec = ShardSpec(
        classes=inputs.classes,
        encoding=options.encode,
        shape=shape if options.encode == "raw" else None,
        dtype=dtype or "uint8",
        planned_records=len(table),
        planned_bytes=int(image_bytes.sum()),
    )
    return Plan(
        options=options,
        inputs=inputs,
        table=table,
        recipe=recipe,
        spec=spec,
        cuts=_cuts(image_bytes, options.shard_bytes),
        shape=(shape, dtype),
        late_sizes=facts.unknown,
        image_bytes=image_bytes,
        pack_bytes=stored_bytes(options.container, options.encode == "raw", image_bytes, table),
        source_bytes=int(facts.source_bytes.sum()),
        free_bytes=free_bytes(options),
    )


class Facts:
    """The sizes of all inputs as arrays."""

    def __init__(self, table: Any, resize: Resize | None) -> None:
        """Take the columns bytes, height, width, channels and wide of a table; the images will be resized."""
        names = ("bytes", "height", "width", "channels", "wide")
        columns = {name: table.column(name).to_numpy() for name in names}
        codes = table.column("code").to_numpy() if "code" in table.column_names else np.empty(0)  # packs have none
        self.unknown = resize is None and bool((codes == UNREAD).any())
        """Whether there are images whose headers are read later, with an effect on the shape."""
        self.source_bytes: NDArray[np.int64] = columns["bytes"]
        self.channels = columns["channels"]
        self.wide = columns["wide"]
        sizes = np.stack([columns["width"], columns["height"]], axis=1).astype(np.int64)
        if resize is not None and len(sizes):
            unique, where = np.unique(sizes, axis=0, return_inverse=True)
            sizes = np.array([resize.output_size(w, h) for w, h in unique.tolist()])[where.reshape(-1)]
        self.width, self.height = sizes[:, 0], sizes[:, 1]
        self.raw_bytes: NDArray[np.int64] = self.width * self.height * self.channels * np.where(self.wide, 2, 1)

    def uniform(self) -> tuple[tuple[int, int, int] | None, str | None]:
        """The shape and the dtype that all images share, None if they differ or are not known yet."""
        if not len(self.wide) or (self.wide != self.wide[0]).any():
            return None, None
        dtype = "uint16" if self.wide[0] else "uint8"
        if self.unknown or any((c != c[0]).any() for c in (self.height, self.width, self.channels)):
            return None, dtype
        return (int(self.height[0]), int(self.width[0]), int(self.channels[0])), dtype


def _encoded_bytes(table: Any, facts: Facts, recipe: Recipe, measure: Measure) -> NDArray[np.int64]:
    """Return the encoded size of each image: known for copies, else estimated from an even sample."""
    if recipe.encode == "copy":
        return facts.source_bytes
    drawn = np.unique(np.linspace(0, len(table) - 1, min(SAMPLED_IMAGES, len(table))).astype(int))
    sizes = measure(MeasureJob(tuple(rows_of(table.take(pa.array(drawn)))), recipe))
    encoded, raw = (sum(column) for column in zip(*sizes, strict=True)) if sizes else (1, 1)
    estimated: NDArray[np.int64] = np.ceil(facts.raw_bytes * (encoded / raw)).astype(np.int64)
    return estimated


def stored_bytes(name: str, raw: bool, image_bytes: NDArray[np.int64], table: Any) -> int:
    """Return the size of a pack: images, annotations and index as the container stores them.

    Args:
        name: The container.
        raw: Whether the images are stored as pixels.
        image_bytes: Stored size of each image.
        table: Its columns ``path`` and those of annotations count, as in the table of inputs and in an index.
    """
    container = open_container(name)
    header = NPY_HEADER_BYTES if raw else 0
    if hasattr(container, "stored_bytes") and len(table):
        mean_path, mean_labels = (
            sum(int(table.column(name).nbytes) for name in names) / len(table)
            for names in (("path",), [name for name in table.column_names if name in ANNOTATION_FIELDS])
        )
        note_bytes = JSON_BYTES + mean_path + (ANNOTATION_COPIES - 1) * mean_labels
        index_bytes = int(len(table) * (INDEX_ROW_BYTES + mean_path + mean_labels))
        return int(container.stored_bytes(image_bytes + header, note_bytes)) + index_bytes
    blocks = -(-(image_bytes + header) // container.block_bytes) * container.block_bytes
    annotations = sum(int(table.column(name).nbytes) for name in table.column_names if name in ANNOTATION_FIELDS)
    records = len(image_bytes) * (container.overhead_bytes + INDEX_ROW_BYTES)
    return int(blocks.sum()) + records + ANNOTATION_COPIES * annotations


def _cuts(image_bytes: NDArray[np.int64], shard_bytes: int | None) -> tuple[int, ...]:
    """Return the row numbers at which shards begin, and the end; shards have about the same size."""
    n = len(image_bytes)
    if n == 0:
        return (0, 0)
    ends = np.cumsum(image_bytes)
    total = int(ends[-1])
    shards = 1 if shard_bytes is None else min(n, max(1, -(-total // shard_bytes)))
    cuts = np.searchsorted(ends, [total * k / shards for k in range(1, shards)], side="left") + 1
    return tuple(int(c) for c in np.unique([0, *np.minimum(cuts, n), n]))
