"""Plans the shards of a pack: its size, the inputs of each shard, and whether it fits on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packer.containers import open_container
from packer.containers.base import ShardSpec
from packer.errors import as_options, option, plural, printable, size_text
from packer.images.base import OnAnimation
from packer.images.decode import Decoder
from packer.images.encode import Encoding
from packer.images.header import Mode
from packer.images.resize import Resize
from packer.packing.convert import MeasureJob, Recipe, rows_of
from packer.packing.options import BY_SIZE, DEFAULT_QUALITY, NOT_IN_SPLIT, BuildOptions, not_in_split
from packer.packing.rows import rows_at
from packer.packing.sizes import AllFacts, cuts_of, default_shard_bytes, permuted, stored_bytes
from packer.packing.space import check_space, free_bytes
from packer.packing.table import Inputs
from packer.packing.write_shard import ShardJob
from packer.samplers.order import derive, shuffled
from packer.sources.archives.places import Archive
from packer.sources.paths import as_bytes
from packer.stores import clean_url, is_url

Measure = Callable[[MeasureJob], Sequence[tuple[int, int]]]
SAMPLED_IMAGES = 16
LARGE_BYTES, LARGE_TIMES = 1 << 28, 3.0
"""A raw pack of at least this size, and so many times that of its files, comes with a warning."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The plan of a build."""

    options: BuildOptions
    inputs: Inputs
    order: tuple[int, int] | None
    """The arguments of `shuffled` for the packing order; None: that of the table of inputs."""
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
    def table(self) -> Any:
        """The inputs, in the order of the source."""
        return self.inputs.table

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.cuts) - 1

    @property
    def key_digits(self) -> int:
        """Digits of a key: eight, or more if the last number needs them."""
        return max(8, len(str(max(0, self.inputs.rows - 1))))

    def jobs(self, folder: str) -> list[ShardJob]:
        """Return one job per shard, to be written into this folder."""
        allowed = self.inputs.rows  # all bad inputs are to be found
        if self.options.fail_fast:
            allowed = self.options.bad_allowed(self.inputs.asked) - self.inputs.bad
        bounds = zip(self.cuts[:-1], self.cuts[1:], strict=True)
        return [
            ShardJob(
                table=self.inputs.file,
                order=self.order,
                start=start,
                stop=stop,
                folder=folder,
                name=shard_name(self.options.container, number, self.shards),
                container=self.options.container,
                spec=replace(
                    self.spec,
                    classes=(),  # they are in the table
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
        """The plan in one line: what was found, what becomes of it. What there is none of is left out."""
        inputs, options = self.inputs, self.options
        about = "" if options.encode == "raw" else "about "
        shape, _ = self.shape
        sizes = "different sizes" if shape is None else f"{shape[1]}x{shape[0]}x{shape[2]}"
        sizes = "sizes read later" if self.late_sizes else sizes
        counts = (
            (inputs.rows, "image"),
            (len(inputs.classes), "class"),
            (inputs.count("boxes"), "box"),
            (inputs.count("landmarks"), "landmark"),
            (len(inputs.tags), "tag"),
        )
        there = ", ".join(plural(count, noun) for count, noun in counts if count)
        chosen = f" ({printable(inputs.chosen)})" if inputs.chosen else ""
        skipped = len(inputs.skipped) - self.elsewhere
        others = ((inputs.bad, "rejected"), (skipped, "skipped"), (self.elsewhere, NOT_IN_SPLIT))
        left_out = "".join(f", {count:,} {what}" for count, what in others if count)
        text = (
            f"plan: {there}{chosen}, {size_text(self.source_bytes)}{left_out} -> "
            f"{printable(options.output)}: {about}{size_text(self.pack_bytes)} in {plural(self.shards, 'shard')} "
            f"({options.container}, {options.encode}, {sizes})"
        )
        if self.pack_bytes > self.free_bytes // 4:
            where = f" in {printable(options.scratch_folder)}" if options.to_store else ""
            text += f", {size_text(self.free_bytes)} free{where}"
        return text

    @property
    def elsewhere(self) -> int:
        """How many of the images that are left out are only not in this split."""
        return self.inputs.skipped.counts[not_in_split(self.options.one_split or "")]

    @property
    def warnings(self) -> list[str]:
        """What the user may not have meant: options without effect, and raw photos, which multiply the disk."""
        found, options, encode = [], self.options, option("encode")
        if options.quality != DEFAULT_QUALITY and options.encode != "jpeg":
            found.append(
                f"{as_options(option('quality', options.quality))} has no effect: it is for --encode jpeg, "
                f"not for {options.encode}"
            )
        times = self.pack_bytes / max(1, self.source_bytes)
        is_large = self.pack_bytes >= LARGE_BYTES and times >= LARGE_TIMES
        if is_large and options.encode == "raw" and options.resize is None:
            found.append(
                f"raw pixels take {times:.0f} times the space of the files; make them smaller with --resize, or choose "
                f"{encode} jpeg, or {encode} copy, which keeps each file"
            )
        return found

    def check_space(self) -> None:
        """Raise StorageError if the pack will not fit on the disk, unless ``--force`` is given."""
        if not self.options.force:
            smaller = option("resize")
            if self.options.encode == "raw":
                smaller = f"{option('encode', 'jpeg')} or {smaller}"
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
    table, rows = inputs.table, inputs.rows
    order = None if options.shuffle is None or not rows else (rows, derive(options.shuffle))
    facts = AllFacts(table, recipe, lambda: _ratio(table, order, recipe, measure))
    image_bytes = facts.image_bytes if order is None else permuted(facts.image_bytes, order)
    if options.shard_bytes == BY_SIZE:
        options = replace(options, shard_bytes=default_shard_bytes(int(image_bytes.sum())))
    shape, dtype = facts.uniform()
    spec = ShardSpec(
        classes=inputs.classes,
        encoding=recipe.encode,
        shape=shape if options.encode == "raw" else None,
        dtype=dtype or "uint8",
        planned_records=rows,
        planned_bytes=int(image_bytes.sum()),
    )
    return Plan(
        options=options,
        inputs=inputs,
        order=order,
        recipe=recipe,
        spec=spec,
        cuts=cuts_of(image_bytes, options.shard_bytes),
        shape=(shape, dtype),
        late_sizes=facts.unknown,
        image_bytes=image_bytes,
        pack_bytes=stored_bytes(options.container, options.encode == "raw", image_bytes, table),
        source_bytes=facts.source_bytes,
        free_bytes=free_bytes(options),
    )


def _ratio(table: Any, order: tuple[int, int] | None, recipe: Recipe, measure: Measure) -> float:
    """Return the encoded bytes per byte of pixels, of an even sample."""
    drawn = np.unique(np.linspace(0, len(table) - 1, min(SAMPLED_IMAGES, len(table))).astype(int))
    rows = rows_at(table, drawn if order is None else shuffled(*order)(drawn))
    sizes = measure(MeasureJob(tuple(rows_of(rows)), recipe))
    encoded, raw = (sum(column) for column in zip(*sizes, strict=True)) if sizes else (1, 1)
    return encoded / raw
