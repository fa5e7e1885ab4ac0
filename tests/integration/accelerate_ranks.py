"""Two processes of accelerate: lengths of prepared loaders, ranks given twice, torchdata's loader, skipped batches."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from runs import checked
from torch.utils.data import DataLoader

from packer import PackedDataset, PackedLoader, collate
from packer.errors import UsageError
from packer.samplers import ShuffleSampler


def seen(loader: Any) -> list[list[int]]:
    return [checked(images, targets) for images, targets in loader]


def main(pack: str, home: str) -> None:
    accelerator = Accelerator(cpu=True)
    data = PackedDataset(pack)

    def prepared(accelerator: Accelerator = accelerator, **options: Any) -> Any:
        return accelerator.prepare(DataLoader(data, 4, sampler=ShuffleSampler(data, **options), collate_fn=collate))

    facts: dict[str, Any] = {"length": len(prepared()), "whole": seen(prepared())}
    try:
        list(prepared(rank=accelerator.process_index, world_size=2))
    except UsageError as error:
        facts["twice"] = str(error)
    not_prepared = DataLoader(data, 4, sampler=ShuffleSampler(data), collate_fn=collate)
    facts["skipped, not prepared"] = seen(accelerator.skip_first_batches(not_prepared, 2))
    loader = PackedLoader(pack, 4, shuffle=True, threads=1)
    facts["packed"] = seen(loader)
    loader.set_epoch(0)
    facts["skipped, packed"] = seen(accelerator.skip_first_batches(loader, 2))
    for split, dispatch, workers in itertools.product((False, True), (False, True), (0, 2)):
        config = DataLoaderConfiguration(split_batches=split, dispatch_batches=dispatch)
        sampler, size = ShuffleSampler(data), 8 if split else 4
        loader = DataLoader(
            data, size, sampler=sampler, collate_fn=collate, num_workers=workers, persistent_workers=workers > 0
        )
        way = Accelerator(cpu=True, dataloader_config=config)
        loader = way.prepare(loader)
        epochs = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            epochs += seen(loader)
        loader.set_epoch(1)
        # dispatched and not split, it counts the batches of each process
        skipped = seen(way.skip_first_batches(loader, 4 if dispatch and not split else 2))
        facts[f"split {split}, dispatched {dispatch}, {workers} workers"] = epochs + skipped
    stateful = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    loader = prepared(stateful)
    loader.set_epoch(1)
    batches = iter(loader)
    facts["stateful"] = [checked(*next(batches)) for _ in range(2)]
    state = loader.state_dict()
    loader = prepared(stateful)
    loader.set_epoch(1)
    loader.load_state_dict(state)
    facts["stateful"] += seen(loader)
    Path(home, f"{accelerator.process_index}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
