"""Builds a pack from a folder of labelled images: scan the source, plan the shards, write them, publish."""

from __future__ import annotations

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
