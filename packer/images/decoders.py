"""JPEG decoders: which work on this machine, and how fast; finds and loads packer-fast. None has to be installed."""

from __future__ import annotations

import io
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from packer.errors import NotInstalled, option
from packer.system import loadable_library
from packer.system.machine import install_command

SIZE = 500, 375
"""Width and height of the measured image, as of ImageNet's photos."""
ROUNDS = 3
TURBOJPEG = {
    "darwin": tuple(f"{at}libturbojpeg.0.dylib" for at in ("", "/opt/homebrew/lib/", "/opt/libjpeg-turbo/lib64/")),
    "win32": ("turbojpeg.dll",),
}.get(sys.platform, ("libturbojpeg.so.0",))  # fmt: skip
"""What the system's libturbojpeg is called."""


def decoder_rates(seconds: float = 0.3) -> dict[str, float | str]:
    """Return the images/s of each JPEG decoder in one thread, or why it does not work.

    Args:
        seconds: How long to measure each.
    """
    found: dict[str, float | str] = {}
    try:
        data = _jpeg()
    except Exception as error:  # a broken library may raise anything
        return dict.fromkeys(DECODERS, f"no JPEG could be made: {_reason(error)}")
    for _ in range(ROUNDS):  # in turns, so that other programs slow all of them
        for name, load in DECODERS.items():
            before = found.get(name, 0.0)
            if isinstance(before, float):
                try:
                    found[name] = max(before, _rate(load(), data, seconds / ROUNDS))
                except Exception as error:
                    found[name] = _reason(error)
    return found


def _rate(decode: Callable[[bytes], Any], data: bytes, seconds: float) -> float:
    height, width = decode(data).shape[:2]
    if (width, height) != SIZE:
        raise ValueError(f"decodes to {width}x{height}")
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        decode(data)
        count += 1
    return count / passed


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no text'}"


def _jpeg() -> bytes:
    """Return a JPEG with about the bytes of a photo: soft noise."""
    import numpy as np

    width, height = SIZE
    coarse = np.random.default_rng(0).integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
    pixels = np.ascontiguousarray(np.kron(coarse, np.ones((8, 8, 1), np.uint8))[:height, :width])
    try:
        import simplejpeg

        return bytes(simplejpeg.encode_jpeg(pixels, 90))
    except ImportError:
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        return file.getvalue()


def _fast() -> Callable[[bytes], Any]:
    import numpy as np

    module, reason = native()
    if module is None:
        raise ImportError(f"dataset-packer-fast {reason}")
    width, height = SIZE
    size, region = np.array([SIZE], np.int32), np.array([[0, 0, width, height]], np.int32)

    def decode(data: bytes) -> Any:
        rows, jpeg = np.empty((1, height, width, 3), np.uint8), np.frombuffer(data, np.uint8)
        places = (np.array([number], np.uint64) for number in (jpeg.ctypes.data, len(jpeg)))
        (error,) = module.decode_batch(module.Batch(*places, size, region), rows)
        if error:
            raise ValueError(module.Error(error).name)
        return rows[0]

    return decode


def _simplejpeg() -> Callable[[bytes], Any]:
    import simplejpeg

    return lambda data: simplejpeg.decode_jpeg(data, "RGB")


def import_jpeg4py() -> Any:
    """Return the module jpeg4py with the system's libturbojpeg loaded.

    Raises:
        ImportError: jpeg4py is not installed.
        OSError: The system has no libturbojpeg.
    """
    import jpeg4py
    from jpeg4py import _cffi

    if _cffi.lib is None:
        # told a name that cannot be loaded, jpeg4py starts ldconfig and compilers to look for it
        name = loadable_library(TURBOJPEG)
        if name is None:
            raise OSError(f"{TURBOJPEG[0]} cannot be loaded")
        _cffi.initialize((name,))
    return jpeg4py


def _jpeg4py() -> Callable[[bytes], Any]:
    import numpy as np

    jpeg4py = import_jpeg4py()
    return lambda data: jpeg4py.JPEG(np.frombuffer(data, np.uint8)).decode()


def _opencv() -> Callable[[bytes], Any]:
    import cv2
    import numpy as np

    return lambda data: cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def _pillow() -> Callable[[bytes], Any]:
    import numpy as np
    from PIL import Image

    return lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


DECODERS: dict[str, Callable[[], Callable[[bytes], Any]]] = {
    "simplejpeg": _simplejpeg,
    "jpeg4py": _jpeg4py,
    "opencv": _opencv,
    "pillow": _pillow,
    "fast": _fast,
}
"""Name -> a function that loads it and returns its decoder to RGB."""


INSTALL = install_command("fast")
NOT_THERE = "is not installed"
FAST = option("decoder", "fast")


@cache
def native() -> tuple[Any, str]:
    """Return the module packer_fast, or None and the reason; it is looked for once in a process."""
    try:
        import packer_fast
        from packer_fast import decode_crops  # noqa: F401 - which older ones lack

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
