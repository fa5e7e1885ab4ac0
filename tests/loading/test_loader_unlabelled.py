"""A pack without labels: nothing is looked up an image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from packer import BuildOptions, PackedLoader, build_pack
from packer.format.records import Records


def test_no_annotation_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for number in range(5):
        image = np.full((8, 8, 3), 40 * number, np.uint8)
        (source / f"{number}.jpg").write_bytes(simplejpeg.encode_jpeg(image))
    build_pack(BuildOptions(source=str(source), out=str(tmp_path / "pack"), labels=("none",), workers=1))
    monkeypatch.setattr(Records, "rows", None)
    targets = [target for _, part in PackedLoader(tmp_path / "pack", 2, flip=True) for target in part]
    assert targets == [{"image_id": number} for number in range(5)]
    assert len({id(target) for target in targets}) == 5  # each its own: a loop may put something into it
