"""Short slices of what torture_loader.py and torture_workers.py run at length."""

from __future__ import annotations

import pytest
from outcome import Budget
from torture_loader import epochs, open_and_close, resumes
from torture_packs import build
from torture_workers import WAYS, Case, deaths

from packer.containers import CONTAINERS

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("packs")


def test_worker_deaths_forked(home):
    chosen = [Case("fork", bool(n % 2), way, n) for n, way in enumerate(WAYS)]
    outcome = deaths(build(home), chosen, Budget())
    assert not outcome.faults and outcome.done["deaths"] == len(WAYS)


def test_worker_deaths_elsewhere(home):
    chosen = [
        Case("spawn", False, "SIGSEGV", 1), Case("forkserver", False, "exit", 1),
        Case("forkserver", True, "kill from outside", 2),
    ]  # fmt: skip
    outcome = deaths(build(home), chosen, Budget())
    assert not outcome.faults and outcome.done["deaths"] == len(chosen)


def test_resume_positions(home):
    for pack in (build(home), build(home, "webdataset", "jpeg")):
        outcome = resumes(pack, (1, 2, 5, 8), 12, Budget())
        assert not outcome.faults and outcome.done["positions"] >= 50


@pytest.mark.parametrize("container", CONTAINERS)
def test_opening_leaves_nothing(home, container):
    outcome = open_and_close(build(home, container), 300, Budget())
    assert not outcome.faults and outcome.done["opens"] == 300


def test_twenty_epochs(home):
    outcome = epochs(build(home, "lmdb", "jpeg"), 20)
    assert not outcome.faults and outcome.done["epochs"] == 20
