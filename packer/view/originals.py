"""Finds and decodes the source file of a record, to lay it over the packed image. Nothing is written."""

from __future__ import annotations

import os
from typing import Any, cast

import numpy as np
from xxhash import xxh3_128_digest

from packer.errors import AnyPath, PackerError, UsageError, printable
from packer.format.pack import Pack
from packer.images.base import Header
from packer.images.decode import decode, decode_leniently
from packer.images.geometry import Geometry
from packer.images.header import Mode, check_header, read_header
from packer.images.opencv import quiet_opencv
from packer.images.resize import Resize
from packer.sources.archives.places import SourceFile
from packer.stores import is_url
from packer.types import Image
from packer.view.pictures import EXACT_PIXELS, LARGEST_SIDE, data_uri, shrink

_MOST_BYTES = 256 << 20


class Originals:
    """The source files of a pack, found by the paths in its index and recognized by their digests.

    Args:
        pack: The pack.
        source: The folder that it was built from; None: the folder that is called like the pack, without its suffix.

    Raises:
        UsageError: `source` is not a folder.
    """

    def __init__(self, pack: Pack, source: AnyPath | None = None) -> None:
        self._pack = pack
        if source is not None and not os.path.isdir(source):
            raise UsageError("source", f"is not a folder: {printable(source)}", "name the folder that was packed")
        self._folder = os.fsencode(os.path.splitext(pack.path)[0] if source is None else source)

    def where(self, record: int) -> dict[str, Any]:
        """Return {"found": whether there is such a file, "path": where it is or should be}, without reading it."""
        path = self._path(record)
        found = path is not None and os.path.isfile(path)
        return {"found": found, "path": printable(path or bytes(self._pack.column("path")[record]))}

    def facts(self, record: int) -> dict[str, Any]:
        """Return the picture of the source file and its place in the packed image.

        Returns:
            picture: A data: URI of the upright original; width, height: its size in pixels; at: the x, y, width and
            height that it has in the pixels of the packed image; exact: whether the pack tells how it was resized,
            so that the same points are over one another.

        Raises:
            PackerError: There is no such file, it is not the one that was packed, or it cannot be decoded.
        """
        path = self._path(record)
        if path is None or not os.path.isfile(path):
            raise UsageError("the source file", f"was not found at {self.where(record)['path']}")
        try:
            return self._shown(path, record)
        except OSError as error:
            raise UsageError("the source file", f"cannot be read: {error.strerror or error}") from None

    @quiet_opencv()
    def _shown(self, path: bytes, record: int) -> dict[str, Any]:
        with SourceFile(path) as file:
            if file.size > _MOST_BYTES:
                raise UsageError("the source file", f"has more than {_MOST_BYTES >> 20} MiB")
            data = file.content(file.size)
        if xxh3_128_digest(data) != bytes(np.asarray(self._pack.column("source_xxh3")[record])):
            raise UsageError("the source file", f"is not the one that was packed: {printable(path)} has changed")
        header = read_header(data)
        manifest = self._pack.manifest
        max_pixels = int(manifest.options.get("max_pixels", 0)) or 64_000_000
        check_header(header, max_pixels, "first")
        width, height = header.upright_size
        at, exact = self._place(record, width, height)
        image = self._decoded(data, header, max_pixels)
        return {
            "picture": data_uri(image, EXACT_PIXELS), "width": width, "height": height, "at": at, "exact": exact,
        }  # fmt: skip

    def _decoded(self, data: bytes, header: Header, max_pixels: int) -> Image:
        manifest = self._pack.manifest
        mode = cast("Mode", "rgb" if manifest.mode == "gray" else manifest.mode)  # what gray has lost is seen
        width, height = header.upright_size
        small = shrink(height, width, LARGEST_SIDE) if max(width, height) > LARGEST_SIDE else None
        at_least = None if small is None else small.at_least(width, height)
        if manifest.options.get("decoder") == "lenient":
            image = decode_leniently(data, mode, at_least, max_pixels, header)[0]
        else:
            image = decode(data, mode, "auto", at_least, max_pixels, header)
        return image if small is None else small.apply(image, (width, height))

    def _place(self, record: int, width: int, height: int) -> tuple[list[float], bool]:
        """Return where an original of this size is in the packed image, and whether the pack's options say so."""
        packed_height, packed_width, _ = self._pack.shape_of(record)
        options = self._pack.manifest.options
        geometry = Geometry.identity(width, height)
        if options.get("resize") is not None:
            try:
                given = (options.get("fit"), options.get("pad_value"), options.get("interpolation"))
                geometry = Resize.of(str(options["resize"]), *given).geometry(width, height)
            except PackerError:
                pass
        if (geometry.width, geometry.height) != (packed_width, packed_height):  # resized twice, or by another tool
            return [0.0, 0.0, float(packed_width), float(packed_height)], False
        # a pack that was converted tells only the last resize
        converted = any(origin.command == "convert" for origin in self._pack.manifest.made_from)
        at = [geometry.c, geometry.f, geometry.a * width, geometry.e * height]
        return at, geometry.is_identity or not converted

    def _path(self, record: int) -> bytes | None:
        relative = bytes(self._pack.column("path")[record])
        # a pack of somebody else may name any path; one that is shown must also have the digest in the index
        outside = relative.startswith(b"/") or b".." in relative.split(b"/") or b"\0" in relative
        return None if outside or not relative or is_url(self._folder) else os.path.join(self._folder, relative)
