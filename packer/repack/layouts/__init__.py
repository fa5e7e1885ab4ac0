"""Layouts that `packer extract` writes: a new one is its class and one line here, or an entry point.

A layout says where an image goes, writes its label, and says what it cannot hold.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packer.errors import UsageError, option
from packer.format.manifest import Manifest
from packer.images.masks import encode_mask, voc_palette, with_palette
from packer.model.annotation import NOT_OBJECTS, Annotation, Mask, PartSpec
from packer.model.fields import FIELDS, INSTANCES, Number
from packer.model.tiles import WINDOW
from packer.sources.mask_files import MASK
from packer.sources.paths import IMAGE_FOLDERS, quoted_value
from packer.system.registry import Registry, choose

_HOMES = {
    "folder": "packer.repack.layouts.builtin:FolderLayout",
    "voc": "packer.repack.layouts.builtin:VocLayout",
    "yolo": "packer.repack.layouts.builtin:YoloLayout",
    "dota": "packer.repack.layouts.oriented:DotaLayout",
    "coco": "packer.repack.layouts.builtin:CocoLayout",
    "list": "packer.repack.layouts.table:ListLayout",
    "masks": "packer.repack.layouts.builtin:MasksLayout",
}
_REGISTRY = Registry(_HOMES, "packer.layouts")
"""Entry points of this group add layouts: a name, and the subclass of `Layout`."""
LAYOUTS = _REGISTRY.own
"""The built-in values of ``--layout``."""
CLASSES_FILE = "classes.txt"


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """A record that is written."""

    name: bytes
    """Path of its image below the folder."""
    annotation: Annotation
    width: int
    height: int

    def class_names(self, classes: Sequence[str]) -> list[str]:
        """Return the class of each box."""
        labels = self.annotation.box_labels
        return [] if labels is None else [classes[i] for i in labels.tolist()]


def below_images(path: bytes) -> bytes:
    """Return the path of an image without the folder of all images that it may begin with, such as images/."""
    first, slash, rest = path.partition(b"/")
    return rest if slash and first.lower() in IMAGE_FOLDERS else path


class Layout:
    """Writes the labels of images to a folder. Subclasses are in `builtin`, and in other packages.

    Args:
        folder: Where to write.
        manifest: The manifest of the pack.
    """

    name = ""
    holds: frozenset[str] = frozenset()
    """What it can hold: names of FIELDS, or a member of one: ``box_fields.difficult``."""
    needs: frozenset[str] = frozenset()
    """Of these a pack must have one."""
    mask_folder = b"masks"
    """Where masks go."""
    has_palette = False
    """Whether masks have the palette of Pascal VOC, so that people see the classes."""
    ignored_as = ""
    """The flag of a box by which it tells ignored regions, `NOT_OBJECTS`, of those in `holds`; "" for none."""
    stems = False
    """Whether two images in a folder must differ in more than their extension."""

    def __init__(self, folder: str, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.classes = manifest.classes
        self.lost: Counter[str] = Counter()
        """What could not be written -> the number of records, or of what it says."""
        self.labels = self.name
        """``--labels`` that reads it again, with FOLDER for the folder."""
        self.options: dict[str, str | bool] = {}
        """Further options that read it again -> their values, True for one without."""
        if INSTANCES.name in self.holds and INSTANCES.name in manifest.fields:
            self.options["instance-masks"] = True
        self.parts: dict[str, str] = {}
        """``--part`` for each part that was written."""

    @property
    def is_of_masks(self) -> bool:
        """Whether the pack has masks, and no other labels."""
        return MASK in self.manifest.masks and not {*self.manifest.fields} - {WINDOW}

    def check(self) -> None:
        """Raise UsageError if the pack has nothing that this layout could hold, or a class that it cannot name."""
        fields = {name for name in self.manifest.fields if name not in ("box_labels", WINDOW)}
        fields |= {"masks"} if MASK in self.manifest.masks else set()
        if self.needs and not fields & self.needs:
            has = ", ".join(sorted(fields)) or "no labels"
            problem = f"{self.name} holds {' or '.join(sorted(self.needs))}, but the pack has {has}"
            step = "list" if fields - {"label"} else "folder"
            step = "voc, yolo, coco or list" if "boxes" in fields else "masks or voc" if fields == {"masks"} else step
            raise UsageError(option("layout"), problem, f"choose {step}")
        for name in self.classes:
            if not name.isprintable() or name != name.strip() or not name:
                raise UsageError(
                    option("layout"), f"{self.name} cannot hold a class called {quoted_value(name)}", "choose coco"
                )

    def place(self, path: bytes, annotation: Annotation) -> bytes:
        """Return where the image of a record goes; `path` is that of its source file, made safe."""
        return path

    def add(self, item: Item) -> None:
        """Write the label of an image, or keep it for `close`."""

    def write_mask(self, image: bytes, name: str, mask: Mask) -> None:
        """Write the mask of an image as a PNG whose gray levels are its ids; `name` is that of the part.

        With a palette, if the ids have 8 bits, people see the classes.
        """
        colored = self.has_palette and mask.dtype == np.uint8
        data = with_palette(mask, voc_palette()) if colored else encode_mask(mask, "png")
        self.write(self.mask_file(image, name), data)

    def write_part(self, image: bytes, spec: PartSpec, file: tuple[str, bytes]) -> None:
        """Write a part of an image as a file with this (extension, content), in a folder of the part's name."""
        extension, content = file
        name = spec.name.encode("ascii")
        self.write(b"%s/%s.%s" % (name, below_images(image).rpartition(b".")[0], extension.encode("ascii")), content)
        unknown = "" if spec.unknown is None else f":{spec.unknown}"
        self.parts[spec.name] = f"{spec.name}={spec.name}:{spec.kind}{unknown}"

    def mask_file(self, image: bytes, name: str) -> bytes:
        """Return where the mask of the image at this path goes."""
        return b"%s/%s.png" % (self._folder_of(name), below_images(image).rpartition(b".")[0])

    def _folder_of(self, mask: str) -> bytes:
        return self.mask_folder if mask == MASK else mask.encode("ascii")

    def close(self) -> None:
        """Write what is written once: here, the class names in the order of their ids, for ``--classes``."""
        if self.classes and not self.is_of_masks:
            self.write(CLASSES_FILE, "".join(f"{name}\n" for name in self.classes).encode("utf-8", "surrogateescape"))
            self.options["classes"] = os.path.join("FOLDER", CLASSES_FILE)

    def write_mask_classes(self) -> None:
        """Write the names of the ids of masks beside them, and say how they are read again."""
        ignored = [facts.ignore for facts in self.manifest.masks.values()]
        for name, facts in self.manifest.masks.items():
            if facts.classes:
                names = "".join(f"{one}\n" for one in facts.classes).encode("utf-8", "surrogateescape")
                self.write(self._folder_of(name) + b"/class_names.txt", names)
            if name == MASK:
                self.options["mask"] = os.fsdecode(self.mask_folder)
            else:
                self.parts[name] = f"{name}={name}:mask"
            self.options["mask-values"] = "ids"
            if ignored[0] is not None:
                self.options["ignore-id"] = str(ignored[0])
            self.lost[f"the ignored id of {name}"] += facts.ignore != ignored[0]

    def note_lost(self, annotation: Annotation) -> None:
        """Count what the annotation has and this layout cannot hold."""
        for field in FIELDS:
            name, value = field.name, getattr(annotation, field.name)
            if name == "box_labels" or not field.has(value) or name in self.holds:
                continue
            if not field.kind.is_numeric:
                members = (f"{name}.{member}" for member in value)
                self.lost.update(self._as_written(member) for member in members if member not in self.holds)
            elif isinstance(field.kind, Number) or len(value):
                self.lost[name] += 1
        if "boxes" in self.holds and annotation.boxes is not None and annotation.box_labels is None:
            self.lost["boxes without a class"] += len(annotation.boxes)

    def _as_written(self, member: str) -> str:
        """Return what to say of a member that it cannot hold: a flag of ignored regions becomes another one."""
        is_flag = self.ignored_as and member.removeprefix("box_fields.") in NOT_OBJECTS
        return f"{member}, but as {self.ignored_as}" if is_flag else member

    def write(self, name: bytes | str, data: bytes) -> None:
        """Write a new file below the folder, and the folders above it."""
        path = os.path.join(os.fsencode(self.folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(data)


def plain(value: float) -> str:
    """Return a float64 as plain decimals that are read as the same number, without an exponent."""
    return np.format_float_positional(value, trim="-")


def layout_names() -> tuple[str, ...]:
    """Return all values of ``--layout``, with those of other packages last."""
    return _REGISTRY.names


def layout_of(name: str) -> type[Layout]:
    """Return the layout called `name`. Raise UsageError if there is none."""
    found: type[Layout] = _REGISTRY.load(choose(option("layout"), name, layout_names()))
    return found
