"""What all tests share: the real images, where they are, and the guard that watches what packer does."""

from __future__ import annotations

import compileall
import gc
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
REAL_DATA = Path(os.environ.get("PACKER_TEST_DATA", ROOT.parent / "shared" / "data"))

sys.path.insert(0, str(ROOT / "tests" / "audit"))
sys.path.insert(1, str(ROOT / "tests" / "sources"))  # layouts.py
sys.dont_write_bytecode = (
    False  # pytest keeps for the next run what it makes of the tests: half the time to collect them
)

import audit_guard  # noqa: E402
import forking  # noqa: E402
import running  # noqa: E402
import syncing  # noqa: E402
import tiers  # noqa: E402

from packer.images import decoders  # noqa: E402
from packer.samplers.ranks import LAUNCHERS  # noqa: E402

# the same examples in every run, however slow the machine; --hypothesis-profile=default looks for others
settings.register_profile(
    "certain", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("certain")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let .ci/run repeat what was skipped when it has installed what that needs."""
    parser.addoption("--save-skipped", metavar="FILE", help="write the names of skipped tests to FILE, one a line")
    parser.addoption("--only", metavar="FILE", help="run only the tests that are named in FILE, one a line")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what --only does not name; a module that was skipped as a whole is named by its path."""
    tiers.mark_slow(items)
    if file := config.getoption("only"):
        named = set(Path(file).read_text("utf-8").splitlines())
        chosen = [item for item in items if {item.nodeid, item.nodeid.partition("::")[0]} & named]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write what --save-skipped asks for; this hook is called once, also where workers run the tests."""
    if file := config.getoption("save_skipped"):
        names = {report.nodeid for report in terminalreporter.stats.get("skipped", ())}
        Path(file).write_text("".join(f"{name}\n" for name in sorted(names)), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Watch this process and every Python that it starts."""
    if not hasattr(config, "workerinput"):  # once, not by each of hundreds of processes, which may not even keep it
        compileall.compile_dir(ROOT / "packer", quiet=2)
    handle, log = tempfile.mkstemp(prefix="packer-audit-", suffix=".txt")
    os.close(handle)
    os.environ.update(audit_guard.environment(log, str(REAL_DATA)))
    audit_guard.GUARD.loose.append((os.path.realpath(REAL_DATA), False))
    audit_guard.install()
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":  # this process runs tests
        forking.install()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use one process more than there are cores: for a fifth of the time, a test waits for a process or a server."""
    return (os.cpu_count() or 1) + 1


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no file and no process behind."""
    forking.STARTER.close()
    log = os.environ.pop(audit_guard.LOG, None)
    if log is not None:
        Path(log).unlink()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let collections of garbage pass over thousands of tests and all libraries, which stay."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run jobs without worker processes, and wait for no disk, except for tests with the marks `workers`, `syncs`."""
    with ExitStack() as meanwhile:
        if not item.get_closest_marker("workers"):
            meanwhile.enter_context(running.jobs_here())
        if not item.get_closest_marker("syncs"):
            meanwhile.enter_context(syncing.no_syncs())
        if item.get_closest_marker("interpreter"):
            meanwhile.enter_context(forking.really())
        return (yield)


@pytest.fixture(autouse=True)
def native_decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the native decoder where it is installed, whose crops are not those of others to the last bit."""
    if not request.node.get_closest_marker("native"):
        monkeypatch.setattr(decoders, "native", lambda: (None, decoders.NOT_THERE))


@pytest.fixture(scope="session", autouse=True)
def no_launcher() -> Iterator[None]:
    """Hide the variables of a launcher from all tests: pytest may itself run under srun, or in a job of torchrun."""
    with pytest.MonkeyPatch.context() as environment:
        for name in chain.from_iterable(LAUNCHERS):
            environment.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def nothing_forbidden(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test during which packer has done what audit_guard.py forbids, in whatever process."""
    log = Path(os.environ[audit_guard.LOG])
    yield
    if log.stat().st_size:
        lines = log.read_text("utf-8").splitlines()
        log.write_text("")
        pytest.fail("forbidden:\n" + "\n".join(lines[:20]), pytrace=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What a process has done after its test had ended."""
    log = os.environ.get(audit_guard.LOG)
    if log is not None and (late := Path(log).read_text("utf-8")):
        print(f"\nforbidden, after its test had ended:\n{late}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what builds remember of their sources out of the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state-of-user")))
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real labelled images; tests that need it skip where it is absent."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real images at {REAL_DATA} (set PACKER_TEST_DATA to a folder that has them)")
    return REAL_DATA
