"""Stores of fsspec, for what obstore has not: ``hf://`` and the like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec

from packer.errors import NotInstalled, StorageError, UsageError
from packer.stores.store import ABSENT, Content, NoObject, Object, ObjectChanged, Store, check_process, join_url
from packer.stores.waiting import interruptible

if TYPE_CHECKING:
    from typing_extensions import Buffer

AGAIN = "check the network and the store, and run it again"
T = TypeVar("T")


class FsspecStore(Store):
    """The objects below a URL. It cannot write only if an object is absent."""

    def __init__(self, url: str) -> None:
        self.url = url
        scheme = url.partition("://")[0]
        try:
            self._files: Any
            self._files, self._root = fsspec.core.url_to_fs(url)
        except ValueError:
            raise UsageError(url, f"{scheme}:// is not a kind of store that is known", "see docs/remote.md") from None
        except ImportError as error:
            raise NotInstalled(url, f"needs another library: {error}", "install it") from None
        except OSError as error:  # those of some schemes connect here
            raise StorageError(url, f"cannot be reached: {error}", AGAIN) from None
        self._root = self._root.rstrip("/")
        self.origin = f"{url} {getattr(self._files, 'endpoint', None) or ''}"  # HF_ENDPOINT may name a mirror

    def __reduce__(self) -> tuple[Any, ...]:
        return FsspecStore, (self.url,)

    def size(self, name: str) -> Object:
        """Return what the store says of an object."""
        return self._object(self._call(name, lambda: self._files.info(self._path(name))))

    def read(self, name: str, start: int = 0, stop: int | None = None, etag: str | None = None) -> Buffer:
        """Return the bytes from `start` to `stop` (None: to the end), exactly as many; `etag` is not looked at."""
        if stop is not None and stop <= start:
            return b""
        data = self._call(name, lambda: self._files.cat_file(self._path(name), start=start or None, end=stop))
        if stop is not None and len(data) != stop - start:
            problem = f"has {len(data)} bytes from {start} to {stop}"
            raise ObjectChanged(join_url(self.url, name), problem, "it was replaced, or cut: read it again")
        return data  # type: ignore[no-any-return]

    def get(self, name: str, start: int = 0, stop: int | None = None, etag: str | None = None) -> tuple[Buffer, Object]:
        """Return the bytes from `start` to `stop`, exactly as many, and what the store says of the whole object."""
        return self.read(name, start, stop, etag), self.size(name)

    def write(self, name: str, content: Content, only_if: str | None = None) -> str | None:
        """Write an object; `only_if` is checked before, which is not safe against others at the same moment."""
        path = self._path(name)
        if only_if == ABSENT and self._call(name, lambda: self._files.exists(path)):
            raise ObjectChanged(join_url(self.url, name), "exists", "choose another URL")
        if only_if and self.size(name).etag != only_if:
            raise ObjectChanged(join_url(self.url, name), "was replaced by another version", "open it again")
        if isinstance(content, bytes):
            self._call(name, lambda: self._files.pipe_file(path, content))
        else:
            self._call(name, lambda: self._write_pieces(path, content))
        return None

    def _write_pieces(self, path: str, pieces: Iterable[bytes]) -> None:
        file = self._files.open(path, "wb")
        try:
            for piece in pieces:
                file.write(piece)
        except BaseException:
            file.discard()  # closing it would write what there is
            raise
        file.close()

    def names(self, prefix: str = "") -> Iterator[Object]:
        """Yield the objects whose names begin with `prefix`."""
        folder = prefix.rpartition("/")[0]
        found = self._call(prefix, lambda: self._files.find(self._path(folder), detail=True))
        yield from sorted(one for one in map(self._object, found.values()) if one.name.startswith(prefix))

    def folders(self, prefix: str = "") -> tuple[list[str], list[Object]]:
        """Return the folders directly in the folder `prefix`, and the objects."""
        found = self._call(prefix, lambda: self._files.ls(self._path(prefix), detail=True))
        folders = [self._name(one["name"]) for one in found if one["type"] == "directory"]
        return sorted(folders), sorted(self._object(one) for one in found if one["type"] == "file")

    def delete(self, names: list[str]) -> None:
        """Delete objects."""
        for name in names:
            self._call(name, lambda name=name: self._files.rm_file(self._path(name)))  # type: ignore[misc]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _name(self, path: str) -> str:
        return path.removeprefix("/").removeprefix(self._root.removeprefix("/")).strip("/")

    def _object(self, info: Any) -> Object:
        etag = info.get("ETag") or info.get("etag") or info.get("blob_id")
        return Object(self._name(info["name"]), int(info["size"] or 0), etag, 0.0)

    def _call(self, name: str, call: Callable[[], T]) -> T:
        check_process()
        where = join_url(self.url, name)
        try:
            return interruptible(call)
        except StorageError:  # nobody waits for it any more
            raise
        except FileNotFoundError:
            raise NoObject(where, "no such object", "check the URL") from None
        except PermissionError as error:
            raise StorageError(where, f"access denied: {error}", "check the credentials") from None
        except (OSError, ValueError, RuntimeError, NotImplementedError) as error:
            text = " ".join(str(error).split())[:300]
            raise StorageError(where, f"cannot be reached: {text}", AGAIN) from None
