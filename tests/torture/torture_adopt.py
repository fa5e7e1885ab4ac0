"""Readers of other tools' files, for packer adopt: any bytes as a tar, TFRecord, table, array or database."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "repack"))
sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
from drawn import image_file
from foreign_files import example, frame, samples, write_tar

from packer.errors import PackerError
from packer.repack.adopt_file import FileJob, adopt_file
from packer.repack.formats import FormatOptions

FOLDER = tempfile.mkdtemp(prefix="packer-check-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def reader_of(name: str) -> Callable[[bytes], str]:
    """Return a target that reads bytes as a file of this format."""
    path, table = os.path.join(FOLDER, name), os.path.join(FOLDER, f"{name}.table")

    def read(data: bytes) -> str:
        with open(path, "wb") as file:
            file.write(data)
        job = FileJob(path, name, FormatOptions(), table, b"", None, "clip", 1 << 24, "first")
        try:
            result = adopt_file(job, lambda done, bad: None)
        except PackerError as error:
            assert path in str(error) or name in str(error)
            return "refused"
        assert result.rows + len(result.rejected) <= max(1, len(data))
        return "read"

    def framed(data: bytes) -> str:
        return read(frame(data))  # so that the checksums do not stop most of the inputs

    return framed if name == "tfrecord" else read


def seeds(name: str) -> list[bytes]:
    """Return small good files."""
    path = Path(FOLDER, f"seed.{name}")
    image = image_file(1, 8, 8)
    if name == "webdataset":
        return [write_tar(path, samples(2), form, 1.5).read_bytes() for form in (0, 1, 2)]
    if name == "tfrecord":
        boxes = {f"image/object/bbox/{side}": [0.1, 0.5] for side in ("xmin", "ymin", "xmax", "ymax")}
        return [
            example({"image": image, "label": 1}),
            example({"image/encoded": image, **boxes, "image/object/class/label": [1, 2]}),
        ]
    if name == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"image": pa.array([image, None, image], pa.binary()), "label": [0, 1, 2]})
        for options in ({"use_dictionary": False}, {"data_page_version": "2.0", "use_dictionary": False}):
            pq.write_table(table, path, compression="none", **options)
        return [path.read_bytes()]
    np.save(path.with_suffix(".npy"), np.zeros((2, 3, 3, 3), np.uint8))
    return [path.with_suffix(".npy").read_bytes(), b"\0\0\x08\3" + bytes(11) + b"\2" + bytes(20)]
