"""A package of somebody else's adds one of each: that of docs/extending.md, installed and used."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import struct
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from doc_blocks import ROOT
from drawn import draw

import packer.containers.container
import packer.sources.source
from packer.containers import CONTAINERS, container_names, open_container
from packer.errors import UsageError
from packer.model.annotation import RawAnnotation
from packer.sources import open_source
from packer.sources.source import SourceOptions
from packer.sources.tree import find_tree
from packer.system.registry import Registry, _entry_points

PAGE = (ROOT / "docs" / "extending.md").read_text()


def titled(name: str) -> str:
    """The code block of the page with this title."""
    return PAGE.split(f'title="{name}"\n', 1)[1].split("\n```", 1)[0] + "\n"


def write_package(home: Path) -> None:
    for name in ("pyproject.toml", *re.findall(r'title="(packer_\w+\.py)"', PAGE)):
        (home / name).write_text(titled(name))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH into which pip has installed the package."""
    home, target = tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("site")
    write_package(home)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(home)], check=True, env=environment(), cwd=home)
    return target


def environment(*folders: Path) -> dict[str, str]:
    path = os.pathsep.join(map(str, (ROOT, *folders)))
    return {**os.environ, "PYTHONPATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}


def python(installed: Path, home: Path, program: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(
        command, cwd=home, env=environment(installed), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(installed: Path, home: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "packer", *words],
        cwd=home, env=environment(installed), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def draw_named(home: Path) -> None:
    (home / "named").mkdir()
    for i in range(6):
        draw(home / "named" / f"{('ant', 'bee')[i % 2]}_{i}.jpg", i)


def test_a_pack_of_somebody_elses_names(installed: Path, tmp_path: Path) -> None:
    draw_named(tmp_path)
    build = ("build", "named", "--labels", "prefix", "--resize", "32x32", "--shard-size", "6KB")
    run(installed, tmp_path, *build, "--format", "plain", "--workers", "2")
    assert sorted(p.name for p in (tmp_path / "named.plain").glob("*.plain")) == [
        "shard-00000.plain",
        "shard-00001.plain",
        "shard-00002.plain",
    ]
    said = python(
        installed,
        tmp_path,
        """
        from packer import PackedDataset
        from packer.__main__ import main

        for line in (
            "build named --labels prefix --quiet -o by_extension.plain --workers 1",
            "verify named.plain --quiet",
            "verify named.plain --quiet --deep",
            "info by_extension.plain --json",
        ):
            assert main(line.split()) == 0, line
        print([int(PackedDataset("named.plain")[i][1]) for i in range(6)])
        """,
    )
    info, labels = said.splitlines()
    assert json.loads(info)["container"] == "plain" and json.loads(info)["classes"] == ["ant", "bee"]
    assert labels == "[0, 0, 0, 1, 1, 1]"
    run(installed, tmp_path, "extract", "named.plain", "again", "--layout", "prefix")
    assert [path.name for path in sorted((tmp_path / "again").glob("*_*"))] == [
        f"{'ant' if i < 3 else 'bee'}_{2 * (i % 3) + i // 3}.png" for i in range(6)
    ]
    refused = run(installed, tmp_path, "extract", "named.plain", "no", "--layout", "suffix", code=2)
    assert "must be one of folder, voc, yolo, dota, coco, list, masks, prefix; got suffix" in refused
    # a pack is read and described without the package that wrote it; only its container file is not looked into
    assert json.loads(run(tmp_path, tmp_path, "info", "named.plain", "--json"))["container"] == "plain"


def test_files_of_somebody_elses_format(installed: Path, tmp_path: Path) -> None:
    draw_named(tmp_path)
    images = [path.read_bytes() for path in sorted((tmp_path / "named").iterdir())]
    rows = [struct.pack("<BI", i // 3, len(image)) + image for i, image in enumerate(images)]
    (tmp_path / "six.rows").write_bytes(b"ROWS" + b"".join(rows))
    run(installed, tmp_path, "adopt", "six.rows", "-o", "six")
    about = json.loads(run(tmp_path, tmp_path, "info", "six", "--json"))
    assert (about["container"], about["records"]) == ("rows", 6)
    run(tmp_path, tmp_path, "verify", "six", "--deep", "--quiet")
    assert "rows has no role label" in run(
        installed, tmp_path, "adopt", "six.rows", "-o", "no", "--columns", "label=x", code=2
    )
    (tmp_path / "other").write_bytes(b"COLUMNS")
    assert "recordio, rows" in run(installed, tmp_path, "adopt", "other", "-o", "no", code=2)


def test_somebody_elses_engine(installed: Path, tmp_path: Path) -> None:
    draw_named(tmp_path)
    run(installed, tmp_path, "build", "named", "--resize", "8", "--engine", "threads:1")
    assert (tmp_path / "named.lmdb").is_dir()


def test_names_that_nobody_adds(installed: Path, tmp_path: Path) -> None:
    draw_named(tmp_path)
    refused = run(installed, tmp_path, "build", "named", "--labels", "suffix", code=2)
    assert "must be one of auto, none, folder, voc, yolo, " in refused and ", prefix" in refused
    assert f"{CONTAINERS[-1]}, plain; got zip" in run(installed, tmp_path, "build", "named", "--format", "zip", code=2)
    assert "datumaro[:FORMAT], prefix; got prefix:x" in run(
        installed, tmp_path, "build", "named", "--labels", "prefix:x", code=2
    )


def test_help_looks_for_no_package(installed: Path, tmp_path: Path) -> None:
    program = """
        import sys
        from packer.__main__ import main
        main(["build", "--help"])
        assert "importlib.metadata" not in sys.modules
    """
    python(installed, tmp_path, program)


class Distribution:
    """Stands for an installed package."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch):
    """Make entry points of (package, name, value) the only ones there are."""
    _entry_points.cache_clear()

    def make(*rows: tuple[str, str, str]) -> None:
        entries = []
        for package, name, value in rows:
            entry = EntryPoint(name, value, "packer.sources")
            vars(entry)["dist"] = Distribution(package)
            entries.append(entry)
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries)
        _entry_points.cache_clear()

    yield make
    _entry_points.cache_clear()


def test_a_name_of_packer_itself_is_refused_by_both_packages_names(add, tmp_path: Path) -> None:
    add(("packer-other", "folder", "other:Source"), ("packer-more", "lmdb", "other:CONTAINER"))
    (tmp_path / "a.jpg").write_bytes(b"")
    tree, _ = find_tree(os.fsencode(tmp_path))
    for spec in ("folder", "none", "auto"):
        with pytest.raises(UsageError, match="the package packer-other and packer itself both add 'folder'"):
            open_source(spec, tree, SourceOptions())
    with pytest.raises(UsageError, match="the package packer-more and packer itself both add 'lmdb'"):
        container_names()


def test_two_packages_with_one_name_are_refused(add) -> None:
    add(("packer-a", "kitti", "a:Source"), ("packer-b", "kitti", "b:Source"))
    with pytest.raises(UsageError, match="the package packer-b and the package packer-a both add 'kitti'"):
        _ = Registry({}, "packer.sources").names


def test_a_package_that_cannot_be_imported_is_named(add) -> None:
    add(("packer-a", "broken", "no_such_module:CONTAINER"))
    with pytest.raises(UsageError, match=r"the package packer-a, which adds 'broken'.*cannot be imported"):
        open_container("broken")
    with pytest.raises(UsageError, match=r"no container 'absent'; choose one of .*broken"):
        open_container("absent")


def signatures(tree: ast.AST) -> dict[tuple[str, str], str]:
    """(class, method) -> its arguments and result, as written; static methods with the self that callers see."""
    found = {}
    for cls in ast.walk(tree):
        if isinstance(cls, ast.ClassDef):
            for method in cls.body:
                if isinstance(method, ast.FunctionDef):
                    names = [a.arg for a in method.args.args if a.arg != "self"]
                    hints = [ast.unparse(a.annotation) for a in method.args.args if a.annotation]
                    result = ast.unparse(method.returns) if method.returns else ""
                    found[cls.name, method.name] = (
                        f"({', '.join(map(': '.join, zip(names, hints, strict=True)))}) -> {result}"
                    )
    return found


@pytest.mark.parametrize(
    ("module", "protocol", "page", "name"),
    [
        (packer.sources.source, "BaseSource", "packer_prefix.py", "PrefixSource"),
        (packer.sources.source, "SourceType", "packer_prefix.py", "PrefixSource"),
        (packer.containers.container, "Container", "packer_plain.py", "PlainContainer"),
        (packer.containers.container, "Writer", "packer_plain.py", "PlainWriter"),
    ],
)
def test_the_page_has_the_signatures_of_each_protocol(module, protocol: str, page: str, name: str) -> None:
    asked = signatures(ast.parse(inspect.getsource(module)))
    shown = signatures(ast.parse(titled(page)))
    for (owner, method), signature in asked.items():
        if owner != protocol:
            continue
        as_class = ("__init__", signature.replace("-> BaseSource", "-> None"))  # a class is called
        method_name, expected = as_class if method == "__call__" else (method, signature)
        if protocol == "BaseSource" and method != "annotate":  # it has the others
            continue
        assert shown[name, method_name].replace("PlainWriter", "Writer") == expected, method


def test_a_source_of_another_package_needs_no_base_class() -> None:
    class Plain:
        def __init__(self) -> None:
            self.classes, self.notes, self.flip_index = None, ["its own"], (1, 0)

        def annotate(self, image: bytes) -> RawAnnotation:
            return RawAnnotation(origin="", label="ant")

    source = packer.sources.source.with_defaults(Plain())
    assert source.in_split(b"a") and list(source.unmatched_labels()) == [] and source.for_images([b"a"]) is None
    assert (source.tags, source.flip_index, source.label_files, source.has_splits) == (None, (1, 0), None, True)
    assert not packer.sources.source.leaves_out(source) and source.left_out(b"a") is None
    Plain.left_out = lambda self, image: "a mask"  # type: ignore[attr-defined]
    assert packer.sources.source.leaves_out(packer.sources.source.with_defaults(Plain()))


def test_built_in_names_are_known_without_any_package() -> None:
    assert set(CONTAINERS) <= set(container_names())
    for name in CONTAINERS:
        assert open_container(name).name == name
