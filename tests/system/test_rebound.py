"""Copies of functions that find other objects than the functions themselves."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from packer.errors import NotInstalled
from packer.system.rebound import Library

LIBRARY = Library("some", "9.8", "pip install some==9.7")


def written(value: object, *, indent: int = 1) -> str:
    from json.encoder import JSONEncoder

    return json.dumps(value, indent=indent) + JSONEncoder.__name__


def test_a_copy_finds_other_objects_and_the_function_its_own() -> None:
    copied = LIBRARY.with_names(written, json=SimpleNamespace(dumps=lambda value, indent: f"{indent} {value}"))
    assert copied(3) == "1 3JSONEncoder" and copied(3, indent=2) == "2 3JSONEncoder"
    assert written(3) == "3JSONEncoder" and json.dumps(3) == "3"


def test_only_its_own_imports_are_others() -> None:
    import json.encoder

    before = json.encoder.JSONEncoder
    copied = LIBRARY.with_names(written, importing=("json.encoder", {"JSONEncoder": int}))
    assert copied(3) == "3int" and written(3) == "3JSONEncoder"
    assert json.encoder.JSONEncoder is before and copied.__globals__ is not written.__globals__


def test_a_version_that_does_not_use_a_name_is_refused() -> None:
    with pytest.raises(NotInstalled, match=r"some: version 9.8 does not fit: written does not use loads; .*==9\.7"):
        LIBRARY.with_names(written, loads=None)
