"""Plans the shards of a pack: its size, the inputs of each shard, and whether it fits on the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packer.containers import open_container
from packer.containers.container import ShardSpec
from packer.errors import StorageError, UsageError, as_options, option, plural, printable, size_text
from packer.format.manifest import check_pixels
from packer.format.pack_paths import PARTIAL_SUFFIX
from packer.format.sidecar_list import FINGERPRINTS
from packer.images.decode import Decoder
from packer.images.header import Mode
from packer.images.image_headers import OnAnimation
from packer.images.masks import MaskValues
from packer.images.parts import BY_KIND, FactsFound, PartRecipe
from packer.images.resize import Encoding, TargetSize
from packer.model.annotation import PartSpec
from packer.model.fields import FIELD_NAMES, check_target_name
from packer.packing.build_options import BY_SIZE, DEFAULT_QUALITY, NOT_IN_SPLIT, BuildOptions, not_in_split
from packer.packing.input_table import Inputs
from packer.packing.journal import MOST_FINGERPRINTS
from packer.packing.make_record import UNREAD, MeasureJob, Recipe
from packer.packing.partition import pieces, rows_at
from packer.packing.publish import PACK
from packer.packing.tile_rows import packing_order, shares_of_images, sizes_in, whole_cuts, with_windows
from packer.packing.write_shard import ShardJob
from packer.samplers.order import permutation_function
from packer.sources.paths import as_bytes
from packer.stores import clean_url, is_url
from packer.system import usable_cores
from packer.system.storage import Spill

AT_ONCE = 1 << 17
DEFAULT_SHARD_BYTES, LARGE_SHARD_BYTES = 128 << 20, 1 << 30
LARGE_PACK_BYTES = 256 << 30
MOST_SHARDS = 16384
"""Linux lets a process map 65,530 files, and a reader maps two for each shard."""
MOST_RECORDS = 100_000
"""Of a shard: tiny images would otherwise all be in one, which one worker packs, and an interrupted build loses."""
INDEX_ROW_BYTES = 100
JSON_BYTES = 195
"""Of an annotation in a container, without path and labels."""
NPY_HEADER_BYTES = 128
ANNOTATION_COPIES = 3  # in the container, in the index, and one for longer names: measured


class InputSizes:
    """The sizes of all inputs as arrays."""

    def __init__(self, table: Any, resize: TargetSize | None) -> None:
        """Take the columns bytes, height, width, channels and wide of a table; the images will be resized."""
        names = ("bytes", "channels", "wide")
        columns = {name: table.column(name).to_numpy() for name in names}
        codes = table.column("code").to_numpy() if "code" in table.column_names else np.empty(0)  # packs have none
        self.unknown = resize is None and bool((codes == UNREAD).any())
        """Whether there are images whose headers are read later, with an effect on the shape."""
        self.source_bytes: NDArray[np.int64] = columns["bytes"]
        self.channels = columns["channels"]
        self.wide = columns["wide"]
        sizes = np.stack(sizes_in(table), axis=1)
        if resize is not None and len(sizes):
            unique, where = np.unique(sizes, axis=0, return_inverse=True)
            sizes = np.array([resize.output_size(w, h) for w, h in unique.tolist()])[where.reshape(-1)]
        self.width, self.height = sizes[:, 0], sizes[:, 1]
        self.raw_bytes: NDArray[np.int64] = self.width * self.height * self.channels * np.where(self.wide, 2, 1)

    def uniform(self) -> tuple[tuple[int, int, int] | None, str | None]:
        """Return the shape and the dtype that all images share, None if they differ or are not known yet."""
        if not len(self.wide) or (self.wide != self.wide[0]).any():
            return None, None
        dtype = "uint16" if self.wide[0] else "uint8"
        if self.unknown or any((c != c[0]).any() for c in (self.height, self.width, self.channels)):
            return None, dtype
        return (int(self.height[0]), int(self.width[0]), int(self.channels[0])), dtype


class AllFacts(NamedTuple):
    """What a plan needs of the `InputSizes` of a long table."""

    unknown: bool
    source_bytes: int
    image_bytes: NDArray[np.int64]
    """Stored size of each image."""
    shape: tuple[tuple[int, int, int] | None, str | None]
    """As of `InputSizes.uniform`."""
    pixels: int
    """Of all images, as they are stored."""


def _facts_of(table: Any, recipe: Recipe, ratio: Callable[[], float]) -> AllFacts:
    """Read a table in pieces; `ratio` estimates the encoded bytes per byte of pixels, if images are encoded."""
    estimated = ratio() if recipe.encode not in ("raw", "copy") else 1.0
    unknown, source_bytes, pixels, sizes = False, 0, 0, Spill()
    uniform: set[tuple[tuple[int, int, int] | None, str | None]] = set()
    for _, piece in pieces(table):
        facts = InputSizes(piece, recipe.resize)
        unknown |= facts.unknown
        source_bytes += int(facts.source_bytes.sum())
        pixels += int((facts.width * facts.height).sum())
        uniform.add(facts.uniform())
        stored = facts.source_bytes if recipe.encode == "copy" else facts.raw_bytes
        sizes.append((stored if estimated == 1 else np.ceil(stored * estimated).astype(np.int64)).data)
    dtypes = {dtype for _, dtype in uniform}
    shape = uniform.pop() if len(uniform) == 1 else (None, dtypes.pop() if len(dtypes) == 1 else None)
    return AllFacts(unknown, source_bytes, np.frombuffer(sizes.finish(), np.int64), shape, pixels)


def permuted(values: NDArray[np.int64], order: tuple[int, int]) -> NDArray[np.int64]:
    """Return values in a packing order."""
    to, result = permutation_function(*order), Spill()
    for start, part in _parts(values):
        result.append(values[to(np.arange(start, start + len(part)))].data)
    return np.frombuffer(result.finish(), np.int64)


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
    rows = len(image_bytes)
    path_bytes, label_bytes = (
        sum(int(table.column(name).nbytes) for name in names)
        for names in (("path",), [name for name in table.column_names if name in FIELD_NAMES])
    )
    if hasattr(container, "stored_bytes") and rows:
        mean_path, mean_labels = path_bytes / rows, label_bytes / rows
        note_bytes = JSON_BYTES + mean_path + (ANNOTATION_COPIES - 1) * mean_labels
        index_bytes = int(rows * (INDEX_ROW_BYTES + mean_path + mean_labels))
        sizes = (int(container.stored_bytes(part + header, note_bytes)) for _, part in _parts(image_bytes))
        return sum(sizes) + index_bytes
    blocks = sum(int((-(-(part + header) // container.block_bytes)).sum()) for _, part in _parts(image_bytes))
    records = rows * (container.overhead_bytes + INDEX_ROW_BYTES)
    return blocks * container.block_bytes + records + ANNOTATION_COPIES * label_bytes


def _parts(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (first number, values): what is computed of all of them does not fit into memory."""
    return ((start, values[start : start + AT_ONCE]) for start in range(0, len(values), AT_ONCE))


def default_shard_bytes(image_bytes: int) -> int:
    """Return the size of the shards of a pack with so many bytes of images, if none is chosen."""
    size = DEFAULT_SHARD_BYTES if image_bytes < LARGE_PACK_BYTES else LARGE_SHARD_BYTES
    while size * MOST_SHARDS < image_bytes:
        size *= 2
    return size


def cuts_of(image_bytes: NDArray[np.int64], shard_bytes: int | None) -> tuple[int, ...]:
    """Return the row numbers at which shards begin, and the end; shards have about the same size.

    One that would have more than MOST_RECORDS is divided. With `shard_bytes` None, there is only one.
    """
    n = len(image_bytes)
    if n == 0:
        return (0, 0)
    total = int(image_bytes.sum())
    shards = 1 if shard_bytes is None else min(n, max(1, -(-total // shard_bytes)))
    targets = np.array([total * k / shards for k in range(1, shards)])
    cuts, done, before = {0, n}, 0, 0
    for start, sizes in _parts(image_bytes):
        ends = np.cumsum(sizes) + before
        before = int(ends[-1])
        here = int(np.searchsorted(targets, before, side="right"))
        cuts.update((np.searchsorted(ends, targets[done:here], side="left") + start + 1).tolist())
        done = max(done, here)
    by_size = sorted(cut for cut in cuts if cut <= n)
    return tuple(by_size if shard_bytes is None else _divide_large_shards(by_size))


def _divide_large_shards(cuts: list[int]) -> Iterator[int]:
    """Yield the cuts, and those that divide shards of more than MOST_RECORDS evenly."""
    for start, stop in pairwise(cuts):
        parts = -(-(stop - start) // MOST_RECORDS)
        yield from (start + (stop - start) * part // parts for part in range(parts))
    yield cuts[-1]


def check_space(options: BuildOptions, pack_bytes: int, shards: int, free: int, step: str) -> None:
    """Raise StorageError if a pack, or the unfinished shards of one that goes to a store, will not fit on the disk.

    Args:
        options: The options of the build.
        pack_bytes: Size of the pack.
        shards: Number of its shards.
        free: What `free_bytes` returned.
        step: What to do about a pack that is too large.
    """
    where, needed, what = options.output, pack_bytes, "the pack needs"
    if options.to_store:
        workers = options.workers or usable_cores()
        needed = pack_bytes * min(shards, 2 * workers) // max(1, shards)  # as many are uploaded as are made
        where, what = options.scratch_folder, "unfinished shards need"
        step = "choose another disk with --scratch, use fewer --workers, or make shards smaller with --shard-size"
    if needed > free:
        raise StorageError(where, f"{what} about {size_text(needed)}, but only {size_text(free)} are free", step)


def _bytes_in(partial: str) -> int:
    """Return the bytes written by an unfinished build, which are reused or removed."""
    total = 0
    for folder, _, names in os.walk(partial):  # it has several packs if it is built in parts
        for name in names if os.path.basename(folder) == PACK else ():
            with suppress(OSError):
                total += os.path.getsize(os.path.join(folder, name))
    return total


def free_bytes(options: BuildOptions) -> int:
    """Return the bytes that a new pack may take on its disk, or in the scratch folder if it goes to a store.

    What an unfinished pack there has counts as free.
    """
    output = os.path.abspath(options.output)
    folder = options.scratch_folder if options.to_store else os.path.dirname(output)
    unfinished = 0 if options.to_store else _bytes_in(f"{output}{PARTIAL_SUFFIX}")
    try:
        return shutil.disk_usage(folder).free + unfinished
    except FileNotFoundError:
        raise UsageError(folder, "no such folder for the pack", "create it, or choose another --out") from None
    except OSError as error:
        raise StorageError(folder, error.strerror or str(error)) from None


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
    first_key: int = 0
    """Number of the first record."""
    first_shard: int = 0
    """Number of the first shard."""

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
        return max(8, len(str(max(0, self.first_key + self.inputs.rows - 1))))

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
                name=shard_name(self.options.container, number, self.first_shard + self.shards),
                container=self.options.container,
                spec=replace(
                    self.spec,
                    classes=(),  # they are in the table
                    planned_records=stop - start,
                    planned_bytes=int(self.image_bytes[start:stop].sum()),
                ),
                recipe=self.recipe,
                is_shared=self.options.are_windows,
                key_digits=self.key_digits,
                first_key=self.first_key,
                bad_allowed=allowed,
            )
            for number, (start, stop) in enumerate(bounds, self.first_shard)
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
            (inputs.rows, "image" if options.tile is None else "tile"),
            (len(inputs.classes), "class"),
            (inputs.count("boxes"), "box"),
            (inputs.count("landmarks"), "landmark"),
            (len(inputs.tags), "tag"),
            (inputs.count("value"), "value"),
            *((inputs.count_of(name), name) for name in inputs.parts),
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
        found += [
            f"{name} has {facts.text}: all are packed as uint16, as they are; are they in one unit?"
            for name, facts in self.inputs.part_facts.items()
            if self.inputs.parts[name].kind == "map" and {"uint8", "uint16"} <= {dtype for dtype, _ in facts}
        ]
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


def recipe_of(options: BuildOptions, inputs: Inputs) -> Recipe:
    """Return the conversion of every image."""
    source = options.source
    return Recipe(
        root=as_bytes(clean_url(source)) if is_url(source) else os.fsencode(os.path.abspath(source)),
        mode=cast(Mode, options.mode),
        decoder=cast(Decoder, options.decoder),
        max_pixels=options.max_pixels,
        resize=options.target_size(),
        encode=cast(Encoding, options.encode),
        quality=options.quality,
        archives=inputs.archives,
        on_animation=cast(OnAnimation, options.on_animation),
        parts=tuple(
            part_recipe(
                spec, options, inputs.mask_values.get(name, MaskValues()), inputs.part_facts.get(name, FactsFound())
            )
            for name, spec in inputs.parts.items()
        ),
        fingerprints=not (options.no_fingerprints or FINGERPRINTS in inputs.parts or inputs.rows > MOST_FINGERPRINTS),
    )


def part_recipe(spec: PartSpec, options: BuildOptions, values: MaskValues, found: FactsFound) -> PartRecipe:
    """Return the conversion of the files of a part; `found` is what they are.

    Raises:
        UsageError: They do not fit together, or cannot have the value that is unknown.
    """
    kind = BY_KIND[spec.kind]
    recipe = PartRecipe(
        spec, "", values, cast(Mode, options.mode), cast(Decoder, options.decoder), options.quality, options.max_pixels
    )
    spec = kind.spec(found, recipe)
    try:
        if kind.of_pixels and (found or recipe.spec.dtype):  # else all files are bad, which is said
            check_pixels(spec)
    except ValueError as error:
        raise UsageError(spec.name, str(error), "choose another value of what is unknown") from None
    asked = options.mask_encode if spec.kind == "mask" else None
    return replace(recipe, spec=spec, encode=asked or kind.encoding(options.container, options.encode, spec))


def make_plan(options: BuildOptions, inputs: Inputs, measure: Measure) -> Plan:
    """Divide the inputs into shards of about ``--shard-size``, the same way for any number of workers.

    `measure` encodes a few images in a worker, because a decoder may crash.
    """
    recipe = recipe_of(options, inputs)
    for part in recipe.parts:
        try:
            check_target_name(part.spec.name, inputs.fields)
        except ValueError as error:
            raise UsageError(option("part", part.spec.name), str(error), "choose another name") from None
    if options.are_windows and recipe.parts:
        step = f"store each tile: {option('encode', 'jpeg')}, png or raw"
        raise UsageError(option("tile"), f"cannot cut the {recipe.parts[0].spec.name} of images that are copied", step)
    order, firsts = packing_order(inputs.file, options.shuffle, options.tile is not None)
    table, rows = inputs.table, inputs.rows
    facts = _facts_of(table, recipe, lambda: _ratio(table, order, recipe, measure))
    image_bytes = facts.image_bytes if order is None else permuted(facts.image_bytes, order)
    if options.are_windows:
        image_bytes = shares_of_images(image_bytes, firsts)
    if options.shard_bytes == BY_SIZE:
        options = replace(options, shard_bytes=default_shard_bytes(int(image_bytes.sum())))
    cuts = cuts_of(image_bytes, options.shard_bytes)
    shape, dtype = facts.shape
    spec = ShardSpec(
        classes=inputs.classes,
        encoding=recipe.encode,
        shape=shape if options.encode == "raw" else None,
        dtype=dtype or "uint8",
        planned_records=rows,
        planned_bytes=int(image_bytes.sum()),
        parts=tuple(part.spec for part in recipe.parts),
    )
    return Plan(
        options=options,
        inputs=inputs,
        order=order,
        recipe=recipe,
        spec=spec,
        cuts=whole_cuts(cuts, firsts, rows) if options.are_windows else cuts,
        shape=facts.shape,
        late_sizes=facts.unknown,
        image_bytes=image_bytes,
        pack_bytes=stored_bytes(options.container, options.encode == "raw", image_bytes, table)
        + sum(part.bytes_of(facts.pixels) for part in recipe.parts),
        source_bytes=int(table.column("bytes").to_numpy()[firsts].sum()) if len(firsts) else facts.source_bytes,
        free_bytes=free_bytes(options),
    )


def _ratio(table: Any, order: tuple[int, int] | None, recipe: Recipe, measure: Measure) -> float:
    """Return the encoded bytes per byte of pixels, of an even sample."""
    drawn = np.unique(np.linspace(0, len(table) - 1, min(SAMPLED_IMAGES, len(table))).astype(int))
    rows = rows_at(table, drawn if order is None else permutation_function(*order)(drawn))
    sizes = measure(MeasureJob(tuple(with_windows(rows)), recipe))
    encoded, raw = (sum(column) for column in zip(*sizes, strict=True)) if sizes else (1, 1)
    return encoded / raw
