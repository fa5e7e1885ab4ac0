"""What is beside a pack that is changed in place: each version has its own, and no crash mixes them up."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from indexing import fast
from running import good, refused
from test_carry import NAMES, attached, build, indexed, indexes_of, listed, of_paths, values
from test_versions import DIES, is_good

from packer import attach, detach, edit, open_pack, purge, versions_of
from packer.errors import DamagedPack, UsageError
from packer.format.beside import read_beside
from packer.format.jpeg_index_list import JpegIndexList
from packer.format.manifest import read_manifest
from packer.format.sidecar_list import SidecarList
from packer.format.verify import verify
from packer.repack.carry import NewFiles, carry
from packer.repack.index_jpegs import index_jpegs, remove_jpeg_index
from packer.repack.links import Source, Taken
from packer.repack.url_packs import pull, push

__all__ = ["fast", "indexed"]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return attached(build(tmp_path), tmp_path)


def test_each_version_has_its_own(pack: Path, tmp_path: Path) -> None:
    before = values(pack)
    edit(pack, delete=[0, 7])
    edit(pack, map=["bee=wasp"])
    edit(pack, delete=[3], drop_class=["cat"], missing_labels="skip")
    for version in (f"{pack}@1", f"{pack}@2", f"{pack}@3", f"{pack}@4", str(pack)):
        assert values(Path(version)) == of_paths(before, open_pack(version).paths) and is_good(version)
    assert len(open_pack(f"{pack}@2")) == len(open_pack(f"{pack}@3")) > len(open_pack(pack))
    files = sorted(name for name in os.listdir(pack) if name.startswith("sidecar.embedding"))
    wanted = ["sidecar.embedding.npy", "sidecar.embedding.v2.npy", "sidecar.embedding.v4.npy"]
    assert files == wanted  # the rows of version 3 are those of version 2
    edit(f"{pack}@1", tmp_path / "other", delete=[1])
    assert values(tmp_path / "other") == of_paths(before, open_pack(tmp_path / "other").paths)
    assert "sidecar    embedding" in good("info", f"{pack}@2").out


def test_the_newest_can_be_attached_to(pack: Path, tmp_path: Path) -> None:
    """Under the name of what an earlier version has, too; that one stays what it was."""
    first = values(pack)
    for number in (2, 3):
        edit(pack, delete=[0])
        second = values(pack)
        detach(pack, "embedding")
        assert [*values(pack)] == [name for name in NAMES if name != "embedding"] == [*values(Path(f"{pack}@{number}"))]
        np.save(tmp_path / "n.npy", np.full((len(open_pack(pack)), 2), number))
        attach(pack, tmp_path / "n.npy", "embedding")
        assert open_pack(pack).part(3, "embedding").tolist() == [number, number]
        assert values(pack) == values(Path(f"{pack}@{number}")) != second
        assert values(Path(f"{pack}@1")) == first and is_good(pack) and is_good(f"{pack}@1")
    assert open_pack(f"{pack}@2").part(3, "embedding").tolist() == [2, 2] and is_good(f"{pack}@2")
    for name in NAMES:
        detach(pack, name)
    assert not values(pack) and not values(Path(f"{pack}@3")) and values(Path(f"{pack}@1")) == first
    assert all(map(is_good, (pack, f"{pack}@1", f"{pack}@2")))
    edit(pack, delete=[0])
    assert not values(pack) and not (pack / "sidecars.json").exists() and values(Path(f"{pack}@1")) == first
    assert "stays as it is" in refused(2, "attach", f"{pack}@1", tmp_path / "n.npy", "--as", "x")


def test_classes_alone_leave_the_rows(pack: Path) -> None:
    """Both versions have the same indexes: what is attached to the newer one does not change the older."""
    edit(pack, map=["bee=wasp"])
    before = values(pack)
    detach(pack, "caption")
    assert values(Path(f"{pack}@1")) == before and [*values(pack)] == [n for n in NAMES if n != "caption"]
    for name in NAMES:
        if name != "caption":
            detach(pack, name)
    assert not values(pack) and values(Path(f"{pack}@1")) == before and is_good(pack) and is_good(f"{pack}@1")


def test_the_list_of_another_version_is_not_read(pack: Path) -> None:
    old = (pack / "sidecars.json").read_bytes()
    edit(pack, delete=[0])
    new, wanted = (pack / "sidecars.json").read_bytes(), values(pack)
    (pack / "sidecars.json").write_bytes(old)  # as a crash leaves it
    assert values(pack) == wanted and not verify(pack).problems
    edit(pack, delete=[0])
    assert read_beside(SidecarList, str(pack), read_manifest(pack)) is not None and is_good(pack)
    (pack / "sidecars.json").write_bytes(new)
    assert values(Path(f"{pack}@2")) == wanted and is_good(f"{pack}@2")
    (pack / "sidecars.json").write_bytes(new.replace(b'"rows_sha256": "', b'"rows_sha256": "0'))
    assert is_good(f"{pack}@1") and values(Path(f"{pack}@2")) == wanted
    shutil.rmtree(pack / "versions")
    with pytest.raises(DamagedPack, match="sidecars"):
        values(pack)


def test_a_version_is_pushed_with_its_own(pack: Path, tmp_path: Path) -> None:
    before = values(pack)
    edit(pack, delete=[0])
    for number in (1, 2):
        url = f"file://{tmp_path}/store/{number}"
        push(f"{pack}@{number}", url)
        pull(url, tmp_path / f"pulled{number}")
        pulled = tmp_path / f"pulled{number}"
        assert values(pulled) == of_paths(before, open_pack(f"{pack}@{number}").paths) and is_good(pulled)


def test_nothing_is_mixed_up_wherever_an_edit_dies(tmp_path: Path) -> None:
    pack = build(tmp_path, shard_bytes=10000)
    np.save(tmp_path / "e.npy", np.arange(len(open_pack(pack))))
    attach(pack, tmp_path / "e.npy", "embedding")
    edit(pack, map=["cat=tiger"])
    old = values(pack)
    script, seen = re.sub("EVENTS = .*", 'EVENTS = {"os.rename"}', DIES), set()
    for last in range(1, 1000):
        copy = tmp_path / f"k{last}"
        shutil.copytree(pack, copy)
        ended = subprocess.run(
            [sys.executable, "-c", script, copy, str(last)], capture_output=True, text=True, check=False
        )
        assert ended.returncode in (0, 9), ended.stderr
        count = len(open_pack(copy))
        assert values(copy) == of_paths(old, open_pack(copy).paths), last
        assert values(Path(f"{copy}@1")) == values(Path(f"{copy}@2")) == old and not verify(copy).problems, last
        seen.add((ended.returncode, count == len(open_pack(pack))))
        if count == len(open_pack(pack)):
            assert edit(copy, delete=[0, 6], map=["bee=wasp"]).version == 3
        assert len(versions_of(copy)) == 3 and values(copy) == of_paths(old, open_pack(copy).paths), last
        edit(copy, delete=[0])
        report = verify(copy)
        assert (report.problems, report.unknown_files) == ((), ()), last
        assert values(copy) == of_paths(old, open_pack(copy).paths), last
        shutil.rmtree(copy)
        if ended.returncode == 0:
            break
    assert seen == {(9, True), (9, False), (0, False)}


def test_new_records_have_nothing(pack: Path, tmp_path: Path) -> None:
    """What is added to a pack has no rows: then nothing is carried, and that is said."""
    source = Source(pack)
    taken = [Taken(source, number) for number in range(len(source.manifest.shards))]
    lists, notes = carry(taken[:-1], source.manifest, NewFiles(str(tmp_path)))
    assert not lists and notes[0].endswith(SidecarList.NOT_CARRIED) and not list(tmp_path.glob("sidecar*"))


def test_jpegs_of_versions(indexed: Path, fast: ModuleType) -> None:
    before, pack = indexes_of(indexed), indexed
    edit(pack, delete=[0, 9])
    edit(pack, map=["bee=wasp"])
    made = {version: indexes_of(Path(version)) for version in (f"{pack}@1", f"{pack}@2", f"{pack}@3", str(pack))}
    for version, found in made.items():
        assert found == {path: before[path] for path in open_pack(version).paths} and is_good(version)
    index_jpegs(pack, "4", workers=1)
    assert listed(pack).interval == 4 and is_good(pack)
    for number in (1, 2):
        assert indexes_of(Path(f"{pack}@{number}")) == made[f"{pack}@{number}"] and is_good(f"{pack}@{number}")
    remove_jpeg_index(pack)
    assert read_beside(JpegIndexList, str(pack), read_manifest(pack)) is None
    for number in (1, 2):
        assert indexes_of(Path(f"{pack}@{number}")) == made[f"{pack}@{number}"] and is_good(f"{pack}@{number}")


def test_a_pack_that_is_changed_while_something_is_attached(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packer.repack import attach as attaching

    np.save(tmp_path / "n.npy", np.zeros((len(open_pack(pack)), 2)))
    publish = attaching.publish_sidecars

    def later(*given: Any) -> None:
        edit(pack, delete=[0])
        publish(*given)

    monkeypatch.setattr(attaching, "publish_sidecars", later)
    with pytest.raises(UsageError, match="was changed by another packer meanwhile; run the command again"):
        attach(pack, tmp_path / "n.npy", "zeros")
    assert "zeros" not in values(pack) and [*values(Path(f"{pack}@1"))] == [*values(pack)]
    assert is_good(pack) and is_good(f"{pack}@1")


def test_a_folder_that_has_the_name_of_a_version(pack: Path, tmp_path: Path) -> None:
    """It is another pack: neither a purge nor a pack that is opened again takes it for the version."""
    text = pickle.dumps(open_pack(pack))
    edit(pack, delete=[0])
    wanted = of_paths(values(pack), open_pack(pack).paths)
    shutil.copytree(pack, f"{pack}@1")
    for name in NAMES:
        detach(f"{pack}@1", name)
    purge(pack)
    with pytest.raises(DamagedPack, match="was replaced by another pack"):
        pickle.loads(text)
    shutil.rmtree(f"{pack}@1")
    assert values(Path(f"{pack}@1")) == wanted == values(pack) and is_good(pack) and is_good(f"{pack}@1")
