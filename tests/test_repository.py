"""The files around the package: workflows, issue forms, image, citation. They agree, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    assert content["repository-code"] in PYPROJECT


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_links_and_files_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\((?!https:)([^)#]+)", text)
    named = re.findall(r"`((?:scripts|tests|docs|packer)/[\w./]*)`", text)
    assert [path for path in (*links, *named) if not (ROOT / path).exists()] == []
    assert name != "CONTRIBUTING.md" or len(named) > 8
