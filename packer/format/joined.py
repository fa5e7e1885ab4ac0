"""Several packs read as one: their records follow one another, and their classes are joined by name.

Nothing is copied. Each pack keeps its container, its maps and its cache; only the numbers of records and of classes are
those of the joined pack.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from packer.errors import AnyPath, UsageError, printable
from packer.format.manifest import Manifest, Origin
from packer.format.pack import Pack, open_pack
from packer.model.fields import FLIPS, WHOLE


def join_packs(packs: Sequence[AnyPath | Pack]) -> Pack:
    """Return several packs as one, for a `PackedDataset`, a `PackedLoader` or a sampler; nothing is copied.

    The records of each pack are numbered after those of the packs before it; `Pack.part_of` goes back. Class ids
    are those of the first pack, then those of the names that the next ones add. Packs of different containers,
    encodings and sizes can be joined, also with packs at URLs.

    Args:
        packs: Directories or URLs of packs, or open packs, each once.

    Raises:
        UsageError: Two packs contradict one another, or one is given twice.
        DamagedPack: As for `open_pack`.
    """
    if isinstance(packs, str | bytes | os.PathLike | Mapping | Pack):
        problem = f"must be a list of packs, got {packs!r}"
        raise UsageError("packs", problem, "pass a list; for shares, PackedLoader or MixtureSampler")
    opened = [pack if isinstance(pack, Pack) else open_pack(pack) for pack in packs]
    manifest = _manifest(opened)
    return opened[0] if len(opened) == 1 else Pack._joined(opened, manifest)


def _manifest(packs: Sequence[Pack]) -> Manifest:
    """Return what the manifest of all packs says, apart from their files. Its digest changes with that of any pack.

    Raises:
        UsageError: The packs cannot be joined.
    """
    if not packs:
        raise UsageError("packs", "is empty: there is nothing to join", "name at least one pack")
    first, fields = packs[0], tuple(dict.fromkeys(chain.from_iterable(pack.manifest.fields for pack in packs)))
    for number, pack in enumerate(packs):
        if len(pack.packs) > 1:
            raise UsageError(pack.path, "is joined already", "join all packs at once")
        if twice := next((one for one in packs[:number] if one.manifest.digest == pack.manifest.digest), None):
            raise UsageError(pack.path, f"is the same pack as {printable(twice.path)}", "name it once")
        for name, times in Counter(pack.classes).items():
            if times > 1:
                raise UsageError(pack.path, f"has two classes called {printable(name)}", "build it with --classes=FILE")
        if pack.manifest.mode != first.manifest.mode:
            problem = f"has mode {pack.manifest.mode}, but {printable(first.path)} {first.manifest.mode}"
            raise UsageError(pack.path, problem, f"build it again with --mode={first.manifest.mode}")
        if without := next((name for name in WHOLE if {name} & {*fields} - {*pack.manifest.fields}), None):
            has = next(one for one in packs if without in one.manifest.fields)
            problem = f"has no {without}, but {printable(has.path)} has: its images would count as without any"
            raise UsageError(pack.path, problem, "build it with labels, or with --missing-labels=empty")
        if pack.manifest.parts != first.manifest.parts:
            problem = f"has other parts than {printable(first.path)}: {pack.manifest.parts_text}"
            raise UsageError(pack.path, f"{problem}, not {first.manifest.parts_text}", "leave one of the packs out")
        if pack.manifest.tags != first.manifest.tags:
            problem = f"has other tags than {printable(first.path)}, or in another order"
            raise UsageError(pack.path, problem, "build both from lists with the same columns")
    manifests = [pack.manifest for pack in packs]
    pointed = {one.flip_index for one in manifests if {*FLIPS} & {*one.fields}}
    if len(pointed - {None}) > 1:
        raise UsageError(first.path, "has points in another order than the other packs", "leave one of the packs out")
    return replace(
        first.manifest,
        encoding=_common([one.encoding for one in manifests], "copy"),
        dtype=_common([one.dtype for one in manifests], None),
        shape=_common([one.shape for one in manifests], None),
        classes=tuple(dict.fromkeys(chain.from_iterable(one.classes for one in manifests))),
        fields=fields,
        records=sum(one.records for one in manifests),
        counts={},
        class_counts={},
        options={"decoder": "lenient"} if any(one.lenient for one in manifests) else {},
        shards=(),
        rejected=(),
        notes=(),
        flip_index=_common(list(pointed), None) if pointed else None,
        lists={},
        linked={},
        companions={},
        made_from=tuple(Origin("join", "", one.digest) for one in manifests),
    )


def _common(values: Sequence[Any], otherwise: Any) -> Any:
    return values[0] if all(value == values[0] for value in values) else otherwise
