"""How long `packer verify` takes, against reading the files once and hashing them with SHA-256 in one thread.

Packs of 32x32 raw images and of records of about 22 KB (as a JPEG of 256 px has), in each container, in memory.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from bench_common import Table, against_goal, direct_pack, parser

from packer.bench.measure import take_turns
from packer.containers import CONTAINERS
from packer.format.digests import sha256_of
from packer.format.verify import verify


def hash_all(pack: Path) -> None:
    """Read every file once and hash it."""
    for path in pack.iterdir():
        sha256_of(str(path))


def check(pack: Path) -> None:
    """Verify the pack."""
    assert not verify(pack).problems


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--records", type=int, default=80_000, help="of 32x32; a fifth of them of 22 KB")
    given = arguments.parse_args()
    table = Table("pack", "goal", "verify / hash", "hash, s", "verify, s")
    random = np.random.default_rng(0)
    for raw in (False, True):
        if raw:
            datas, shape = [random.bytes(3072) for _ in range(given.records)], (32, 32, 3)
        else:
            sizes = random.integers(18_000, 26_000, given.records // 5).tolist()
            datas, shape = [random.bytes(size) for size in sizes], (256, 256, 3)
        for container in CONTAINERS:
            with tempfile.TemporaryDirectory(dir=given.work_dir) as home:
                pack = direct_pack(Path(home, "pack"), container, datas, shape, raw)
                seconds = take_turns({"hash": partial(hash_all, pack), "verify": partial(check, pack)}, given.rounds)
            hashing, checking = seconds["hash"], seconds["verify"]
            cells = against_goal(checking / hashing, 1.2, most=True)
            kind = "raw 32x32" if raw else "JPEG 256 px"
            table.row(f"{kind}, {container}", *cells, f"{hashing.median:.3f}", f"{checking.median:.3f}")


if __name__ == "__main__":
    main()
