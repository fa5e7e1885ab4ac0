"""Changes of a pack in place, in forked children: what each is, and what must hold after it has died at any moment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from drawn import draw, draw_voc, tree_state, voc_xml
from running import jobs_here
from torture_builds import Child, code_of, draw_parts, said
from xxhash import xxh3_128_hexdigest

from packer import BuildOptions, attach, build_pack, edit, open_pack, purge, update, versions_of
from packer.format.content import content_digest
from packer.format.verify import verify
from packer.packing.publish_version import NextVersion

IMAGES = 9
DELETED = (1, 6)
"""Images that are deleted; the second one has other bytes now, so that an update packs it again."""
LATE = "009"
"""The image that comes into the source after the pack was built."""
UNFINISHED = ("jpeg-index.partial", "sidecars.partial")
"""Folders in a pack that a purge keeps others from; one that dies leaves them, empty but for a mark and a lock."""
State = dict[str, str]
"""Name of each version (empty: of the newest one) -> its content digest, and that of what is attached to it."""


@dataclass(frozen=True)
class Change:
    """A change of a pack in place."""

    run: Callable[[Changing], object]
    before: Callable[[Changing], object] = lambda place: None
    """Other changes of the pack, which it has already."""
    again: bool = True
    """Whether there is nothing wrong in doing it once more when it is done."""
    erases: bool = False
    """Whether nothing of the deleted records may be left."""


def _edit(place: Changing) -> object:
    return edit(place.pack, delete=(1, 4), map=["dog=wolf"])


def _edit_lists(place: Changing) -> object:
    return edit(place.pack, delete=place.file("gone"), labels_from=place.labels, set=[("split=val", place.file("val"))])


def _delete(place: Changing) -> object:
    return edit(place.pack, delete=place.file("gone"))


def _update(place: Changing, compact: str = "never") -> object:
    return update(place.pack, place.source, workers=place.workers, compact=compact)


def _died(place: Changing, run: Callable[[Changing], object], before: bool) -> None:
    """Leave a change that has died just before its last step, or just after it."""

    def exchange(old: str, new: str) -> None:
        is_last = new == str(place.pack / "pack.json")
        if not (is_last and before):
            os.rename(old, new)
        if is_last:
            os._exit(0)

    def work() -> int:
        with mock.patch("os.replace", exchange):
            run(place)
        return 1

    assert Child(work).wait()[0] == 0, said()
    assert (place.pack / "versions/2/newest.json").exists() == before


def _updated(place: Changing) -> None:
    """Leave the shards of an update that died when it was done, and delete records in them."""
    place.change_source()
    _died(place, _update, before=False)
    assert (place.pack / "versions/update.partial").exists()
    _delete(place)


CHANGES = {
    "edit": Change(_edit, again=False),
    "edit-lists": Change(_edit_lists, before=lambda place: edit(place.pack, delete=[0]), again=False),
    "edit-after": Change(_edit, before=lambda place: _died(place, _edit_lists, before=True), again=False),
    "update": Change(_update),
    "update-compact": Change(lambda place: _update(place, "0%")),
    "purge": Change(lambda place: purge(place.pack), before=_delete, erases=True),
    "purge-updated": Change(lambda place: purge(place.pack), before=_updated, erases=True),
}


@contextmanager
def alone() -> Iterator[None]:
    """Meanwhile threads and workers have nothing to do: the n-th system call of a change is the same each time."""

    def submit(pool: ThreadPoolExecutor, work: Callable[..., Any], *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*given, **named))
        except BaseException as error:
            done.set_exception(error)
        return done

    with jobs_here(), mock.patch.object(ThreadPoolExecutor, "submit", submit):
        yield


def canary(image: int) -> bytes:
    """Bytes that only one image has behind those of its JPEG; of 100 more, those of what is attached to it."""
    return np.random.default_rng(image).bytes(32)


class Changing:
    """A folder with a source and `p`, a pack of it in three shards, that a change is made of again and again."""

    def __init__(self, folder: Path, container: str, change: str) -> None:
        self.folder, self.change, self.container = folder, CHANGES[change], container
        self.pack, self.source, self.labels = folder / "p", folder / "src", folder / "labels"
        self._before, self._scratch, self._state = folder / "before", folder / "tmp", folder / "state"
        self._scratch.mkdir()
        self.workers = 1
        with self._here():
            self._draw()
            self._build(self.pack)
            self._attach()
            edit(self.pack, self.labels, map=["dog=hound"])
            self.change.before(self)
            self.change_source()
        self.pack.rename(self._before)
        self._state.mkdir(exist_ok=True)
        self._state.rename(folder / "state-before")
        self._source = tree_state(self.source)
        self.clear()
        self.old = self.state()
        assert Child(self.work).wait()[0] == 0, said()  # another process: this one has opened nothing yet
        self.new, self._files = self.state(), files_of(self.pack)
        assert self.new[""] != self.old[""] or self.change.erases

    def file(self, name: str) -> str:
        """Return a list of images."""
        return str(self.folder / f"{name}.txt")

    def _draw(self) -> None:
        draw_voc(self.source, IMAGES)
        draw_parts(self.source)
        for number in range(IMAGES):
            with open(self.source / "JPEGImages" / f"{number:03d}.jpg", "ab") as image:
                image.write(canary(number))
        for name, images in (("gone", DELETED), ("val", (2, 5))):
            Path(self.file(name)).write_text("".join(f"JPEGImages/{image:03d}.jpg\n" for image in images))

    def _build(self, out: Path) -> None:
        build_pack(BuildOptions(
            str(self.source), out=str(out), format=self.container, labels=("voc",), shard_bytes=12_000, mask="masks",
            part=("depth=depth:map", "said=said:text"), workers=1,
        ))  # fmt: skip

    def _attach(self) -> None:
        """Attach an array to each record; they are in the order of the images."""
        rows = [np.frombuffer(canary(100 + image), np.uint8) for image in range(IMAGES)]
        np.save(self.folder / "code.npy", np.stack(rows))
        attach(self.pack, self.folder / "code.npy", name="code")

    def change_source(self) -> None:
        """One image is new, one has other bytes, one has other labels, and one is gone."""
        if (self.source / "JPEGImages" / f"{LATE}.jpg").exists():
            return
        draw(self.source / "JPEGImages" / f"{LATE}.jpg", 9)
        (self.source / "Annotations" / f"{LATE}.xml").write_text(voc_xml(f"{LATE}.jpg", [("cat", 1.0, 2.0, 9.0, 9.0)]))
        (self.source / "Annotations" / "002.xml").write_text(voc_xml("002.jpg", [("dog", 3.0, 2.0, 8.0, 9.0)]))
        for kind, ending in (("masks", "png"), ("depth", "png"), ("said", "txt")):
            shutil.copy(self.source / kind / f"000.{ending}", self.source / kind / f"{LATE}.{ending}")
        with open(self.source / "JPEGImages" / "006.jpg", "ab") as image:
            image.write(b"more")
        for path in [*self.source.rglob("005.*")]:
            path.unlink()

    @contextmanager
    def _here(self) -> Iterator[None]:
        """Meanwhile temporary files, and what packer remembers, are in the folder."""
        environment = {"XDG_STATE_HOME": str(self._state), "TMPDIR": str(self._scratch)}
        with (
            alone() if self.workers == 1 else nullcontext(),
            mock.patch.dict(os.environ, environment),
            mock.patch.object(tempfile, "tempdir", None),
            mock.patch("packer.packing.remembered.MARGIN_NS", 0),  # times of this file system are fine ones
        ):
            yield

    def work(self, workers: int = 1) -> int:
        """Change the pack, in this process alone or with threads and workers."""
        self.workers = workers
        with self._here():
            return code_of(lambda: self.change.run(self))

    def clear(self) -> None:
        """Let the pack be what it was before the change."""
        for path in (self.pack, self._scratch, self._state):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self._before, self.pack)
        shutil.copytree(self.folder / "state-before", self._state)
        self._scratch.mkdir()

    def restore(self, path: Path) -> bool:
        """Let a file of the pack be what it was before the change; return False if the change has made it itself."""
        was = self._before / path.relative_to(self.pack)
        if was.is_file():
            shutil.copy(was, path)
        return was.is_file() or path.name not in ("pack.json", "made.json")

    def state(self) -> State:
        """Return the content of all versions, after having verified them."""
        names = {"": str(self.pack)} | {str(one.number): one.path for one in versions_of(self.pack)}
        found = {}
        for name, path in names.items():
            report = verify(path)
            assert not report.problems, f"{path} is damaged: {report.problems}"
            unknown = {*report.unknown_files} - {*UNFINISHED}
            assert not unknown, f"{path} has unknown files: {unknown}"
            opened = open_pack(path)
            values = (opened.part(number, one) for one in opened.sidecars for number in range(len(opened)))
            attached = xxh3_128_hexdigest(b"".join(value.tobytes() for value in values))
            found[name] = f"{content_digest(opened.reader.indexes, opened.manifest)} {attached}"
        return found

    def _is_left(self, name: str) -> bool:
        """Whether a file is neither of the pack before the change nor of the versions that it had."""
        if name.startswith("versions/update.partial"):  # it is resumed
            return False
        versions = {f"versions/{number}" for number in self.old if number}
        kept = {"versions", "versions/.lock", *versions}
        return not ((self._before / name).exists() or name in kept or os.path.dirname(name) in versions)

    def check(self, code: int | None, text: str, tidy: bool = False) -> str:
        """Check what a change that met a fault has left behind, and that the same change afterwards does all of it.

        Args:
            code: Its exit code.
            text: What it said.
            tidy: Whether a change that ended with an error must have removed what it had written.

        Returns:
            Whether the pack was the old or the new one, or between them: changed, but not yet all earlier versions.
        """
        how = "hangs" if code is None else f"ends with {code}"
        assert code in (-signal.SIGKILL, 0, 1, 2, 3, 4), f"the change {how}: {text}"
        state = self.state()
        if tidy and code:
            left = {*filter(self._is_left, files_of(self.pack))}
            assert state != self.old or not left, f"the change {how} ({text}), and leaves {sorted(left)}"
        for name, digest in state.items():
            assert digest in (self.old.get(name), self.new.get(name)), f"version {name or 'newest'} is another pack"
        assert {*state} in ({*self.old}, {*self.new}), f"the versions are {[*state]}"
        assert code != 0 or state == self.new, "the change succeeds, but the pack is not the new one"
        told = "is in its place" in text, "as it was" in text
        assert self.change.erases or not told[state == self.new], f"the change {how}: {text}"
        outcome = "new" if state == self.new else "old" if state == self.old else "between"
        if self.change.again or state != self.new:
            code, text = Child(self.work).wait()
            assert code == 0, f"the same change then ends with {code}: {text}"
        if not self.change.erases:
            self._begin_another()
        self.check_done()
        return outcome

    def _begin_another(self) -> None:
        """Begin another change: it removes what is left of one that died when it was done."""

        def begin() -> None:
            with NextVersion(self.pack, "packer edit p"):
                pass

        assert Child(lambda: code_of(begin)).wait()[0] == 0, said()

    def check_done(self) -> None:
        """Check that the change is done, and that nothing else is there."""
        assert self.state() == self.new, "the change is not done"
        left = {*files_of(self.pack)} ^ {*self._files}
        assert not left, f"too many or too few files: {sorted(left)}"
        assert files_of(self.pack) == self._files, "files have other bytes"
        assert tree_state(self.source) == self._source, "the source was changed"
        if self.change.erases:
            secrets = [*map(canary, DELETED), *(canary(100 + image) for image in DELETED)]
            secrets += [f"this is {image:03d}".encode() for image in DELETED]
            found = [path for path in self.pack.rglob("*") if path.is_file() and holds(path, secrets)]
            assert not found, f"deleted records are in {found}"


def holds(path: Path, secrets: list[bytes]) -> bool:
    """Return whether any of these bytes are in a file."""
    content = path.read_bytes()
    return any(secret in content for secret in secrets)


def files_of(pack: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a pack, but when it was changed; of folders, nothing."""
    found = {}
    for path in pack.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if path.name == "made.json":
            content = json.dumps({**json.loads(content), "date": ""}).encode()
        found[str(path.relative_to(pack))] = content
    return found
