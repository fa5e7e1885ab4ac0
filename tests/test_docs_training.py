"""Every Python block of docs/training.md runs, in order, on the CPU and with small packs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from drawn import draw_classes, draw_landmarks, draw_voc

from packer import BuildOptions, build_pack

PAGE = Path(__file__).resolve().parent.parent / "docs" / "training.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packs that the page names."""
    home = tmp_path_factory.mktemp("training")
    draw_classes(home / "imgs", each=16)
    draw_classes(home / "val", each=3)
    draw_voc(home / "voc")
    draw_landmarks(home / "faces", 16)
    options = {
        "imgs": {"resize": "32x32"},
        "val": {"encode": "jpeg"},
        "voc": {"labels": ("voc",)},
        "faces": {"labels": (f"list:{home / 'faces' / 'landmarks.txt'}",), "columns": ("path x*5 y*5",)},
    }
    for name, chosen in options.items():
        build_pack(BuildOptions(str(home / name), str(home / f"{name}.lmdb"), workers=1, **chosen))  # type: ignore[arg-type]
    return home


def test_the_page_has_its_blocks() -> None:
    text = PAGE.read_text()
    assert len(BLOCKS) >= 6
    named = set(re.findall(r"\"(\w+)\.lmdb\"", text))
    assert named <= {"imgs", "val", "voc", "faces"}


def test_every_block_runs(packs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(packs)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    benchmark = torch.backends.cudnn.benchmark
    try:
        for block in BLOCKS:  # each for itself, as one would paste it
            line = PAGE.read_text().partition(block)[0].count("\n")
            exec(compile("\n" * line + block, str(PAGE), "exec"), {"__name__": "__main__"})
    finally:
        torch.backends.cudnn.benchmark = benchmark
    assert "images_per_s" in capsys.readouterr().out
