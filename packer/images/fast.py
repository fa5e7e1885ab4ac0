"""The optional native decoder, `dataset-packer-fast`: it decodes only the part of a JPEG that a crop needs."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from packer.errors import UsageError

INSTALL = 'pip install "dataset-packer[fast]"'


@cache
def native() -> tuple[Any, str]:
    """Return the module packer_fast, or None and the reason; it is looked for once in a process."""
    try:
        import packer_fast

        packer_fast.version()  # loads the library
    except ModuleNotFoundError:
        return None, "is not installed"
    except (ImportError, OSError) as error:
        warnings.warn(f"dataset-packer-fast cannot be used, JPEGs are decoded without it: {error}", stacklevel=2)
        return None, f"cannot be used: {error}"
    return packer_fast, ""


def load_native() -> Any:
    """Return the module packer_fast. Raise UsageError if it cannot be used."""
    module, reason = native()
    if module is None:
        raise UsageError("--decoder fast", f"dataset-packer-fast {reason}", f"{INSTALL}, or choose --decoder auto")
    return module


def native_version() -> str:
    """Return the versions and instructions of the native decoder; "" if it is not there."""
    module, _ = native()
    return "" if module is None else str(module.version())
