"""Builds to S3, and packs between folders and S3: the tests of the suite, with SeaweedFS and rclone."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn import draw, draw_plain
from running import digests, good, run
from store_outputs import Notes, StoreOutputs, Transfers, objects, options, reference

from packer import build_pack
from packer.stores import open_store


class TestBuildsToS3(StoreOutputs):
    pass


class TestTransfersToS3(Transfers):
    pass


@pytest.mark.parametrize("store", ["bucket_url", "rclone_url"])
def test_an_update_to_s3(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKER_CACHE", str(tmp_path / "cache"))
    url: str = request.getfixturevalue(store)
    source, pack, scratch = draw_plain(tmp_path / "src", 12), f"{url}/p.lmdb", ("--scratch", tmp_path)
    bucket, home = open_store(f"{url}/src"), f"{url}/src" if store == "bucket_url" else source

    def send() -> None:
        there = {found.name for found in bucket.names()}
        names = {path.name: path.read_bytes() for path in source.iterdir()}
        bucket.delete(sorted(there - names.keys()))
        for name, content in names.items():
            if name not in there or bytes(bucket.read(name)) != content:
                bucket.write(name, content)

    def by_path(of: object) -> str:
        return good("hash", "--by-path", of).out.split()[0]

    if home != source:  # rclone does not read parts of objects, which a source needs
        send()
    good("build", home, "-o", pack, "--labels", "none", "--shard-size", "3KB", *scratch)
    assert "nothing to do" in good("update", pack, home, *scratch).out
    before = objects(pack)
    draw(source / "100.jpg", 100)
    draw(source / "003.jpg", 101)
    (source / "005.jpg").unlink()
    if home != source:
        send()
    assert "1 new, 1 changed, 1 removed" in good("update", pack, home, "--dry-run", *scratch).out
    assert objects(pack) == before
    good("update", pack, *(() if home != source else (home,)), *scratch)
    good("build", source, "-o", tmp_path / "again.lmdb", "--labels", "none")
    good("verify", pack)
    assert by_path(pack) == by_path(tmp_path / "again.lmdb")
    good("pull", pack, tmp_path / "back")
    assert "nothing to do" in good("update", tmp_path / "back", home, "--check", "digest").out


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
