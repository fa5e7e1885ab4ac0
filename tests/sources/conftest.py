"""Draws small source folders: images are files that begin with IMAGE."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from packer.sources.source import Tree
from packer.sources.tree import find_tree

IMAGE = b"\xff\xd8\xff image"
MakeTree = Callable[[Mapping[str | bytes, bytes | str]], Tree]


def looks_like_image(path: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(IMAGE)) == IMAGE


def write_files(root: bytes, files: Mapping[str | bytes, bytes | str]) -> None:
    """A name that ends in / is a folder; an image's content may be left empty."""
    for name, content in files.items():
        path = os.path.join(root, os.fsencode(name))
        os.makedirs(path if path.endswith(b"/") else os.path.dirname(path), exist_ok=True)
        if not path.endswith(b"/"):
            with open(path, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Write these files below ``src/`` and find them."""

    def make(files: Mapping[str | bytes, bytes | str]) -> Tree:
        root = os.fsencode(tmp_path / "src")
        os.makedirs(root, exist_ok=True)
        write_files(root, files)
        return find_tree(root, looks_like_image)[0]

    return make
