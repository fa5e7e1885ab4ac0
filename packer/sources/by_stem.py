"""What sources share whose label files are called as their images, one file for each: they are matched by stem.

A file is read when its image is annotated, so that workers can do it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from packer.errors import BadLabel, NoImage, NoLabel, plural, printable
from packer.sources.paths import IMAGE_FOLDERS, LABEL_FOLDERS, folder_of, some_paths, stem_of
from packer.sources.source import BaseSource, Choice, Tree

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(slots=True)
class Matches:
    """The matches: every image is in `label_of`, in `refused`, or has no label."""

    label_of: dict[bytes, bytes] = field(default_factory=dict)
    """image -> its label file."""
    refused: dict[bytes, str] = field(default_factory=dict)
    """image -> why its label file is ambiguous."""
    unclaimed: list[bytes] = field(default_factory=list)
    """Label files that fit no image, in the order given."""
    step: str = "rename or move one of them"
    """What to do about those that are refused."""

    def take(self, images: Sequence[bytes], labels: Sequence[bytes]) -> None:
        """Add an image and its label file; if there are more of either, all are refused."""
        if len(images) == len(labels) == 1:
            self.label_of[images[0]] = labels[0]
        elif len(labels) > 1:
            problem = f"{len(labels)} label files fit it equally well: {some_paths(labels)}"
            self.refused.update(dict.fromkeys(images, problem))
        else:
            problem = f"{some_paths(labels)} fits {len(images)} images equally well: {some_paths(images)}"
            self.refused.update(dict.fromkeys(images, problem))

    @property
    def fitting(self) -> int:
        """Number of images that a label file fits, also of those that are refused."""
        return len(self.label_of) + len(self.refused)

    def of_images(self, images: Sequence[bytes]) -> Matches:
        """Return what is known of these images."""
        label_of, refused = self.label_of, self.refused
        return Matches(
            {image: label_of[image] for image in images if image in label_of},
            {image: refused[image] for image in images if image in refused},
            step=self.step,
        )


Rounds = Sequence[tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]]


def match_by_stem(
    images: Iterable[bytes], labels: Iterable[bytes], name: Callable[[bytes], bytes] = stem_of,
    rounds: Rounds | None = None,
) -> Matches:  # fmt: skip
    """Match label files to the images of the same stem, in three rounds.

    First those in the same folder, then those in the mirrored one (``JPEGImages/a/1.jpg`` and
    ``Annotations/a/1.xml``, ``a/1.jpg`` and ``a/Annotations/1.xml``), then those anywhere. In each round, a label
    file and an image that fit only each other are a match; if there are more, all of them are refused.

    Args:
        images: The images.
        labels: The label files.
        name: Returns what the names of an image and of its label file have in common.
        rounds: What their folders have in common in each round, that of the image and that of the label file. None: as
            above.
    """
    labels = list(labels)
    open_labels: dict[bytes, list[bytes]] = defaultdict(list)
    for label in labels:
        open_labels[name(label)].append(label)
    open_images: dict[bytes, list[bytes]] = defaultdict(list)
    for image in images:
        if (stem := name(image)) in open_labels:
            open_images[stem].append(image)
    result = Matches()
    for stem, candidates in open_images.items():
        left_images, left_labels = candidates, open_labels[stem]
        for image_key, label_key in rounds or _ROUNDS:
            images_by, labels_by = _group(left_images, image_key), _group(left_labels, label_key)
            left_images, left_labels = _round(images_by, labels_by, result)
        open_labels[stem] = left_labels
    left = {label for group in open_labels.values() for label in group}
    result.unclaimed = [label for label in labels if label in left]
    return result


def _round(
    images: dict[bytes, list[bytes]], labels: dict[bytes, list[bytes]], result: Matches
) -> tuple[list[bytes], list[bytes]]:
    """Match within the folders that have both, and return the remaining images and labels."""
    for folder in images.keys() & labels.keys():
        result.take(images.pop(folder), labels.pop(folder))
    return [x for group in images.values() for x in group], [x for group in labels.values() for x in group]


def _group(paths: list[bytes], key: Callable[[bytes], bytes]) -> dict[bytes, list[bytes]]:
    groups: dict[bytes, list[bytes]] = defaultdict(list)
    for path in paths:
        groups[key(path)].append(path)
    return groups


def _without(path: bytes, names: frozenset[bytes]) -> bytes:
    """Return the folder of a path without its last component that has one of these names."""
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


class ByStemSource(BaseSource):
    """A label file for each image, of its name; it is read when the image is annotated."""

    ending: ClassVar[bytes]
    """The extension of the label files."""
    next_step: ClassVar[str] = "add it, or remove the image"
    """What to do about an image without one."""

    def __init__(self, tree: Tree, matches: Matches) -> None:
        self.notes: list[str] = []
        self._tree, self.matches = tree, matches
        self.label_files: set[bytes] = {*matches.label_of.values(), *matches.unclaimed}

    def label_file(self, image: bytes) -> bytes:
        """Return the label file of an image.

        Raises:
            NoLabel: No file fits the image.
            BadLabel: Several files fit equally well, or one fits several images.
        """
        if image in self.matches.refused:
            raise BadLabel(image, self.matches.refused[image], self.matches.step)
        if (path := self.matches.label_of.get(image)) is None:
            raise NoLabel(image, f"has no {self.wanted(image)}", self.next_step)
        return path

    def wanted(self, image: bytes) -> str:
        """Return how an error names what an image lacks."""
        return f"label file {printable(stem_of(image) + self.ending)}"

    def for_images(self, images: Sequence[bytes]) -> Self | None:
        """Return a copy for a worker, with the label files of these images."""
        if (tree := self._tree.without_files) is None:
            return None
        part = copy(self)
        part._tree, part.matches, part.label_files = tree, self.matches.of_images(images), set()
        part.of_split = None
        return part

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield the label files of the split that fit no image."""
        for path in self.matches.unclaimed:
            if self.in_split(path):
                yield NoImage(path, "has no image", "add the image, or remove the label")


def choice_by_stem(spec: str, what: str, fitting: int, images: int, seen: Iterable[bool]) -> list[Choice]:
    """Return the choice of a source whose label files fit some images, if one of those that are looked at is a label.

    Args:
        spec: The value of ``--labels``.
        what: What the label files are.
        fitting: Number of images with a label file.
        images: Number of all images.
        seen: Whether each file that is looked at is a label; no file is opened after the first one.
    """
    if not fitting or not any(seen):
        return []
    have = plural(images, "image has", "images have")
    return [Choice(spec, f"{fitting} of {have} a {what} of their name")]
