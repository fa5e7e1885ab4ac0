"""`packer hash --by-path`: neither keys nor order, shards or ids of classes count, and everything else does."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from packs import CLASSES, MakePack, noise
from PIL import Image
from running import good

from packer import BuildOptions, PackWriter, build_pack, convert, edit, merge, open_pack
from packer.format.checksums import crc32c_after
from packer.format.content_by_path import content_digest_by_path, deep_digest_by_path

NAMES = ("ant", "büg", "cat", "Dog")
PARTS = {"said": "text", "depth": "map", "never": "json"}
Records = list[dict[str, Any]]


def digests(pack: Path) -> tuple[str, str]:
    """By the indexes, and by all bytes."""
    opened = open_pack(pack)
    return content_digest_by_path(opened.reader.indexes, opened.manifest), deep_digest_by_path(opened)


def drawn(seed: int = 0) -> Records:
    """Records with everything, without some of it, and with nothing."""
    found: Records = []
    for i in range(12):
        boxes = [[k, k + 1, k + 4.5, 9] for k in range(i % 4)]
        given = {
            "label": NAMES[i % 3], "boxes": boxes, "box_labels": [NAMES[(i + k) % 4] for k in range(len(boxes))],
            "polygons": [[[1, 2], [3, 4], [5, k]][: 3 * (k % 2)] for k in range(len(boxes))],
            "extras": {"n": i} if i % 2 else None, "value": [i / 3, 1] if i % 3 else None,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not None} if i % 5 else {}
        parts = {"said": f"Nr. {i}", "depth": noise(i + 40, 10, 12, 1, "uint16")[..., 0]}
        parts = {name: part for name, part in parts.items() if i % 4 or name == "depth"}
        found.append({"image": noise(i + seed, 10, 12), "path": f"{'ab'[i % 2]}/{i // 2}.png", "parts": parts, **given})
    return found


def write(out: Path, records: Records, classes: Sequence[str] = NAMES, shard_bytes: int = 1000) -> Path:
    ids = {name: number for number, name in enumerate(classes)}
    with PackWriter(out, classes=classes, shard_bytes=shard_bytes, parts=PARTS) as writer:
        for one in records:
            numbers = {"box_labels": [ids[name] for name in one["box_labels"]]} if "box_labels" in one else {}
            writer.write(**{**one, **numbers})
    return out


@pytest.mark.parametrize("seed", range(4))
def test_no_order_counts(seed: int, tmp_path: Path) -> None:
    """Any order of records, classes and shards, in any container, with classes that no record has."""
    rng, records, classes = random.Random(seed), drawn(), [*NAMES, "unused", "An unused one"]
    first = write(tmp_path / "first", records)
    rng.shuffle(records)
    rng.shuffle(classes)
    format = rng.choice([".hdf5", ".tar", ".lmdb"])
    other = write(tmp_path / f"other{format}", records, classes, rng.choice([400, 1500, 10**6]))
    assert open_pack(first).keys != open_pack(other).keys or open_pack(first).paths != open_pack(other).paths
    assert digests(first) == digests(other)


def changed(index: int, **fields: Any) -> Callable[[Records], None]:
    return lambda records: records[index].update(fields)


CHANGES: dict[str, Callable[[Records], None]] = {
    "pixel": lambda records: np.add.at(records[3]["image"], (2, 2, 2), 1),
    "part": lambda records: np.add.at(records[3]["parts"]["depth"], (2, 2), 1),
    "text": lambda records: records[3]["parts"].update(said="Nr. 4"),
    "no part": lambda records: records[3]["parts"].pop("said"),
    "path": changed(3, path="b/1.jpg"),
    "label": changed(3, label="Dog"),
    "no label": lambda records: records[3].pop("label"),
    "boxes": changed(3, boxes=[[0, 1, 4.5, 9], [1, 2, 5.5, 9], [2, 3, 6.5, 9.5]]),
    "class of a box": changed(3, box_labels=["Dog", "ant", "ant"]),
    "polygons": changed(3, polygons=[[], [[1, 2], [3, 4], [5, 1.5]], []]),
    "extras": changed(3, extras={"n": 3.5}),
    "value": changed(4, value=[4 / 3, 2]),
    "no boxes": lambda records: [records[1].pop(name) for name in ("boxes", "box_labels", "polygons")],
    "another": lambda records: records.append({**records[0], "path": "c"}),
    "fewer": lambda records: records.pop(),
    "pixels of two": lambda records: exchange(records, "image"),
    "paths of two": lambda records: exchange(records, "path"),
    "parts of two": lambda records: exchange(records, "parts"),
}


def exchange(records: Records, name: str) -> None:
    records[1][name], records[2][name] = records[2][name], records[1][name]


def test_any_change_shows(tmp_path: Path) -> None:
    found = {"none": digests(write(tmp_path / "none", drawn()))}
    for name, change in CHANGES.items():
        change(records := drawn())
        found[name] = digests(write(tmp_path / name, records))
    renamed = [{**one, **({"label": "eel"} if one.get("label") == "ant" else {})} for one in drawn()]
    for given in renamed:
        if "box_labels" in given:
            given["box_labels"] = [{"ant": "eel"}.get(name, name) for name in given["box_labels"]]
    found["class"] = digests(write(tmp_path / "class", renamed, ("eel", *NAMES[1:])))
    for kind in zip(*found.values(), strict=True):
        assert len({*kind}) == len(found)


def test_records_of_one_path(tmp_path: Path) -> None:
    """Merged packs may have records of equal paths, even of equal images: only their order does not count."""
    packs = [write(tmp_path / name, drawn()) for name in ("a", "b")]
    records = drawn()
    for one in records[1:5]:
        one.pop("label")
    packs.append(write(tmp_path / "c", records))
    packs.append(write(tmp_path / "d", drawn(seed=5)))
    found = set()
    for number, some in enumerate(itertools.islice(itertools.permutations(packs), 0, None, 5)):
        merge(list(some), tmp_path / f"merged{number}")
        found.add(digests(tmp_path / f"merged{number}"))
    assert len(found) == 1
    records[6].pop("label")
    write(tmp_path / "e", records)
    merge([*packs[:2], tmp_path / "e", packs[3]], tmp_path / "other")
    assert not {*digests(tmp_path / "other")} & {*found.pop()}


def draw_folder(root: Path, takes: Callable[[int, int], bool] = lambda c, i: True) -> Path:
    for c, name in enumerate((*CLASSES, "dog")):
        for i in range(4):
            if takes(c, i):
                (root / name).mkdir(parents=True, exist_ok=True)
                Image.fromarray(noise(8 * c + i, 10, 12)).save(root / name / f"{i}.png")
    return root


def build(source: Path, out: Path, **options: Any) -> Path:
    build_pack(BuildOptions(str(source), str(out), workers=1, **options))
    return out


def test_a_merged_pack_is_one_of_all_sources(tmp_path: Path) -> None:
    whole = build(draw_folder(tmp_path / "source"), tmp_path / "whole")
    packs = [
        build(draw_folder(tmp_path / f"{name}-source", takes), tmp_path / name)
        for name, takes in {
            "b": lambda c, i: c > 2 or (c, i) == (0, 1),
            "a": lambda c, i: c < 3 and (c, i) != (0, 1),
        }.items()
    ]
    merge(packs, tmp_path / "merged")
    assert open_pack(tmp_path / "merged").classes != open_pack(whole).classes
    assert digests(tmp_path / "merged") == digests(whole)
    convert(tmp_path / "merged", tmp_path / "merged.hdf5", shard_bytes=2000)
    assert digests(tmp_path / "merged.hdf5") == digests(whole)


def test_what_is_no_more_does_not_count(tmp_path: Path) -> None:
    """The pack without the images of a class still has the class; a build without its folder has not."""
    source = draw_folder(tmp_path / "source")
    whole = build(source, tmp_path / "whole")
    (tmp_path / "gone.txt").write_text("bee/*\ncat/3.png\n")
    edit(whole, tmp_path / "less", delete=tmp_path / "gone.txt")
    for path in (*(source / "bee").iterdir(), source / "cat/3.png"):
        path.unlink()
    (source / "bee").rmdir()
    assert digests(tmp_path / "less") == digests(build(source, tmp_path / "again")) != digests(whole)


def test_tags_are_known_by_name(tmp_path: Path) -> None:
    source = draw_folder(tmp_path / "source")
    rows = {"ant/0.png": "ab", "bee/1.png": "", "dog/3.png": "b", "cat/2.png": "c"}
    found = []
    for number, tags in enumerate(["abc", "cab", "czba", "bac", "abc"]):
        path = tmp_path / f"{number}.csv"
        lines = (",".join([name, *(str(int(tag in its)) for tag in tags)]) for name, its in rows.items())
        path.write_text("\n".join([",".join(["path", *tags]), *lines]) + "\n")
        rows["bee/1.png"] = "c" * (number >= 3)  # of the last
        labels = {"labels": (f"list:{path}",), "columns": (f"path tag*{len(tags)}",), "missing_labels": "skip"}
        found.append(digests(build(source, tmp_path / str(number), **labels)))
    assert found[0] == found[1] == found[2] == found[3] != found[4]
    assert open_pack(tmp_path / "2").manifest.tags == tuple("czba")


def test_checksums_of_ends() -> None:
    rng = np.random.default_rng(3)
    texts = [(rng.bytes(int(a)), rng.bytes(int(b))) for a, b in rng.integers(0, 5000, (60, 2))]
    texts += [(b"", b""), (b"k", b""), (b"", b"x"), (b"key", bytes(1 << 20)), (b"key", rng.bytes((1 << 20) - 1))]
    begins, wholes = (np.array([crc32c(text) for text in some], np.uint32) for some in
                      ((a for a, _ in texts), (a + b for a, b in texts)))  # fmt: skip
    sizes = np.array([len(b) for _, b in texts])
    assert crc32c_after(begins, wholes, sizes).tolist() == [crc32c(b) for _, b in texts]


def test_commands(make_pack: MakePack) -> None:
    pack = make_pack("boxes", "hdf5")
    shallow, deep = digests(pack)
    assert good("hash", pack, "--by-path").out == f"{shallow}  {pack}\n"
    assert good("hash", pack, "--by-path", "--deep").out == f"{deep}  {pack}\n"
    said = json.loads(good("hash", os.fspath(pack), "--by-path", "--json").out)
    assert (said["by_path"], said["deep"], said["content"]) == (True, False, shallow)
