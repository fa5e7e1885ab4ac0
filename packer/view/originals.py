"""Finds and decodes the source file of a record, to lay it over the packed image. Nothing is written."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, cast

import numpy as np
from xxhash import xxh3_128_digest

from packer.errors import AnyPath, PackerError, UsageError, option, printable
from packer.format.pack import Pack
from packer.images.base import Header
from packer.images.decode import decode, decode_leniently
from packer.images.header import DEFAULT_MAX_PIXELS, Mode, check_header, read_header
from packer.images.opencv import quiet_opencv
from packer.images.resize import Resize
from packer.model.annotation import Image
from packer.model.geometry import Geometry
from packer.sources.archives.places import SourceFile
from packer.stores import is_url
from packer.view.pictures import EXACT_PIXELS, LARGEST_SIDE, data_uri, shrink

_MOST_BYTES = 256 << 20


def _source_of(pack: Pack) -> str:
    """Return where the folder of a pack may be: the pack is called like it, ``imgs.lmdb`` or ``imgs-train.lmdb``."""
    folder = os.path.splitext(pack.path)[0]
    split = pack.manifest.options.get("split")
    return folder if os.path.isdir(folder) or not split else folder.removesuffix(f"-{split}")


class Originals:
    """The source files of a pack, found by the paths in its index and recognized by their digests.

    Args:
        pack: The pack.
        source: The folder that it was built from; None: the folder that is called like the pack, without its suffix
            and its split.

    Raises:
        UsageError: `source` is not a folder.
    """

    def __init__(self, pack: Pack, source: AnyPath | None = None) -> None:
        self._pack = pack
        if source is not None and not os.path.isdir(source):
            raise UsageError(
                option("source"), f"is not a folder: {printable(source)}", "name the folder that was packed"
            )
        self._folders = {one.path: os.fsencode(_source_of(one) if source is None else source) for one in pack.packs}

    def where(self, record: int) -> dict[str, Any]:
        """Return {"found": whether there is such a file, "path": where it is or should be}, without reading it."""
        pack, inside = self._one(record)
        path = self._path(pack, inside)
        found = path is not None and os.path.isfile(path)
        return {"found": found, "path": printable(path or bytes(pack.column("path")[inside]))}

    def facts(self, record: int) -> dict[str, Any]:
        """Return the picture of the source file and its place in the packed image.

        Returns:
            picture: A data: URI of the upright original; width, height: its size in pixels; at: the x, y, width and
            height that it has in the pixels of the packed image; exact: whether the pack tells how it was resized,
            so that the same points are over one another.

        Raises:
            PackerError: There is no such file, it is not the one that was packed, or it cannot be decoded.
        """
        pack, inside = self._one(record)
        path = self._path(pack, inside)
        if path is None or not os.path.isfile(path):
            raise UsageError("the source file", f"was not found at {self.where(record)['path']}")
        try:
            return _shown(pack, inside, path)
        except OSError as error:
            raise UsageError("the source file", f"cannot be read: {error.strerror or error}") from None

    def _one(self, record: int) -> tuple[Pack, int]:
        """Return the pack that a record is from, and its number there."""
        number, inside = self._pack.part_of(record)
        return self._pack.packs[number], inside

    def _path(self, pack: Pack, record: int) -> bytes | None:
        folder, relative = self._folders[pack.path], bytes(pack.column("path")[record])
        # a pack of somebody else may name any path; one that is shown must also have the digest in the index
        outside = relative.startswith(b"/") or b".." in relative.split(b"/") or b"\0" in relative
        return None if outside or not relative or is_url(folder) else os.path.join(folder, relative)


@quiet_opencv()
def _shown(pack: Pack, record: int, path: bytes) -> dict[str, Any]:
    with SourceFile(path) as file:
        if file.size > _MOST_BYTES:
            raise UsageError("the source file", f"has more than {_MOST_BYTES >> 20} MiB")
        data = file.content(file.size)
    if xxh3_128_digest(data) != bytes(np.asarray(pack.column("source_xxh3")[record])):
        raise UsageError("the source file", f"is not the one that was packed: {printable(path)} has changed")
    header = read_header(data)
    max_pixels = int(pack.manifest.options.get("max_pixels") or DEFAULT_MAX_PIXELS)
    check_header(header, max_pixels, "first")
    width, height = header.upright_size
    at, exact = _place(pack, record, width, height)
    image = _decoded(pack, data, header, max_pixels)
    return {"picture": data_uri(image, EXACT_PIXELS), "width": width, "height": height, "at": at, "exact": exact}


def _decoded(pack: Pack, data: bytes, header: Header, max_pixels: int) -> Image:
    mode = cast("Mode", "rgb" if pack.manifest.mode == "gray" else pack.manifest.mode)  # what gray has lost is seen
    width, height = header.upright_size
    small = shrink(height, width, LARGEST_SIDE) if max(width, height) > LARGEST_SIDE else None
    at_least = None if small is None else small.at_least(width, height)
    if pack.manifest.options.get("decoder") == "lenient":
        image = decode_leniently(data, mode, at_least, max_pixels, header)[0]
    else:
        image = decode(data, mode, "auto", at_least, max_pixels, header)
    return image if small is None else small.apply(image, (width, height))


def _place(pack: Pack, record: int, width: int, height: int) -> tuple[list[float], bool]:
    """Return where an original of this size is in the packed image, and whether the pack's options say so."""
    packed_height, packed_width, _ = pack.shape_of(record)
    options = pack.manifest.options
    geometry = Geometry.identity(width, height)
    if options.get("resize") is not None:
        given = (options.get("fit"), options.get("pad_value"), options.get("interpolation"))
        with suppress(PackerError):
            geometry = Resize.of(str(options["resize"]), *given).geometry(width, height)
    if (geometry.width, geometry.height) != (packed_width, packed_height):  # resized twice, or by another tool
        return [0.0, 0.0, float(packed_width), float(packed_height)], False
    # a pack that was converted tells only the last resize
    converted = any(origin.command == "convert" for origin in pack.manifest.made_from)
    return [geometry.c, geometry.f, geometry.a * width, geometry.e * height], geometry.is_identity or not converted
