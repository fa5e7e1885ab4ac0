"""What `data` of packer.ultralytics names: the packs of each split, and what a data.yaml would say of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from packer.containers import container_of
from packer.errors import UsageError, option, plural
from packer.format.pack import Pack, open_pack
from packer.format.pack_paths import names_a_pack
from packer.loading.yolo_labels import check_box_classes, classes_of_objects, keypoints_of, outlines_of

SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
"""The splits of a data.yaml, and what folders of each are called."""
_BOXES = ("boxes", "box_labels")
_NEEDS = {
    "detect": _BOXES,
    "segment": (*_BOXES, "polygons"),
    "pose": (*_BOXES, "keypoints"),
    "obb": _BOXES,  # and an outline of each
    "semantic": ("mask",),
    "classify": ("label",),
}
_TRAIN_INSTEAD = {
    "obb": "OBBTrainer",
    "mask": "SemanticSegmentationTrainer",
    "boxes": "DetectionTrainer",
    "label": "ClassificationTrainer",
}
"""What trains from a pack with these labels, the first one that it has."""


def read_data(given: Mapping[str, Any], folder: str, task: str, split: str = "val") -> dict[str, Any] | None:
    """Return what a data.yaml would say of packs, or None if `given` names no pack.

    Args:
        given: Entries of a data.yaml: packs as ``train``, ``val`` and ``test``; or only a ``path``, of one pack for all
            splits, or ``coco.lmdb`` of coco-train.lmdb and coco-val.lmdb. Other entries (``kpt_shape``, ``flip_idx``,
            ...) are kept.
        folder: What paths are relative to.
        task: detect, segment, pose, obb, semantic or classify.
        split: The split to validate on.

    Raises:
        UsageError: A pack does not have what the task needs, or packs, names and keypoints do not belong together.
    """
    content = dict(given)
    path = os.fspath(content.get("path") or "")
    roots = [os.path.abspath(os.path.join(folder, path)), os.path.abspath(path)]
    root = next((one for one in roots if os.path.exists(one) or _packs_at(one)), roots[0])
    packs = dict(_opened(content, roots, root))
    if not packs:
        return None
    if missing := [split for split in ("train", "val", split) if not isinstance(content.get(split), str)]:
        problem = f"has a list as {missing[0]}" if content.get(missing[0]) else f"names no {missing[0]}"
        raise UsageError("data", problem, "name one pack, or the same one twice")
    opened = list(packs.values())
    for pack in opened:
        _check(pack, task)
    names = [_classes(pack, task) for pack in opened]
    content["names"] = _names(opened, names, content.get("names"))
    if task == "pose":
        content.update(_keypoints(opened, content))
    data = {"channels": 3, **content, "nc": len(content["names"]), "path": root}
    if task == "semantic":
        data["masks_dir"] = "" if of_polygons(opened[0]) else content.get("masks_dir") or "masks"
    return data


def _opened(content: dict[str, Any], roots: list[str], root: str) -> Iterator[tuple[str, Pack]]:
    """Yield the packs that `content` names, by split, and put the paths of all splits into it."""
    at_root = _packs_at(root)
    if not any(content.get(split) for split in SPLITS):
        if not at_root and container_of(root) and not os.path.exists(root):
            open_pack(root)  # says what is there instead
        content.update(at_root)
    for split in SPLITS:
        entry = content.get(split)
        if not isinstance(entry, str | os.PathLike):
            continue
        places = [os.path.abspath(os.path.join(parent, entry)) for parent in roots]
        place = next(filter(os.path.exists, places), "")
        if not place and at_root and not container_of(os.fspath(entry)):
            place = _pack_called(root, at_root, split, os.fspath(entry))
        content[split] = place = place or places[0]
        if names_a_pack(place) or container_of(place):
            yield split, open_pack(place)


def _packs_at(path: str) -> dict[str, str]:
    """Return the pack of each split: `path` itself for all, or those that ``packer build`` names after it."""
    if names_a_pack(path):
        return dict.fromkeys(SPLITS, path)
    if os.path.exists(path) or not container_of(path):
        return {}
    found = {split: [_beside(path, name) for name in names] for split, names in SPLITS.items()}
    there = {split: next(filter(names_a_pack, places), "") for split, places in found.items()}
    return {split: place for split, place in there.items() if place}


def _beside(path: str, name: str) -> str:
    stem, extension = os.path.splitext(path)
    return f"{stem}-{name}{extension}"


def _pack_called(path: str, at_root: dict[str, str], split: str, entry: str) -> str:
    """Return the pack of a split that an entry such as ``images/train`` names. Raise UsageError if it is none."""
    pack = _beside(path, os.path.basename(os.path.normpath(entry)))
    if names_a_pack(pack):
        return pack
    if path in at_root.values():
        step = f"leave out {' and '.join(SPLITS)}, or build a pack for each split"
        raise UsageError("data", f"names {entry} as {split}, but its path is one pack", step)
    names = ", ".join(os.path.basename(place) for place in at_root.values())
    raise UsageError("data", f"names {entry} as {split}, and {pack} is not a pack", f"leave it out; there are {names}")


def of_polygons(pack: Pack) -> bool:
    """Return whether the semantic task draws masks from the polygons of a pack, because it has no masks."""
    return "polygons" in pack.manifest.fields and not pack.manifest.masks


def _classes(pack: Pack, task: str) -> list[str]:
    if task == "semantic" and not of_polygons(pack):
        return list(pack.manifest.masks["mask"].classes)
    return pack.classes if task == "classify" else classes_of_objects(pack)


def _check(pack: Pack, task: str) -> None:
    task = "segment" if task == "semantic" and of_polygons(pack) else task
    have = [*(field for field in pack.manifest.fields if "." not in field), *pack.manifest.masks]
    for field in _NEEDS[task]:
        if field not in have:
            problem = f"has no {field.replace('_', ' ')}, which the task {task} needs"
            raise UsageError(pack.path, problem, f"it has {', '.join(have) or 'no labels'}; {_instead(have)}")
    if task == "semantic":
        facts = pack.manifest.masks["mask"]
        if facts.dtype != "uint8" or not facts.classes:
            lacks = "whose classes have no names" if facts.dtype == "uint8" else "of 16 bits, and Ultralytics takes 8"
            raise UsageError(pack.path, f"has masks {lacks}", "build it with a class_names.txt beside the masks")
    elif task == "classify":
        lacking = int(np.count_nonzero(np.asarray(pack.column("label")) < 0))
        if lacking:
            problem = f"has {plural(lacking, 'image')} without a class"
            raise UsageError(pack.path, problem, f"build it with {option('missing_labels', 'skip')}")
    else:
        _check_objects(pack, task)


def _instead(have: list[str]) -> str:
    """Return the next step for a pack of another kind."""
    trainer = next((trainer for field, trainer in _TRAIN_INSTEAD.items() if field in have), "")
    build = "build it from a folder with such labels"
    return f"{build}, or train with {trainer}" if trainer else build


def _check_objects(pack: Pack, task: str) -> None:
    check_box_classes(pack)
    if task == "segment" and outlines_of(pack) != "polygons":
        raise UsageError(pack.path, "has boxes without a polygon", "train a detector, or label them with polygons")
    if task == "obb" and not outlines_of(pack, oriented=True):
        step = f"build it from oriented boxes, with {option('labels', 'yolo-obb')}, or train with DetectionTrainer"
        raise UsageError(pack.path, "has boxes without corners, which the task obb needs", step)


def _names(packs: list[Pack], names_of: list[list[str]], given: Any) -> dict[int, str]:
    """Return the class names by id: ids mean the same in all packs, and what `given` says."""
    names = max(names_of, key=len)
    for pack, own in zip(packs, names_of, strict=True):
        if differing := _first_difference(own, names[: len(own)]):
            problem = f"has {differing[0]}, another pack {differing[1]}"
            raise UsageError(pack.path, problem, "build both with the same list of classes")
    if given:
        listed = [str(given[i]) for i in sorted(given)] if isinstance(given, Mapping) else [str(name) for name in given]
        differing = _first_difference(listed[: len(names)], names)
        if differing and names != [str(i) for i in range(len(names))]:
            raise UsageError("data", f"names {differing[0]}, but the pack {differing[1]}", "leave names out")
        names = listed
    if not names:
        raise UsageError(packs[0].path, "has no classes, because it has no boxes", "give data names, too")
    return dict(enumerate(names))


def _first_difference(names: list[str], others: list[str]) -> tuple[str, str] | None:
    """Return the first class that differs, with its number, and its name in the other list."""
    pairs = enumerate(zip_longest(names, others, fillvalue="none"))
    return next(((f"{here} as class {i}", there) for i, (here, there) in pairs if here != there), None)


def _keypoints(packs: list[Pack], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return kpt_shape, and flip_idx if it is known."""
    shape = list(content.get("kpt_shape") or (keypoints_of(packs[0]), 3))
    for pack in packs:
        if keypoints_of(pack) != shape[0]:
            problem = f"has {plural(keypoints_of(pack), 'keypoint')} for each object, not {shape[0]}"
            raise UsageError(pack.path, problem, "correct kpt_shape, or train from packs of one kind")
    known = packs[0].manifest.flip_index or ()
    flip = content.get("flip_idx") or (known if len(known) == shape[0] else ())  # else it is that of landmarks
    return {"kpt_shape": shape, **({"flip_idx": list(flip)} if flip else {})}
