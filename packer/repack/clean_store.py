"""Removes what unfinished and replaced packs have left at a URL: only what packer names so, and no manifest names."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from packer.errors import AnyPath, DamagedPack, UsageError
from packer.format.jpeg_index_list import JPEG_INDEX
from packer.format.manifest import MANIFEST_NAME
from packer.format.pack_objects import find_manifest, jpeg_index_at
from packer.model.annotation import Progress
from packer.packing.journal import checked_line
from packer.packing.store_journal import BUILDS, PLAIN, TAGGED, objects_in
from packer.stores import clean_url, is_url, open_store
from packer.stores.store import NoObject, Object, Store

DAY_S = 86_400.0
DELETED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """What is at a URL that no pack needs."""

    url: str
    objects: tuple[Object, ...]
    """What may be removed, by name."""
    recent: tuple[Object, ...]
    """The same, but it, or the pack that replaced it, is too new: somebody may be building, or reading it. All, if the
    store does not say when objects were written."""
    unknown: tuple[Object, ...]
    """What is not removed: objects beside a pack that is not there, which may be the only copies."""


def find_unreferenced(url: AnyPath, older_than_s: float = DAY_S) -> Unreferenced:
    """Return the objects that unfinished and replaced packs have left at a URL.

    Only names that packer makes are looked at, directly below the URL and in its ``.build/``. Without a pack.json, only
    the objects that the journal of an unfinished build names count as unreferenced.

    Args:
        url: Where packs were built or pushed.
        older_than_s: Age of what may be removed. A journal is as old as its last object, and so are its shards.

    Raises:
        DamagedPack: There is a pack.json that cannot be read: then nothing can be known.
        StorageError: The store cannot be read.
    """
    if not is_url(url):
        raise UsageError(url, "is not a URL", "in a folder, remove NAME.partial")
    store = open_store(clean_url(url))
    before = time.time() - older_than_s
    try:
        found = find_manifest(store)
    except DamagedPack as error:
        error.next_step = f"nothing is removed: restore {MANIFEST_NAME} first"
        raise
    here = objects_in(store)
    written = here.pop(MANIFEST_NAME).modified_s if MANIFEST_NAME in here else 0.0
    needed = set() if found is None else {file.name for file in found.files}
    if found is not None and (index := jpeg_index_at(store, found, lambda note: None)) is not None:
        needed |= {file.name for file in index.files}
    builds, running, abandoned = _builds(store, before)
    old: list[Object] = []
    recent: list[Object] = []
    unknown: list[Object] = []
    for one in builds:
        (old if one.name.rpartition("/")[0] in abandoned.folders else recent).append(one)
    for name, one in here.items():
        of_index = found is not None and JPEG_INDEX.fullmatch(name)
        if name in needed or not (of_index or TAGGED.fullmatch(name) or PLAIN.fullmatch(name)):
            continue
        if name in running.objects or not one.modified_s or max(one.modified_s, written) > before:
            recent.append(one)
        elif found is not None or name in abandoned.objects:
            old.append(one)
        else:
            unknown.append(one)
    return Unreferenced(store.url, *(tuple(sorted(group)) for group in (old, recent, unknown)))


def clean(found: Unreferenced, progress: Progress | None = None) -> None:
    """Remove `Unreferenced.objects`. Raise StorageError if that fails.

    Args:
        found: What `find_unreferenced` returned.
        progress: Receives the stage removing, in objects.
    """
    progress = progress or Progress()
    progress.stage("removing", len(found.objects), "objects")
    store = open_store(found.url)
    # the journals last: without one, its objects would be taken for the only copies
    names = sorted((one.name for one in found.objects), key=lambda name: (name.startswith(BUILDS), name))
    for start in range(0, len(names), DELETED_AT_ONCE):
        some = names[start : start + DELETED_AT_ONCE]
        with suppress(NoObject):
            store.delete(some)
        progress.advance(len(some))


@dataclass(frozen=True, slots=True)
class _Builds:
    folders: set[str]
    objects: set[str]
    """What their journals name."""


def _builds(store: Store, before: float) -> tuple[list[Object], _Builds, _Builds]:
    """Return the objects of all journals, the builds that may be running, and those that are given up."""
    found = list(store.names(BUILDS))
    folders: dict[str, list[Object]] = {}
    for one in found:
        folders.setdefault(one.name.rpartition("/")[0], []).append(one)
    running, abandoned = _Builds(set(), set()), _Builds(set(), set())
    for folder, objects in sorted(folders.items(), reverse=True):  # .build/ itself, with the claim of a push, last
        times = [one.modified_s for one in objects]
        recent = max(times) > before or not min(times) or (running.folders and folder == BUILDS.rstrip("/"))
        builds = running if recent else abandoned
        builds.folders.add(folder)
        builds.objects.update(_journal_objects(store, objects))
    return found, running, abandoned


def _journal_objects(store: Store, objects: Iterable[Object]) -> Iterable[str]:
    """Yield the names of the objects that a journal names."""
    for one in objects:
        with suppress(NoObject):
            content = checked_line(bytes(store.read(one.name)))
            if content is not None and "objects" in content:  # of a build
                yield from (name for name, *_ in content["objects"])
            elif content is not None and "name" in content:  # of a push
                yield content["name"]
