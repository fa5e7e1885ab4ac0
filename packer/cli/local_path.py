"""The type of arguments and options that name a file or folder of this machine."""

from __future__ import annotations

from typing import Any

import click

from packer.errors import AnyPath, UsageError
from packer.stores import is_url


class LocalPath(click.Path):
    """A path that must not be a URL, which would be taken for one below a folder ``s3:``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raise UsageError if it is a URL."""
        path: AnyPath = super().convert(value, param, ctx)
        if is_url(path):
            raise UsageError(path, "is a URL, where a path on this machine is needed", "name a file or folder")
        return path
