"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from typing import Any

from packer import __version__
from packer.system import memory_bytes, usable_cores

LIBRARIES = ("torch", "numpy", "opencv-python-headless", "simplejpeg", "pillow", "lmdb", "h5py")


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, versions, date."""
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"packer": __version__, "python": platform.python_version(), **_versions()},
    }


def device_name(device: str) -> str:
    """The name of a GPU."""
    import torch

    return str(torch.cuda.get_device_name(device))


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
