"""Errors of the read side: of one kind, with pack, shard and record, in this process and out of workers."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from pathlib import Path

import pytest
from damage import edit_index, flip, vouch
from failing import KINDS, OwnError, Raises, fails, fails_strangely
from torch.utils.data import BatchSampler, DataLoader

from packer import PackedDataset, collate, open_pack
from packer.cli.error_reports import failure_facts
from packer.errors import DamagedPack, PackerError
from packer.format.manifest import read_manifest

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
METHODS = ("fork", "forkserver", "spawn")


def shard_file(pack: Path, number: int) -> Path:
    return pack / read_manifest(pack).shards[number].container.name


@pytest.fixture
def broken(copied):
    """A pack whose record 11 is damaged; its shard's name."""
    pack = copied("raw", "lmdb")
    good = open_pack(pack)
    shard, _ = good.reader.locate(11)
    flip(shard_file(pack, shard), int(good.reader.span(11)[0] - good.reader._starts[shard]) + 100)
    return pack, shard_file(pack, shard).name


def place(error: PackerError) -> tuple[str | None, str | None, str | None]:
    return error.pack, error.shard, error.key


def caught(action) -> DamagedPack:
    with pytest.raises(DamagedPack) as info:
        action()
    return info.value


# -- what an error says


@pytest.mark.parametrize("error", KINDS, ids=lambda e: type(e).__name__)
def test_every_kind_pickles_and_is_made_of_one_text(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error) and str(again) == str(error)
        assert vars(again) == vars(error) and again.args == error.args
    one = type(error)("all of it; and the rest")
    assert str(one) == "all of it; and the rest" and one.problem == str(one) and one.where == one.next_step == ""
    assert str(pickle.loads(pickle.dumps(one))) == str(one)


def test_a_record(broken):
    pack, shard = broken
    data = PackedDataset(pack)
    for read in (lambda: data[11], lambda: data.__getitems__([10, 11]), lambda: data.pack.record(11)):
        assert place(caught(read)) == (str(pack), shard, "00000011")


@pytest.mark.parametrize("damage", ["missing", "cut", "index missing", "index altered"])
def test_a_file(copied, container, damage):
    pack = copied("raw", container)
    shard = read_manifest(pack).shards[1]
    path = pack / (shard.index.name if "index" in damage else shard.container.name)
    if damage.endswith("missing"):
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        flip(path, 300)
    error = caught(lambda: PackedDataset(pack)[20])
    assert place(error) == (str(pack), shard.container.name, None) and error.where == str(path)


def test_the_manifest_and_an_annotation(copied):
    pack = copied("boxes", "lmdb")
    index = pack / read_manifest(pack).shards[0].index.name
    edit_index(index, "box_fields", lambda values: ["{no json"] * len(values))
    vouch(pack)
    assert place(caught(lambda: PackedDataset(pack)[1])) == (str(pack), shard_file(pack, 0).name, "00000001")
    flip(pack / "pack.json", 5)
    assert place(caught(lambda: open_pack(pack))) == (str(pack), None, None)


def test_json(broken):
    pack, shard = broken
    facts = failure_facts(caught(lambda: PackedDataset(pack)[11]))
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["pack"], facts["shard"], facts["key"]) == (str(pack), shard, "00000011")
    other = failure_facts(ValueError("x"))
    assert set(other) == set(facts) and other["pack"] is other["shard"] is other["key"] is None


# -- out of workers, through torch's DataLoader, which makes an error anew of its text alone


@pytest.mark.parametrize("method", METHODS)
def test_every_kind_leaves_a_worker(method):
    sampler = list(range(len(KINDS)))
    # persistent: it goes on after an error, so that one start of a process will do
    loader = DataLoader(
        Raises(), num_workers=1, multiprocessing_context=method, sampler=sampler, persistent_workers=True,
        collate_fn=collate, prefetch_factor=len(KINDS), timeout=240,
    )  # fmt: skip
    batches = iter(loader)
    for error in KINDS:
        with pytest.raises(type(error)) as info:
            next(batches)
        assert type(info.value) is type(error) and str(error) in str(info.value)
        assert "in __getitem__" in str(info.value)  # where in the worker
    batches._shutdown_workers()


@pytest.mark.parametrize("kind", ["raw", "jpeg"])
def test_damage_found_by_a_worker_names_pack_shard_and_record(copied, kind):
    pack = copied(kind, "lmdb")
    good = open_pack(pack)
    shard, _ = good.reader.locate(11)
    flip(shard_file(pack, shard), int(good.reader.span(11)[0] - good.reader._starts[shard]) + 100)
    for options in ({"batch_size": 4}, {"batch_size": None}, {"batch_sampler": BatchSampler(range(24), 5, False)}):
        batches = iter(DataLoader(PackedDataset(pack), num_workers=2, multiprocessing_context="fork", **options))
        error = caught(lambda batches=batches: list(batches))
        assert f"{shard_file(pack, shard)}: record 00000011 (row " in str(error)
        batches._shutdown_workers()  # at once: torch waits 5 s per worker for what an error's traceback keeps


def test_other_errors_keep_their_type_and_name_the_record(make_pack):
    path = make_pack("raw", "lmdb")
    for transform, kind in ((fails, ZeroDivisionError), (fails_strangely, RuntimeError)):
        loader = DataLoader(
            PackedDataset(path, transform), 4, num_workers=1, multiprocessing_context="fork", collate_fn=collate
        )
        batches = iter(loader)
        with pytest.raises(kind) as info:
            next(batches)
        batches._shutdown_workers()  # at once: see above
        text = str(info.value)
        assert "Original Traceback" in text and ("by nought" in text or "OwnError: (1, 2)" in text)
        if sys.version_info >= (3, 11):
            assert f"in a transform of record 00000000 of {path}" in text
    with pytest.raises(OwnError):
        PackedDataset(path, fails_strangely)[0]
