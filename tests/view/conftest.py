"""One browser and one served pack for all tests that look at the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import looking
import pytest
from running import good

from packer import open_pack
from packer.format.pack import Pack
from packer.sources.synthetic import draw_sample


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Marks are kept in a folder of the tests, not in that of the user."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def page() -> Iterator[Any]:
    with looking.browser() as page:
        yield page


@pytest.fixture(scope="session")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pack, str]]:
    """A pack of 150 images with boxes, and the address of its page."""
    folder = tmp_path_factory.mktemp("boxed")
    draw_sample(folder / "src", layout="voc", count=150, size=64)
    good("build", folder / "src", "-o", folder / "boxed.lmdb", "--labels", "voc", "--split", "all", "--resize", "64x64")
    with looking.served(folder / "boxed.lmdb") as served:
        yield open_pack(folder / "boxed.lmdb"), served.url


@pytest.fixture
def opened(page: Any, boxed: tuple[Pack, str]) -> Iterator[Any]:
    """The page of `boxed`, as it opens; nothing was said on its console at the end."""
    page.said.clear()
    page.goto(boxed[1])
    page.wait_for_function(looking.FILLED)
    yield page
    assert page.said == []


@pytest.fixture(scope="session")
def sixty(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """60 images with none to several boxes."""
    folder = tmp_path_factory.mktemp("sixty")
    draw_sample(folder / "src", layout="yolo", count=60, size=48, seed=3)
    for number in range(0, 60, 7):  # without a box
        sorted((folder / "src").rglob("labels/**/*.txt"))[number].write_text("")
    good("build", folder / "src", "-o", folder / "pack", "--labels", "yolo", "--split", "all")
    return open_pack(folder / "pack")
