"""What docs/versioning.md promises to scripts: the members of each command's ``--json``, and the exit codes.

A member is never removed or renamed; new ones may come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw_classes, draw_plain
from running import Ran, run

from packer import errors
from packer.bench import demo as making
from packer.bench.report import Job, Row
from packer.cli import error_reports
from packer.cli.group import cli

JSON: dict[str, tuple[tuple[str, ...], str]] = {
    "sample": (("drawn", "--count", "4"), "path images classes layout"),
    "build": (
        ("src", "-o", "p.webdataset", "--workers", "1"),
        "path classes counts bytes seconds images_per_s rejected quarantine notes class_changes",
    ),
    "build --dry-run": (
        ("src", "-o", "q.lmdb"),
        "path images found rejected skipped changed classes labels boxes landmarks values fields shards pack_bytes "
        "source_bytes free_bytes quarantine notes warnings class_changes",
    ),
    "info": (
        ("p.webdataset",),
        "path container encoding mode dtype shape classes class_counts tags fields records counts options shards bytes "
        "rejected notes flip_index lists parts masks pixels linked companions made_from sidecars missing packer "
        "libraries version versions content command",
    ),
    "verify": (("p.webdataset",), "path good records files bytes problems unknown_files"),
    "hash": (("p.webdataset",), "path content deep records"),
    "stats": (
        ("p.webdataset",),
        "path records sizes padded channels classes boxes landmarks keypoints instances masks parts values duplicates "
        "leaks other_ids",
    ),
    "stats --problems": (("p.webdataset",), "packs records problems notes"),
    "diff": (
        ("p.webdataset", "p.webdataset"),
        "a b equal classes records only_a only_b moved labels pixels psnr other_bytes options parts",
    ),
    "adopt": (
        ("p.webdataset/shard-00000.tar", "-o", "adopted", "--missing-labels", "empty"),
        "path container classes counts bytes linked_bytes rejected notes seconds class_changes",
    ),
    "convert": (
        ("p.webdataset", "c.lmdb"),
        "path container encoding records shards bytes seconds rejected skipped class_changes",
    ),
    "merge": (
        ("p.webdataset", "c.webdataset", "-o", "m"),
        "path records counts classes shards relabelled duplicates class_changes made_from notes seconds",
    ),
    "edit": (
        ("p.webdataset", "-o", "e", "--delete", "some.txt"),
        "path version records counts classes shards indexes deleted left_out relabelled class_changes notes seconds",
    ),
    "update": (
        ("p.webdataset", "src"),
        "path source version new changed removed rejected shards compacted dry_run records counts classes notes "
        "seconds",
    ),
    "log": (("p.webdataset",), "path versions"),
    "purge": (
        ("p.webdataset", "--dry-run"),
        "path version records bytes shards of_shards written_bytes versions files remains complete notes dry_run "
        "seconds",
    ),
    "split": (("p.webdataset", "--parts", "a=0.5,b=0.5"), "path parts notes seconds"),
    "extract": (("p.webdataset", "files"), "path layout images build lost renamed notes seconds"),
    "attach": (
        ("p.webdataset", "code.npy", "--as", "code"),
        "path name kind dtype shape text records bytes joined notes seconds",
    ),
    "detach": (("p.webdataset", "code"), "path name bytes"),
    "repair": (("p.webdataset",), "path out restored remade records lost lost_records notes"),
    "push": (("p.webdataset", "URL"), "url digest files bytes sent linked seconds"),
    "pull": (("URL", "pulled"), "url path records files bytes resumed seconds"),
    "clean": (("URL",), "url objects removed recent unknown"),
    "cache": (("--cache-dir", "cache"), "cache packs"),
    "view": (("p.webdataset", "--export", "page.html"), "path of records"),
    "completion": (("bash",), "shell done files script"),
}
"""A command, what it is given, and the members of its object. Later commands use what earlier ones have made."""
OTHERS = {"bench", "demo", "doctor", "index"}
"""Commands that have tests of their own below."""
MEASURED = "what path settings machine rows answer conclusion reasons reliable command notes"
ERROR = "error where problem next_step exit_code reasons rejected pack shard key"


def members(ran: Ran) -> set[str]:
    assert ran.code == 0, ran.err
    return {*json.loads(ran.out)}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ran]]:
    """What each command has said."""
    home, found = tmp_path_factory.mktemp("json"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        draw_plain(home / "src", 6)
        np.save("code.npy", np.zeros((6, 2), np.float32))
        (home / "some.txt").write_text("*0.jpg\n")
        for name, (given, _) in JSON.items():
            if name == "merge":
                assert run("convert", "p.webdataset", "c.webdataset").code == 0
            words = [f"file://{home}/store/p" if word == "URL" else word for word in given]
            found[name] = run(*name.split(), *words, "--json")
        yield found


@pytest.mark.parametrize("name", JSON)
def test_members_of_json(name: str, ran: dict[str, Ran]) -> None:
    assert members(ran[name]) >= {*JSON[name][1].split()}


@pytest.mark.slow
def test_members_of_json_of_a_machine() -> None:
    wanted = "packer python system processor cores usable_cores memory_bytes available_bytes load gpu disks libraries"
    assert members(run("doctor", "--json")) >= {*wanted.split(), "decoders", "extras", "advice"}


def test_members_of_json_of_a_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("the folder", Job("folder-pil", (8, 8), 1, 1, 1.0), 1.0, left_out="not measured here")
    monkeypatch.setattr(making, "before_and_after", lambda made, progress: [row])
    source = draw_plain(tmp_path / "src", 6)
    found = members(run("demo", source, "--out", tmp_path / "out", "--json"))
    wanted = "folder seed pack images files_bytes pack_bytes build_s images_per_s steps load_before cores"
    assert found >= {*wanted.split()}


@pytest.mark.slow
def test_members_of_json_of_a_measurement(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 24)
    assert run("build", tmp_path / "src", "-o", tmp_path / "p", "--resize", "32x32").code == 0
    assert members(run("bench", tmp_path / "p", "--seconds", "0.1", "--json")) >= {*MEASURED.split()}


def test_members_of_json_of_an_index(tmp_path: Path) -> None:
    pytest.importorskip("packer_fast", reason="only packer-fast makes an index of JPEGs")
    draw_plain(tmp_path / "src", 3)
    assert run("build", tmp_path / "src", "-o", tmp_path / "p", "--encode", "jpeg").code == 0
    wanted = "path interval records indexed without bytes share kept ms_per_image seconds"
    assert members(run("index", tmp_path / "p", "--json")) >= {*wanted.split()}


def test_every_command_with_json_is_here() -> None:
    commands: dict[str, Any] = {name: cli.get_command(None, name) for name in cli.list_commands(None)}  # type: ignore
    with_json = {name for name, command in commands.items() if any("--json" in one.opts for one in command.params)}
    assert with_json == {name.split()[0] for name in JSON} | OTHERS


def test_members_of_an_error(tmp_path: Path) -> None:
    assert {*json.loads(run("info", tmp_path / "absent", "--json").out)} >= {*ERROR.split()}


def test_exit_codes() -> None:
    """`tests/test_cli_contract.py` sees them."""
    found = {one.__name__: one.exit_code for one in vars(errors).values() if hasattr(one, "exit_code")}
    assert found.items() >= {
        "PackerError": 1, "BadInput": 1, "TooManyBad": 1, "UsageError": 2, "PackNotFound": 2, "StorageError": 3,
        "WorkerDied": 3, "DamagedPack": 4,
    }.items()  # fmt: skip
    assert (errors.EXIT_OK, errors.EXIT_DIFFERENT, errors.EXIT_INTERRUPTED, error_reports.EXIT_BUG) == (0, 1, 130, 70)


@pytest.mark.parametrize(
    ("files", "options", "classes"),
    [
        ({}, (), ["Zebra", "ant", "bee", "élan"]),  # by byte
        (
            {"names.txt": "bee\nant\nélan\nZebra\ncat\n"},
            ("--classes", "names.txt"),
            ["bee", "ant", "élan", "Zebra", "cat"],
        ),
        ({"l.csv": "path,label\n0.jpg,bee\n1.jpg,Ant\n"}, ("--labels", "list:l.csv"), ["Ant", "bee"]),
        ({"l.csv": "path,label\n0.jpg,2\n1.jpg,0\n"}, ("--labels", "list:l.csv"), ["0", "1", "2"]),
        ({"src/classes.txt": "bee\nant\n", "src/0.txt": "1 0.5 0.5 0.2 0.2\n"}, ("--labels", "yolo"), ["bee", "ant"]),
    ],
    ids=["folders", "file", "names", "numbers", "yolo"],
)
def test_class_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], options: tuple[str, ...], classes: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "yolo" in options or "list:l.csv" in options:
        draw_plain(tmp_path / "src", 2)
        for old, new in (("000.jpg", "0.jpg"), ("001.jpg", "1.jpg")):
            (tmp_path / "src" / old).rename(tmp_path / "src" / new)
    else:
        draw_classes(tmp_path / "src", classes=("bee", "Zebra", "élan", "ant"), each=1)
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    ran = run("build", "src", "-o", "p", "--missing-labels", "empty", *options, "--json")
    assert ran.code == 0 and json.loads(ran.out)["classes"] == classes, ran.err
