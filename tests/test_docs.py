"""The documentation says what the product does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from packer.cli import cli
from packer.errors import PackerError

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_the_cli_reference_is_what_the_commands_say() -> None:
    script = ROOT / "scripts" / "write_cli_docs.py"
    done = subprocess.run([sys.executable, script, "--check"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(#[^)]*)?\)", page.read_text())
    missing = [link for link, _ in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_the_text_exist(page: Path) -> None:
    known = {name for command in cli.commands.values() for option in command.params for name in (*option.opts, *option.secondary_opts)}
    known |= {name for option in cli.params for name in (*option.opts, *option.secondary_opts)} | {"--help", "--check"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+(?![\w>-])", page.read_text()))
    assert named <= known | SCRIPT_OPTIONS


SCRIPT_OPTIONS = {"--images", "--count", "--rounds", "--counts", "--formats"}


def test_every_kind_of_error_is_one_line() -> None:
    for kind in [PackerError, *PackerError.__subclasses__()]:
        text = str(kind("cat3.xml", "box xmax 120 exceeds width 64", "fix the label or pass --boxes clip"))
        assert text == "cat3.xml: box xmax 120 exceeds width 64; fix the label or pass --boxes clip"
