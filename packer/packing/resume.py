"""What a pack records of its build when it ends, and whether a build that was begun can go on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any

import pyarrow.compute as pc

import packer
from packer.errors import TooManyBad, UsageError, as_options, option, printable
from packer.format.digests import sha256_of
from packer.format.lists import MOST_IN_MANIFEST, Listing, Skipped, selection_file
from packer.format.manifest import FORMAT_VERSION, WINDOWS_VERSION, Manifest, ShardEntry, of_parts
from packer.format.sidecar_list import not_kept
from packer.model.annotation import Progress
from packer.packing.build_options import DEFAULTS, BuildOptions
from packer.packing.input_table import Inputs
from packer.packing.journal import ShardResult
from packer.packing.make_record import UNREAD
from packer.packing.option_table import ARGUMENT, OPTIONS, TABLE
from packer.packing.partition import pieces
from packer.packing.plan import Plan
from packer.packing.publish import Output
from packer.stores import clean_url, is_url

LIBRARIES = ("numpy", "opencv-python-headless", "simplejpeg", "jpeg4py", "lmdb", "h5py", "pyarrow")


def make_manifest(plan: Plan, results: Sequence[ShardResult]) -> Manifest:
    """Return the manifest of a pack whose shards are all written, without its lists.

    `results` are in the order of the shards; their rejected inputs are already in `plan.inputs`.
    """
    inputs = plan.inputs
    shards = tuple(result.entry for result in results if result.entry is not None)
    records = sum(shard.records for shard in shards)
    counts = Counter(inputs.counts)
    label_counts: Counter[int] = Counter()
    box_counts: Counter[int] = Counter()
    for result in results:
        counts.update(result.counts)
        label_counts.update(result.label_counts)
        box_counts.update(result.box_counts)
        inputs.losses.update(result.losses)
    counts.update(packed=records, rejected=len(inputs.rejected), skipped=len(inputs.skipped))
    counts.update(found=records + len(inputs.rejected) + len(inputs.skipped), changed=len(inputs.changed))
    shape, dtype = plan.shape
    if plan.late_sizes:
        shape = _late_shape(plan, results)
    return Manifest(
        container=plan.options.container,
        encoding=plan.recipe.encode,
        mode=plan.options.mode,
        dtype=dtype,
        shape=shape,
        classes=inputs.classes,
        fields=inputs.fields,
        records=records,
        counts={name: n for name, n in sorted(counts.items()) if n or name not in ("changed", "missing_labels")},
        class_counts={
            name: [counter[i] for i in range(len(inputs.classes))]
            for name, counter in (("label", label_counts), ("boxes", box_counts))
            if counter
        },
        options=recorded_options(plan.options, plan.inputs),
        shards=shards,
        rejected=tuple(islice(inputs.rejected, MOST_IN_MANIFEST)),
        flip_index=inputs.flip_index,
        **({} if not plan.options.are_windows else shared_images(shards)),
        **of_parts(plan.spec.parts),
        tags=inputs.tags,
        notes=(*inputs.all_notes, *skipped_lines(inputs.skipped)),
        packer=packer.__version__,
        libraries=library_versions(),
    )


def shared_images(shards: Sequence[ShardEntry]) -> dict[str, Any]:
    """Return what a manifest says of shards with whole images, of which its records are tiles."""
    return {"windows": True, "version": WINDOWS_VERSION, "linked": {shard.container.name: "" for shard in shards}}


def _late_shape(plan: Plan, results: Sequence[ShardResult]) -> tuple[int, int, int] | None:
    """Return the shape of all images if the headers of some were read in the shards."""
    table = plan.table
    shapes = {(height, width) for result in results for height, width in result.shapes}
    for _, piece in pieces(table):
        read = piece.filter(pc.not_equal(piece.column("code"), UNREAD))
        shapes.update(zip(*(read.column(name).to_pylist() for name in ("height", "width")), strict=True))
    channels = set(table.column("channels").unique().to_pylist())
    return (*shapes.pop(), channels.pop()) if len(shapes) == len(channels) == 1 else None


def recorded_options(given: BuildOptions, inputs: Inputs) -> dict[str, Any]:
    """Return the options as they are recorded; some are what was made of them, or what is beside the manifest."""
    resize = given.target_size()
    made: dict[str, Any] = {
        "labels": list(inputs.labels),
        "classes": None if given.classes is None else "given",
        "include": None,
        "exclude": None,
        **{name: selection_file(name) for name in inputs.selections},
        "fit": None if resize is None else resize.fit,
        "pad_value": given.pad_value or None,  # black as ever: the same bytes as ever
        "interpolation": None if resize is None or resize.interpolation == "area" else resize.interpolation,
    }
    options = {"label_files": list(inputs.label_files)} if inputs.label_files else {}
    for row in OPTIONS:
        value = made[row.name] if row.name in made else getattr(given, row.name)
        if row.recorded == "always" or (row.recorded == "changed" and value != DEFAULTS[row.name]):
            options[row.name] = value
    return dict(sorted(options.items()))


@cache
def library_versions() -> dict[str, str]:
    """Return the versions of the installed libraries that affect the bytes of a pack, read once: it takes 10 ms."""
    versions = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def skipped_lines(skipped: Listing[Skipped]) -> list[str]:
    """Return notes that say how many images were left out, for each reason."""
    return [
        f"skipped {count}: {printable(reason)} ({printable(skipped.examples[reason].path)})"
        for reason, count in sorted(skipped.counts.items())
    ]


def resume_or_restart(output: Output, asked: Mapping[str, Any], overwrite: bool) -> list[str]:
    """Keep the work of an unfinished build in `output`, or start a new journal.

    Args:
        output: Where the pack grows.
        asked: The options that affect the bytes of a shard, JSON values by name.
        overwrite: Discard the work of a build with other options.

    Returns:
        Notes for the user.

    Raises:
        UsageError: The unfinished build had other options.
    """
    head = {"asked": dict(asked), "made_with": versions()}
    notes = [*output.read_journal(head), *(not_kept(output.path) if overwrite else ())]
    if not output.lock_works:
        notes.append(f"{printable(output.partial)} is on a file system without locks: let no other build write there")
    before = output.journal.head
    if before is None or not output.journal.finished:
        output.restart()
    elif before.get("made_with") != head["made_with"]:
        notes.append(f"starting over: the unfinished build was made with {_versions(before, head)}")
        output.restart()
    elif before.get("asked") != head["asked"]:
        what = _differences(before.get("asked"), head["asked"])
        if not overwrite and not output.journal.failed:
            problem = f"holds an unfinished build with other options: {what}"
            raise UsageError(output.place, problem, "finish it with the same options, or discard it with --overwrite")
        which = "build that failed" if output.journal.failed else "unfinished build"
        notes.append(f"starting over: the {which} had other options: {as_options(what)}")
        output.restart()
    else:
        output.journal.mark(failed=False)
    if output.journal.head is None:
        output.journal.begin(head)
    output.clear()
    return notes


def versions() -> dict[str, Any]:
    """Return the versions of the format, of packer, and of the libraries that affect the bytes of a pack."""
    return {"format": FORMAT_VERSION, "packer": packer.__version__, **library_versions()}


def options_that_shape_bytes(options: BuildOptions) -> dict[str, Any]:
    """Return the options of a build that affect the bytes of a shard."""
    asked: dict[str, Any] = {name: value for name, value in asdict(options).items() if TABLE[name].shapes_bytes}
    asked = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}
    asked["source"] = clean_url(options.source) if is_url(options.source) else os.path.abspath(options.source)
    asked["format"] = options.container
    asked["encode"] = options.encode or "raw or copy"
    for name in asked:
        if TABLE[name].takes == "file" and asked[name] is not None:  # what is in the file counts, not only its name
            asked[name] = f"{asked[name]} (SHA-256 {_digest(asked[name])[:12]})"
    return asked


def _digest(file: str) -> str:
    with suppress(OSError):  # reading it will report it
        return sha256_of(file)
    return "unknown"


def differences(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str:
    """Return what differs between the first lines of two journals."""
    if before is None:
        return "its journal is damaged"
    if before.get("made_with") != now["made_with"]:
        return _versions(before, now)
    return _differences(before.get("asked"), now["asked"])


def _differences(before: Any, now: Mapping[str, Any]) -> str:
    if not isinstance(before, Mapping):
        return "which ones is not recorded"
    names = [name for name in now if before.get(name) != now[name]]
    texts = [(name, _value_text(before.get(name)), _value_text(now[name])) for name in names]
    return ", ".join(
        f"{f'{ARGUMENT} {old}' if name == 'source' else option(TABLE[name].flag, old)}, now {new}"
        for name, old, new in texts
    )


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_value_text(item) for item in value) or "none"
    return "none" if value is None else printable(str(value))


def _versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old = before.get("made_with")
    old = old if isinstance(old, Mapping) else {}
    names = [name for name in now["made_with"] if old.get(name) != now["made_with"][name]] or list(old)
    return ", ".join(
        f"{name} {_value_text(old.get(name))}, now {_value_text(now['made_with'].get(name))}" for name in names
    )


def kept_work_note(output: Output, error: BaseException) -> str:
    """Return a note on what a build that ended with `error` has left; empty if nothing is left and nobody asks."""
    if not output.kept and isinstance(error, KeyboardInterrupt | SystemExit):
        return "nothing is kept: no shard was finished; the same command starts again (--shard-size makes them smaller)"
    if not output.kept:
        return ""
    # the same command would fail for the same inputs again: the error says what would not
    return f"{output.kept}{' for the next attempt' if isinstance(error, TooManyBad) else f': {output.resumes_with}'}"


@contextmanager
def noting_what_is_kept(outputs: Sequence[Output], progress: Progress) -> Iterator[list[Output]]:
    """Say after an error what is kept of those outputs that are left in the list that is yielded."""
    resumed = list(outputs)
    try:
        yield resumed
    except BaseException as error:
        notes = [kept_work_note(output, error) for output in resumed if output.kept]
        for note in notes or [kept_work_note(output, error) for output in resumed[:1]]:
            if note:
                progress.note(note)
        raise
