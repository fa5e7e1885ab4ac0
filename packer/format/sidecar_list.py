"""sidecars.json: what was attached to a pack that stays as it is, such as embeddings, captions or pseudo-labels.

packer/repack/attach.py writes the files, packer/format/sidecars.py reads them; docs/formats.md describes them.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from packer.errors import plural, printable, size_text
from packer.format.beside import BesideList
from packer.format.jpeg_index_list import JpegIndexList
from packer.format.manifest import FileEntry, Manifest, check_pixels
from packer.format.pack_paths import own_folder
from packer.model.annotation import ENCODINGS, OF_PIXELS, MaskFacts, PartSpec, check_names
from packer.model.fields import check_target_name
from packer.stores import is_url

CHECKED_BYTES = 1 << 16
"""A checksum for so many bytes: less than the readahead of a disk, and a ten-thousandth of what it protects."""
ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""dtypes of arrays -> bytes of a value."""
LINES = ("jsonl", "offsets.npy")
ROWS, BYTES = ("npy",), ("bin", LINES[1])
KIND_FILES = {
    "array": ROWS, "text": LINES, "json": LINES, "boxes": BYTES, "labels": ROWS, **dict.fromkeys(OF_PIXELS, BYTES),
}  # fmt: skip
"""Kind -> the endings of its files: rows of one size; or for each record a line of JSON, or the bytes that would be
stored in the pack, and where each begins."""
PREDICTED = ("boxes", "labels")
"""The kinds that only sidecars have: what a model says of each record."""
BOX_TYPE = [("box", "<f4", (4,)), ("score", "<f4"), ("label", "<i4")]
"""A predicted box: x1, y1, x2, y2 in pixels of the packed image, its score, and its class in `SidecarFacts.classes`."""
FINGERPRINTS = "fingerprint"
"""Name of the sidecar of rows of `packer.images.fingerprint.FINGERPRINT`, an array uint8."""
FINGERPRINT_BYTES = 40
HEX = re.compile("[0-9a-f]*")
SIDECAR_FILE = re.compile(r"sidecars\.json|(sidecar\.\w+)(?:\.v[1-9]\d*)?\.(npy|jsonl|bin|offsets\.npy)", re.ASCII)
"""Names of the files."""


@dataclass(frozen=True, slots=True)
class SidecarFile(FileEntry):
    """A file of a sidecar."""

    crc32c: str
    """The CRC-32C of every CHECKED_BYTES, eight hexadecimal digits each."""


@dataclass(frozen=True, slots=True)
class SidecarFacts:
    """What a sidecar is."""

    name: str
    kind: str
    dtype: str
    """Of an array, and of pixels; "" for texts and JSON."""
    shape: tuple[int, ...]
    """Of the array of a record. Of texts () for one text each, (-1,) for lists of them."""
    files: tuple[SidecarFile, ...]
    encoding: str = ""
    """Of pixels: one of `packer.model.annotation.ENCODINGS`, or copy."""
    classes: tuple[str, ...] = ()
    """This and the following are those of a `PartSpec`; of predictions, the names of their classes."""
    ignore: int | None = None
    channels: int = 1

    @property
    def spec(self) -> PartSpec:
        """What it would be as a part: lists of texts are JSON."""
        kind = "json" if self.kind == "text" and self.shape else self.kind
        return PartSpec(self.name, kind, self.dtype, self.classes, self.ignore, self.channels)

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(file.bytes for file in self.files)

    @property
    def has_rows(self) -> bool:
        """Whether each record has an array of one shape."""
        return KIND_FILES.get(self.kind) == ROWS

    @property
    def row_bytes(self) -> int:
        """Bytes of the array of a record."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def form(self) -> str:
        """What a record has: ``array float16 (768,)``, ``lists of text``."""
        if self.kind == "array":
            return f"array {self.dtype} {self.shape}" if self.shape else f"array {self.dtype}"
        if self.kind in PREDICTED:
            return f"{self.kind} of {plural(len(self.classes), 'class')}" + " with probabilities" * (self.shape > (2,))
        if self.kind == "mask":
            return f"mask {MaskFacts(self.dtype, self.classes, self.ignore).text}"
        if self.kind in OF_PIXELS:
            return f"{self.kind} {self.dtype}" + f" x {self.channels}" * (self.channels > 1)
        return f"lists of {self.kind}" if self.shape else self.kind

    @property
    def are_fingerprints(self) -> bool:
        """Whether it has the fingerprints of the images, not something else of that name."""
        form = self.name, self.kind, self.dtype, self.shape
        return form == (FINGERPRINTS, "array", "uint8", (FINGERPRINT_BYTES,))

    @property
    def text(self) -> str:
        """What it is, for a person."""
        form = "of each image, for near duplicates and odd images" if self.are_fingerprints else self.form
        return f"{self.name}: {form}, {size_text(self.bytes)}"

    def problem(self, records: int) -> str:
        """Return what is wrong with it; empty if it can be read without a look at the files."""
        try:
            check_sidecar_name(self.name)
            if self.kind in OF_PIXELS:
                check_pixels(self.spec)
        except ValueError as error:
            return str(error)
        if self.encoding not in ((*ENCODINGS, "copy") if self.kind in OF_PIXELS else ("",)):
            return f"has a strange encoding of {self.name}"
        if self.kind not in KIND_FILES:
            return f"has {self.name} of a kind that this packer does not know: {printable(self.kind)}"
        found = [SIDECAR_FILE.fullmatch(file.name) for file in self.files]
        if tuple(one and f"{one[1]}.{one[2]}" for one in found) != file_names(self.name, self.kind):
            return f"has other files of {self.name} than packer writes"
        if self.has_rows and (
            self.dtype not in ITEM_BYTES or min(self.shape, default=1) < 1
            or self.files[0].bytes < records * self.row_bytes
        ):  # fmt: skip
            return f"does not fit the file of {self.name}"
        if self.kind == "labels" and (self.dtype != "float32" or self.shape not in ((2,), (2 + len(self.classes),))):
            return f"has {self.name} of another shape than predicted labels have"
        if not self.has_rows and self.files[1].bytes < 8 * (records + 1):
            return f"does not fit the files of {self.name}"
        if not all(HEX.fullmatch(f.crc32c) and len(f.crc32c) == 8 * -(-f.bytes // CHECKED_BYTES) for f in self.files):
            return f"lacks checksums of {self.name}"
        return ""


def file_names(name: str, kind: str, version: int | None = None) -> tuple[str, ...]:
    """Return the names of the files of a sidecar, ``sidecar.clip.npy`` or ``sidecar.clip.v2.npy``.

    Args:
        name: What it is called.
        kind: Its kind; one that is not known has no files.
        version: The version of its pack that has the files first. None: the pack has no versions.
    """
    stem = f"sidecar.{name}" if version is None else f"sidecar.{name}.v{version}"
    return tuple(f"{stem}.{ending}" for ending in KIND_FILES.get(kind, ()))


def name_in(file: str) -> str:
    """Return the name of the sidecar to which a file belongs."""
    return file.split(".")[1]


def check_sidecar_name(name: str, parts: Collection[str] = (), fields: Collection[str] = ()) -> None:
    """Raise ValueError if a pack with these parts and annotation fields cannot have a sidecar of this name."""
    if name in parts:
        raise ValueError(f"the pack has a part {name}")
    check_names([*parts, name])
    check_target_name(name, fields)


def rows_digest(manifest: Manifest) -> str:
    """Return the digest of the indexes of a pack: which records it has, in which order, with which bytes."""
    return hashlib.sha256("".join(shard.index.sha256 for shard in manifest.shards).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class SidecarList(BesideList):
    """The content of sidecars.json."""

    NAME: ClassVar[str] = "sidecars.json"
    FORMAT: ClassVar[str] = "packer-sidecars"
    VERSION: ClassVar[int] = 1
    NOT_CARRIED: ClassVar[str] = (
        "sidecars are not copied: packer attach PACK WHERE --as NAME --extra-rows skip adds one to a new pack, "
        "if WHERE has keys, paths or file names"
    )

    rows_sha256: str
    """Of the pack that it belongs to (`rows_digest`)."""
    sidecars: tuple[SidecarFacts, ...]
    """In the order of their names."""
    version: int = VERSION

    @property
    def data_files(self) -> tuple[FileEntry, ...]:
        """The files of all sidecars."""
        return tuple(file for one in self.sidecars for file in one.files)

    def problem(self, manifest: Manifest) -> str:
        """Return why it cannot be that of a pack; empty if it can."""
        if self.rows_sha256 != rows_digest(manifest):
            return "was made for other records than those of the pack"
        names = [one.name for one in self.sidecars]
        if names != sorted({*names}):
            return "has sidecars that are not in the order of their names"
        return next(filter(None, (one.problem(manifest.records) for one in self.sidecars)), "")

    @staticmethod
    def again(pack: str, file: str = "") -> str:
        """Return the next step if the list is damaged, or a file: then the other sidecars can stay."""
        if file not in ("", SidecarList.NAME) and not is_url(pack):
            name, quoted = name_in(file), printable(shlex.quote(pack))
            again = f"packer attach {quoted} --fingerprints" if name == FINGERPRINTS else "attach it again"
            return f"restore it, or packer detach {quoted} {name} and {again}"
        listed, how = printable(os.path.join(pack, SidecarList.NAME)), "push" if is_url(pack) else "attach"
        return f"restore it, or remove {listed} and {how} them again"

    def get(self, name: str) -> SidecarFacts | None:
        """Return the facts of a sidecar; None if there is none of this name."""
        return next((one for one in self.sidecars if one.name == name), None)


BESIDE: tuple[type[BesideList], ...] = (JpegIndexList, SidecarList)
"""All kinds of files beside the shards of a pack."""


def attached(names: Iterable[str]) -> list[str]:
    """Return the names of sidecars that somebody attached, in order: fingerprints come with the pack."""
    return sorted({*names} - {FINGERPRINTS})


def lost_notes(names: Collection[str], why: str = "") -> list[str]:
    """Return notes for a new pack that lacks these sidecars of those that it is made of."""
    others = attached(names)
    before = f"{', '.join(others)}: {why}; " if why else ""
    notes = [f"{before}{SidecarList.NOT_CARRIED}"] if others else []
    if FINGERPRINTS in names:
        notes.append("fingerprints are not copied: packer attach PACK --fingerprints makes those of the new pack")
    return notes


def not_kept(folder: str) -> list[str]:
    """Return a note if there is a pack in a folder, which another will replace, and something is attached to it."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = attached(name_in(name) for name in names if name.startswith("sidecar."))
    there = f"{printable(folder)} is replaced, and what was attached to it goes with it: {', '.join(found)}"
    return [f"{there} (packer attach adds it to the new pack)"] if found else []


def not_carried(folders: Iterable[str], but: Collection[str] = ()) -> list[str]:
    """Return notes for a pack that is made of these ones, if there is something beside the shards of one of them.

    Args:
        folders: The packs.
        but: Names of sidecars that it has all the same.
    """
    there = {name for folder in folders for name in os.listdir(own_folder(folder))}
    sidecars = {name_in(name) for name in there if name.startswith("sidecar.")} - {*but}
    index = [JpegIndexList.NOT_CARRIED] if JpegIndexList.NAME in there else []
    return [*index, *(lost_notes(sidecars) if SidecarList.NAME in there else ())]
