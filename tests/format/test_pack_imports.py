"""What reading a pack imports: no container's library; and `import packer` almost nothing."""

from __future__ import annotations

import json
import subprocess
import sys

from packer.containers import CONTAINERS

WRITERS = ["lmdb", "h5py", "google.protobuf", "tfrecord", "webdataset", "packer.containers"]

READ = """
import json, sys
writers = json.loads(sys.argv[1])
import packer
for path in sys.argv[2:]:
    data = packer.PackedDataset(path)
    for i in range(len(data)):
        data[i]
    packer.collate(data.__getitems__(list(range(len(data)))))
    data.targets, data.boxes, data.keys
print([name for name in sys.modules if any(name == w or name.startswith(w + ".") for w in writers)])
"""

OPEN_ONLY = """
import sys
import packer
for path in sys.argv[1:]:
    pack = packer.open_pack(path)
    pack.column("label"), pack.annotation(0), pack.image(0)
print(sorted({"torch", "cv2", "simplejpeg", "tarfile", "lmdb", "h5py"} & set(sys.modules)))
"""

NAME_ONLY = """
import sys
import packer
heavy = {"torch", "cv2", "lmdb", "h5py", "numpy", "pyarrow", "simplejpeg", "click", "tqdm"}
print(sorted(heavy & set(sys.modules)))
dir(packer), packer.__version__
print(sorted(heavy & set(sys.modules)))
"""


def run(script: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_no_container_library_reads(make_pack):
    packs = [str(make_pack(kind, container)) for kind in ("raw", "jpeg", "boxes") for container in CONTAINERS]
    assert run(READ, json.dumps(WRITERS), *packs)[0] == "[]"


def test_raw_packs_need_no_torch_and_no_decoder(make_pack):
    packs = [str(make_pack(kind, container)) for kind in ("raw", "boxes") for container in CONTAINERS]
    assert run(OPEN_ONLY, *packs)[0] == "[]"


def test_import_packer_is_light():
    assert run(NAME_ONLY)[:2] == ["[]", "[]"]
