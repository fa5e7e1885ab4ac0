"""The packs of the read side's tests, to be damaged and repaired."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

LOADING = Path(__file__).resolve().parent.parent / "loading"
sys.path.insert(0, str(LOADING))  # damage.py

_spec = importlib.util.spec_from_file_location("conftest_of_loading", LOADING / "conftest.py")
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
make_pack, container, copied = _module.make_pack, _module.container, _module.copied
