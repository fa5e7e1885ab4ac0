"""The options of a build, validated before any work starts."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from packer.containers import container_of
from packer.errors import UsageError, option, printable
from packer.packing.option_table import TABLE, bad_allowed, is_number, is_whole
from packer.sources.source import HAVE_COLUMNS
from packer.stores import clean_url, is_url

if TYPE_CHECKING:
    from packer.images.resize import TargetSize
    from packer.model.tiles import Tiling

EXPECTED = {
    "str": ("text", "write it in quotes"),
    "int": ("a whole number", "write it without quotes"),
    "float": ("a number", "write it without quotes"),
    "bool": ("True or False", "write one of them"),
    "tuple": ("a text, or a list of texts", 'write labels="coco", or labels=["voc", "list:more.csv"]'),
}
"""Type -> what a value must be, and what to write; options may have their own."""


def typed_option(name: str, kind: str, value: Any) -> Any:
    """Return the value of an option as its annotation says, of what people write: ``resize=64``, ``max_bad=0.01``.

    Args:
        name: The option.
        kind: Its annotation, such as ``str | None``.
        value: What was given.

    Raises:
        UsageError: It can mean nothing, or several things.
    """
    if value is None and "None" in kind:
        return None
    row = TABLE[name]
    if kind.startswith("tuple"):
        several = (value,) if isinstance(value, str) else value
        if isinstance(several, list | tuple) and all(isinstance(one, str) for one in several):
            return tuple(several)
    elif kind.startswith("str"):
        if isinstance(value, str | os.PathLike):
            return os.fsdecode(value)
        if (text := row.typed(value)) is not None:
            return text
    elif kind.startswith("bool") and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    elif kind.startswith("float") and is_number(value):
        return value
    elif kind.startswith("int") and (is_whole(value) or (is_number(value) and value == int(value))):
        return int(value)
    what, step = row.expected or next(EXPECTED[start] for start in EXPECTED if kind.startswith(start))
    raise UsageError(row.label, f"must be {what}, got {value!r}", step)


NO_BAD = "0"
ALL_SPLITS = "all"
NOT_IN_SPLIT = "not in this split"
"""What a count says of images that are skipped for `not_in_split` alone."""
JPEG_ENCODINGS = ("jpeg", "copy")
"""Encodings of a pack that may have JPEGs."""
DEFAULT_CONTAINER = "lmdb"
DEFAULT_QUALITY = 90
BY_SIZE = 0
"""As `shard_bytes`: the plan chooses."""
DEFAULT_MAX_PIXELS = 64_000_000
DEFAULT_DECODE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of `packer build`.

    Args:
        source: Folder, zip or tar of images and labels, or a folder in an archive; or their URL in an object store.
        out: Path of the new pack, or its URL in a store (docs/remote.md). None: NAME.FORMAT beside the source, with
            `split` NAME-SPLIT.FORMAT.
        format: One of `packer.containers.CONTAINERS`. None: by the extension of `out`, else lmdb; see `container`.
        labels: Kinds of labels (docs/labels.md); the annotations of an image are merged.
        columns: The columns of each list, or once for all of them.
        classes: File with the class names in id order, one per line; or a pack, whose classes are used.
        map: New names of classes, each text ``old,old=new``; or a file of such lines, or of YAML ``old: new``, which is
            read at once.
        drop_class: Classes to leave out, as `map` calls them; in each text names with commas between.
        only_class: The classes to keep, in the same form.
        single_class: The name of all classes.
        split: Pack only this split; class ids are those of all splits together. ``all`` packs all as one, which
            `build_pack` does anyway.
        include: File that lists the images to pack: one path, glob, key of the pack `like`, or name per line.
        exclude: File that lists images to skip, in the same form.
        mask: Where the masks of the images are: a folder, or a pattern with {dir}, {stem} and {name}. None: as `labels`
            say.
        part: What else images have, each as ``NAME=WHERE:KIND``: where its files are, as for `mask`, and what they
            are: mask, map, image, array, text or json.
        mask_values: What the pixels of masks mean: ids, binary, ``colors:FILE``, ``map:FILE`` or ``panoptic:FILE``.
            None: what the files beside them say, else ids.
        ignore_id: The value of pixels that are of no class. None: 255, unless it is a class.
        mask_encode: How masks are stored: raw, zstd or png. None: as the images and the container want them.
        missing_labels: An image without a label: error (it is bad), empty (it has no objects) or skip.
        like: The pack whose keys `include` and `exclude` may name; `options_like` takes its options.
        resize: Size of the packed images in pixels, ``N`` or ``WxH``. None: as they are.
        fit: How to reach that size: stretch, short, long, crop or pad.
        pad_value: Gray level of the border that pad adds, 0 to 255. None: 0, black.
        interpolation: The filter, area or bilinear. None: area.
        tile: Size of the tiles that each image is cut into, ``N`` or ``WxH``; they are packed, and resized, in its
            place. None: whole images.
        overlap: Share of the sides of a tile that it has in common with the next one. None: 0.2.
        min_visible: An object is in a tile that has at least this share of its area. None: 0.1.
        encode: How images are stored: raw, jpeg, png, bmp, or copy (each file's bytes). None: raw if they are resized
            or all have one size, else copy; see `with_encoding`.
        quality: JPEG quality, 1 to 100.
        mode: rgb, gray, or unchanged, which keeps alpha and 16 bits.
        decoder: JPEG decoder: auto, simplejpeg, opencv or jpeg4py; or lenient, which also takes damaged images of any
            format and lists them.
        on_animation: An animation, or several pages: fail (it is bad) or first (its first frame is packed).
        max_pixels: Larger images are bad, and not decoded.
        shard_bytes: Approximate bytes of images per shard, as they are stored; a shard has at most 100,000 images.
            None: a single shard. 0: 128 MiB; for packs of 256 GiB and more 1 GiB, doubled until there are at most
            16,384 shards.
        shuffle: Seed of a random packing order. None: by path.
        workers: Number of worker processes. None: the number of usable cores.
        engine: Where they run: local, ray[:ADDRESS], dask[:SCHEDULER], or MODULE:FUNCTION, which returns an executor.
        job: Pack only the shards of one part, ``K/N`` from ``1/N`` to ``N/N``.
        finish: Publish the pack whose parts are packed.
        max_bad: Maximum number (``5``) or share (``0.5%``) of bad inputs to skip.
        on_bad: fail follows `max_bad`; skip skips every bad input.
        quarantine: Folder for rejected.tsv, the list of bad inputs.
        decode_timeout: Maximum seconds to decode an image. None: no limit.
        boxes: Boxes outside the image or without area: fail, clip or drop.
        fail_fast: Stop as soon as there are too many bad inputs, instead of finding all of them first.
        force: Build even if the pack is not expected to fit on the disk.
        rle: How masks of run lengths (COCO) are kept without `instance_masks`: as text, or also as polygons.
        instance_masks: Pack a mask of each object in place of polygons and run lengths.
        overwrite: Replace an existing pack.
        follow_links: Follow symlinks to folders outside the source.
        inventory: File that lists the objects of a source in an object store, which is then not listed: Parquet or
            CSV with the columns key and size, or a name per line.
        scratch: Folder for unfinished shards if `out` is a URL. None: that for temporary files.
        recheck: Read finished shards again to verify them: those of a build to a URL that is resumed, instead of asking
            the store for their versions. With `finish`, whose shards are always verified, also read the images again.
        jpeg_index: Make an index of the JPEGs with packer-fast: ``row``, an entry per row of blocks, or ``4``.
        no_fingerprints: Make no fingerprints of the images, which `packer stats` needs to find near duplicates and odd
            images without reading them again.

    Raises:
        UsageError: A value is out of range, or two options exclude each other.
    """

    source: str
    out: str | None = None
    format: str | None = None
    labels: tuple[str, ...] = ("auto",)
    columns: tuple[str, ...] = ()
    classes: str | None = None
    map: tuple[str, ...] = ()
    drop_class: tuple[str, ...] = ()
    only_class: tuple[str, ...] = ()
    single_class: str | None = None
    split: str | None = None
    include: str | None = None
    exclude: str | None = None
    mask: str | None = None
    part: tuple[str, ...] = ()
    mask_values: str | None = None
    ignore_id: int | None = None
    mask_encode: str | None = None
    missing_labels: str = "error"
    like: str | None = None
    resize: str | None = None
    fit: str | None = None
    pad_value: int | None = None
    interpolation: str | None = None
    tile: str | None = None
    overlap: float | None = None
    min_visible: float | None = None
    encode: str | None = None
    quality: int = DEFAULT_QUALITY
    mode: str = "rgb"
    decoder: str = "auto"
    on_animation: str = "fail"
    max_pixels: int = DEFAULT_MAX_PIXELS
    shard_bytes: int | None = BY_SIZE
    shuffle: int | None = None
    workers: int | None = None
    engine: str = "local"
    job: str | None = None
    finish: bool = False
    max_bad: str = NO_BAD
    on_bad: str = "fail"
    quarantine: str | None = None
    decode_timeout: float | None = DEFAULT_DECODE_TIMEOUT_S
    boxes: str = "fail"
    fail_fast: bool = False
    force: bool = False
    rle: str = "text"
    instance_masks: bool = False
    overwrite: bool = False
    follow_links: bool = False
    inventory: str | None = None
    scratch: str | None = None
    recheck: bool = False
    jpeg_index: str | None = None
    no_fingerprints: bool = False

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            value = TABLE[name].checked(typed_option(name, kind, getattr(self, name)))
            object.__setattr__(self, name, value)
        if self.encode is None and self.resize is not None:
            object.__setattr__(self, "encode", "raw")
        if self.labels != ("auto",):
            from packer.sources import known_kind

            object.__setattr__(self, "labels", tuple(map(known_kind, self.labels)))
        if self.map or self.drop_class or self.only_class or self.single_class is not None:
            from packer.packing.class_map import ClassMap, map_texts

            object.__setattr__(self, "map", map_texts(self.map))
            ClassMap.of(self)  # raises UsageError
        for rule in RULES:
            rule(self)

    @property
    def plans_without_headers(self) -> bool:
        """Whether shards can be planned from the sizes of files: of copies, or of images resized to one shape."""
        if self.mode == "unchanged" or self.decoder == "lenient" or self.tile is not None:
            return False
        target = self.target_size()
        return self.encode == "copy" if target is None else target.fit in ("stretch", "crop", "pad")

    def target_size(self) -> TargetSize | None:
        """Return how images are resized; None if they are not. Raise UsageError if the size cannot be reached so."""
        from packer.images.resize import TargetSize

        if self.resize is None:
            return None
        return TargetSize.of(self.resize, self.fit, self.pad_value, self.interpolation)

    def tiling(self) -> Tiling | None:
        """Return how images are cut into tiles; None if they are not. Raise UsageError for a size that is none."""
        if self.tile is None:
            return None
        from packer.images.resize import parse_size
        from packer.model.tiles import DEFAULT_MIN_VISIBLE, DEFAULT_OVERLAP, Tiling

        overlap = DEFAULT_OVERLAP if self.overlap is None else self.overlap
        min_visible = DEFAULT_MIN_VISIBLE if self.min_visible is None else self.min_visible
        return Tiling(*parse_size(self.tile, "tile"), overlap, min_visible)

    @property
    def are_windows(self) -> bool:
        """Whether whole images are stored, once, and the tiles are windows on them."""
        return self.tile is not None and self.encode == "copy"

    def with_encoding(self, same_size: bool) -> BuildOptions:
        """Return the options with `encode` chosen if it was not given.

        Args:
            same_size: Whether the images to pack all have the same width and height.
        """
        return self if self.encode is not None else replace(self, encode=default_encoding(same_size, self.tile))

    @property
    def one_split(self) -> str | None:
        """The split to pack; None for all images."""
        return None if self.split == ALL_SPLITS else self.split

    @property
    def one_columns(self) -> str | None:
        """The columns of all lists, if they are given once."""
        return self.columns[0] if len(self.columns) == 1 else None

    def bad_allowed(self, found: int) -> int:
        """Return how many of `found` inputs may be bad."""
        return found if self.on_bad == "skip" else bad_allowed(self.max_bad, found)

    @property
    def container(self) -> str:
        """The container of the shards: ``--format``, else by the extension of ``--out``, else lmdb."""
        return self.format or container_of(self.out) or DEFAULT_CONTAINER

    @property
    def to_store(self) -> bool:
        """Whether the pack goes to a store."""
        return self.out is not None and is_url(self.out)

    @property
    def scratch_folder(self) -> str:
        """The folder for unfinished shards of a pack that goes to a store. Raises UsageError if it is missing."""
        folder = os.path.abspath(self.scratch or tempfile.gettempdir())
        if not os.path.isdir(folder):
            raise UsageError(folder, "no such folder for unfinished shards", "create it, or choose another --scratch")
        return folder

    @property
    def output(self) -> str:
        """The pack's directory: ``--out``, else NAME.CONTAINER or NAME-SPLIT.CONTAINER beside the source."""
        if self.out is not None:
            return clean_url(self.out) if self.to_store else self.out.rstrip("/") or self.out
        from packer.sources.paths import archive_of, archive_stem

        say_where = "say where: --out=PACK"
        if is_url(self.source):
            raise UsageError(option("out"), "a source in an object store needs an output", say_where)
        source = os.path.normpath(self.source)
        if os.path.basename(source) in ("", ".", ".."):
            source = os.path.abspath(source)
        if os.path.basename(source) == "":
            raise UsageError(option("out"), "a source without a name needs an output", say_where)
        archive, inside = archive_of(os.fsencode(source))
        if inside:
            source = os.path.join(os.path.dirname(os.fsdecode(archive)), os.path.basename(source))
        stem = archive_stem(archive) if archive and not inside else None
        split = "" if self.one_split is None else "-" + self.one_split.strip("/").replace("/", "-")
        return f"{os.fsdecode(stem or source)}{split}.{self.container}"


def check_extension(out: str, before: str = "", container: str | None = None) -> None:
    """Raise UsageError if the name of a pack has the extension of a file format that is not a container.

    Others are part of a name: `.v2`, `.2026-01`, `.pack`.

    Args:
        out: The path of the pack.
        before: What is written before it.
        container: The container of the pack, if nobody can choose it; empty: not known yet.
    """
    name, extension = os.path.splitext(out.rstrip("/"))
    if container_of(out) is None and re.fullmatch(r"\.(?!pack$)(?:[A-Za-z]{2,7}|7z)", extension):
        problem = f"{extension} is not the extension of a format that packer writes"
        if container is None:
            raise UsageError(out, problem, f"write {before}{name}.{DEFAULT_CONTAINER}, or choose a --format")
        raise UsageError(out, problem, f"write {before}{name}{container and f'.{container}'}")


def not_in_split(split: str) -> str:
    """Return the reason for which an image of another split is skipped."""
    return f"not in split {split}"


def default_encoding(same_size: bool, tile: str | None = None) -> str:
    """Return how images are stored if ``--encode`` is not given: raw if the packed images all have the same size.

    Others are copied: as pixels they would take a multiple of the space, and a batch could not be gathered of them.
    """
    return "raw" if same_size and tile is None else "copy"


def _names_its_places(options: BuildOptions) -> None:
    for name in ("source", "out", "quarantine"):
        if getattr(options, name) == "":
            raise UsageError(TABLE[name].label, "is empty", "name a folder")


def _inventory_is_of_a_store(options: BuildOptions) -> None:
    if options.inventory is not None and not is_url(options.source):
        raise UsageError(option("inventory"), "is for a source in an object store", "leave it out")


def _scratch_is_for_a_store(options: BuildOptions) -> None:
    if options.scratch is not None and not options.to_store:
        raise UsageError(option("scratch"), "is for builds to a store", "leave it out, or give a URL as --out")


def _recheck_is_for_what_is_not_verified(options: BuildOptions) -> None:
    if options.recheck and not options.to_store and not options.finish:
        problem = "is for builds to a store, and for --finish"
        raise UsageError(option("recheck"), problem, "leave it out: other builds verify their finished shards anyway")


def _extension_means_the_format(options: BuildOptions) -> None:
    if options.format is None:
        check_extension(options.out or "", f"{option('out')}=")
    elif (meant := container_of(options.out)) not in (None, options.format):
        name = printable(options.out or "")
        problem = f"the extension of {name} means {meant}, but --format is {options.format}"
        raise UsageError(option("out"), problem, "leave out --format, or choose another name")


def _copies_keep_their_size(options: BuildOptions) -> None:
    if options.encode == "copy" and options.resize is not None:
        step = "leave out --resize, or choose --encode=jpeg"
        raise UsageError(option("encode", "copy"), "keeps each file's bytes and cannot resize", step)


def _size_can_be_reached(options: BuildOptions) -> None:
    if options.resize is not None:  # else nothing is loaded
        options.target_size()


def _tiles_have_a_size(options: BuildOptions) -> None:
    if options.tile is not None:  # else nothing is loaded
        options.tiling()
        return
    for name in ("overlap", "min_visible"):
        if getattr(options, name) is not None:
            raise UsageError(option(name), "is for tiles, but there are none", "add --tile")


def _resizing_needs_a_size(options: BuildOptions) -> None:
    if options.resize is not None:
        return
    if options.fit is not None:
        problem = f"{options.fit} says how to resize, but there is no size"
        raise UsageError(option("fit"), problem, "add --resize")
    for name, step in (("pad_value", "add --resize and --fit=pad"), ("interpolation", "add --resize")):
        if getattr(options, name) is not None:
            raise UsageError(option(name), "is for images that are resized", step)


def _columns_are_those_of_lists(options: BuildOptions) -> None:
    given, lists = len(options.columns), sum(spec.startswith("list:") for spec in options.labels)
    if given and given not in (1, lists):
        raise UsageError(option("columns"), f"is given {given} times for {lists} lists", "give one for each list")
    if given and not lists and not any(spec.partition(":")[0] in ("auto", *HAVE_COLUMNS) for spec in options.labels):
        problem = "is for lists, but the labels include no list"
        raise UsageError(option("columns"), problem, "add --labels=list:FILE")


def _labels_go_together(options: BuildOptions) -> None:
    if len(options.labels) > 1 and {"auto", "none"} & set(options.labels):
        problem = "auto and none cannot be combined with other kinds"
        raise UsageError(option("labels"), problem, "name each kind of label")
    if len(set(options.labels)) != len(options.labels):
        raise UsageError(option("labels"), "names the same labels twice")


def _masks_replace_outlines(options: BuildOptions) -> None:
    if options.instance_masks and options.rle != "text":
        step = "leave out one of them: masks are exact, outlines have no holes"
        raise UsageError(option("rle", options.rle), f"excludes {option('instance_masks')}", step)


def _parts_are_built_in_a_folder(options: BuildOptions) -> None:
    if options.job is not None and options.finish:
        raise UsageError(option("job"), "excludes --finish", "leave out one of them")
    if (options.job is not None or options.finish) and options.to_store:
        step = "build to a folder that the machines share, and packer push the pack"
        raise UsageError(option("finish" if options.finish else "job"), "is not for --out=URL", step)


def _bad_inputs_are_counted_once(options: BuildOptions) -> None:
    bad_allowed(options.max_bad, 0)  # raises UsageError
    if options.on_bad == "skip" and options.max_bad != NO_BAD:
        problem = f"skip allows any number of bad inputs, but --max-bad only {options.max_bad}"
        raise UsageError(option("on_bad"), problem, "give one of the two")


def _index_is_of_jpegs_in_a_folder(options: BuildOptions) -> None:
    if options.jpeg_index is None:
        return
    if options.encode is not None and options.encode not in JPEG_ENCODINGS:
        step = f"leave it out, or choose --encode={' or '.join(JPEG_ENCODINGS)}"
        raise UsageError(option("jpeg_index"), f"is for JPEGs, but --encode is {options.encode}", step)
    if options.to_store:
        step = "build to a folder, and packer push the pack"
        raise UsageError(option("jpeg_index"), "is for packs in a folder", step)


RULES = (
    _names_its_places, _inventory_is_of_a_store, _scratch_is_for_a_store, _recheck_is_for_what_is_not_verified,
    _extension_means_the_format, _copies_keep_their_size, _size_can_be_reached, _tiles_have_a_size,
    _resizing_needs_a_size, _columns_are_those_of_lists, _labels_go_together, _masks_replace_outlines,
    _parts_are_built_in_a_folder, _bad_inputs_are_counted_once, _index_is_of_jpegs_in_a_folder,
)  # fmt: skip
"""What options must be together: each raises UsageError. What a single one must be is in its row of the table."""
KINDS = {field.name: str(field.type) for field in fields(BuildOptions)}
"""Option -> its annotation."""
DEFAULTS = {field.name: field.default for field in fields(BuildOptions)}
"""Option -> its default; that of the source is none of its values."""
