"""Builds a pack from a folder of labelled images: scan the source, plan the shards, write them, publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packer.packing.build import (
        BuildSummary,
        build_pack,
        build_packs,
        build_part,
        build_parts,
        plan_pack,
        plan_packs,
    )
    from packer.packing.build_options import BuildOptions

__all__ = [
    "BuildOptions",
    "BuildSummary",
    "build_pack",
    "build_packs",
    "build_part",
    "build_parts",
    "plan_pack",
    "plan_packs",
]


def __getattr__(name: str) -> Any:
    """Import a build when it is asked for: help and errors in options need none of its libraries."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from packer.packing import build

    return getattr(build, name)
