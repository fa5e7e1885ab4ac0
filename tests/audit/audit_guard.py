"""Refuses, by an audit hook, what packer must never do: unpickle, use the network, start programs, open foreign files.

The hook judges what happens while code of packer is at work: the nearest frame of packer or of the tests decides whose
doing it is. What it refuses it also writes to a file, so that a test fails also where the error is swallowed, and
where it happens in another process. It sits in the process of pytest (tests/conftest.py), in all that are forked from
it, and in every Python that is started with the environment of `environment` (inherit/sitecustomize.py).

It does not see what libraries in C do by themselves: test_audit_strace.py looks at those.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
ROOT = os.path.dirname(TESTS)
PACKER = os.path.join(ROOT, "packer") + "/"
LOG = "PACKER_AUDIT_LOG"
"""Environment variable: the file that violations are written to."""
READ = "PACKER_AUDIT_READ"
"""Environment variable: a folder that may be read too, the real images."""

NEVER = {
    *("subprocess.Popen", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.startfile", "pty.spawn"),
    *("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "urllib.Request", "http.client.connect"),
    *("ftplib.connect", "smtplib.connect", "webbrowser.open", "marshal.load", "sqlite3.connect"),
}
READS = {"os.listdir", "os.scandir", "os.chdir"}
CHANGES = {
    *("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr"),
    *("shutil.rmtree", "tempfile.mkdtemp"),
}
MOVES = {"os.rename", "os.link", "os.symlink", "shutil.move", "shutil.copyfile", "shutil.copytree"}
SOCKETS = {"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"}
AF_UNIX = 1
WATCHED = frozenset(NEVER | READS | CHANGES | MOVES | SOCKETS | {"open", "pickle.find_class", "ctypes.dlopen"})

ITSELF = {"os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "shutil.rmtree"}
"""Calls that do to a link itself what they do, or fail; others follow it, but for open with one of NOT_FOLLOWED."""
NOT_FOLLOWED = getattr(os, "O_NOFOLLOW", 0) | os.O_EXCL

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
TEMPFILE = getattr(os, "O_TMPFILE", 0)

Rule = tuple[str, bool]
"""(A path: it, what lies below it, and its name with an extension; whether packer may write there.)"""


class Forbidden(RuntimeError):
    """What the hook raises in the code that does it."""


class Guard:
    """The rules of one process."""

    def __init__(self) -> None:
        self.always = _as_index(_installation())
        self.loose: list[Rule] = [(_temporary(), True), (os.path.realpath(os.environ.get(READ) or TESTS), False)]
        """Where a test lets packer work, as long as it does not say it more precisely."""
        self.strict = None
        self.is_on = True
        self.shut: set[int] = set()
        """Threads that are judging: what they open is not packer's doing."""

    @property
    def strict(self) -> list[Rule] | None:
        """Where the command at work may read and write: what its line names, and nothing else."""
        return self._strict

    @strict.setter
    def strict(self, rules: list[Rule] | None) -> None:
        self._strict = rules
        self._of_strict = _as_index(rules or ())

    def judge(self, event: str, args: tuple[Any, ...]) -> str:
        """Why this event must not be; empty where it may. `args` as in Python's table of audit events."""
        if event == "pickle.find_class":
            return _unpickled(args[0], args[1])
        if event in SOCKETS:  # those of multiprocessing stay on this machine; packer view listens, on loopback only
            loopback = event == "socket.bind" and args[1][0] == "127.0.0.1"
            return "" if loopback or args[0].family == AF_UNIX else f"{event} {args[1]!r}"
        if event == "ctypes.dlopen":
            return self._library(args[0])
        if event == "socket.getaddrinfo" and args[0] == "127.0.0.1":
            return ""  # a number: nobody is asked
        spawns = event in ("subprocess.Popen", "os.posix_spawn")  # the second as well since Python 3.13
        if spawns and args[0] == sys.executable and _at_work().startswith(PROCESSES):
            return ""  # a worker
        if event in NEVER:
            return f"{event} {args!r:.300}"
        if event == "open":
            path, mode, flags = args
            writes = bool(flags & WRITING) or (isinstance(mode, str) and not set(mode).isdisjoint("wxa+"))
            temporary = bool(flags & TEMPFILE == TEMPFILE and TEMPFILE)
            return self._path(event, path, writes, temporary, follows=not flags & NOT_FOLLOWED)
        if event == "os.link" and not self._path(event, args[0], False):
            args = args[1:]  # a file that may be read may get a second name elsewhere: its bytes stay
        paths = args[:2] if event in MOVES else args[:1]
        return next(
            (why for p in paths if (why := self._path(event, p, event not in READS, follows=event not in ITSELF))), ""
        )

    def _library(self, name: Any) -> str:
        """Libraries come from the installation or, if listed, from the system's folders."""
        folder, _, bare = (name if isinstance(name, str) else "").rpartition("/")
        if name is None or (bare.split(".")[0] in SYSTEM_LIBRARIES and folder in SYSTEM_FOLDERS):
            return ""
        return self._path("ctypes.dlopen", name, False) if isinstance(name, str) and "/" in name else f"dlopen {name!r}"

    def _path(self, event: str, path: Any, writes: bool, temporary: bool = False, follows: bool = True) -> str:
        if path is None or isinstance(path, int):
            return ""
        path = os.fsdecode(path)
        if not os.path.isabs(path) and _nearest(lambda file: True).f_code.co_filename.endswith("/shutil.py"):
            return ""  # relative to a folder that rmtree holds open; that it may be removed was judged at its start
        name = _real(path, follows)  # what a symlink leads to is what is opened
        rules = self.loose if self._strict is None else self._strict
        index = _as_index(rules) if self._strict is None else self._of_strict
        for path_above in _with_parents(name):
            for may_write in (self.always.get(path_above), index.get(path_above)):
                if may_write is not None and (may_write or not writes):
                    return ""
        if any(index.get(name[: dot.start()]) for dot in re.finditer(r"\.", name)):
            return ""  # PACK.partial, PACK.repaired
        # looks for a folder that will do
        tried = _nearest(lambda file: True).f_code.co_filename.endswith("/tempfile.py")
        for folder in (_temporary(), "/var/tmp", "/var"):
            if name.startswith(tuple(f"{folder}/{head}" for head in TEMPORARY)):
                return ""
            if (temporary and name == folder) or (tried and os.path.dirname(name) == folder):
                return ""
        if not writes and name in _import_folders():
            return ""  # importlib.metadata looks there for the versions of libraries
        if event == "os.mkdir" and any(may_write and rule.startswith(name + "/") for rule, may_write in rules):
            return ""
        if not writes and path == "<unknown>":
            return ""  # Python 3.13 parses lines of a traceback, and looks for the file of a syntax error in one
        if not writes and any(name == os.path.dirname(rule) for rule, _ in rules):
            return ""  # the folder of the output: looked into, and synced
        return f"{event} {'for writing ' if writes else ''}of {name}"


def _as_index(rules: Iterable[Rule]) -> dict[str, bool]:
    """Of each path whether packer may write there: a command has hundreds of rules, and opens many files."""
    index: dict[str, bool] = {}
    for path, may_write in rules:
        index[path] = may_write or index.get(path, False)
    return index


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path[: path.rfind("/")]


MOST_FOLDERS = 4096
CACHE = "PACKER_CACHE"
STATE = "XDG_STATE_HOME"
TEMPORARY = (
    "tmp", "pymp-", "torch_", "packer-bench-", "packer-build-", "packer-worker-", "packer-locks", "packer-plan-",
    "packer-list-", "packer-spill-",
)  # fmt: skip
"""How names in the folder for temporary files begin that tempfile, multiprocessing, torch and packer itself make."""
SYSTEM_LIBRARIES = frozenset(
    ("libc", "libm", "libdl", "libpthread", "libturbojpeg", "libgomp", "librt", "libcuda", "libnvidia-ml")
)
SYSTEM_FOLDERS = ("", "/opt/homebrew/lib", "/opt/libjpeg-turbo/lib64")  # the others on macOS
PROCESSES = os.path.join(PACKER, "system") + "/"
PIPES = (
    *(f"/multiprocessing/{name}.py" for name in ("connection", "queues", "forkserver")),
    *(os.path.join(PROCESSES, f"{name}.py") for name in ("child", "pool")),
)
PIPED = frozenset(
    ("packer", "builtins", "torch", "numpy", "multiprocessing", "collections", "pathlib", "_codecs", "crashing_decoder")
)


def _ours(module: str) -> bool:
    """Whether packer's processes may say it to each other; tests bring decoders that crash."""
    return module in PIPED or any(
        os.path.isfile(os.path.join(folder, f"{module}.py")) for folder in sys.path if folder.startswith(TESTS)
    )


def _unpickled(module: str, name: str) -> str:
    """Nothing is unpickled but what packer's own processes say to each other, in pipes that only they hold."""
    frame = _nearest(lambda file: not file.startswith("<frozen") and not file.endswith("/pickle.py"))
    if frame is not None and frame.f_code.co_filename.endswith(PIPES) and _ours(module.partition(".")[0]):
        return ""
    where = "" if frame is None else f" in {frame.f_code.co_filename}:{frame.f_lineno}"
    return f"unpickles {module}.{name}{where}"


_folders: dict[str, str] = {}


def _real(path: str, follows: bool) -> str:
    """As os.path.realpath, that looks at each folder once: walks through deep trees would take minutes.

    Unless it `follows` a link at the end of the path, that link stays.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if ".." in path or not name:
        return os.path.realpath(path)
    if folder not in _folders:
        if len(_folders) > MOST_FOLDERS:
            _folders.clear()
        above, last = os.path.split(folder)
        plain = above in _folders and not os.path.islink(folder)
        _folders[folder] = os.path.join(_folders[above], last) if plain else os.path.realpath(folder)
    there = os.path.join(_folders[folder], name)
    return os.path.realpath(there) if follows and os.path.islink(there) else there


def _import_folders() -> set[str]:
    """The folders that Python imports from: themselves, not what lies below them."""
    return {os.path.realpath(folder) for folder in sys.path}


def _temporary() -> str:
    return os.path.realpath(os.environ.get("TMPDIR") or "/tmp")


def _installation() -> tuple[Rule, ...]:
    """Python, its libraries, packer's own modules, and what the kernel says of the machine: only to be read."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__), PACKER[:-1], TESTS}
    folders.add(os.path.join(ROOT, "dataset_packer.egg-info"))  # of an editable install
    folders |= {os.path.dirname(os.path.realpath(sys.executable)), "/usr/lib", "/usr/local/lib", "/lib", "/lib64"}
    folders |= {path for path in sys.path if path.endswith("-packages")}
    folders |= {os.path.join(ROOT, "packer-fast"), os.environ.get("PACKER_FAST_LIBRARY") or ROOT + "/packer-fast"}
    folders |= {"/proc", "/sys", "/dev/urandom", "/etc/ld.so", "/usr/share/zoneinfo", "/etc/localtime"}
    caches = {os.path.realpath(folder) + "/" for folder in folders}
    rules = [(cache.rstrip("/"), False) for cache in caches]
    return (*rules, ("/dev/null", True), ("/dev/full", True), ("/dev/shm", True), ("/dev/tty", True))


def _nearest(wanted: Callable[[str], bool]) -> FrameType | None:
    """The innermost frame, outside of this file, whose file is wanted."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename == __file__ or not wanted(frame.f_code.co_filename)):
        frame = frame.f_back
    return frame


def _at_work() -> str:
    frame = _nearest(lambda file: file.startswith(PACKER))
    return "" if frame is None else frame.f_code.co_filename


def culprit() -> FrameType | None:
    """The frame of packer that is at work, None where it is a test's doing or nobody's."""
    frame = _nearest(lambda file: file.startswith((PACKER, TESTS)) or file.startswith("<frozen importlib"))
    if frame is None or not frame.f_code.co_filename.startswith(PACKER):
        return None  # importing a library is the importer's, in whatever it does at its start
    return frame


GUARD = Guard()


def hook(event: str, args: tuple[Any, ...]) -> None:
    """The audit hook. Raises Forbidden."""
    if event not in WATCHED or not GUARD.is_on or (frame := culprit()) is None or get_ident() in GUARD.shut:
        return
    GUARD.shut.add(get_ident())  # realpath and the report raise events of their own
    try:
        why = GUARD.judge(event, args)
        if why:
            report(f"{why}, by {os.path.relpath(frame.f_code.co_filename, ROOT)}:{frame.f_lineno}")
    finally:
        GUARD.shut.discard(get_ident())
    if why:
        raise Forbidden(why)


def report(line: str) -> None:
    """Write a violation where the tests look."""
    path = os.environ.get(LOG)
    if path:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.time():.0f} pid {os.getpid()}: {line!r}\n")


def environment(log: str, read: str) -> dict[str, str]:
    """Environment variables that put the guard into every Python that inherits them."""
    paths = [os.path.join(HERE, "inherit"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {LOG: log, READ: read, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


@contextmanager
def command(arguments: Sequence[str]) -> Iterator[None]:
    """While this command runs in this process, only what its line names may be opened by it."""
    before = GUARD.strict
    GUARD.strict = rules_of(arguments)
    try:
        yield
    finally:
        GUARD.strict = before


def rules_of(arguments: Sequence[str]) -> list[Rule]:
    """The paths in a command's line, and where it may write: at its output, never in the source."""
    named: list[Rule] = []
    name, before = "".join(arguments[:1]), ""
    for word in arguments[1:]:
        # `--classes --dry-run` names a file called --dry-run
        value = (
            (word.partition("=")[2] if word.startswith("--") and "=" in word else word)
            .removeprefix("list:")
            .removeprefix("file://")
        )
        before, option = word.partition("=")[0], before if not word.startswith("--") else word.partition("=")[0]
        if name == "attach" and "{" in value:  # a pattern: its folder
            value = os.path.dirname(value.partition("{")[0]) or "."
        if value:
            path = os.path.realpath(value if os.path.lexists(value) else re.sub(r"@\d+\Z", "", value))
            written = option in WRITTEN or name in ("purge", "repair", "sample") or (name in SECOND and len(named) == 1)
            named.append((path, written or (name == "update" and not named)))
            if name == "purge":  # it looks which packs beside have the same files
                named.append((os.path.dirname(path), False))
            if name in BESIDE:
                named += [(os.path.join(path, start), True) for start in BESIDE[name]]
            if name in IN_PLACE and not named[1:]:
                named += [(os.path.join(path, file), True) for file in _of_versions(path)]
            if name == "split" and option == "--parts":
                stem, end = os.path.splitext(named[0][0])
                named += [(f"{stem}-{part}{end}", True) for part in re.findall(r"([\w.+-]+)=", word)]
            if name == "build" and (os.path.exists(value) or option in ("-o", "--out")):
                source = os.path.abspath(value)
                stems = {source, re.sub(r"\.(?:zip|(?:tar\.|t)gz|tar)\Z", "", source)}
                packs = [f"{stem}{split}.{name}" for stem in stems for split in ("", *SPLITS) for name in CONTAINERS]
                if option in ("-o", "--out"):
                    stem, end = os.path.splitext(source) if source.endswith(ENDINGS) else (source, "")
                    packs = [f"{stem}{split}{end}" for split in SPLITS]
                named += [(_real(pack, follows=True), True) for pack in packs]
    cache = [(os.path.realpath(os.environ[CACHE]), True)] if CACHE in os.environ else []
    if name in ("view", "verify", "build", "update", "demo", "bench"):
        cache.append((os.path.realpath(os.path.join(os.environ.get(STATE, "/nowhere"), "packer")), True))
    if name == "view":
        cache += [(os.path.splitext(path)[0], False) for path, _ in named]  # the originals of a pack
    named = list(dict.fromkeys(named))
    if name == "completion":  # the user's own start files
        variables = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR")
        cache += [(os.path.realpath(os.environ[name]), True) for name in variables if os.environ.get(name)]
    return named + cache + [(file, False) for path, _ in named for file in _linked(path)]


def _of_versions(pack: str) -> Iterator[str]:
    """The files of a pack that a change in place may write: never those of an earlier version."""
    yield from ("versions", "pack.json", "sidecars.json", "jpeg-index.json")
    names = os.listdir(pack) if os.path.isfile(os.path.join(pack, "pack.json")) else []
    stems = {name.partition(".")[0] for name in names} | {"skipped", "changed", "exclude", "include"}
    stems |= {".".join(name.split(".")[:2]) for name in names if name.startswith("sidecar.")}
    yield from (f"{stem}.v{number}" for stem in stems for number in range(2, 10))


def _linked(pack: str) -> list[str]:
    """The files of other tools that a pack refers to."""
    try:
        if not os.path.isfile(os.path.join(pack, "pack.json")):
            return []  # a pipe would block
        with open(os.path.join(pack, "pack.json"), "rb") as file:
            linked = json.load(file).get("linked", {})
    except (OSError, ValueError):
        return []
    return [os.path.realpath(os.path.join(pack, name)) for name in linked.values()]


WRITTEN = frozenset(
    (
        *("-o", "--out", "--quarantine", "--plot", "--report", "--export", "--export-marks", "--work-dir"),
        *("--scratch", "--cache-dir", "--combined"),
    )
)
SECOND = ("convert", "extract", "pull")
"""Commands that write to the second path in their line."""
IN_PLACE = ("edit",)
"""Commands that change a pack in place."""
BESIDE = {"index": ("jpeg-index",), **dict.fromkeys(("attach", "detach"), ("sidecar", "sidecars"))}
"""Command -> how the files begin that it makes in a pack."""
SPLITS = ("-train", "-val", "-valid", "-test", "-trainval")
ENDINGS = (".lmdb", ".hdf5", ".tar", ".parquet", ".pth", ".zarr")
CONTAINERS = ("lmdb", "hdf5", "tfrecord", "webdataset", "parquet", "zarr", "n5", "recordio", "pth")


def install() -> None:
    """Watch this process from now on; a hook cannot be taken away again."""
    sys.addaudithook(hook)
    _obey_command_line()


def begin_again() -> None:
    """In a fork that stands for a new interpreter: keep the rules of its environment and command line."""
    vars(GUARD).update(vars(Guard()))
    GUARD.is_on = os.path.join(HERE, "inherit") in sys.path
    _folders.clear()
    _obey_command_line()


def _obey_command_line() -> None:
    words = [os.fsdecode(word) for word in sys.orig_argv]
    for i in range(len(words) - 2):
        if words[i : i + 2] == ["-m", "packer"]:
            GUARD.strict = rules_of(words[i + 2 :])
            return
