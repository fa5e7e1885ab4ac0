"""Which files are adopted: those given, and those of a known format in the folders that are given."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from packer.errors import UsageError, printable
from packer.format.manifest import INDEX_SUFFIX, names_a_pack
from packer.repack.formats import recognize

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
    """Return why a file is the index of another, whose reader does not need it; empty if it is none."""
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
