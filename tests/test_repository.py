"""The files around the package: workflows, issue forms, image, citation. They agree, and what they name exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import packer

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
NOT_IN_IMAGE = {"torch"}


def load(path: Path) -> dict[str, Any]:
    loaded = yaml.load(path.read_text(), yaml.BaseLoader)  # all are texts: `on` is no truth value, 3.10 no number
    assert isinstance(loaded, dict)
    return loaded


def steps() -> list[tuple[Path, dict[str, Any]]]:
    return [(path, step) for path in WORKFLOWS for job in load(path)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize(
    ("page", "first", "last", "least"),
    [
        ("SECURITY.md", "## What a stranger's input", "## Supported versions", 30),
        ("docs/threats.md", "## What is guaranteed", "## What is not promised", 10),
        ("docs/versioning.md", "## What is frozen", "## What may change", 8),
    ],
)
def test_each_line_on_what_is_held_names_tests_that_exist(page: str, first: str, last: str, least: int) -> None:
    text = (ROOT / page).read_text()
    section = text[text.index(first) : text.index(last)]
    lines = [
        line for line in section.splitlines() if line.startswith("| ") and not line.startswith(("| |", "| promise"))
    ]
    assert len(lines) >= least
    for line in lines:
        assert re.search(r"tests/[\w/]+\.py::[\w*]", line), f"no test: {line}"
    for line in text.splitlines():
        file = ""
        for path, name in re.findall(r"(tests/[\w/]+\.py)?::([\w*]+)", line):
            file = path or file
            assert (ROOT / file).is_file(), file
            assert name == "*" or f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_actions_are_pinned_and_permissions_small() -> None:
    assert len(WORKFLOWS) == 3 and len(steps()) > 10
    for path, step in steps():
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), f"{path.name}: {step['uses']}"
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] == "false"
    for path in WORKFLOWS:
        content = load(path)
        assert content["permissions"] == {"contents": "read"}
        for name, job in content["jobs"].items():
            assert job.get("permissions", {}) == ({"id-token": "write"} if name == "publish" else {})
            assert "uses" in job or int(job["timeout-minutes"]) <= 60


def test_workflows_run_scripts_that_exist() -> None:
    named = {name for path in WORKFLOWS for name in re.findall(r"\bscripts/[\w.]+", path.read_text())}
    assert {"scripts/test.sh", "scripts/test_wheel.sh"} <= named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_matrix_has_all_versions_of_python() -> None:
    matrix = load(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    assert matrix["python"] == classifiers and f'">={classifiers[0]}"' in PYPROJECT
    assert {system.partition("-")[0] for system in matrix["system"]} == {"ubuntu", "macos"}
    for excluded in matrix["exclude"]:
        assert excluded["system"] in matrix["system"] and excluded["python"] in classifiers[1:-1]


CONSTRAINTS = {"constraints.txt": range(10, 15), "constraints-integrations.txt": range(11, 15)}
"""File of pins -> the minor versions of Python it is for."""


def pins(name: str) -> list[tuple[Requirement, str]]:
    """Return each pin of a file with the versions of Python that it says it wants."""
    lines = [line.split("#") for line in (ROOT / "scripts" / name).read_text().splitlines() if not line.startswith("#")]
    return [(Requirement(pin), wanted.strip().replace("any", "")) for pin, wanted in lines]


@pytest.mark.parametrize(("name", "minors"), CONSTRAINTS.items(), ids=CONSTRAINTS)
def test_each_pin_holds_from_the_first_release_of_each_python(name: str, minors: range) -> None:
    """Debian has an early 3.11: pins for a later one let pip search for half an hour for versions that fit."""
    assert list(CONSTRAINTS["constraints.txt"]) == [
        int(minor) for minor in re.findall(r"Python :: 3\.(\d+)", PYPROJECT)
    ]
    for minor in minors:
        python = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0"}
        used = [(pin, wanted) for pin, wanted in pins(name) if pin.marker is None or pin.marker.evaluate(python)]
        assert [pin for pin, wanted in used if python["python_full_version"] not in SpecifierSet(wanted)] == []
        assert len({pin.name for pin, _ in used}) == len(used), "two pins at once"


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_pins_say_the_pythons_that_their_metadata_says(name: str) -> None:
    compared = 0
    for pin, wanted in pins(name):
        try:
            found = metadata(pin.name)
        except PackageNotFoundError:
            continue
        if found["Version"] in pin.specifier:  # here is often another one
            assert SpecifierSet(found.get("Requires-Python") or "") == SpecifierSet(wanted), pin
            compared += 1
    assert compared > 10


PIP = """
import json, os, sys, time
with open(os.environ["PIP_CALLS"], "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
if os.environ.get("PIP_HANGS"):
    time.sleep(60)
"""


@pytest.fixture
def pip_install(tmp_path: Path) -> Any:
    """Call pip_install of scripts/venv.sh with a stand-in for pip; return how pip was called and what was said."""

    def call(version: str = "26.3", **environment: str) -> tuple[list[list[str]], str]:
        for folder, file, text in (
            ("pip", "__main__.py", PIP),
            ("pip", "__init__.py", ""),
            (f"pip-{version}.dist-info", "METADATA", f"Metadata-Version: 2.1\nName: pip\nVersion: {version}\n"),
        ):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / file).write_text(text)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").symlink_to(sys.executable)
        calls = tmp_path / "calls"
        theirs = {k: v for k, v in os.environ.items() if not k.startswith("PACKER_")}
        done = subprocess.run(
            ["bash", "-c", '. scripts/venv.sh && pip_install "$0" --editable ".[dev]"', str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            env={**theirs, "PYTHONPATH": str(tmp_path), "PIP_CALLS": str(calls), **environment},
        )  # fmt: skip
        assert done.returncode == (1 if "PIP_HANGS" in environment else 0), done.stderr
        return [json.loads(line) for line in calls.read_text().splitlines()], done.stdout + done.stderr

    return call


def test_installing_asks_no_index_unasked_and_is_not_silent(pip_install) -> None:
    ((*calls,), said) = pip_install()
    assert calls == [["install", "--disable-pip-version-check", "--editable", ".[dev]"]] and said == ""


def test_torch_for_the_cpu_comes_from_the_index_that_is_named(pip_install) -> None:
    (call,), _ = pip_install(PACKER_TORCH_INDEX="https://example.org/cpu")
    assert call[2:4] == ["--extra-index-url", "https://example.org/cpu"]


def test_an_old_pip_is_upgraded_first(pip_install) -> None:
    calls, said = pip_install("23.0.1")
    assert [call[:2] for call in calls] == [["install", "--upgrade"], ["install", "--disable-pip-version-check"]]
    assert calls[0][-1] == "pip" and "upgrading pip" in said


def test_an_install_that_does_not_end_is_stopped(pip_install) -> None:
    _, said = pip_install(PIP_HANGS="1", PACKER_INSTALL_MINUTES="0.02")
    assert "pip was stopped after 0.02 minutes (PACKER_INSTALL_MINUTES)" in said


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_issue_forms(form: Path) -> None:
    content = load(form)
    ids = [field["id"] for field in content["body"]]
    assert content["name"] and content["description"] and len(set(ids)) == len(ids)
    assert any(field.get("validations", {}).get("required") == "true" for field in content["body"])
    assert form.stem != "bug" or "`packer doctor`" in form.read_text()


def test_the_image_has_all_libraries_but_torch() -> None:
    text = (ROOT / "Dockerfile").read_text()
    listed = re.search(r"--constraint /constraints\.txt \\\n((?:.*\\\n)*.*)\n", text)
    assert listed is not None
    found = set(listed[1].replace("\\\n", " ").split())
    block = re.search(r"^dependencies = \[(.*?)^\]", PYPROJECT, re.DOTALL | re.MULTILINE)
    assert block is not None
    needed = set(re.findall(r'^ *"([\w-]+)', block[1], re.MULTILINE))
    extras = {"fsspec", "obstore", "matplotlib"}  # [remote] and [report]
    assert found == needed - NOT_IN_IMAGE | extras and all(f'"{name}>=' in PYPROJECT for name in extras)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert (
        ignored[0] == "*" and [name for name in copied if f"!{name}" not in ignored or not (ROOT / name).exists()] == []
    )


def test_the_citation_is_of_this_version() -> None:
    content = load(ROOT / "CITATION.cff")
    assert content["version"] == packer.__version__ and f'license = "{content["license"]}"' in PYPROJECT


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_links_and_files_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\((?!https:)([^)#]+)", text)
    named = re.findall(r"`((?:scripts|tests|docs|packer)/[\w./]*)`", text)
    assert [path for path in (*links, *named) if not (ROOT / path).exists()] == []
    assert name != "CONTRIBUTING.md" or len(named) > 8
