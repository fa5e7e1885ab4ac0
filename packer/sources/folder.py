"""Class folders, as torchvision's ImageFolder reads them (`FolderSource`), and images without labels (`NoneSource`)."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain, combinations

from packer.errors import NoLabel, UsageError, option, plural, printable
from packer.model.annotation import RawAnnotation
from packer.sources.file_names import expression_of
from packer.sources.parquet_file import parquet_files
from packer.sources.paths import (
    IMAGE_FOLDERS,
    LABEL_FOLDERS,
    NEVER_CLASSES,
    SPLIT_FOLDER,
    as_bytes,
    as_text,
    extension_of,
    folder_of,
    folder_splits,
    in_order,
    quoted_value,
    some_paths,
    split_folders,
    splits_in,
    stem_of,
)
from packer.sources.source import BaseSource, Choice, SourceOptions, Tree
from packer.stores import is_url

NOTHING = RawAnnotation(origin="")


def split_prefix(tree: Tree, split: str | None) -> bytes:
    """Return the folder of a split with a final slash; b"" without ``--split``. Raise UsageError if it is missing.

    The folder may be below the one folder of all images: ``images/train``.
    """
    if split is None:
        return b""
    name = as_bytes(split).strip(b"/")
    base = images_below(image_folders(tree), b"")
    for folder in dict.fromkeys((name, base + name)):
        if folder in tree.folders:
            return folder + b"/"
    there = _subfolders(tree, base) or _subfolders(tree, b"")
    problem = f"no folder for --split={split}"
    next_step = f"its folders are: {some_paths(there, 10)}" if there else "it has no folders; leave out --split"
    raise UsageError(tree.root, problem, next_step)


def image_folders(tree: Tree) -> set[bytes]:
    """Return the folders that directly hold images, with a final slash; b"" for the root."""
    if tree.image_folders is not None:
        return set(tree.image_folders)
    return {image[: image.rfind(b"/") + 1] for image in tree.images}


def images_below(folders: set[bytes], prefix: bytes) -> bytes:
    """Return the prefix with the folders such as images/ that hold all `image_folders` below it."""
    while prefix not in folders and len(tops := tops_of(folders, prefix)) == 1:
        top = tops.pop()
        if top.lower() not in IMAGE_FOLDERS:
            break
        prefix += top + b"/"
    return prefix


def tops_of(folders: set[bytes], prefix: bytes) -> set[bytes]:
    """Return the names of the folders at a prefix that have images in them or below."""
    start = len(prefix)
    return {path[start : path.index(b"/", start)] for path in folders if path.startswith(prefix) and path != prefix}


class FolderSource(BaseSource):
    """Class folders: the class of ``cat/deep/1.jpg``, or of ``train/cat/1.jpg`` with ``--split train``, is ``cat``.

    Empty class folders count, so that ids do not depend on which classes have images.

    Raises:
        UsageError: The folders are splits, and ``--split`` is missing or names none of them.
    """

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        split, folders = split_prefix(tree, options.split), image_folders(tree)
        if options.split is None:
            _refuse_splits(tree)
        self._split = split
        self.notes: list[str] = []
        self._prefix, names = _class_folders(tree, folders, split)
        if options.split is not None:
            of_split = {
                each: _class_folders(tree, folders, each)[1] for each in (split, *_beside(tree, folders, split))
            }
            real = {each: [] if all(map(_holds_images, found)) else found for each, found in of_split.items()}
            if any(real.values()):  # beside those with classes, a split with nothing but images/ has none
                of_split, self._prefix = real, images_below(folders, split)
            names = sorted({*chain.from_iterable(of_split.values())})
            self.notes += _other_classes(split, of_split)
        self.classes: tuple[str, ...] | None = tuple(as_text(name) for name in names)
        self.label_files: frozenset[bytes] = frozenset()
        self._of_folder: dict[bytes, RawAnnotation] = {}
        """The annotation shared by all images of a class."""

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return the choice of class folders, if there are two or more.

        A single folder may just be the name of the dataset. Folders called images, masks, annotations or train are
        never classes, nor are whole datasets with images and labels of their own.
        """
        if parquet_files(tree):
            return []
        folders = image_folders(tree)
        base = images_below(folders, b"")
        classes = tops_of(folders, base)
        splits = {top for top in classes if SPLIT_FOLDER.fullmatch(top)}
        if splits:
            inner = [images_below(folders, base + split + b"/") for split in splits]
            classes = (classes - splits).union(*(tops_of(folders, prefix) for prefix in inner))
        if len(classes) < 2 or any(top.lower() in NEVER_CLASSES for top in classes):
            return []
        if 2 * sum(map(_is_part, classes)) >= len(classes):
            return []
        if splits and tops_of(folders, base) - splits:
            return []  # some of the folders are splits and others are not
        if any(_is_dataset(tree, base + top) for top in classes) or _are_few_archives(tree, classes):
            return []
        below = f" below the splits {', '.join(sorted(map(printable, splits)))}" if splits else ""
        return [Choice("folder", f"the images are in {plural(len(classes), 'class folder')}{below}")]

    @staticmethod
    def splits(tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the names of the folders, if all are splits."""
        folders = image_folders(tree)
        tops = tops_of(folders, images_below(folders, b""))
        return in_order(map(as_text, tops)) if all(map(SPLIT_FOLDER.fullmatch, tops)) else ()

    def in_split(self, image: bytes) -> bool:
        """Return whether the image is in the split's folder."""
        return image.startswith(self._split)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the class of the image.

        Raises:
            NoLabel: The image is not in a class folder.
        """
        folder = image[: image.find(b"/", len(self._prefix)) + 1]
        annotation = self._of_folder.get(folder)
        if annotation is None:
            # an image of another split is in none of this one's
            if len(folder) <= len(self._prefix) or not folder.startswith(self._prefix):
                raise NoLabel(image, "is in no class folder", "move it into one, or out of the source")
            name = as_text(folder[len(self._prefix) : -1])
            annotation = self._of_folder[folder] = RawAnnotation(origin=as_text(folder), label=name)
        return annotation

    def for_images(self, images: Sequence[bytes]) -> FolderSource:
        """Return a copy for a worker: the folders are in the paths."""
        part = copy(self)
        part.classes, part._of_folder = None, {}
        return part


class NoneSource(BaseSource):
    """Images without labels; with ``--split``, those in the folders of that name."""

    splits = staticmethod(folder_splits)

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self.notes: list[str] = []
        self.label_files: frozenset[bytes] = frozenset()
        self._prefixes = split_folders(tree, options.split)
        if options.by_auto and (spec := expression_of(tree, self.in_split)) is not None:
            choices = f'{option("labels")}="{spec}", or {option("labels", "none")} (no labels)'
            raise UsageError(tree.root, "the names of its images seem to be labels", f"choose one: {choices}")

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return nothing: `choose` falls back to this source if no other fits."""
        return []

    def in_split(self, image: bytes) -> bool:
        """Return whether the image is in a folder of the split."""
        return image.startswith(self._prefixes)

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return an empty annotation."""
        return NOTHING

    def for_images(self, images: Sequence[bytes]) -> NoneSource:
        """Return itself."""
        return self


def _subfolders(tree: Tree, prefix: bytes) -> list[bytes]:
    below = (path[len(prefix) :] for path in tree.folders if path.startswith(prefix))
    return sorted(name for name in below if b"/" not in name)


def _is_part(name: bytes) -> bool:
    """Return whether a folder is a part of a dataset by a word in its name: seg_train, test_images, images_part_1."""
    return bool(splits_in(name) or {*re.split(rb"[-_. ]", name.lower())} & IMAGE_FOLDERS)


def _are_few_archives(tree: Tree, classes: set[bytes]) -> bool:
    """Return whether the folders are archives of one image or two each: classes have more."""
    archives = () if tree.members is None or is_url(tree.root) else tree.members.archives
    if not classes <= {stem_of(one.path) for one in archives}:
        return False
    return min(Counter(image.partition(b"/")[0] for image in tree.images).values()) <= SEVERAL


def _is_dataset(tree: Tree, folder: bytes) -> bool:
    """Return whether a folder has a folder of images beside one of labels, as each year in VOCdevkit."""
    inside = {name.lower() for name in _subfolders(tree, folder + b"/")}
    return bool(inside & IMAGE_FOLDERS and inside & LABEL_FOLDERS)


def _refuse_splits(tree: Tree) -> None:
    """Raise UsageError if the folders are splits: train/ and val/ would silently become two classes."""
    folders = image_folders(tree)
    tops = tops_of(folders, images_below(folders, b""))
    if tops and all(SPLIT_FOLDER.fullmatch(top) for top in tops):
        names = sorted(tops)
        first = next((name for name in names if name.lower().startswith(b"train")), names[0])
        problem = f"its folders are splits, not classes: {some_paths(names, 10)}"
        raise UsageError(tree.root, problem, f"choose one: --split={as_text(first)}")


def _class_folders(tree: Tree, folders: set[bytes], split: bytes) -> tuple[bytes, list[bytes]]:
    """Return the prefix below which the class folders of a split are, and their names, with those of empty ones."""
    prefix = images_below(folders, split)
    if prefix != split and not tops_of(folders, prefix):
        return split, _subfolders(tree, split)  # images/ is the only folder: it is the class
    return prefix, _subfolders(tree, prefix) or _subfolders(tree, split)


def _beside(tree: Tree, folders: set[bytes], split: bytes) -> list[bytes]:
    """Return the folders of the other splits; beside one of another name, such as fold1/, all that have folders."""
    parent, _, name = split[:-1].rpartition(b"/")
    base = parent + b"/" if parent else b""
    others = [other for other in _subfolders(tree, base) if other != name]
    if SPLIT_FOLDER.fullmatch(name):
        others = [other for other in others if SPLIT_FOLDER.fullmatch(other)]
    else:
        others = [
            other for other in others if tops_of(folders, base + other + b"/") and other.lower() not in NEVER_CLASSES
        ]
    return [base + other + b"/" for other in others]


def _holds_images(name: bytes) -> bool:
    return name.lower() in IMAGE_FOLDERS


def _other_classes(split: bytes, of_split: dict[bytes, list[bytes]]) -> list[str]:
    notes = []
    for other, names in of_split.items():
        if names and of_split[split] and (odd := sorted(set(names) ^ set(of_split[split]))):
            notes.append(
                f"{' and '.join(some_paths([each[:-1]]) for each in sorted((split, other)))} have different classes "
                f"({some_paths(odd)}): "
                "the classes of all splits are numbered together"
            )
    return notes


SEVERAL = 2
MASK_FOLDERS = LABEL_FOLDERS | frozenset(
    b"mask masks gt groundtruth ground_truth ground-truth anno annos seg segs segmentation segmentations"
    b" segmentationclass segmentationobject depth depths target targets trimap trimaps matte mattes alpha"
    b" gtfine gtcoarse semantic semantic_rgb instance instances panoptic semseg stuffthingmaps".split()
)
"""Folders with a second picture of each image (compared in lower case), which are not classes."""
OF_PARTS = frozenset(
    b"images image imgs annotations annotation gt groundtruth labels depth disparity disp rgb normals flow".split()
)
"""Words in the names of folders that hold one part of each record: images_prepped_train/, RGBLeft/, DepthLeft/."""
WORDS = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
OR_MASKS = f"; they do not look like masks; if they are: {option('mask', 'FOLDER')}"
OR_PARTS = f"; if they belong together: {option('mask', 'FOLDER')} or {option('part', 'NAME=FOLDER:KIND')}"
MASK_NAME = re.compile(rb"[-_ ]?(?:masks?|gt|annot|annotations?|labels?|seg|segmentation)", re.IGNORECASE)
"""What follows the name of a folder of images in that of its masks: train_masks/, valannot/."""
MASK_ENDING = re.compile(
    rb"(?:[-_. ](?:masks?|gt|seg|segmentation|labels?|annotation|depth|target|matte|leftImg8bit)(?:[-_]?\d)?"
    rb"|_gt(?:Fine|Coarse)_color|(?:_gt(?:Fine|Coarse))?_(?:labelIds|labelTrainIds|instanceIds))\Z",
    re.IGNORECASE,
)
"""What follows the name of an image in that of its mask."""
MASK_LIKE = re.compile(MASK_ENDING.pattern.removesuffix(rb"\Z") + rb"(?:\.[^/]*)?\Z", re.IGNORECASE)
"""The same with any extension: few images are called like this, and the others are not looked at any further."""
MOST_FOLDERS, MOST_SIBLINGS = 10_000, 8


def masks(tree: Tree) -> str | None:
    """Name second pictures of the images, such as masks, or folders that are not classes; None if there are none."""
    return _paired_folders(tree) or _masks_beside(tree) or _odd_folders(tree)


def _masks_beside(tree: Tree) -> str | None:
    """Describe images called like another one in their folder, with an ending such as _mask."""
    like = {image: MASK_ENDING.sub(b"", _without_extension(image)) for image in filter(MASK_LIKE.search, tree.images)}
    plain = {image: name for image, name in like.items() if name != _without_extension(image)}
    wanted = set(plain.values())
    there = wanted.intersection(map(_without_extension, tree.images)) if wanted else wanted
    found = [image for image, name in plain.items() if name in there]
    if len(found) < min(SEVERAL, len(tree.images) / 3):
        return None
    what = plural(len(found), "image is named like a mask", "images are named like masks")
    return f"{what} of others ({some_paths(found)}){OR_MASKS}"


def _without_extension(image: bytes) -> bytes:
    return os.path.join(folder_of(image), stem_of(image))


def _odd_folders(tree: Tree) -> str | None:
    """Describe a folder of images that is called images, masks, train or the like, and lies beside other folders."""
    folders = image_folders(tree)
    base = images_below(folders, b"")
    tops = tops_of(folders, base)
    if tops >= {b"blobs", b"snapshots"}:
        inside = {image.split(b"/")[1] for image in tree.images if image.startswith(b"snapshots/")}
        snapshots = some_paths([b"snapshots/" + name + b"/" for name in sorted(inside)])
        return f"it is a cache of Hugging Face, with the images of blobs/ again in {snapshots}"
    odd = sorted(top for top in tops if top.lower() in NEVER_CLASSES) or sorted(filter(SPLIT_FOLDER.fullmatch, tops))
    if len(tops) < 2 or (len(odd) == len(tops) and SPLIT_FOLDER.fullmatch(odd[0])) or not odd:
        return None
    others = [top + b"/" for top in sorted(tops - set(odd)) or odd[1:]]
    return f"{quoted_value(odd[0] + b'/')} is not a class by its name, but lies beside {some_paths(others)}"


def _paired_folders(tree: Tree) -> str | None:
    """Describe two folders with pictures of the same things, such as images/ and masks/; None if there are none.

    Class folders may number their images alike (cat/001.jpg, dog/001.jpg). Two folders are a pair if one is named like
    a folder of masks, images or another part, or if they are the only two and the names they share are more than
    numbers.
    """
    folders = sorted(folder[:-1] for folder in image_folders(tree))[:MOST_FOLDERS]
    pairs = list(_pairs(folders))
    stems: dict[bytes, set[bytes]] = {folder: set() for first, second, _ in pairs for folder in (first, second)}
    endings: dict[bytes, set[bytes]] = defaultdict(set)
    for image in tree.images if pairs else ():
        if (folder := folder_of(image)) in stems:
            stems[folder].add(MASK_ENDING.sub(b"", stem_of(image)))
            endings[folder].add(extension_of(image))
    for first, second, hint in pairs:
        one, other = stems[first], stems[second]
        if hint:
            alike = 2 * len(one & other) >= min(len(one), len(other))
        else:
            alike = one == other and len(one) >= SEVERAL
            alike = alike and (not endings[first] & endings[second] or not _is_count(one))
        if alike:
            return f"{quoted_value(first + b'/')} and {quoted_value(second + b'/')} hold images of the same names{hint}"
    return None


KINDS = {
    **dict.fromkeys((b"rgb", b"image", b"images", b"imgs"), ""), **dict.fromkeys((b"depth", b"disparity"), "map"),
    **dict.fromkeys((b"gt", b"semseg", b"labels", b"annotations", b"masks"), "mask"), b"normals": "image",
}  # fmt: skip
"""Word in the name of a folder -> the kind of part that it holds; "" for the images themselves."""


def _with_parts(folders: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the options that pack folders, given by their names and paths, as the parts of images.

    What the folders hold must follow from their names, or FOLDER and KIND are left to the user.
    """
    options, num_images = [], 0
    for name, path in folders:
        words = [word.lower() for word in WORDS.findall(name) if word.lower() in KINDS]
        if len(words) != 1:
            return OR_PARTS
        kind, where = KINDS[words[0]], printable(path)
        num_images += not kind
        if kind:
            part = option("part", f"{words[0].decode()}={where}:{kind}")
            options.append(option("mask", where) if kind == "mask" else part)
    return f"; if they belong together: {' '.join(sorted(options))}" if num_images == 1 and options else OR_PARTS


def _pairs(folders: list[bytes]) -> Iterator[tuple[bytes, bytes, str]]:
    """Yield pairs of folders whose paths differ in one part, with what to say if they are named as a pair."""
    there = set(folders)
    siblings: dict[tuple[bytes, bytes], list[tuple[bytes, bytes]]] = defaultdict(list)
    for folder in folders:
        parts = folder.split(b"/")
        for i, part in enumerate(parts):
            siblings[b"/".join(parts[:i]), b"/".join(parts[i + 1 :])].append((part, folder))
        if parts[-1].lower() in MASK_FOLDERS and folder_of(folder) in there:
            yield folder_of(folder), folder, OR_MASKS
    for group in siblings.values():
        if len(group) > MOST_SIBLINGS:
            continue
        for (name, first), (other, second) in combinations(group, 2):
            are_splits = SPLIT_FOLDER.fullmatch(name) and SPLIT_FOLDER.fullmatch(other)
            hint = _hint_of(name, other)
            if not are_splits and (hint or len(group) == 2):
                yield first, second, _with_parts(group) if hint == OR_PARTS else hint


def _hint_of(name: bytes, other: bytes) -> str:
    """Return what to say if two folders are named as images and their masks, or as two parts; "" if they are not."""
    if {name.lower(), other.lower()} & (MASK_FOLDERS | IMAGE_FOLDERS) or _is_mask_of(name, other):
        return OR_MASKS
    one, two = ({word.lower() for word in WORDS.findall(each)} for each in (name, other))
    return OR_PARTS if one != two and (one | two) & OF_PARTS else ""


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
