"""Errors: the builtins that callers catch, one line of text, and the way through a pipe."""

from __future__ import annotations

import copy
import errno
import pickle

import pytest

from packer import errors, open_pack
from packer.errors import BadImage, DamagedPack, PackerError, PackNotFound, StorageError, TooManyBad, UsageError
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
    ("line", "text"),
    [
        ("--quality: must be 1 to 100, got 0", "quality: must be 1 to 100, got 0"),
        ("SRC: is empty; name a folder", "source: is empty; name a folder"),
        ("--shard-size is 0; write --shard-size 128MB", 'shard_bytes is 0; write shard_bytes="128MB"'),
        ('write --columns "path (x y)*5", or leave it out', 'write columns="path (x y)*5", or leave it out'),
        ("choose --labels list:FILE (a list), --labels none", 'choose labels="list:FILE" (a list), labels="none"'),
        ("it is damaged; run packer verify PACK --deep", "it is damaged; run packer verify PACK --deep"),
    ],
)
def test_options_are_parameters_in_python(line, text):
    error = UsageError("", line)
    assert (error.line, str(error)) == (line, text)
