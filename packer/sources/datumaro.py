"""Formats that Datumaro reads (``pip install datumaro``), which packer has no source of its own for.

Datumaro holds the whole set in memory, and so does this source. Its importers for formats that packer reads itself are
not used: some of them lose or move annotations. Those that unpickle files are not used either.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from typing import Any

from packer.errors import NotInstalled, UsageError, option, printable
from packer.sources.base import Choice, SourceOptions, Tree
from packer.sources.by_name import ByNameSource, Entry, Objects
from packer.sources.paths import as_bytes
from packer.system.machine import install_command

FORMATS = {
    "kitti_detection": ("label_2/",),
    "open_images": ("-annotations-human-imagelabels.csv",),
    "lfw": ("annotations/pairs.txt",),
    "vgg_face2": ("bb_landmark/loose_bb_",),
    "celeba": ("anno/identity_celeba.txt",),
    "align_celeba": ("anno/list_landmarks_align_celeba.txt",),
    "mpii_json": ("mpii_annotations.json",),
    "imagenet_txt": ("synsets.txt",),
    "label_me": (),
    "dota": ("labeltxt/",),
    "mot_seq": ("gt/gt.txt",),
    "icdar_text_localization": (),
}
"""Name of a Datumaro format -> parts of the lower-case paths of files by which it is recognized."""
NO_FIELD = {"polyline": "line", "mask": "mask", "caption": "caption", "ellipse": "ellipse", "cuboid_3d": "cuboid"}


class DatumaroSource(ByNameSource):
    """A dataset that Datumaro reads: ``--labels datumaro:FORMAT``, or ``--labels datumaro`` to let it find the format.

    Raises:
        NotInstalled: Datumaro is not installed.
        UsageError: The format is unknown or does not fit, or Datumaro cannot read the set.
    """

    takes_file = "optional"

    def __init__(self, tree: Tree, options: SourceOptions) -> None:
        if tree.members is not None:
            problem = "cannot be read by Datumaro, which reads no archives and no object stores"
            raise UsageError(tree.root, problem, "give it as a folder on this machine")
        name = options.file or _only_format(tree)
        if name not in FORMATS:
            choices = ", ".join(sorted(FORMATS))
            raise UsageError(
                option("labels", f"datumaro:{name}"), "is not a format for Datumaro", f"choose one of {choices}"
            )
        if importlib.util.find_spec("datumaro") is None:
            step = f"{install_command('datumaro')}, then pass --labels=datumaro:{name}"
            raise NotInstalled("", f"Datumaro, which reads {name}, is not installed", step)
        super().__init__(tree, options, _entries(tree, name), _files_of(tree, name))

    @staticmethod
    def recognize(tree: Tree) -> list[Choice]:
        """Return the formats whose files are there, by their names."""
        return [
            Choice(f"datumaro:{name}", f"{printable(files[0])} is a file of {name}, which Datumaro reads")
            for name in FORMATS
            if (files := _files_of(tree, name))
        ]


def _files_of(tree: Tree, name: str) -> list[bytes]:
    parts = [part.encode() for part in FORMATS[name]]
    return [path for path in tree.files if any(part in b"/" + path.lower() for part in parts)] if parts else []


def _only_format(tree: Tree) -> str:
    found = [choice.spec.partition(":")[2] for choice in DatumaroSource.recognize(tree)]
    if len(found) == 1:
        return found[0]
    choices = ", ".join(found or sorted(FORMATS))
    problem = f"{len(found) or 'none'} of its formats fit" if len(found) != 1 else ""
    raise UsageError(option("labels", "datumaro"), problem, f"name one of them, --labels=datumaro:FORMAT: {choices}")


def _entries(tree: Tree, name: str) -> Iterator[Entry]:
    from datumaro import Dataset

    try:
        dataset = Dataset.import_from(os.fsdecode(tree.root), name)
        items = list(dataset)
    except Exception as error:  # its importers raise whatever they meet
        problem = f"Datumaro cannot read it as {name}: {type(error).__name__}: {printable(str(error))}"
        raise UsageError(tree.root, problem, "choose another kind of --labels") from None
    categories = dataset.categories()
    labels = next((value for key, value in categories.items() if key.name == "label"), ())
    names = [label.name for label in labels]
    most = max((sum(a.type.name == "points" for a in item.annotations) for item in items), default=0)
    for item in items:
        path = getattr(item.media, "path", None)
        written = as_bytes(path) if path and os.path.isfile(path) else as_bytes(item.id)
        origin = f"{name}: {printable(item.id)}"
        yield Entry(origin, written, _objects(item, names, one_set=most == 1), split=_split_of(item.subset))


def _split_of(subset: str | None) -> str | None:
    return None if subset in (None, "default") else subset


def _objects(item: Any, names: list[str], one_set: bool) -> Objects:
    """Map the annotations of an item.

    A point set is the landmarks of its image if no image has two of them; otherwise it is keypoints, of the box in its
    group if there is one.
    """
    objects = Objects()
    annotations = sorted(item.annotations, key=lambda a: a.type.name not in ("points", "skeleton"))
    points_of = {} if one_set else {a.group: a for a in annotations if a.type.name == "points" and a.group}
    boxed = {a.group for a in annotations if a.type.name == "bbox" and a.group in points_of}
    for annotation in annotations:
        kind, label = annotation.type.name, getattr(annotation, "label", None)
        name = names[label] if label is not None and label < len(names) else None
        fields = {key: _plain(value) for key, value in annotation.attributes.items()}
        if kind == "label":
            objects.labels.append(name or str(label))
        elif kind == "bbox":
            x, y, w, h = annotation.get_bbox()
            of_box = points_of.get(annotation.group) if annotation.group in boxed else None
            objects.add(name, (x, y, x + w, y + h), keypoints=_points(of_box), fields=fields)
        elif kind == "polygon":
            objects.add(name, polygon=_pairs(annotation.points), fields=fields)
        elif kind == "rotated_bbox":
            objects.add(name, polygon=_pairs(annotation.as_polygon()), fields=fields)
        elif kind == "points" and one_set:
            objects.landmarks = tuple(_pairs(annotation.points))
        elif kind == "points":
            if annotation.group not in boxed:
                objects.add(name, keypoints=_points(annotation), fields=fields)
        elif kind == "skeleton":
            points = [point for element in annotation.elements for point in _points(element)]
            objects.add(name, keypoints=points, fields=fields)
        else:
            objects.no_field[NO_FIELD.get(kind, kind)] += 1
    objects.extras = {key: _plain(value) for key, value in item.attributes.items()}
    return objects


def _pairs(points: Iterable[float]) -> list[tuple[float, float]]:
    values = [float(value) for value in points]
    return list(zip(values[::2], values[1::2], strict=True))


def _points(points: Any) -> list[tuple[float, float, float]]:
    """Return (x, y, visibility) of a point set; Datumaro's visibilities are those of COCO: 0, 1, 2."""
    if points is None:
        return []
    return [(x, y, float(v.value)) for (x, y), v in zip(_pairs(points.points), points.visibility, strict=True)]


def _plain(value: Any) -> Any:
    """Return an attribute as JSON can hold it."""
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float | str) or value is None else str(value)
