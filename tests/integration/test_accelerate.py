"""accelerate divides every DataLoader that it prepares: packer's samplers leave it to it, and its other ways work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, RECORDS, Launch

from packer.samplers import ShuffleSampler

pytest.importorskip("accelerate", reason="accelerate is not installed")


@pytest.fixture(scope="module")
def ranks(launch: Launch, numbered_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    home = tmp_path_factory.mktemp("accelerate")
    launch(HERE / "accelerate_ranks.py", numbered_pack, home, ranks=2)
    return [json.loads((home / f"{rank}.json").read_text()) for rank in range(2)]


def together(ranks: list[dict[str, Any]], name: str) -> list[list[int]]:
    """The records of each global batch."""
    return [sorted(a + b) for a, b in zip(*(rank[name] for rank in ranks), strict=True)]


def global_batches(epoch: int) -> list[list[int]]:
    order = ShuffleSampler(RECORDS).order(epoch).tolist()
    return [sorted(order[i : i + 8]) for i in range(0, RECORDS, 8)]


def test_each_record_is_read_once_in_every_way(ranks: list[dict[str, Any]]) -> None:
    assert [rank["length"] for rank in ranks] == [6, 6]
    for name in ("whole", "packed"):
        assert together(ranks, name) == global_batches(0), name


def test_batches_that_are_split_or_dispatched(ranks: list[dict[str, Any]]) -> None:
    ways = [name for name in ranks[0] if name.startswith("split")]
    assert len(ways) == 8
    for name in ways:
        assert together(ranks, name) == [*global_batches(0), *global_batches(1), *global_batches(1)[2:]], name


def test_skipped_batches(ranks: list[dict[str, Any]]) -> None:
    for name in ("skipped, not prepared", "skipped, packed"):
        assert together(ranks, name) == global_batches(0)[2:], name


def test_stateful_dataloaders_of_accelerate_resume(ranks: list[dict[str, Any]]) -> None:
    assert together(ranks, "stateful") == global_batches(1)


def test_ranks_given_by_hand_are_an_error(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["twice"] == (
            "world_size: is 2, and accelerate divides the batches again: records would never be read; "
            "leave out rank and world_size"
        )
