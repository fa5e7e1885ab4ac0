"""Reads a pack, or several as one: the bytes of a record, its annotation, whole columns; of every container alike.

It uses only the manifest, the indexes and the mapped bytes, and imports neither a container's library nor torch.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, partial
from itertools import chain
from typing import Any, NoReturn, cast, overload

import numpy as np
from numpy.typing import NDArray

from packer.errors import AnyPath, DamagedPack, UsageError, plural, printable
from packer.format.annotation_table import annotation_table
from packer.format.manifest import SAME_MASKS, Manifest, Origin
from packer.format.pack_files import open_files
from packer.format.records import Records
from packer.format.sidecar_list import SidecarFacts
from packer.format.sidecars import Sidecar, sidecars_in
from packer.format.stored_images import LastImage, decode_record
from packer.format.versions import version_with
from packer.model.annotation import OF_PIXELS, Annotation, Image, Int64, Mask, Sample
from packer.model.annotation_columns import Ragged
from packer.model.fields import FLIPS, WHOLE


def open_pack(path: AnyPath, cache_dir: AnyPath | None = None, cache_bytes: int | str | None = None) -> Pack:
    """Open the pack in the directory or at the URL `path`; the cost does not depend on the number of records.

    An index is verified against its checksum when it is first needed, a record when it is first read.

    Args:
        path: The directory of the pack, or its URL, such as ``s3://bucket/pack``.
        cache_dir: The folder where packs at URLs are kept; default: $PACKER_CACHE, or ~/.cache/packer.
        cache_bytes: The size of that folder at most, as a number or as text (``500GB``); 0: the pack is kept in memory.

    Raises:
        PackNotFound: The directory is not a pack.
        DamagedPack: The manifest was altered, or a file is missing or has another size.
        StorageError: The store cannot be reached, or the disk is full.
    """
    return Pack(path, cache_dir, cache_bytes)


class Pack:
    """An open pack. Records are numbered from 0 in packing order.

    It is a sequence of samples: ``pack[0].image``, ``pack[-1].annotation``, ``for image, annotation in pack``.

    It can be shared between threads and forked processes, because it holds memory maps and no handles. It is
    pickled as its path; if the pack has been replaced since, unpickling raises DamagedPack.

    Args:
        path: The directory of the pack, or its URL.
        cache_dir: As for `open_pack`.
        cache_bytes: As for `open_pack`.
    """

    def __init__(self, path: AnyPath, cache_dir: AnyPath | None = None, cache_bytes: int | str | None = None) -> None:
        files = open_files(path, cache_dir, cache_bytes)
        self._set(Records([files], files.manifest), ())

    def _set(self, reader: Records, packs: tuple[Pack, ...]) -> None:
        self.reader = reader
        """What loaders, samplers and commands ask: where records lie, whether they are intact, whole columns."""
        self.path, self.manifest = reader.path, reader.manifest
        self._open_sidecars: dict[str, Sidecar] = {}
        self._last = LastImage()
        self._packs = packs  # not itself: a cycle would keep the maps until the collector comes by

    @classmethod
    def _joined(cls, packs: Sequence[Pack], manifest: Manifest) -> Pack:
        """Return the packs as one, whose manifest is this (`packer.join_packs`)."""
        pack, ids = cls.__new__(cls), {name: number for number, name in enumerate(manifest.classes)}
        files, shard, record = [], 0, 0
        for [one], classes in ((its.reader.files, its.classes) for its in packs):
            class_ids = np.array([*(ids[name] for name in classes), -1])  # -1 picks the last one: none
            own = None if classes == list(manifest.classes[: len(classes)]) else class_ids
            remote = None if one.remote is None else one.remote.for_another()
            files.append(replace(one, remote=remote, first_shard=shard, first_record=record, class_ids=own))
            shard, record = shard + len(one.shards), record + one.manifest.records
        pack._set(Records(files, manifest), tuple(packs))
        return pack

    def __len__(self) -> int:
        return self.manifest.records

    def __repr__(self) -> str:
        if len(self.packs) > 1:
            return f"<Pack: {plural(len(self), 'record')} of {', '.join(map(repr, self.packs))}>"
        how = f"{self.manifest.container} {self.manifest.encoding}"
        return f"<Pack {printable(self.path)}: {plural(len(self), 'record')}, {how}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if len(self.packs) > 1:
            return self._joined, (self.packs, self.manifest)
        return _reopen, (self.path, self.manifest.digest, *self.reader.cache_options)

    # -- as a sequence of samples

    @overload
    def __getitem__(self, i: int) -> Sample: ...

    @overload
    def __getitem__(self, i: slice) -> Samples: ...

    def __getitem__(self, i: int | slice) -> Sample | Samples:
        """Return the image and annotation of a record, -1 for the last one; of a slice those that are asked for."""
        return Samples(self, range(len(self)))[i]

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise TypeError: images differ in size, and may not fit into memory."""
        raise TypeError(
            "a pack is not an array: pack[0].image is the image of a record, PackedLoader makes batches of all"
        )

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: a pack holds memory maps, which end with the last reference to them."""

    def where(
        self,
        *,
        label: int | str | Sequence[int | str] | None = None,
        box_label: int | str | Sequence[int | str] | None = None,
        path: str | None = None,
    ) -> Int64:
        """Return the numbers of the records of which all of this is true, int64 (n,), in order.

        ``PackedLoader(pack, 32, indices=pack.where(label=["cat", "dog"]))``

        Args:
            label: The image has this class, or one of these: names or ids.
            box_label: One of its boxes has it.
            path: The path of its source file is like this: ``night/*.jpg``, in which ``*`` also stands for folders.

        Raises:
            UsageError: The pack has no such class, or no such labels.
        """
        chosen = np.ones(len(self), np.bool_)
        if label is not None:
            self._check_has("label", "labels of images")
            chosen &= np.isin(np.asarray(self.column("label")), self._ids_of(label))
        if box_label is not None:
            self._check_has("box_labels", "boxes with classes")
            boxes = cast(Ragged, self.column("box_labels"))
            of_box = np.repeat(np.arange(len(self)), boxes.lengths)
            found = of_box[np.isin(np.asarray(boxes.flat()), self._ids_of(box_label))]
            chosen &= np.isin(np.arange(len(self)), found)
        if path is not None:
            like = re.compile(fnmatch.translate(path)).match
            chosen &= np.array([like(one) is not None for one in self.paths], np.bool_)
        return np.flatnonzero(chosen)

    def _check_has(self, field: str, what: str) -> None:
        """Raise UsageError if no image has what is asked for: an empty answer would look like one."""
        if len(self) and field not in self.manifest.fields:
            has = ", ".join([*self.manifest.fields, *self.manifest.parts]) or "none"
            raise UsageError(self.path, f"has no {what}", f"its labels are: {has}")

    def _ids_of(self, classes: int | str | Sequence[int | str]) -> list[int]:
        """Return the ids of classes. Raise UsageError for one that the pack does not have."""
        names = self.classes
        ids = []
        for one in (classes,) if isinstance(classes, int | str | np.integer) else classes:
            number = names.index(one) if isinstance(one, str) and one in names else one
            if not isinstance(number, int | np.integer) or not 0 <= number < len(names):
                near = get_close_matches(str(one), names, 1)
                step = f"did you mean {printable(near[0])}?" if near else "packer info PACK lists its classes"
                raise UsageError(self.path, f"has no class {printable(str(one))}", step)
            ids.append(int(number))
        return ids

    @property
    def packs(self) -> tuple[Pack, ...]:
        """The packs that this one is joined from (`packer.join_packs`): itself if it is one."""
        return self._packs or (self,)

    def part_of(self, i: int) -> tuple[int, int]:
        """Return (number of the pack in `packs`, number of the record in it) of record `i`."""
        number = self.reader.pack_at(i)
        return number, i - self.reader.files[number].first_record

    def record(self, i: int) -> memoryview:
        """Return the bytes of record `i`, mapped and read-only.

        Raises:
            DamagedPack: They do not match their checksum, which is verified when this process first reads the record.
        """
        return self.reader.record(i)

    @cached_property
    def sidecars(self) -> dict[str, SidecarFacts]:
        """What was attached to the pack (`packer.attach`), by name; of joined packs, what all of them have."""
        return sidecars_in(self.reader.files)

    def sidecar(self, name: str) -> Sidecar:
        """Return the reader of the sidecar called `name`. Raise UsageError if the pack has none."""
        if name not in self._open_sidecars:
            self._open_sidecars[name] = Sidecar(self.reader.files, name)
        return self._open_sidecars[name]

    def key(self, i: int) -> str:
        """Return the key of record `i`: ``00000042``."""
        return self.reader.key(i)

    def image(self, i: int, decoder: str = "auto") -> Image:
        """Return the image of record `i`, (height, width, channels); a read-only view if it is stored raw.

        Args:
            i: Number of the record.
            decoder: JPEG decoder: auto, fast, simplejpeg, opencv or jpeg4py.

        Raises:
            DamagedPack: The record does not match its checksum or its row in the index.
        """
        reader = self.reader
        if reader.encoding_of(i) != "raw":
            return decode_record(reader, i, decoder, self._last)
        data, shape, dtype = reader.record(i), reader.shape_of(i), reader.dtype_of(i)
        if min(shape) < 1 or len(data) != np.dtype(dtype).itemsize * shape[0] * shape[1] * shape[2]:
            raise self.reader.damage_error(i, f"has {len(data)} bytes, which is not {dtype} pixels of shape {shape}")
        return np.frombuffer(data, dtype).reshape(shape)

    def window(self, i: int) -> Int64 | None:
        """Return which part of a larger image record `i` is, a tile of `packer build --tile`; None if it is none.

        Returns:
            int64 (6,): x, y, width and height in pixels of the larger image, and width and height of that.

        Raises:
            DamagedPack: The index has fewer or more numbers.
        """
        found = self.annotation(i).window
        if found is not None and len(found) != 6:
            raise self.reader.damage_error(i, f"has the window {found.tolist()}, which is none")
        return None if found is None else found.astype(np.int64)

    def mask(self, i: int, name: str = "mask") -> Mask | None:
        """Return the mask of record `i`, uint8 or uint16 (height, width); None if it has none.

        Args:
            i: Number of the record.
            name: One of `Manifest.masks`.

        Raises:
            DamagedPack: It does not match its checksum, or the size of the image.
            UsageError: The pack has no such masks.
        """
        if name not in self.manifest.masks:
            raise UsageError(self.path, f"has no masks called {printable(name)}", "packer info PACK lists its parts")
        return cast("Mask | None", self.part(i, name))

    def part(self, i: int, name: str) -> Any:
        """Return a part of record `i`, or what is attached to it, as what it is; None if it has none.

        Args:
            i: Number of the record.
            name: One of `Manifest.parts`, or of `sidecars`.

        Returns:
            A mask (height, width), a map or an image (height, width[, channels]), an array, a text, JSON, or bytes.

        Raises:
            DamagedPack: It does not match its checksum, or is not what the pack says.
            UsageError: The pack has no such part.
        """
        if name not in self.manifest.parts and name in self.sidecars:
            self.key(i)  # raises IndexError if there is no such record
            spec, (value,) = self.sidecars[name].spec, self.sidecar(name).read(np.array([i]))
            if spec.kind not in OF_PIXELS:
                return value
            data, encoding = value
        elif (data := self.reader.part(i, name)) is None:
            return None
        else:
            encoding = self.reader.encoding_of(i, name)
            spec = next(spec for spec in self.manifest.part_specs if spec.name == name)
        from packer.images.parts import decode_part

        damaged = partial(self.reader.damage_error, i)
        return decode_part(data, encoding, self.reader.shape_of(i)[:2], spec, self.manifest.mode, damaged)

    def instance_masks(self, i: int) -> Mask:
        """Return the masks of the objects in record `i`, in the order of its boxes: uint8 (k, height, width), 0 and 1.

        Raises:
            DamagedPack: One is not the mask of such an image.
        """
        from packer.model.rle import NO_MASK, decode

        annotation, (height, width, _) = self.annotation(i), self.reader.shape_of(i)
        boxes = 0 if annotation.boxes is None else len(annotation.boxes)
        try:
            return decode(annotation.rles or (NO_MASK,) * boxes, height, width)
        except ValueError as error:
            raise self.reader.damage_error(i, f"has a mask of an object that is damaged: {error}") from None

    def sample(self, i: int, decoder: str = "auto") -> Sample:
        """Return image and annotation of record `i`; `decoder` as in `image`."""
        return Sample(self.image(i, decoder), self.annotation(i))

    def annotation(self, i: int) -> Annotation:
        """Return the annotation of record `i`; its arrays are read-only views of the index."""
        return self.reader.annotation(i)

    def column(self, name: str) -> NDArray[Any] | Ragged:
        """Return the column `name` of the index over all shards, without reading images.

        It is joined once, and read-only. docs/formats.md lists the columns.

        Returns:
            Numbers: array (n,); `label` is -1 if an image has none. Lists (boxes, box_labels, ...): Ragged, in which
            row i is the array of record i.
        """
        return self.reader.column(name)

    @cached_property
    def keys(self) -> list[str]:
        """All keys, in order."""
        return [bytes(key).decode("ascii", "replace") for key in self.column("key")]

    @cached_property
    def paths(self) -> list[str]:
        """The path of each record's source file, relative to the source, as `os.listdir` names files.

        `os.fsencode` returns its bytes, of whatever encoding.
        """
        return [os.fsdecode(bytes(path)) for path in self.column("path")]

    def to_arrow(self) -> Any:
        """Return what the index says of all records as a pyarrow.Table, a row per record. No image is read.

        ``pack.to_arrow().to_pandas()``

        Returns:
            The columns `key`, `path` (text; bytes that are not UTF-8 with backslashes), `height`, `width`, `channels`,
            `dtype` and `encoding`, and those of the annotation fields that the pack has (docs/formats.md); with
            `label` also `label_name`. What an image lacks is null; JSON objects are text.
        """
        return annotation_table(self.reader.indexes, self.manifest)

    @property
    def classes(self) -> list[str]:
        """Class names in id order."""
        return list(self.manifest.classes)


class Samples(Sequence[Sample]):
    """Some samples of a pack, each read when it is asked for.

    Args:
        pack: The pack.
        records: The numbers of their records.
    """

    def __init__(self, pack: Pack, records: range) -> None:
        self._pack = pack
        self._records = records

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'sample')} of {self._pack!r}>"

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, i: int) -> Sample: ...

    @overload
    def __getitem__(self, i: slice) -> Samples: ...

    def __getitem__(self, i: int | slice) -> Sample | Samples:
        if isinstance(i, slice):
            return Samples(self._pack, self._records[i])
        try:
            record = self._records[i]
        except IndexError:
            raise IndexError(f"sample {i} of {len(self)}") from None
        return self._pack.sample(record)

    def __iter__(self) -> Iterator[Sample]:
        return map(self._pack.sample, self._records)


def _reopen(path: str, digest: str, cache_dir: AnyPath | None = None, cache_bytes: int | str | None = None) -> Pack:
    pack = Pack(path, cache_dir, cache_bytes)
    if pack.manifest.digest != digest and (version := version_with(path, digest)):  # it was changed in place
        return Pack(version)
    if pack.manifest.digest != digest:
        raise DamagedPack(path, "was replaced by another pack since it was opened", "open it again").with_location(path)
    return pack


# Several packs read as one: their records follow one another, and their classes are joined by name. Each pack keeps its
# container, its maps and its cache; only the numbers of records and of classes are those of the joined pack.


def join_packs(packs: Sequence[AnyPath | Pack]) -> Pack:
    """Return several packs as one, for a `PackedDataset`, a `PackedLoader` or a sampler; nothing is copied.

    The records of each pack are numbered after those of the packs before it; `Pack.part_of` goes back. Class ids
    are those of the first pack, then those of the names that the next ones add. Packs of different containers,
    encodings and sizes can be joined, also with packs at URLs.

    Args:
        packs: Directories or URLs of packs, or open packs, each once.

    Raises:
        UsageError: Two packs contradict one another, or one is given twice.
        DamagedPack: As for `open_pack`.
    """
    if isinstance(packs, str | bytes | os.PathLike | Mapping | Pack) or not isinstance(packs, Iterable):
        problem = f"must be a list of packs, got {packs!r}"
        raise UsageError("packs", problem, "pass a list; for shares, PackedLoader or MixtureSampler")
    opened = [pack if isinstance(pack, Pack) else open_pack(pack) for pack in packs]
    manifest = _manifest(opened)
    return opened[0] if len(opened) == 1 else Pack._joined(opened, manifest)


def _manifest(packs: Sequence[Pack]) -> Manifest:
    """Return what the manifest of all packs says, apart from their files. Its digest changes with that of any pack.

    Raises:
        UsageError: The packs cannot be joined.
    """
    if not packs:
        raise UsageError("packs", "is empty: there is nothing to join", "name at least one pack")
    first, fields = packs[0], tuple(dict.fromkeys(chain.from_iterable(pack.manifest.fields for pack in packs)))
    for number, pack in enumerate(packs):
        if len(pack.packs) > 1:
            raise UsageError(pack.path, "is joined already", "join all packs at once")
        if twice := next((one for one in packs[:number] if one.manifest.digest == pack.manifest.digest), None):
            raise UsageError(pack.path, f"is the same pack as {printable(twice.path)}", "name it once")
        for name, times in Counter(pack.classes).items():
            if times > 1:
                raise UsageError(pack.path, f"has two classes called {printable(name)}", "build it with --classes=FILE")
        if pack.manifest.windows != first.manifest.windows:
            one = pack if pack.manifest.windows else first
            one.manifest.check_no_windows(one.path, "they are not joined with images that are stored by themselves")
        if pack.manifest.mode != first.manifest.mode:
            problem = f"has mode {pack.manifest.mode}, but {printable(first.path)} {first.manifest.mode}"
            raise UsageError(pack.path, problem, f"build it again with --mode={first.manifest.mode}")
        if without := next((name for name in WHOLE if {name} & {*fields} - {*pack.manifest.fields}), None):
            has = next(one for one in packs if without in one.manifest.fields)
            problem = f"has no {without}, but {printable(has.path)} has: its images would count as without any"
            raise UsageError(pack.path, problem, "build it with labels, or with --missing-labels=empty")
        if (pack.manifest.parts, pack.manifest.pixels) != (first.manifest.parts, first.manifest.pixels):
            problem = f"has other parts than {printable(first.path)}: {pack.manifest.parts_text}"
            raise UsageError(pack.path, f"{problem}, not {first.manifest.parts_text}", "leave one of the packs out")
        if pack.manifest.masks != first.manifest.masks:
            problem = (
                f"has masks of {pack.manifest.masks_text}, but {printable(first.path)} {first.manifest.masks_text}"
            )
            raise UsageError(pack.path, problem, SAME_MASKS)
        if pack.manifest.tags != first.manifest.tags:
            problem = f"has other tags than {printable(first.path)}, or in another order"
            raise UsageError(pack.path, problem, "build both from lists with the same columns")
    manifests = [pack.manifest for pack in packs]
    pointed = {one.flip_index for one in manifests if {*FLIPS} & {*one.fields}}
    if len(pointed - {None}) > 1:
        raise UsageError(first.path, "has points in another order than the other packs", "leave one of the packs out")
    return replace(
        first.manifest,
        encoding=_common([one.encoding for one in manifests], "copy"),
        dtype=_common([one.dtype for one in manifests], None),
        shape=_common([one.shape for one in manifests], None),
        classes=tuple(dict.fromkeys(chain.from_iterable(one.classes for one in manifests))),
        fields=fields,
        records=sum(one.records for one in manifests),
        counts={},
        class_counts={},
        options={"decoder": "lenient"} if any(one.lenient for one in manifests) else {},
        shards=(),
        rejected=(),
        notes=(),
        flip_index=_common(list(pointed), None) if pointed else None,
        lists={},
        linked={},
        companions={},
        made_from=tuple(Origin("join", "", one.digest) for one in manifests),
    )


def _common(values: Sequence[Any], otherwise: Any) -> Any:
    return values[0] if all(value == values[0] for value in values) else otherwise
