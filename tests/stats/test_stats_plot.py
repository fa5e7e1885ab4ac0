"""`packer stats --plot`: what is drawn, and that it can be read with 3 and with 80 classes."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw, draw_classes, draw_plain
from PIL import Image
from running import good, refused

from packer.format.pack import open_pack
from packer.sources.synthetic import draw_sample
from packer.stats import pack_stats


def texts_of(svg: Path) -> list[str]:
    """All texts of a drawing, which matplotlib also writes as comments."""
    return re.findall(r"<!-- (.*?) -->", svg.read_text("utf-8"))


def plotted(pack: Path) -> list[str]:
    """The texts of the plot of a pack."""
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    good("stats", pack, "--no-pixels", "--plot", pack.parent / "a.svg")
    return texts_of(pack.parent / "a.svg")


def packed(source: Path, *options: Any) -> Path:
    good("build", source, "-o", source.parent / "pack", *options)
    return source.parent / "pack"


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    draw_sample(tmp_path / "src", "voc", 12, 40)
    pack = packed(tmp_path / "src", "--split", "all")
    assert "plot: " in good("stats", pack, "--plot", tmp_path / "a.png", "--no-pixels").out
    with Image.open(tmp_path / "a.png") as image:
        assert image.size[0] > 500 and len(np.unique(np.asarray(image.convert("L")))) > 10
    assert "--plot" in refused(2, "stats", pack, "--plot", tmp_path / "a.xyz", "--no-pixels")
    texts = plotted(pack)
    stats = pack_stats(pack, pixels=False)
    assert stats.boxes is not None
    assert {"circle", "boxes per class: 4 classes", "centers of the boxes in their images"} <= {*texts}
    assert f"{stats.boxes.boxes} boxes, centered in their images" in texts
    assert any(text.startswith("boxes per image: every image has some, at most ") for text in texts)


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install matplotlib" in refused(2, "stats", tmp_path / "nothing", "--plot", tmp_path / "a.png")


def test_one_size_is_said_in_words(tmp_path: Path) -> None:
    """Previously a single dot in an empty square."""
    texts = plotted(packed(draw_plain(tmp_path / "src", 5), "--labels", "none"))
    assert texts == ["pack: 5 images, all 40 x 30 px; no labels"]


def test_few_sizes_have_a_bar_each(tmp_path: Path) -> None:
    for i in range(5):
        draw(tmp_path / "src" / f"{i}.jpg", i, *((40, 30) if i < 3 else (16, 24)))
    texts = plotted(packed(tmp_path / "src", "--labels", "none", "--encode", "copy"))
    assert {"sizes of the images, px: 2 different ones", "40 x 30", "16 x 24"} <= {*texts}


def test_landmarks_are_numbered(tmp_path: Path) -> None:
    draw_sample(tmp_path / "src", "list", 9, 40)
    texts = plotted(packed(tmp_path / "src"))
    assert "mean landmarks of 9 images, with one standard deviation" in texts and {"1", "2", "3", "4"} <= {*texts}


@pytest.mark.filterwarnings("error")
def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    names = ["$a$ {b}", "ünï", "x" * 60 + "END", "𒀀 tag"]
    texts = plotted(packed(draw_classes(tmp_path / "src", names, each=1)))
    assert {"$a$ {b}", "ünï", f"{'x' * 16}…{'x' * 6}END"} <= {text.replace(r"\$", "$") for text in texts}
    assert "3: ? tag" in texts  # none of the fonts has cuneiform


@pytest.mark.parametrize("count", [3, 80, 200])
def test_class_names_do_not_overprint(tmp_path: Path, count: int) -> None:
    """Previously 40 names in a panel of 4 inches."""
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    from packer.stats.plots import draw_stats

    names = [f"class number {i}" for i in range(count)]
    (tmp_path / "names.txt").write_text("\n".join(names), "utf-8")
    pack = packed(draw_classes(tmp_path / "src", names[:3], each=1), "--classes", tmp_path / "names.txt")
    figure = draw_stats(pack_stats(pack, pixels=False), open_pack(pack))
    figure.draw_without_rendering()
    found = 0
    for axes in figure.axes:
        boxes = sorted((label.get_window_extent() for label in axes.get_yticklabels()), key=lambda box: box.y0)
        found += sum(label.get_text().startswith("class number") for label in axes.get_yticklabels())
        assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
        assert all(box.x0 >= 0 for box in boxes)
    assert found == min(count, 90)


def test_bins_of_counts() -> None:
    """0 has a bar of its own. Previously 0 and 1 shared one if there were many boxes."""
    pytest.importorskip("matplotlib", reason="the extra `report` is not installed")
    from packer.stats.plots import whole_bins

    assert whole_bins(np.array([1, 3])) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert whole_bins(np.array([0, 0])) == [(0, 0)]
    even = whole_bins(np.arange(100))
    assert even[:3] == [(0, 0), (1, 4), (5, 8)] and even[-1][1] >= 99
    outlier = whole_bins(np.array([2] * 500 + [999]))
    assert outlier == [(0, 0), (1, 1), (2, 2), (3, 999)]
    for bins in (even, outlier):
        assert all(one[1] + 1 == two[0] for one, two in pairwise(bins))
