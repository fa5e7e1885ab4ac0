"""How many near duplicates of real photos are found, and how many pairs of other photos are taken for some.

For each change of a photo, its recall: the share of pairs (photo, changed photo) that are found; and precision: the
share of pairs of one photo among all pairs of the groups of near duplicates of photos and changed copies. --photos
takes a folder of photos that show different things, such as github.com/EliSchwartz/imagenet-sample-images; by default
the photos of shared/data. The hashes of imagehash and imagededup (pHash, dHash, at usual bits) are compared on the
same images, where they are installed. And the time to find all pairs within 6 and 8 bits of 1,000,000 fingerprints.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from benchmarks.common import Table, figures, in_new_process
from packer.images.fingerprint import FINGERPRINT, fingerprint_of
from packer.repack.near_duplicates import BITS, NearFacts, Nearness, bit_count, near_groups
from packer.system import usable_cores

Change = Callable[[np.ndarray], np.ndarray]
SHOWN = 0, 2, 4, 6, 8, 10, 12, 14, 16
SUFFIXES = (".jpg", ".jpeg")
SEARCH = """
import sys, time
import numpy as np
from packer.images.fingerprint import FINGERPRINT
from packer.repack.near_duplicates import Nearness, near_groups
random = np.random.default_rng(0)
rows = np.zeros(int(sys.argv[1]), FINGERPRINT)
rows["brightness"], rows["contrast"] = 100, 50
weights = random.normal(0, 0.4, (6, 64))
for start in range(0, len(rows), 10_000):  # signs that go together, as those of photos do
    some = rows[start : start + 10_000]
    signs = random.normal(0, 1, (len(some), 6)) @ weights + random.normal(0, 1, (len(some), 64)) > 0
    some["hash"] = np.packbits(signs, axis=1).view("<u8")[:, 0]
begun = time.perf_counter()
near_groups(rows, Nearness(int(sys.argv[2])))
seconds, status = time.perf_counter() - begun, open("/proc/self/status").read()  # getrusage counts the parent's, too
print(seconds, int(status.partition("VmHWM:")[2].split()[0]) / 1024)
"""


def encoded(image: np.ndarray, quality: int) -> np.ndarray:
    """Encode as JPEG, and decode."""
    data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR))


def resized(factor: float) -> Change:
    """Resize both sides."""
    filter_of = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    return lambda image: cv2.resize(image, None, fx=factor, fy=factor, interpolation=filter_of)


def cropped(share: float, both: bool = True) -> Change:
    """Cut this share of its length off each end of each side, or off the top and the left only."""

    def change(image: np.ndarray) -> np.ndarray:
        height, width = image.shape[:2]
        down, across = round(share * height), round(share * width)
        return image[down : height - down * both, across : width - across * both]

    return change


def contrasted(factor: float) -> Change:
    """Multiply differences to the middle gray."""
    return lambda image: cv2.convertScaleAbs(image, alpha=factor, beta=128 * (1 - factor))


def rotated(degrees: float) -> Change:
    """Rotate about the center; the border is repeated."""

    def change(image: np.ndarray) -> np.ndarray:
        height, width = image.shape[:2]
        matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1)
        return np.asarray(cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE))

    return change


def captioned(image: np.ndarray) -> np.ndarray:
    """Write black on a white bar, a twelfth of the height, at the bottom."""
    image, height = image.copy(), image.shape[0]
    cv2.rectangle(image, (0, height - max(8, height // 12)), (image.shape[1], height), (255, 255, 255), -1)
    cv2.putText(image, "photo: example", (4, height - 4), cv2.FONT_HERSHEY_SIMPLEX, height / 360, (0, 0, 0))
    return image


def watermarked(image: np.ndarray) -> np.ndarray:
    """Write across the whole image, 40 % opaque."""
    height, width = image.shape[:2]
    place, thick = (width // 8, int(0.55 * height)), max(1, width // 60)
    over = cv2.putText(image.copy(), "EXAMPLE", place, cv2.FONT_HERSHEY_DUPLEX, width / 170, (255, 255, 255), thick)
    return np.asarray(cv2.addWeighted(image, 0.6, over, 0.4, 0))


CHANGES: dict[str, Change] = {
    "half the size": resized(0.5),
    "JPEG quality 50": lambda image: encoded(image, 50),
    "10 % darker": lambda image: cv2.convertScaleAbs(image, alpha=0.9),
    "10 % brighter": lambda image: cv2.convertScaleAbs(image, alpha=1.1),
    "crop of 5 % (2.5 % off each end)": cropped(0.025),
    "crop of 10 % (5 % off each end)": cropped(0.05),
    "crop of 5 %, top and left only": cropped(0.05, both=False),
    "a quarter of the size": resized(0.25),
    "twice the size": resized(2),
    **{f"JPEG quality {quality}": partial(encoded, quality=quality) for quality in (90, 70, 30)},
    "20 % darker": lambda image: cv2.convertScaleAbs(image, alpha=0.8),
    "20 % brighter": lambda image: cv2.convertScaleAbs(image, alpha=1.2),
    "contrast 20 % less": contrasted(0.8),
    "contrast 20 % more": contrasted(1.2),
    "gray": lambda image: cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR),
    "caption": captioned,
    "watermark": watermarked,
    "rotated by 1 degree": rotated(1),
    "rotated by 2 degrees": rotated(2),
    "rotated by 5 degrees": rotated(5),
    "mirrored": lambda image: image[:, ::-1],
}
GOAL = 5
"""So many of the changes have a goal, of recall and precision: 0.95."""
COMPARED = [*CHANGES][: GOAL + 2]
"""Changes of which the hashes of peers are made, which take most of the time."""
SIDE = 400
"""Photos are made smaller, so that the longer side has no more pixels."""


@cache
def hashes_of_peers() -> list[tuple[str, int, Callable[[np.ndarray], int]]]:
    """Return name, usual bits, and hash (of BGR pixels) of the peers that are installed."""
    found: list[tuple[str, int, Callable[[np.ndarray], int]]] = []
    for name, method, bits in (("imagehash", "phash", 8), ("imagehash", "dhash", 8)):
        try:
            hashing, pillow = importlib.import_module(name), importlib.import_module("PIL.Image")
        except ImportError:
            continue
        found.append((f"{name} {method}", bits, partial(_imagehash, getattr(hashing, method), pillow)))
    for method in ("PHash", "DHash"):
        try:
            hasher = getattr(importlib.import_module("imagededup.methods"), method)()
        except ImportError:
            continue
        found.append((f"imagededup {method}", 10, partial(_imagededup, hasher)))
    return found


def _imagehash(function: Any, pillow: Any, image: np.ndarray) -> int:
    return int(str(function(pillow.fromarray(image[:, :, ::-1]))), 16)


def _imagededup(hasher: Any, image: np.ndarray) -> int:
    return int(hasher.encode_image(image_array=np.ascontiguousarray(image[:, :, ::-1])), 16)


class Prints(NamedTuple):
    """The fingerprint of a photo and of each of its changed copies, and the hashes of peers of some of them."""

    rows: dict[str, bytes]
    """By the name of the change; "" is that of the photo."""
    hashes: dict[str, dict[str, int]]
    """By the name of the peer, then of the change."""


def prints_of(file: Path) -> Prints:
    """Read a photo, change it in all ways, and return the prints; other changes than JPEG are stored well."""
    photo: Any = cv2.imread(str(file))
    side = max(photo.shape[:2])
    if side > SIDE:
        photo = cv2.resize(photo, None, fx=SIDE / side, fy=SIDE / side, interpolation=cv2.INTER_AREA)
    found = Prints({"": fingerprint_of(np.ascontiguousarray(photo[:, :, ::-1]))}, {})
    peers = hashes_of_peers()
    for peer, _, hash_of in peers:
        found.hashes[peer] = {"": hash_of(photo)}
    for name, change in CHANGES.items():
        image = change(photo) if "JPEG" in name else encoded(change(photo), 95)
        found.rows[name] = fingerprint_of(np.ascontiguousarray(image[:, :, ::-1]))
        for peer, _, hash_of in peers if name in COMPARED else ():
            found.hashes[peer][name] = hash_of(image)
    return found


def near_pairs(one: np.ndarray, other: np.ndarray, near: Nearness) -> np.ndarray:
    """Return whether each row is a near duplicate of that of the same place, (n,)."""
    facts, count = NearFacts(np.concatenate([one, other]), near), len(one)
    found = np.zeros(count, np.bool_)
    for first in range(0, len(facts.hashes), 2 * count):  # as they are, and mirrored
        places = np.arange(count)
        close = places[bit_count(facts.hashes[places] ^ facts.hashes[first + count + places]) <= near.bits]
        found[facts.alike(close, first + count + close)[0]] = True
    return found


def grouped_pairs(rows: np.ndarray, photos: int, bits: int) -> tuple[int, int]:
    """Return how many pairs of the groups of near duplicates are of one photo, and of different photos."""
    groups = near_groups(rows, Nearness(bits)).groups
    sizes = np.diff(groups.starts)
    _, same = np.unique(groups.group_of * photos + groups.records % photos, return_counts=True)
    right = int((same * (same - 1) // 2).sum())
    return right, int((sizes * (sizes - 1) // 2).sum()) - right


def hashed_pairs(hashes: np.ndarray, photos: int, bits: int) -> int:
    """Return how many pairs of hashes of different photos differ in no more bits."""
    numbers, wrong = np.arange(len(hashes)) % photos, 0
    for one in range(len(hashes) - 1):
        others = one + 1 + np.flatnonzero(bit_count(hashes[one + 1 :] ^ hashes[one]) <= bits)
        wrong += int((numbers[others] != numbers[one]).sum())
    return wrong


def options(parser: Any) -> None:
    parser.add_argument("--photos", type=Path, help="folder of different photos [those of --data]")
    parser.add_argument("--most", type=int, default=1000, help="photos [%(default)s]")
    parser.add_argument("--records", type=int, default=1_000_000, help="fingerprints to search")


def run(given: Any) -> int:
    folder = given.photos or given.data / "photos"
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)[: given.most]
    with ProcessPoolExecutor(usable_cores(), initializer=cv2.setNumThreads, initargs=(1,)) as pool:
        prints = list(pool.map(prints_of, files, chunksize=4))
    print(f"{len(files):,} photos.\n")
    rows = {name: np.frombuffer(b"".join(one.rows[name] for one in prints), FINGERPRINT) for name in prints[0].rows}
    goal = curves(rows)
    print()
    against_peers(rows, prints)
    print()
    table = Table.of_figures(f"all near duplicates of {given.records:,} fingerprints")
    for bits, most in ((6, 20), (BITS, None)):
        seconds, memory = figures(in_new_process(SEARCH, given.records, bits) for _ in range(given.rounds))
        table.figure(f"within {bits} bits, seconds", seconds, most)
        table.figure(f"within {bits} bits, memory at its peak, MB", memory, 1000 if most else None, digits=0)
    return goal


def curves(rows: dict[str, np.ndarray]) -> int:
    """Print recall by bits, and precision; return 1 if a goal is missed."""
    table, missed = Table("change", *(f"{bits} bits" for bits in SHOWN)), 0
    count = len(rows[""])
    for number, name in enumerate(CHANGES):
        nears = [Nearness(bits, mirrored=name == "mirrored") for bits in SHOWN]
        recalls = [near_pairs(rows[""], rows[name], near).mean() for near in nears]
        missed |= number < GOAL and recalls[SHOWN.index(BITS)] < 0.95
        table.row(name, *(f"{recall:.3f}" for recall in recalls))
    everything = np.concatenate([rows[name] for name in ("", *COMPARED[:GOAL])])
    found = [grouped_pairs(everything, count, bits) for bits in SHOWN]
    cells = [right / max(1, right + wrong) for right, wrong in found]
    table.row(f"precision, pairs of the groups of photos and the first {GOAL}", *(f"{cell:.4f}" for cell in cells))
    table.row("pairs of other photos among them", *(f"{wrong:,}" for _, wrong in found))
    return int(missed or cells[SHOWN.index(BITS)] < 0.95)


def against_peers(rows: dict[str, np.ndarray], prints: Sequence[Prints]) -> None:
    """Print recall and precision of packer and others, at the bits that each recommends."""
    table = Table("hash", "bits", *COMPARED, f"wrong pairs of photos and the first {GOAL}")
    some, count = ("", *COMPARED[:GOAL]), len(prints)
    recalls = [near_pairs(rows[""], rows[name], Nearness()).mean() for name in COMPARED]
    _, wrong = grouped_pairs(np.concatenate([rows[name] for name in some]), count, BITS)
    table.row("packer", str(BITS), *(f"{recall:.3f}" for recall in recalls), f"{wrong:,}")
    for peer, bits, _ in hashes_of_peers():
        hashes = {n: np.array([one.hashes[peer][n] for one in prints], np.uint64) for n in ("", *COMPARED)}
        recalls = [(bit_count(hashes[""] ^ hashes[name]) <= bits).mean() for name in COMPARED]
        wrong = hashed_pairs(np.concatenate([hashes[name] for name in some]), count, bits)
        table.row(peer, str(bits), *(f"{recall:.3f}" for recall in recalls), f"{wrong:,}")
