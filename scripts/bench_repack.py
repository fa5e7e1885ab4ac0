"""How fast packs are made from packs.

Merge: packs of many images of one pixel, so that what is measured is the indexes: once with the same classes in all,
once with other ids in each, whose indexes are then written anew.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from bench_common import Table, against_goal, direct_pack, parser

from packer.bench.measure import take_turns
from packer.format.index import write_index
from packer.format.indexes import Indexes
from packer.format.manifest import read_manifest
from packer.repack.merge import merge


def twin(pack: Path, out: Path, seed: int) -> None:
    """Make a pack like another, with other paths, digests of sources and classes; it shares the containers."""
    manifest, shards = read_manifest(pack), []
    tables = Indexes(str(pack), manifest.shards)
    random = np.random.default_rng(seed)
    out.mkdir()
    for number, shard in enumerate(manifest.shards):
        (out / shard.container.name).hardlink_to(pack / shard.container.name)
        table = tables[number]
        flat = pa.py_buffer(random.bytes(16 * len(table)))
        digests = pa.Array.from_buffers(pa.binary(16), len(table), [None, flat])
        place = table.schema.get_field_index("source_xxh3")
        (batch,) = table.set_column(place, table.schema.field(place), digests).to_batches()
        shards.append(replace(shard, index=write_index(out / shard.index.name, batch)))
    made = replace(manifest, shards=tuple(shards), classes=(f"c{seed}", "a"))
    (out / "pack.json").write_bytes(made.to_json())


def merging(table: Table, folder: Path, given: Any) -> None:
    """Merge packs of --merge-records records each; print a row for equal classes, and one for others."""
    packs = [direct_pack(folder / "p0", "hdf5", [b"abc"] * given.merge_records, (1, 1, 3), raw=True)]
    for number in range(10):
        twin(packs[0], folder / f"p{number + 1}", number)
        packs.append(folder / f"p{number + 1}")
    packs = packs[1:]
    for what in ("other classes in each", "the same classes"):
        if what.startswith("the same"):
            for pack in packs:
                manifest = replace(read_manifest(pack), classes=("a", "b"))
                (pack / "pack.json").write_bytes(manifest.to_json())

        def once() -> None:
            shutil.rmtree(folder / "all", ignore_errors=True)
            merge(packs, folder / "all")

        seconds = take_turns({"merge": once}, given.rounds)["merge"]
        title = f"merge 10 packs of {given.merge_records:,} records, {what}"
        table.row(title, *against_goal(seconds, 10, most=True))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--merge-records", type=int, default=1_000_000, help="of each pack; 0: none [%(default)s]")
    given = arguments.parse_args()
    table = Table("repack", "goal", "seconds")
    with tempfile.TemporaryDirectory(prefix="bench-repack-", dir=given.work_dir) as folder:
        if given.merge_records:
            merging(table, Path(folder), given)


if __name__ == "__main__":
    main()
