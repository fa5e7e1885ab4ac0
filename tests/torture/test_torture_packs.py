"""Packs with flipped bits, cut files, exchanged blocks: `verify` finds all; readers raise, or read what was packed."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packs import WIDE
from PIL import Image
from torture_hostile import COMMANDS, attack, home_of_pens

from packer import BuildOptions, build_pack, open_pack
from packer.errors import PackerError
from packer.format.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

FIELDS = ("label", "boxes", "box_labels", "landmarks", "polygons", "keypoints", "box_fields", "extras")
COLUMNS = ("key", "path", "source_xxh3", "height", "width", "channels", "dtype", "encoding", *FIELDS)
BLOCKS = (1, 512, 4096)
NEW = {"zeros": b"\0", "ones": b"\xff"}
Case = tuple[Any, ...]


@dataclass(frozen=True)
class Packed:
    """A good pack, what it holds, the bytes of its files, and where its images lie in them."""

    folder: Path
    content: object
    files: dict[str, bytes]
    images: list[tuple[str, int, int]]

    def must_raise(self, kind: str, file: str, *place: Any) -> bool:
        """Whether a reader must notice: pixels, labels, index or manifest are changed, or a file has another size."""
        if kind != "flip":
            return kind in ("cut", "append", "images", "rename", "folder")
        of_container = any(name == file for name, _, _ in self.images)
        return not of_container or any(name == file and start <= place[0] < stop for name, start, stop in self.images)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory):
    """Five images of 4x4 pixels with a label, a box, an extra, a mask and a text, in two shards, by container."""
    home = tmp_path_factory.mktemp("damaged")
    dice = np.random.default_rng(0)
    for name in ("source", "masks", "said"):
        (home / name).mkdir()
    lines = ["path,label,xmin,ymin,xmax,ymax,text"]
    for number in range(5):
        Image.fromarray(dice.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(home / "source" / f"{number}.png")
        Image.fromarray(dice.integers(0, 9, (4, 4), dtype=np.uint8)).save(home / "masks" / f"{number}.png")
        (home / "said" / f"{number}.txt").write_text(f"number {number}")
        lines.append(f"{number}.png,{'ab'[number % 2]},0.{number},1.25,2.5,3.0,night {number}")
    (home / "source" / "labels.csv").write_text("\n".join(lines) + "\n")

    @cache
    def of(container: str) -> Packed:
        folder = home / f"pack.{container}"
        labels = (f"list:{home / 'source' / 'labels.csv'}",)
        source = str(home / "source")
        parts: dict[str, Any] = {"mask": "../masks", "part": ("said=../said:text",)}
        build_pack(BuildOptions(source, str(folder), container, workers=1, shard_bytes=150, labels=labels, **parts))
        pack = open_pack(folder)
        images = []
        for i in range(len(pack)):
            shard, _ = pack.reader.locate(i)
            for name in ("image", *pack.manifest.parts):
                start, stop = (place - int(pack.reader._starts[shard]) for place in pack.reader.span(i, name))
                images.append((pack.reader.shards[shard].container.name, start, stop))
        return Packed(folder, read_all(folder), {p.name: p.read_bytes() for p in sorted(folder.iterdir())}, images)

    return of


def read_all(folder: Path) -> object:
    """Every byte and every number that a reader can ask for."""
    pack = open_pack(folder)
    records = []
    for i in range(len(pack)):
        image, annotation = pack.image(i), pack.annotation(i)
        values = [_plain(getattr(annotation, name)) for name in FIELDS]
        parts = [_plain(pack.part(i, name)) for name in pack.manifest.parts]
        records.append((pack.key(i), image.tobytes(), image.shape, repr(values), repr(parts)))
    columns = [(name, repr([_plain(row) for row in pack.column(name)])) for name in COLUMNS]
    beside = [_plain(pack.sidecar(name).read(np.arange(len(pack)))) for name in pack.sidecars]
    return records, columns, pack.classes, pack.paths, beside


def _plain(value: Any) -> object:
    """A value that `repr` shows in full."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) or hasattr(value, "offsets") else value


def flips(pack: Packed) -> Iterator[Case]:
    """Every bit of every file."""
    for name, data in pack.files.items():
        yield from (("flip", name, byte, bit) for byte in range(len(data)) for bit in range(8))


def truncations(pack: Packed) -> Iterator[Case]:
    """Every length of every file, and bytes behind its end."""
    for name, data in pack.files.items():
        yield from (("cut", name, size) for size in range(len(data)))
        yield from (("append", name, byte, count) for byte in (0, 10, 120) for count in (1, 4096))


def changes(pack: Packed) -> Iterator[Case]:
    """Blocks overwritten or copied; images exchanged; files exchanged, renamed, copied, replaced by a folder."""
    for name, data in pack.files.items():
        for size in BLOCKS:
            for place in range(0, len(data), size if size > 1 else 50):
                yield from (("block", name, place, size, new) for new in (*NEW, (place * 7919) % len(data)))
        yield from (("exchange", name, other) for other in pack.files if name < other)
        yield from ((kind, name) for kind in ("rename", "folder"))
        if name != "pack.json":
            yield "extra", name
    for a in range(len(pack.images)):
        for b in range(a):
            yield "images", pack.images[a][0], a, b


def damage(copy: Path, pack: Packed, kind: str, file: str, *how: Any) -> bool:
    """Damage a copy of the pack. Returns False if that changes nothing."""
    path, data = copy / file, bytearray(pack.files[file])
    match kind, how:
        case "flip", (byte, bit):
            data[byte] ^= 1 << bit
        case "cut", (size,):
            del data[size:]
        case "append", (byte, count):
            data += bytes([byte]) * count
        case "block", (place, size, new):
            size = min(size, len(data) - place)
            block = NEW[new] * size if isinstance(new, str) else pack.files[file][new : new + size]
            data[place : place + len(block)] = block
        case "images", (a, b):
            (first, *one), (second, *two) = pack.images[a], pack.images[b]
            if first != second or one[1] - one[0] != two[1] - two[0]:
                return False
            data[slice(*one)], data[slice(*two)] = data[slice(*two)], data[slice(*one)]
        case "exchange", (other,):
            data[:] = pack.files[other]
            (copy / other).unlink()
            (copy / other).write_bytes(pack.files[file])
        case "extra", ():
            shutil.copy(path, copy / "shard-99999.x")
            return True
    path.unlink()  # the next file has another inode: a map of this one may still be there
    if kind == "folder":
        path.mkdir()
    else:
        (copy / f"x{file}" if kind == "rename" else path).write_bytes(data)
    return kind in ("rename", "folder") or bytes(data) != pack.files[file]


def put_back(copy: Path, pack: Packed) -> None:
    """Undo all damage."""
    for path in copy.iterdir():
        if path.name not in pack.files or path.is_dir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, data in pack.files.items():
        path = copy / name
        if not path.exists() or path.read_bytes() != data:
            path.unlink(missing_ok=True)
            path.write_bytes(data)


@pytest.mark.parametrize("container", WIDE)
@pytest.mark.parametrize(("cases", "few"), [(flips, 40), (truncations, 20), (changes, 40)])
def test_damage(cases, few: int, container: str, packed, torture, tmp_path: Path) -> None:
    pack = packed(container)
    copy = tmp_path / "pack"
    shutil.copytree(pack.folder, copy)

    def run(*case: Any) -> str:
        put_back(copy, pack)
        if not damage(copy, pack, *case):
            return "no damage"
        with suppress(PackerError):
            assert verify(copy).problems, "verify says that the pack is good"
        try:
            read = read_all(copy)
        except PackerError:
            return "read as an error"
        assert read == pack.content, "a reader gets something else than what was packed"
        assert not pack.must_raise(*case), "a reader notices nothing"
        return "read as packed"

    outcomes = torture.each(list(cases(pack)), run, few, apart=True)
    assert not torture.sliced or outcomes["read as an error"] > few // 6
    assert os.path.isdir(copy)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of the packs that are made hostile: of all containers, fields and encodings."""
    importlib.import_module("torch")  # here, not again in each child process
    tagged = tmp_path_factory.mktemp("tagged")
    for i in range(4):
        Image.fromarray(np.full((8, 9, 3), 40 * i, np.uint8)).save(tagged / f"{i}.png")
    (tagged / "list.csv").write_text("path,sun,sea\n" + "".join(f"{i}.png,{i % 2},{i // 2}\n" for i in range(4)))
    options = BuildOptions(
        str(tagged), str(tagged.parent / "tagged.lmdb"), labels=(f"list:{tagged / 'list.csv'}",), workers=1
    )
    build_pack(options)
    golden = Path(__file__).resolve().parents[1] / "golden" / "0.2.0"
    folders = {path.parent.name: path.parent for path in sorted(golden.glob("*/pack.json"))}
    folders["tags"] = tagged.parent / "tagged.lmdb"
    return {
        name: {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        for name, folder in folders.items()
    }


def test_hostile_packs(torture: Any, bases: dict[str, dict[str, bytes]]) -> None:
    """Columns and manifest changed, with right digests: each command does its work or says what is wrong."""

    with home_of_pens() as home:

        def run(base: str, command: str) -> str:
            return attack(home, bases[base], command, f"{base} {command} {torture.seed}")

        torture.each([(base, command) for base in bases for command in COMMANDS], run, few=12, apart=True)


def test_uses_of_hostile_packs_take_good_ones(
    bases: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would end at their own command line, whatever is in the pack."""
    monkeypatch.setattr("torture_hostile.mutate", lambda files, dice: files)
    monkeypatch.setattr("torture_hostile._pens", {})
    uses = COMMANDS.keys() - {"index"}  # the indexer is hidden from tests that are not its own
    with home_of_pens() as home:
        outcomes = {use: attack(home, bases["webdataset-jpeg"], use, "0") for use in uses}
    assert {use: outcome for use, outcome in outcomes.items() if outcome != "exit 0"} == {}
