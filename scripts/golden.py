"""Writes small packs of this version into tests/golden/VERSION, once, when the version is released.

    scripts/golden.py

A pack of each container, and one of each encoding. `expected.json` beside them says what they hold, from what is drawn
here, so that the tests need not believe the code that wrote them. A pack in tests/golden is never made anew: it proves
that later versions read it.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from PIL import Image

from packer import BuildOptions, __version__, build_pack, open_pack
from packer.containers import CONTAINERS

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"
CLASSES = ("cat", "dög")
COUNT = 4
ENCODINGS = {"copy": "lmdb", "jpeg": "webdataset", "png": "hdf5", "bmp": "tfrecord"}
"""The container that each encoding is kept in, besides raw pixels in all of them."""


def pixels(number: int) -> np.ndarray[Any, Any]:
    """Return uint8 (height, width, 3) of its own for each number; two have one size."""
    y, x, channel = np.mgrid[0 : 8 + number // 2, 0 : 12 - number // 2, 0:3]
    return np.asarray((37 * number + 11 * y + 7 * x * (channel + 1)) % 256, np.uint8)


def annotation(number: int) -> dict[str, Any]:
    """Return what image `number` has: so many objects, landmarks, a label, other fields; numbers that float32 holds."""
    boxes = [[1.0 + k, 0.5, 5.25 + k, 6.75] for k in range(number)]
    return {
        "label": number % 2,
        "boxes": boxes,
        "box_labels": [k % 2 for k in range(number)],
        "landmarks": [[k + 0.5, number - 2.25 * k] for k in range(3)],
        "polygons": [[[a, b], [c, b], [c, d]] for a, b, c, d in boxes] or None,
        "keypoints": [[[a, b, 2.0], [c, d, 1.0]] for a, b, c, d in boxes],
        "box_fields": {
            "iscrowd": [0] * number,
            "category_id": [k % 2 + 1 for k in range(number)],
            "area": [1.0] * number,
        },
        "extras": {"image_id": number, "text": f"night {number}"},
    }


def draw(source: Path) -> None:
    """Draw the images, COCO's JSON of their objects, and a list of the rest."""
    source.mkdir()
    categories = [
        {"id": number + 1, "name": name, "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}
        for number, name in enumerate(CLASSES)
    ]
    # COCO numbers pixels: the middle of the first is 0, and 0.5 in a pack
    lines = ["path,label,x1,y1,x2,y2,x3,y3,text"]
    images: list[Any] = []
    objects: list[Any] = []
    for number in range(COUNT):
        name, image, notes = f"{number}.png", pixels(number), annotation(number)
        Image.fromarray(image).save(source / name)
        images.append({"id": number, "file_name": name, "height": image.shape[0], "width": image.shape[1]})
        for k, (xmin, ymin, xmax, ymax) in enumerate(notes["boxes"]):
            objects.append({
                "id": len(objects) + 1, "image_id": number, "category_id": notes["box_labels"][k] + 1, "iscrowd": 0,
                "bbox": [xmin, ymin, xmax - xmin, ymax - ymin], "area": 1.0,
                "segmentation": [[value for point in notes["polygons"][k] for value in point]],
                "keypoints": [value for x, y, v in notes["keypoints"][k] for value in (x - 0.5, y - 0.5, v)],
                "num_keypoints": 2,
            })  # fmt: skip
        points = [value for point in notes["landmarks"] for value in point]
        lines.append(",".join(map(str, (name, CLASSES[notes["label"]], *points, notes["extras"]["text"]))))
    coco = {"images": images, "annotations": objects, "categories": categories}
    (source / "coco.json").write_text(json.dumps(coco), "utf-8")
    (source / "rest.csv").write_text("\n".join(lines) + "\n", "utf-8")


def expected(pack: Path) -> dict[str, Any]:
    """Return what a pack must hold: all but the bytes of encoded images from what was drawn."""
    opened, rows = open_pack(pack), []
    for number in range(COUNT):
        image, encoding = pixels(number), opened.reader.encoding_of(number)
        stored = image.tobytes() if encoding == "raw" else bytes(opened.record(number))
        rows.append({
            "key": f"{number:08d}", "path": f"{number}.png", "encoding": encoding, "shape": list(image.shape),
            "record_sha256": hashlib.sha256(stored).hexdigest(), **annotation(number),
        })  # fmt: skip
        if encoding != "jpeg":
            rows[-1]["pixels_sha256"] = hashlib.sha256(image.tobytes()).hexdigest()
    return {
        "container": opened.manifest.container,
        "classes": list(CLASSES),
        "shards": len(opened.reader.shards),
        "rows": rows,
    }


def main() -> None:
    """Write the packs of this version."""
    home = GOLDEN / __version__
    if home.exists():
        sys.exit(f"{home.relative_to(GOLDEN.parents[1])} exists, and its packs are never made anew")
    kinds = [(container, container, "raw") for container in sorted(CONTAINERS)]
    kinds += [(f"{container}-{encode}", container, encode) for encode, container in ENCODINGS.items()]
    found = {}
    home.mkdir()
    with tempfile.TemporaryDirectory(prefix="packer-golden-") as folder:
        source = Path(folder, "source")
        draw(source)
        labels = (f"coco:{source / 'coco.json'}", f"list:{source / 'rest.csv'}")
        for name, container, encode in kinds:
            columns = ("path label (x y)*3 text",)
            build_pack(BuildOptions(
                str(source), str(home / name), container, encode=encode, labels=labels, columns=columns,
                shard_bytes=800, workers=1,
            ))  # fmt: skip
            found[name] = expected(home / name)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(pack)}" for name, pack in found.items())
    (home / "expected.json").write_text(f"{{\n{lines}\n}}\n", "utf-8")
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    print(f"{home.relative_to(GOLDEN.parents[1])}: {len(found)} packs, {size:,} bytes")


if __name__ == "__main__":
    main()
