"""What the first tier of the tests leaves out (tiers.py)."""

from __future__ import annotations

import re

import pytest
import tiers

NAMED = [*tiers.products(), *tiers.FIRST_CASES]


@pytest.mark.parametrize("name", NAMED)
def test_every_test_that_is_named_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    assert re.search(rf"^ *def {function}\(", (tiers.HERE / file).read_text(), re.MULTILINE)


def test_none_is_named_twice() -> None:
    assert len(set(NAMED)) == len(NAMED)
