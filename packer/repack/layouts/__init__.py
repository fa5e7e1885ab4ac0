"""The table of layouts that `packer extract` writes: a new one is its file and one line here."""

from __future__ import annotations

import importlib

from packer.errors import UsageError, option
from packer.repack.layouts.base import Layout
from packer.sources.paths import quoted

_HOMES = {
    "folder": "packer.repack.layouts.folder:FolderLayout",
    "voc": "packer.repack.layouts.voc:VocLayout",
    "yolo": "packer.repack.layouts.yolo:YoloLayout",
    "coco": "packer.repack.layouts.coco:CocoLayout",
    "list": "packer.repack.layouts.table:ListLayout",
}

LAYOUTS = tuple(_HOMES)
"""The values of ``--layout``."""


def layout_of(name: str) -> type[Layout]:
    """Return the layout called `name`. Raise UsageError if there is none."""
    if name not in _HOMES:
        raise UsageError(option("layout"), f"no layout {quoted(name)}", f"choose one of {', '.join(LAYOUTS)}")
    module, _, kind = _HOMES[name].partition(":")
    found: type[Layout] = getattr(importlib.import_module(module), kind)
    return found
