"""Class folders: ``cat/1.jpg``."""

from __future__ import annotations

import os

from packer.errors import UsageError, option
from packer.format.manifest import Manifest
from packer.model.annotation import Annotation
from packer.repack.layouts.base import Layout
from packer.sources.paths import IMAGE_FOLDERS, SPLIT_FOLDER, as_bytes, quoted


class FolderLayout(Layout):
    """Images in the folders of their classes, and beside them those without a class, or of a pack without labels."""

    name = "folder"
    holds = needs = frozenset({"label"})

    def __init__(self, folder: str, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self._plain = not manifest.fields
        if self._plain:
            self.needs, self.labels = frozenset(), "none"

    def check(self) -> None:
        """Raise UsageError if a class cannot be a folder, or would not be read as a class."""
        super().check()
        for name in self.classes:
            folder = as_bytes(name)
            if b"/" in folder or folder.startswith(b".") or len(folder) > 255:
                raise UsageError(option("layout"), f"the class {quoted(name)} cannot be a folder", "choose list")
            if SPLIT_FOLDER.fullmatch(folder) or folder.lower() in IMAGE_FOLDERS:
                problem = f"the class {quoted(name)} would not be read as a class, as a folder"
                raise UsageError(option("layout"), problem, "choose list")

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return the path below the folder of its class, which is not repeated."""
        if self._plain:
            return path
        if annotation.label is None:
            self.lost["the class, which it does not have: it lies beside the class folders"] += 1
            return path.replace(b"/", b"_")
        folder = as_bytes(self.classes[annotation.label])
        parts = path.split(b"/")
        if folder in parts[:-1]:
            parts = parts[parts.index(folder) + 1 :]
        return b"/".join([folder, *parts])

    def close(self) -> None:
        """Create the folders of classes without images, too."""
        for name in self.classes:
            os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        self.write_classes()
