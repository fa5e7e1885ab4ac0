"""Finds masks and other second pictures of the images, which ``--labels auto`` must not take for images or classes."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from packer.sources.base import Tree
from packer.sources.folder import image_folders, images_below, tops_of
from packer.sources.paths import (
    IMAGE_FOLDERS,
    LABEL_FOLDERS,
    NEVER_CLASSES,
    SPLIT_FOLDER,
    extension_of,
    folder_of,
    named,
    quoted,
    stem_of,
)

SEVERAL = 2
MASK_FOLDERS = LABEL_FOLDERS | frozenset(
    b"mask masks gt groundtruth ground_truth ground-truth anno annos seg segs segmentation segmentations"
    b" segmentationclass segmentationobject depth depths target targets trimap trimaps matte mattes alpha"
    b" gtfine gtcoarse semantic semantic_rgb instance instances".split()
)
"""Folders with a second picture of each image (compared in lower case), which are not classes."""
MASK_NAME = re.compile(rb"[-_ ]?(?:masks?|gt|annot|annotations?|labels?|seg|segmentation)", re.IGNORECASE)
"""What follows the name of a folder of images in that of its masks: train_masks/, valannot/."""
MASK_ENDING = re.compile(
    rb"(?:[-_. ](?:masks?|gt|seg|segmentation|labels?|annotation|depth|target|matte|leftImg8bit)(?:[-_]?\d)?"
    rb"|_gt(?:Fine|Coarse)_(?:labelIds|labelTrainIds|instanceIds|color))\Z",
    re.IGNORECASE,
)
"""What follows the name of an image in that of its mask."""
MASK_LIKE = re.compile(MASK_ENDING.pattern.removesuffix(rb"\Z") + rb"(?:\.[^/]*)?\Z", re.IGNORECASE)
"""The same with any extension: few images are called like this, and the others are not looked at any further."""
MOST_FOLDERS, MOST_SIBLINGS = 10_000, 8


def masks(tree: Tree) -> str | None:
    """Describe second pictures of the images, such as masks, or folders that are no classes; None if there are none."""
    return _paired_folders(tree) or _masks_beside(tree) or _odd_folders(tree)


def _masks_beside(tree: Tree) -> str | None:
    """Describe images called like another one in their folder, with an ending such as _mask."""
    like = {image: MASK_ENDING.sub(b"", _without_extension(image)) for image in filter(MASK_LIKE.search, tree.images)}
    plain = {image: name for image, name in like.items() if name != _without_extension(image)}
    wanted = set(plain.values())
    there = wanted.intersection(map(_without_extension, tree.images)) if wanted else wanted
    found = [image for image, name in plain.items() if name in there]
    if len(found) < SEVERAL:
        return None
    return f"{len(found)} images are named like masks of others ({named(found)}); packer has no mask field yet"


def _without_extension(image: bytes) -> bytes:
    return os.path.join(folder_of(image), stem_of(image))


def _odd_folders(tree: Tree) -> str | None:
    """Describe a folder of images that is called images, masks, train or the like, and lies beside other folders."""
    folders = image_folders(tree)
    base = images_below(folders, b"")
    tops = tops_of(folders, base)
    if tops >= {b"blobs", b"snapshots"}:
        inside = {image.split(b"/")[1] for image in tree.images if image.startswith(b"snapshots/")}
        snapshots = named([b"snapshots/" + name + b"/" for name in sorted(inside)])
        return f"it is a cache of Hugging Face, with the images of blobs/ again in {snapshots}"
    odd = sorted(top for top in tops if top.lower() in NEVER_CLASSES) or sorted(filter(SPLIT_FOLDER.fullmatch, tops))
    if len(tops) < 2 or (len(odd) == len(tops) and SPLIT_FOLDER.fullmatch(odd[0])) or not odd:
        return None
    others = [top + b"/" for top in sorted(tops - set(odd)) or odd[1:]]
    return f"{quoted(odd[0] + b'/')} is not a class by its name, but lies beside {named(others)}"


def _paired_folders(tree: Tree) -> str | None:
    """Describe two folders with pictures of the same things, such as images/ and masks/; None if there are none.

    Class folders may number their images alike (cat/001.jpg, dog/001.jpg). Two folders are a pair if one is named like
    a folder of masks or images, or if they are the only two and the names they share are more than numbers.
    """
    folders = sorted(folder[:-1] for folder in image_folders(tree))[:MOST_FOLDERS]
    pairs = list(_pairs(folders))
    stems: dict[bytes, set[bytes]] = {folder: set() for first, second, _ in pairs for folder in (first, second)}
    endings: dict[bytes, set[bytes]] = defaultdict(set)
    for image in tree.images if pairs else ():
        if (folder := folder_of(image)) in stems:
            stems[folder].add(MASK_ENDING.sub(b"", stem_of(image)))
            endings[folder].add(extension_of(image))
    for first, second, is_named in pairs:
        one, other = stems[first], stems[second]
        if is_named:
            alike = 2 * len(one & other) >= min(len(one), len(other))
        else:
            alike = one == other and len(one) >= SEVERAL
            alike = alike and (not endings[first] & endings[second] or not _is_count(one))
        if alike:
            return f"{quoted(first + b'/')} and {quoted(second + b'/')} hold images of the same names" + (
                "; packer has no mask field yet" if is_named else ""
            )
    return None


def _pairs(folders: list[bytes]) -> Iterator[tuple[bytes, bytes, bool]]:
    """Yield pairs of folders whose paths differ in one part: named as a pair (True), or the only two (False)."""
    there = set(folders)
    siblings: dict[tuple[bytes, bytes], list[tuple[bytes, bytes]]] = defaultdict(list)
    for folder in folders:
        parts = folder.split(b"/")
        for i, part in enumerate(parts):
            siblings[b"/".join(parts[:i]), b"/".join(parts[i + 1 :])].append((part, folder))
        if parts[-1].lower() in MASK_FOLDERS and folder_of(folder) in there:
            yield folder_of(folder), folder, True
    for group in siblings.values():
        if len(group) > MOST_SIBLINGS:
            continue
        for (name, first), (other, second) in combinations(group, 2):
            is_named = bool({name.lower(), other.lower()} & (MASK_FOLDERS | IMAGE_FOLDERS)) or _is_mask_of(name, other)
            are_splits = SPLIT_FOLDER.fullmatch(name) and SPLIT_FOLDER.fullmatch(other)
            if not are_splits and (is_named or len(group) == 2):
                yield first, second, is_named


def _is_count(stems: set[bytes]) -> bool:
    """Return whether the stems are just numbered, such as img_001, img_002, or 1 (1), 1 (2)."""
    found = [re.fullmatch(rb"(.*?)(\d{1,18})(\D*)", stem, re.DOTALL) for stem in stems]
    matches = [match for match in found if match]
    if len(matches) < len(found) or len({(match[1], match[3]) for match in matches}) > 1:
        return False
    numbers = [int(match[2]) for match in matches]
    return max(numbers) - min(numbers) < 2 * len(numbers)


def _is_mask_of(name: bytes, other: bytes) -> bool:
    """Return whether one name is the other with an ending: train and train_masks, val and valannot."""
    short, long = sorted((name.lower(), other.lower()), key=len)
    return long.startswith(short) and bool(MASK_NAME.fullmatch(long[len(short) :]))
