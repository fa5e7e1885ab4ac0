"""Statistics of a pack: classes, boxes, sizes, channel mean and std, duplicates.

The module can be called: ``packer.stats(pack)`` is `pack_stats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packer.errors import AnyPath
from packer.format.pack import Pack, open_pack
from packer.model.annotation import Progress
from packer.stats.columns import (
    BoxStats,
    ClassCounts,
    Duplicates,
    KeypointStats,
    Leaks,
    SizeStats,
    Spread,
    ValueStats,
    box_stats,
    class_counts,
    duplicates,
    keypoint_stats,
    leaks,
    other_ids,
    points_stats,
    size_stats,
    value_stats,
)
from packer.stats.pixels import (
    ChannelStats,
    InstanceClass,
    MaskStats,
    PartStats,
    channel_stats,
    instance_stats,
    mask_stats,
    part_stats,
)
from packer.system import callable_module

__all__ = [
    "BoxStats",
    "ChannelStats",
    "ClassCounts",
    "InstanceClass",
    "KeypointStats",
    "MaskStats",
    "PackStats",
    "PartStats",
]
__all__ += ["SizeStats", "Spread", "ValueStats", "pack_stats"]


@dataclass(frozen=True)
class PackStats:
    """The statistics of a pack; None or empty for fields that its images do not have."""

    path: str
    records: int
    sizes: SizeStats
    classes: tuple[ClassCounts, ...]
    """Of images and of boxes, if they have labels."""
    boxes: BoxStats | None
    landmarks: Spread | None
    """Landmarks per image, of images that have any."""
    keypoints: KeypointStats | None
    channels: tuple[ChannelStats, ...]
    """One for each kind of image (channels and dtype); empty without `pixels`."""
    padded: bool
    """Whether the build padded images: `channels` includes the padding."""
    duplicates: Duplicates
    leaks: Leaks | None
    """Records whose source files are also in the pack `against`; None without one."""
    values: tuple[ValueStats, ...] = ()
    """Of each number that images have as their value."""
    masks: tuple[MaskStats, ...] = ()
    """Of each kind of mask; empty without `pixels`."""
    parts: tuple[PartStats, ...] = ()
    """Of the maps and texts; empty without `pixels`."""
    instances: tuple[InstanceClass, ...] = ()
    """Of each class whose objects have masks."""
    other_ids: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    """Classes of both packs whose ids differ: name -> (id here, id in `against`)."""


def pack_stats(
    path: AnyPath | Pack, against: AnyPath | Pack | None = None, pixels: bool = True, progress: Progress | None = None
) -> PackStats:
    """Compute the statistics of the pack at `path`.

    Args:
        path: The pack, or its path or URL.
        against: Another one, to look for the same source files.
        pixels: Whether to read all images for the exact mean and std of the channels, all masks, and some maps and
            texts.
        progress: Receives the number of images read.

    Returns:
        The statistics. All but `channels`, `masks` and `parts` come from the index.

    Raises:
        PackNotFound: If `path` is not a pack.
        DamagedPack: If a record does not match its checksum.
    """
    pack = path if isinstance(path, Pack) else open_pack(path)
    other = against if isinstance(against, Pack) or against is None else open_pack(against)
    return PackStats(
        path=pack.path,
        records=len(pack),
        sizes=size_stats(pack),
        classes=class_counts(pack),
        boxes=box_stats(pack),
        landmarks=points_stats(pack, "landmarks"),
        keypoints=keypoint_stats(pack),
        channels=channel_stats(pack, progress) if pixels else (),
        padded=pack.manifest.options.get("resize") is not None and pack.manifest.options.get("fit") == "pad",
        duplicates=duplicates(pack),
        leaks=None if other is None else leaks(pack, other),
        values=value_stats(pack),
        masks=mask_stats(pack, progress) if pixels else (),
        instances=instance_stats(pack),
        parts=part_stats(pack, progress) if pixels else (),
        other_ids={} if other is None else other_ids([pack.classes, other.classes]),
    )


callable_module(__name__, pack_stats)
