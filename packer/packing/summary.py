"""Creates the manifest of a finished build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any

import pyarrow.compute as pc

import packer
from packer.errors import printable
from packer.format.lists import MOST_IN_MANIFEST, Listing, Skipped, selection_file
from packer.format.manifest import Manifest
from packer.packing.convert import UNREAD
from packer.packing.journal import ShardResult
from packer.packing.option_table import OPTIONS
from packer.packing.options import DEFAULTS
from packer.packing.plan import Plan
from packer.packing.rows import pieces

LIBRARIES = ("numpy", "opencv-python-headless", "simplejpeg", "jpeg4py", "lmdb", "h5py", "pyarrow")


def make_manifest(plan: Plan, results: Sequence[ShardResult]) -> Manifest:
    """Return the manifest of a pack whose shards are all written, without its lists.

    `results` are in the order of the shards; their rejected inputs are already in `plan.inputs`.
    """
    inputs = plan.inputs
    shards = tuple(result.entry for result in results if result.entry is not None)
    records = sum(shard.records for shard in shards)
    counts = Counter(inputs.counts)
    label_counts: Counter[int] = Counter()
    box_counts: Counter[int] = Counter()
    for result in results:
        counts.update(result.counts)
        label_counts.update(result.label_counts)
        box_counts.update(result.box_counts)
    counts.update(packed=records, rejected=len(inputs.rejected), skipped=len(inputs.skipped))
    counts.update(found=records + len(inputs.rejected) + len(inputs.skipped), changed=len(inputs.changed))
    shape, dtype = plan.shape
    for result in results:
        inputs.losses.update(result.losses)
    if plan.late_sizes:
        shape = _late_shape(plan, results)
    return Manifest(
        container=plan.options.container,
        encoding=plan.recipe.encode,
        mode=plan.options.mode,
        dtype=dtype,
        shape=shape,
        classes=inputs.classes,
        fields=inputs.fields,
        records=records,
        counts={name: n for name, n in sorted(counts.items()) if n or name not in ("changed", "missing_labels")},
        class_counts={
            name: [counter[i] for i in range(len(inputs.classes))]
            for name, counter in (("label", label_counts), ("boxes", box_counts))
            if counter
        },
        options=_options(plan),
        shards=shards,
        rejected=tuple(islice(inputs.rejected, MOST_IN_MANIFEST)),
        flip_index=inputs.flip_index,
        tags=inputs.tags,
        notes=(*inputs.all_notes, *_skipped(inputs.skipped)),
        packer=packer.__version__,
        libraries=library_versions(),
    )


def _late_shape(plan: Plan, results: Sequence[ShardResult]) -> tuple[int, int, int] | None:
    """Return the shape of all images if the headers of some were read in the shards."""
    table = plan.table
    shapes = {(height, width) for result in results for height, width in result.shapes}
    for _, piece in pieces(table):
        read = piece.filter(pc.not_equal(piece.column("code"), UNREAD))
        shapes.update(zip(*(read.column(name).to_pylist() for name in ("height", "width")), strict=True))
    channels = set(table.column("channels").unique().to_pylist())
    return (*shapes.pop(), channels.pop()) if len(shapes) == len(channels) == 1 else None


def _options(plan: Plan) -> dict[str, Any]:
    """Return the options as they are recorded; some are what was made of them, or what is beside the manifest."""
    given, resize = plan.options, plan.recipe.resize
    made: dict[str, Any] = {
        "labels": list(plan.inputs.labels),
        "classes": None if given.classes is None else "given",
        "include": None,
        "exclude": None,
        **{name: selection_file(name) for name in plan.inputs.selections},
        "fit": None if resize is None else resize.fit,
        "pad_value": given.pad_value or None,  # black as ever: the same bytes as ever
        "interpolation": None if resize is None or resize.interpolation == "area" else resize.interpolation,
    }
    options = {"label_files": list(plan.inputs.label_files)} if plan.inputs.label_files else {}
    for row in OPTIONS:
        value = made[row.name] if row.name in made else getattr(given, row.name)
        if row.recorded == "always" or (row.recorded == "changed" and value != DEFAULTS[row.name]):
            options[row.name] = value
    return dict(sorted(options.items()))


@cache
def library_versions() -> dict[str, str]:
    """Return the versions of the installed libraries that affect the bytes of a pack, read once: it takes 10 ms."""
    versions = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _skipped(skipped: Listing[Skipped]) -> list[str]:
    return [
        f"skipped {count}: {printable(reason)} ({printable(skipped.examples[reason].path)})"
        for reason, count in sorted(skipped.counts.items())
    ]
