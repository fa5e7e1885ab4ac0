"""Whether too many inputs are bad, and the error that says which, why, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, starmap

from packer.errors import StorageError, TooManyBad, UsageError, option, plural, printable, words_of
from packer.model.annotation import Progress
from packer.packing.options import BuildOptions
from packer.packing.quarantine import list_rejected
from packer.packing.table import Inputs

MOST_IN_ERROR = 100_000
REMEDIES = {
    "bad-box": ("drop bad boxes", {"boxes": "drop"}),
    "no-label": ("skip images without a label", {"missing-labels": "skip"}),
    "animation": ("take the first frame of animations", {"on-animation": "first"}),
}
"""Reason -> (what would help, the option that does it and its value)."""


def check_not_empty(options: BuildOptions, inputs: Inputs) -> None:
    """Raise UsageError if all inputs were skipped."""
    if inputs.asked:
        return
    example = next(iter(inputs.skipped))
    problem = f"nothing to pack: all {inputs.found:,} inputs are skipped ({printable(example.path)}: {example.reason})"
    which = next((option(name) for name in ("split", "include", "exclude") if getattr(options, name)), None)
    raise UsageError(options.source, problem, f"choose another {which}" if which else "give other images or labels")


def too_many(options: BuildOptions, bad: int, asked: int) -> bool:
    """Return whether more inputs are bad than ``--max-bad`` allows, or all of them."""
    return bad > options.bad_allowed(asked) or bad >= asked


def going_on(options: BuildOptions, bad: int, asked: int) -> str:
    """Return the note that the build will fail, but looks for further bad inputs."""
    found = plural(bad, "bad input", "bad inputs")
    allowed = options.bad_allowed(asked)
    return f"{found}, {allowed:,} allowed: going on to find all of them before failing (--fail-fast stops at once)"


def fail(
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
    if counts["no-label"] >= asked and options.labels != ("auto",):
        return f"leave out {option('labels')}, or name labels that the images have", []
    remedies = [remedy for reason, remedy in REMEDIES.items() if counts[reason]]
    rest = sum(count for reason, count in counts.items() if reason not in REMEDIES)
    if rest >= asked:
        return f"fix {them}", []
    if rest:
        remedies.append(("skip the others" if remedies else f"skip {them}", {"max-bad": str(rest)}))
    given = {name: value for _, needed in remedies for name, value in needed.items()}
    steps = f"{_in_turn([what for what, _ in remedies])} with {' '.join(starmap(option, given.items()))}"
    return f"fix {them}, or {steps}", words_of(given)


def _in_turn(steps: list[str]) -> str:
    *others, last = steps
    return f"{', '.join(others)} and {last}" if others else last
