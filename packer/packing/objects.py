"""A pack as objects of a store: their names, what else may be there, and the one step that publishes it.

Names of objects carry the digest of their content, so that two builds never write different bytes to one name, and a
reader of a pack that is replaced keeps its objects. pack.json is written last, and only if it is as it was before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from packer.errors import StorageError, UsageError, printable
from packer.format.manifest import MANIFEST_NAME, FileEntry, Manifest, ShardEntry
from packer.stores import join_url
from packer.stores.base import ABSENT, NoObject, Object, ObjectChanged, Store
from packer.stores.transfer import AGAIN

BUILDS = ".build/"
"""Below it, each unfinished build or push has a folder with an object for each shard or file that is there."""
TAG_DIGITS = 8
TAGGED = re.compile(r"(?:shard-\d{5,}|data|rejected|skipped|changed|include|exclude)-[0-9a-f]{8}\.[a-z0-9.]+")
"""Names that a build gives to objects."""
PLAIN = re.compile(r"(?:shard-\d{5,}\.(?!json$)[a-z0-9.]+|data\.(?:mdb|index\.arrow))")
"""Names that a build gives to the files of a folder, and `packer push` keeps."""
LOOKED_AT = 2000


def tagged(name: str, tag: str) -> str:
    """Return the name of an object: ``shard-00012-3f9a2c1b.lmdb``."""
    stem, _, rest = name.partition(".")
    return f"{stem}-{tag}.{rest}"


def object_shard(shard: ShardEntry) -> ShardEntry:
    """Return a shard with the names of its objects. Both have one tag, as both have one stem in a folder."""
    digest = hashlib.sha256(f"{shard.container.sha256} {shard.index.sha256}".encode("ascii"))
    tag = digest.hexdigest()[:TAG_DIGITS]
    container, index = shard.container, shard.index
    return replace(
        shard,
        container=replace(container, name=tagged(container.name, tag)),
        index=replace(index, name=tagged(index.name, tag)),
    )


def object_companion(companion: FileEntry, shard: ShardEntry) -> FileEntry:
    """Return the companion of an `object_shard` with the name of its object."""
    extension = companion.name.partition(".")[2]
    return replace(companion, name=f"{shard.container.name.partition('.')[0]}.{extension}")


def object_list(file: FileEntry) -> FileEntry:
    """Return a list of a pack with the name of its object."""
    return replace(file, name=tagged(file.name, file.sha256[:TAG_DIGITS]))


def check_free(store: Store, overwrite: bool) -> str | None:
    """Check that a pack may be written to a URL.

    Args:
        store: The URL.
        overwrite: Whether there may be one.

    Returns:
        The `only_if` with which its pack.json is to be written.

    Raises:
        UsageError: There is a pack, or something else.
    """
    try:
        found = store.size(MANIFEST_NAME)
    except NoObject:
        check_no_others(store)
        return ABSENT
    if not overwrite:
        raise UsageError(store.url, "exists", "choose another --out, or replace it with --overwrite")
    return found.etag


def check_no_others(store: Store, files: Iterable[FileEntry] = ()) -> None:
    """Raise UsageError if there are objects that no build or push leaves: it may be a folder of images.

    Args:
        store: The URL.
        files: Files whose names may be there.
    """
    names = {file.name for file in files}
    for found in islice(store.names(), LOOKED_AT):
        name = found.name
        if not (name.startswith(BUILDS) or name in names or TAGGED.fullmatch(name)):
            problem = f"has other objects, such as {printable(name)}"
            raise UsageError(store.url, problem, "choose a URL below which nothing is")


def objects_in(store: Store) -> dict[str, Object]:
    """Return the objects directly below a URL, by name."""
    return {found.name: found for found in store.folders()[1]}


def check_complete(store: Store, files: Iterable[FileEntry], written: Mapping[str, Object]) -> None:
    """Check that every file of a pack is there as it was written, before its pack.json is.

    Args:
        store: The URL.
        files: The files.
        written: What the store said of them when they were written.

    Raises:
        StorageError: An object was removed or replaced.
    """
    there = objects_in(store)
    for file in files:
        found = there.get(file.name)
        if found is None:
            with suppress(NoObject):  # a list may be late
                found = store.size(file.name)
        before = written.get(file.name)
        if found is None:
            raise StorageError(join_url(store.url, file.name), "was removed since it was written", AGAIN)
        if found.size != file.bytes or not (before is None or is_same(found, before)):
            raise StorageError(join_url(store.url, file.name), "was replaced since it was written", AGAIN)


def is_same(found: Object | None, before: Object) -> bool:
    """Return whether an object is the version that it was, as far as the store says."""
    if found is None or found.size != before.size:
        return False
    if found.etag is None or before.etag is None:
        return True
    return found.etag.strip('"') == before.etag.strip('"')  # some servers list it without quotes


def publish_manifest(store: Store, manifest: Manifest, only_if: str | None) -> None:
    """Write pack.json if the one in the store is still as it was, or already this one.

    Args:
        store: The URL.
        manifest: The manifest.
        only_if: The version to replace, as in `Store.write`.

    Raises:
        UsageError: Another build was faster.
        StorageError: It cannot be written.
    """
    data = manifest.to_json()
    try:
        store.write(MANIFEST_NAME, data, only_if)
    except StorageError as error:
        with suppress(StorageError):  # the answer may have been lost, but not the object
            if bytes(store.read(MANIFEST_NAME)) == data:
                return
        if isinstance(error, ObjectChanged):
            problem = "another build has published a pack there meanwhile"
            raise UsageError(store.url, problem, "choose another URL, or build with --overwrite") from None
        raise


def heeds_conditions(store: Store, folder: str, replacing: bool) -> bool:
    """Return whether a store writes objects only if a condition holds; some that speak S3 ignore it.

    Args:
        store: The URL.
        folder: Below which to try it.
        replacing: Try the replacement of a version, else the creation.
    """
    name = f"{folder}probe"
    store.write(name, b"")
    try:
        store.write(name, b"", '"0"' if replacing else ABSENT)
    except ObjectChanged:
        return True
    return False
