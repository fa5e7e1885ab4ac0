"""map_files: several files under one range of offsets, checked before they are mapped, gone when unused."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
import torch

from packer import system
from packer.errors import DamagedPack, StorageError
from packer.format import mmap as mapping
from packer.format.mmap import map_files
from packer.loading.fill import Gather

PAGE = mmap.PAGESIZE


@pytest.fixture(params=[False, True], ids=["together", "alone"])
def portable(request, monkeypatch):
    """Also with a map for each file, as on systems where no address can be chosen."""
    if system.PORTABLE and not request.param:
        pytest.skip("PACKER_PORTABLE: each file is a map of its own")
    monkeypatch.setattr(system, "PORTABLE", request.param)
    return request.param


@pytest.fixture
def files(tmp_path, portable):
    """Files of sizes around a page, with their sizes."""
    found = []
    for size in (0, 1, PAGE - 1, PAGE, PAGE + 1, 0, 3 * PAGE + 7):
        path = tmp_path / f"{len(found)}"
        path.write_bytes(np.random.default_rng(size).bytes(size))
        found.append((str(path), size))
    return found


def test_files_lie_one_after_another(files, portable):
    region, starts = map_files(files)
    assert len(region) == (8 * PAGE + 7 if portable else 9 * PAGE)
    assert starts.tolist() == [0, 0, PAGE, 2 * PAGE, 3 * PAGE, 5 * PAGE, 5 * PAGE]
    assert len(region.parts) == (len(files) if portable else 1)
    for (path, size), start in zip(files, starts.tolist(), strict=True):
        with open(path, "rb") as file:
            assert region.data[start : start + size] == file.read()


def test_gather(files):
    region, starts = map_files(files)
    rng = np.random.default_rng(0)
    big = rng.choice([3, 4, 6], 50)
    offsets = starts[big] + rng.integers(0, [files[i][1] - 9 for i in big])
    expected = [bytes(region.data[start : start + 10]) for start in offsets.tolist()]
    assert [row.tobytes() for row in region.gather(offsets, 10)] == expected
    gathered = Gather(region, 10)
    assert [row.numpy().tobytes() for row in gathered(offsets)] == expected
    out = torch.zeros((50, 10), dtype=torch.uint8)
    assert gathered(offsets, out) is out and [row.numpy().tobytes() for row in out] == expected
    assert gathered(offsets[:0]).shape == region.gather(offsets[:0], 10).shape == (0, 10)


@pytest.mark.parametrize("keep", [True, False])
def test_pages_are_asked_for_and_read(files, keep):
    region, starts = map_files(files)
    region.fetch(starts[3:5], np.array([PAGE, PAGE + 1]))
    assert region.read(0, len(region), keep) in (False, keep)
    assert region.share_in_memory(starts[3:5]) == 1.0
    assert region.share_in_memory(starts[:0]) == 1.0


@pytest.mark.parametrize("given", [[], [("/dev/null", 0)]])
def test_nothing_to_map(given, portable):
    region, starts = map_files(given)
    assert len(region) == 0 and len(starts) == len(given)


def test_read_only_for_good(files):
    region, starts = map_files(files)
    for part in region.parts:
        if len(part):
            with pytest.raises(ValueError, match="read-only"):
                part[0] = 1
            with pytest.raises(ValueError, match="WRITEABLE"):
                part.flags.writeable = True
    assert region.data[int(starts[4]) : int(starts[4]) + 1].readonly


@pytest.mark.parametrize("change", [-1, 1, PAGE])
def test_another_size(files, change):
    path, size = files[4]
    with pytest.raises(DamagedPack, match=f"has {size:,} bytes, but the pack says {size + change:,}"):
        map_files([*files[:4], (path, size + change), *files[5:]])


def test_missing(files, tmp_path):
    with pytest.raises(DamagedPack, match="is missing"):
        map_files([*files, (str(tmp_path / "none"), 1)])


def test_a_file_that_shrinks_between_check_and_map(files, monkeypatch):
    monkeypatch.setattr(mapping, "check_size", lambda path, size: None)
    os.truncate(files[6][0], 5)
    with pytest.raises(DamagedPack, match="has 5 bytes, but the pack says"):
        map_files(files)


def test_what_cannot_be_opened_or_mapped(files, tmp_path):
    looped = tmp_path / "loop"
    looped.symlink_to(looped)
    with pytest.raises(StorageError):
        map_files([(str(looped), 1)])
    with pytest.raises(StorageError, match="cannot be mapped"):
        map_files([(str(tmp_path), tmp_path.stat().st_size)])


def test_more_addresses_than_there_are(monkeypatch, files, portable):
    if portable:
        pytest.skip("no addresses are reserved")
    monkeypatch.setattr(mapping, "check_size", lambda path, size: None)
    with pytest.raises(StorageError, match="cannot reserve"):
        map_files([(files[0][0], 1 << 60)])


def test_an_error_leaves_no_map(files, monkeypatch):
    path = files[3][0]
    monkeypatch.setattr(mapping, "check_size", lambda path, size: None)
    for _ in range(50):
        with pytest.raises(DamagedPack):
            map_files([*files[:4], (path, PAGE + 1)])
    with open("/proc/self/maps") as maps:
        assert path not in maps.read()
