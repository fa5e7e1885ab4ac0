"""Without torch and jpeg4py, all but training works, and training says what to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from drawn import draw_classes
from running import ROOT

from packer.containers import CONTAINERS

BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "jpeg4py"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""As sitecustomize.py, it is in every process: that of the command, and those of its workers."""


def run_without(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python without torch."""
    (folder / "absent").mkdir(exist_ok=True)
    (folder / "absent" / "sitecustomize.py").write_text(BLOCK)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "absent"), str(ROOT)])}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


PACK = """
from packer.__main__ import main

def packer(line, code=0):
    assert main(line.split()) == code, line

import packer as library, sys
for name in sys.argv[1:]:
    packer(f"build imgs --format {name} --workers 1 --resize 24x24 --encode jpeg -o {name}")
    packer(f"info {name}")
    packer(f"verify {name} --deep")
    packer(f"stats {name}")
    packer(f"view {name} --export sheet.html")
    pack = library.open_pack(name)
    assert len(pack) == 6 and pack.image(5).shape == (24, 24, 3) and pack.annotation(5).label == 1
packer("build imgs --decoder jpeg4py -o q", 2)
assert "torch" not in sys.modules and "jpeg4py" not in sys.modules
"""


@pytest.mark.parametrize("containers", [CONTAINERS[:1], CONTAINERS[1:]], ids=["one container", "the others"])
def test_packing_needs_neither_torch_nor_jpeg4py(containers: tuple[str, ...], tmp_path: Path) -> None:
    draw_classes(tmp_path / "imgs", ("ant", "bee"), 3)
    ran = run_without(tmp_path, PACK, *containers)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "packer: error: --decoder jpeg4py: jpeg4py is not installed\ntry: pip install jpeg4py\n"
    assert (tmp_path / "sheet.html").stat().st_size > 1000


def test_training_says_what_to_install(tmp_path: Path) -> None:
    names = ("PackedLoader", "PackedDataset", "CudaPrefetcher", "collate")
    ran = run_without(tmp_path, "from packer import collate")
    assert ran.stderr.splitlines()[-1] == "packer.errors.NotInstalled: collate: needs PyTorch; pip install torch"
    program = "\ntry:\n    packer.{0}\nexcept ImportError as error:\n    print(error)"
    ran = run_without(tmp_path, "import packer" + "".join(map(program.format, names)))
    assert ran.stdout == "".join(f"{name}: needs PyTorch; pip install torch\n" for name in names)


def test_commands_that_need_torch_say_so(tmp_path: Path) -> None:
    draw_classes(tmp_path / "imgs", ("ant", "bee"), 3)
    run = "import sys; from packer.__main__ import main; sys.exit(main(['bench', 'imgs']))"
    ran = run_without(tmp_path, run)
    assert (ran.returncode, ran.stderr) == (2, "packer: error: this command needs PyTorch\ntry: pip install torch\n")


def test_the_docs_name_what_to_install_without_torch() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    needed = re.findall(r'^    "([\w-]+)', text.partition("\ndependencies = [")[2].partition("\n]")[0], re.MULTILINE)
    section = (ROOT / "docs" / "install.md").read_text().partition("## Without torch")[2].replace("\\\n", "")
    (listed,) = re.findall(r"^pip install (click .*)$", section, re.MULTILINE)
    assert sorted(listed.split()) == sorted(set(needed) - {"torch", "jpeg4py"})
    assert "pip install --no-deps .\n" in section
