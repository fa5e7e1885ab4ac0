"""One promise for all containers: records are found byte for byte, whatever they are."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from container_records import ANNOTATIONS, CLASSES, IMAGES, image_record, picture, records_of, spec_of, write_shard

from packer.containers import CONTAINERS, open_container
from packer.containers.container import Entry
from packer.errors import BadLabel, DamagedPack, StorageError, UsageError
from packer.model.annotation import Annotation, Record
from packer.model.record_json import annotation_json

pytestmark = pytest.mark.parametrize("container", CONTAINERS)


def check_scanned(path: str, records: list[Record], entries: list[Entry]) -> None:
    shard = Path(path).read_bytes()
    assert [(e.key, e.size) for e in entries] == [(r.key, len(r.data)) for r in records]
    for record, entry in zip(records, entries, strict=True):
        assert shard[entry.offset : entry.offset + entry.size] == record.data
        assert entry.annotation == annotation_json(record, CLASSES).encode()
        for part in record.parts:
            offset, size = entry.parts.get(part.name, (0, 0))
            assert shard[offset : offset + size] == part.data
        assert entry.parts.keys() <= {part.name for part in record.parts}


@pytest.mark.parametrize(
    ("kind", "notes"), [*(("raw", notes) for notes in ANNOTATIONS), *((kind, "all") for kind in IMAGES)]
)
def test_scanned_byte_exact(container: str, kind: str, notes: str, tmp_path: Path) -> None:
    annotations = list(ANNOTATIONS.values()) if notes == "all" else [ANNOTATIONS[notes]] * 3
    records = records_of(kind, annotations, first=41)
    path = str(tmp_path / "shard")
    check_scanned(path, records, write_shard(container, path, kind, records))
    assert os.listdir(tmp_path) == ["shard"]  # no lock file, no leftover


def test_one_record(container: str, tmp_path: Path) -> None:
    records = records_of("raw", [Annotation()])
    path = str(tmp_path / "shard")
    check_scanned(path, records, write_shard(container, path, "raw", records))


def test_no_record(container: str, tmp_path: Path) -> None:
    path = str(tmp_path / "shard")
    if container in ("tfrecord", "recordio"):  # without a frame it is an empty file, which nobody can map
        with pytest.raises(DamagedPack, match="empty"):
            write_shard(container, path, "raw", [])
    else:
        assert write_shard(container, path, "raw", []) == []


@pytest.mark.parametrize("alike", [False, True], ids=["different", "all black"])
def test_thousands_of_tiny_records(container: str, alike: bool, tmp_path: Path) -> None:
    pixels = np.zeros((3000, 2, 2, 3), np.uint8) if alike else picture(0, 3000, 4).reshape(3000, 2, 2, 3)
    records = [
        Record(f"{i:08d}", pixels[i].tobytes(), "raw", 2, 2, 3, "uint8", Annotation(label=i % 3), b"x")
        for i in range(3000)
    ]
    path = str(tmp_path / "shard")
    check_scanned(path, records, write_shard(container, path, "raw", records))


def test_large_and_small_together(container: str, tmp_path: Path) -> None:
    sizes = [1, 2000, 2100, 4079, 4080, 4081, 5_000_000, 3, 8192]
    records = [
        Record(f"{i:08d}", picture(i, 1, n, 1).tobytes(), "raw", 1, n, 1, "uint8", Annotation(), b"x")
        for i, n in enumerate(sizes)
    ]
    path = str(tmp_path / "shard")
    check_scanned(path, records, write_shard(container, path, "ragged", records))


def test_path_of_any_bytes(container: str, tmp_path: Path) -> None:
    records = records_of("png", [Annotation()] * 2)
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n'shard")
    check_scanned(path, records, write_shard(container, path, "png", records))


_WRITE_ALL = """
import sys
from container_records import *
folder, *containers = sys.argv[1:]
for container in containers:
    for kind in IMAGES:
        write_shard(container, f"{folder}/{container}-{kind}", kind, records_of(kind, ANNOTATIONS.values()))
"""


def in_a_process(program: str, *given: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that knows `container_records`."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run([sys.executable, "-c", program, *given], check=False, env=env, capture_output=True, text=True)


@pytest.fixture(scope="session")
def written_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders in which two processes have written every kind into every container."""
    folders = [tmp_path_factory.mktemp("process") for _ in range(2)]
    for number, folder in enumerate(folders):
        other = {"PYTHONHASHSEED": str(number), "TZ": f"UTC+{number}", "LC_ALL": "C"}
        done = in_a_process(_WRITE_ALL, str(folder), *CONTAINERS, **other)
        assert done.returncode == 0, done.stderr
    return folders


def test_same_bytes_in_another_process(container: str, written_elsewhere: list[Path]) -> None:
    digests = [
        {kind: sha256((folder / f"{container}-{kind}").read_bytes()).hexdigest() for kind in IMAGES}
        for folder in written_elsewhere
    ]
    assert digests[0] == digests[1]


def test_existing_file_is_kept(container: str, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"mine")
    with pytest.raises(StorageError, match="shard"):
        open_container(container).create(str(path), spec_of("raw", []))
    assert path.read_bytes() == b"mine"


def test_abandoned_writer_closes_its_files(container: str, tmp_path: Path) -> None:
    """Without a word: a warning of a finalizer would be an error here."""
    records = records_of("png", [Annotation()] * 3)
    writer = open_container(container).create(str(tmp_path / "shard"), spec_of("png", records))
    writer.write(records[0])
    del writer
    gc.collect()
    open_files = {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}
    assert str(tmp_path / "shard") not in open_files


def test_missing_folder(container: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="gone"):
        open_container(container).create(str(tmp_path / "gone" / "shard"), spec_of("raw", []))


def test_nan_is_refused_and_the_shard_goes_on(container: str, tmp_path: Path) -> None:
    bad = Annotation(landmarks=np.full((1, 2), np.nan, np.float32))
    records = records_of("raw", [Annotation(), bad, Annotation(label=1)])
    path = str(tmp_path / "shard")
    writer = open_container(container).create(path, spec_of("raw", records))
    writer.write(records[0])
    with pytest.raises(BadLabel, match="JSON"):
        writer.write(records[1])
    writer.write(records[2])
    writer.close()
    check_scanned(path, [records[0], records[2]], list(open_container(container).scan(path)))


def test_a_part_that_was_not_planned(container: str, tmp_path: Path) -> None:
    record = image_record("parts", 1, Annotation())
    writer = open_container(container).create(str(tmp_path / "shard"), spec_of("raw", [record]))
    with pytest.raises(ValueError, match=r"has the parts \['aux', 'zed'\], which were not planned"):
        writer.write(record)


def test_raw_data_of_a_wrong_size(container: str, tmp_path: Path) -> None:
    record = image_record("raw", 0, Annotation())
    wrong = Record(record.key, b"x", "raw", 8, 6, 3, "uint8", Annotation(), b"x")
    writer = open_container(container).create(str(tmp_path / "shard"), spec_of("raw", [record]))
    with pytest.raises(ValueError, match="needs 144"):
        writer.write(wrong)


def test_cut_file_is_refused(container: str, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    records = records_of("raw", list(ANNOTATIONS.values()))
    write_shard(container, str(path), "raw", records)
    whole = path.read_bytes()
    lengths = [0, 1, 100, 511, 4096, 4097, *range(0, len(whole), len(whole) // 40)][:46]
    for length in lengths:
        path.write_bytes(whole[:length])
        try:
            found = list(open_container(container).scan(str(path)))
        except DamagedPack as error:
            assert str(path) in str(error)
        else:  # cut between two frames or two members it is a shorter file: the caller counts
            assert container in ("tfrecord", "webdataset", "recordio") and len(found) <= len(records)


def test_foreign_and_missing_files(container: str, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    with pytest.raises(DamagedPack):
        list(open_container(container).scan(str(path)))
    for content in (b"", b"\x00", b"hello world" * 1000, b"\x89HDF\r\n\x1a\n" * 600):
        path.write_bytes(content)
        with pytest.raises(DamagedPack):
            list(open_container(container).scan(str(path)))


_FULL_DISK = """
import resource, signal, sys
from container_records import *
from packer.errors import StorageError
folder, *containers = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
records = records_of("png", list(ANNOTATIONS.values()) * 40)
for container in containers:
    write_shard(container, f"{folder}/{container}", "png", records)
    size = os.path.getsize(f"{folder}/{container}")
    for number, limit in enumerate([0, 1, 4096, *range(5000, size, size // 15), size - 1]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            write_shard(container, f"{folder}/{container}{number}", "png", records)
        except StorageError as error:
            assert str(number) in str(error), error
        else:
            raise SystemExit(f"{container}: no error at {limit} of {size} bytes")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(container, flush=True)
"""


@pytest.fixture(scope="session")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What a process says that writes into each container, and has less room every time."""
    # a limit on the file's size fails a write as a full disk does, without root
    return in_a_process("import os\n" + _FULL_DISK, str(tmp_path_factory.mktemp("full")), *CONTAINERS)


def test_full_disk_is_an_error_and_no_crash(container: str, full_disk: subprocess.CompletedProcess[str]) -> None:
    assert container in full_disk.stdout.split(), full_disk.stderr


def test_table(container: str) -> None:
    home = open_container(container)
    assert home.name == container and home.suffix.startswith(".")
    with pytest.raises(UsageError, match="lmdb, hdf5"):
        open_container("zip")
