"""The table of a build's options: a new one is a row here, and a field of `BuildOptions`, which has type and default.

Made from it are the options of the commands, the checks of single values, what ``--config``, ``--like`` and ``packer
info --command`` read and write, what a manifest records, and what a build that is resumed compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import partial
from numbers import Integral, Real
from typing import Any, Final, Literal

from packer.containers import CONTAINERS, container_names
from packer.errors import UsageError, option, printable
from packer.system.registry import choose

LONGEST_TIMEOUT_S = 1e6
MOST_WORKERS = 1024  # each is a process of about 100 MB


def bad_allowed(max_bad: str, found: int) -> int:
    """Return how many of `found` inputs ``--max-bad`` allows to be bad: ``5`` or ``0.5%``."""
    match = re.fullmatch(r"(\d{1,18})|(\d{1,3}(?:\.\d{1,9})?)%", max_bad.strip(), re.ASCII)
    if match is None or (match[2] and Fraction(match[2]) > 100):
        problem = f"must be a number or a percentage such as 0.5%, got {printable(max_bad)}"
        raise UsageError(option("max_bad"), problem)
    return int(match[1]) if match[1] else int(found * Fraction(match[2]) / 100)  # 0.57% of 10,000 is 57, not 56


def parse_timeout(text: str) -> float | None:
    """Convert ``60`` or ``0.5`` to seconds, and ``none`` to None (no limit)."""
    if text.strip().lower() == "none":
        return None
    if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", text, re.ASCII) is None:
        raise UsageError(option("decode_timeout"), f"must be a number of seconds, or none, got {printable(text)}")
    return float(text)


def parse_share(name: str, text: str) -> float:
    """Convert ``0.2`` or ``20%``, given for the option called `name`, to a share."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(%?)\s*", text, re.ASCII)
    if match is None:
        raise UsageError(option(name), f"must be a share such as 0.2, got {printable(text)}")
    return float(match[1]) / (100 if match[2] else 1)


def timeout_text(seconds: Any) -> str:
    """Return seconds as ``--decode-timeout`` takes them; a manifest may hold any value."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") if isinstance(seconds, int | float) else str(seconds)


def parse_bytes(text: str) -> int | None:
    """Convert ``128MB``, ``1.5GiB`` or ``4096`` to bytes, and ``none`` to None (no limit).

    KB, MB and GB are powers of 1024: a shard of 128MB is 128 MiB.
    """
    if text.strip().lower() == "none":
        return None
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)i?b?\s*", text, re.ASCII | re.IGNORECASE)
    size = int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ")) if match else 0
    if size < 1:
        raise UsageError(option("shard_size"), f"must be a size such as 128MB, or none, got {printable(text)}")
    return size


def bytes_text(size: Any) -> str:
    """Return bytes as ``--shard-size`` takes them: ``128MB``; a manifest may hold any value."""
    for unit, power in (("GB", 30), ("MB", 20), ("KB", 10)):
        if isinstance(size, int) and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def size_of(value: Any) -> str | None:
    """Return the text of ``resize=64`` or ``resize=(64, 64)``; None if it is not clear which side is which."""
    if is_whole(value):
        return str(value)
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
        return f"{value[0]}x{value[1]}"
    return None


def share_of(value: Any) -> str | None:
    """Return the text of ``max_bad=5`` or ``max_bad=0.01``; None for other numbers."""
    if is_whole(value):
        return str(value)
    if is_number(value) and 0 <= value < 1:
        return f"{round(Decimal(str(float(value))) * 100, 9).normalize():f}%" if value else "0"
    return None


def is_number(value: Any) -> bool:
    """Return whether it is a number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Return whether it is a whole number by its type: 5.0 is not."""
    return is_number(value) and isinstance(value, Integral)


ARGUMENT = "SRC"
"""Instead of a section: this is no option, but the argument."""
INPUT, LABELS, IMAGE, OUTPUT, BAD_DATA, RUN = "Input", "Labels", "Image", "Output", "Bad data", "Run"
SHAPES, FREE = True, False
ALWAYS: Final = "always"
CHANGED: Final = "changed"
NEVER: Final = "never"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a build.

    Args:
        name: Its name in `BuildOptions`.
        section: Heading of the help below which it stands.
        shapes_bytes: Whether the bytes of a shard depend on it. If not, a build that is resumed may have another.
        recorded: Whether a manifest has its value: always, if it is not the default (changed), or never. What is
            recorded is taken over by ``--like``, and shown by ``packer info --command``.
        help: What the help of ``packer build`` says of it.
        first: Whether the short help shows it.
        of_labels: Whether it says how labels are read, and nothing else, so that `packer edit` has it, too.
        short: Its short name on the command line: ``-o``.
        flag: Its name on the command line, without the hyphens before it. Empty: that in `BuildOptions`.
        metavar: What help shows for its value. Empty: by what it takes, its choices, or its type.
        takes: What its text names, which a shell completes: a file, whose content counts as well as its name; class
            names, in a file or a pack; a folder; a path or URL; a pack; or kinds of labels.
        choices: Its values, if they are few.
        every_choice: Returns the choices with those of plug-ins. None: there are none.
        alone: Its value on the command line if it is given without one. Empty: it needs one.
        read: Converts the text of the command line and of ``--config``. None: it is a text or a number.
        write: Converts a value to that text again.
        typed: Returns the text for a value of another type that people give in Python; None if it means nothing.
        expected: What a value must be, and what to write, if one in Python is of a wrong type. None: by its type.
        must: What a value must be -> whether it is.
    """

    name: str
    section: str
    shapes_bytes: bool
    recorded: Literal["always", "changed", "never"]
    help: str
    _: KW_ONLY
    first: bool = False
    of_labels: bool = False
    short: str = ""
    flag: str = ""
    metavar: str = ""
    takes: Literal["", "file", "names", "folder", "path", "pack", "labels"] = ""
    choices: tuple[str, ...] = ()
    every_choice: Callable[[], Sequence[str]] | None = None
    alone: str = ""
    read: Callable[[str], Any] | None = None
    write: Callable[[Any], str] = str
    typed: Callable[[Any], str | None] = lambda value: None
    expected: tuple[str, str] | None = None
    must: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "flag", self.flag or self.name.replace("_", "-"))

    @property
    def label(self) -> str:
        """How an error names it."""
        return ARGUMENT if self.section == ARGUMENT else option(self.flag)

    def checked(self, value: Any) -> Any:
        """Return a value of the right type, or the choice that it means. Raise UsageError if it is not allowed."""
        if value is None:
            return None
        if self.choices:
            return choose(self.label, value, self.choices if self.every_choice is None else self.every_choice())
        for what, holds in self.must.items():
            if not holds(value):
                raise UsageError(self.label, f"must be {what}, got {self.write(value)}")
        return value

    def text(self, value: Any) -> str:
        """Return a value as on the command line; a manifest may hold any."""
        if value is None:
            return "none"
        return str(value).lower() if isinstance(value, bool) else self.write(value)


OPTIONS = (
    Option("source", ARGUMENT, SHAPES, NEVER, ""),
    Option(
        "split", INPUT, SHAPES, ALWAYS,
        "Pack only this split: train, val, test, ...; all packs all as one.  [default: a pack for each]",
        metavar="NAME", first=True,
    ),
    Option(
        "include", INPUT, SHAPES, CHANGED,
        "Pack only the images in FILE: one path, name, glob or key (of --like PACK) per line.", takes="file",
    ),
    Option("exclude", INPUT, SHAPES, CHANGED, "Skip the images in FILE, in the same form.", takes="file"),
    Option(
        "shuffle", INPUT, SHAPES, ALWAYS, "Pack in the random order of this seed.", metavar="SEED",
        expected=("the seed of an order, a whole number", "write shuffle=0"), must={"at least 0": lambda n: n >= 0},
    ),
    Option(
        "max_pixels", INPUT, SHAPES, ALWAYS,
        "Maximum pixels of an image; a larger one is bad, and is not decoded.", must={"at least 1": lambda n: n >= 1},
    ),
    Option("follow_links", INPUT, SHAPES, CHANGED, "Follow symlinks to folders outside SRC."),
    Option(
        "inventory", INPUT, SHAPES, NEVER,
        "List of the objects below SRC, a URL, in place of listing them: Parquet or CSV with the columns key and "
        "size (S3 Inventory), or a name per line.", takes="file",
    ),
    Option(
        "labels", LABELS, SHAPES, ALWAYS,
        "Kind of labels: auto, none, folder, voc, yolo, yolo-obb, dota, coco[:FILE], parquet[:COLUMN], list:FILE, "
        "name:REGEX, pts, dlib[:FILE], masks[:WHERE], instances[:WHERE], cvat[:FILE], labelme, via[:FILE], "
        "labelstudio[:FILE], supervisely, createml[:FILE], vott[:FILE], widerface[:FILE], kitti, visdrone, icdar, "
        "bdd100k[:FILE], crowdhuman[:FILE], openimages, sa1b, jsonl[:FILE], datumaro[:FORMAT]. May be repeated: the "
        "annotations of an image are merged.  [default: auto]",
        takes="labels", first=True,
    ),
    Option(
        "columns", LABELS, SHAPES, ALWAYS,
        'Columns of a list: "path label", "path (x y)*5", "path (xmin ymin xmax ymax class)*". '
        "One for each list, in the same order. Of Parquet: what the numbers of boxes are.", metavar="TEXT", first=True,
        of_labels=True,
    ),
    Option(
        "classes", LABELS, SHAPES, CHANGED,
        "Class names in the order of their ids, one per line; or a pack. A label with another name is bad.",
        takes="names", first=True, of_labels=True,
        expected=("a file with a name per line, or a pack", "write the names to a file, and name that"),
    ),
    Option(
        "map", LABELS, SHAPES, CHANGED,
        'New names of classes, of which several may become one: "car,bus,truck=vehicle"; or a file with such lines, or '
        "YAML of OLD: NEW. May be repeated.", metavar="OLD,OLD=NEW|FILE",
        expected=("a text such as car,bus=vehicle, a file, or a list of them", 'write map="car,bus=vehicle"'),
    ),
    Option(
        "drop_class", LABELS, SHAPES, CHANGED,
        "Leave out the objects, and the images, of these classes, as --map calls them. For an image without any other "
        "object, see --missing-labels. May be repeated.", metavar="NAME,NAME",
    ),
    Option(
        "only_class", LABELS, SHAPES, CHANGED, "Leave out those of all other classes. May be repeated.",
        metavar="NAME,NAME",
    ),
    Option("single_class", LABELS, SHAPES, CHANGED, "Give all classes this name.", metavar="NAME"),
    Option(
        "boxes", LABELS, SHAPES, ALWAYS,
        "Boxes outside the image or without area: fail rejects the image, clip cuts them at the edge "
        "(and drops those without area), drop drops them.", choices=("fail", "clip", "drop"), of_labels=True,
    ),
    Option(
        "mask", LABELS, SHAPES, CHANGED,
        'Pack masks: the folder of pictures named like the images, below SRC; or a pattern: "{dir}/{stem}_mask.png".  '
        "[default: those that --labels auto finds]", metavar="WHERE", first=True,
    ),
    Option(
        "part", LABELS, SHAPES, CHANGED,
        "Pack what else images have, from files named like them: masks, maps (depth), a second image, arrays, texts, "
        "json. WHERE is as for --mask: depth=depth:map. May be repeated. Where nothing is known, a map has NaN, or 0 "
        "in whole numbers; depth=depth:map:N names another value.",
        metavar="NAME=WHERE:KIND",
    ),
    Option(
        "mask_values", LABELS, SHAPES, CHANGED,
        "What the pixels of masks mean: ids of classes (also of a palette), black and white (binary), colors with the "
        "names in FILE, values with the ids in FILE, or segments of COCO's JSON FILE.  [default: by the files beside "
        "them, else ids]",
        metavar="ids|binary|colors:FILE|map:FILE|panoptic:FILE",
    ),
    Option(
        "ignore_id", LABELS, SHAPES, CHANGED,
        "Value of the pixels of masks that are of no class, and of the border of --fit pad.  [default: 255]",
        metavar="N", must={"0 to 65535": lambda n: 0 <= n <= 65535},
    ),
    Option(
        "missing_labels", LABELS, SHAPES, CHANGED,
        "An image without a label: error rejects it, empty packs it as an image without objects, skip skips it.",
        choices=("error", "empty", "skip"),
    ),
    Option(
        "rle", LABELS, SHAPES, CHANGED,
        "Without --instance-masks, COCO run-length masks: keep as text, or also convert to polygons.",
        choices=("text", "polygons"), of_labels=True,
    ),
    Option(
        "instance_masks", LABELS, SHAPES, CHANGED,
        "Pack a mask of each object, with its holes, at the size of the packed image: of the polygons, run lengths "
        "and bitmaps of the labels. Needs pycocotools.", of_labels=True,
    ),
    Option(
        "resize", IMAGE, SHAPES, ALWAYS, "Size of the packed images in pixels.", metavar="N|WxH", first=True,
        typed=size_of, expected=("a number of pixels, or width x height", 'write resize=64, or resize="640x480"'),
    ),
    Option(
        "fit", IMAGE, SHAPES, ALWAYS,
        "How to reach that size: stretch to WxH, short or long side to N, crop the center to WxH, or pad to WxH.  "
        "[default: short for N, stretch for WxH]", choices=("stretch", "short", "long", "crop", "pad"), first=True,
    ),
    Option(
        "pad_value", IMAGE, SHAPES, CHANGED,
        "Gray level of the border of --fit pad, 0 (black) to 255; YOLO's is 114.  [default: 0]", metavar="N",
    ),
    Option(
        "interpolation", IMAGE, SHAPES, CHANGED,
        "Filter of --resize: the mean of the area of each pixel, or the wider filter of torchvision and Pillow.  "
        "[default: area]", choices=("area", "bilinear"),
    ),
    Option(
        "tile", IMAGE, SHAPES, CHANGED,
        "Pack tiles of this size of each image, with what each has of the labels: a record for each. --resize then "
        "is of tiles.", metavar="N|WxH", typed=size_of,
        expected=("a number of pixels, or width x height", 'write tile=1024, or tile="1024x768"'),
    ),
    Option(
        "overlap", IMAGE, SHAPES, CHANGED,
        "Share of the sides of a tile that it has in common with the next one.  [default: 0.2]", metavar="SHARE",
        read=partial(parse_share, "overlap"), must={"a share from 0 on, below 1": lambda share: 0 <= share < 1},
    ),
    Option(
        "min_visible", IMAGE, SHAPES, CHANGED,
        "An object is in a tile that has at least this share of its area.  [default: 0.1]", metavar="SHARE",
        read=partial(parse_share, "min_visible"), must={"a share from 0 to 1": lambda share: 0 <= share <= 1},
    ),
    Option(
        "encode", IMAGE, SHAPES, ALWAYS,
        "How images are stored: as pixels (raw), encoded again, or as a copy of each file.  [default: raw if they are "
        "resized or all have one size, else copy]", choices=("raw", "jpeg", "png", "bmp", "copy"), first=True,
    ),
    Option(
        "mask_encode", IMAGE, SHAPES, CHANGED,
        "How masks are stored.  [default: raw beside raw images, else zstd; png where readers of the format expect "
        "pictures]", choices=("raw", "zstd", "png"),
    ),
    Option(
        "quality", IMAGE, SHAPES, ALWAYS, "JPEG quality, 1 to 100.", first=True,
        must={"1 to 100": lambda n: 1 <= n <= 100},
    ),
    Option(
        "mode", IMAGE, SHAPES, ALWAYS, "Color mode of the packed images; unchanged keeps alpha and 16 bits.",
        choices=("rgb", "gray", "unchanged"),
    ),
    Option(
        "decoder", IMAGE, SHAPES, ALWAYS,
        "JPEG decoder; lenient also packs damaged images of any format, as far as they can be decoded, and lists "
        "them.", choices=("auto", "simplejpeg", "opencv", "jpeg4py", "lenient"),
    ),
    Option(
        "on_animation", IMAGE, SHAPES, CHANGED,
        "An animation, or several pages: fail rejects it, first packs its first frame.", choices=("fail", "first"),
    ),
    Option(
        "out", OUTPUT, FREE, NEVER,
        "Path of the new pack, or its URL in a store: s3://bucket/imgs. Of a pack for each split: NAME-train.lmdb for "
        "NAME.lmdb.  [default: SRC.FORMAT beside SRC, or SRC-SPLIT.FORMAT]", short="-o", takes="path", first=True,
    ),
    Option(
        "format", OUTPUT, SHAPES, NEVER,
        "Container format of the shards.  [default: by the extension of --out, else lmdb]",
        choices=CONTAINERS, every_choice=container_names, first=True,
    ),
    Option(
        "shard_bytes", OUTPUT, SHAPES, ALWAYS,
        "Approximate size of the images in a shard, as they are stored; a shard has at most 100,000 images. none: a "
        "single shard.  [default: 128MB; 1GB or more for packs of 256 GB]", flag="shard-size", metavar="SIZE|none",
        read=parse_bytes, write=bytes_text, must={"a number of bytes": lambda n: n >= 0},
    ),
    Option(
        "jpeg_index", OUTPUT, FREE, NEVER,
        "With --encode jpeg or copy: also make an index with which crops decode faster; needs packer-fast. An entry "
        "per row of blocks (row, about 1 % of the bytes), or per four blocks (4).", choices=("row", "4"), alone="row",
    ),
    Option(
        "no_fingerprints", OUTPUT, FREE, CHANGED,
        "Make no fingerprints, 40 bytes per image by which packer stats finds near duplicates and odd images.",
    ),
    Option("overwrite", OUTPUT, FREE, NEVER, "Replace an existing pack.", first=True),
    Option("force", OUTPUT, FREE, NEVER, "Build even if the pack is not expected to fit on the disk."),
    Option(
        "scratch", OUTPUT, FREE, NEVER,
        "With a URL as --out: folder for unfinished shards, two per worker.  [default: that for temporary files]",
        takes="folder",
    ),
    Option(
        "recheck", OUTPUT, FREE, NEVER,
        "Read finished shards in a store again to verify them; with --finish, the images.",
    ),
    Option(
        "max_bad", BAD_DATA, FREE, NEVER, "Maximum number (or share) of bad inputs to skip before the build fails.",
        metavar="N|N%", first=True, typed=share_of,
        expected=("a number of images, or a share below 1", 'write max_bad=5, or max_bad=0.01 or "1%" for a hundredth'),
    ),
    Option(
        "on_bad", BAD_DATA, FREE, NEVER, "fail: follow --max-bad. skip: skip every bad input.",
        choices=("fail", "skip"),
    ),
    Option("fail_fast", BAD_DATA, FREE, NEVER, "Stop as soon as too many inputs are bad, before all are found."),
    Option(
        "quarantine", BAD_DATA, FREE, NEVER,
        "List the bad inputs in DIR/rejected.tsv: path, reason, problem. No image is moved or changed.", takes="folder",
    ),
    Option(
        "decode_timeout", BAD_DATA, FREE, NEVER, "Maximum time to decode an image; one that takes longer is bad.",
        metavar="SECONDS|none", read=parse_timeout, write=timeout_text,
        must={f"more than 0 and at most {LONGEST_TIMEOUT_S:.0f} seconds": lambda s: 0 < s <= LONGEST_TIMEOUT_S},
    ),
    Option(
        "workers", RUN, FREE, NEVER, "Number of worker processes.  [default: the number of usable cores]", first=True,
        metavar="N", must={"at least 1": lambda n: n >= 1, f"at most {MOST_WORKERS}": lambda n: n <= MOST_WORKERS},
    ),
    Option(
        "engine", RUN, FREE, NEVER,
        "Where the workers run: on this machine, on a Ray or dask cluster, or on the executor of concurrent.futures "
        "that FUNCTION returns; see docs/cluster.md.", metavar="local|ray[:ADDRESS]|dask[:SCHEDULER]|MODULE:FUNCTION",
    ),
    Option(
        "job", RUN, FREE, NEVER,
        "Pack only part K of N (1/N to N/N), as one of N jobs does; when all have, --finish publishes the pack.",
        metavar="K/N",
    ),
    Option("finish", RUN, FREE, NEVER, "Publish the pack whose parts were packed with --job."),
    Option("like", RUN, FREE, NEVER, "Take every option that is not given from PACK.", takes="pack"),
)  # fmt: skip
"""In the order of the help."""
CLASS_OPTIONS = ("map", "drop_class", "only_class", "single_class")
"""Those of which `packer.packing.class_map` makes one mapping."""
LABEL_OPTIONS = tuple(row.name for row in OPTIONS if row.of_labels)
"""Those that say how labels are read."""
TABLE = {row.name: row for row in OPTIONS}
"""Name -> option."""


def label_of(name: str) -> str:
    """Return how an error names an option of a build, or another of the same commands."""
    return TABLE[name].label if name in TABLE else option(name)
