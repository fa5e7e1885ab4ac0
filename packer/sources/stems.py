"""Which XML file belongs to which image: by stem, the nearest first, never by guessing between equals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from packer.errors import BadLabel
from packer.sources.paths import IMAGE_FOLDERS, LABEL_FOLDERS, folder_of, named, stem_of


@dataclass(slots=True)
class Matches:
    """The outcome: every image is in `label_of`, in `refused`, or has no label."""

    label_of: dict[bytes, bytes] = field(default_factory=dict)
    """image -> its label file."""
    refused: dict[bytes, str] = field(default_factory=dict)
    """image -> why no label file is its own."""
    unclaimed: list[bytes] = field(default_factory=list)
    """Label files that fit no image, in the order given."""

    def of(self, image: bytes) -> bytes | None:
        """The label file of an image, None for none. Raises BadLabel where several fit equally well."""
        if image in self.refused:
            raise BadLabel(image, self.refused[image], "rename or move one of them")
        return self.label_of.get(image)


def match_by_stem(images: Iterable[bytes], labels: Iterable[bytes]) -> Matches:
    """Matches label files to the images of the same stem, in three rounds.

    First those in the same folder, then those in the mirrored one (``JPEGImages/a/1.jpg`` and
    ``Annotations/a/1.xml``, ``a/1.jpg`` and ``a/Annotations/1.xml``), then those anywhere. Within a round a
    label file and an image that have only each other are a match; where there are more, all of them are refused.
    """
    labels = list(labels)
    open_labels: dict[bytes, list[bytes]] = defaultdict(list)
    for label in labels:
        open_labels[stem_of(label)].append(label)
    open_images: dict[bytes, list[bytes]] = defaultdict(list)
    for image in images:
        if stem_of(image) in open_labels:
            open_images[stem_of(image)].append(image)
    result = Matches()
    for stem, candidates in open_images.items():
        left_images, left_labels = candidates, open_labels[stem]
        for image_key, label_key in _ROUNDS:
            images_by, labels_by = _group(left_images, image_key), _group(left_labels, label_key)
            left_images, left_labels = _round(images_by, labels_by, result)
        open_labels[stem] = left_labels
    left = {label for group in open_labels.values() for label in group}
    result.unclaimed = [label for label in labels if label in left]
    return result


def _round(
    images: dict[bytes, list[bytes]], labels: dict[bytes, list[bytes]], result: Matches
) -> tuple[list[bytes], list[bytes]]:
    """Settles the folders in which both are found; returns the images and labels that are left."""
    for folder in images.keys() & labels.keys():
        here, theirs = images.pop(folder), labels.pop(folder)
        if len(here) == len(theirs) == 1:
            result.label_of[here[0]] = theirs[0]
            continue
        for image in here:
            result.refused[image] = (
                f"{len(theirs)} label files fit it equally well: {named(theirs)}"
                if len(theirs) > 1
                else f"{named(theirs)} fits {len(here)} images equally well: {named(here)}"
            )
    return [x for group in images.values() for x in group], [x for group in labels.values() for x in group]


def _group(paths: list[bytes], key: Callable[[bytes], bytes]) -> dict[bytes, list[bytes]]:
    groups: dict[bytes, list[bytes]] = defaultdict(list)
    for path in paths:
        groups[key(path)].append(path)
    return groups


def _without(path: bytes, names: frozenset[bytes]) -> bytes:
    """The folder of a path without its last component that is one of these names."""
    parts = folder_of(path).split(b"/")
    for i in reversed(range(len(parts))):
        if parts[i].lower() in names:
            del parts[i]
            break
    return b"/".join(parts)


_ROUNDS: tuple[tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]], ...] = (
    (folder_of, folder_of),
    (lambda image: _without(image, IMAGE_FOLDERS), lambda label: _without(label, LABEL_FOLDERS)),
    (lambda image: b"", lambda label: b""),
)
