"""`packer verify --deep`: every image decodes to what its row says, and both copies of each annotation agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import crashing_decoder
import numpy as np
import pytest
from damage import edit_index, flip, vouch
from running import run

from packer import open_pack
from packer.containers import CONTAINERS
from packer.format import verify_records
from packer.format.manifest import read_manifest
from packer.format.verify import verify
from packer.model.annotation import Progress


def index_of(pack: Path, number: int = 0) -> Path:
    return pack / read_manifest(pack).shards[number].index.name


@pytest.mark.parametrize(
    ("container", "kind"),
    [*((name, "boxes") for name in CONTAINERS), ("lmdb", "raw"), ("hdf5", "gray16"), ("tfrecord", "copy")],
)
def test_good_pack(make_pack, container, kind):
    pack = make_pack(kind, container)
    stages = []

    class Listener(Progress):
        def stage(self, name, total=None, unit="images"):
            stages.append([name, total, 0])

        def advance(self, done, bad=0):
            stages[-1][2] += done

    assert verify(pack, Listener(), deep=True).problems == ()
    assert [name for name, *_ in stages] == ["verifying", "decoding"]
    assert all(total == done for _, total, done in stages) and stages[1][1] == len(open_pack(pack))


CHANGES = {
    "label": lambda old: [None if old[0] is not None else 1, *old[1:]],
    "path": lambda old: [b"other.png", *old[1:]],
    "source_xxh3": lambda old: [bytes(16), *old[1:]],
    "landmarks": lambda old: [[[[1.0, 2.0]] * 5], *[[x] for x in old[1:]]][0] + old[1:],
    "boxes": lambda old: [*old[:1], [[0.0, 0.0, 1.0, 1.0]], *old[2:]],
    "box_fields": lambda old: [*old[:1], '{"difficult": [1]}', *old[2:]],
    "extras": lambda old: ['{"a": 1}', *old[1:]],
}


@pytest.mark.parametrize("name", CHANGES)
def test_annotations_that_differ(copied, container, name):
    pack = copied("boxes", container)
    edit_index(index_of(pack), name, CHANGES[name])
    vouch(pack)
    assert verify(pack).problems == ()
    (problem,) = verify(pack, deep=True).problems
    assert problem.record == f"0000000{int(name in ('boxes', 'box_fields'))}"
    assert "another annotation in the container than in the index" in problem.problem


@pytest.mark.parametrize("name", ["height", "width"])
def test_images_of_another_shape(copied, name):
    pack = copied("copy", "lmdb")
    edit_index(index_of(pack), name, lambda old: [old[0] + 1, *old[1:]])
    vouch(pack, lambda manifest: replace(manifest, shape=None))
    problems = verify(pack, deep=True).problems
    assert any(p.record == "00000000" and "decodes to uint8 (10, 12, 3)" in p.problem for p in problems)


def test_bytes_that_are_no_image(copied):
    """Checksums vouch for bytes, not for pictures."""
    pack = copied("jpeg", "tfrecord")
    good = open_pack(pack)
    shard = good.reader.shards[0]
    start, size = int(good.reader.span(1)[0] - good.reader._starts[0]), int(np.ptp(good.reader.span(1)))
    path = pack / shard.container.name
    data = bytearray(path.read_bytes())
    data[start + size // 2 : start + size] = bytes(size - size // 2)
    path.write_bytes(data)
    from crc32c import crc32c

    checksum = crc32c(bytes(data[start : start + size]), crc32c(b"00000001"))
    edit_index(index_of(pack), "crc32c", lambda old: [old[0], checksum, *old[2:]])
    vouch(pack)
    problems = verify(pack, deep=True).problems
    assert any(p.record == "00000001" and "cannot be decoded" in p.problem for p in problems)


@pytest.mark.workers
def test_a_decoder_that_crashes_costs_one_record(make_pack, monkeypatch):
    monkeypatch.setattr(verify_records, "decode_rows", crashing_decoder.decode_rows)
    (problem,) = verify(make_pack("jpeg", "webdataset"), deep=True).problems
    assert problem.record == crashing_decoder.CRASHES_ON and "crashed" in problem.problem


def test_damaged_records_are_not_decoded(copied):
    pack = copied("jpeg", "hdf5")
    good = open_pack(pack)
    flip(pack / good.reader.shards[0].container.name, sum(good.reader.span(2)) // 2)
    assert [p.record for p in verify(pack, deep=True).problems] == [None, "00000002"]


def test_other_files_in_the_directory(copied):
    pack = copied("raw", "lmdb")
    (pack / "README.txt").write_text("mine")
    (pack / ".DS_Store").write_bytes(b"")
    report = verify(pack)
    assert report.problems == () and report.unknown_files == (".DS_Store", "README.txt")
    ran = run("verify", pack)
    assert ran.code == 0 and "README.txt: is not part of the pack" in ran.err
    (pack / "shard-00009.lmdb").write_bytes(b"x")
    (problem,) = verify(pack).problems
    assert problem.file == "shard-00009.lmdb" and "not in the manifest" in problem.problem


def test_a_pipe_in_place_of_a_shard(copied):
    import os

    pack = copied("raw", "lmdb")
    path = pack / read_manifest(pack).shards[0].container.name
    path.unlink()
    os.mkfifo(path)
    (problem,) = verify(pack).problems
    assert problem.problem == "is not a file"


def test_what_a_flip_beside_the_records_means(copied, container):
    pack = copied("raw", container)
    good = open_pack(pack)
    path = pack / good.reader.shards[0].container.name
    first = int(good.reader.places(np.arange(good.reader.shards[0].records))[0].min())
    flip(path, first - 1 if container != "hdf5" else path.stat().st_size - 1)
    (problem,) = verify(pack).problems
    assert "was altered" in problem.problem and "no accident has changed what packer reads" in problem.problem
