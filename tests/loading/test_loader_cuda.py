"""The protocol of the way to a GPU, with streams and events that only take notes: order, waits, memory kept."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from loader_packs import noise

from packer.loading.epoch_stats import Stats
from packer.loading.to_device import CudaPrefetcher, Normalize, Transfer

CURRENT = []
"""The stack of current streams."""


class Stream:
    def __init__(self, device=None):
        self.log = []
        LOG.append(("stream", self))

    def wait_event(self, event):
        assert event.recorded_on is not None
        LOG.append(("wait", self, event))

    def synchronize(self):
        LOG.append(("synchronize stream", self))


class Event:
    def __init__(self, enable_timing=False):
        self.recorded_on = None
        self.synchronized = False

    def record(self, stream):
        self.recorded_on = stream
        LOG.append(("record", stream, self))

    def synchronize(self):
        self.synchronized = True
        LOG.append(("synchronize", self))

    def elapsed_time(self, end):
        assert end.synchronized
        return 2.0


LOG = []


@contextlib.contextmanager
def use(stream):
    CURRENT.append(stream)
    try:
        yield
    finally:
        CURRENT.pop()


class Device(torch.Tensor):
    """A tensor that says that it lies on the device, and notes who uses its memory."""

    @staticmethod
    def of(tensor):
        there = tensor.as_subclass(Device)
        there.made_on = CURRENT[-1]
        there.used_on = []
        return there

    def record_stream(self, stream):
        self.used_on.append(stream)


@pytest.fixture
def transfer(monkeypatch):
    """transfer(depth, ...): a Transfer that believes to have a GPU."""
    LOG.clear()
    CURRENT[:] = [Stream()]
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: CURRENT[-1])
    monkeypatch.setattr(torch.cuda, "stream", use)

    def to_device(self, tensor, images):
        assert CURRENT[-1] is self._stream
        tensor = tensor.clone()
        return Device.of(self.normalize(tensor) if images else tensor)

    monkeypatch.setattr(Transfer, "_tensor_to_device", to_device)

    def make(depth, normalize=None):
        return Transfer("cuda", depth, normalize or Normalize())

    return make


class Host:
    """A loader that knows how many of its batches somebody still holds."""

    def __init__(self, count, fails=None):
        self.count = count
        self.fails = fails
        self.made = 0
        self.alive = weakref.WeakSet()

    def __iter__(self):
        for number in range(self.count):
            if number == self.fails:
                raise KeyError(number)
            images = torch.from_numpy(noise(number, 8, 5)).view(2, 4, 5, 3).permute(0, 3, 1, 2)
            self.alive.add(images)
            self.made += 1
            yield images, {"number": torch.tensor(number)}
            del images


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_all_batches_in_order_with_depth_in_flight(transfer, depth, count):
    host = Host(count)
    received = []
    for number, (images, rest) in enumerate(transfer(depth).run(host)):
        assert rest["number"].item() == number
        assert host.made == min(count, number + depth)
        received.append(images)
    assert len(received) == count
    for number, images in enumerate(received):
        expected = torch.from_numpy(noise(number, 8, 5)).view(2, 4, 5, 3).permute(0, 3, 1, 2)
        assert (images.as_subclass(torch.Tensor) == expected).all()


def test_one_stream_for_its_life(transfer):
    way = transfer(2)
    for _ in range(3):
        for _ in way.run(Host(4)):
            pass
    assert sum(entry[0] == "stream" for entry in LOG) == 2  # the consumer's, and ours
    recorded = {entry[1] for entry in LOG if entry[0] == "record"}
    assert recorded == {way._stream}


def test_the_consumers_stream_waits_and_claims_the_memory(transfer):
    way = transfer(2, Normalize((0.5,) * 3, (0.5,) * 3))
    for images, rest in way.run(Host(5)):
        consumer = CURRENT[0]
        assert len(CURRENT) == 1
        for tensor in (images, rest["number"]):
            assert tensor.made_on is way._stream and tensor.used_on == [consumer]
        _, stream, event = [entry for entry in LOG if entry[0] == "wait"][-1]
        assert stream is consumer and event.recorded_on is way._stream
        # recorded after all that was done to the batch: nothing more is put on the stream for it
        assert event.synchronized
    assert images.dtype == torch.float32


def test_the_consumers_stream_may_change(transfer):
    iteration = transfer(2).run(Host(3))
    next(iteration)
    other = Stream()
    with use(other):
        images, _ = next(iteration)
    assert images.used_on == [other]


def test_host_memory_is_kept_until_its_copy_is_done(transfer, monkeypatch):
    host = Host(6)
    kept = []

    def synchronize(self):
        gc.collect()
        kept.append(len(host.alive))  # the batch of this event is still among them
        self.synchronized = True

    monkeypatch.setattr(Event, "synchronize", synchronize)
    iteration = transfer(3).run(host)
    for _ in range(2):
        next(iteration)
    assert kept == [3, 3]
    iteration.close()  # early: two are in flight
    gc.collect()
    assert kept == [3, 3, 2, 1] and not host.alive


def test_a_producers_error_keeps_its_type_and_comes_in_its_turn(transfer):
    host = Host(6, fails=4)
    iteration = transfer(2).run(host)
    received = []
    with pytest.raises(KeyError, match="4"):
        for _, rest in iteration:
            received.append(rest["number"].item())
    assert received == [0, 1, 2, 3]
    assert len(CURRENT) == 1
    events = {entry[2] for entry in LOG if entry[0] == "record"}
    done = {entry[1] for entry in LOG if entry[0] == "synchronize"}
    assert len(done) == 4 and done <= events


def test_an_error_on_the_way_waits_for_what_was_begun(transfer):
    way = transfer(2, Normalize((0.5,), (0.5,)))  # one channel, the images have three
    with pytest.raises(ValueError, match="mean has 1 channels"):
        next(way.run(Host(3)))
    assert ("synchronize stream", way._stream) in LOG and len(CURRENT) == 1


def test_an_error_in_the_loop_releases_the_flights(transfer):
    host = Host(6)

    def loop():
        for _ in transfer(3).run(host):
            raise RuntimeError("loss is nan")

    with pytest.raises(RuntimeError, match="nan"):
        loop()
    gc.collect()
    assert not host.alive


def test_what_a_loader_does_on_the_device_is_on_the_side_stream(transfer):
    """Else the side stream would read what the consumer's stream has not written yet (cache="device")."""
    way = transfer(2)
    seen = []

    def loader():
        for number in range(4):
            seen.append(CURRENT[-1])
            yield torch.tensor(number)

    for _ in way.run(loader()):
        assert len(CURRENT) == 1
    assert set(seen) == {way._stream}


def test_the_time_of_copies_is_counted(transfer):
    stats = Stats()
    list(transfer(2).run(Host(5), stats))
    assert stats.stage_s["copy"] == pytest.approx(5 * 0.002)


def test_tensors_go_without_waiting(monkeypatch):
    """The real way to the device: not blocking, and images as the bytes that they are."""
    asked = []

    class Tensor(torch.Tensor):
        def to(self, *arguments, **options):
            asked.append((self.dtype, arguments, options))
            return self.as_subclass(torch.Tensor)

    batch = {"images": torch.zeros((1, 3, 2, 2), dtype=torch.uint8).as_subclass(Tensor),
             "label": torch.zeros(2).as_subclass(Tensor)}  # fmt: skip
    (there,) = CudaPrefetcher([batch], "cpu", dtype=torch.float16)
    assert there["images"].dtype == torch.float16
    assert [(dtype, options) for dtype, _, options in asked] == [
        (torch.uint8, {"non_blocking": True}), (torch.float32, {"non_blocking": True}),
    ]  # fmt: skip
