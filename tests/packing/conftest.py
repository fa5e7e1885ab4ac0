"""Sources and packs that several tests of the build look at; each is made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn import draw_classes, draw_landmarks, draw_plain, draw_shots, draw_voc


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small sources: plain, classes, voc, faces, shots. Only to be read."""
    root = tmp_path_factory.mktemp("sources")
    draw_plain(root / "plain")
    draw_classes(root / "classes")
    draw_voc(root / "voc")
    draw_landmarks(root / "faces")
    draw_shots(root / "shots")
    return root
