"""The far end of forking.py: a process that has loaded much, and the processes that are forked from it."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import os
import resource
import runpy
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
import warnings
from typing import Any, NoReturn

import forking
import syncing
from forking import Asked, Program

LIGHT = (
    *("numpy", "cv2", "lmdb", "h5py", "click", "PIL.Image", "crc32c", "xxhash", "simplejpeg", "packer.cli.group"),
    *("packer.cli.making", "packer.packing.build", "packer.packing.write_shard", "packer.packing.partition"),
    *("packer.format.pack", "packer.format.verify", "packer.sources", "packer.containers.lmdb"),
    "multiprocessing.forkserver",
)
HEAVY = ("torch", "torch.utils.data", "packer.loading.loader")
DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2)
LEAVES = ("from packer.system.child import serve", "from multiprocessing.")
"""In programs that start no Python by `subprocess`: they get no server."""


def main() -> None:
    """Serve what comes on the socket that the command line names; in each new process, be what was asked for."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    base = _load(sys.argv[2])
    gc.collect()
    gc.freeze()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    asked = serve(control)
    program = forking.parsed(asked.words)
    assert program is not None
    _become(asked, program, base)
    _end(_run(program))


def _load(kind: str) -> list[str]:
    """Load modules, no threads; the import path without PYTHONPATH and the folder of the program."""
    added = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    base = [entry for entry in sys.path[1:] if entry not in added]
    sys.path.insert(1, forking.ROOT)
    os.environ.update(OPENBLAS_NUM_THREADS="1", JE_ARROW_MALLOC_CONF="background_thread:false")
    for module in LIGHT + HEAVY * (kind == "heavy"):
        with contextlib.suppress(ImportError):  # not installed
            importlib.import_module(module)
    sys.modules.pop("packer.__main__", None)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    return base


def serve(control: socket.socket) -> Asked:
    """Fork a process for each that is asked for, and return in it; end with the parent."""
    _be_called(forking.SERVER)
    while True:
        try:
            asked, files = forking.receive(control)
        except (EOFError, OSError):
            os._exit(0)
        if not _born(control):
            _close(files)
            continue
        control.close()
        if asked.new_session:
            os.setsid()
        near, far = (None, None) if _is_leaf(asked) else socket.socketpair()
        if far is not None and os.fork() == 0:  # the server of the new process: it has not done anything yet
            near.close()
            _close(files)
            control = far
            continue
        if far is not None:
            far.close()
        _take_files(asked, files, near)
        return asked


def _is_leaf(asked: Asked) -> bool:
    return any(leaf in word for word in asked.words for leaf in LEAVES)


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _born(control: socket.socket) -> bool:
    """Fork a child of the parent of this process, and tell that its number. Whether this is the child."""
    go, gone = os.pipe()
    said, say = os.pipe()
    middle = os.fork()
    if middle == 0:
        pid = os.fork()
        if pid:
            os.write(say, str(pid).encode())
            os._exit(0)
        _close([gone, say, said])
        started = os.read(go, 1)  # not before the one between has ended: then its parent is the one that it keeps
        os.close(go)
        if not started:
            os._exit(1)
        return True
    os.waitpid(middle, 0)
    forking.send(control, int(os.read(said, 20)))
    os.write(gone, b"g")
    _close([go, gone, said, say])
    return False


def _take_files(asked: Asked, files: list[int], near: socket.socket | None) -> None:
    """Enter the folder, give the files the numbers that they have in the parent, close all others."""
    os.fchdir(files[0])
    wanted = [*asked.standard, *asked.kept]
    above = max([*wanted, *files]) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files[1:]]
    server = -1 if near is None else fcntl.fcntl(near.fileno(), fcntl.F_DUPFD_CLOEXEC, above)
    for file, number in zip(moved, wanted, strict=True):
        os.dup2(file, number)
    if near is not None:
        near.close()
    for file in set(map(int, os.listdir("/proc/self/fd"))) - {*wanted, server}:
        with contextlib.suppress(OSError):  # that of the list
            os.close(file)
    forking.use_server(None if server < 0 else socket.socket(fileno=server), asked)


def _become(asked: Asked, program: Program, base: list[str]) -> None:
    """Have the environment, limits, arguments and import path of a new interpreter."""
    _be_called(os.path.basename(sys.executable)[:15])
    os.environ.clear()
    os.environb.update(asked.environment)
    os.umask(asked.umask)
    os.sched_setaffinity(0, asked.cores)
    for which, limit in asked.limits:
        if resource.getrlimit(which) != limit:
            resource.setrlimit(which, limit)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in asked.ignored else signal.SIG_DFL)
    if signal.SIGINT not in asked.ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python does
    signal.pthread_sigmask(signal.SIG_SETMASK, asked.mask)
    sys.orig_argv[:] = [sys.executable, *asked.words]
    script = os.path.realpath(program.text)
    first = "" if program.kind == "-c" else os.getcwd() if program.kind else os.path.dirname(script)
    paths = os.fsdecode(asked.environment.get(b"PYTHONPATH", b"")).split(os.pathsep)
    sys.path[:] = [first, *(os.path.abspath(path) for path in paths if path), *base]
    sys.argv[:] = [program.kind or program.text, *program.arguments]
    _forget(program)
    if not asked.syncs:
        for patch in syncing.unsynced():
            patch.start()


def _forget(program: Program) -> None:
    """Have no state of the server: streams, random numbers, warnings, caches, rules of the guard."""
    unbuffered = program.unbuffered or bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = _stream(number, mode, getattr(sys, f"__{name}__"), unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if program.quiet:
        sys.warnoptions.append("ignore")
        warnings.simplefilter("ignore")
    tempfile.tempdir = None
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    if guard := sys.modules.get("audit_guard"):
        guard.begin_again()


def _stream(number: int, mode: str, before: Any, unbuffered: bool) -> io.TextIOWrapper | None:
    """A standard stream as Python makes it, with the encoding of the server's."""
    if not forking.is_open(number):
        return None
    size = 0 if unbuffered and mode == "w" else -1
    binary: Any = open(number, f"{mode}b", size, closefd=False)  # noqa: SIM115  # stays open
    getattr(binary, "raw", binary).name = ("<stdin>", "<stdout>", "<stderr>")[number]
    lines = not unbuffered and (number == 2 or binary.isatty())
    return io.TextIOWrapper(
        binary, before.encoding, before.errors, "\n" if mode == "w" else None, lines, write_through=unbuffered
    )


def _run(program: Program) -> int:
    """Run a program as `__main__`; its exit code."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        if program.kind == "-m":
            runpy._run_module_as_main(program.text)  # what `-m` calls
        elif program.kind:
            exec(compile(program.text, "<string>", "exec"), vars(main))
        else:
            main.__file__ = os.path.abspath(program.text)
            with open(program.text, "rb") as file:
                code = compile(file.read(), main.__file__, "exec")
            exec(code, vars(main))
    except SystemExit as end:
        if isinstance(end.code, int) or end.code is None:
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(code: int) -> NoReturn:
    """End as Python does, without freeing all that was loaded."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except BaseException as error:
        print(f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}", file=sys.stderr)
        code = 120
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _be_called(name: str) -> None:
    with open("/proc/self/comm", "w") as file:
        file.write(name)
