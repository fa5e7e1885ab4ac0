"""What the first tier of the tests leaves out (tiers.py)."""

from __future__ import annotations

import re

import tiers

NAMED = [*tiers.products(), *tiers.FIRST_CASES]


def test_every_test_that_is_named_is_there() -> None:
    text = {file: (tiers.HERE / file).read_text() for file in {name.partition("::")[0] for name in NAMED}}
    for name in NAMED:
        file, _, function = name.partition("::")
        assert re.search(rf"^ *def {function}\(", text[file], re.MULTILINE), name


def test_none_is_named_twice() -> None:
    assert len(set(NAMED)) == len(NAMED)
