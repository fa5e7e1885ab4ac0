"""Writes seeds for fuzz_decode: small JPEGs of all kinds, most with an index. usage: python make_corpus.py FOLDER"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import SAMPLINGS, encode, index_of, scene

KINDS = ({}, {"restart_marker_blocks": 3}, {"progressive": True}, {"optimize": True})


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(1)
    made = 0
    for sampling in [*SAMPLINGS, "gray"]:
        for width, height in ((8, 8), (16, 16), (33, 31), (47, 64)):
            for kind in KINDS:
                image = scene(width, height, made)
                jpeg = encode(image[..., :1] if sampling == "gray" else image, sampling, quality=75, **kind)
                index = index_of(jpeg, numbers.choice([0, 1, 4])) or b""
                index = index if len(index) < 2048 else b""  # 11 bits of the head
                head = bytearray(numbers.randbytes(16))
                head[0], head[1] = len(index) & 255, len(index) >> 8
                (folder / f"{made:04d}").write_bytes(bytes(head) + index + jpeg)
                made += 1
    print(f"{made} seeds")


if __name__ == "__main__":
    main()
