"""Replays what fuzzing has found, without the fuzzer; and fuzzes for a moment where there is one."""

from __future__ import annotations

import importlib.util
import json
import sys
import time

import pytest
import torture_fuzz
from outcome import Budget
from torture_fuzz_targets import TARGETS

HANG_S = 1.0


def _timed(name: str, data: bytes) -> None:
    started = time.process_time()
    TARGETS[name].one(data)
    assert time.process_time() - started < HANG_S


@pytest.mark.parametrize("name", TARGETS)
def test_the_kept_corpus(name):
    inputs = [*torture_fuzz.kept(name), *TARGETS[name].seeds()]
    assert len(inputs) > 10
    for data in inputs:
        _timed(name, data)


FAULTS = [json.loads(line) for line in (torture_fuzz.CORPUS / "faults.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault['target']}: {fault['was']}" for fault in FAULTS])
def test_what_was_a_fault(fault):
    _timed(fault["target"], fault["input"].encode("latin-1"))


def test_the_corpus_is_small():
    files = list(torture_fuzz.CORPUS.iterdir())
    assert sum(file.stat().st_size for file in files) < 300_000
    assert sum(len(file.read_text().splitlines()) for file in files) < 1000


@pytest.mark.skipif(
    sys.platform != "linux" or importlib.util.find_spec("atheris") is None, reason="atheris is not installed"
)
def test_a_moment_of_fuzzing(tmp_path, monkeypatch):
    monkeypatch.setattr(torture_fuzz, "WORK", tmp_path / "fuzz")
    monkeypatch.setattr(torture_fuzz, "COUNTS", tmp_path / "counts.json")
    outcome = torture_fuzz.fuzz(Budget(), share=0.001, names=("yolo",))
    assert not outcome.faults and outcome.done["of yolo"] >= 5000
    # a restart goes on from there, and has nothing left to do
    assert torture_fuzz.fuzz(Budget(), share=0.001, names=("yolo",)).done == outcome.done


@pytest.mark.skipif(
    sys.platform != "linux" or importlib.util.find_spec("atheris") is None, reason="atheris is not installed"
)
def test_the_fuzzer_reports_a_fault(tmp_path, monkeypatch):
    """A parser that is broken on purpose: what it raises is found, named, and kept."""
    monkeypatch.setattr(torture_fuzz, "WORK", tmp_path / "fuzz")
    monkeypatch.setattr(torture_fuzz, "COUNTS", tmp_path / "counts.json")
    monkeypatch.setattr(torture_fuzz, "MOST_FAULTS", 1)
    monkeypatch.setenv("PACKER_FUZZ_BREAK", "yolo")
    (fault,) = torture_fuzz.fuzz(Budget(), share=0.001, names=("yolo",)).faults
    assert "yolo: crash" in fault and "broken on purpose" in fault
    assert list((tmp_path / "fuzz" / "yolo" / "found").iterdir())
