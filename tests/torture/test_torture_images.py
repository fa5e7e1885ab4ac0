"""A slice of the mutated images, and the harness itself against decoders that crash, hang and lie."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest
import torture_images
from outcome import Budget
from torture_images import image_flips, images
from torture_mutations import KINDS, NAMES, SEEDS, mutation

from packer.images.header import read_header
from packer.images.jpeg_header import read as read_jpeg

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_mutated_images():
    outcome = images(Budget(seed=1), 1000)
    assert not outcome.faults
    assert outcome.done["mutations"] == 1000
    # both happen: the mutations are neither harmless nor all too coarse
    assert outcome.done["decoded"] > 200 and outcome.done["refused"] > 200
    assert sum(outcome.done[name] for name in ("decoded", "refused", "crashed", "over 1 s")) == 1000


def test_flipped_bits():
    outcome = image_flips(Budget(), 1009)
    assert not outcome.faults and outcome.done["mutations"] > 400


def test_mutations_of_every_format_and_kind():
    made = [mutation(number, 0) for number in range(400)]
    assert {one.name for one in made} == set(NAMES) and {one.kind for one in made} == set(KINDS)
    assert sum(one.data != SEEDS[one.name] for one in made) > 380
    assert {read_header(data).format for data in SEEDS.values()} == {"jpeg", "png", "gif", "webp", "tiff", "bmp"}
    assert mutation(7, 3).data == mutation(7, 3).data != mutation(7, 4).data


def test_any_exif_block_is_read_or_passed_over():
    """No chain of offsets in it loops, and what it says never goes beyond 1 to 8."""
    orientations: Counter[int] = Counter()
    for number in range(3000):
        made = mutation(number, 5)
        if made.kind == "exif" and made.data[:3] == b"\xff\xd8\xff":
            started = time.process_time()
            try:
                orientations[read_jpeg(made.data, True, len(made.data)).orientation] += 1
            except Exception as error:
                assert type(error).__name__ == "BadImage"
            assert time.process_time() - started < 1
    assert len(orientations) > 1 and set(orientations) <= set(range(1, 9))


def _one(at: int, deed):
    """A decoder that does its deed at one image of a batch of six."""
    state = {"count": 0}

    def run(rng, data):
        state["count"] += 1
        if state["count"] == at:
            deed()
        return True

    return run


def test_a_crash_costs_one_image(capsys):
    outcome = images(Budget(), 3, _one(2, lambda: os.kill(os.getpid(), signal.SIGSEGV)))  # the second of its process
    assert outcome.done["crashed"] == 1 and outcome.done["mutations"] == 3 and not outcome.faults
    assert outcome.done["decoded"] == 2 and f"mutation 1: {NAMES[1]}" in capsys.readouterr().out


def test_an_exception_is_a_fault():
    outcome = images(Budget(), 4, _one(2, lambda: 1 // 0))
    (fault,) = outcome.faults
    assert f"mutation 1: {NAMES[1]}" in fault and "ZeroDivisionError" in fault and outcome.done["decoded"] == 3


def test_a_hang_is_a_fault(monkeypatch):
    monkeypatch.setattr(torture_images, "HANG_S", 0.3)
    outcome = images(Budget(), 2, _one(1, lambda: time.sleep(60)))
    assert "mutation 0" in outcome.faults[0] and "hangs" in outcome.faults[0] and outcome.done["mutations"] == 2


def test_a_slow_image_is_counted(monkeypatch):
    monkeypatch.setattr(torture_images, "SLOW_S", 0.0)
    assert images(Budget(), 3, lambda rng, data: True).done["over 1 s"] == 3
