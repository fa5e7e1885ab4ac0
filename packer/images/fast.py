"""The optional native decoder, `dataset-packer-fast`: it decodes only the part of a JPEG that a crop needs."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from packer.errors import NotInstalled, option
from packer.system.machine import install_command

INSTALL = install_command("fast")
NOT_THERE = "is not installed"
FAST = option("decoder", "fast")


@cache
def native() -> tuple[Any, str]:
    """Return the module packer_fast, or None and the reason; it is looked for once in a process."""
    try:
        import packer_fast

        packer_fast.version()  # loads the library
    except ModuleNotFoundError:
        return None, NOT_THERE
    except (ImportError, OSError) as error:
        return None, f"cannot be used: {error}"
    return packer_fast, ""


def native_for_auto() -> Any:
    """Return the module packer_fast, or None; warn if it is installed and cannot be used.

    None as well where the library has no vector instructions for the processor: its plain C takes longer than the
    vector instructions of libjpeg-turbo and OpenCV, although it decodes less.
    """
    module, reason = native()
    if module is None and reason != NOT_THERE:
        warnings.warn(f"dataset-packer-fast {reason}; JPEGs are decoded without it", stacklevel=2)
    return None if module is None or "plain C" in module.version() else module


def load_native(needed_by: str = FAST, next_step: str = f"{INSTALL}, or choose {option('decoder', 'auto')}") -> Any:
    """Return the module packer_fast. Raise NotInstalled, naming the option that needs it, if it cannot be used."""
    module, reason = native()
    if module is None:
        raise NotInstalled(needed_by, f"needs dataset-packer-fast, which {reason}", next_step)
    return module


def native_version() -> str:
    """Return the versions and instructions of the native decoder; "" if it is not there."""
    module, _ = native()
    return "" if module is None else str(module.version())
