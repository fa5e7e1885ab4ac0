"""Forks the Python processes that tests start from one that has loaded packer and its libraries: 10 ms for 0.3 to 3 s.

`install` lets subprocess and multiprocessing of this process ask a server, which is its child, for every Python that a
fork can stand for (`Starter`); all others are started as ever. What is forked is a child of the process that asked, and
has its own pipes, folder, environment, signals, session, arguments and `__main__`. It gets a server of its own for what
it starts itself: the workers of a build. Servers have one thread, hold no file of others and end with their parent
(fork_server.py).

What such a process does not show is how an interpreter starts, and what it has imported: tests of that have the mark
`interpreter`, and a program that speaks of `sys.modules` always gets a real one.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SERVER = "packer-server"
"""What the kernel calls a server, so that it can be told from the processes that are tested."""
CAN_FORK = sys.platform == "linux" and sys.implementation.name == "cpython"
NEEDS_TORCH = (b"torch", b"Dataset", b"Loader", b"bench", b"forkserver", b"spawn_main", b"loading")
"""In programs that are forked from a server that has loaded torch: such a fork takes three times as long."""
AT_START = (
    *(b"PYTHON", b"LD_", b"LC_", b"LANG", b"TZ", b"MALLOC_", b"OMP_", b"OPENBLAS_", b"MKL_", b"TORCH_", b"CUDA_"),
    *(b"OPENCV_", b"KMP_", b"PACKER_PORTABLE", b"PACKER_FAST", b"PACKER_AUDIT_"),
)
"""How the variables begin that Python, libraries or packer look at when they are loaded."""
LOADED = frozenset(
    ("numpy", "cv2", "lmdb", "h5py", "click", "PIL", "crc32c", "xxhash", "simplejpeg", "pyarrow", "torch", "packer")
)
CUSTOM = frozenset(("sitecustomize", "usercustomize"))
SUBREAPER = 36


@dataclass(frozen=True)
class Program:
    """What a command line asks an interpreter to run."""

    kind: str
    """`-c`, `-m`, or nothing for a script."""
    text: str
    """The code, the module's name, or the script's path."""
    arguments: list[str]
    unbuffered: bool = False
    quiet: bool = False
    """Without warnings: `-W ignore`."""


@dataclass(frozen=True)
class Asked:
    """What a new process is to be, besides its files."""

    words: list[str]
    """Its command line, without the interpreter."""
    environment: dict[bytes, bytes]
    new_session: bool
    standard: list[int]
    """Those of 0, 1 and 2 that are open."""
    kept: list[int]
    """Other descriptors to inherit."""
    mask: list[int]
    ignored: list[int]
    limits: list[tuple[int, tuple[int, int]]]
    umask: int
    cores: list[int]
    syncs: bool
    """Whether it waits for the disk (syncing.py)."""


def parsed(words: Sequence[str]) -> Program | None:
    """The program of a command line without the interpreter; None if it has options that are not known here."""
    left = list(words)
    unbuffered = quiet = False
    while left:
        word = left.pop(0)
        if word in ("-c", "-m") and left:
            return Program(word, left[0], left[1:], unbuffered, quiet)
        if word == "-W" and left[:1] == ["ignore"]:
            quiet = bool(left.pop(0))
        elif word == "-u":
            unbuffered = True
        elif not word.startswith("-"):
            return Program("", word, left, unbuffered, quiet)
        elif word != "-B":
            return None
    return None


class Server:
    """The near end of a server; `environment` is what it was started with."""

    def __init__(self, control: socket.socket, environment: dict[bytes, bytes]) -> None:
        self.environment, self.owner = environment, os.getpid()
        self._control, self._lock = control, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, kind: str) -> Server:
        """A server that begins to load what programs of this kind need."""
        near, far = socket.socketpair()
        command = [sys.executable, "-c", f"import sys; sys.path[0] = {HERE!r}; import fork_server; fork_server.main()"]
        server = cls(near, dict(os.environb))
        with far:
            server._process = subprocess.Popen(
                [*command, str(far.fileno()), kind], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
            )  # fmt: skip
        return server

    def fork(self, asked: Asked, files: Sequence[int]) -> int:
        """The pid of a new child of this process."""
        with self._lock:
            be_subreaper(True)  # the server's child forks and ends: its orphan becomes a child of this process
            try:
                send(self._control, asked, files)
                pid: int = receive(self._control)[0]
                return pid
            finally:
                be_subreaper(False)

    def close(self) -> None:
        """End the server."""
        self._control.close()
        if self._process is not None:
            self._process.wait()


class Starter:
    """Stands for the function `fork_exec` that subprocess and multiprocessing call, and asks a server where it can."""

    def __init__(self) -> None:
        self.real: Callable[..., int] | None = None
        self.forks = self.syncs = True
        self.servers: dict[str, Server] = {}
        self.may_start = True
        """Whether this process starts a server that it lacks; if not, any that it has will do."""

    def __call__(self, args: Any, executables: Any, closes: bool, kept: Any, cwd: Any, env: Any, *others: Any) -> int:
        """As `_posixsubprocess.fork_exec`, whose last arguments are not the same in all versions of Python."""
        words = [os.fsdecode(word) for word in args[1:]]
        environment = dict(os.environb) if env is None else dict(entry.split(b"=", 1) for entry in env)
        is_python = self.forks and closes and tuple(executables) == (os.fsencode(sys.executable),)
        if is_python and is_plain(others) and can_be_forked(words, environment, os.fsdecode(cwd or ".")):
            server = self._server(words)
            if server is not None and server.owner == os.getpid() and is_same_start(environment, server.environment):
                return self._forked(server, words, environment, kept, cwd, others)
        assert self.real is not None
        return self.real(args, executables, closes, kept, cwd, env, *others)

    def _server(self, words: list[str]) -> Server | None:
        if not self.may_start:
            return next(iter(self.servers.values()), None)
        text = os.fsencode("\0".join(words))
        kind = "heavy" if any(word in text for word in NEEDS_TORCH) else "light"
        if kind not in self.servers:
            with really():
                self.servers[kind] = Server.start(kind)
        return self.servers[kind]

    def _forked(
        self, server: Server, words: list[str], environment: dict[bytes, bytes], kept: Any, cwd: Any, others: Any
    ) -> int:
        of_child = (others[0], others[3], others[5])
        pipes = [number if pipe == -1 else pipe for number, pipe in enumerate(of_child)]
        is_there = [number for number in range(3) if is_open(pipes[number])]
        passed = [number for number in kept if number != others[7] and number > 2]
        folder = os.open(cwd or ".", os.O_PATH | os.O_DIRECTORY)
        try:
            asked = Asked(words, environment, bool(others[9]), is_there, passed, **_inherited(), syncs=self.syncs)
            return server.fork(asked, [folder, *(pipes[number] for number in is_there), *passed])
        finally:
            os.close(folder)

    def close(self) -> None:
        """End the servers."""
        for server in self.servers.values():
            server.close()
        self.servers.clear()


def is_plain(others: Sequence[Any]) -> bool:
    """Whether the new process keeps its group and user, and runs no code of this one."""
    return len(others) >= 15 and all(value is None or value in (-1, True, False) for value in others[10:])


def can_be_forked(words: Sequence[str], environment: dict[bytes, bytes], folder: str) -> bool:
    """Whether a fork does what a new interpreter would do: it finds the same modules, and is not asked about them."""
    program = parsed(words)
    if program is None or not os.path.isdir(folder):
        return False
    if program.kind == "-m" and program.text != "packer":
        return False
    text = program.text
    if not program.kind:
        path = os.path.join(folder, program.text)
        if not os.path.isfile(path):
            return False
        with open(path, errors="replace") as file:
            text = file.read()
        folder = os.path.dirname(path)
    folders = [folder, *filter(None, os.fsdecode(environment.get(b"PYTHONPATH", b"")).split(os.pathsep))]
    return "sys.modules" not in text and not any(map(hides_modules, folders))


def hides_modules(folder: str) -> bool:
    """Whether an interpreter that looks here first would load other modules than those that a server has loaded."""
    if os.path.realpath(folder) in (ROOT, os.path.join(HERE, "audit", "inherit"), HERE):
        return False
    try:
        names = os.listdir(folder)
    except OSError:
        return os.path.exists(folder)
    hidden = LOADED | CUSTOM | sys.stdlib_module_names
    return any(name.partition(".")[0] in hidden and is_module(os.path.join(folder, name)) for name in names)


def is_module(path: str) -> bool:
    """Whether a file or a folder can be imported."""
    return path.endswith((".py", ".pyc", ".so")) or os.path.exists(os.path.join(path, "__init__.py"))


def is_same_start(environment: dict[bytes, bytes], before: dict[bytes, bytes]) -> bool:
    """Whether two environments do not differ in what is looked at when something is loaded."""
    changed = {name for name, _ in environment.items() ^ before.items()} - {b"PYTHONPATH"}
    return not any(name.startswith(AT_START) for name in changed)


def is_open(number: int) -> bool:
    """Whether a descriptor is open."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _inherited() -> dict[str, Any]:
    """What every process inherits."""
    with open("/proc/self/status", "rb") as file:
        status = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
    ignored = int(status[b"SigIgn"], 16)
    limits = {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
    return {
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "ignored": [number for number in range(1, 65) if ignored >> (number - 1) & 1],
        "limits": [(which, resource.getrlimit(which)) for which in limits],
        "umask": int(status[b"Umask"], 8),
        "cores": sorted(os.sched_getaffinity(0)),
    }


def be_subreaper(on: bool) -> None:
    """Whether orphans among the processes below this one become its children."""
    if LIBC.prctl(SUBREAPER, int(on), 0, 0, 0):
        raise OSError("prctl")


LIBC = ctypes.CDLL(None)
LENGTH = struct.Struct("<II")


def send(control: socket.socket, what: Any, files: Sequence[int] = ()) -> None:
    """Send an object and files."""
    data = pickle.dumps(what)
    socket.send_fds(control, [LENGTH.pack(len(data), len(files))], files)
    control.sendall(data)


def receive(control: socket.socket) -> tuple[Any, list[int]]:
    """An object and files. Raises EOFError if the other end is closed."""
    head, files, _, _ = socket.recv_fds(control, LENGTH.size, 250)
    if not head:
        raise EOFError
    length, count = LENGTH.unpack(head)
    assert count == len(files)
    data = bytearray()
    while len(data) < length:
        part = control.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return pickle.loads(data), files


STARTER = Starter()


def use_server(control: socket.socket | None, asked: Asked) -> None:
    """In a process that was forked: what it starts is forked by this server, or by none."""
    install()
    STARTER.syncs = asked.syncs
    STARTER.may_start = False
    STARTER.servers = {} if control is None else {"own": Server(control, asked.environment)}


def install() -> None:
    """Let this process fork what it can, from now on."""
    if not CAN_FORK or STARTER.real is not None:
        return
    import _posixsubprocess

    STARTER.real = _posixsubprocess.fork_exec
    _posixsubprocess.fork_exec = STARTER
    if hasattr(subprocess, "_fork_exec"):  # since Python 3.11
        subprocess._fork_exec = STARTER


@contextmanager
def really() -> Iterator[None]:
    """Meanwhile every process that this one starts is a new interpreter."""
    before, STARTER.forks = STARTER.forks, False
    try:
        yield
    finally:
        STARTER.forks = before
