"""`packer.PackWriter`: a pack of images in memory, as generators and arrays give them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, cast

import numpy as np
from xxhash import xxh3_128_digest

import packer
from packer.containers import container_names, container_of
from packer.containers.container import EXTENSIONS, ShardSpec
from packer.errors import AnyPath, BadImage, BadInput, BadLabel, BadMask, BadPart, UsageError, option, plural, printable
from packer.format.index import read_index
from packer.format.manifest import Manifest, Origin, ShardEntry, of_parts
from packer.images.header import check_header, decoded_shape, read_header
from packer.images.image_headers import Header
from packer.images.masks import LARGEST, MaskValues, encode_mask
from packer.images.opencv import quiet_opencv
from packer.images.parts import BY_KIND, PartRecipe, check_kinds, part_of_value
from packer.images.resize import Encoding, encode
from packer.model.annotation import Part, PartSpec, RawAnnotation, Record
from packer.model.fields import BY_NAME, FIELDS, INSTANCES, POLYGONS, Field, Lists, listed_fields
from packer.model.rle import check_installed
from packer.model.rle import encode as encode_rle
from packer.packing.build_options import DEFAULT_CONTAINER, DEFAULT_MAX_PIXELS, DEFAULT_QUALITY, check_extension
from packer.packing.partition import checked_texts
from packer.packing.plan import MOST_RECORDS, shard_name
from packer.packing.publish import Output, check_folder
from packer.packing.resolve import ClassIds, NumberedClasses, Resolver, similar_names
from packer.packing.resume import library_versions
from packer.packing.write_shard import ConvertedInput, NewShard, files_of, name_files
from packer.repack.index_columns import recount
from packer.sources.box_corners import extent
from packer.sources.coco_objects import read_rle, rle_text
from packer.sources.mask_files import MASK
from packer.sources.paths import MOST_CLASSES
from packer.system.atomic import make_own_folder
from packer.system.registry import choose

ENCODINGS = ("raw", "jpeg", "png", "bmp")
SHARD_BYTES = 128 << 20
MOST_KEYS = 10**8
"""Keys have 8 digits."""
PIXELS = {"uint8": 8, "uint16": 16}
WRITABLE = tuple(field.name for field in FIELDS if field.name not in ("label", "tags", "rles"))
"""Tags need names for the whole pack, which a list has; `masks` are run lengths."""


class PackWriter:
    """Writes a pack of images in memory: of arrays, generators, other datasets.

    ``with PackWriter("new.lmdb") as writer: writer.write(image, label=3)``. The pack is there when the block ends, and
    not if it raises. A shard is held in memory until it is written.

    Args:
        out: Path of the new pack.
        format: One of `packer.containers.CONTAINERS`. None: by the extension of `out`, else lmdb.
        classes: The names of the classes, in the order of their ids. None: labels are numbers.
        encode: How arrays are stored: raw, jpeg, png or bmp.
        quality: JPEG quality, 1 to 100.
        shard_bytes: Approximate bytes of images per shard, as they are stored.
        overwrite: Replace an existing pack.
        mask_classes: The names of the ids in masks. None: those of `classes`.
        ignore_id: The id of pixels of masks that are of no class. None: there are none.
        parts: What else records have: name -> kind, one of mask, map, image, array, text and json.

    Raises:
        UsageError: A value is out of range, or the pack cannot be written there.
        StorageError: The disk refuses.
    """

    def __init__(  # noqa: PLR0913 - the options of a pack
        self,
        out: AnyPath,
        *,
        format: str | None = None,
        classes: Sequence[str] | None = None,
        encode: str = "raw",
        quality: int = DEFAULT_QUALITY,
        shard_bytes: int = SHARD_BYTES,
        overwrite: bool = False,
        mask_classes: Sequence[str] | None = None,
        ignore_id: int | None = 255,
        parts: Mapping[str, str] | None = None,
    ) -> None:
        check_folder(out, "PackWriter")
        path = os.fsdecode(out)
        check_extension(path, "", "")
        named = choose(option("format"), format, container_names()) if format else container_of(path)
        self._container: str = named or DEFAULT_CONTAINER
        self._encode = cast(Encoding, choose(option("encode"), encode, ENCODINGS))
        if not 1 <= quality <= 100:
            raise UsageError(option("quality"), f"must be 1 to 100, got {quality}")
        if shard_bytes < 1:
            raise UsageError(option("shard-size"), f"must be at least 1, got {shard_bytes}")
        self._quality, self._shard_bytes = quality, shard_bytes
        self._classes = None if classes is None else _names(classes)
        self._ids = NumberedClasses() if self._classes is None else ClassIds(self._classes)
        self._resolver = Resolver(self._ids, "fail")
        kinds = check_kinds(parts or {}).items()
        self._parts = {n: PartRecipe(PartSpec(n, kind), "", mode="unchanged", quality=quality) for n, kind in kinds}
        self._masks: PartSpec | None = None
        """What masks are, if the first record has one."""
        self._mask_values = MaskValues(
            self._classes or () if mask_classes is None else _names(mask_classes),
            None if ignore_id is None else check_ignored(ignore_id),
        )
        self._paths: set[bytes] = set()
        self._waiting: list[Record] = []
        self._waiting_bytes = self._count = self._unlabelled = 0
        self._numbers: int | None = None
        """In the value of each record."""
        self._kinds: set[tuple[str, int]] = set()
        self._fields: set[str] = set()
        self._shards: list[ShardEntry] = []
        self._output: Output | None = Output(path, "", overwrite)
        self._output.__enter__()
        if self._output.journal.finished_shards:
            self._output.__exit__()
            place = self._output.place
            raise UsageError(place, "holds finished shards of a build", "run that build again, or remove the folder")
        self._output.restart()
        make_own_folder(self._output.folder)

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __len__(self) -> int:
        """The number of records written so far."""
        return self._count

    def write(
        self, image: Any, label: int | str | None = None, *, path: AnyPath | None = None, mask: Any = None,
        masks: Any = None, parts: Mapping[str, Any] | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """Add a record. If it raises, nothing is added, and others can follow.

        Args:
            image: uint8 or uint16 (height, width) or (height, width, channels), gray, RGB or RGBA; or the bytes of an
                image file, which are stored as they are.
            label: Its class: a number, or a name of `classes`.
            path: Its name, another one for each. None: its number.
            mask: The id of the class of each pixel, uint8 or uint16 (height, width). A pack has masks if its first
                record has one; others may then lack theirs.
            masks: That of the object in each box: arrays (k, height, width) that are not 0 where it is; or run lengths
                as pycocotools makes them, ``{"size": [height, width], "counts": ...}``, and None for an object without.
                In place of outlines.
            parts: The value of each of the pack's `parts` that it has: arrays, texts, values of JSON; or the bytes of a
                file. The first record has all that have pixels.
            fields: What else is known of it, in pixels, by the names of `packer.types.Annotation`: ``boxes=[[xmin,
                ymin, xmax, ymax]], box_labels=[3]``, points, ``obb`` (without boxes), ``extras={"night": True}``.

        Raises:
            TypeError: There is no field of this name.
            BadImage: It is not an image that a pack can hold.
            BadLabel: An annotation does not fit.
            BadMask: The mask has another size, or a value that is no class.
            UsageError: Arrays and files are mixed, or a name is given twice.
        """
        if self._output is None:
            raise UsageError("PackWriter", "is closed", "write before the end of its with block")
        if self._count >= MOST_KEYS:
            raise UsageError("PackWriter", f"holds {MOST_KEYS:,} records", "begin another pack")
        data, encoding, header, shape, dtype = self._stored(image)
        name = self._name(path, encoding)
        where = f"record {self._count}" if path is None else os.fsdecode(name)
        values = {field.name: self._value(field, value, where) for field, value in _given_fields(fields)}
        if masks is not None:
            if values.get(POLYGONS.name):
                problem = f"has {POLYGONS.name} and masks, and a record keeps one of them"
                raise BadLabel(where, problem, f"give masks=, which are exact, or {POLYGONS.name}=")
            values[INSTANCES.name] = tuple(_shape(one, shape[:2], where) for one in masks)
        values = {"boxes": tuple(map(extent, values["obb"])), **values} if "obb" in values else values
        boxes = len(values.get("boxes", ()))
        for field in FIELDS:
            for each in _per_box(field, values.get(field.name)):
                if len(each) != boxes:
                    what = field.target if field is INSTANCES else field.name
                    problem = f"has {len(each)} {what} for {plural(boxes, 'box')}"
                    raise BadLabel(where, problem, "give one for each box")
        raw = RawAnnotation(where, None if label is None else self._class(label, where), **values)
        annotation = self._resolver.annotation([raw], header, name)
        checked_texts(annotation, name)
        stored = [self._part(part, value, header, where) for part, value in (parts or {}).items()]
        if mask is not None:
            stored.append(self._mask(mask, shape[:2], where))
        for recipe in () if self._count else self._parts.values():
            if BY_KIND[recipe.spec.kind].of_pixels and not recipe.spec.dtype:
                raise UsageError(where, f"has no {recipe.spec.name}", "give the first record one: the others are alike")
        key, digest = f"{self._count:08d}", xxh3_128_digest(data)
        record = Record(key, data, encoding, *shape, dtype, annotation, name, digest, tuple(stored))
        self._add(record, path is not None)

    def close(self) -> None:
        """Write what is left, and publish the pack.

        Raises:
            UsageError: No record was written.
            StorageError: The disk refuses.
        """
        if self._output is None:
            return
        try:
            if not self._count:
                raise UsageError(self._output.path, "has no record", "write at least one image")
            self._flush(last=True)
            self._output.publish(self._manifest(self._output), ())
        finally:
            self.discard()

    def discard(self) -> None:
        """Leave the pack unwritten; does nothing after `close`."""
        if self._output is not None:
            output, self._output = self._output, None
            output.__exit__()

    def _stored(self, image: Any) -> tuple[bytes, str, Header, tuple[int, int, int], str]:
        """Return the bytes of an image, their encoding, a header of their size, shape and dtype of the pixels."""
        where = f"record {self._count}"
        try:
            if isinstance(image, bytes | bytearray | memoryview):
                data = bytes(image)
                header = read_header(data)
                check_header(header, DEFAULT_MAX_PIXELS, "fail")
                height, width, channels, dtype = decoded_shape(header, "rgb")
                kind = "file"
                encoding = header.format
            else:
                pixels = _pixels(image)
                height, width, channels = pixels.shape
                dtype, kind, encoding = pixels.dtype.name, "array", self._encode
                with quiet_opencv():
                    data = encode(pixels, self._encode, self._quality)
                header = Header("png", width, height, channels, PIXELS[dtype])
        except BadImage as error:
            raise BadImage(where, error.problem, error.next_step) from None
        if self._kinds and (kind == "file") != self._is_of_files:
            step = "write image files only, or decode them"
            raise UsageError(where, f"is an {'image file' if kind == 'file' else 'array'}, but others are not", step)
        self._is_of_files = kind == "file"
        return data, encoding, header, (height, width, channels), dtype

    def _mask(self, mask: Any, size: tuple[int, int], where: str) -> Part:
        """Return the mask of an image of this (height, width) as it is stored."""
        values = np.asarray(mask)
        if values.dtype.name not in PIXELS or values.shape != size:
            problem = f"has a mask of {values.dtype} {values.shape}, not of uint8 or uint16 {size}"
            raise BadMask(where, problem, "give the id of each pixel's class: mask.astype(numpy.uint8)")
        spec, known = self._masks, self._mask_values
        if spec is None:
            if self._count:
                raise UsageError(where, "has a mask, but the first record has none", "give that one a mask, too")
            is_deep = values.dtype.itemsize > 1 or known.most > 255
            spec = PartSpec(MASK, "mask", "uint16" if is_deep else "uint8", known.classes, known.ignore)
        encoding = BY_KIND[MASK].encoding(self._container, self._encode if not self._is_of_files else "copy", spec)
        try:
            part = Part(MASK, encode_mask(known.ids_of(values, spec.dtype), encoding), encoding)
        except BadMask as error:
            raise BadMask(where, error.problem, error.next_step) from None
        self._masks = spec
        return part

    def _part(self, name: str, value: Any, image: Header, where: str) -> Part:
        if (recipe := self._parts.get(name)) is None:
            step = 'name its kind: PackWriter(OUT, parts={"depth": "map"})'
            raise UsageError(where, f"has the part {printable(name)}", step)
        encode = "copy" if self._is_of_files else self._encode
        try:
            with quiet_opencv():
                spec, part = part_of_value(value, recipe, self._container, encode, image)
        except BadInput as error:
            raise BadPart(where, f"has a {name} that {error.problem}", error.next_step) from None
        self._parts[name] = replace(recipe, spec=spec)
        return part

    @property
    def _part_specs(self) -> tuple[PartSpec, ...]:
        others = tuple(recipe.spec for recipe in self._parts.values())
        return others if self._masks is None else (self._masks, *others)

    _is_of_files = False

    def _name(self, path: AnyPath | None, encoding: str) -> bytes:
        if path is None:
            return f"{self._count:08d}.{EXTENSIONS[encoding]}".encode("ascii")
        name = os.fsencode(path)
        if not name or b"\0" in name or name in self._paths:
            raise UsageError(
                printable(name), "cannot be the name of a record, or was given before", "give each its own"
            )
        return name

    def _value(self, field: Field, value: Any, where: str) -> Any:
        """Return the value of a field as a `RawAnnotation` has it."""
        if not field.kind.is_numeric and not isinstance(value, Mapping):
            raise BadLabel(where, f"has {field.name} that is not a mapping", f'write {field.name}={{"name": value}}')
        if not field.kind.is_numeric:
            return {name: tuple(one) if field.per_box else one for name, one in dict(value).items()}
        if field.classes:
            return tuple(self._class(one, where) for one in value)
        if isinstance(field.kind, Lists) and not field.kind.alike:
            return tuple(_rows(one, (None, field.kind.item.width), where, field.name) for one in value)
        if not isinstance(field.kind, Lists) and not field.kind.width:
            return _rows(np.atleast_1d(value), (self._numbers,), where, field.name)
        return _rows(value, field.kind.shape, where, field.name)

    def _class(self, label: int | str, where: str) -> str:
        """Return the name of a class."""
        if isinstance(label, str):
            if self._classes is None:
                problem = f'has the class "{printable(label)}", but the pack has no names of classes'
                raise BadLabel(where, problem, "give them: PackWriter(OUT, classes=[...])")
            return label
        number = -1 if isinstance(label, bool) else int(label)
        most = (MOST_CLASSES if self._classes is None else len(self._classes)) - 1
        if number != label or not 0 <= number <= most:
            raise BadLabel(where, f"has the class {label}, not one of 0 to {most}", "correct the label")
        return str(number) if self._classes is None else self._classes[number]

    def _add(self, record: Record, named: bool) -> None:
        if named:
            self._paths.add(record.path)
        annotation = record.annotation
        self._fields.update(listed_fields(annotation))
        if annotation.value is not None:
            self._numbers = len(annotation.value)
        self._unlabelled += annotation.label is None and annotation.boxes is None
        self._kinds.add((record.dtype, record.channels))
        self._waiting.append(record)
        self._waiting_bytes += len(record.data)
        self._count += 1
        if self._waiting_bytes >= self._shard_bytes or len(self._waiting) >= MOST_RECORDS:
            self._flush()

    def _flush(self, last: bool = False) -> None:
        """Write a shard of the records that wait."""
        if not self._waiting:
            return
        assert self._output is not None
        number, records, folder = len(self._shards), self._waiting, self._output.folder
        shapes = {(record.shape, record.dtype) for record in records}
        one = len(shapes) == 1 and self._encode == "raw" and not self._is_of_files
        spec = ShardSpec(
            self._names_so_far, self._encoding, records[0].shape if one else None, records[0].dtype, len(records),
            self._waiting_bytes, self._part_specs,
        )  # fmt: skip
        name = shard_name(self._container, number, 1 if last and not number else 2)
        shard = NewShard(folder=folder, name=name, container=self._container, spec=spec, bad_allowed=0)
        result = shard.write(_convert_ahead(records), lambda done, bad: None)
        name_files(folder, name, result.attempt)
        assert result.entry is not None
        self._shards.append(result.entry)
        self._waiting, self._waiting_bytes = [], 0

    @property
    def _encoding(self) -> str:
        return "copy" if self._is_of_files else self._encode

    @property
    def _names_so_far(self) -> tuple[str, ...]:
        return self._ids.names_of_all if isinstance(self._ids, NumberedClasses) else self._classes or ()

    def _manifest(self, output: Output) -> Manifest:
        notes = list(similar_names(self._names_so_far))
        if self._unlabelled and {"label", "boxes"} & self._fields:
            notes.append(f"{plural(self._unlabelled, 'image has', 'images have')} neither a label nor boxes")
        kinds = set() if self._is_of_files else self._kinds
        mode = "rgb" if not kinds or kinds == {("uint8", 3)} else "gray" if kinds == {("uint8", 1)} else "unchanged"
        manifest = Manifest(
            container=self._container,
            encoding=self._encoding,
            mode=mode,
            dtype=None,
            shape=None,
            classes=self._names_so_far,
            fields=tuple(sorted(self._fields)),
            records=self._count,
            counts={"found": 0, "packed": 0, "rejected": 0, "skipped": 0},
            class_counts={},
            options={"encode": self._encoding, "labels": ["none"], "mode": mode, "quality": self._quality},
            shards=(),
            **of_parts(self._part_specs),
            notes=tuple(notes),
            made_from=(Origin("PackWriter", "images in memory", ""),),
            packer=packer.__version__,
            libraries=library_versions(),
        )
        paths = (files_of(output.folder, shard.container.name)[1] for shard in self._shards)
        return recount(manifest, self._shards, map(read_index, paths))


def check_ignored(value: Any) -> int:
    """Return the id to ignore in masks. Raise UsageError if masks cannot have it."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        raise UsageError(option("ignore-id"), f"must be 0 to {LARGEST}, got {value!r}", "write ignore_id=255, or None")
    return value


def _shape(mask: Any, size: tuple[int, int], where: str) -> Any:
    """Return the mask of an object in an image of this (height, width) as a `RawAnnotation` has it."""
    if mask is None:
        return ()
    if isinstance(mask, Mapping):
        counts = mask.get("counts")
        try:
            text = counts.decode("ascii", "replace") if isinstance(counts, bytes) else counts
            height, width, lengths = read_rle([*mask.get("size", ())], text)
        except ValueError as error:
            raise BadMask(where, f"has a mask of an object, but {error}", "give it as pycocotools makes it") from None
        return {"size": [height, width], "counts": rle_text(lengths)}
    check_installed(what="PackWriter")
    array = np.asarray(mask)
    if array.shape != size or array.dtype.kind not in "bui":
        problem = f"has a mask of an object of {array.dtype} {array.shape}, not of uint8 or bool {size}"
        raise BadMask(where, problem, "give masks=(k, height, width)")
    return {"size": list(size), "counts": encode_rle(array).tobytes().decode("ascii")}


def _names(classes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(classes)
    if isinstance(classes, str) or not all(isinstance(name, str) and name for name in names):
        raise UsageError(option("classes"), f"must be names, got {classes!r}", 'write classes=["ant", "bee"]')
    if len(set(names)) < len(names):
        raise UsageError(option("classes"), "has a name twice", "name each class once")
    return names


def _pixels(image: Any) -> Any:
    """Return an array (height, width, channels) of pixels in C order. Raise BadImage for anything else."""
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.dtype.name not in PIXELS or pixels.ndim != 3 or not 0 < pixels.shape[2] <= 4 or 0 in pixels.shape:
        problem = f"an array of {pixels.dtype} {pixels.shape}, not of uint8 or uint16 (height, width, 1 to 4)"
        step = "convert it: (255 * image).astype(uint8)"
        if isinstance(image, str | os.PathLike):
            step = "read it: Path(image).read_bytes()"
        if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4):
            step = "move its channels: image.transpose(1, 2, 0)"
        raise BadImage("", problem, step)
    return np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("="))


def _given_fields(fields: Mapping[str, Any]) -> Iterator[tuple[Field, Any]]:
    """Yield the fields that are given, with their values. Raise TypeError for others."""
    for name, value in fields.items():
        if name not in WRITABLE:
            near = get_close_matches(name, WRITABLE, 1, 0.75)
            hint = f"did you mean {near[0]}?" if near else f"fields are {', '.join(WRITABLE)}"
            raise TypeError(f"PackWriter.write got an unknown field {name!r}; {hint}")
        if value is not None:
            yield BY_NAME[name], value


def _per_box(field: Field, value: Any) -> Iterator[Any]:
    """Yield what must have an item for each box."""
    if value is not None and field.per_box:
        yield from (value,) if field.kind.is_numeric else value.values()


def _rows(values: Any, shape: tuple[int | None, ...], where: str, name: str) -> Any:
    """Return an array of numbers as tuples. Raise BadLabel if it has another shape."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise BadLabel(
            where, f"has {name} that are not an array of numbers: {error}", "give one row for each"
        ) from None
    if not array.size and array.ndim < len(shape):
        return ()
    if array.ndim != len(shape) or any(a not in (None, b) for a, b in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("n" if side is None else str(side) for side in shape)
        raise BadLabel(where, f"has {name} of shape {array.shape}, not ({wanted})", "give one row for each")
    if not (np.abs(array) <= np.finfo(np.float32).max).all():
        raise BadLabel(where, f"has {name} with a number that float32 does not hold", "correct it, or leave it out")
    return _deep(array.tolist())


def _deep(value: Any) -> Any:
    return tuple(map(_deep, value)) if isinstance(value, list) else value


def _convert_ahead(records: list[Record]) -> Generator[list[ConvertedInput], None, None]:
    yield [ConvertedInput(record, None, record.source_xxh3) for record in records]
