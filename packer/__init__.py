"""packer: pack folders of labelled images, and train from them at memory speed.

Public names are imported on first use, so that `import packer` loads neither torch nor any image or
container library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packer.errors import PackerError
    from packer.format.pack import Pack, join_packs, open_pack
    from packer.format.salvage import repair
    from packer.format.verify import verify
    from packer.loading.affine import RandomAffine
    from packer.loading.collate import as_tv_tensors, collate, xywhr
    from packer.loading.crop import CenterCrop, CoverCrop, Letterbox, RandomResizedCrop, Resize
    from packer.loading.dataset import PackedDataset
    from packer.loading.loader import PackedLoader
    from packer.loading.mosaic import Mosaic
    from packer.loading.rescaled import RandomScaleCrop, WholeImage
    from packer.loading.to_device import CudaPrefetcher
    from packer.loading.views import CropView
    from packer.packing.build import BuildSummary, build, build_pack, build_packs, build_part, build_parts
    from packer.packing.build_options import BuildOptions
    from packer.packing.publish_version import versions_of
    from packer.packing.recorded import options_from, options_like
    from packer.repack.adopt import adopt
    from packer.repack.attach import attach, detach
    from packer.repack.convert import convert
    from packer.repack.diff import diff
    from packer.repack.edit import edit
    from packer.repack.extract import extract
    from packer.repack.fingerprints import attach_fingerprints, fingerprints_of
    from packer.repack.merge import merge
    from packer.repack.merge_tiles import merge_tiles
    from packer.repack.purge import purge
    from packer.repack.split import split
    from packer.repack.update import update
    from packer.repack.url_packs import pull, push
    from packer.repack.writer import PackWriter
    from packer.stats import pack_stats as stats
    from packer.view.notebook import view

__version__ = "0.2.0"

_HOMES = {
    "BuildOptions": "packer.packing.build_options",
    "BuildSummary": "packer.packing.build",
    "CenterCrop": "packer.loading.crop",
    "CoverCrop": "packer.loading.crop",
    "CudaPrefetcher": "packer.loading.to_device",
    "Letterbox": "packer.loading.crop",
    "Mosaic": "packer.loading.mosaic",
    "Pack": "packer.format.pack",
    "PackedDataset": "packer.loading.dataset",
    "PackWriter": "packer.repack.writer",
    "PackedLoader": "packer.loading.loader",
    "PackerError": "packer.errors",
    "RandomAffine": "packer.loading.affine",
    "RandomResizedCrop": "packer.loading.crop",
    "RandomScaleCrop": "packer.loading.rescaled",
    "Resize": "packer.loading.crop",
    "WholeImage": "packer.loading.rescaled",
    "CropView": "packer.loading.views",
    "adopt": "packer.repack.adopt",
    "attach": "packer.repack.attach",
    "attach_fingerprints": "packer.repack.fingerprints",
    "as_tv_tensors": "packer.loading.collate",
    "build": "packer.packing.build",
    "build_pack": "packer.packing.build",
    "build_packs": "packer.packing.build",
    "build_part": "packer.packing.build",
    "build_parts": "packer.packing.build",
    "collate": "packer.loading.collate",
    "detach": "packer.repack.attach",
    "diff": "packer.repack.diff",
    "edit": "packer.repack.edit",
    "extract": "packer.repack.extract",
    "fingerprints_of": "packer.repack.fingerprints",
    "join_packs": "packer.format.pack",
    "merge": "packer.repack.merge",
    "merge_tiles": "packer.repack.merge_tiles",
    "convert": "packer.repack.convert",
    "open_pack": "packer.format.pack",
    "options_from": "packer.packing.recorded",
    "options_like": "packer.packing.recorded",
    "pull": "packer.repack.url_packs",
    "purge": "packer.repack.purge",
    "push": "packer.repack.url_packs",
    "repair": "packer.format.salvage",
    "split": "packer.repack.split",
    "update": "packer.repack.update",
    "verify": "packer.format.verify",
    "versions_of": "packer.packing.publish_version",
    "xywhr": "packer.loading.collate",
}

_MODULES = frozenset(("stats", "ultralytics", "view"))
"""Modules that are imported on first use; `packer.stats` and `packer.view` can be called."""

__all__ = [
    "BuildOptions",
    "BuildSummary",
    "CenterCrop",
    "CoverCrop",
    "CropView",
    "CudaPrefetcher",
    "Letterbox",
    "Mosaic",
    "Pack",
    "PackWriter",
    "PackedDataset",
    "PackedLoader",
    "PackerError",
    "RandomAffine",
    "RandomResizedCrop",
    "RandomScaleCrop",
    "Resize",
    "WholeImage",
    "__version__",
    "adopt",
    "as_tv_tensors",
    "attach",
    "attach_fingerprints",
    "build",
    "build_pack",
    "build_packs",
    "build_part",
    "build_parts",
    "collate",
    "convert",
    "detach",
    "diff",
    "edit",
    "extract",
    "fingerprints_of",
    "join_packs",
    "merge",
    "merge_tiles",
    "open_pack",
    "options_from",
    "options_like",
    "pull",
    "purge",
    "push",
    "repair",
    "split",
    "stats",
    "update",
    "verify",
    "versions_of",
    "view",
    "xywhr",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"packer.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from packer.errors import NotInstalled

        raise NotInstalled(name, "needs PyTorch", "pip install torch") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
