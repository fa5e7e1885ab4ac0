"""Prints the records of RecordIO files as MXNet reads them: [id, label, height and width, SHA-256 of the image]."""

from __future__ import annotations

import hashlib
import json
import struct
import sys

import mxnet as mx
import numpy as np

for path in sys.argv[1:]:
    by_place = mx.recordio.MXIndexedRecordIO(path[:-4] + ".idx", path, "r")
    in_order = mx.recordio.MXRecordIO(path, "r")
    for key in by_place.keys:
        data = by_place.read_idx(key)
        assert data == in_order.read()
        header, payload = mx.recordio.unpack(data)
        length, mark = struct.unpack("<I8s", payload[-12:])
        image = payload[: -12 - length]
        assert mark == b"\0packer\0"
        if image.startswith(b"\x93NUMPY"):
            size, image = (len(image),), image[128:]
        else:
            _, pixels = mx.recordio.unpack_img(data)
            size = pixels.shape[:2]
        label = np.atleast_1d(header.label).tolist()
        print(json.dumps([header.id, label, size, hashlib.sha256(image).hexdigest()]))
    assert in_order.read() is None
    # what MXNet writes for the same records is the same file
    data = [by_place.read_idx(key) for key in by_place.keys]
    if not any(b"\x0a\x23\xd7\xce" in record for record in data):
        writer = mx.recordio.MXIndexedRecordIO(path + ".again.idx", path + ".again", "w")
        for number, record in enumerate(data):
            writer.write_idx(number, record)
        writer.close()
        for ours, theirs in ((path, path + ".again"), (path[:-4] + ".idx", path + ".again.idx")):
            with open(ours, "rb") as a, open(theirs, "rb") as b:
                assert a.read() == b.read(), ours
