"""The code blocks of a page, and how they are run: in the page's order, in one folder, in this process.

Python blocks run each for itself, as one would paste them; on the CPU, whatever device they name. Shell blocks hold
commands of packer; `packer view`, which would serve for ever, writes a sheet instead. Two comments steer it, each on
the line before a block and invisible to readers:

    <!-- before: packer build imgs -->     a command that runs first
    <!-- not run: reason -->               the block must compile, and its options exist; no more

A block of text after a block of shell is what its last command prints; numbers may differ.

A Python block with a title is a module that the page adds, to packer or beside it: it is written, and can be imported
from then on.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from running import run

from packer.cli.group import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def page_name(page: Path) -> str:
    """The path of a page below docs/: guides/coco.md."""
    return page.relative_to(ROOT / "docs").as_posix() if (ROOT / "docs") in page.parents else page.name


BLOCK = re.compile(
    r"(?P<comments>(?:^<!-- [^\n]*? -->\n)*)"
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
COMMENT = re.compile(r"<!-- (before|not run): (.*?) -->")


@dataclass(frozen=True)
class Block:
    """One block; `line` is that of its first line in the page."""

    page: Path
    line: int
    language: str
    text: str
    title: str | None = None
    before: list[str] = field(default_factory=list)
    reason: str | None = None

    def __str__(self) -> str:
        return f"{page_name(self.page)}:{self.line}"

    def code(self) -> Any:
        """Compiled, with the page's line numbers; on the CPU, and 2 epochs for 90."""
        text = re.sub(r'(device=|, )"cuda"', r'\1"cpu"', self.text).replace("range(90)", "range(2)")
        return compile("\n" * (self.line - 1) + text, str(self.page), "exec")

    def commands(self) -> Iterator[list[str]]:
        """The words of each line of a shell block."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def blocks_of(page: Path) -> list[Block]:
    """The blocks of Python and shell of a page, and what commands print."""
    text = page.read_text()
    found: list[Block] = []
    end = 0
    for match in BLOCK.finditer(text):
        after_shell = bool(found) and found[-1].language == "sh" and not text[end : match.start()].strip()
        after_shell = after_shell and found[-1].reason is None
        if match["language"] not in ("python", "sh") and not after_shell:
            continue
        said = COMMENT.findall(match["comments"])
        reason = next((what for kind, what in said if kind == "not run"), None)
        before = [what for kind, what in said if kind == "before"]
        line = text[: match.start("text")].count("\n") + 1
        end = match.end()
        found.append(Block(page, line, match["language"], match["text"], match["title"], before, reason))
    return found


def check(block: Block) -> None:
    """That a block is Python, or a shell line whose options packer has."""
    if block.language == "python":
        block.code()
        return
    for words in block.commands():
        if words[0] == "packer":
            _parsed(words[1:])


def _parsed(words: list[str]) -> None:
    """Raises click.UsageError for what the command would not take; runs nothing."""
    name, *rest = words
    group = click.Context(cli, info_name="packer", **cli.context_settings)  # else the command learns other help options
    with cli.commands[name].make_context(name, rest, parent=group):
        pass


def run_page(page: Path, elsewhere: str | None = None) -> int:
    """Run all of a page in the current folder, and say how many blocks ran. The rest is checked only.

    Blocks that wait for a library run too, if their reason names the file of tests `elsewhere`.
    """
    ran, printed = 0, ""
    with _rooms_that_grow():
        for block in blocks_of(page):
            for line in block.before:
                _command(block, shlex.split(line))
            if block.reason is not None and not (elsewhere and elsewhere in block.reason):
                check(block)
                continue
            if block.language == "text":
                assert _without_numbers(block.text) == _without_numbers(printed), block
            else:
                printed = _run(block)
            ran += 1
    return ran


def run_elsewhere(page: Path, file: str) -> int:
    """Run the blocks of a page that wait for a library, and whose reason names this file of tests; their number."""
    blocks = [block for block in blocks_of(page) if file in (block.reason or "")]
    for block in blocks:
        _run(block)
    return len(blocks)


def _run(block: Block) -> str:
    """What the last command of a block of shell has printed."""
    printed = ""
    if block.language == "sh":
        for words in block.commands():
            printed = _command(block, words)
    elif block.title is not None:
        path = Path(block.title)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        importlib.invalidate_caches()
        importlib.import_module(".".join(path.with_suffix("").parts))
    else:
        exec(block.code(), {"__name__": "__main__"})
        gc.collect()  # as at the end of a program: no file that the block has opened stays open
    return printed


def _without_numbers(text: str) -> list[list[str]]:
    """The words of each line."""
    text = text.replace(f"{os.getcwd()}/", "")
    return [re.sub(r"\d[\d,.]*", "0", line).split() for line in text.splitlines()]


def _command(block: Block, words: list[str]) -> str:
    assert words[0] == "packer", f"{block}: {words[0]} is not run by the tests; say why before the block"
    if words[1] == "view" and "--export" not in words:
        check(block)
        words = [*takewhile(lambda word: not word.startswith("-"), words), "--export", "sheet.html"]
    ran = run(*words[1:])
    assert ran.code == 0, f"{block}: {shlex.join(words)}\n{ran.err}"
    return ran.out


@contextmanager
def _rooms_that_grow() -> Iterator[None]:
    """While it lasts, imports, also those of rooms of packer, look into the current folder; it is forgotten again."""
    import packer.cli
    import packer.samplers

    rooms = (packer.cli, packer.samplers)
    commands = dict(cli.commands)
    sys.path.insert(0, os.getcwd())
    for room in rooms:
        room.__path__.append(os.path.join(os.getcwd(), *room.__name__.split(".")))
    try:
        yield
    finally:
        for room in rooms:
            room.__path__.pop()
        sys.path.remove(os.getcwd())
        cli.commands.clear()
        cli.commands.update(commands)
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(os.getcwd()):
                del sys.modules[name]
