"""Lets coverage guide the mutations of one parser until something is found; scripts/torture.py runs it.

    scripts/faults/fuzz.py fuzz:yolo -max_total_time=600
    scripts/faults/fuzz.py core:yolo -runs=2000000

`core:` has the parser alone, as tests/torture/torture_cores.py has it, which is many times as fast as with its source.
It needs atheris, and takes the options of libFuzzer. An input that is a fault is kept in build/fuzz, and its file as
the last argument repeats it.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

ROOT = Path(__file__).resolve().parents[2]
TORTURE = ROOT / "tests" / "torture"
WORD = re.compile(rb'"[A-Za-z_]+"|</?[A-Za-z_]+|[A-Za-z_]+=|[A-Za-z_-]{3,}|<!\[?[A-Z]+')
"""What the mutations of fuzzing put in, besides single bytes."""
LONGEST_S = 1.0
"""Processor time of an input."""


def fuzz(name: str, options: list[str], core: bool) -> None:
    """Fuzz one parser in this process, which libFuzzer ends."""
    import atheris

    sys.path[:0] = [str(TORTURE), str(TORTURE.parent)]
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
    inputs_given = any(Path(option).is_file() for option in options)  # these alone, once each
    atheris.Setup([sys.argv[0], *settings, *options, *([] if inputs_given else [str(corpus)])], read)
    atheris.Fuzz()


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions of a module, and the methods of its classes."""
    for thing in vars(module).values():
        for part in vars(thing).values() if isinstance(thing, type) else [thing]:
            found = getattr(part, "fget", None) or getattr(part, "__wrapped__", part)  # of a property, a cache
            if isinstance(found, FunctionType) and found.__code__.co_filename == module.__file__:
                yield found  # not one that is imported, or that dataclasses write


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    group, _, parser = sys.argv[1].partition(":")
    fuzz(parser, sys.argv[2:], group == "core")
