"""Runs the cases of tests/torture that the suite runs a slice of: all of them take hours.

    scripts/torture.py                          all cases of all tests
    scripts/torture.py damage random_kills      tests by parts of their names
    scripts/torture.py damage --share 0.1 --seed 3
    scripts/torture.py --fuzz yolo -max_total_time=600
    scripts/torture.py --core yolo -runs=2000000

Each test prints how many cases it ran and what became of them. --fuzz lets coverage guide the mutations of one parser
until something is found; it needs atheris, and takes the options of libFuzzer. --core does so with the parser alone, as
torture_cores.py has it, which is many times as fast as with its source.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

ROOT = Path(__file__).resolve().parent.parent
TORTURE = ROOT / "tests" / "torture"
WORD = re.compile(rb'"[A-Za-z_]+"|</?[A-Za-z_]+|[A-Za-z_]+=|[A-Za-z_-]{3,}|<!\[?[A-Z]+')
"""What the mutations of fuzzing put in, besides single bytes."""
LONGEST_S = 1.0
"""Processor time of an input."""


def fuzz(name: str, options: list[str], core: bool) -> None:
    """Fuzz one parser in this process, which libFuzzer ends."""
    import atheris

    sys.path.insert(0, str(TORTURE))
    if core:
        import torture_parsers  # noqa: F401  # finds the modules of the tests
        from torture_cores import CORES, inputs_of

        target, modules = CORES[name]
        inputs = inputs_of(name)
        for module in modules:
            for function in functions_of(importlib.import_module(f"packer.{module}")):
                atheris.instrument_func(function)
    else:
        with atheris.instrument_imports(include=["packer", "yaml"]):
            from torture_labels import in_memory
            from torture_parsers import LABELS, TARGETS
        target = TARGETS[name]
        inputs = target.inputs(name)
        if name in LABELS:
            in_memory()
    warnings.simplefilter("error")
    corpus = ROOT / "build" / "fuzz" / (f"core-{name}" if core else name)
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        (corpus / f"kept-{number:03d}").write_bytes(data)

    def quoted(word: bytes) -> str:
        return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n'

    words = {word for seed in target.seeds for word in WORD.findall(seed)}
    dictionary = corpus.parent / f"{corpus.name}.words"
    dictionary.write_text("".join(quoted(word) for word in sorted(words)))

    def read(data: bytes) -> None:
        started = time.process_time()  # other processes do not count
        target.read(data)
        assert time.process_time() - started < LONGEST_S

    # -timeout is of the clock, which goes on while another program has stopped this one
    settings = ["-timeout=900", f"-artifact_prefix={corpus}-", f"-dict={dictionary}", "-rss_limit_mb=1024"]
    atheris.Setup([sys.argv[0], *settings, *options, str(corpus)], read)
    atheris.Fuzz()


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions of a module, and the methods of its classes."""
    for thing in vars(module).values():
        for part in vars(thing).values() if isinstance(thing, type) else [thing]:
            found = getattr(part, "fget", None) or getattr(part, "__wrapped__", part)  # of a property, a cache
            if isinstance(found, FunctionType) and found.__code__.co_filename == module.__file__:
                yield found  # not one that is imported, or that dataclasses write


def main() -> None:
    """Become pytest, or fuzz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help="part of a test's name (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="share of the cases to draw (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn (default: 0)")
    parser.add_argument("--fuzz", metavar="PARSER", help="fuzz one parser; other options go to libFuzzer")
    parser.add_argument("--core", metavar="PARSER", help="fuzz one parser without its source")
    given, others = parser.parse_known_args()
    if given.fuzz:
        fuzz(given.fuzz, others, core=False)
    elif given.core:
        fuzz(given.core, others, core=True)
    elif others:
        parser.error(f"unknown options: {' '.join(others)}")
    os.environ.update(PACKER_TORTURE_SHARE=str(given.share), PACKER_TORTURE_SEED=str(given.seed))
    command = [sys.executable, "-m", "pytest", str(TORTURE), "-s", "-o", "faulthandler_timeout=0"]
    os.execv(sys.executable, [*command, "-k", " or ".join(given.tests)])


if __name__ == "__main__":
    main()
