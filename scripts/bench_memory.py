"""How much memory `packer build` takes, by number of images and container, against workers x (shard size + 200 MB).

The whole process tree is looked at every 50 ms. RSS counts a page that two processes share twice, and the pages of
mapped files; PSS divides shared pages among their users. The limit is held against RSS, the larger one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "folder_cifar10"
MB = 1 << 20


def tree_of(pid: int) -> list[int]:
    """The process and all its descendants."""
    found = [pid]
    for parent in found:
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                found += [int(c) for c in Path(f"/proc/{parent}/task/{task}/children").read_text().split()]
        except OSError:
            continue
    return found


def memory_of(pid: int) -> tuple[int, int]:
    """(RSS, PSS) of one process in bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    return sizes.get("Rss:", 0), sizes.get("Pss:", 0)


def peak(command: list[str]) -> tuple[float, float, float]:
    """Peak RSS and PSS of the process tree in MB, and seconds."""
    started = time.perf_counter()
    process = subprocess.Popen(command)
    rss = pss = 0
    while process.poll() is None:
        sizes = [memory_of(pid) for pid in tree_of(process.pid)]
        rss = max(rss, sum(r for r, _ in sizes))
        pss = max(pss, sum(p for _, p in sizes))
        time.sleep(0.05)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return rss / MB, pss / MB, time.perf_counter() - started


def repeat(source: Path, target: Path, images: int) -> None:
    """Class folders with copies of the JPEGs in `source`, or of one drawn image where it is absent."""
    found = sorted(source.glob("*/*.jpg")) if source.is_dir() else []
    for number in range(images):
        origin = found[number % len(found)] if found else None
        folder = target / (origin.parent.name if origin else f"class{number % 10}")
        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / f"{number:07d}.jpg"
        if origin:
            shutil.copyfile(origin, copy)
        else:
            copy.write_bytes(drawn())


def drawn() -> bytes:
    import numpy as np
    import simplejpeg

    return simplejpeg.encode_jpeg(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, default=SHARED, help="class folders [default: %(default)s]")
    parser.add_argument("--counts", type=int, nargs="+", default=[2000, 20000, 80000])
    parser.add_argument("--formats", nargs="+", default=["lmdb", "hdf5", "tfrecord", "webdataset"])
    parser.add_argument("--resize", default="64", help="size of the packed images [default: %(default)s]")
    parser.add_argument("--shard-mb", type=int, default=64)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    limit = given.workers * (given.shard_mb + 200)
    print(f"{given.workers} workers, shards of {given.shard_mb} MB, raw {given.resize} px: limit {limit} MB")
    print(f"{'images':>8} {'container':<11} {'RSS MB':>7} {'PSS MB':>7} {'of limit':>8} {'s':>6}")
    for count in given.counts:
        with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
            repeat(given.images, Path(folder, "images"), count)
            for name in given.formats:
                command = [
                    sys.executable, "-m", "packer", "build", f"{folder}/images", "--format", name, "--quiet",
                    "--labels", "folder", "--workers", str(given.workers), "--shard-size", f"{given.shard_mb}MB",
                    "--resize", given.resize, "--fit", "stretch", "-o", f"{folder}/pack", "--overwrite",
                ]  # fmt: skip
                rss, pss, seconds = peak(command)
                print(f"{count:>8} {name:<11} {rss:7.0f} {pss:7.0f} {rss / limit:8.2f} {seconds:6.1f}", flush=True)


if __name__ == "__main__":
    main()
