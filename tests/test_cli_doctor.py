"""`packer doctor`: it describes the machine, whatever is missing or broken, and each piece of advice has a command."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from running import good, run_apart, run_script

from packer import __version__
from packer.cli.measuring import advice
from packer.images.decoders import DECODERS, decoder_rates
from packer.system import PORTABLE, usable_cores
from packer.system.machine import LIBRARIES

COMMAND = re.compile(r"\b(packer (build|bench)|pip install|docker run|taskset|cp -r|top shows)\b")


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_apart("doctor", "--json").out)
    return found


def test_facts(facts: dict[str, Any]) -> None:
    assert facts["packer"] == __version__ and sys.version.split()[0] in facts["python"]
    assert facts["usable_cores"] == usable_cores()
    if PORTABLE:
        assert facts["memory_bytes"] is facts["available_bytes"] is None  # nobody knows there
    else:
        assert facts["memory_bytes"] > facts["available_bytes"] > 0
    assert {name: one["problem"] for name, one in facts["libraries"].items()} == dict.fromkeys(LIBRARIES)
    assert {disk["what"] for disk in facts["disks"]} >= {"current folder", "temporary"}
    assert list(facts["decoders"]) == list(DECODERS)
    assert isinstance(facts["decoders"]["simplejpeg"], float) and facts["decoders"]["simplejpeg"] > 10
    assert all(COMMAND.search(line) for line in facts["advice"]) and facts["advice"]


def test_lines(facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.system.machine.gpu_facts", lambda: facts["gpu"])  # without loading torch here
    monkeypatch.setattr("packer.system.machine.version_facts", lambda: facts["libraries"])
    monkeypatch.setattr("packer.images.decoders.decoder_rates", lambda: facts["decoders"])
    out = good("doctor").out
    names = ("packer", "python", "system", "cores", "memory", "disk", "libraries", "gpu", "decoders", "extras")
    for name in names if facts["memory_bytes"] else set(names) - {"memory"}:
        assert re.search(rf"^{name} +\S", out, re.MULTILINE), name
    assert re.search(r"^decoders +simplejpeg +[\d,]+ images/s in one thread$", out, re.MULTILINE)
    assert re.search(r"^note: \d+ cores? can decode about [\d,]+ photos/s", out, re.MULTILINE)


BROKEN = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {"torch", "jpeg4py"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if top in {"cv2", "numpy", "pyarrow", "h5py", "simplejpeg", "PIL"}:
            raise ImportError("libGL.so.1: cannot open shared object file")

sys.meta_path.insert(0, Broken())
from packer.__main__ import main
sys.exit(main(["doctor", "--json"]))
"""


@pytest.mark.interpreter
def test_missing_and_broken_libraries() -> None:
    found = json.loads(run_script(BROKEN))
    assert found["libraries"]["torch"] == {"version": None, "problem": "not installed"}
    assert found["libraries"]["opencv"]["problem"].startswith("cannot be imported: libGL.so.1")
    assert found["gpu"]["problem"] == "torch is not installed"
    assert all("libGL.so.1" in problem for problem in found["decoders"].values())
    assert "torch: not installed; pip install torch" in found["advice"]
    assert any(line.endswith("pip install --force-reinstall opencv-python-headless") for line in found["advice"])


def test_one_decoder_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise OSError("libturbojpeg.so.0: cannot open")

    monkeypatch.setitem(DECODERS, "jpeg4py", broken)
    rates = decoder_rates(0.01)
    assert rates["jpeg4py"] == "OSError: libturbojpeg.so.0: cannot open"
    assert all(isinstance(rate, float) for name, rate in rates.items() if name not in ("jpeg4py", "fast"))


def test_advice(facts: dict[str, Any]) -> None:
    disk = {"path": "/data", "total_bytes": 64 << 20, "free_bytes": 1 << 20, "file_system": "nfs4"}
    bad = {
        **facts, "cores": 64, "usable_cores": 2, "load": 9.0, "available_bytes": 1 << 20,
        "disks": [{**disk, "what": "current folder"}, {**disk, "what": "shm", "path": "/dev/shm"}],
        "gpu": {"devices": [], "driver": "550.54", "problem": "torch is built without CUDA", "cuda": None},
    }  # fmt: skip
    lines = list(advice(bad))
    for part in (
        "may use 2 of 64 cores", "load 9", "1.0 MB of memory", "on a network (nfs4)", "only 1.0 MB are free in /data",
        "/dev/shm has only 64.0 MB", "torch is built without CUDA",
    ):  # fmt: skip
        assert sum(part in line for line in lines) == 1, part
    assert all(COMMAND.search(line) for line in lines)
