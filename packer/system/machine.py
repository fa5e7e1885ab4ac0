"""Describes this machine and its libraries for `packer doctor`; nothing has to be installed, and nothing fails."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import tempfile
from contextlib import suppress
from typing import Any

from packer.system import available_bytes, load_average, memory_bytes, usable_cores
from packer.system.storage import file_system

LIBRARIES = {
    "numpy": "numpy", "opencv": "cv2", "pillow": "PIL", "simplejpeg": "simplejpeg", "jpeg4py": "jpeg4py",
    "pyarrow": "pyarrow", "lmdb": "lmdb", "h5py": "h5py", "click": "click", "torch": "torch",
}  # fmt: skip
"""Library -> its module."""
EXTRAS = {
    "fast": ("dataset-packer-fast",), "remote": ("obstore", "fsspec"), "report": ("matplotlib",),
    "dali": ("nvidia-dali-cuda120",), "ray": ("ray",), "dask": ("distributed",), "datumaro": ("datumaro",),
    "rfdetr": ("rfdetr",), "ultralytics": ("ultralytics",), "timm": ("timm",), "libreyolo": ("libreyolo",),
    "coco": ("pycocotools",), "eval": ("pycocotools",),
}  # fmt: skip
"""Extra of the distribution -> its distributions."""


def install_command(extra: str) -> str:
    """Return the command that installs what an extra needs, wherever packer itself was installed from."""
    if extra == "fast":  # on no package index yet
        return "pip install ./packer-fast in a clone of packer"
    return f"pip install {' '.join(EXTRAS[extra])}"


def machine_facts() -> dict[str, Any]:
    """Return system, cores, memory and disks as JSON values; None where the system does not tell."""
    memory = memory_bytes()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "cores": os.cpu_count() or 1,
        "usable_cores": usable_cores(),
        "load": load_average(),
        "memory_bytes": None if memory == sys.maxsize else memory,
        "available_bytes": None if memory == sys.maxsize else available_bytes(),
        "disks": [
            disk
            for what, path in (("current folder", os.getcwd()), ("temporary", tempfile.gettempdir()), ("shm", SHM))
            if (disk := _disk(what, path)) is not None
        ],
    }


SHM = "/dev/shm"


def version_facts() -> dict[str, dict[str, str | None]]:
    """Return version and problem of each library; importing it is the test."""
    found: dict[str, dict[str, str | None]] = {}
    for name, module in LIBRARIES.items():
        version, problem = None, None
        try:
            loaded = importlib.import_module(module)
            version = str(getattr(loaded, "__version__", "") or _version(name) or "installed")
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            problem = "not installed" if missing == module else f"needs {missing}, which is not installed"
        except Exception as error:  # a broken library may raise anything
            version, problem = _version(name), f"cannot be imported: {str(error).strip() or type(error).__name__}"
        found[name] = {"version": version, "problem": None if problem is None else problem.splitlines()[0]}
    return found


def extra_facts() -> dict[str, dict[str, str | None]]:
    """Return the versions of the distributions of each extra; None: not installed."""
    return {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()}


def gpu_facts() -> dict[str, Any]:
    """Return the GPUs that torch sees, and why it sees none."""
    facts: dict[str, Any] = {"devices": [], "cuda": None, "driver": _driver(), "problem": None}
    try:
        torch: Any = importlib.import_module("torch")
        facts["cuda"] = torch.version.cuda
        if torch.cuda.is_available():
            for number in range(torch.cuda.device_count()):
                about = torch.cuda.get_device_properties(number)
                facts["devices"].append({"name": about.name, "memory_bytes": about.total_memory})
        elif facts["cuda"] is None:
            facts["problem"] = "torch is built without CUDA"
        else:
            facts["problem"] = "torch sees no GPU"
    except ModuleNotFoundError:
        facts["problem"] = "torch is not installed"
    except Exception as error:  # a driver may raise anything
        facts["problem"] = (str(error).strip() or type(error).__name__).splitlines()[0]
    return facts


def _version(distribution: str) -> str | None:
    from importlib import metadata  # takes 30 ms, which `packer --help` does not need

    for name in (distribution, f"{distribution}-python-headless", f"{distribution}-python"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def _processor() -> str:
    with suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    """Return the version of NVIDIA's kernel driver."""
    with suppress(OSError, IndexError), open("/proc/driver/nvidia/version", encoding="utf-8") as file:
        return file.readline().partition("Module")[2].split()[0]
    return None


def _disk(what: str, path: str) -> dict[str, Any] | None:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return {
        "what": what, "path": path, "file_system": file_system(path) or None, "total_bytes": usage.total,
        "free_bytes": usage.free,
    }  # fmt: skip
