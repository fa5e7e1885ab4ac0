"""Near duplicates: all of them are found, as by comparing each with each, and nothing that is only as blank."""

from __future__ import annotations

from itertools import combinations
from math import comb

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.images.fingerprint import FINGERPRINT, fingerprint_of
from packer.repack import near_duplicates
from packer.repack.near_duplicates import NearFacts, Nearness, bit_count, near_groups


def rows_of(hashes: list[int]) -> np.ndarray:
    """Fingerprints with these hashes, and equal in all else."""
    rows = np.zeros(len(hashes), FINGERPRINT)
    rows["hash"], rows["brightness"], rows["contrast"] = hashes, 100, 50
    return rows


def by_brute_force(rows: np.ndarray, bits: int) -> set[frozenset[int]]:
    sets = [{i} for i in range(len(rows))]
    for i, j in combinations(range(len(rows)), 2):
        if (int(rows["hash"][i]) ^ int(rows["hash"][j])).bit_count() <= bits and sets[i] is not sets[j]:
            sets[i] |= sets[j]
            for k in sets[j]:
                sets[k] = sets[i]
    return {frozenset(one) for one in sets if len(one) > 1}


def groups(rows: np.ndarray, near: Nearness) -> set[frozenset[int]]:
    found = near_groups(rows, near).groups
    return {frozenset(found.listed(group)) for group in range(found.groups)}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 10), st.integers(0, 4))
def test_all_are_found(seed: int, bits: int, equal: int) -> None:
    """With as many bands as a large number of hashes would take, and few originals with copies of some other bits."""
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, 12, np.uint64)[random.integers(0, 12, 60)]
    for _ in range(8):
        hashes ^= np.uint64(1) << random.integers(0, 64, 60, np.uint64)
    rows = rows_of(hashes.tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_duplicates, "min", lambda choices, key: equal, raising=False)
        assert len(near_duplicates._masks(60, bits)) == comb(bits + equal, equal)
        # what else is known must agree less, the less bits may differ: of equal facts, it always does
        assert groups(rows, Nearness(bits)) == by_brute_force(rows, bits)


@pytest.mark.parametrize("bits", [0, 6, 16])
def test_a_hash_may_be_anything(bits: int) -> None:
    assert groups(rows_of([]), Nearness(bits)) == set()
    assert groups(rows_of([7]), Nearness(bits)) == set()
    assert groups(rows_of([0, 2**64 - 1, 0]), Nearness(bits)) == {frozenset({0, 2})}


def test_many_that_are_alike_take_no_time_of_their_square() -> None:
    random = np.random.default_rng(0)
    noise = np.zeros(40_000, np.uint64)
    for bit in range(64):
        noise |= (random.random(len(noise)) < 0.06).astype(np.uint64) << np.uint64(bit)
    noise[:20_000] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_duplicates, "MOST_PAIRS", 20_000)
        found = near_groups(rows_of(noise.tolist()), Nearness(6))
    assert found.groups.groups == 1 and len(found.groups.records) > 30_000
    assert "not all of them were compared" in found.notes[0]


def test_of_equal_ones_one_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank images, or one that is stored a million times."""
    compared: list[int] = []
    facts = near_duplicates.NearFacts
    monkeypatch.setattr(
        near_duplicates, "NearFacts", lambda rows, near: (compared.append(len(rows)), facts(rows, near))[1]
    )
    found = near_groups(rows_of([7] * 1000 + [6, 2**40 - 1] + [7] * 1000 + [2**64 - 1]), Nearness(6)).groups
    assert compared == [4] and found.starts.tolist() == [0, 2001]
    assert found.records.tolist() == [*range(1001), *range(1002, 2002)]


def test_frames_of_a_video_are_joined_before_hashes_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    flips = np.uint64(1) << np.random.default_rng(0).integers(0, 64, 5000, np.uint64)
    monkeypatch.setattr(near_duplicates, "_masks", lambda *_: [])
    assert near_groups(rows_of(np.bitwise_xor.accumulate(flips).tolist()), Nearness(6)).groups.groups == 1


@pytest.mark.parametrize("mirrored", [False, True])
def test_of_groups_of_two_one_stays(mirrored: bool) -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64, 50, np.uint64)
    other = hashes ^ np.uint64(near_duplicates.mirrored_bits() if mirrored else 9)
    rows, pixels = rows_of([*hashes.tolist(), *other.tolist()]), np.tile([1, 2], 50)
    removed, _ = near_duplicates.surplus(rows, Nearness(2, mirrored), pixels)
    assert removed == {i + 50: i for i in range(50)}


def test_bits_are_counted_without_numpy_2(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).integers(0, 2**64, 1000, np.uint64)
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert bit_count(numbers).tolist() == [number.bit_count() for number in numbers.tolist()]


def photo(seed: int = 0) -> np.ndarray:
    """Smooth shapes in colors."""
    noise = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)
    return cv2.resize(noise, (320, 240), interpolation=cv2.INTER_CUBIC)


CHANGES = {
    "half": lambda image: cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
    "jpeg": lambda image: cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 50])[1], 1),
    "brighter": lambda image: cv2.convertScaleAbs(image, alpha=1.1),
    "cropped": lambda image: image[3:-3, 4:-4],
    "gray": lambda image: cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None],
}


def fingerprints(*images: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"".join(map(fingerprint_of, images)), FINGERPRINT)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_copy_is_near(change: str) -> None:
    rows = fingerprints(photo(), photo(1), CHANGES[change](photo()))
    assert groups(rows, Nearness()) == {frozenset({0, 2})}


def test_mirrored_images_are_near_if_asked() -> None:
    rows = fingerprints(photo(), photo(1), photo()[:, ::-1])
    assert groups(rows, Nearness()) == set()
    assert groups(rows, Nearness(mirrored=True)) == {frozenset({0, 2})}


def test_blank_images_are_near_only_if_they_are_equal() -> None:
    random = np.random.default_rng(0)
    blank = [np.full((60, 80, 3), value, np.uint8) for value in (0, 0, 255, 255, 30, 60)]
    blank[0][0, 0] = 1
    noisy = [random.integers(118, 122, (60, 80, 3), np.uint8) for _ in range(2)]
    found = groups(fingerprints(*blank, *noisy), Nearness())
    assert found <= {frozenset({0, 1}), frozenset({2, 3})} and frozenset({2, 3}) in found


@pytest.mark.parametrize("text", ["", "far", "near=", "near=17", "near=-1", "near=x", "near=²", "near=99999999999"])
def test_what_is_near_must_be_said(text: str) -> None:
    with pytest.raises(UsageError, match="must be near or mirrored"):
        Nearness.of("--duplicates", text)
    assert Nearness.of("--duplicates", "mirrored=3") == Nearness(3, True)


def test_facts_that_contradict_a_hash_count() -> None:
    rows = rows_of([1, 1])
    rows["contrast"] = 50, 5
    one, other = NearFacts(rows, Nearness()).alike(np.array([0]), np.array([1]))
    assert len(one) == len(other) == 0
