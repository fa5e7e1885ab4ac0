"""The documentation says what the product does: its options, names and links exist, and every public name is in it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from doc_blocks import PAGES, ROOT, page_name
from test_rooms import FLOORS

import packer
from packer import bench, errors, samplers, stats
from packer.cli.group import cli
from packer.errors import PackerError
from packer.format import salvage
from packer.packing.option_table import TABLE
from packer.sources import CHOICES
from packer.sources.box_forms import FORMATS
from packer.sources.list_columns import parse_columns

sys.path.insert(0, str(ROOT / "scripts"))
import bench as bench_script

import docs

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+(?![\w>-])")


@pytest.mark.parametrize("name", ["cli", "llms", "peers"])
def test_generated_pages_are_up_to_date(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main([name, "--check"]) == 0, capsys.readouterr().err


def test_a_page_that_is_not_up_to_date_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(docs.WRITTEN, "llms", lambda: {DOCS / "llms.txt": "another text"})
    assert docs.main(["llms", "--check"]) == 1
    assert "docs/llms.txt is not up to date; run python scripts/docs.py llms" in capsys.readouterr().err
    assert docs.main(["nothing"]) == 2


# -- links


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[ -]+", "-", re.sub(r"[^\w -]", "", heading.lower())).strip("-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = COMMENT.sub("", FENCE.sub("", page.read_text()))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("name", ["README.md", "docs/llms.txt"])
@pytest.mark.parametrize("tag", ["", "v9.8.7"], ids=["now", "released"])
def test_links_lead_to_files_here_and_to_those_of_the_tag_in_a_release(name: str, tag: str) -> None:
    page, base = ROOT / name, f"{docs.address()}/"
    text = docs.released(name, page.read_text(), tag) if tag else page.read_text()
    links = re.findall(r"\]\(([^)\s]+)\)|^\[[^]]+\]: (\S+)$", FENCE.sub("", text), re.MULTILINE)
    assert len(links) > 15
    for link in (inline or reference for inline, reference in links):
        assert link.startswith((f"{base}blob/{tag}/", f"{base}raw/{tag}/")) if tag else "://" not in link, link
        path, _, anchor = link.removeprefix(f"{base}blob/{tag}/").removeprefix(f"{base}raw/{tag}/").partition("#")
        target = (ROOT if tag else page.parent) / path
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_until_there_is_a_release_packer_is_installed_from_a_clone() -> None:
    """And the address of the repository is in one file, for the day when there is one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    files = [name for name in listed.split("\0") if name and not name.startswith(("tests/", "CHANGELOG"))]
    if not files:
        pytest.skip("no checkout of git")
    texts = {name: (ROOT / name).read_bytes().decode("utf-8", "replace") for name in files if (ROOT / name).is_file()}
    address = docs.address().removeprefix("https://github.com/")
    assert [name for name, text in texts.items() if f"/{address}" in text] == ["pyproject.toml"]
    named = re.compile(r"pip install [^\n`]*dataset-packer")
    assert [name for name, text in texts.items() if named.search(text)] == []
    assert "\npip install . " in texts["README.md"] and "\npip install .\n" in texts["docs/install.md"]


def test_a_release_is_installed_by_its_name() -> None:
    for page, count in (("README.md", 1), ("docs/index.md", 1), ("docs/install.md", 3)):
        text = docs.released(page, (ROOT / page).read_text(), "v9.8.7")
        assert len(re.findall(r"pip install (?:--no-deps )?\"?dataset-packer(?:\[remote\]\")?[`\n]", text)) == count
        assert "pip install ." not in text.replace("pip install ./packer-fast", "") and "index yet" not in text
    wheel = (ROOT / ".github" / "workflows" / "tests.yml").read_text().partition("\n  wheel:")[2]
    assert wheel.index('scripts/docs.py release "$GITHUB_REF_NAME"') < wheel.index("scripts/test_wheel.sh dist")


def test_the_home_page_is_the_first_screen_of_the_readme() -> None:
    screen, links = ((ROOT / "README.md").read_text().partition("\n## Develop")[0], (ROOT / "README.md").read_text())
    page = (DOCS / "index.md").read_text()
    shown, _, own_links = page.partition("\n[all figures]: ")
    assert shown.strip() == screen.replace("](docs/", "](").strip()
    for name, target in re.findall(r"^\[([^]]+)\]: (.*)$", "[all figures]: " + own_links, re.MULTILINE):
        assert f"[{name}]: docs/{target}\n" in links or target == "changelog.md", name


def test_every_link_that_the_readme_names_is_used() -> None:
    text = FENCE.sub("", (ROOT / "README.md").read_text())
    names = set(re.findall(r"^\[([^]]+)\]: ", text, re.MULTILINE))
    used = set(re.findall(r"\[([^]]+)\](?![(:])", text.partition("\n[")[0] + text))
    assert names <= used


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page_name(page) for page in DOCS.rglob("*.md"))


def test_figures_in_the_pages_of_other_loaders_are_those_of_the_benchmark() -> None:
    shown = [re.findall(r"<!-- figures: (\w+) -->\n\|", page.read_text()) for page in (DOCS / "peers").glob("*.md")]
    assert {name for names in shown for name in names} == set(docs.PEERS)


def test_where_packer_is_slower_the_figure_is_bold() -> None:
    head = (
        "| {} | versions | goal | packer against it | images/s |\n|---|---|---|---|---|\n| **packer** | 1 | | | 8 |\n"
    )
    faster = head.format("work") + "| dali | nvidia-dali-cuda120 2 | >= 2 | **1.20** (1 to 2) | 7 |\n"
    slower = head.format("other") + "| dali | nvidia-dali-cuda120 2 | | 0.80 (0.7 to 0.9) | 9 |\n"
    page = f"<!-- bench_peers -->\n{faster}\n{slower}\n2026-01-01: a machine; versions.\n<!-- end -->"
    rows = docs.peer_table(page, "dali").splitlines()[2:4]
    assert rows == ["| work | 8 | 7 | 1.20 (1 to 2) |", "| other | 8 | 9 | **0.80** (0.7 to 0.9) |"]


def test_the_figures_of_the_readme_are_those_of_the_benchmark() -> None:
    ratio, packed, plain, machine = docs.figures((DOCS / "benchmarks.md").read_text())
    picture = docs.PICTURE.read_text()
    assert all(f">{figure}<" in picture for figure in (f"{ratio} times", packed, plain)), "run scripts/docs.py picture"
    median, lowest, highest = (f"{float(number):.1f}" for number in re.findall(r"[\d.]+", ratio))
    readme = (ROOT / "README.md").read_text()
    assert f"**{median} times ({lowest} to {highest}) the images/s**" in readme and machine.split(",")[0] in readme


# -- commands and options


def options_of(command: click.Command) -> set[str]:
    """All its long and short options."""
    return {"--help"} | {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


ALL_OPTIONS = options_of(cli).union(*map(options_of, cli.commands.values()))


def commands_in(text: str) -> Iterator[tuple[str, str]]:
    """(name, its line) of every command of packer that a text shows, in code or in a block."""
    printable = [part for block in FENCE.findall(text) for part in block.replace("\\\n", " ").splitlines()[1:-1]]
    printable += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for line in printable:
        if match := re.match(r"(?:\$ )?packer (?:--debug )?([a-z]\w*)\b(.*)", line):
            yield match[1], match[2].partition("#")[0]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_have_the_options_that_are_shown_with_them(page: Path) -> None:
    added = {"keys"} if page.name == "extending.md" else set()
    for name, rest in commands_in(page.read_text()):
        if name not in added:
            assert name in cli.commands, name
            assert set(OPTION.findall(rest)) <= options_of(cli.commands[name]), f"packer {name}{rest}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_option_in_the_text_exists(page: Path) -> None:
    others = (
        r"^ *(pip install|torchrun|ray start|dask \w+|sbatch|array=\$\(sbatch|#SBATCH) .*$"
        r"|`(docker|rsync|train\.py) [^`]*`"
    )
    text = re.sub(others, "", page.read_text().replace("\\\n", " "), flags=re.MULTILINE)
    scripts = {ROOT / name for name in re.findall(r"scripts/\w+\.py", text)}
    for script in scripts:
        assert script.is_file(), script
    if ROOT / "scripts" / "bench.py" in scripts:
        scripts |= {ROOT / "scripts" / "benchmarks" / f"{one.module}.py" for one in bench_script.BENCHMARKS.values()}
    of_scripts = {name for script in scripts for name in re.findall(r"\"(--[a-z][a-z-]+)\"", script.read_text())}
    assert set(OPTION.findall(text)) <= ALL_OPTIONS | of_scripts


@pytest.mark.parametrize("name", cli.commands)
def test_every_command_is_on_a_page_of_its_reference_and_in_another(name: str) -> None:
    assert f"## packer {name}\n" in (DOCS / "cli.md").read_text()
    assert any(f"packer {name}" in page.read_text() for page in PAGES if page.name not in ("cli.md", "changelog.md"))


def test_every_library_has_a_line_that_says_what_it_is_for() -> None:
    table = (DOCS / "architecture.md").read_text().partition("\n## Libraries\n")[2].partition("\n## ")[0]
    listed = [name for row in re.findall(r"^\| ([a-z0-9, -]+) \|", table, re.MULTILINE) for name in row.split(", ")]
    block = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    assert sorted(listed) == sorted(["library", *re.findall(r'^    "([\w-]+)', block, re.MULTILINE)])


# -- Python

PAGES_OF_API = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
API = re.findall(r"^::: ([\w.]+)$", PAGES_OF_API, re.MULTILINE)


def found(path: str) -> Any:
    """Return the object with a dotted name."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            value = getattr(value, name)
        return value
    raise AssertionError(path)


def test_every_public_name_is_in_the_reference() -> None:
    public = {f"packer.{name}" for name in packer.__all__ if name not in ("__version__", "stats", "view")}
    public |= {"packer.view.notebook.view", "packer.stats.pack_stats"}  # whose modules can be called
    for room in (samplers, salvage, stats, bench):
        public |= {f"{room.__name__}.{name}" for name in room.__all__ if name not in packer.__all__}
    # a function whose module has the same name is packer.repack.merge.merge there
    assert public - set(API) <= {re.sub(r"(\.\w+)\1$", r"\1", path) for path in API}
    assert len(API) == len(set(API))
    assert [path for path in API if inspect.ismodule(found(path))] == ["packer.errors"]  # all kinds at once


@pytest.mark.parametrize("path", API)
def test_public_names_say_what_they_are(path: str) -> None:
    value = found(path)
    assert inspect.getdoc(value), path
    if inspect.isclass(value):
        for name, member in vars(value).items():
            function = getattr(member, "func", getattr(member, "fget", getattr(member, "__func__", member)))
            if inspect.isfunction(function) and not name.startswith("_"):
                assert function.__doc__, f"{path}.{name}"


def arguments_without_a_word(value: Any) -> list[str]:
    """Arguments of a function or class that neither its ``Args:`` nor its text (`name`) explains."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    doc = inspect.getdoc(value) or ""
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    names = [name for name in names if name not in ("self", "cls")]
    return [name for name in names if not re.search(rf"^ +{name}:|`{name}`", doc, re.MULTILINE)]


@pytest.mark.parametrize("path", API)
def test_arguments_are_explained(path: str) -> None:
    """Except the fields of results, which are not arguments, and arguments that a base class explains."""
    value = found(path)
    result = dataclasses.is_dataclass(value) and "Args:" not in (value.__doc__ or "")
    inherited = inspect.isclass(value) and "for the arguments" in (value.__doc__ or "")
    if not result and not inherited and not (inspect.isclass(value) and issubclass(value, Exception)):
        assert not arguments_without_a_word(value), path
    for name, member in vars(value).items() if inspect.isclass(value) else ():
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function) and not name.startswith("_"):
            assert not arguments_without_a_word(function), f"{path}.{name}"


def test_errors_say_what_they_are() -> None:
    kinds = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]
    assert len(kinds) > 8
    for kind in kinds:
        assert kind.__doc__, kind


def test_every_kind_of_error_is_one_line() -> None:
    for kind in [PackerError, *PackerError.__subclasses__()]:
        error = kind("cat3.xml", "box xmax 120 exceeds width 64", "fix the label or pass --boxes=clip")
        assert error.line == "cat3.xml: box xmax 120 exceeds width 64; fix the label or pass --boxes clip"
        assert str(error) == 'cat3.xml: box xmax 120 exceeds width 64; fix the label or pass boxes="clip"'


# -- architecture


def test_the_table_of_rooms_is_what_the_imports_are_checked_against() -> None:
    text = (DOCS / "architecture.md").read_text()
    floors = [re.findall(r"`(\w+)(?:/|\.py)`", row) for row in re.findall(r"^\| (`\w+[/.].*?) \|", text, re.MULTILINE)]
    assert [room for floor in floors for room in floor] == [room for floor in FLOORS for room in floor]


def test_files_that_the_architecture_names_exist() -> None:
    text = (DOCS / "architecture.md").read_text()
    for name in re.findall(r"`(\w+/[\w/]+\.(?:py|md))`", text):
        assert (ROOT / name).is_file() or (ROOT / "packer" / name).is_file(), name
    for name in re.findall(r"`(\w+\.py)`", text):
        assert list((ROOT / "packer").rglob(name)), name


# -- labels


def test_the_labels_page_has_every_kind_and_policy() -> None:
    text = (DOCS / "labels.md").read_text()
    named = {word for code in re.findall(r"`([^`\n]+)`", text) for word in code.split()}
    headings = {word for line in re.findall(r"^## (.*)", text, re.MULTILINE) for word in line.split()}
    assert {kind.partition("[")[0] for kind in CHOICES} <= {name.partition("[")[0] for name in named | headings}
    policies = re.findall(r"^\| `(\w+)`", text.partition("| `--boxes` |")[2].partition("\n\n")[0], re.MULTILINE)
    assert set(policies) == set(TABLE["boxes"].choices)


def test_the_table_of_formats_has_every_kind_and_the_versions_that_are_installed() -> None:
    section = (DOCS / "labels.md").read_text().partition("\n## Formats and proof\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert {row[0].strip("`") for row in rows} == set(CHOICES)
    assert {line.count("|") for line in section.splitlines() if line.startswith("|")} == {7}
    for name in re.findall(r"`(test_\w+\.py)`", section):
        assert list((ROOT / "tests").rglob(name)), name
    pins = re.findall(r"([a-z][\w-]*)==([\d.]+)", (ROOT / "scripts" / "test_integrations.sh").read_text())
    for name in ("supervision", "globox", "scalabel", "supervisely", "label-studio-converter", "labelme", "menpo"):
        named = set(re.findall(rf"\b{name} ([\d.]*\d)", section))
        assert named == {version for library, version in pins if library == name}, name


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_columns_that_are_shown_are_understood(page: Path) -> None:
    for columns in re.findall(r"--columns \"([^\"]+)\"", page.read_text()):
        if columns.removeprefix("boxes=") not in FORMATS:  # of the boxes in a Parquet file
            parse_columns(columns)
