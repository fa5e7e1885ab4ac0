"""Whether too many inputs are bad, and the error that says which, why, and what would help."""

from __future__ import annotations

from itertools import islice

from packer.errors import StorageError, TooManyBad, UsageError, plural, printable
from packer.model.annotation import Progress
from packer.packing.options import BuildOptions
from packer.packing.quarantine import list_rejected
from packer.packing.table import Inputs

MOST_IN_ERROR = 100_000
REMEDIES = {
    "bad-box": ("drop bad boxes", "--boxes drop"),
    "no-label": ("skip images without a label", "--missing-labels skip"),
    "animation": ("take the first frame of animations", "--on-animation first"),
}
"""Reason -> (what would help, the option that does it)."""


def check_not_empty(options: BuildOptions, inputs: Inputs) -> None:
    """Raise UsageError if all inputs were skipped."""
    if inputs.asked:
        return
    example = next(iter(inputs.skipped))
    problem = f"nothing to pack: all {inputs.found:,} inputs are skipped ({printable(example.path)}: {example.reason})"
    which = next((f"--{name}" for name in ("split", "include", "exclude") if getattr(options, name)), None)
    raise UsageError(options.source, problem, f"choose another {which}" if which else "give other images or labels")


def too_many(options: BuildOptions, bad: int, asked: int) -> bool:
    """Return whether more inputs are bad than ``--max-bad`` allows, or all of them."""
    return bad > options.bad_allowed(asked) or bad >= asked


def going_on(options: BuildOptions, bad: int, asked: int) -> str:
    """Return the note that the build will fail, but looks for further bad inputs."""
    found = plural(bad, "bad input", "bad inputs")
    allowed = options.bad_allowed(asked)
    return f"{found}, {allowed:,} allowed: going on to find all of them before failing (--fail-fast stops at once)"


def fail(options: BuildOptions, inputs: Inputs, asked: int, decoded: bool, progress: Progress) -> TooManyBad:
    """List the bad inputs for ``--quarantine``, and return the error.

    Args:
        options: The options of the build.
        inputs: What was found.
        asked: Number of inputs that were not skipped.
        decoded: Whether all images were decoded, so that no further one is bad.
        progress: Receives the name of the list.
    """
    try:
        list_rejected(options, inputs.rejected, progress)
    except StorageError as error:
        progress.note(f"note: {error.line}")
    rejected = inputs.rejected
    bad = inputs.bad
    allowed = options.bad_allowed(asked)
    problem = f"{bad:,} of {asked:,} {'input' if asked == 1 else 'inputs'} {'is' if bad == 1 else 'are'} bad"
    problem += f", {allowed:,} allowed" if bad > allowed else ": no image is left to pack"
    if not decoded:
        problem += " (images were not decoded to the end: there may be more)"
    them = "it" if bad == 1 else "them"
    remedies = [remedy for reason, remedy in REMEDIES.items() if rejected.counts[reason]]
    rest = sum(count for reason, count in rejected.counts.items() if reason not in REMEDIES)
    if rest:
        remedies.append(("skip the others" if remedies else f"skip {them}", f"--max-bad {rest}"))
    fix, remedy = f"fix {them}", []
    if rejected.counts["no-label"] >= asked and options.labels != ("auto",):
        fix = "leave out --labels, or name labels that the images have"
    elif rest < asked:
        remedy = " ".join(option for _, option in remedies).split()
        fix += f", or {_in_turn([what for what, _ in remedies])} with {' '.join(option for _, option in remedies)}"
    reasons = [(reason, count, rejected.examples[reason]) for reason, count in rejected.counts.most_common()]
    return TooManyBad(options.source, problem, fix, tuple(islice(rejected, MOST_IN_ERROR)), reasons, remedy)


def _in_turn(steps: list[str]) -> str:
    *others, last = steps
    return f"{', '.join(others)} and {last}" if others else last
