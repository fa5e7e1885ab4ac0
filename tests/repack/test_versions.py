"""A pack that is changed in place: its versions, what they share, and what a change that dies leaves."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw_classes, draw_voc, tree_state
from packs import MakePack
from running import good, refused

from packer import CenterCrop, PackedLoader, attach, diff, edit, merge, open_pack, repair, split, versions_of
from packer.containers import CONTAINERS
from packer.errors import UsageError
from packer.format.content import content_digest
from packer.format.lists import read_list
from packer.format.manifest import read_manifest
from packer.format.verify import verify
from packer.packing.publish_version import NextVersion


def digest(pack: Path | str) -> str:
    opened = open_pack(pack)
    return content_digest(opened.reader.indexes, opened.manifest)


def built(folder: Path, container: str = "lmdb", *given: Any) -> Path:
    """Three classes of five images, in shards of a few images."""
    draw_classes(folder / "src")
    good("build", folder / "src", "-o", folder / "p", "--format", container, "--shard-size", "3KB", *given)
    return folder / "p"


def images(pack: Path | str) -> list[Any]:
    opened = open_pack(pack)
    return [np.array(opened.image(number)) for number in range(len(opened))]


def is_good(pack: Path | str) -> bool:
    report = verify(pack, deep=True)
    assert (report.problems, report.unknown_files) == ((), ())
    return True


@pytest.mark.parametrize("container", CONTAINERS)
def test_each_edit_is_a_version(tmp_path: Path, container: str) -> None:
    pack = built(tmp_path, container)
    wanted, before, pixels = tree_state(pack), digest(pack), images(pack)
    edit(pack, tmp_path / "mapped", map=["bee=wasp"])
    edit(tmp_path / "mapped", tmp_path / "fewer", delete=[0, 7])
    assert edit(pack, map=["bee=wasp"]).version == 2 and edit(pack, delete=[0, 7]).version == 3
    assert [digest(f"{pack}@{number}") for number in (1, 2, 3)] == [
        before, digest(tmp_path / "mapped"), digest(tmp_path / "fewer")
    ]  # fmt: skip
    assert digest(pack) == digest(tmp_path / "fewer")
    assert all(map(is_good, (pack, f"{pack}@1", f"{pack}@2", f"{pack}@3")))
    now = tree_state(pack)
    kept = {name for name in wanted if not name.endswith((b"pack.json", b"sidecars.json"))}
    assert len(kept) > 2 and all(now[name] == wanted[name] for name in kept)  # no file of version 1 was written again
    assert all(map(np.array_equal, images(f"{pack}@1"), pixels))
    assert read_manifest(f"{pack}@1").digest == read_manifest(tmp_path / "mapped").made_from[0].digest
    containers = [shard.container.name for shard in read_manifest(pack).shards]
    assert containers == [shard.container.name for shard in read_manifest(f"{pack}@1").shards]
    assert [row.path for row in read_list(pack, "skipped")] == [open_pack(f"{pack}@2").paths[n] for n in (0, 7)]
    assert not list(read_list(f"{pack}@2", "skipped"))
    assert not diff(f"{pack}@1", f"{pack}@2").equal and diff(f"{pack}@3", pack).equal


def test_the_log_names_what_made_each_version(tmp_path: Path) -> None:
    pack = built(tmp_path)
    (tmp_path / "marks.txt").write_text("ant/000.jpg\n")
    assert [version.number for version in versions_of(pack)] == [1]
    good("edit", pack, "--map", "bee=wasp")
    edit(pack, tmp_path / "other", map=["wasp=fly"])
    good("edit", pack, "--delete", tmp_path / "marks.txt", "--labels-from", tmp_path / "other")
    facts = json.loads(good("log", pack, "--json").out)["versions"]
    first, second, third = (read_manifest(f"{pack}@{number}").digest for number in (1, 2, 3))
    assert [one["digest"] for one in facts] == [first, second, third]
    assert [one["parents"] for one in facts] == [[], [first], [second, read_manifest(tmp_path / "other").digest]]
    assert [one["records"] for one in facts] == [15, 15, 14]
    assert facts[0]["command"].startswith("packer build SRC ") and facts[1]["command"] == "packer edit p --map bee=wasp"
    assert facts[2]["command"] == "packer edit p --delete marks.txt --labels-from other"  # no folder of this machine
    assert facts[2]["counts"] == {"deleted": 1, "relabelled": 14}
    assert json.loads(good("info", pack, "--json").out)["versions"] == [f"{pack}@{number}" for number in (1, 2, 3)]
    assert f"versions   3: {pack}@1 to {pack}@3" in good("info", pack).out
    told = good("log", pack).out.splitlines()
    assert told[0].startswith(f"{pack}@3: 14 records, 1 deleted, 14 relabelled; 20")


def test_commands_take_a_version(tmp_path: Path) -> None:
    pack = built(tmp_path)
    edit(pack, map=["bee=wasp"])
    good("merge", f"{pack}@1", f"{pack}@2", "-o", tmp_path / "m", "--duplicates", "drop")
    good("convert", f"{pack}@1", tmp_path / "c.hdf5")
    good("split", f"{pack}@1", "--parts", "a=0.5,b=0.5")
    good("edit", f"{pack}@1", "-o", tmp_path / "e", "--map", "ant=emmet")
    good("extract", f"{pack}@1", tmp_path / "files")
    good("build", tmp_path / "src", "--like", f"{pack}@2", "--max-bad", "5", "-o", tmp_path / "l")
    good("push", f"{pack}@1", f"file://{tmp_path}/store/p")
    good("stats", f"{pack}@1", "--against", f"{pack}@2")
    assert digest(tmp_path / "c.hdf5") == digest(tmp_path / "store/p") == digest(f"{pack}@1")
    assert open_pack(tmp_path / "e").classes == ["emmet", "bee", "cat"]
    assert read_manifest(tmp_path / "l").classes == read_manifest(pack).classes
    assert len(open_pack(tmp_path / "p-a")) + len(open_pack(tmp_path / "p-b")) == 15
    for made in ("m", "e", "p-a", "p-b", "l"):
        shutil.rmtree(pack) if made == "m" else None  # they share its files, and need none of its names
        assert is_good(tmp_path / made)


def test_names_of_versions(tmp_path: Path) -> None:
    pack = built(tmp_path)
    assert digest(f"{pack}@1") == digest(pack)  # a pack that was never changed has one
    assert "p@2: has no version 2; packer log" in refused(2, "info", f"{pack}@2")
    edit(pack, map=["bee=wasp"])
    assert "p@7: has no version 7; packer log" in refused(2, "info", f"{pack}@7")
    for asked in (("edit", f"{pack}@1", "--map", "ant=x"), ("log", f"{pack}@1"), ("repair", f"{pack}@1")):
        assert "is a version of a pack, which stays as it is; name the pack" in refused(2, *asked)
    with pytest.raises(UsageError, match="stays as it is"):
        attach(f"{pack}@1", np.zeros((15, 2)), name="code")
    edit(pack, tmp_path / "p@1", map=["ant=emmet"])  # a folder of that name is what it is
    assert "emmet" in open_pack(tmp_path / "p@1").classes
    assert edit(pack, map=["cat=tiger"]).version == 3  # which is no version of the pack beside it
    assert "emmet" not in open_pack(f"{pack}@2").classes and is_good(pack)
    assert not repair(pack).restored


def test_an_open_pack_stays_what_it_was(tmp_path: Path) -> None:
    pack = built(tmp_path)
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "crop": CenterCrop(16)}
    opened, text, wanted = open_pack(pack), pickle.dumps(open_pack(pack)), digest(pack)
    loader = PackedLoader(pack, 4, **options)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    edit(pack, delete=(0, 1), map=["bee=wasp"])
    for one in (opened, pickle.loads(text)):  # its indexes were not opened before
        assert content_digest(one.reader.indexes, one.manifest) == wanted and len([*one]) == 15
    assert len([*batches]) == 3
    with pytest.raises(UsageError, match=r"is of .*p@1, another version of .*p; open .*p@1 to resume"):
        PackedLoader(pack, 4, **options).load_state_dict(state)
    again = PackedLoader(f"{pack}@1", 4, **options)
    again.load_state_dict(state)
    rest = [image for batch in again for image in batch[0]]
    assert len(rest) == 11 and again.state_dict()["pack"] == state["pack"]


def test_one_change_at_a_time(tmp_path: Path) -> None:
    pack = built(tmp_path)
    before = tree_state(pack)
    with NextVersion(pack, "packer edit p"), pytest.raises(UsageError, match="being changed by another packer; wait"):
        edit(pack, map=["bee=wasp"])
    assert tree_state(pack) == before  # nothing is left of a change that was not published
    (pack / "shard-00001.v2.index.arrow").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"v2.index.arrow: is in the way"):
        edit(pack, delete=range(4, 8))
    assert (pack / "shard-00001.v2.index.arrow").read_bytes() == b"mine" and digest(pack) == digest(f"{pack}@1")


def test_records_by_number(tmp_path: Path) -> None:
    pack = built(tmp_path)
    numbers: tuple[tuple[int, Any], ...] = ((14, (1,)), (13, [0]), (11, np.array([0, 5])), (10, {2}))
    for count, deleted in numbers:
        edit(pack, delete=deleted)
        assert len(open_pack(pack)) == count
    assert versions_of(pack)[3].made.command == "packer edit p --delete '2 records'"
    edit(pack, delete=open_pack(pack).where(label="cat"))
    assert set(open_pack(pack).column("label").tolist()) == {0, 1}


def test_a_refused_edit_leaves_nothing(tmp_path: Path) -> None:
    pack = built(tmp_path)
    before = tree_state(pack)
    for given in ({"map": ["dog=wolf"]}, {"delete": range(15)}, {"delete": [99]}):
        with pytest.raises(UsageError):
            edit(pack, **given)
        assert tree_state(pack) == before


DIES = """
import os, sys
from packer import edit
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.fsync", "os.truncate"}
seen, last = 0, int(sys.argv[2])
def hook(event, args):
    global seen
    if event in EVENTS and str(sys.argv[1]) in str(args[0]):
        seen += 1
        if seen == last:
            os._exit(9)
sys.addaudithook(hook)
edit(sys.argv[1], delete=[0, 6], map=["bee=wasp"])
"""


def test_the_pack_is_old_or_new_wherever_an_edit_dies(tmp_path: Path) -> None:
    source, new = built(tmp_path), tmp_path / "new"
    edit(source, map=["cat=tiger"])
    edit(source, new, delete=[0, 6], map=["bee=wasp"])
    digests, seen = (digest(source), digest(new)), set()
    for last in range(1, 1000):
        pack = tmp_path / f"k{last}"
        subprocess.run(["cp", "-al", source, pack], check=True)
        (pack / "pack.json").unlink()
        shutil.copy(source / "pack.json", pack)
        command = [sys.executable, "-c", DIES, pack, str(last)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode in (0, 9), ended.stderr
        found = digests.index(digest(pack))
        assert not verify(pack).problems and not verify(f"{pack}@1").problems, last
        seen.add((ended.returncode, found))
        if not found:
            assert edit(pack, delete=[0, 6], map=["bee=wasp"]).version == 3 and digest(pack) == digests[1]
        assert is_good(pack) and len(versions_of(pack)) == 3
        names = sorted(os.listdir(pack / "versions"))
        if ended.returncode == 0 or not found:
            assert {*names} - {".lock"} == {"1", "2", "3"}, last
        shutil.rmtree(pack)
        if ended.returncode == 0:
            break
    # when the new pack.json is in its place, the list of the fingerprints follows
    assert seen == {(9, 0), (9, 1), (0, 1)} and last > 30


def test_voc_boxes_and_lists(tmp_path: Path) -> None:
    """Changed and rejected inputs are lists of each version; those that stay are not written again."""
    draw_voc(tmp_path / "src")
    (tmp_path / "src/JPEGImages/bad.jpg").write_bytes(b"not an image")
    good("build", tmp_path / "src", "-o", tmp_path / "p.hdf5", "--max-bad", "9", "--missing-labels", "skip")
    pack = tmp_path / "p.hdf5"
    rejected = [row.path for row in read_list(pack, "rejected")]
    edit(pack, delete=[1])
    edit(pack, delete=[2])
    assert rejected and [row.path for row in read_list(pack, "rejected")] == rejected
    lists = {number: read_manifest(f"{pack}@{number}").lists for number in (1, 2, 3)}
    assert lists[1]["rejected"] == lists[2]["rejected"] == lists[3]["rejected"]
    assert lists[2]["skipped"].name == "skipped.v2.tsv" and lists[3]["skipped"].name == "skipped.v3.tsv"
    assert is_good(pack) and is_good(f"{pack}@2")


def test_parts_of_versions_are_split_and_merged(make_pack: MakePack, tmp_path: Path) -> None:
    pack = Path(shutil.copytree(make_pack("classes", "webdataset"), tmp_path / "p"))
    edit(pack, delete=[0])
    split(f"{pack}@1", "a=0.5,b=0.5", tmp_path)
    merge([tmp_path / "p-a", tmp_path / "p-b"], tmp_path / "m")
    assert len(open_pack(tmp_path / "m")) == len(open_pack(f"{pack}@1"))
