"""A pack as files again: images as they are stored, and labels that `packer build` reads to an equal pack."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import packer
from packer.errors import (
    AnyPath,
    BadImage,
    DamagedPack,
    PackerError,
    StorageError,
    UsageError,
    option,
    printable,
    words_of,
)
from packer.format.pack import Pack, open_pack
from packer.format.sidecar_list import attached
from packer.images.opencv import quiet_opencv
from packer.images.parts import BY_KIND
from packer.model.annotation import Progress
from packer.packing.input_table import read_selection
from packer.repack.layouts import Item, Layout, layout_of
from packer.sources.paths import splits_of
from packer.sources.source import Tree
from packer.system import exchange_names, open_regular, sync_path
from packer.system.locks import OLD, growing_folder

MARK = ".packer-extract.json"
"""A file that says that a folder was extracted, and how many files it has; builds skip it as hidden."""
EXTENSIONS = {
    "jpeg": (b".jpg", b".jpeg", b".jpe", b".jfif"), "png": (b".png", b".apng"), "bmp": (b".bmp", b".dib"),
    "gif": (b".gif",), "webp": (b".webp",), "tiff": (b".tif", b".tiff"), "avif": (b".avif", b".avifs"),
    "jp2": (b".jp2", b".j2k", b".jpx"), "pnm": (b".ppm", b".pgm", b".pbm", b".pnm", b".pam"),
}  # fmt: skip
IMAGE_ENDS = tuple(end for ends in EXTENSIONS.values() for end in ends)
UNSAFE = re.compile(rb"[\x00-\x1f\x7f]")
MOST_NAME_BYTES = 200
MOST_PARTS, MOST_FOLDER_BYTES = 200, 2000
"""Of the folders of a file; the first ones are left out."""


@dataclass(frozen=True, slots=True)
class ExtractReport:
    """The result of `extract`."""

    path: str
    layout: str
    images: int
    renamed: int
    """Images that do not have the name of their source file: its path was taken, or not safe, or of another format."""
    lost: dict[str, int]
    """What the layout cannot hold -> how often."""
    notes: tuple[str, ...]
    build: tuple[str, ...]
    """The words of the command that reads the folder again."""
    seconds: float


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """What is extracted, and how."""

    layout: str = "folder"
    """One of `packer.repack.layouts.layout_names`."""
    include: str | None = None
    """File that says which images, as of `build_pack`."""
    exclude: str | None = None
    """File that says which images not."""


def extract(
    pack: AnyPath,
    out: AnyPath,
    options: ExtractOptions | str = "folder",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExtractReport:
    """Write the images and labels of a pack to the new folder `out`.

    Encoded images are written byte for byte, raw ones as PNG. Names are the paths of the records, made safe; a name
    that is taken gets a number.

    Args:
        pack: The pack.
        out: The folder.
        options: What to write; a text is `ExtractOptions.layout`.
        overwrite: Replace a folder that was extracted and has not got other files since.
        progress: Receives the stage extracting, in images.

    Raises:
        UsageError: The layout cannot hold the labels of the pack, or `out` exists.
        DamagedPack: A record does not match its checksum.
        StorageError: A file cannot be written.
    """
    started = time.perf_counter()
    asked = ExtractOptions(options) if isinstance(options, str) else options
    progress = progress or Progress()
    kind = layout_of(asked.layout)
    opened = open_pack(pack)
    target = os.path.abspath(os.fsdecode(out))
    kind("", opened.manifest).check()
    chosen, notes = _choose_records(opened, asked)
    _check_target(target, opened, overwrite)
    try:
        with growing_folder(target, MARK, "extract") as folder:
            layout = kind(folder, opened.manifest)
            names = Names(layout.stems or bool(opened.manifest.parts))
            progress.stage("extracting", len(chosen))
            for record in chosen:
                _write(opened, record, layout, names)
                progress.advance(1)
            layout.close()
            layout.write_mask_classes()
            if splits_of(Tree(b"", sorted(names.files), (), ())):  # else a build would make a pack of each
                layout.options["split"] = "all"
            _publish(folder, target, opened, layout)
    except OSError as error:
        if isinstance(error, PackerError):
            raise
        raise StorageError(error.filename or target, error.strerror or str(error), "choose another folder") from None
    build = _build_words(opened, layout, target)
    seconds = time.perf_counter() - started
    lost = dict(+layout.lost)
    with suppress(DamagedPack):  # a damaged list of them does not matter here
        names_beside = attached(opened.sidecars)
        notes += [f"sidecars are not extracted: {', '.join(names_beside)}"] if names_beside else []
    return ExtractReport(target, kind.name, len(chosen), names.renamed, lost, tuple(notes), build, seconds)


def _write(pack: Pack, record: int, layout: Layout, names: Names) -> None:
    annotation, (height, width, _) = pack.annotation(record), pack.reader.shape_of(record)
    encoding = "raw" if pack.manifest.windows else pack.reader.encoding_of(record)
    path = bytes(pack.column("path")[record])
    if annotation.window is not None and (window := pack.window(record)) is not None:
        path = b"%s_%d_%d%s" % (stem := os.path.splitext(path)[0], *window[:2].tolist(), path[len(stem) :])
    wanted = layout.place(safe(path, EXTENSIONS["png" if encoding == "raw" else encoding]), annotation)
    item = Item(names.free(wanted, wanted != path and not wanted.endswith(b"/" + path)), annotation, width, height)
    if encoding == "raw":
        from packer.images.resize import encode

        try:
            with quiet_opencv():
                data = encode(pack.image(record), "png")
        except BadImage as error:
            where = f"{pack.path}: record {pack.key(record)} ({printable(path)})"
            raise BadImage(where, error.problem, "pack it with --encode=png or --mode=rgb") from None
    else:
        data = bytes(pack.record(record))
    layout.write(item.name, data)
    for spec in pack.manifest.part_specs:
        if (value := pack.part(record, spec.name)) is None:
            layout.options["missing-labels"] = "empty"
        elif spec.kind == "mask":
            layout.write_mask(item.name, spec.name, value)
        else:
            stored = pack.reader.encoding_of(record, spec.name), pack.reader.part(record, spec.name) or b""
            layout.write_part(item.name, spec, BY_KIND[spec.kind].as_file(value, *stored))
    layout.note_lost(annotation)
    layout.add(item)


class Names:
    """Gives each image a name of its own.

    Args:
        stems: Whether names in a folder must differ in more than their extension.
    """

    def __init__(self, stems: bool) -> None:
        self._stems = stems
        self.files: set[bytes] = set()
        """Those that were given."""
        self._keys: set[bytes] = set()
        self._folders: set[bytes] = set()
        self._next: Counter[bytes] = Counter()
        self.renamed = 0

    def free(self, name: bytes, changed: bool) -> bytes:
        """Return the name, or with a number if it is taken by another image or folder; count it if it is changed."""
        parts = name.split(b"/")
        for i in range(1, len(parts)):  # a folder may have the name of an image
            while b"/".join(parts[:i]) in self.files:
                parts[i - 1] += b"-2"
        whole = found = b"/".join(parts)
        stem, dot, extension = whole.rpartition(b".")
        while self._key(found) in self._keys or found in self._folders:
            self._next[whole] += 1
            found = b"%s-%d%s%s" % (stem, self._next[whole] + 1, dot, extension)
        self.files.add(found)
        self._keys.add(self._key(found))
        folder = found.rpartition(b"/")[0]
        while folder and folder not in self._folders:
            self._folders.add(folder)
            folder = folder.rpartition(b"/")[0]
        self.renamed += changed or found != name
        return found

    def _key(self, name: bytes) -> bytes:
        return name.rpartition(b".")[0] if self._stems else name


def safe(path: bytes, extensions: tuple[bytes, ...]) -> bytes:
    """Return a path that stays in its folder and is not hidden, and whose extension is that of its format."""
    parts = []
    for part in path.split(b"/"):
        if part not in (b"", b".", b".."):
            name = UNSAFE.sub(b"_", part)
            parts.append(b"_" + name[1:] if name.startswith(b".") else name)
    name = parts.pop() if parts else b"image"
    if not name.lower().endswith(extensions):
        stem = name[: name.rindex(b".")] if name.lower().endswith(IMAGE_ENDS) else name
        name = (stem or b"image") + extensions[0]
    short = [part[:MOST_NAME_BYTES] for part in parts]
    if len(name) > MOST_NAME_BYTES:
        stem, _, end = name.rpartition(b".")
        name = stem[: MOST_NAME_BYTES - len(end)] + b"." + end
    short = short[-MOST_PARTS:]
    while len(b"/".join(short)) > MOST_FOLDER_BYTES:
        del short[0]
    return b"/".join([*short, name])


def _choose_records(pack: Pack, asked: ExtractOptions) -> tuple[list[int], list[str]]:
    """Return the numbers of the records to write, and notes about lines that name none."""
    paths, notes = [os.fsencode(path) for path in pack.paths], []
    chosen = list(range(len(pack)))
    for file, wanted in ((asked.include, True), (asked.exclude, False)):
        if file is not None:
            selection = read_selection(file, paths, pack.path)
            chosen = [record for record in chosen if (paths[record] in selection.images) == wanted]
            notes += [selection.note] if selection.unmatched else []
    if not chosen:
        raise UsageError(option("include" if asked.include else "exclude"), "leaves no image", "name others")
    return chosen, notes


def _check_target(target: str, pack: Pack, overwrite: bool) -> None:
    real, source = os.path.realpath(target), os.path.realpath(pack.path)
    if (real + os.sep).startswith(source + os.sep) or source.startswith(real + os.sep):
        raise UsageError(target, "is the pack, or in it, or around it", "choose another folder")
    parent = os.path.dirname(target)
    if not os.path.isdir(parent):
        raise UsageError(parent, "no such folder for the files", "create it, or choose another folder")
    if not os.path.lexists(target):
        return
    if os.path.islink(target) or not os.path.isdir(target):
        raise UsageError(target, "exists and is not a folder", "choose another folder")
    if not os.listdir(target):
        return
    extracted = _files_of_extract(target)
    if extracted is None:
        raise UsageError(target, "exists and was not extracted from a pack", "choose another folder")
    if extracted != _count_files(target):
        raise UsageError(target, "has other files than those that were extracted", "choose another folder")
    if not overwrite:
        raise UsageError(target, "exists", "choose another folder, or replace it with --overwrite")


def _files_of_extract(folder: str) -> int | None:
    """Return how many files were extracted to a folder; None if it was not extracted."""
    try:
        with open_regular(os.path.join(folder, MARK)) as file:
            return int(json.loads(file.read(4096))["files"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _count_files(folder: str) -> int:
    return sum(len(files) for _, _, files in os.walk(folder)) - 1


def _publish(folder: str, target: str, pack: Pack, layout: Layout) -> None:
    files = _count_files(folder) + 1
    mark = {"packer": packer.__version__, "layout": layout.name, "pack": pack.manifest.digest, "files": files}
    mark_path = os.path.join(folder, MARK)
    with open(mark_path, "x", encoding="ascii") as file:
        json.dump(mark, file)
    if os.path.isdir(target) and os.listdir(target):
        if not exchange_names(folder, target):
            os.rename(target, folder + OLD)
            os.rename(folder, target)
    else:
        os.rename(folder, target)
    sync_path(os.path.dirname(target))


def _build_words(pack: Pack, layout: Layout, target: str) -> tuple[str, ...]:
    """Return the command that reads the folder again."""
    manifest = pack.manifest
    given = {"labels": layout.labels, **layout.options}
    options = {name: one.replace("FOLDER", target) if isinstance(one, str) else one for name, one in given.items()}
    if manifest.encoding != "raw":
        options["encode"] = "copy"
    if manifest.mode != "rgb":
        options["mode"] = manifest.mode
    parts = [word for part in layout.parts.values() for word in words_of({"part": part})]
    return ("packer", "build", target, *words_of(options), *parts)
