"""The kinds of parts as one table: what a record may have besides its image, from the file to the value in memory.

A row says which files are of the kind, what is read from one, how the value moves with the image, how it is stored, and
how it comes back. The build, convert, packs, loaders and containers ask the row; only what shows values to people knows
kinds by name. A new kind is a class and a line of KINDS, and its name in `packer.model.annotation.KINDS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from packer.errors import BadInput, BadMask, BadPart, UsageError, plural, printable
from packer.images.decode import Decoder, decode, orient
from packer.images.header import DEFAULT_MAX_PIXELS, Mode, check_header, read_header
from packer.images.image_headers import Header, bad_image
from packer.images.masks import MaskValues, codec, decode_mask, decode_stored, encode_mask, gray_of
from packer.images.npy_files import load_npy, npy_header, save_npy
from packer.images.pillow import decode_values
from packer.images.resize import Encoding, TargetSize, encode, resize_map
from packer.model.annotation import EXTENSIONS, MAP_DTYPES, Image, Part, PartSpec, check_names
from packer.model.strict_json import check_json, read_json

PICTURES = frozenset(("parquet", "tfrecord", "webdataset"))
"""Containers whose readers take a mask as a picture."""
_NPY = b"\x93NUMPY"


class FileFacts(NamedTuple):
    """What is known of a file from its first bytes."""

    size: tuple[int, int] | None = None
    """Upright (width, height); None if the kind has no pixels."""
    dtype: str = ""
    channels: int = 1
    """Of a map."""


class FactsFound(dict[tuple[str, int], tuple[int, bytes]]):
    """What the files of a part are: how many have each dtype and number of channels, and the first of these."""

    def add(self, dtype: str, channels: int, path: bytes, count: int = 1) -> None:
        """Count files, of which `path` is the first."""
        before, first = self.get((dtype, channels), (0, path))
        self[dtype, channels] = before + count, min(first, path)

    @property
    def text(self) -> str:
        """The counts, for a message: ``2 files of uint8 (d/a.png, ...) and 1 file of uint16 (d/b.png)``."""
        return " and ".join(
            f"{plural(count, 'file')} of {dtype} ({printable(first)}{', ...' * (count > 1)})"
            for (dtype, _), (count, first) in sorted(self.items())
        )


@dataclass(frozen=True, slots=True)
class PartRecipe:
    """The conversion of the files of a part."""

    spec: PartSpec
    encode: str
    """One of `packer.model.annotation.ENCODINGS`; "copy" for pictures that are stored as they are."""
    values: MaskValues = field(default_factory=MaskValues)
    """What the values of mask files mean."""
    mode: Mode = "rgb"
    decoder: Decoder = "auto"
    quality: int = 90
    max_pixels: int = DEFAULT_MAX_PIXELS

    def bytes_of(self, pixels: int) -> int:
        """Return about how many bytes so many pixels take: compressed, a few per cent."""
        return pixels * np.dtype(self.spec.dtype or "uint8").itemsize // (1 if self.encode == "raw" else 30)


class PartKind:
    """A kind of part: this one of bytes that are stored as they are."""

    name: ClassVar[str] = "bytes"
    of_pixels: ClassVar[bool] = False
    """Whether a value has a row for each row of the image's pixels, and moves with them."""
    in_pictures: ClassVar[bool] = False
    """Whether its files are pictures."""
    endings: ClassVar[frozenset[bytes]] = frozenset()
    """The extensions of its other files, in lower case."""
    stored: ClassVar[str] = "bytes"
    """The encoding of kinds without pixels."""
    error: ClassVar[type[BadPart]] = BadPart
    """That of a bad file."""

    def facts(self, data: bytes, complete: bool, size: int, max_pixels: int) -> FileFacts:
        """Return what the first bytes of a file of `size` bytes say, of which `data` are `complete`.

        Raises:
            BadInput: It cannot be read.
        """
        return FileFacts()

    def read(self, data: bytes, recipe: PartRecipe) -> Any:
        """Return the value in a file. Raise BadInput if there is none."""
        return data

    def part(self, data: bytes, recipe: PartRecipe, image: Header, resize: TargetSize | None) -> Part:
        """Return the part of a record, out of its file.

        Args:
            data: All bytes of the file.
            recipe: How it is converted.
            image: The header of the record's image.
            resize: How that is resized.

        Raises:
            BadInput: The file cannot be read, or does not fit the image.
        """
        if not self.of_pixels:
            resize = None
        return self.stored_part(self.upright(data, recipe, image), recipe, resize)

    def upright(self, data: bytes, recipe: PartRecipe, image: Header) -> Any:
        """Return the value in a file, that of pixels upright as the image is; arguments and errors as of `part`."""
        value = self.read(data, recipe)
        return _upright(value, image) if self.of_pixels else value

    def stored_part(self, value: Any, recipe: PartRecipe, resize: TargetSize | None) -> Part:
        """Return the part of a record, out of its value."""
        value = value if resize is None else self.resized(value, resize, recipe.spec)
        return Part(recipe.spec.name, self.encode(value, recipe.encode, recipe.quality), recipe.encode)

    def resized(self, value: Any, resize: TargetSize, spec: PartSpec) -> Any:
        """Return a value of pixels as that of the resized image."""
        raise NotImplementedError

    def encode(self, value: Any, encoding: str, quality: int = 90) -> bytes:
        """Return a value as it is stored."""
        data: bytes = value
        return data

    def decode(self, data: bytes | memoryview, encoding: str, shape: tuple[int, int], spec: PartSpec, mode: str) -> Any:
        """Return the value that is stored, for an image of this (height, width) in this color mode.

        Raises:
            BadImage: It is damaged.
        """
        return bytes(data)

    def as_file(self, value: Any, encoding: str, data: bytes) -> tuple[str, bytes]:
        """Return the extension and the content of a file of a value, which is stored as `data`."""
        return EXTENSIONS[encoding], data

    def as_bytes(self, value: Any) -> bytes:
        """Return the content of a file of a value in memory, of which `read` makes it again."""
        if not self.of_pixels:
            return self.encode(value, "")
        pixels = np.asarray(value)
        if self.name != "map" and pixels.dtype.name not in ("uint8", "uint16"):
            raise ValueError(f"it is of {pixels.dtype}, not of uint8 or uint16")
        return self.as_file(pixels[..., None] if pixels.ndim == 2 and self.name == "image" else pixels, "raw", b"")[1]

    def encoding(self, container: str, encode: str | None, spec: PartSpec) -> str:
        """Return how values are stored in a container if nobody says it, beside images in the encoding `encode`."""
        return self.stored

    def spec(self, found: FactsFound, recipe: PartRecipe) -> PartSpec:
        """Return the spec of a pack's part; `found` is what its files are.

        Raises:
            UsageError: They do not fit together.
        """
        return recipe.spec


class MaskKind(PartKind):
    """The id of a class for each pixel: it takes the value below the center, so that none is made up."""

    name = "mask"
    of_pixels = in_pictures = True
    error = BadMask

    def facts(self, data: bytes, complete: bool, size: int, max_pixels: int) -> FileFacts:
        return _facts_of_picture(data, complete, size, max_pixels)

    def read(self, data: bytes, recipe: PartRecipe) -> Any:
        return decode_mask(data, recipe.values, recipe.spec.dtype, recipe.max_pixels)

    def resized(self, value: Any, resize: TargetSize, spec: PartSpec) -> Any:
        return resize.apply_to_mask(value, spec.border)

    def encode(self, value: Any, encoding: str, quality: int = 90) -> bytes:
        return encode_mask(value, encoding)

    def as_file(self, value: Any, encoding: str, data: bytes) -> tuple[str, bytes]:
        return "png", encode_mask(value, "png")

    def decode(self, data: bytes | memoryview, encoding: str, shape: tuple[int, int], spec: PartSpec, mode: str) -> Any:
        return decode_stored(data, encoding, shape, spec.dtype)

    def encoding(self, container: str, encode: str | None, spec: PartSpec) -> str:
        return "png" if container in PICTURES else "raw" if encode == "raw" else "zstd"

    def spec(self, found: FactsFound, recipe: PartRecipe) -> PartSpec:
        values, spec = recipe.values, recipe.spec
        deep = values.most > 255 or (not values.classes and "uint16" in {spec.dtype, *(dtype for dtype, _ in found)})
        return replace(spec, dtype="uint16" if deep else "uint8")


class MapKind(PartKind):
    """A number for each pixel, or several: depth, a heat map. It is interpolated, but never across what is unknown.

    Unknown are NaN, infinity and the value to ignore, which is 0 in whole numbers, as sensors of depth write it.
    """

    name = "map"
    of_pixels = in_pictures = True
    endings = frozenset((b".npy",))

    def facts(self, data: bytes, complete: bool, size: int, max_pixels: int) -> FileFacts:
        if data.startswith(b"\xff\xd8"):
            raise BadPart("", "is a JPEG, which changes values", "save maps as PNG, TIFF or .npy")
        if not data.startswith(_NPY):
            return _facts_of_picture(data, complete, size, max_pixels)
        shape, _, dtype, _ = npy_header(data)
        if len(shape) not in (2, 3) or dtype.name not in (*MAP_DTYPES, "float64"):
            problem = f"is an array of {dtype.name} {shape}, not of {', '.join(MAP_DTYPES)} (height, width)"
            raise bad_image(problem, "save it as such a one; other arrays are of the kind array")
        channels = shape[2] if len(shape) == 3 else 1
        return FileFacts((shape[1], shape[0]), "float32" if dtype.name == "float64" else dtype.name, channels)

    def read(self, data: bytes, recipe: PartRecipe) -> Any:
        if data.startswith(_NPY):
            value = load_npy(data)
        else:
            self.facts(data, True, len(data), recipe.max_pixels)
            value = gray_of(decode_values(data, read_header(data)))
        name = "float32" if value.dtype.name == "float64" else value.dtype.name
        spec, channels = recipe.spec, value.shape[2] if value.ndim == 3 else 1
        fits = np.can_cast(name, spec.dtype) and np.dtype(name).kind == np.dtype(spec.dtype).kind
        if name not in MAP_DTYPES or not fits or channels != spec.channels:
            problem = f"has {channels} values of {value.dtype} for each pixel, others {spec.channels} of {spec.dtype}"
            raise bad_image(problem, "save all of them alike")
        try:
            with np.errstate(over="raise"):
                return np.ascontiguousarray(value.reshape(value.shape[:2]) if channels == 1 else value, spec.dtype)
        except FloatingPointError:
            problem = f"has values that {spec.dtype} cannot hold: up to {np.abs(value[np.isfinite(value)]).max():.3g}"
            raise bad_image(problem, "save them in another unit, or no value as nan") from None

    def resized(self, value: Any, resize: TargetSize, spec: PartSpec) -> Any:
        return resize.place(value, spec.border, partial(resize_map, ignore=spec.ignore))

    def encode(self, value: Any, encoding: str, quality: int = 90) -> bytes:
        if encoding in ("png", "npy"):
            return encode_mask(value, "png") if encoding == "png" else save_npy(value)
        data = value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        # bytes of equal weight side by side are compressed to much less (Blosc, HDF5: shuffle)
        return data if encoding == "raw" else bytes(codec().compress(_planes(data, value.itemsize)))

    def decode(self, data: bytes | memoryview, encoding: str, shape: tuple[int, int], spec: PartSpec, mode: str) -> Any:
        dtype, pixels = np.dtype(spec.dtype).newbyteorder("<"), shape[0] * shape[1]
        channels = spec.channels
        try:
            if encoding == "png" and dtype.kind == "u":
                return decode_stored(data, encoding, shape, spec.dtype)
            if encoding in ("npy", "png"):
                values = load_npy(bytes(data))
            else:
                if encoding == "zstd":
                    planes = codec().decompress(data, decompressed_size=pixels * channels * dtype.itemsize)
                    data = _planes(planes, len(planes) // dtype.itemsize)
                values = np.frombuffer(data, dtype)
            if values.dtype != dtype:
                raise ValueError(f"its values are {values.dtype}")
            return values.reshape(shape if channels == 1 else (*shape, channels))
        except (OSError, ValueError) as error:  # of Arrow and numpy
            raise bad_image(f"is not a map of {shape[1]}x{shape[0]} pixels, {dtype}: {error}") from None

    def as_file(self, value: Any, encoding: str, data: bytes) -> tuple[str, bytes]:
        is_gray = value.dtype.kind == "u" and value.ndim == 2
        return ("png", encode_mask(value, "png")) if is_gray else ("npy", save_npy(value))

    def encoding(self, container: str, encode: str | None, spec: PartSpec) -> str:
        if container in PICTURES:
            return "png" if spec.dtype.startswith("uint") and spec.channels == 1 else "npy"
        return "raw" if encode == "raw" else "zstd"

    def spec(self, found: FactsFound, recipe: PartRecipe) -> PartSpec:
        spec = recipe.spec
        if len({np.dtype(dtype).kind for dtype, _ in found}) > 1:  # 0 is unknown in the one, and a value in the other
            raise UsageError(spec.name, f"has {found.text}", "save all in one unit and type, or as parts of two names")
        dtypes = [*filter(None, [spec.dtype]), *(dtype for dtype, _ in found)]
        dtype = str(np.result_type(*dtypes)) if dtypes else "uint8"
        ignore = 0 if spec.ignore is None and dtype.startswith("uint") else spec.ignore
        return replace(spec, dtype=dtype, ignore=ignore, channels=max([spec.channels, *(many for _, many in found)]))


class PictureKind(PartKind):
    """Another image of the same size: the right one of a pair, the target of a translation."""

    name = "image"
    of_pixels = in_pictures = True

    def facts(self, data: bytes, complete: bool, size: int, max_pixels: int) -> FileFacts:
        return _facts_of_picture(data, complete, size, max_pixels)

    def read(self, data: bytes, recipe: PartRecipe) -> Any:
        header = read_header(data)
        check_header(header, recipe.max_pixels, "first")
        value = decode(data, recipe.mode, recipe.decoder, None, recipe.max_pixels, header)
        if recipe.encode == "raw" and value.dtype != recipe.spec.dtype:
            raise bad_image(f"has {value.dtype} pixels, but others of its part {recipe.spec.dtype}", "save all alike")
        return value

    def part(self, data: bytes, recipe: PartRecipe, image: Header, resize: TargetSize | None) -> Part:
        if recipe.encode != "copy":
            return super().part(data, recipe, image, resize)
        header = read_header(data)
        if header.upright_size != image.upright_size:
            raise _of_other_size(header.upright_size, image)
        self.read(data, recipe)
        return Part(recipe.spec.name, data, header.format)

    def resized(self, value: Any, resize: TargetSize, spec: PartSpec) -> Any:
        return resize.apply(value)

    def encode(self, value: Any, encoding: str, quality: int = 90) -> bytes:
        return encode(value, cast(Encoding, encoding), quality)

    def decode(self, data: bytes | memoryview, encoding: str, shape: tuple[int, int], spec: PartSpec, mode: str) -> Any:
        if encoding != "raw":
            value: Image = decode(bytes(data), cast(Mode, mode), max_pixels=shape[0] * shape[1])
        else:
            dtype = np.dtype(spec.dtype or "uint8").newbyteorder("<")
            size = shape[0] * shape[1] * dtype.itemsize
            if not size or not len(data) or len(data) % size:
                raise bad_image(f"has {len(data)} bytes, which is no picture of {shape[1]}x{shape[0]} pixels")
            value = np.frombuffer(data, dtype).reshape(*shape, -1)
        if value.shape[:2] != shape:
            raise bad_image(f"has {value.shape[1]}x{value.shape[0]} pixels, but its image {shape[1]}x{shape[0]}")
        return value

    def as_file(self, value: Any, encoding: str, data: bytes) -> tuple[str, bytes]:
        return super().as_file(value, encoding, data) if encoding != "raw" else ("png", encode(value, "png"))

    def encoding(self, container: str, encode: str | None, spec: PartSpec) -> str:
        return "png" if container in PICTURES and encode == "raw" else encode or "copy"

    def spec(self, found: FactsFound, recipe: PartRecipe) -> PartSpec:
        is_deep = recipe.mode == "unchanged" and "uint16" in {recipe.spec.dtype, *(dtype for dtype, _ in found)}
        return replace(recipe.spec, dtype="uint16" if is_deep else "uint8")


class ArrayKind(PartKind):
    """Numbers that belong to the image as a whole: an embedding, the logits of a teacher, the matrix of a camera."""

    name = "array"
    stored = "npy"
    endings = frozenset((b".npy",))

    def read(self, data: bytes, recipe: PartRecipe) -> Any:
        return load_npy(data)

    def encode(self, value: Any, encoding: str, quality: int = 90) -> bytes:
        return save_npy(np.asarray(value))

    def decode(self, data: bytes | memoryview, encoding: str, shape: tuple[int, int], spec: PartSpec, mode: str) -> Any:
        return load_npy(bytes(data))


class TextKind(PartKind):
    """A text, such as a caption."""

    name = "text"
    stored = "txt"
    endings = frozenset((b".txt", b".caption"))

    def read(self, data: bytes, recipe: PartRecipe) -> Any:
        try:
            return data.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise BadPart("", f"is not UTF-8 text: {error}", "save it as UTF-8") from None

    def encode(self, value: Any, encoding: str, quality: int = 90) -> bytes:
        return bytes(value.encode("utf-8"))

    def decode(self, data: bytes | memoryview, encoding: str, shape: tuple[int, int], spec: PartSpec, mode: str) -> Any:
        try:
            return bytes(data).decode("utf-8")
        except UnicodeDecodeError as error:
            raise bad_image(f"is not UTF-8 text: {error}") from None


class JsonKind(PartKind):
    """Any value of JSON: several captions, what else is known of an image."""

    name = "json"
    stored = "json"
    endings = frozenset((b".json",))

    def read(self, data: bytes, recipe: PartRecipe) -> Any:
        return self.decode(data.removeprefix(b"\xef\xbb\xbf"), "json", (0, 0), recipe.spec, "rgb")

    def encode(self, value: Any, encoding: str, quality: int = 90) -> bytes:
        text = json.dumps(value, allow_nan=False)
        check_json(text, value)
        return text.encode("ascii")

    def decode(self, data: bytes | memoryview, encoding: str, shape: tuple[int, int], spec: PartSpec, mode: str) -> Any:
        try:
            return read_json(bytes(data))
        except ValueError as error:
            raise bad_image(f"is not JSON: {error}") from None


_ROWS: tuple[PartKind, ...] = (
    PartKind(), MaskKind(), MapKind(), PictureKind(), ArrayKind(), TextKind(), JsonKind(),
)  # fmt: skip
BY_KIND = {kind.name: kind for kind in _ROWS}
"""Name -> row, in the order of `packer.model.annotation.KINDS`."""


def decode_part(
    data: bytes | memoryview, encoding: str, shape: tuple[int, int], spec: PartSpec, mode: str,
    damaged: Callable[[str], Exception],
) -> Any:  # fmt: skip
    """Return the value of a part that is stored; `damaged` makes the error of what is wrong with it."""
    try:
        return BY_KIND[spec.kind].decode(data, encoding, shape, spec, mode)
    except BadInput as error:
        raise damaged(f"has a {spec.name} that {error.problem}") from None


def check_kinds(parts: Mapping[str, str]) -> Mapping[str, str]:
    """Return the kinds of parts by name. Raise UsageError if a pack cannot have them beside masks."""
    try:
        check_names(["mask", *parts])
    except ValueError as error:
        raise UsageError("parts", str(error), "name them otherwise") from None
    if unknown := [kind for kind in parts.values() if kind not in BY_KIND]:
        raise UsageError("parts", f"{printable(unknown[0])} is no kind of part: {', '.join(BY_KIND)}", "choose one")
    return parts


def part_of_value(value: Any, recipe: PartRecipe, container: str, encode: str, image: Header) -> tuple[PartSpec, Part]:
    """Return the part of a record out of a value in memory, or out of the bytes of a file, and the spec of the part.

    The spec of `recipe` has no dtype for the first value of pixels. `encode` is how images are stored in the container,
    `image` the header of the record's.

    Raises:
        BadInput: It is no value of the kind, or does not fit the image.
    """
    kind = BY_KIND[recipe.spec.kind]
    try:
        data = value if isinstance(value, bytes) else kind.as_bytes(value)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise BadPart("", f"is no value of the kind {kind.name}: {error}") from None
    spec = recipe.spec
    if kind.of_pixels and not spec.dtype:
        facts = kind.facts(data, True, len(data), recipe.max_pixels)
        spec = kind.spec(FactsFound({(facts.dtype, facts.channels): (1, b"")}), recipe)
    recipe = replace(recipe, spec=spec, encode=kind.encoding(container, encode, spec))
    return spec, kind.part(data, recipe, image, None)


def check_size(size: tuple[int, int], image: Header) -> None:
    """Raise BadPart if a part of this (width, height) is not of an image with this header."""
    if size not in (image.upright_size, (image.width, image.height)):
        raise _of_other_size(size, image)


def _of_other_size(size: tuple[int, int], image: Header) -> BadPart:
    width, height = image.upright_size
    problem = f"has {size[0]}x{size[1]} pixels, but the image {width}x{height}"
    return BadPart("", problem, "make it as large as its image")


def _upright(value: Any, image: Header) -> Any:
    """Return a value upright: as it is if it has the image's upright size, else turned like its pixels."""
    size = value.shape[1], value.shape[0]
    check_size(size, image)
    if size == image.upright_size:
        return value
    return orient(value.reshape(*value.shape[:2], -1), image.orientation).reshape(*value.shape[1::-1], *value.shape[2:])


def _facts_of_picture(data: bytes, complete: bool, size: int, max_pixels: int) -> FileFacts:
    header = read_header(data, complete, size)
    check_header(header, max_pixels, "first")
    return FileFacts(header.upright_size, "uint16" if header.bit_depth > 8 else "uint8")


def _planes(data: bytes, width: int) -> bytes:
    """Return rows of `width` bytes as columns; of as many bytes as there were rows, that undoes it."""
    return data if width in (0, 1) else np.frombuffer(data, np.uint8).reshape(-1, width).T.tobytes()
