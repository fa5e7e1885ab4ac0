"""Python files in the current folder, where somebody's images are, are never run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from drawn import draw_classes

pytestmark = pytest.mark.workers

# `python -m packer` would look in the current folder; the script `packer` does not
START = "import sys; sys.path.remove(''); "
NAMES = ("cv2", "numpy", "selectors", "socket", "signal", "multiprocessing", "packer", "packer/build", "torch")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of images, and of modules that leave a file when they are imported."""
    draw_classes(tmp_path / "imgs", each=10)
    for name in NAMES:
        for file in (tmp_path / f"{name}.py", tmp_path / name / "__init__.py"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    return tmp_path


@pytest.mark.parametrize(
    "program",
    [
        "from packer.__main__ import main; sys.exit(main(['build', 'imgs', '--workers', '2', '--quiet'])"
        " or main(['verify', 'imgs.lmdb', '--deep']))",
        "from packer.bench.process import measuring\nwith measuring() as pool: list(pool.run(print, [0]))",
    ],
    ids=["build", "bench"],
)
def test_modules_there_are_not_imported(images: Path, program: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, "-c", START + program]
    done = subprocess.run(command, cwd=images, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (images / "ran").exists(), (images / "ran").read_text()
