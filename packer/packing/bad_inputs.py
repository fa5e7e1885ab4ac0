"""Inputs that cannot be packed: finds all before a build, lists them in rejected.tsv, says when they are too many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, starmap

import numpy as np

from packer.errors import BadInput, StorageError, TooManyBad, UsageError, option, plural, printable, words_of
from packer.format.lists import Listing, file_of
from packer.format.manifest import Rejected
from packer.format.pack_paths import PARTIAL_SUFFIX
from packer.images.opencv import quiet_opencv
from packer.model.annotation import Annotation, Progress
from packer.model.tiles import WINDOW
from packer.packing.build_options import BuildOptions
from packer.packing.decoded_once import DecodedOnce
from packer.packing.input_table import Inputs
from packer.packing.make_record import Recipe, rejected, rows_of
from packer.packing.partition import NO_LABEL, map_table, write_table
from packer.system.atomic import replacing
from packer.system.child import Decoding, Report

LIST_NAME = file_of("rejected")


def list_rejected(options: BuildOptions, rejected: Listing[Rejected], progress: Progress) -> None:
    """Write the list of ``--quarantine``, if it is asked for. Raise StorageError on failure."""
    if (path := list_path(options)) is not None:
        write_list(path, rejected)
        inputs = plural(len(rejected), "input is", "inputs are")
        progress.note(f"{inputs} rejected: listed in {printable(path)}")


def check_quarantine(options: BuildOptions) -> None:
    """Check the ``--quarantine`` folder without creating it.

    Raises:
        UsageError: It is not a folder, or a build reads from or writes to it.
        StorageError: It cannot be written to.
    """
    folder = options.quarantine
    if folder is None:
        return
    real = os.path.realpath(folder)
    if _within(real, os.path.realpath(options.source)):
        raise UsageError(folder, "is inside the source folder", "choose a --quarantine outside it")
    for path in (options.output, f"{options.output}{PARTIAL_SUFFIX}"):
        if _within(real, os.path.realpath(path)):
            raise UsageError(folder, "is inside the new pack", "choose a --quarantine outside it")
    above = real
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise UsageError(above, "is not a folder", "choose another --quarantine")
    if not os.access(above, os.W_OK | os.X_OK):
        raise StorageError(above, "is not writable", "choose another --quarantine")


def _within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def list_path(options: BuildOptions) -> str | None:
    """Return the path of the list, None if there is none. Each part of a build has one of its own."""
    if options.quarantine is None:
        return None
    name, dot, extension = LIST_NAME.partition(".")
    part = f"-{options.job.strip().replace('/', '-of-')}" if options.job is not None else ""
    return os.path.join(options.quarantine, f"{name}{part}{dot}{extension}")


def write_list(path: str, rejected: Listing[Rejected]) -> None:
    """Write the list, sorted by path, replacing the old one in one step. Raise StorageError on failure.

    It has the form of the lists in a pack: one input per line, with its path, reason and problem. In a path,
    backslashes are doubled and unprintable characters (tabs, line breaks, undecodable bytes) are escaped with a
    backslash, so that the path can be recovered.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with replacing(path) as file:
            file.writelines(rejected.content())
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise StorageError(path, problem, "choose another --quarantine") from None


MOST_IN_ERROR = 100_000
REMEDIES = {
    "bad-box": ("drop bad boxes", {"boxes": "drop"}),
    "no-label": ("skip images without a label", {"missing-labels": "skip"}),
    "animation": ("take the first frame of animations", {"on-animation": "first"}),
}
"""Reason -> (what would help, the option that does it and its value)."""


class NothingToPack(UsageError):
    """All images are left out; with `lacks_labels`, some because they have no label."""

    def __init__(self, place: str, problem: str, next_step: str = "", lacks_labels: bool = False) -> None:
        super().__init__(place, problem, next_step)
        self.lacks_labels = lacks_labels


def check_not_empty(options: BuildOptions, inputs: Inputs) -> None:
    """Raise NothingToPack if all inputs were skipped."""
    if inputs.asked:
        return
    example = next(iter(inputs.skipped))
    lacks_labels = inputs.skipped.counts[NO_LABEL] > 0
    of_split = f" of the split {printable(options.one_split)}" if options.one_split and lacks_labels else ""
    problem = f"nothing to pack{of_split}: all {inputs.found:,} inputs are skipped"
    problem += f" ({printable(example.path)}: {example.reason})"
    which = next((option(name) for name in ("split", "include", "exclude") if getattr(options, name)), None)
    step = f"choose another {which}" if which else "give other images or labels"
    if lacks_labels:
        step += f", or pack images without labels, too: {option('missing-labels', 'empty')}"
    raise NothingToPack(options.source, problem, step, lacks_labels)


def too_many(options: BuildOptions, bad: int, asked: int) -> bool:
    """Return whether more inputs are bad than ``--max-bad`` allows, or all of them."""
    return bad > options.bad_allowed(asked) or bad >= asked


def continue_message(options: BuildOptions, bad: int, asked: int) -> str:
    """Return the note that the build will fail, but looks for further bad inputs."""
    found = plural(bad, "bad input", "bad inputs")
    allowed = options.bad_allowed(asked)
    return f"{found}, {allowed:,} allowed: going on to find all of them before failing (--fail-fast stops at once)"


def too_many_bad_error(
    options: BuildOptions,
    inputs: Inputs,
    asked: int,
    decoded: bool,
    progress: Progress,
    listed_by: Sequence[str] = TooManyBad.listed_by,
) -> TooManyBad:
    """List the bad inputs for ``--quarantine``, and return the error.

    Args:
        options: The options of the build.
        inputs: What was found.
        asked: Number of inputs that were not skipped.
        decoded: Whether all images were decoded, so that no further one is bad.
        progress: Receives the name of the list.
        listed_by: Options with which the command lists all bad inputs.
    """
    try:
        list_rejected(options, inputs.rejected, progress)
    except StorageError as error:
        progress.note(f"note: {error.line}")
    rejected, bad, allowed = inputs.rejected, inputs.bad, options.bad_allowed(asked)
    problem = f"{bad:,} of {asked:,} {'input' if asked == 1 else 'inputs'} {'is' if bad == 1 else 'are'} bad"
    problem += f", {allowed:,} allowed" if bad > allowed else ": no image is left to pack"
    if not decoded:
        problem += " (images were not decoded to the end: there may be more)"
    fix, remedy = _what_helps(options, inputs, asked)
    reasons = [(reason, count, rejected.examples[reason]) for reason, count in rejected.counts.most_common()]
    found = TooManyBad(options.source, problem, fix, tuple(islice(rejected, MOST_IN_ERROR)), reasons, remedy)
    found.listed_by = listed_by
    return found


def _what_helps(options: BuildOptions, inputs: Inputs, asked: int) -> tuple[str, list[str]]:
    """Return the next step, and the options with which the same build packs what is not bad."""
    counts, them = inputs.rejected.counts, "it" if inputs.bad == 1 else "them"
    is_none_left = inputs.taken <= sum(count for reason, count in counts.items() if reason != "no-image")
    if counts["no-label"] and is_none_left and (options.mask or options.part):
        return 'say how the files are named: a pattern such as "masks/{stem}_mask.png" in place of their folder', []
    if counts["no-label"] >= asked and options.labels != ("auto",):
        return f"leave out {option('labels')}, or name labels that the images have", []
    remedies = [remedy for reason, remedy in REMEDIES.items() if counts[reason]]
    rest = sum(count for reason, count in counts.items() if reason not in REMEDIES)
    if rest >= asked:
        return f"fix {them}", []
    if rest:
        remedies.append(("skip the others" if remedies else f"skip {them}", {"max-bad": str(rest + inputs.kept[1])}))
    given = {name: value for _, needed in remedies for name, value in needed.items()}
    steps = f"{_in_turn([what for what, _ in remedies])} with {' '.join(starmap(option, given.items()))}"
    return f"fix {them}, or {steps}", words_of(given)


def _in_turn(steps: list[str]) -> str:
    *others, last = steps
    return f"{', '.join(others)} and {last}" if others else last


ROWS_A_JOB = 256


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Some rows of a table of inputs."""

    table: str
    """Path of the mapped table."""
    start: int
    stop: int
    recipe: Recipe
    threads: int = 1
    refused: Mapping[int, BadInput] = field(default_factory=dict)
    """Rows on which the decoder crashed or hung."""


@quiet_opencv(in_worker=True)
def check_images(job: CheckJob, report: Report, decoding: Decoding) -> dict[int, Rejected]:
    """Decode the images of a job. Return why an image cannot be packed, by its row."""
    bad, whole = {}, DecodedOnce()
    table = map_table(job.table).slice(job.start, job.stop - job.start)
    windows = table.column(WINDOW).to_pylist() if WINDOW in table.column_names else [None] * len(table)
    for number, (row, read) in enumerate(job.recipe.reads(rows_of(table)), job.start):
        try:
            if number in job.refused:
                whole.refuse(row.path, job.refused[number])
                raise job.refused[number]
            contents, window = read(), windows[number - job.start]
            frame = Annotation(window=None if window is None else np.array(window, np.int32))
            with decoding(number):
                job.recipe.record("", job.recipe.with_header(row, contents.image), contents, frame, whole)
        except BadInput as error:
            bad[number] = rejected(row.path, error)
        report(1, number in bad)
    return bad


Run = Callable[[Sequence[CheckJob]], Iterator[tuple[int, dict[int, Rejected]]]]


def decode_all(inputs: Inputs, recipe: Recipe, suspects: bool, run: Run) -> None:
    """Decode all inputs, and reject those that cannot be packed.

    Args:
        inputs: The inputs; bad ones are moved from the table to `rejected`.
        recipe: How they will be converted.
        suspects: Also decode images whose labels an option would let pass: the next run should not fail for them.
        run: Runs jobs in worker processes.
    """
    more = inputs.suspects if suspects else []
    suspected = f"{inputs.file}.suspects"
    write_table(more, inputs.base, suspected)
    files = {inputs.file: inputs.rows, suspected: sum(map(len, more))}
    jobs = [
        CheckJob(file, start, min(start + ROWS_A_JOB, rows), recipe)
        for file, rows in files.items()
        for start in range(0, rows, ROWS_A_JOB)
    ]
    bad: set[int] = set()
    for number, found in run(jobs):
        for row in found.values():
            inputs.rejected.add(row)
        if jobs[number].table == inputs.file:
            bad |= found.keys()
        else:
            inputs.twice += len(found)
    os.unlink(suspected)
    if bad:
        inputs.drop(bad)
