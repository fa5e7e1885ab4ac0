"""Shows a pack in the browser: a local page, and a contact sheet in one file.

The module can be called: ``packer.view(pack)`` shows a pack in a notebook (`packer.view.notebook.view`).
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from packer.view.notebook import Sheet, View, view


class _CallableModule(ModuleType):
    """This module, which is a function too: importing one of its modules sets ``packer.view`` to it."""

    __signature__ = inspect.signature(view)

    def __call__(self, *args: Any, **options: Any) -> View | Sheet:
        return view(*args, **options)

    __call__.__doc__ = view.__doc__


sys.modules[__name__].__class__ = _CallableModule
# help(packer.view) shows that of a module
__doc__ = f"{__doc__}\n{'packer.view' + str(inspect.signature(view)).replace(chr(39), '')}\n\n{inspect.getdoc(view)}\n"
