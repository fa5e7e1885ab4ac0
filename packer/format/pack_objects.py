"""The objects of a pack at a URL, read without a cache: its manifest, its lists, and what is missing.

Nothing here needs numpy or pyarrow, so that `packer info` answers at once; `packer.format.remote` reads records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from packer.errors import AnyPath, DamagedPack, PackNotFound, StorageError
from packer.format.beside import L, parse_beside
from packer.format.manifest import FileEntry, Manifest, parse_manifest, read_manifest
from packer.format.pack_paths import MANIFEST_NAME
from packer.stores import is_url, join_url, open_store
from packer.stores.store import NoObject, Object, Store, patiently
from packer.stores.waiting import all_of, pool

RESTORE = "restore it or build the pack again"
ASKED_AT_ONCE = 32
WEB = ("http:", "https:")


def manifest_of(pack: AnyPath) -> Manifest:
    """Return the manifest of a pack in a directory or at a URL. Raise the errors of `read_manifest`."""
    return manifest_at(open_store(pack)) if is_url(pack) else read_manifest(pack)


def manifest_at(store: Store) -> Manifest:
    """Return the manifest of the pack at the URL of a store.

    Raises:
        PackNotFound: The URL has no pack.
        DamagedPack: The manifest was altered.
        StorageError: The store was away for a minute, or does not allow it.
    """
    if (found := find_manifest(store)) is None:
        step = "check the URL, and which account the environment names; packer push PACK URL copies a pack there"
        raise PackNotFound(store.url, f"is not a pack: it has no {MANIFEST_NAME}", step)
    return found


def find_manifest(store: Store) -> Manifest | None:
    """Return the manifest of the pack at the URL of a store; None if there is none. Raise as `manifest_at` does."""
    try:
        text = bytes(patiently(lambda: store.read(MANIFEST_NAME), warn=True))
    except NoObject:
        return None
    return parse_manifest(join_url(store.url, MANIFEST_NAME), text)


def beside_at(kind: type[L], store: Store, manifest: Manifest, note: Callable[[str], None] | None = None) -> L | None:
    """Return the list of a kind of files beside the pack at the URL of a store; None if there is none.

    Args:
        kind: The class of the list.
        store: The URL of the pack.
        manifest: Its manifest.
        note: Receives what is wrong with a list that is not used. None: that is an error.

    Raises:
        DamagedPack: It was altered, or is that of another pack.
    """
    try:
        text = bytes(patiently(lambda: store.read(kind.NAME)))
        return parse_beside(kind, store.url, text, manifest, "push it again")
    except NoObject:
        return None
    except DamagedPack as error:
        if note is None:
            raise
        note(f"note: {kind.NAME} and its files are not copied: it {error.problem}")
        return None


def fetch_file(store: Store, entry: FileEntry) -> Any:
    """Return the bytes of a whole file of a pack, verified against its digest. Raise DamagedPack if it is another."""
    where = join_url(store.url, entry.name)
    for _ in range(2):  # once more, as records, if they came wrong
        try:
            data = patiently(lambda: store.read(entry.name))
        except NoObject:
            raise DamagedPack(where, "is missing", RESTORE) from None
        if hashlib.sha256(data).hexdigest() == entry.sha256:
            return data
    raise DamagedPack(where, "was altered: it does not match its digest", RESTORE)


def objects_in(store: Store) -> dict[str, Object] | None:
    """Return the objects directly at the URL, by name; None if the store cannot list them."""
    if store.url.startswith(WEB):  # most servers answer as if they were overloaded, and are asked again for long
        return None
    try:
        return {found.name: found for found in store.folders()[1]}
    except StorageError:
        return None


def missing_objects(store: Store, files: Sequence[FileEntry]) -> list[str]:
    """Return the names of the files of a pack of which there is no object."""
    return [name for name, found in objects_of(store, files).items() if found is None]


def objects_of(store: Store, files: Sequence[FileEntry]) -> dict[str, Object | None]:
    """Return what the store says of the files of a pack, by name; None for those of which there is no object."""
    names = [file.name for file in files]
    if (listed := objects_in(store)) is not None:
        return {name: listed.get(name) for name in names}
    with pool(ASKED_AT_ONCE) as threads:
        return dict(zip(names, all_of([threads.submit(_asked, store, name) for name in names]), strict=True))


def _asked(store: Store, name: str) -> Object | None:
    try:
        return store.size(name)
    except NoObject:
        return None
