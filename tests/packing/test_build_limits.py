"""Builds that lack something: descriptors, file size, memory, temporary files, permissions. One line, and no hang."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from drawn import draw_plain
from running import ROOT, Ran, digests, good, jobs_here

from packer.format.pack import open_pack

pytestmark = pytest.mark.workers

IMAGES = 40
MANY_SHARDS = ["--shard-size", "16KB"]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, and the pack that it gives without limits."""
    root = tmp_path_factory.mktemp("limits")
    draw_plain(root / "src", IMAGES)
    build_here(root / "src", root / "pack")
    return root


def build_here(source: Path, out: Path) -> None:
    """A build without limits and without worker processes."""
    with jobs_here():
        good("build", source, "-o", out, *MANY_SHARDS)


def limited(command: list[str], limits: dict[int, int], **variables: str) -> Ran:
    """A command that may not have more than that of some resources."""

    def lower() -> None:
        for kind, most in limits.items():
            resource.setrlimit(kind, (most, most))

    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False, preexec_fn=lower
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def build(source: Path, out: Path, workers: int = 1) -> list[str]:
    command = [sys.executable, "-m", "packer", "build", str(source), "-o", str(out), *MANY_SHARDS]
    return [*command, "--workers", str(workers)]


def then_it_goes_on(oracle: Path, out: Path) -> None:
    """The same command, without the limit, makes the very pack."""
    assert not out.exists()
    build_here(oracle / "src", out)
    assert digests(out) == digests(oracle / "pack")
    assert not out.with_name(f"{out.name}.partial").exists()


@pytest.mark.parametrize(
    ("kind", "most", "words"),
    [
        (resource.RLIMIT_NOFILE, 12, "cannot start a worker process: Too many open files"),
        (resource.RLIMIT_FSIZE, 1_000, "File too large"),
        (resource.RLIMIT_FSIZE, 20_000, "cannot write"),
    ],
)
def test_too_little(oracle: Path, tmp_path: Path, kind: int, most: int, words: str) -> None:
    ran = limited(build(oracle / "src", tmp_path / "p", workers=2), {kind: most})
    assert ran.code == 3 and len(ran.error_lines) == 1 and words in ran.err
    then_it_goes_on(oracle, tmp_path / "p")


@pytest.mark.parametrize("most", [18, 32])
def test_few_descriptors(oracle: Path, tmp_path: Path, most: int) -> None:
    """A pack of many shards does not hold them all open."""
    ran = limited(build(oracle / "src", tmp_path / "p", workers=2), {resource.RLIMIT_NOFILE: most})
    assert ran.code in (0, 3) and "bug" not in ran.err
    if most >= 32:
        assert ran.code == 0 and digests(tmp_path / "p") == digests(oracle / "pack")
    if ran.code:
        then_it_goes_on(oracle, tmp_path / "p")


@pytest.mark.parametrize("most_mib", [120, 400, 600])
def test_little_memory(oracle: Path, tmp_path: Path, most_mib: int) -> None:
    """Libraries may die of it while they are loaded; but there is never a hang, nor a pack that lacks something."""
    ran = limited(build(oracle / "src", tmp_path / "p"), {resource.RLIMIT_AS: most_mib << 20})
    if ran.code == 0:
        assert digests(tmp_path / "p") == digests(oracle / "pack")
    else:
        then_it_goes_on(oracle, tmp_path / "p")


PRIVATE = ["unshare", "--mount", "--propagation", "private", "bash", "-ec"]


def _may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*PRIVATE, "true"], capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not _may_unshare(), reason="only root may have mounts of its own")


@needs_mounts
@pytest.mark.parametrize(
    "mounts",
    [
        "mount -t tmpfs -o size=1m none /dev/shm; head -c 1048576 /dev/zero > /dev/shm/full",
        "mount -t tmpfs none /dev; mknod /dev/null c 1 3; mknod /dev/urandom c 1 9",
    ],
    ids=["full", "absent"],
)
def test_shared_memory(oracle: Path, tmp_path: Path, mounts: str) -> None:
    """Nothing in a build needs more of /dev/shm than a page, nor that it is there."""
    ran = limited([*PRIVATE, f'{mounts}; exec "$@"', "-", *build(oracle / "src", tmp_path / "p")], {})
    assert (ran.code, ran.err) == (0, "")
    assert digests(tmp_path / "p") == digests(oracle / "pack")


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that is not below /tmp."""
    with tempfile.TemporaryDirectory(dir="/var") as folder:
        yield Path(folder)


@needs_mounts
@pytest.mark.parametrize("working", [True, False])
def test_temporary_folder(oracle: Path, elsewhere: Path, working: bool) -> None:
    """TMPDIR cannot be written to: another one is taken; where there is none, that is said."""
    shutil.copytree(oracle / "src", elsewhere / "src")
    mounts = "mkdir ro; mount -t tmpfs -o ro none ro"
    if not working:
        places = "/tmp /var/tmp /usr/tmp /dev/shm"
        mounts += f"; for d in {places}; do [ ! -d $d ] || mount -t tmpfs -o ro none $d; done; cd ro"
        if any(str(path).startswith((*places.split(),)) for path in (ROOT, sys.executable)):
            pytest.skip("packer or Python lies in a folder that this test hides")
    command = [*PRIVATE, f'cd {elsewhere}; {mounts}; exec "$@"', "-", *build(elsewhere / "src", elsewhere / "p")]
    ran = limited(command, {}, TMPDIR=str(elsewhere / "ro"))
    assert "Traceback" not in ran.err
    if working:
        assert (ran.code, ran.err) == (0, "") and len(open_pack(elsewhere / "p")) == IMAGES
    else:
        assert ran.code == 3 and len(ran.error_lines) == 1 and "No usable temporary directory" in ran.err
        build_here(elsewhere / "src", elsewhere / "p")


@needs_mounts
@pytest.mark.parametrize("read_only", ["src", "out"])
def test_read_only_mounts(oracle: Path, tmp_path: Path, read_only: str) -> None:
    """A source needs no more than to be read; an output says what it needs."""
    shutil.copytree(oracle / "src", tmp_path / "src")
    (tmp_path / "out").mkdir()
    place = tmp_path / read_only
    mounts = f"mount --bind {place} {place}; mount -o remount,ro,bind {place}"
    ran = limited([*PRIVATE, f'{mounts}; exec "$@"', "-", *build(tmp_path / "src", tmp_path / "out" / "p")], {})
    if read_only == "src":
        assert (ran.code, ran.err) == (0, "") and digests(tmp_path / "out" / "p") == digests(oracle / "pack")
    else:
        problem = "Read-only file system\ntry: choose another --out\n"
        assert ran.code == 3 and ran.err == f"packer: error: {tmp_path}/out/p.partial: {problem}"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not there")
def test_a_source_file_that_the_disk_does_not_give(oracle: Path, tmp_path: Path) -> None:
    """EIO in its header: it is rejected, and says why (in a worker: test_build_bad.py)."""
    bad = oracle / "src" / "007.jpg"
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(bad), "-e", "inject=read,pread64:error=EIO:when=1"]
    ran = limited([*strace, *build(oracle / "src", tmp_path / "p"), "--max-bad", "1"], {})
    assert ran.code == 0, ran.err
    (item,) = open_pack(tmp_path / "p").manifest.rejected
    assert item.path == "007.jpg" and item.problem == (
        "cannot be read: Input/output error; check the file's permissions and the disk"
    )
    assert len(open_pack(tmp_path / "p")) == IMAGES - 1
