"""Every command explains itself: an example, and a help text for each option."""

from __future__ import annotations

import re
import shlex
from typing import get_args

import click
import pytest
from running import good, refused, run

from packer import __version__
from packer.cli.group import SECTIONS as SECTIONS_OF_COMMANDS
from packer.cli.group import SELDOM, cli
from packer.cli.making import FIRST, SECTIONS, build

COMMANDS = sorted(cli.commands)
ISSUED = {"build", "info", "verify"}


def test_commands() -> None:
    assert set(COMMANDS) >= ISSUED


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_and_a_text_for_each_option(name: str) -> None:
    command = cli.commands[name]
    assert re.search(rf"^ *packer {name}\b", command.help or "", re.MULTILINE)
    assert (command.help or "").splitlines()[0].endswith(".")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help.rstrip("]").rstrip()[-1] in '.0123456789"' or "[default" in parameter.help
    out = good(name, "--help").out
    assert out.startswith(f"Usage: packer {name} [OPTIONS]")
    assert all(len(line) <= 78 for line in out.splitlines())
    assert good(name, "-h").out == out


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse(name: str) -> None:
    """An example names no option that the command does not have."""
    command = cli.commands[name]
    examples = re.findall(rf"packer {name} (.+)$", command.help or "", re.MULTILINE)
    assert examples
    for example in examples:
        command.make_context(name, shlex.split(example))


def test_help_of_the_group() -> None:
    out = good("--help").out
    seldom = {str(command.name) for command in SELDOM}
    for name in COMMANDS:
        assert bool(re.search(rf"^  {name} +\S", out, re.MULTILINE)) == (name not in seldom)
    assert f"\n  Also: {', '.join(sorted(seldom))}.\n" in out
    assert good("help").out == out and good("help", "hash").out == good("hash", "--help").out
    assert "0 good, 1 bad data beyond --max-bad, 2 usage, 3 disk or\n  permission, 4 a damaged pack, 130" in out
    assert "..." not in out.partition("Make packs:")[2]  # each command's first sentence fits on its line
    shown = {str(one.name) for commands in SECTIONS_OF_COMMANDS.values() for one in commands}
    assert sorted(shown | seldom) == COMMANDS and not shown & seldom
    assert set(SECTIONS_OF_COMMANDS) < set(re.findall(r"^(\w.*):$", out, re.MULTILINE))
    assert all(len(line) <= 78 for line in out.splitlines())


@pytest.mark.parametrize(("alias", "name"), [("export", "extract"), ("link", "adopt")])
def test_other_names_of_commands(alias: str, name: str) -> None:
    assert good(alias, "--help").out == good(name, "--help").out.replace(
        f"Usage: packer {name}", f"Usage: packer {alias}"
    )
    assert f"packer {alias} is another name" in " ".join(good(name, "--help").out.split())


def test_no_command_prints_the_help() -> None:
    ran = run()
    assert ran.code in (0, 2) and "Usage: packer [OPTIONS] COMMAND [ARGS]..." in ran.out + ran.err


def test_version() -> None:
    assert good("--version").out == good("-V").out == f"packer {__version__}\n"


def test_help_shows_the_options_of_the_issue() -> None:
    options = set(re.findall(r"--[a-z-]+", good("build", "--help-all").out))
    assert options >= {
        "--out", "--format", "--labels", "--columns", "--classes", "--split", "--resize", "--fit", "--encode",
        "--interpolation", "--quality", "--mode", "--decoder", "--shard-size", "--shuffle", "--workers",
        "--max-bad", "--boxes", "--overwrite", "--dry-run", "--quiet", "--json", "--max-pixels",
    }  # fmt: skip


def test_choices_in_the_help_are_those_that_are_taken() -> None:
    from packer.containers import CONTAINERS
    from packer.format.jpeg_index_list import INTERVALS
    from packer.images.decode import DECODERS
    from packer.images.header import Mode
    from packer.images.opencv import ANTIALIASED
    from packer.images.resize import FITS, Encoding
    from packer.packing.build_options import BuildOptions
    from packer.packing.option_table import TABLE
    from packer.sources import CHOICES

    printable = {p.name: p.make_metavar(click.Context(build)) for p in build.params if isinstance(p, click.Option)}
    choices = {row.name: row.choices for row in TABLE.values() if row.choices}
    assert choices["format"] == CONTAINERS and choices["decoder"] == DECODERS and choices["mode"] == get_args(Mode)
    assert choices["fit"] == FITS and choices["interpolation"] == ANTIALIASED
    assert choices["encode"] == (*get_args(Encoding), "copy") and choices["jpeg_index"] == tuple(INTERVALS)
    for name, values in choices.items():
        assert printable[name].removeprefix("[").removesuffix("]").split("|") == list(values)
    labels = next(p.help for p in build.params if isinstance(p, click.Option) and p.name == "labels")
    assert labels.partition(".")[0] == f"Kind of labels: {', '.join(CHOICES)}"
    defaults = BuildOptions("src")
    context = click.Context(build)
    for parameter in build.params:
        if isinstance(parameter, click.Option) and hasattr(defaults, parameter.name or ""):
            expected = getattr(defaults, parameter.name or "")
            given = parameter.get_default(context)
            if parameter.name == "decode_timeout":  # a text, since "none" is not a number
                expected = f"{expected:g}"
            unset = given is None or not isinstance(given, str | int | tuple | list)  # click's own mark
            assert unset or given == expected or tuple(given) == expected, parameter.name


def test_options_of_build_stand_in_sections_once() -> None:
    out = good("build", "--help-all").out
    assert re.findall(r"^(\w.*):$", out, re.MULTILINE) == ["Input", "Labels", "Image", "Output", "Bad data", "Run"]
    for parameter in build.params:
        if isinstance(parameter, click.Option):
            assert len(re.findall(rf"^  (?:-o, )?{parameter.opts[-1]}(?![\w-])", out, re.MULTILINE)) == 1
    assert {name for names in SECTIONS.values() for name in names} <= {p.name for p in build.params}


def test_help_of_build_shows_what_most_people_need() -> None:
    out = good("build", "--help").out
    shown = re.findall(r"^  (?:-\w, )?--([a-z-]+)", out, re.MULTILINE)
    assert shown == [name.replace("_", "-") for name in FIRST] + ["help-all", "help"]
    every = sum(isinstance(parameter, click.Option) for parameter in build.params) + 1
    assert out.endswith(f"\n  {every - len(shown)} more options: packer build --help-all\n")
    assert len(out.splitlines()) < 80


def test_a_misspelled_command_is_suggested() -> None:
    assert refused(2, "docter") == "packer: error: No such command 'docter'; packer doctor"
