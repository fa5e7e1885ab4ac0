"""Errors: the builtins that callers catch, one line of text, and the way through a pipe."""

from __future__ import annotations

import copy
import errno
import pickle

import pytest

from packer import errors, open_pack
from packer.cli.error_reports import failure_facts, failure_text
from packer.errors import (
    BadImage,
    DamagedPack,
    PackerError,
    PackNotFound,
    StorageError,
    TooManyBad,
    UsageError,
    option,
    words_of,
)
from packer.format.manifest import Rejected
from packer.system.storage import storage_errors

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PackerError)]
BUILTINS = {
    UsageError: ValueError,
    PackNotFound: FileNotFoundError,
    BadImage: ValueError,
    StorageError: OSError,
    DamagedPack: OSError,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("a\x1b.jpg", "is bad", "fix it"), "a\\x1b.jpg: is bad; fix it"),
        ((b"\xff", "is bad"), "\\udcff: is bad"),
        (("", "is bad"), "is bad"),
        (("of a worker:\nits traceback",), "of a worker:\nits traceback"),
    ],
)
def test_survive_pickling_and_copying(kind, arguments, text):
    error = kind(*arguments)
    assert str(error) == text
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind and str(again) == text and again.args == error.args
        assert vars(again) == vars(error)
        if isinstance(again, OSError):
            assert (again.strerror, again.filename) == (error.problem, error.where or None)


def test_what_is_added_later_survives_too():
    error = DamagedPack("shard", "was altered").with_location("pack", "shard-00000.lmdb", "00000007")
    again = pickle.loads(pickle.dumps(error))
    assert (again.pack, again.shard, again.key) == ("pack", "shard-00000.lmdb", "00000007")
    again = pickle.loads(pickle.dumps(TooManyBad("src", "too many", "", ())))
    assert again.rejected == ()


@pytest.mark.parametrize("kind", BUILTINS, ids=lambda kind: kind.__name__)
def test_are_the_builtins_that_callers_catch(kind):
    with pytest.raises(BUILTINS[kind], match="it is bad"):
        raise kind("file", "it is bad")


def test_no_such_pack_is_a_file_that_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        open_pack(tmp_path / "none")
    assert caught.value.errno == errno.ENOENT and caught.value.filename == str(tmp_path / "none")
    assert isinstance(caught.value, UsageError) and caught.value.exit_code == errors.EXIT_USAGE


@pytest.mark.parametrize("kind", [StorageError, DamagedPack])
def test_an_error_of_packer_is_not_taken_for_one_of_the_system(kind):
    """It says already which file it is about: wrapped again, it would name another."""
    with pytest.raises(kind, match=r"^inner: is bad$"), storage_errors("outer"):
        raise kind("inner", "is bad")


@pytest.mark.parametrize(
    ("text", "line", "python"),
    [
        ("--quality: must be 1 to 100", "--quality: must be 1 to 100", "quality: must be 1 to 100"),
        ("SRC: is empty", "SRC: is empty", "source: is empty"),
        ("add --fit=pad", "add --fit pad", 'add fit="pad"'),
        ("--fit is for --resize, add it", "--fit is for --resize, add it", "fit is for resize, add it"),
        ("leave out --pad-value or --fit", "leave out --pad-value or --fit", "leave out pad_value or fit"),
        (
            "--shard-size is 0; write --shard-size=128MB",
            "--shard-size is 0; write --shard-size 128MB",
            'shard_bytes is 0; write shard_bytes="128MB"',
        ),
        (
            'write --columns="path (x y)*5", or leave it out',
            'write --columns "path (x y)*5", or leave it out',
            'write columns="path (x y)*5", or leave it out',
        ),
        ("--columns=(x y)*5, now none", "--columns (x y)*5, now none", "columns (x y)*5, now none"),
        ("name it: --columns=label=FIELD", "name it: --columns label=FIELD", 'name it: columns="label=FIELD"'),
        (
            "choose --labels=list:FILE (a list), --labels=none",
            "choose --labels list:FILE (a list), --labels none",
            'choose labels="list:FILE" (a list), labels="none"',
        ),
        ("--json lists all", "--json lists all", "rejected lists all"),
        (
            "add --fit=pad; run packer verify PACK --deep",
            "add --fit pad; run packer verify PACK --deep",
            'add fit="pad"; run packer verify PACK --deep',
        ),
        ("pip install --upgrade pillow", "pip install --upgrade pillow", "pip install --upgrade pillow"),
        (
            "pip install datumaro, then pass --labels=datumaro:voc",
            "pip install datumaro, then pass --labels datumaro:voc",
            'pip install datumaro, then pass labels="datumaro:voc"',
        ),
        ("is /data/--lr=0.1/SRC/a.lmdb", "is /data/--lr=0.1/SRC/a.lmdb", "is /data/--lr=0.1/SRC/a.lmdb"),
        ("write --parts=a=0.8,b=0.2, all", "write --parts a=0.8,b=0.2, all", 'write parts="a=0.8,b=0.2", all'),
        ("build a-b--c=d, x---y or --9", "build a-b--c=d, x---y or --9", "build a-b--c=d, x---y or --9"),
    ],
)
def test_options_are_parameters_in_python(text: str, line: str, python: str) -> None:
    error = UsageError("", text)
    assert (error.line, error.told, str(error)) == (line, line, python)
    with_step = UsageError("file", "is bad", text)
    assert (with_step.line, str(with_step)) == (f"file: is bad; {line}", f"file: is bad; {python}")
    assert with_step.told == "file: is bad"


def test_an_option_and_its_value_are_data() -> None:
    assert [option("pad_value"), option("fit", "pad"), option("max-bad", 0)] == [
        "--pad-value", "--fit=pad", "--max-bad=0",
    ]  # fmt: skip
    given = {"labels": ("voc", "list:a b.csv"), "shard_size": 5, "overwrite": True, "pad-value": 0}
    assert words_of(given) == [
        "--labels", "voc", "--labels", "list:a b.csv", "--shard-size", "5", "--overwrite", "--pad-value", "0",
    ]  # fmt: skip


def test_where_is_an_option_or_a_path_that_stays_as_it_is() -> None:
    option_error = UsageError(option("labels", "voc:my file.xml"), "no such file")
    assert option_error.line == "--labels voc:my file.xml: no such file"
    path_error = UsageError("/a/SRC/x --fit=pad.jpg", "is bad")
    assert path_error.line == str(path_error) == "/a/SRC/x --fit=pad.jpg: is bad"


def test_a_command_shows_its_arguments_by_their_names_in_its_help() -> None:
    error = StorageError("/full", "cannot write", "free some space, or choose another --out")
    for command, shown in {"build": "--out", "convert": "OUT", "pull": "PACK", "sample": "OUT"}.items():
        given = ["--debug", command, "x"]
        assert failure_text(error, given) == ("/full: cannot write", [f"free some space, or choose another {shown}"])
        assert failure_facts(error, given)["next_step"] == f"free some space, or choose another {shown}"
    assert failure_text(error) == ("/full: cannot write", [error.next_step])
    error = UsageError(option("out", "x"), "is bad", f"write {option('jpeg-index', 'row')} {option('fit', 'pad')}")
    assert failure_text(error, ["build"]) == ("--out x: is bad", ["write --jpeg-index=row --fit pad"])


def test_the_lists_of_bad_inputs_are_those_that_a_command_has() -> None:
    row = Rejected("a.jpg", "bad-box", "is bad; pass --boxes clip")
    error = TooManyBad("src", "11 are bad", f"use {option('boxes', 'drop')}", [row] * 11, [("bad-box", 11, row)])
    example = "\n  bad-box: 11, for example a.jpg: is bad; pass --boxes clip\n  "
    assert error.line == f"src: 11 are bad; use --boxes drop{example}(--quarantine DIR or --json lists all of them)"
    assert str(error) == f'src: 11 are bad; use boxes="drop"{example}(quarantine="DIR" or rejected lists all of them)'
    error.listed_by = [option("json")]
    assert error.told == f"src: 11 are bad{example}(--json lists all of them)"
