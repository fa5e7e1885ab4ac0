"""A script of the user's calls the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import simplejpeg

SCRIPT = """
import sys
from packer import BuildOptions, PackedDataset, build_pack
print("once")
summary = build_pack(BuildOptions(source=sys.argv[1], out=sys.argv[2], workers=2))
print(summary.manifest.records, PackedDataset(summary.path)[0][1])
"""


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / "src" / f"class{number}"
        folder.mkdir(parents=True)
        image = np.full((8, 8, 3), 40 * number, np.uint8)
        (folder / "1.jpg").write_bytes(simplejpeg.encode_jpeg(image))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, script, tmp_path / "src", tmp_path / "pack"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n3 0\n", "")
