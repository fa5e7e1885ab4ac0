"""Where samples come from: folders of images with annotations. `open_source` opens one by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from packer.errors import UsageError
from packer.sources.base import Source, SourceOptions, Tree

if TYPE_CHECKING:
    from packer.sources.auto import Choice

SOURCES = {
    "none": "packer.sources.none",
    "folder": "packer.sources.folder",
    "voc": "packer.sources.voc",
    "yolo": "packer.sources.yolo",
    "list": "packer.sources.list",
}
"""Name on the command line -> module; each has ``open_tree(tree, options) -> Source``."""

CHOICES = ("auto", *(f"{name}:FILE" if name == "list" else name for name in SOURCES))
"""The words that ``--labels`` takes."""


def recognise(tree: Tree, options: SourceOptions) -> Choice:
    """Which source fits this tree: (spec, why). Raises UsageError where several do, naming them."""
    from packer.sources.auto import recognise_tree

    return recognise_tree(tree, options)


def open_source(spec: str, tree: Tree, options: SourceOptions) -> Source:
    """The source that ``--labels SPEC`` names, over this tree.

    For ``auto`` the first of its `notes` says what was recognised and why. Raises UsageError for an unknown
    name, and where the tree does not have that layout.
    """
    if spec == "auto":
        choice = recognise(tree, options)
        source = open_source(choice.spec, tree, options)
        source.notes.insert(0, f"--labels {choice.spec}: {choice.why}")
        return source
    name, colon, file = spec.partition(":")
    if name not in SOURCES or bool(colon) != (name == "list") or (colon and not file):
        raise UsageError("", f"--labels {spec} is not known", f"choose one of {', '.join(CHOICES)}")
    if name == "list":
        options = replace(options, file=file)
    opened: Source = import_module(SOURCES[name]).open_tree(tree, options)
    return opened


def check_options(specs: Sequence[str], options: SourceOptions) -> None:
    """Raises UsageError for ``--split`` or ``--columns`` where none of the sources could use it."""
    names = {spec.partition(":")[0] for spec in specs}
    if options.split is not None and names == {"list"}:
        raise UsageError("", "--split with a list alone: a list has no splits", "write one list a split")
    if options.columns is not None and not names & {"list", "auto"}:
        raise UsageError("", "--columns is for lists", "pass --labels list:FILE, or leave out --columns")
