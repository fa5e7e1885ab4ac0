"""Every trainer's metric counts each record once, on one rank and on two, as docs/trainers.md tells to evaluate.

The packs have 41 and 45 records, which two ranks with batches of 4 cannot share equally: of 41, the last batch is one
record, and one rank has none.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, Launch, build_numbered
from evaluation_ranks import TRAINERS

COUNTS = (41, 45)
LIBRARIES = {"bare": (), "lightning": ("lightning", "torchmetrics"), "transformers": ("transformers", "accelerate")}
IN_ONE_PROCESS = {"fastai": {"PackedLoader", "DataLoader"}}
"""Its DistributedDL needs CUDA."""
WAYS = {
    "lightning": {"fit, PackedDataModule", "test, PackedDataModule", "validate, PackedLoader", "validate, DataLoader"},
    "transformers": {"DataLoader"},
    "composer": {"DataLoader"},
}
"""How a trainer evaluates on two ranks; default: with both."""
BOTH = {"PackedLoader", "DataLoader"}


@pytest.fixture(scope="module")
def counted(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """counted(trainer, ranks): way -> the records that the metric has counted, of each pack."""
    home = tmp_path_factory.mktemp("evaluation")
    packs = [home / f"{count}.lmdb" for count in COUNTS]
    for count, pack in zip(COUNTS, packs, strict=True):
        build_numbered(home / f"{count}", pack, count)

    @cache
    def run(trainer: str, ranks: int) -> dict[str, list[list[int]]]:
        for library in LIBRARIES.get(trainer, (trainer,)):
            if importlib.util.find_spec(library) is None:
                pytest.skip(f"{library} is not installed")
        out = home / f"{trainer}-{ranks}.json"
        launch(HERE / "evaluation_ranks.py", trainer, out, *packs, ranks=ranks, cwd=home)
        found: dict[str, list[list[int]]] = json.loads(out.read_text())
        return found

    return run


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_each_record_counts_once(counted: Any, trainer: str, ranks: int) -> None:
    if ranks > 1 and trainer in IN_ONE_PROCESS:
        pytest.skip("distributed evaluation needs CUDA")
    found = counted(trainer, ranks)
    expected = BOTH if ranks == 1 and trainer != "lightning" else WAYS.get(trainer, BOTH)
    assert set(found) == expected
    for way, records in found.items():
        assert records == [list(range(count)) for count in COUNTS], way


def test_padding_would_count_a_record_twice(tmp_path: Path) -> None:
    """What the tests above would find: the default of training repeats a record on two ranks."""
    from packer.samplers import SequentialSampler

    for count in COUNTS:
        read = [record for rank in range(2) for record in SequentialSampler(count, rank=rank, world_size=2)]
        assert len(read) == count + 1
