"""Links that somebody else has put at the names that packer uses: no command changes what is behind one.

The names are found by watching a run of the command; then there is a link at each, to a file, to a folder, or to
nothing. What an interrupted run leaves is replaced by links to the same files elsewhere, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import audit_guard
import numpy as np
import pytest
from drawn import draw_classes, tree_state
from indexing import stand_in
from running import ROOT, Ran, good, run

from packer import open_pack
from packer.system.storage import HAS_BYTE_LOCKS
from packer.view.marks import Marks

KINDS = {"file": "file", "folder": "folder", "nothing": "absent"}
MOST_TRIES = 12
"""A command is run again without the links that it has named."""
SHARD = ["--shard-size", "4000", "--encode", "copy"]
BUILD = ["build", "{w}/src", "-o", "{w}/out", *SHARD]


def _mark(w: Path) -> None:
    Marks(open_pack(w / "p")).change({0: "wrong label"})


def _damage(w: Path) -> None:
    with open(next((w / "p").glob("*shard-00000.lmdb")), "r+b") as file:
        file.truncate(100)


def _unlist(w: Path) -> None:
    (w / "p" / "shard-00000.index.arrow").unlink()


def _first_part(w: Path) -> None:
    good(*_words([*BUILD, "--job", "1/2"], w))


def _parts(w: Path) -> None:
    _first_part(w)
    good(*_words([*BUILD, "--job", "2/2"], w))


def _indexed(w: Path) -> None:
    good("index", w / "p")


def _extracted(w: Path) -> None:
    good("extract", w / "p", w / "out")


def _one_bad(w: Path) -> None:
    (w / "src" / "ant" / "bad.jpg").write_bytes(b"no image")


def _archive(w: Path) -> None:
    with tarfile.open(w / "src.tar.gz", "w:gz") as file:
        file.add(w / "src", "src")
    shutil.rmtree(w / "src")


def _pushed(w: Path) -> None:
    good("push", w / "p", f"file://{w}/store/p")


def _cached(w: Path) -> None:
    _pushed(w)
    good("hash", f"file://{w}/store/p")


def _rows(w: Path) -> None:
    np.save(w / "rows.npy", np.arange(len(open_pack(w / "p"))))


def _attached(w: Path) -> None:
    _rows(w)
    good("attach", w / "p", w / "rows.npy", "--as", "rows")


def _deleted(w: Path) -> None:
    (w / "marks").write_text("ant/000.*")
    good("edit", w / "p", "--delete", w / "marks")


def _installed(w: Path) -> None:
    good("completion", "bash", "--install")


CASES: dict[str, tuple[list[str], Callable[[Path], None] | None]] = {
    "build": (BUILD, None),
    "build, over a pack": (["build", "{w}/src", "-o", "{w}/p", *SHARD, "--overwrite"], None),
    "build, jpeg index": ([*BUILD, "--jpeg-index", "row"], None),
    "build, quarantine": ([*BUILD, "--on-bad", "skip", "--quarantine", "{w}/q"], _one_bad),
    "build, archive": (["build", "{w}/src.tar.gz", "-o", "{w}/out", "--labels", "none", *SHARD], _archive),
    "build, a part": ([*BUILD, "--job", "2/2"], _first_part),
    "build, finish": ([*BUILD, "--finish"], _parts),
    "build, to a store": (["build", "{w}/src", "-o", "file://{w}/store/out", *SHARD, "--scratch", "{w}/scratch"], None),
    "index": (["index", "{w}/p"], None),
    "index, again": (["index", "{w}/p", "--interval", "4"], _indexed),
    "index, remove": (["index", "{w}/p", "--remove"], _indexed),
    "attach": (["attach", "{w}/p", "{w}/rows.npy", "--as", "rows"], _rows),
    "detach": (["detach", "{w}/p", "rows"], _attached),
    "extract": (["extract", "{w}/p", "{w}/out"], None),
    "extract, again": (["extract", "{w}/p", "{w}/out", "--overwrite"], _extracted),
    "split": (["split", "{w}/p", "--parts", "train=0.5,val=0.5"], None),
    "split, lists": (["split", "{w}/p", "--parts", "train=0.5,val=0.5", "--lists"], None),
    "merge": (["merge", "{w}/p", "{w}/p2", "-o", "{w}/out"], None),
    "edit": (["edit", "{w}/p", "-o", "{w}/out", "--map", "ant=bee"], None),
    "purge": (["purge", "{w}/p"], _deleted),
    "convert": (["convert", "{w}/p", "{w}/out", "--format", "hdf5"], None),
    "repair": (["repair", "{w}/p"], _damage),
    "repair, in place": (["repair", "{w}/p"], _unlist),
    "adopt": (["adopt", "{w}/t/shard-00000.tar", "-o", "{w}/out"], None),
    "push": (["push", "{w}/p", "file://{w}/store/p"], None),
    "pull": (["pull", "file://{w}/store/p", "{w}/out"], _pushed),
    "cache": (["hash", "file://{w}/store/p"], _pushed),
    "cache, clear": (["cache", "--clear", "--yes"], _cached),
    "sample": (["sample", "{w}/out", "--count", "2", "--layout", "voc"], None),
    "view, export": (["view", "{w}/p", "--export", "{w}/sheet.html"], None),
    "view, marks": (["view", "{w}/p", "--export-marks", "{w}/marks.tsv"], _mark),
    "marks": ([], None),
    "stats, plot": (["stats", "{w}/p", "--plot", "{w}/plot.png"], None),
    "completion": (["completion", "bash", "--install"], None),
    "completion, remove": (["completion", "bash", "--uninstall"], _installed),
}
CHOSEN_BY_THE_USER = {".bashrc"}
"""The start file of a shell is often a link of the user's own, to a repository of such files, and is followed."""


def _words(words: list[str], w: Path) -> list[str]:
    return [word.replace("{w}", str(w)) for word in words]


class Watch:
    """What is written, renamed or removed below a folder, while it is on."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.names: set[str] = set()
        self.renames = 0
        self.at_rename: Callable[[int], None] = lambda number: None
        self.is_hooked = False

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        root = self.root
        if root is None or event not in EVENTS:
            return
        paths = args[:2] if event in audit_guard.MOVES else args[:1]
        if event == "open" and not (args[2] or 0) & audit_guard.WRITING:
            return
        self.root = None  # what is done in here does not count
        if event == "os.rename":
            self.at_rename(self.renames)
            self.renames += 1
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(root + os.sep):
                self.names.add(os.path.relpath(os.fsdecode(path), root))
        self.root = root


EVENTS = {"open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"}
WATCH = Watch()
NAMES: dict[str, tuple[set[str], int]] = {}
"""Of each case, the names that its command uses and how often it renames: the same in each test."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, and packs of it."""
    w = tmp_path_factory.mktemp("model") / "w"
    draw_classes(w / "src", ("ant", "bee"), 2)
    good("build", w / "src", "-o", w / "p", *SHARD)
    good("build", w / "src", "-o", w / "p2", *SHARD)
    good("build", w / "src", "-o", w / "t", "--format", "webdataset")
    (w / "scratch").mkdir()
    return w


class World:
    """Where a command runs, `w`, and what it must not touch, `outside`."""

    def __init__(self, model: Path, folder: Path, case: str) -> None:
        self.model, self.w, self.outside, self.case = model, folder / "w", folder / "outside", case
        self.words, self.prepare = CASES[case]

    @property
    def named(self) -> set[str]:
        """The paths in its line: they may be links, and the user has said so."""
        return {word.removeprefix("{w}/") for word in self.words}

    def begin(self, state: Path | None = None) -> None:
        """Make both folders anew."""
        for path in (self.w, self.outside):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(state or self.model, self.w, symlinks=True)
        (self.outside / "folder" / "sub").mkdir(parents=True)
        for name in ("file", "folder/own.txt", "folder/sub/own.arrow"):
            (self.outside / name).write_bytes(b"of the user")
        audit_guard._folders.clear()
        for name in ("home/.local/share/packer", "state/packer", "cache"):
            (self.w / name).mkdir(parents=True, exist_ok=True)
        if state is None and self.prepare is not None:
            self.prepare(self.w)

    def run(self) -> Ran:
        """Run the command; the guard fails a test whose command opens a file outside for writing."""
        audit_guard._folders.clear()
        rules = [(os.path.realpath(self.w), True), (os.path.realpath(self.outside), False)]
        with mock.patch.object(audit_guard, "rules_of", lambda words: rules):
            if self.words:
                return run(*_words(self.words, self.w))
            try:
                _mark(self.w)
            except OSError as error:
                return Ran(3, "", str(error))
            return Ran(0, "", "")

    def run_beside(self, what: str) -> Ran:
        """Run it, and check that nothing outside has changed."""
        before = tree_state(self.outside)
        ran = self.run()
        after = tree_state(self.outside)
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert not changed, f"{what}: {changed} changed; {ran}"
        assert ran.code in (0, 1, 2, 3, 4) and "Traceback" not in ran.err, ran
        return ran

    @contextmanager
    def watched(self, at_rename: Callable[[int], None] = lambda number: None) -> Iterator[Watch]:
        if not WATCH.is_hooked:  # not before: it is called for all that this process opens from then on
            sys.addaudithook(WATCH.hook)
            WATCH.is_hooked = True
        WATCH.names, WATCH.renames, WATCH.at_rename, WATCH.root = set(), 0, at_rename, str(self.w)
        try:
            yield WATCH
        finally:
            WATCH.root = None

    def names(self) -> tuple[set[str], int]:
        """Return the names that two runs of the command use, and how often it renames: the others are random."""
        if self.case in NAMES:
            return NAMES[self.case]
        found = []
        for _ in range(2):
            self.begin()
            with self.watched() as watch:
                ran = self.run()
            assert ran.code == 0 or self.case.startswith("repair"), ran
            found.append(watch.names)
        NAMES[self.case] = found[0] & found[1], watch.renames
        return NAMES[self.case]


@pytest.fixture
def world(request: pytest.FixtureRequest, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    case: str = request.param
    if case == "stats, plot":
        pytest.importorskip("matplotlib")
    if case.startswith("cache") and not HAS_BYTE_LOCKS:
        pytest.skip("the cache of packs at URLs needs the locks of Linux")
    stand_in(monkeypatch)
    for name, place in (("HOME", "home"), ("PACKER_CACHE", "cache"), ("XDG_STATE_HOME", "state")):
        monkeypatch.setenv(name, str(tmp_path / "w" / place))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return World(model, tmp_path, case)


def _plant(world: World, names: set[str], kind: str) -> set[str]:
    """Put links at names; files that are there move behind the links."""
    planted: set[str] = set()
    for name in sorted(names):
        path = world.w / name
        above = {str(parent) for parent in Path(name).parents}
        if above & planted or path.is_dir() or (path.exists() and kind != "file"):
            continue
        target = world.outside / KINDS[kind]
        if path.exists():
            target = world.outside / f"moved-{len(planted)}"
            path.rename(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        planted.add(name)
    return planted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", CASES, indirect=True)
def test_no_link_at_a_name_is_followed(world: World, kind: str) -> None:
    left = world.names()[0] - CHOSEN_BY_THE_USER - {f"home/{name}" for name in CHOSEN_BY_THE_USER}
    assert left or world.case in ("push", "build, to a store"), "nothing was written"
    for _ in range(MOST_TRIES):
        world.begin()
        planted = _plant(world, left, kind)
        ran = world.run_beside(f"links to a {kind} at {sorted(planted)}")
        named = [name for name in planted if str(world.w / name) in ran.err]
        if ran.code == 0 or not named:
            return
        left.discard(max(named, key=len))


@pytest.mark.parametrize("world", CASES, indirect=True)
def test_nothing_that_an_interrupted_run_left_is_reached_through_a_link(world: World, tmp_path: Path) -> None:
    """As if a stranger had sent the folder of an unfinished run, with its files and folders elsewhere."""
    renames = world.names()[1]
    for moment in sorted({0, renames - 1} if renames else ()):
        state = tmp_path / f"killed-{moment}"

        def keep(number: int, moment: int = moment, state: Path = state) -> None:
            if number == moment:
                shutil.copytree(world.w, state, symlinks=True)

        world.begin()
        before = {str(path.relative_to(world.w)) for path in world.w.rglob("*")}
        with world.watched(keep):
            world.run()
        found = sorted({str(path.relative_to(state)) for path in state.rglob("*")} - before)
        for name in _one_of_each(found, world.named):
            world.begin(state)
            os.rename(world.w / name, world.outside / "moved")
            os.symlink(world.outside / "moved", world.w / name)
            world.run_beside(f"a link at {name}")


def _one_of_each(names: list[str], named: set[str]) -> list[str]:
    """Leave out what is in a folder of images or in a store, whose names the user gives, and further shards."""
    ours = (name for name in names if not {"src", "store", "out"} & set(Path(name).parts) and name not in named)
    return list({re.sub(r"[0-9a-f]{8}\b|\d+", "0", name): name for name in ours}.values())


WITHOUT_POWERS = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="the tests above have run as no root")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="there is no setpriv to become another user with")
@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("p/jpeg-index.partial", ["index", "p", "--remove"]),
        ("out.partial", ["extract", "p", "out"]),
        ("out.partial", ["convert", "p", "out", "--workers", "1"]),
    ],
)
def test_nor_as_another_user_than_root(model: Path, link: str, words: list[str]) -> None:
    with tempfile_for_all() as folder:
        shutil.copytree(model, folder / "w")
        (folder / "outside").mkdir()
        (folder / "outside" / "file").write_text("of the user")
        (folder / "w" / link).symlink_to(folder / "outside")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop(audit_guard.LOG)

        def packer(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*WITHOUT_POWERS, sys.executable, "-m", "packer", *words]
            return subprocess.run(
                command, cwd=folder / "w", env=environment, capture_output=True, text=True, check=False
            )

        if packer("info", "p").returncode:
            pytest.skip("another user cannot read the installation")
        done = packer(*words)
        assert done.returncode == 3 and "is a link that packer did not make" in done.stderr, done
        assert os.listdir(folder / "outside") == ["file"]


@contextmanager
def tempfile_for_all() -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="packer-links-") as folder:
        yield Path(folder)
