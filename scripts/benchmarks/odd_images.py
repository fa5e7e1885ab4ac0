"""Which images packer and CleanVision call odd, of the same sets; and how many planted faults each of them finds.

Faults are planted into every tenth photo, one kind at a time; false alarms are the other photos that are called so.
CleanVision runs in a Python that has it, with its own defaults; without, its columns stay empty. To have it:

    python -m venv .venv-peers/cleanvision && .venv-peers/cleanvision/bin/pip install cleanvision==0.3.7
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.common import Table, build
from packer.stats.problems import find_problems

ENDINGS = (".jpg", ".jpeg", ".png")
SETS = ("photos", "voc_bccd", "yolo_coco128", "list_landmarks", "folder_cifar10")
EVERY = 10
VERSION = "import importlib.metadata as m; print(m.version('cleanvision'))"
THEIRS = """
import json, sys
from cleanvision import Imagelab
lab = Imagelab(filepaths=json.load(sys.stdin))
kinds = ["dark", "light", "blurry", "low_information", "odd_size", "odd_aspect_ratio", "grayscale"]
lab.find_issues({kind: {} for kind in kinds}, n_jobs=1, verbose=False)
found = {kind: lab.issues.index[lab.issues[f"is_{kind}_issue"]].tolist() for kind in kinds}
print("\\n" + json.dumps(found))
"""
PAIRS = {
    "dark": (("dark",), ("dark",)),
    "bright": (("bright", "overexposed"), ("light",)),
    "blurred": (("blurred",), ("blurry",)),
    "low information": (("blank", "low-information"), ("low_information",)),
    "size and shape": (("image-size",), ("odd_size", "odd_aspect_ratio")),
    "gray": (("gray-among-colors",), ("grayscale",)),
}
"""What is compared -> packer's kinds, and CleanVision's."""
FAULTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "darkened to 10 %": ("dark", lambda image: image * 0.1),
    "darkened to 20 %": ("dark", lambda image: image * 0.2),
    "washed out (x 2 + 128)": ("bright", lambda image: image * 2 + 128),
    "overexposed (x 4)": ("bright", lambda image: image * 4),
    "blurred, sigma 2": ("blurred", lambda image: cv2.GaussianBlur(image, (0, 0), 2)),
    "blurred, sigma 4": ("blurred", lambda image: cv2.GaussianBlur(image, (0, 0), 4)),
    "blurred, sigma 8": ("blurred", lambda image: cv2.GaussianBlur(image, (0, 0), 8)),
    "one color": ("low information", lambda image: 0 * image + image[0, 0]),
    "gray": ("gray", lambda image: cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)),
}
"""Fault -> what it is found as, and how it is planted into float32 pixels, blue first."""
Found = Mapping[str, set[int]]


def ours(home: Path, files: Sequence[Path]) -> Found:
    """Return what packer finds: kind -> numbers of files."""
    names = {f"{number:06d}{path.suffix.lower()}": number for number, path in enumerate(files)}
    folder = home / "set"
    folder.mkdir()
    for name, number in names.items():
        (folder / name).symlink_to(files[number].resolve())
    pack = build(folder, home / "pack", labels=("none",), max_bad="100%")
    of_record = [names[Path(path).name] for path in pack.paths]
    found = {one.kind: {of_record[i] for i in one.records.tolist()} for one in find_problems(pack).found}
    shutil.rmtree(folder)
    shutil.rmtree(home / "pack")
    return found


def theirs(python: str, files: Sequence[Path]) -> Found | None:
    """Return what CleanVision finds; None if that Python does not have it."""
    done = subprocess.run(
        [python, "-c", THEIRS], check=False, input=json.dumps([*map(str, files)]), capture_output=True, text=True
    )
    if done.returncode and "ModuleNotFoundError" in done.stderr:
        return None
    done.check_returncode()
    numbers = {str(path): number for number, path in enumerate(files)}
    found = json.loads(done.stdout.splitlines()[-1])
    return {kind: {numbers[path] for path in paths} for kind, paths in found.items()}


def called(found: Found, kinds: Sequence[str]) -> set[int]:
    """Return the files that are called one of these."""
    return set().union(*(found.get(kind, ()) for kind in kinds))


def agreement(given: Any, folders: Sequence[Path]) -> None:
    """Print for each set how many images both call odd, and how many only one."""
    table = Table("set", "kind", "both", "only packer", "only CleanVision")
    for folder in folders:
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
        mine, other = ours(given.home, files), theirs(given.peer_python, files)
        for what, (own, peer) in PAIRS.items():
            one, two = called(mine, own), called(other or {}, peer)
            counts = (len(one & two), len(one - two), len(two - one)) if other is not None else ("", len(one), "")
            table.row(f"{folder.name} ({len(files):,})", what, *map(str, counts))


def faults(given: Any, folder: Path) -> None:
    """Print how many planted faults are found, and how many of the untouched photos are called so, too."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
    spoiled = {*range(0, len(files), EVERY)}
    print(f"\nIn {len(spoiled)} of {len(files):,} photos of {folder.name}, one kind at a time:\n")
    table = Table("fault", "packer finds", "CleanVision finds", "false alarms of packer", "of CleanVision")
    for fault, (what, plant) in FAULTS.items():
        changed = list(files)
        for number in spoiled:
            image: Any = cv2.imread(str(files[number]), cv2.IMREAD_COLOR)
            changed[number] = given.home / f"{number}.jpg"
            pixels = np.clip(plant(image.astype(np.float32)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(changed[number]), pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])
        own, peer = PAIRS[what]
        one, other = called(ours(given.home, changed), own), theirs(given.peer_python, changed)
        two = None if other is None else called(other, peer)
        cells = [
            ("", "") if some is None else (str(len(some & spoiled)), str(len(some - spoiled))) for some in (one, two)
        ]
        table.row(fault, cells[0][0], cells[1][0], cells[0][1], cells[1][1])


def options(parser: Any) -> None:
    parser.add_argument("--sets", type=Path, nargs="*", help="folders of images [those of --data]")
    parser.add_argument("--photos", type=Path, help="photos into which faults are planted [those of --data]")
    own = Path(".venv-peers", "cleanvision", "bin", "python")
    parser.add_argument(
        "--peer-python", default=str(own) if own.exists() else sys.executable, help="a Python that has cleanvision"
    )


def run(given: Any) -> None:
    folders = [given.data / name for name in SETS] if given.sets is None else given.sets
    agreement(given, [folder for folder in folders if folder.is_dir()])
    photos = given.photos or given.data / "photos"
    if photos.is_dir():
        faults(given, photos)
    done = subprocess.run([given.peer_python, "-c", VERSION], check=False, capture_output=True, text=True)
    print(f"\nCleanVision {done.stdout.strip() or 'is not installed'}.")
