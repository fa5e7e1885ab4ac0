"""Pascal VOC: one XML file per image, matched by stem and never ambiguously; splits from ``ImageSets``."""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from packer.errors import BadLabel, NoImage, UsageError, as_options, option, plural, printable
from packer.model.annotation import Json, Point, RawAnnotation
from packer.sources.box_corners import Box, turned_boxes
from packer.sources.by_stem import ByStemSource, choice_by_stem, match_by_stem
from packer.sources.coco_objects import join_parts
from packer.sources.folder import MASK_FOLDERS
from packer.sources.paths import (
    IMAGE_EXTENSIONS,
    are_splits,
    as_bytes,
    as_text,
    exact_number,
    extension_of,
    folder_of,
    folder_splits,
    in_order,
    quoted_value,
    some_paths,
    split_folders,
    spread,
    stem_of,
)
from packer.sources.source import LOOKS, Choice, SourceOptions, Tree
from packer.sources.tree import MIB, lines_of, read_file

if TYPE_CHECKING:
    from typing_extensions import Self

EDGES = ("xmin", "ymin", "xmax", "ymax")
FLAGS = ("difficult", "truncated", "occluded")
FIX = "fix the label"

# expat does not know these encodings and Python's parser refuses them, but labels from East Asia use them
MULTI_BYTE = {
    codecs.lookup(name).name: name
    for name in ("gb18030", "big5hkscs", "cp932", "shift_jis", "euc_jp", "euc_kr", "cp949", "iso2022_jp")
} | {"gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs"}  # the supersets that are used in practice
DECLARED = re.compile(rb"""\A(<\?xml[^>]{0,200}?)\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")


# Parses a Pascal VOC XML file into an annotation with all fields.
#
# Format: the VOC2012 development kit, section 5. Unknown elements are ignored, and elements may be in any order.


def parse_xml(data: bytes, path: bytes) -> Element:
    """Return the root element. Raise BadLabel if it is not XML, or has a DTD (entity bombs, file access)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some codecs that an XML may name warn about its bytes
            root: Element = fromstring(_known_to_expat(data), forbid_dtd=True)
            return root
    except DefusedXmlException:
        raise BadLabel(path, "has a DTD or entities, which may hide an attack", "remove its <!DOCTYPE") from None
    except (ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise BadLabel(path, f"is not readable as XML: {error}", FIX) from None


def _known_to_expat(data: bytes) -> bytes:
    match = DECLARED.match(data)
    if match is None:
        return data
    try:
        codec = MULTI_BYTE.get(codecs.lookup(match[2].decode("ascii")).name)
    except LookupError:
        return data
    if codec is None:
        return data
    return match[1] + data[match.end() :].decode(codec).encode()  # without `encoding=` it is UTF-8


def read_annotation(root: Element, path: bytes) -> RawAnnotation:
    """Return the annotation in an ``<annotation>`` element.

    VOC pixels are counted from 1 and its edges are inclusive: the box (xmin, ymin, xmax, ymax) covers
    (xmin - 1, ymin - 1, xmax, ymax) in the frame of `packer.model.annotation`. The original numbers are kept in the box
    field ``voc_bndbox``. Points of polygons, which are of Roboflow and not of VOC, are counted from 1 too, as by the
    library supervision.

    Raises:
        BadLabel: It is invalid; the error names the file and the object's number.
    """
    if root.tag != "annotation":
        raise BadLabel(path, f"its root is <{_tag(root)}>, not <annotation>", "move it away from the image")
    boxes: list[Box] = []
    names: list[str] = []
    degrees: list[float] = []
    polygons: list[tuple[Point, ...]] = []
    fields: dict[str, list[Json]] = {name: [] for name in (*FLAGS, "pose", "voc_bndbox")}
    try:
        size = _size(root)
    except ValueError as error:
        raise BadLabel(path, str(error), FIX) from None
    for count, thing in enumerate(root.findall("object"), 1):
        try:
            names.append(_text(thing, "name", required=True))
            for flag in FLAGS:
                fields[flag].append(_whole(thing, flag))
            fields["pose"].append(_text(thing, "pose") or None)
            written = _edges(thing)
            degrees.append(_rotation(thing))
            polygons.append(_outline(thing))
        except ValueError as error:
            raise BadLabel(path, f"object {count}: {error}", FIX) from None
        fields["voc_bndbox"].append(written)
        boxes.append(_covering_box(written))
    of_boxes, obb = turned_boxes(boxes, degrees)
    return RawAnnotation(
        origin=as_text(path),
        boxes=of_boxes,
        obb=obb,
        polygons=tuple(polygons) if any(polygons) else None,
        box_labels=tuple(names),
        box_texts=tuple(", ".join(map(str, edges)) for edges in fields["voc_bndbox"]),
        box_fields={name: tuple(values) for name, values in fields.items()},
        image_size=size,
    )


def claimed_names(root: Element) -> list[str]:
    """Return the file names in ``<filename>`` and ``<path>`` without folders, for comparison only."""
    claims = (root.findtext(tag, "").strip() for tag in ("filename", "path"))
    return [re.split(r"[/\\]", claim)[-1] for claim in claims if claim]


def _covering_box(written: Sequence[float]) -> Box:
    xmin, ymin, xmax, ymax = written
    # equal edges are mistakes, not objects one pixel wide: keep them without area, so that --boxes applies
    right = xmax if xmax > xmin else xmax - 1
    bottom = ymax if ymax > ymin else ymax - 1
    return float(xmin - 1), float(ymin - 1), float(right), float(bottom)


def _edges(thing: Element) -> tuple[float, ...]:
    box = _only(thing, "bndbox")
    if box is None:
        raise ValueError("it has no <bndbox>")
    return tuple(_number(box, edge) for edge in EDGES)


def _rotation(thing: Element) -> float:
    """Return by how many degrees a box is turned clockwise around its center, as CVAT writes it; 0 without it."""
    for attribute in thing.iterfind("attributes/attribute"):
        if attribute.findtext("name") == "rotation":
            return _number(attribute, "value")
    return 0.0


def _is_outline(polygon: Element) -> bool:
    """Return whether a polygon has at least three points, as Roboflow writes them."""
    return polygon.find("x3") is not None


def _outline(thing: Element) -> tuple[Point, ...]:
    """Return the polygon of an object, whose parts are joined; () if it has none."""
    rings = [_ring(polygon) for polygon in thing.iterfind("polygon") if _is_outline(polygon)]
    return join_parts(rings) if rings else ()


def _ring(polygon: Element) -> list[Point]:
    texts = {child.tag: (child.text or "").strip() for child in polygon}
    names = [(f"x{number}", f"y{number}") for number in range(1, len(polygon) // 2 + 1)]
    if len(polygon) % 2 or texts.keys() != {name for pair in names for name in pair}:
        raise ValueError("its <polygon> is not of <x1>, <y1>, <x2>, <y2> and so on")
    xs, ys = ([_exact(name, texts[name]) - 1 for name in axis] for axis in zip(*names, strict=True))
    return list(zip(map(float, xs), map(float, ys), strict=True))


def _size(root: Element) -> tuple[int, int] | None:
    size = _only(root, "size")
    if size is None:
        return None
    width, height = (_whole(size, tag) for tag in ("width", "height"))
    return (width, height) if width and height else None  # tools that do not know the size write 0


def _whole(parent: Element, tag: str) -> int:
    """Return the whole number in a tag; 0 if the tag is absent or empty."""
    text = _text(parent, tag)
    if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.0{0,9})?)?", text):
        raise ValueError(f"<{tag}> {quoted_value(text)} is not a whole number")
    return int(float(text or "0"))


def _number(parent: Element, tag: str) -> float:
    return _exact(tag, _text(parent, tag, required=True))


def _exact(tag: str, text: str) -> float:
    try:
        return exact_number(text.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise ValueError(f"<{tag}> {error}") from None


def _text(parent: Element, tag: str, required: bool = False) -> str:
    """Return the stripped text of a tag that may occur once; "" if it is absent or empty and that is allowed."""
    child = _only(parent, tag)
    text = (child.text or "").strip() if child is not None else ""
    if required and not text:
        raise ValueError(f"it has no <{tag}>" if child is None else f"its <{tag}> is empty")
    return text


def _only(parent: Element, tag: str) -> Element | None:
    found = parent.findall(tag)
    if len(found) > 1:
        raise ValueError(f"it has {len(found)} <{tag}>")
    return found[0] if found else None


def _tag(element: Element) -> str:
    return quoted_value(element.tag)[1:-1]


MOST_XML_BYTES = MIB
MOST_SPLIT_BYTES = 64 * MIB
SEGMENTATION = b"Segmentation"
OF_LABELME = re.compile(rb"<(?:pt|segm|imagesize|sourceAnnotation)>")


class VocSource(ByStemSource):
    """A Pascal VOC dataset.

    Raises:
        UsageError: ``--split`` names neither a file in an ``ImageSets/Main`` nor a folder.
    """

    ending = b".xml"

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        self._stems = {stem_of(image) for image in tree.images}
        photos = {stem_of(image) for image in tree.images if not _is_mask(image)}
        self._masks = {image for image in tree.images if _is_mask(image) and stem_of(image) in photos}
        images = [image for image in tree.images if image not in self._masks]
        super().__init__(tree, match_by_stem(images, _xml_files(tree)))
        self._split: dict[bytes, dict[bytes, str]] | None = None
        """Folder of a dataset -> stem -> ``file:line`` for the images of the split."""
        self._folders: tuple[bytes, ...] = (b"",)
        if options.split is not None and any(map(_is_sets, tree.folders)):
            self._split = _read_split(tree, options.split, self._stems)
        else:
            self._folders = split_folders(tree, options.split)
        self.label_files.update(path for path in tree.files if _is_sets(folder_of(path)))
        self.found: dict[bytes, tuple[str, int]] = {}
        """Image -> the file name in its XML, "" if it is the same, and how many of its polygons are left out."""

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return VOC if images have an XML file of the same name, and a few of those are annotations."""
        xml = _xml_files(tree)
        if not xml:
            return []
        images = [image for image in tree.images if not _is_mask(image)]
        matches = match_by_stem(images, xml)
        unclaimed = set(matches.unclaimed)
        # ambiguous images and XML files count too; each is rejected later
        seen = list(matches.label_of.values()) or [path for path in xml if path not in unclaimed]
        are_labels = (_is_annotation(tree, path, damaged=False) for path in spread(seen, LOOKS))
        return choice_by_stem("voc", "Pascal VOC XML file", matches.fitting, len(images), are_labels)

    @staticmethod
    def splits(tree: Tree, options: SourceOptions) -> tuple[str, ...]:
        """Return the lists in ``ImageSets/Main`` that name images, else the folders of splits."""
        return listed_splits(tree, b"Main") if any(map(_is_sets, tree.folders)) else folder_splits(tree)

    def in_split(self, image: bytes) -> bool:
        """Return whether the stem of the image is in the split's file, or the image in a folder of its name."""
        if self._split is None:
            return image.startswith(self._folders)
        return any(stem_of(image) in stems for folder, stems in self._split.items() if image.startswith(folder))

    def left_out(self, image: bytes) -> str | None:
        """Return why an image is not one of the dataset: the masks of VOC are images, too."""
        folder = printable(folder_of(image))
        return f"mask: {as_options(option('mask', folder))} packs it" if image in self._masks else None

    def annotate(self, image: bytes) -> RawAnnotation:
        """Return the boxes of the image's XML file.

        Raises:
            NoLabel: No file fits the image.
            BadLabel: Several files fit equally well, or the file is invalid.
        """
        path = self.label_file(image)
        root = parse_xml(read_file(self._tree, path, MOST_XML_BYTES), path)
        annotation = read_annotation(root, path)
        name, stem = as_text(image.rpartition(b"/")[2]), as_text(stem_of(image))
        claims = claimed_names(root)
        others = [claim for claim in claims if claim not in (name, stem) and claim.rpartition(".")[0] != stem]
        left_out = sum(not _is_outline(polygon) for polygon in root.iterfind("object/polygon"))
        if others or left_out:
            self.found[image] = others[-1] if others else "", left_out
        return annotation

    def for_images(self, images: Sequence[bytes]) -> Self | None:
        """Return a copy for a worker, with the label files of these images."""
        if (part := super().for_images(images)) is not None:
            part._stems, part._masks, part._split, part.found = set(), set(), None, {}
        return part

    def unmatched_labels(self) -> Iterator[NoImage | BadLabel]:
        """Yield annotation files that fit no image, and names in the split without an XML file."""
        self._note_found()
        for path in self.matches.unclaimed:
            stem = stem_of(path)
            # a name in the split without an image is reported with its line, below
            asked = self.in_split(path) and (self._split is None or stem in self._stems)
            if asked and _is_annotation(self._tree, path, damaged=True):
                yield NoImage(path, "has no image", "add the image, or remove the label")
        for stems in (self._split or {}).values():
            for stem, where in stems.items():
                if stem not in self._stems:
                    yield NoImage(where, f"no image {printable(stem)}", "add the image, or remove the line")

    def _note_found(self) -> None:
        renamed = {image: claim for image, (claim, _) in self.found.items() if claim}
        if renamed:
            image = min(renamed)
            claims = plural(len(renamed), "XML file claims", "XML files claim")
            example = f"{printable(self.matches.label_of[image])} claims {quoted_value(renamed[image])}"
            self.notes.append(
                f"{claims} a <filename> or <path> that differs from the image's, e.g. {example}; matched by stem"
            )
        if crumbs := sum(left_out for _, left_out in self.found.values()):
            what = plural(crumbs, "polygon was", "polygons were")
            self.notes.append(f"{what} left out, without three points <x1>, <y1> to <x3>, <y3>; the boxes are packed")


def _xml_files(tree: Tree) -> list[bytes]:
    return [path for path in tree.files if extension_of(path) == b".xml"]


def of_labelme(data: bytes) -> bool:
    """Return whether XML is of LabelMe's web tool, whose root has the name of VOC's."""
    return OF_LABELME.search(data) is not None and b"<bndbox" not in data


def _is_annotation(tree: Tree, path: bytes, damaged: bool) -> bool:
    """Return False for valid XML of another kind, and `damaged` if it cannot be read."""
    try:
        data = read_file(tree, path, MOST_XML_BYTES)
        return parse_xml(data, path).tag == "annotation" and not of_labelme(data)
    except BadLabel:
        return damaged


def _is_mask(image: bytes) -> bool:
    return folder_of(image).rpartition(b"/")[2].lower() in MASK_FOLDERS


def _is_sets(folder: bytes, task: bytes = b"Main") -> bool:
    return (b"/" + folder).endswith(b"/ImageSets/" + task)


def listed_splits(tree: Tree, task: bytes) -> tuple[str, ...]:
    """Return the lists in ``ImageSets/TASK`` that name images and are called as splits are."""
    stems = {stem_of(image) for image in tree.images}
    names = {as_text(stem_of(path)) for path in tree.files if _is_sets(folder_of(path), task)}
    found = []
    for name in filter(lambda name: are_splits([name]), names):
        with suppress(UsageError):
            if any(stems & listed.keys() for listed in _read_split(tree, name, stems, task).values()):
                found.append(name)
    return in_order(found)


class SegmentationSplit:
    """A split by the lists in ``ImageSets/Segmentation``.

    Raises:
        UsageError: No such list has the name.
    """

    def __init__(self, tree: Tree, split: str) -> None:
        stems = {stem_of(image) for image in tree.images}
        self._stems = _read_split(tree, split, stems, SEGMENTATION)

    @staticmethod
    def lists(tree: Tree) -> list[bytes]:
        """Return the files of the lists."""
        return [path for path in tree.files if _is_sets(folder_of(path), SEGMENTATION)]

    @classmethod
    def of(cls, tree: Tree, split: str | None) -> SegmentationSplit | None:
        """Return the split of ``--split``; None without it, or where there are no lists."""
        has_lists = any(_is_sets(folder, SEGMENTATION) for folder in tree.folders)
        return cls(tree, split) if has_lists and split is not None else None

    def in_split(self, image: bytes) -> bool:
        """Return whether a list of the split names the image."""
        return any(stem_of(image) in stems for folder, stems in self._stems.items() if image.startswith(folder))


def _read_split(tree: Tree, split: str, stems: set[bytes], task: bytes = b"Main") -> dict[bytes, dict[bytes, str]]:
    """Return the stems of a split, for each dataset that has it: VOCdevkit holds one for each year."""
    sets = [path for path in tree.folders if _is_sets(path, task)]
    files = [path for path in (folder + b"/" + as_bytes(split) + b".txt" for folder in sets) if path in tree.files]
    if not files:
        there = {stem_of(file) for file in tree.files if folder_of(file) in sets}
        next_step = f"the splits are: {some_paths(sorted(there), 10)}"
        raise UsageError(tree.root, f"{some_paths(sets)} has no {printable(split)}.txt for --split={split}", next_step)
    return {
        path[: path.rindex(b"ImageSets/")]: _stems_of(read_file(tree, path, MOST_SPLIT_BYTES), path, stems)
        for path in files
    }


def _stems_of(data: bytes, path: bytes, stems: set[bytes]) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for count, line in enumerate(lines_of(data), 1):
        name, _, last = (b" " + line.strip()).rpartition(b" ")
        # cat_train.txt has a number for each image of train: whether it shows a cat (-1, 0, 1)
        stem = name.strip() if last in (b"-1", b"0", b"1") and name.strip() else line.strip()
        if stem:
            found.setdefault(_plain(stem, stems), f"{printable(path)}:{count}")
    return found


def _plain(name: bytes, stems: set[bytes]) -> bytes:
    """Return the stem in a line of a split; some tools also write folders and extensions."""
    name = name.rpartition(b"/")[2]
    return stem_of(name) if name not in stems and extension_of(name) in IMAGE_EXTENSIONS else name
