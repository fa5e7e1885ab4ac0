"""What a pack holds, in numbers: classes, boxes, sizes, channel mean and std, duplicates."""

from __future__ import annotations

from dataclasses import dataclass

from packer.errors import AnyPath
from packer.format.pack import open_pack
from packer.stats.duplicates import Duplicates, Leaks, duplicates, leaks
from packer.stats.labels import (
    BoxStats,
    ClassCounts,
    KeypointStats,
    Spread,
    box_stats,
    class_counts,
    keypoint_stats,
    points_stats,
)
from packer.stats.pixels import ChannelStats, Progress, channel_stats
from packer.stats.sizes import SizeStats, size_stats

__all__ = ["BoxStats", "ChannelStats", "ClassCounts", "KeypointStats", "PackStats", "SizeStats", "Spread", "pack_stats"]


@dataclass(frozen=True)
class PackStats:
    """The numbers of one pack. What its images do not have is None or empty."""

    path: str
    records: int
    sizes: SizeStats
    classes: tuple[ClassCounts, ...]
    """Of images, and of boxes, where they have labels."""
    boxes: BoxStats | None
    landmarks: Spread | None
    """Landmarks per image, of images that have any."""
    keypoints: KeypointStats | None
    channels: tuple[ChannelStats, ...]
    """One for each kind of image (channels and dtype); empty where pixels were left out."""
    padded: bool
    """Whether the build padded images: the black around them counts in `channels` too."""
    duplicates: Duplicates
    leaks: Leaks | None
    """Records whose source files are also in the pack that it was held against."""


def pack_stats(
    path: AnyPath, against: AnyPath | None = None, pixels: bool = True, progress: Progress | None = None
) -> PackStats:
    """Measure the pack at `path`.

    Args: `against`, another pack in which to look for the same source files; `pixels`, whether images are read (exact
    channel mean and std need each one); `progress` is told of images read. Raises DamagedPack where a record does not
    match its checksum, UsageError where there is no pack.
    """
    pack = open_pack(path)
    other = None if against is None else open_pack(against)
    return PackStats(
        path=pack.path,
        records=len(pack),
        sizes=size_stats(pack),
        classes=class_counts(pack),
        boxes=box_stats(pack),
        landmarks=points_stats(pack),
        keypoints=keypoint_stats(pack),
        channels=channel_stats(pack, progress) if pixels else (),
        padded=pack.manifest.options.get("resize") is not None and pack.manifest.options.get("fit") == "pad",
        duplicates=duplicates(pack),
        leaks=None if other is None else leaks(pack, other),
    )
