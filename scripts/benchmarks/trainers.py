"""The loaders of trainers against packer's, on the same images: images/s, seconds to the first batch, memory per rank.

The trainer's own loader reads files with two worker processes, packer's a pack of them with two threads; each in a new
process that makes batches as the trainer gets them, and does not train. The first batch and the memory are those of a
set of many small images: imports are done, worker processes count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg

from benchmarks.common import Table, drawn, images, in_new_process, linked
from benchmarks.loader import THREADS
from benchmarks.trainer_loaders import TRAINERS
from packer import BuildOptions, build_pack
from packer.bench.measure import Figure

CLASSES = ("ant", "bee", "cat")
BOXES = 7
SIDES = {"classes": (341, 256)}
"""Width and height of the images of a kind, if not PHOTO."""
PHOTO = (640, 480)
MEASURE = """
import os, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[1:2]
from benchmarks.trainer_loaders import TRAINERS, Inputs
from packer.bench.measure import memory_bytes

_, _, name, packed, small, data, workers, device, least_s = sys.argv
trainer = TRAINERS[name]

def epochs(data):
    inputs = Inputs(Path(data), packed == "True", trainer.size, trainer.batch, int(workers), device)
    batches = trainer.batches(inputs)
    while True:
        yield from batches

next(epochs(small))
before, started = memory_bytes(os.getpid()), time.perf_counter()
batches = epochs(data)
next(batches)
first_s, used = time.perf_counter() - started, memory_bytes(os.getpid()) - before
for _ in range(4):
    next(batches)
count, started = 0, time.perf_counter()
while (passed := time.perf_counter() - started) < float(least_s):
    next(batches)
    count += trainer.batch
print(first_s, used / 2**20, count / passed if count else 0)
sys.stdout.flush()
os._exit(0)  # without waiting for worker processes
"""


def boxes_of(count: int, width: int, height: int) -> list[np.ndarray[Any, Any]]:
    """Return for each of `count` images BOXES boxes, x, y, width and height in pixels, a quarter of them small."""
    random = np.random.default_rng(0)
    sides = random.uniform(0.05, 0.5, (count, BOXES, 2)) * [width, height]
    corners = random.uniform(0, 1, (count, BOXES, 2)) * ([width, height] - sides)
    return list(np.concatenate([corners, sides], axis=2).round(2))


def coco(names: Sequence[str], width: int, height: int) -> str:
    """Return the text of a COCO file for images of these names."""
    objects = [
        {"id": number, "image_id": image, "category_id": number % len(CLASSES) + 1, "bbox": box.tolist(),
         "area": float(box[2] * box[3]), "iscrowd": 0}
        for image, boxes in enumerate(boxes_of(len(names), width, height))
        for number, box in enumerate(boxes, image * BOXES)
    ]  # fmt: skip
    listed = [{"id": i, "file_name": name, "width": width, "height": height} for i, name in enumerate(names)]
    categories = [{"id": i, "name": name, "supercategory": "none"} for i, name in enumerate(CLASSES, 1)]
    return json.dumps({"images": listed, "annotations": objects, "categories": categories})


def as_classes(root: Path, jpegs: list[bytes], count: int) -> None:
    linked((root / "train" / CLASSES[i % len(CLASSES)] / f"{i:07d}.jpg" for i in range(count)), jpegs)


def as_boxes(root: Path, jpegs: list[bytes], count: int) -> None:
    for part, part_count in (("train", count), ("valid", 8)):
        names = [f"{i:07d}.jpg" for i in range(part_count)]
        linked((root / part / name for name in names), jpegs)
        (root / part / "_annotations.coco.json").write_text(coco(names, *size_of(jpegs[0])))


def as_yolo(root: Path, jpegs: list[bytes], count: int) -> None:
    names = [f"{i:07d}" for i in range(count)]
    linked((root / "images" / "train" / f"{name}.jpg" for name in names), jpegs)
    labels = root / "labels" / "train"
    labels.mkdir(parents=True)
    for name, boxes in zip(names, boxes_of(count, 1, 1), strict=True):
        lines = [
            f"{i % len(CLASSES)} {x + w / 2} {y + h / 2} {w} {h}\n"
            for i, (x, y, w, h) in enumerate(np.maximum(boxes, 0.01))
        ]
        (labels / f"{name}.txt").write_text("".join(lines))
    (root / "data.yaml").write_text(f"path: {root}\ntrain: images/train\nval: images/train\nnames: {list(CLASSES)}\n")


def as_masks(root: Path, jpegs: list[bytes], count: int) -> None:
    width, height = size_of(jpegs[0])
    random = np.random.default_rng(0)
    masks = []
    for _ in range(16):
        small = random.integers(0, len(CLASSES), (height // 32, width // 32), np.uint8)
        mask = cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST)
        masks.append(cv2.imencode(".png", mask)[1].tobytes())
    linked((root / "images" / f"{i:07d}.jpg" for i in range(count)), jpegs)
    linked((root / "masks" / f"{i:07d}.png" for i in range(count)), masks)
    (root / "masks" / "class_names.txt").write_text("\n".join(CLASSES) + "\n")


KINDS: dict[str, tuple[Callable[[Path, list[bytes], int], None], str, str]] = {
    "classes": (as_classes, "train", "folder"),
    "boxes": (as_boxes, "train", "coco"),
    "yolo": (as_yolo, "", "yolo"),
    "masks": (as_masks, "", "masks"),
}
"""Kind of files -> what writes them, the folder of it that is packed, and its labels."""


def size_of(jpeg: bytes) -> tuple[int, int]:
    """Return width and height."""
    height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
    return width, height


def photos(given: Any, kind: str) -> list[bytes]:
    """Return different photos, all of the size of this kind."""
    folder = given.home / f"photos-{kind}"
    paths = images("photos", given.data, folder, given.photos)
    found = [
        cv2.imencode(".jpg", cv2.resize(cv2.imread(path), SIDES.get(kind, PHOTO), interpolation=cv2.INTER_AREA))[1]
        for path in paths
    ]
    return [data.tobytes() for data in found]


class Sets:
    """The sets of a kind: its own files and packs of them."""

    def __init__(self, given: Any, kind: str) -> None:
        self.home, self.kind = given.home / kind, kind
        write, self.part, self.labels = KINDS[kind]
        found = photos(given, kind)
        for name, jpegs, count in (
            ("small", found, 64), ("photos", found, given.images), ("many", list(drawn(64)), given.many),
        ):  # fmt: skip
            write(self.home / name, jpegs, count)

    def place(self, name: str, side: str, raw_size: str) -> Path:
        """Return where one side finds the set of this name: its own files, or a pack, built once."""
        if side == "own":
            return Path(self.home, name)
        how: dict[str, Any] = {"encode": "copy"} if side == "jpeg" else {"encode": "raw", "resize": raw_size or None}
        out = Path(self.home, f"{name}-{side}{raw_size if side == 'raw' else ''}.lmdb")
        if not out.exists():
            build_pack(BuildOptions(str(self.home / name / self.part), str(out), labels=(self.labels,), **how))
        return out


def measured(name: str, side: str, places: Sequence[Path], given: Any, least_s: float) -> list[float]:
    """Return seconds to the first batch, MB that were allocated, and images/s, of a new process."""
    words = (name, side != "own", *places, THREADS, given.device, least_s)
    quiet = {"YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(given.home), "YOLO_VERBOSE": "false"}
    return in_new_process(MEASURE, Path(__file__).parents[1], *words, **quiet)


def rounds_of(name: str, sets: Sets, given: Any) -> dict[str, list[Figure]]:
    """Return first batch, memory and images/s of: its own loader, packer from JPEGs, packer from pixels."""
    found: dict[str, list[list[float]]] = {"own": [], "jpeg": [], "raw": []}
    for _ in range(given.rounds):
        for side, rows in found.items():
            small, photo = (sets.place(which, side, TRAINERS[name].raw) for which in ("small", "photos"))
            rate = measured(name, side, (small, photo), given, given.seconds)[2]
            start = [0.0, 0.0]
            if side != "raw":
                many = sets.place("many", side, "")
                start = measured(name, side, (small, many), given, 0)[:2]
            rows.append([*start, rate])
    return {side: [Figure(tuple(values)) for values in zip(*rows, strict=True)] for side, rows in found.items()}


def version_of(library: str) -> str:
    """Return the version of what brings this module."""
    return version(packages_distributions()[library][0])


def options(parser: Any) -> None:
    parser.add_argument("--only", nargs="+", choices=TRAINERS, metavar="NAME", help=f"of {', '.join(TRAINERS)}")
    parser.add_argument("--photos", type=int, default=200, help="different photos among the images [%(default)s]")
    parser.add_argument("--images", type=int, default=1000, help="of which batches are measured [%(default)s]")
    parser.add_argument("--many", type=int, default=100_000, help="images for the first batch [%(default)s]")
    parser.add_argument("--seconds", type=float, default=5, help="of batches in each round [%(default)s]")
    parser.add_argument("--device", default="cpu", help="where the batches are wanted [%(default)s]")


def run(given: Any) -> None:
    sets: dict[str, Sets] = {}
    table = Table(
        "trainer", "its own loader, images/s", "packer, JPEG", "packer, pixels", "its first batch, s", "packer's, s",
        "its memory, MB", "packer's, MB",
    )  # fmt: skip
    for name in given.only or TRAINERS:
        trainer = TRAINERS[name]
        if find_spec(trainer.module) is None:
            print(f"{trainer.name}: {trainer.module} is not installed", file=sys.stderr)
            continue
        if trainer.kind not in sets:
            sets[trainer.kind] = Sets(given, trainer.kind)
        found = rounds_of(name, sets[trainer.kind], given)
        own, jpeg, raw = (found[side] for side in ("own", "jpeg", "raw"))
        rates = [f"{side[2].median:,.0f}: {(side[2] / own[2]).text(1).replace(' ', 'x ', 1)}" for side in (jpeg, raw)]
        first = [f"{side[0].median:.2f}" for side in (own, jpeg)]
        memory = [f"{side[1].median:,.0f}" for side in (own, jpeg)]
        table.row(f"{trainer.name} ({version_of(trainer.module)})", f"{own[2].median:,.0f}", *rates, *first, *memory)
