"""map_files: several files in one range of addresses, checked before they are mapped, gone when unused."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from packer.errors import DamagedPack, StorageError
from packer.format import mmap as mapping
from packer.format.mmap import map_files

PAGE = mmap.PAGESIZE


@pytest.fixture
def files(tmp_path):
    """Files of sizes around a page, with their sizes."""
    found = []
    for size in (0, 1, PAGE - 1, PAGE, PAGE + 1, 0, 3 * PAGE + 7):
        path = tmp_path / f"{len(found)}"
        path.write_bytes(np.random.default_rng(size).bytes(size))
        found.append((str(path), size))
    return found


def test_files_lie_one_after_another(files):
    region, starts = map_files(files)
    assert region.dtype == np.uint8 and len(region) == 9 * PAGE
    assert starts.tolist() == [0, 0, PAGE, 2 * PAGE, 3 * PAGE, 5 * PAGE, 5 * PAGE]
    for (path, size), start in zip(files, starts.tolist(), strict=True):
        with open(path, "rb") as file:
            assert region[start : start + size].tobytes() == file.read()


@pytest.mark.parametrize("given", [[], [("/dev/null", 0)]])
def test_nothing_to_map(given):
    region, starts = map_files(given)
    assert len(region) == 0 and len(starts) == len(given)


def test_read_only_for_good(files):
    region, _ = map_files(files)
    with pytest.raises(ValueError, match="read-only"):
        region[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        region.flags.writeable = True
    assert region.data.readonly


@pytest.mark.parametrize("change", [-1, 1, PAGE])
def test_another_size(files, change):
    path, size = files[4]
    with pytest.raises(DamagedPack, match=f"has {size} bytes where the pack says {size + change}"):
        map_files([*files[:4], (path, size + change), *files[5:]])


def test_missing(files, tmp_path):
    with pytest.raises(DamagedPack, match="is missing"):
        map_files([*files, (str(tmp_path / "none"), 1)])


def test_a_file_that_shrinks_between_check_and_map(files, monkeypatch):
    monkeypatch.setattr(mapping, "check_size", lambda path, size: None)
    os.truncate(files[6][0], 5)
    with pytest.raises(DamagedPack, match="changed its size while it was opened"):
        map_files(files)


def test_what_cannot_be_opened_or_mapped(files, tmp_path):
    looped = tmp_path / "loop"
    looped.symlink_to(looped)
    with pytest.raises(StorageError):
        map_files([(str(looped), 1)])
    with pytest.raises(StorageError, match="cannot be mapped"):
        map_files([(str(tmp_path), tmp_path.stat().st_size)])


def test_more_addresses_than_there_are(monkeypatch, files):
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
