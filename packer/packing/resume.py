"""Decides whether an unfinished build can be resumed: were its options and versions the same?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import packer
from packer.errors import TooManyBad, UsageError, as_options, option, printable
from packer.format.digests import sha256_of
from packer.format.manifest import FORMAT_VERSION
from packer.packing.option_table import ARGUMENT, TABLE
from packer.packing.options import BuildOptions
from packer.packing.publish import Output
from packer.packing.summary import library_versions
from packer.stores import clean_url, is_url


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
    notes = output.read_journal(head)
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


def asked_of(options: BuildOptions) -> dict[str, Any]:
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
    return ", ".join(f"{_named(name, _value(before.get(name)))}, now {_value(now[name])}" for name in names)


def _named(name: str, value: str) -> str:
    return f"{ARGUMENT} {value}" if name == "source" else option(TABLE[name].flag, value)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_value(item) for item in value) or "none"
    return "none" if value is None else printable(str(value))


def _versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    old = before.get("made_with")
    old = old if isinstance(old, Mapping) else {}
    names = [name for name in now["made_with"] if old.get(name) != now["made_with"][name]] or list(old)
    return ", ".join(f"{name} {_value(old.get(name))}, now {_value(now['made_with'].get(name))}" for name in names)


def what_is_kept(output: Output, error: BaseException) -> str:
    """Return a note on what a build that ended with `error` has left; empty if nothing is left and nobody asks."""
    if not output.kept and isinstance(error, KeyboardInterrupt | SystemExit):
        return "nothing is kept: no shard was finished; the same command starts again (--shard-size makes them smaller)"
    if not output.kept:
        return ""
    # the same command would fail for the same inputs again: the error says what would not
    return f"{output.kept}{' for the next attempt' if isinstance(error, TooManyBad) else f': {output.resumes_with}'}"
