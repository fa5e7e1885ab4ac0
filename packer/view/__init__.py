"""Shows a pack in the browser: a local page, and a contact sheet in one file.

The module can be called: ``packer.view(pack)`` shows a pack in a notebook (`packer.view.notebook.view`).
"""

from __future__ import annotations

from packer.system import callable_module
from packer.view.notebook import Sheet, View, view

__all__ = ["Sheet", "View", "view"]

callable_module(__name__, view)
