"""Short slices of what torture_flips.py runs at length."""

from __future__ import annotations

import pytest
from outcome import Budget
from torture_flips import changes, flips, truncations

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize(("row", "share"), [(flips, 0.0008), (truncations, 0.005), (changes, 0.1)])
def test_slice(row, share):
    outcome = row(Budget(seed=7), share)
    assert not outcome.faults
    assert outcome.done["cases"] >= 400 and not outcome.done.get("crashes")
    assert outcome.done["read as an error"] > 0
