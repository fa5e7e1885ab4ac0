"""Builds to S3, and packs between folders and S3: the tests of the suite, with SeaweedFS and rclone."""

from __future__ import annotations

from pathlib import Path

from drawn import draw_plain
from running import digests, good, run
from store_outputs import Notes, StoreOutputs, Transfers, objects, options, reference

from packer import build_pack


class TestBuildsToS3(StoreOutputs):
    pass


class TestTransfersToS3(Transfers):
    pass


def test_a_store_that_ignores_conditions(rclone_url: str, tmp_path: Path) -> None:
    source, notes = draw_plain(tmp_path / "src", 12), Notes()
    build_pack(options(source, rclone_url), notes)
    assert notes.has(f"{rclone_url} ignores conditions")
    assert objects(rclone_url) == reference(source)
    good("pull", rclone_url, tmp_path / "back")
    assert digests(tmp_path / "back") == objects(rclone_url)
    good("push", tmp_path / "back", rclone_url + "/copy")
    assert objects(rclone_url + "/copy") == digests(tmp_path / "back")
    build_pack(options(source, rclone_url + "/copy", overwrite=True, resize="8"), notes)
    assert run("clean", rclone_url + "/copy").code == 0
