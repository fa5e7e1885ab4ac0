"""A short slice of the harnesses for builds; scripts/torture.py runs all of them."""

from __future__ import annotations

import pytest
from outcome import Budget, Outcome
from torture_builds import Child, build, can_trace, ground
from torture_faults import faults, short_writes
from torture_identity import identity
from torture_kills import kills, random_kills
from torture_power import power_cuts

from packer.containers import CONTAINERS
from packer.errors import DamagedPack

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def strace() -> None:
    if not can_trace():
        pytest.skip("strace is not here, or must not trace (apt-get install strace)")


def nothing_wrong(outcome: Outcome, counted: str, least: int) -> None:
    assert outcome.faults == []
    assert outcome.done[counted] >= least, outcome.done


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("container", CONTAINERS)
def test_kills(container: str) -> None:
    nothing_wrong(kills(Budget(seed=1), 0.04, (container,)), "kills", 4)


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("container", CONTAINERS)
def test_faults(container: str) -> None:
    nothing_wrong(faults(Budget(seed=2), 0.012, (container,)), "faults", 6)


@pytest.mark.usefixtures("strace")
def test_a_disk_that_becomes_read_only() -> None:
    nothing_wrong(faults(Budget(seed=6), 0.03, ("lmdb",), ("EROFS",)), "faults", 6)


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("container", CONTAINERS)
def test_power_cuts(container: str) -> None:
    nothing_wrong(power_cuts(Budget(seed=3), 0.04, 2, (container,)), "cuts", 4)


def test_a_shard_that_cannot_be_read_back_is_the_disks_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 could not close the file that it had read, and the build ended as if a pack were damaged."""

    def damaged(self: object, path: str) -> None:
        raise DamagedPack(path, "cannot be closed")

    with ground("hdf5") as place:
        monkeypatch.setattr("packer.containers.hdf5.Hdf5Container.locate", damaged)
        child = Child(lambda: build(place.options()))
        assert child.wait() == 3 and "is not as it was written: cannot be closed; check the disk" in child.said


def test_random_kills() -> None:
    nothing_wrong(random_kills(Budget(seed=4), 6, 2), "kills", 3)


@pytest.mark.usefixtures("strace")
def test_short_writes() -> None:
    outcome = short_writes(Budget(), 1000, ("lmdb", "hdf5"))
    if outcome.faults == ["no C compiler here: not run"]:
        pytest.skip("no C compiler here")
    nothing_wrong(outcome, "builds", 4)


def test_identity() -> None:
    nothing_wrong(identity(Budget(seed=5), 0.04, ("lmdb", "tfrecord")), "builds", 4)
