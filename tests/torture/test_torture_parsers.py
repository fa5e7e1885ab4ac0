"""Damaged images, labels, manifests and indexes: each is read or refused, and nothing else happens.

The corpus holds inputs that coverage-guided fuzzing kept because they reach new code, and those that were faults once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest
from torture_cores import CORES, inputs_of
from torture_labels import CORPUS
from torture_mutations import KINDS, mutated
from torture_parsers import SEEDS, TARGETS, read_image, read_image_header

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

FAULTS = [json.loads(line) for line in (CORPUS / "faults.jsonl").read_text().splitlines()]
FEW = {"decode": 500, "header": 500}
"""Mutations in the suite; 100 of other targets."""
ALL = 100_000


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(name: str, torture) -> None:
    target = TARGETS[name]
    inputs = target.inputs(name)
    cases = [(number,) for number in range(len(inputs))]
    outcomes = torture.each(cases, lambda number: target.read(inputs[number]), len(inputs), apart=True)
    assert not torture.sliced or min(outcomes["read"], outcomes["refused"]) > 2, outcomes


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault['target']}: {fault['was']}" for fault in FAULTS])
def test_what_was_a_fault(fault: dict[str, str], torture) -> None:
    read = TARGETS[fault["target"]].read
    torture.each([("input",)], lambda _: read(fault["input"].encode("latin-1")), 1, apart=True)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations(name: str, torture) -> None:
    target = TARGETS[name]
    inputs = target.inputs(name)

    def run(number: int) -> str:
        return target.read(mutated(inputs, number, torture.seed, keep=2))

    outcomes = torture.each([(number,) for number in range(ALL)], run, FEW.get(name, 100), apart=True)
    # mutations are neither harmless nor all too coarse
    assert not torture.sliced or min(outcomes["read"], outcomes["refused"]) > 0, outcomes


def test_parsers_alone(torture) -> None:
    """What the fuzzing of millions of inputs runs."""
    inputs = {name: inputs_of(name) for name in CORES}

    def run(name: str, number: int) -> str:
        return f"{name}: {CORES[name][0].read(mutated(inputs[name], number, torture.seed, keep=2))}"

    outcomes = torture.each([(name, number) for name in CORES for number in range(ALL)], run, 30 * len(CORES))
    assert not torture.sliced or len(outcomes) > 1.5 * len(CORES), outcomes  # most are both read and refused


def test_flipped_bits_of_images(torture) -> None:
    """Every bit of a small image of each variant."""

    def run(name: str, bit: int) -> str:
        data = bytearray(SEEDS[name])
        data[bit >> 3] ^= 1 << (bit & 7)
        read_image_header(b"\1" + data)
        return read_image(bytes([bit % 251, bit % 241]) + data)

    torture.each([(name, bit) for name, data in SEEDS.items() for bit in range(8 * len(data))], run, 500, apart=True)


def test_mutations_are_many_and_always_the_same() -> None:
    seeds = list(SEEDS.values())
    made = [mutated(seeds, number, 0) for number in range(400)]
    assert sum(data != seeds[number % len(seeds)] for number, data in enumerate(made)) > 380
    assert made == [mutated(seeds, number, 0) for number in range(400)]
    assert made[7] != mutated(seeds, 7, 1) and len(KINDS) == 7


def test_failures_name_the_command_that_repeats_them(torture, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(what: str, number: int) -> str:
        if what == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "hang":
            signal.alarm(1)
            time.sleep(60)
        elif what == "silent":
            raise AssertionError
        return str(1 // number)

    cases = [("good", 1), ("raise", 0), ("crash", 1), ("hang", 1), ("silent", 1)]
    with pytest.raises(AssertionError) as raised:
        torture.each(cases, run, 5, apart=True)
    text = str(raised.value)
    assert "4 of 5 cases failed" in text and "ZeroDivisionError" in text and "silent 1: Traceback" in text
    assert "crash 1: the process ended with SIGKILL" in text and "hang 1: the process hung" in text
    seed = re.search(r"PACKER_TORTURE_SEEDS=(\d+:1) python -m pytest '(.*)'", text[text.index("raise 0: ") :])
    assert seed is not None and seed[2] == torture.node
    monkeypatch.setenv("PACKER_TORTURE_SEEDS", seed[1])
    with pytest.raises(AssertionError, match=r"^1 of 1 cases failed\s+raise 0: "):
        type(torture)(torture.node).each(cases, run, 5)


def test_seeds_are_shared_by_the_tests_of_a_row(torture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the first seeds is another case; later ones have other random numbers; few are of all kinds."""
    cases = [(kind, n) for kind in "abcd" for n in range(25)]
    seen: list[tuple[str, int, int]] = []

    def run(kind: str, n: int) -> str:
        seen.append((kind, n, tests[-1].seed))
        return kind

    tests = [torture]
    assert set(torture.each(cases, run, 6, always=[("c", 3)])) == set("abcd") and seen[0][:2] == ("c", 3)
    seen.clear()
    monkeypatch.setenv("PACKER_TORTURE_SEEDS", "0:400")
    for turn in (0, 1):
        tests.append(type(torture)(torture.node, (turn, 2)))
        tests[-1].each(cases, run, 1)
    assert sorted(seen) == sorted((*case, again) for case in cases for again in (0, 0, 1, 1))
