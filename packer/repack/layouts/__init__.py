"""The table of layouts that `packer extract` writes: a new one is its file and one line here, or an entry point."""

from __future__ import annotations

from packer.errors import option
from packer.repack.layouts.layout import Layout
from packer.system.registry import Registry, choose

_HOMES = {
    "folder": "packer.repack.layouts.builtin:FolderLayout",
    "voc": "packer.repack.layouts.builtin:VocLayout",
    "yolo": "packer.repack.layouts.builtin:YoloLayout",
    "coco": "packer.repack.layouts.builtin:CocoLayout",
    "list": "packer.repack.layouts.builtin:ListLayout",
    "masks": "packer.repack.layouts.builtin:MasksLayout",
}
_REGISTRY = Registry(_HOMES, "packer.layouts")
"""Entry points of this group add layouts: a name, and the subclass of `Layout`."""
LAYOUTS = _REGISTRY.own
"""The built-in values of ``--layout``."""


def layout_names() -> tuple[str, ...]:
    """Return all values of ``--layout``, with those of other packages last."""
    return _REGISTRY.names


def layout_of(name: str) -> type[Layout]:
    """Return the layout called `name`. Raise UsageError if there is none."""
    found: type[Layout] = _REGISTRY.load(choose(option("layout"), name, layout_names()))
    return found
