"""`packer adopt`: a pack of indexes that point into files of other tools, which stay where they are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from packer.errors import AnyPath, UsageError, WorkerDied, option, plural, printable
from packer.format.pack_paths import INDEX_SUFFIX, names_a_pack
from packer.model.annotation import Progress, advancing
from packer.packing.option_table import CLASS_OPTIONS
from packer.repack.formats import FormatOptions, check_roles, recognize
from packer.system import usable_cores

if TYPE_CHECKING:
    from packer.format.manifest import Manifest
    from packer.packing.build_options import BuildOptions
    from packer.packing.class_map import ClassChange
    from packer.packing.input_table import Inputs
    from packer.repack.adopt_file import FileJob, FileResult

__all__ = ["AdoptOptions", "AdoptReport", "adopt"]


ROLES = ("image", "label", "text", "boxes", "mask")
READ_HERE_BYTES = 16 << 20
"""Files up to this size in all are read sooner than a worker starts."""
READ_ONE_HERE_BYTES = 1 << 30
"""The same for one file, which a worker would not read any faster."""
OF_A_BUILD = (
    "classes",
    *CLASS_OPTIONS,
    "missing_labels",
    "boxes",
    "max_bad",
    "on_animation",
    "max_pixels",
    "workers",
    "overwrite",
    "ignore_id",
)
FRAGILE = ("lmdb", "hdf5")
"""Formats whose libraries may crash on a damaged file: read in another process."""


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """The options of `packer adopt`.

    Args:
        files: The files, in the order of their records; a folder stands for the files in it.
        out: Path of the new pack.
        columns: Fields of the files by their roles: image, label, text (the name of the class); of tables also what the
            numbers of boxes are: ``{"boxes": "xmin ymin w h"}``. Also as on the command line: ``["label=FIELD"]``.
        mask: The field of the masks, or none. None: one that is called as masks are, if it can be read in place.
        ignore_id: The value of the pixels of masks that are of no class. None: 255, unless it is a class.
        labels: Files with the labels of files that have none, one for each.
        classes: File with the class names in id order, one per line; or a pack.
        map: New names of classes, each text ``old,old=new``; or a file of such lines, or of YAML ``old: new``.
        drop_class: Classes to leave out, as `map` calls them; in each text names with commas between.
        only_class: The classes to keep, in the same form.
        single_class: The name of all classes.
        missing_labels: An image without a label: error (it is bad), empty (it has no objects) or skip.
        boxes: Boxes outside the image or without area: fail, clip or drop.
        max_bad: Maximum number (``5``) or share (``0.5%``) of bad images to leave out.
        on_animation: An animation, or several pages: fail (it is bad) or first (its first frame counts).
        max_pixels: Larger images are bad.
        workers: Number of worker processes. None: the number of usable cores.
        overwrite: Replace an existing pack.

    Raises:
        UsageError: A value is out of range.
    """

    files: tuple[str, ...]
    out: str
    columns: Mapping[str, str] | Sequence[str] | str = field(default_factory=dict)
    mask: str | None = None
    ignore_id: int | None = None
    labels: tuple[str, ...] = ()
    classes: str | None = None
    map: Sequence[str] = ()
    drop_class: Sequence[str] = ()
    only_class: Sequence[str] = ()
    single_class: str | None = None
    missing_labels: str = "error"
    boxes: str = "fail"
    max_bad: str = "0"
    on_animation: str = "fail"
    max_pixels: int = 64_000_000
    workers: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        from packer.packing.build_options import check_extension

        if not self.files:
            raise UsageError("FILES", "names no file", "give the files to adopt")
        of_mask = {} if self.mask is None else {"mask": self.mask}
        object.__setattr__(self, "columns", {**_by_role(self.columns), **of_mask})
        for role in self.roles:
            if role not in ROLES:
                step = f"roles are {', '.join(ROLES)}: --columns=label=FIELD"
                raise UsageError(option("columns"), f"{printable(role)} is not a role", step)
        check_extension(self.out, f"{option('out')}=", "")
        _ = self.checked

    @property
    def roles(self) -> Mapping[str, str]:
        """`columns` by role."""
        assert isinstance(self.columns, Mapping)
        return self.columns

    @property
    def checked(self) -> BuildOptions:
        """The options that a build has, too."""
        from packer.packing.build_options import BuildOptions

        return BuildOptions(
            source=self.files[0] if len(self.files) == 1 else plural(len(self.files), "file"), out=self.out,
            encode="copy", **{name: getattr(self, name) for name in OF_A_BUILD},
        )  # fmt: skip

    @property
    def recorded(self) -> dict[str, Any]:
        """What affects the records, for pack.json."""
        names = ("boxes", "max_pixels", "missing_labels", "on_animation")
        columns = [f"{role}={name}" for role, name in self.roles.items()]
        given = {} if self.classes is None else {"classes": "given"}
        of_masks = {} if self.ignore_id is None else {"ignore_id": self.ignore_id}
        from packer.repack.pack_classes import recorded_classes

        recorded = {"columns": columns, **{name: getattr(self, name) for name in names}, **given, **of_masks}
        return recorded_classes(self.checked, recorded)


def _by_role(columns: Mapping[str, str] | Sequence[str] | str) -> dict[str, str]:
    """Return fields by their roles, of ``label=FIELD``, a list of such texts, or a mapping. Raise UsageError."""
    if isinstance(columns, Mapping):
        return dict(columns)
    roles: dict[str, str] = {}
    for given in (columns,) if isinstance(columns, str) else columns:
        role, equals, name = given.partition("=")
        if not equals or not name:
            raise UsageError(option("columns"), f"{printable(given)} is not of the form ROLE=FIELD", "give label=FIELD")
        if role in roles:
            raise UsageError(option("columns"), f"names the {printable(role)} twice", "name it once")
        roles[role] = name
    return roles


@dataclass(frozen=True, slots=True)
class AdoptReport:
    """The result of `adopt`. `packer.format.lists.read_list` reads all rejected images."""

    path: str
    manifest: Manifest
    pack_bytes: int
    """Size of the pack itself."""
    linked_bytes: int
    """Size of the files that it refers to."""
    seconds: float
    class_changes: tuple[ClassChange, ...] = ()
    """What became of classes that were renamed or dropped."""


def adopt(
    files: AnyPath | Sequence[AnyPath], out: AnyPath, progress: Progress | None = None, **options: Any
) -> AdoptReport:
    """Make a pack of images in files of other tools, which are read in place.

    The pack holds pack.json and an index for each file. It is readable as long as the files stay as they are, at the
    same path; relative to the pack, if they are in its parent folder or below.

    Args:
        files: The files, or folders of them; or one.
        out: Path of the new pack.
        progress: Receives the images that were read.
        options: The other fields of `AdoptOptions`.

    Returns:
        What was found.

    Raises:
        UsageError: A file is of no format that packer reads, is damaged, or its images cannot be read in place.
        TooManyBad: More images than `max_bad` are bad.
        StorageError: The pack cannot be written.
    """
    from packer.packing.bad_inputs import too_many, too_many_bad_error
    from packer.packing.class_map import changes_notes
    from packer.packing.publish import Output, check_folder
    from packer.repack.adopt_pack import classes_of, final_tables, manifest_of, new_classes, parts_in, with_shards
    from packer.system.atomic import make_own_folder

    started = time.monotonic()
    progress = progress or Progress()
    check_folder(out, "adopt")
    several = (files,) if isinstance(files, str | bytes | os.PathLike) else files
    asked = AdoptOptions(tuple(map(os.fsdecode, several)), os.fsdecode(out).rstrip("/") or os.fsdecode(out), **options)
    checked = asked.checked
    paths, kind, skipped = foreign_files(asked.files)
    check_roles(kind, tuple(asked.roles), bool(asked.labels))
    for path in paths:
        output = Output(asked.out, path, asked.overwrite)
    with output:
        output.restart()
        make_own_folder(output.folder)
        jobs = _jobs(asked, paths, kind, output.folder)
        results = _read_all_files(asked, jobs, progress)
        inputs = _inputs(results, skipped)
        classes, ids = classes_of(results, jobs, asked.classes is not None)
        new = new_classes(checked, classes, results)
        classes = classes if new is None else new.names
        parts = parts_in(results, jobs, classes, asked.ignore_id)
        tables = list(final_tables(results, jobs, ids, inputs, asked.missing_labels, new))
        inputs.notes += [] if new is None else changes_notes(new.changes)
        inputs.rows = sum(map(len, tables))
        if too_many(checked, inputs.bad, inputs.asked):
            raise too_many_bad_error(checked, inputs, inputs.asked, False, progress, [option("json")])
        if asked.roles.get("label") and not any({"label", "boxes", "tags", "value"} & r.fields for r in results):
            given = printable(asked.roles["label"])
            raise UsageError(
                option("columns"), f'no image has a label in "{given}"', "name another field, or leave it out"
            )
        manifest = manifest_of(asked.recorded, kind, classes, results, inputs, parts)
        manifest = with_shards(manifest, paths, results, tables, output)
        for job in jobs:
            os.unlink(job.table)
        listings = (inputs.rejected, inputs.skipped, inputs.changed)
        manifest = output.publish(manifest, listings)
    own = sum(file.bytes for file in manifest.files if file.name not in manifest.linked)
    own += os.path.getsize(os.path.join(output.path, "pack.json"))
    linked = sum(result.bytes for result in results)
    changes = () if new is None else new.changes
    return AdoptReport(output.path, manifest, own, linked, time.monotonic() - started, changes)


def _jobs(asked: AdoptOptions, paths: list[str], kind: str, folder: str) -> list[FileJob]:
    from packer.packing.resolve import read_classes
    from packer.repack.adopt_file import FileJob

    if asked.labels and len(asked.labels) != len(paths):
        given = f"{plural(len(asked.labels), 'file')} of labels for {plural(len(paths), 'file')}"
        raise UsageError(option("labels"), given, "give one for each file")
    classes = None if asked.classes is None else tuple(read_classes(asked.classes))
    digits = len(str(len(paths) - 1)) if len(paths) > 1 else 0
    return [
        FileJob(
            path=path,
            format=kind,
            options=FormatOptions(dict(asked.roles), labels, asked.ignore_id),
            table=os.path.join(folder, f"{number:05d}.table"),
            key_prefix=f"{number:0{digits}d}".encode() if digits else b"",
            classes=classes,
            boxes=asked.boxes,
            max_pixels=asked.max_pixels,
            on_animation=cast(Any, asked.on_animation),
        )
        for number, (path, labels) in enumerate(zip(paths, asked.labels or [None] * len(paths), strict=True))
    ]


def _read_all_files(asked: AdoptOptions, jobs: list[FileJob], progress: Progress) -> list[FileResult]:
    """Read all files, in worker processes."""
    from packer.repack.adopt_file import adopt_file
    from packer.system.pool import Pool

    progress.stage("reading")
    limit = READ_HERE_BYTES if len(jobs) > 1 else READ_ONE_HERE_BYTES
    small = sum(os.path.getsize(job.path) for job in jobs) < limit
    if small and jobs[0].format not in FRAGILE:
        return [adopt_file(job, progress.advance) for job in jobs]
    size = min(len(jobs), asked.workers or usable_cores())
    found: dict[int, FileResult] = {}
    try:
        with Pool(size, None, "packer.repack.adopt_file") as pool:
            for number, result in pool.run(adopt_file, jobs, advancing(progress)):
                found[number] = result
    except WorkerDied as error:
        left = [job.path for number, job in enumerate(jobs) if number not in found]
        problem = f"or one of the {len(left)} files read with it, ended its reader: {error.problem}"
        one = f"ended its reader: {error.problem}"
        step = "the file may be damaged, or may have changed: get it again"
        raise UsageError(left[0], problem if len(left) > 1 else one, step) from None
    return [found[number] for number in range(len(jobs))]


def _inputs(results: list[FileResult], skipped: list[tuple[str, str]]) -> Inputs:
    """Return what was found, without the images themselves."""
    from packer.format.lists import Skipped
    from packer.packing.input_table import Inputs

    inputs = Inputs()
    for path, reason in skipped:
        inputs.skipped.add(Skipped(path, reason))
    notes: dict[str, None] = {}
    for result in results:
        for row in result.rejected:
            inputs.rejected.add(row)
        for change in result.changed:
            inputs.changed.add(change)
        inputs.counts.update(result.counts)
        inputs.losses.update(result.losses)
        notes.update(dict.fromkeys(result.notes))
    inputs.notes = [*notes, *(f"{what} in {plural(n, 'image')}" for what, n in sorted(inputs.losses.items()))]
    return inputs


SKIPPED_FILES = ("lock.mdb",)


def foreign_files(given_files: Sequence[str]) -> tuple[list[str], str, list[tuple[str, str]]]:
    """Return the files to adopt, their format, and the other files of folders with the reason.

    Raises:
        UsageError: A file cannot be adopted, or they are of several formats.
    """
    found: dict[str, str] = {}
    skipped: list[tuple[str, str]] = []
    for given in given_files:
        inside = os.path.isdir(given)
        if inside and names_a_pack(given):
            raise UsageError(given, "is a pack already", "give files that other tools wrote")
        for path in _below(given) if inside else [given]:
            kind = _kind_of(path)
            if index := _is_index(path):
                skipped.append((path, index))
            elif isinstance(kind, str):
                found[os.path.abspath(path)] = kind
            elif not inside:
                raise kind
            else:
                skipped.append((path, kind.problem))
    if not found:
        example = f": {printable(skipped[0][0])} {skipped[0][1]}" if skipped else ""
        raise UsageError(given_files[0], f"holds no file that packer adopts{example}", "give other files")
    kinds = sorted(set(found.values()))
    if len(kinds) > 1:
        first, second = (next(path for path, kind in found.items() if kind == each) for each in kinds[:2])
        problem = f"is {kinds[1]}, but {printable(first)} is {kinds[0]}"
        raise UsageError(second, problem, "adopt files of one format at a time; packer merge joins the packs")
    return list(found), kinds[0], skipped


def _is_index(path: str) -> str:
    """Return why a file is the index of another, whose reader does not need it; empty if it is not."""
    if path.endswith(INDEX_SUFFIX):
        return "is an index of packer"
    records = path.removesuffix(".idx") + ".rec"
    return f"is the index of {os.path.basename(records)}" if path.endswith(".idx") and os.path.isfile(records) else ""


def _kind_of(path: str) -> str | UsageError:
    try:
        if os.path.isdir(path):
            return UsageError(path, "is a pack already", "give files that other tools wrote")
        if os.path.lexists(path) and not os.path.isfile(path):
            return UsageError(path, "is not a file", "give files, or a folder of them")
        return recognize(path)
    except OSError as error:
        step = "check the path" if isinstance(error, FileNotFoundError) else "check its permissions"
        return UsageError(path, f"cannot be read: {error.strerror}", step)


def _below(folder: str) -> Iterator[str]:
    """Yield the files below a folder, and the packs, but not the files in them."""
    for parent, folders, names in os.walk(folder):
        below = sorted(folders, key=os.fsencode)
        packs = [name for name in below if names_a_pack(os.path.join(parent, name))]
        folders[:] = [name for name in below if name not in packs]  # which os.walk enters
        yield from (os.path.join(parent, name) for name in packs)
        for name in sorted(names, key=os.fsencode):
            if name not in SKIPPED_FILES:
                yield os.path.join(parent, name)
