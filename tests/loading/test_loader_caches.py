"""cache="ram" and cache="device": the same batches, what does not fit is refused with both figures."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
from large_packs import large_pack
from loader_packs import alike
from running import Threads, forked, run_script, until

from packer import CenterCrop, PackedLoader, RandomResizedCrop, Resize, open_pack, system
from packer.errors import DamagedPack, UsageError, size_text
from packer.format.mmap import MANY_FILES, Region
from packer.loading import on_device, page_cache
from packer.loading.fill import ImageFiller

OPTIONS = {"shuffle": True, "seed": 3}


def batches(path, **options):
    return list(PackedLoader(path, 4, **{**OPTIONS, **options}))


def device(path, **options):
    return batches(path, cache="device", **options)


@pytest.mark.parametrize("kind", ["raw", "gray"])
@pytest.mark.parametrize("options", [{}, {"flip": True}, {"flip": 1.0, "mean": [0.5], "std": [0.2]}], ids=str)
def test_the_device_gives_the_hosts_batches(pack, container, kind, options):
    channels = 3 if kind == "raw" else 1
    options = {name: value * channels if name in ("mean", "std") else value for name, value in options.items()}
    path = pack(kind, container)
    there = device(path, **options)
    assert alike(there, batches(path, **options))
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in there)


@pytest.mark.parametrize("crop", [
    RandomResizedCrop(8), RandomResizedCrop((20, 9), scale=(0.5, 1.0)), CenterCrop(6), CenterCrop((14, 9)),
    *(RandomResizedCrop((7, 8), scale=(0.5, 1.0), interpolation=name) for name in ("area", "bilinear", "fast")),
    RandomResizedCrop((9, 11), scale=(0.9, 1.0)), CenterCrop(6, resize=8), CenterCrop(6, resize=13),
    CenterCrop((14, 5), resize=9), CenterCrop(4, resize=5), CenterCrop(6, resize=8, interpolation="area"),
    Resize((15, 7)), Resize((4, 5)), Resize((15, 7), "area"), Resize((4, 5), "area"), Resize((4, 5), "nearest"),
    Resize((20, 24), "nearest"),
], ids=str)  # fmt: skip
def test_crops_on_the_device_are_the_hosts_to_two_levels(pack, crop):
    options = {"crop": crop, "flip": True}
    pairs = zip(device(pack("raw"), **options), batches(pack("raw"), **options), strict=True)
    for (there, targets), (here, same) in pairs:
        assert there.shape == here.shape and there.dtype == torch.uint8 and torch.equal(targets, same)
        assert (there.int() - here.int()).abs().max() <= 2
        assert there.is_contiguous(memory_format=torch.channels_last)


def test_a_crop_that_only_cuts_is_exact_on_the_device(pack):
    assert alike(device(pack("raw"), crop=CenterCrop((8, 6))), batches(pack("raw"), crop=CenterCrop((8, 6))))


def test_targets_move_on_the_device_too(tmp_path, pack):
    from drawn import draw_shots

    from packer import BuildOptions, build_pack

    draw_shots(tmp_path / "source", 6)
    build_pack(BuildOptions(str(tmp_path / "source"), str(tmp_path / "pack"), workers=1, labels=("voc",)))
    options = {"crop": RandomResizedCrop(20), "flip": True}
    theirs = [targets for _, targets in device(tmp_path / "pack", **options)]
    assert alike(theirs, [targets for _, targets in batches(tmp_path / "pack", **options)])


def test_no_image_is_touched_on_the_host(pack, monkeypatch):
    loader = PackedLoader(pack("raw"), 4, cache="device", crop=RandomResizedCrop(8), flip=True)
    new = Threads()

    def never(*arguments):
        raise AssertionError("the host fills images")

    monkeypatch.setattr(ImageFiller, "fill", never)
    for images, _ in loader:
        assert images.shape[1:] == (3, 8, 8) and not new
    assert loader.stats()["images"] == 27


def test_records_are_checked_on_their_way_to_the_device(pack, monkeypatch):
    from packer.format.records import Records

    def damaged(self, records):
        raise DamagedPack("pack", "damaged")

    monkeypatch.setattr(Records, "check", damaged)
    with pytest.raises(DamagedPack):
        PackedLoader(pack("raw"), 4, cache="device")
    PackedLoader(pack("raw"), 4, cache="device", verify=False)


def test_packs_are_copied_in_pieces(pack, monkeypatch):
    monkeypatch.setattr(on_device, "COPIED_BYTES", 360 * 5 + 1)
    assert alike(device(pack("raw")), batches(pack("raw")))


def test_what_cannot_live_on_the_device_is_refused(pack, monkeypatch):
    for kind in ("jpeg", "ragged", "copy"):
        with pytest.raises(UsageError, match="needs raw images of one shape"):
            PackedLoader(pack(kind), 4, cache="device", crop=CenterCrop(4))
    with pytest.raises(UsageError, match="8-bit"):
        PackedLoader(pack("gray16"), 4, cache="device")
    monkeypatch.setattr(on_device, "available_bytes", lambda: 10_000)
    with pytest.raises(UsageError) as refused:
        PackedLoader(pack("raw"), 4, cache="device")
    assert f"has {size_text(27 * 360)} of images, but cpu has only {size_text(10_000)} free" in str(refused.value)


def test_ram_reads_all_and_gives_the_same(pack, container):
    path = pack("raw", container)
    loader = PackedLoader(path, 4, cache="ram", **OPTIONS)
    assert loader._ram.wait(60)
    assert alike(list(loader), batches(path))


def test_more_than_there_is_memory_is_refused_with_both_figures(pack, monkeypatch):
    monkeypatch.setattr(page_cache, "available_bytes", lambda: 5000)
    size = len(open_pack(pack("raw")).reader.region)
    with pytest.raises(UsageError) as refused:
        PackedLoader(pack("raw"), 4, cache="ram")
    assert size_text(size) in str(refused.value) and size_text(5000) in str(refused.value)


@pytest.mark.parametrize("allowed", [True, False])
def test_the_ram_thread_ends_with_the_loader(pack, monkeypatch, allowed):
    steps, go_on = [], threading.Event()

    def read(region, start, stop, keep):
        steps.append((start, stop))
        assert go_on.wait(60)
        return allowed

    monkeypatch.setattr(Region, "read", read)
    monkeypatch.setattr(page_cache, "STEP_BYTES", 4096)
    loader = PackedLoader(pack("raw"), 4, cache="ram")
    thread = loader._ram._thread
    assert thread.is_alive() and thread.daemon and not loader._ram.wait(0.01)
    del loader
    gc.collect()  # does not wait for the thread, which is still reading
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(steps) <= 2  # it stops at once, not at the end


def test_the_ram_thread_may_collect_its_own_loader(pack):
    """The loader is in a reference cycle: nobody else ends its thread."""
    script = """
        import gc, sys, threading
        from packer import PackedLoader
        from packer.format.mmap import MANY_FILES, Region
        from packer.loading import page_cache

        gc.disable()
        left = threading.Event()
        steps = []

        def read(region, start, stop, keep):
            left.wait()
            steps.append(gc.collect())
            return True

        Region.read, page_cache.STEP_BYTES = read, 1024
        loader = PackedLoader(sys.argv[1], 4, cache="ram")
        thread = loader._ram._thread
        loader.itself = loader
        del loader
        left.set()
        thread.join()
        print(len(steps))
    """
    assert run_script(script, pack("raw")) == "1\n"


@pytest.mark.skipif(system.PORTABLE, reason="each file has a map and a descriptor there")
@pytest.mark.parametrize("may_lock", [True, False])
def test_ram_leaves_out_a_shard_that_cannot_be_read(tmp_path, monkeypatch, may_lock):
    """Of many shards, a missing part is found when it is mapped: by the thread first, and then by whoever reads it."""
    if not may_lock:
        monkeypatch.setattr(system, "lock_in_memory", lambda *arguments: False)
    path = large_pack(tmp_path / "pack", MANY_FILES + 2, 4, 4)
    for number in (7, 8, MANY_FILES + 1):
        damaged = path / f"shard-{number:05d}.tfrecord"
        damaged.unlink()
        damaged.write_bytes(b"short")
    mapped = []
    monkeypatch.setattr(Region, "map", lambda *of, map=Region.map: (map(*of), mapped.append(of[1])))
    opened = open_pack(path)
    loader = PackedLoader(opened, 4, cache="ram")
    assert loader._ram.wait(60) and loader._ram._thread.is_alive()
    assert mapped == [number for number in range(MANY_FILES + 1) if number not in (7, 8)]
    assert not any(opened.record(4 * 7 - 1)) and not any(opened.record(4 * 9))
    with pytest.raises(DamagedPack, match=r"shard-00007\.tfrecord: has 5 bytes"):
        opened.record(4 * 7)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_ram_thread_that_fails_keeps_nobody_waiting_and_holds_nothing(pack, tmp_path, monkeypatch):
    def read(region, start, stop, keep):
        raise RuntimeError

    monkeypatch.setattr(Region, "read", read)
    opened = open_pack(pack("raw").as_uri(), cache_bytes=0)
    loader = PackedLoader(opened, 4, cache="ram")
    assert loader._ram.wait(60)
    loader._ram._thread.join(60)
    assert not opened.reader.remote.blocks.pin_if_all() and not page_cache._owners._counts[opened.reader.region]


@pytest.mark.skipif(system.PORTABLE, reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_was_forked_while_the_ram_thread_counts_has_a_ram_thread_of_its_own(pack):
    path = pack("raw")
    with page_cache._owners.lock:  # as if another thread held it
        assert forked(lambda: b"%d" % PackedLoader(path, 4, cache="ram")._ram.wait(60)) == b"1"


def test_pages_that_may_not_be_locked_are_read(pack, monkeypatch):
    monkeypatch.setattr(system, "lock_in_memory", lambda *arguments: False)
    loader = PackedLoader(pack("raw"), 4, cache="ram")
    assert loader._ram.wait(60) and alike(list(loader), list(PackedLoader(pack("raw"), 4)))


def test_memory_that_the_page_cache_holds_in_a_container_is_free(tmp_path, monkeypatch):
    free = system.available_bytes()
    assert free > 1 << 20
    monkeypatch.setattr(system, "CGROUP", str(tmp_path))
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\nfile 400000\nactive_file 100000\ninactive_file 250000\n")
    assert system.available_bytes() == 450_000
    (tmp_path / "memory.max").write_text("max\n")
    assert system.available_bytes() > 1 << 20
    assert np.isfinite(system.available_bytes())


def locked_kilobytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmLck:"))


@pytest.mark.skipif(system.PORTABLE, reason="memory is locked on POSIX systems only")
def test_locked_memory_is_unlocked_with_its_owner(pack):
    """Locks do not add up: the first owner that goes must not unlock what another one keeps."""
    gc.collect()
    assert until(lambda: "packer-ram" not in {thread.name for thread in threading.enumerate()}, 60)  # earlier tests'
    opened, before = open_pack(pack("raw")), locked_kilobytes()
    first, second = (PackedLoader(opened, 4, cache="ram") for _ in range(2))
    assert first._ram.wait(60) and second._ram.wait(60)
    if locked_kilobytes() == before:
        pytest.skip("this process may not lock memory")
    del first
    gc.collect()
    assert not until(lambda: locked_kilobytes() == before, 0.2)
    del second
    gc.collect()
    assert until(lambda: locked_kilobytes() == before, 60)
    assert opened.record(0)
