"""All bombs: they take no time."""

from __future__ import annotations

import pytest
import torture_bombs
from outcome import Budget


def test_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torture_bombs, "MOST_S", 0.5)  # of a machine that does other things; the row says 10 ms
    outcome = torture_bombs.bombs(Budget())
    assert outcome.faults == [] and outcome.done["bombs"] >= 11
