"""Stores against servers that speak S3: SeaweedFS, rclone, and SeaweedFS behind a proxy that does faults."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from fault_proxy import Fault, FaultProxy
from store_servers import BUCKET, KEY, SECRET, StoreServer

pytest.importorskip("obstore", reason="needs obstore (packer[remote])")

from packer import PackedLoader
from packer.errors import StorageError, UsageError
from packer.repack.url_packs import push
from packer.stores import open_store
from packer.stores.store import ABSENT, NoObject, ObjectChanged, upload

CONTENT = bytes(range(256)) * 4096
"""1 MiB."""


def test_what_is_written_is_read(bucket_url: str) -> None:
    store = open_store(bucket_url)
    etag = store.write("a b/ü %2F.bin", CONTENT)
    found = store.size("a b/ü %2F.bin")
    assert (found.size, found.etag, found.name) == (len(CONTENT), etag, "a b/ü %2F.bin")
    assert found.modified_s > 1.7e9
    assert bytes(store.read("a b/ü %2F.bin")) == CONTENT
    for start, stop in ((0, 1), (5, 700_000), (len(CONTENT) - 1, len(CONTENT)), (0, len(CONTENT)), (9, None), (7, 7)):
        assert bytes(store.read("a b/ü %2F.bin", start, stop, etag)) == CONTENT[start:stop]
    assert bytes(pickle.loads(pickle.dumps(store)).read("a b/ü %2F.bin", 1, 3)) == b"\1\2"


def test_files_are_sent_in_parts(bucket_url: str, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(CONTENT * 20)
    (tmp_path / "empty").write_bytes(b"")
    store = open_store(bucket_url)
    for name in ("large", "empty"):
        found = upload(store, name, str(tmp_path / name))
        assert bytes(store.read(name, etag=found.etag)) == (tmp_path / name).read_bytes()
    with pytest.raises(ObjectChanged, match="exists"):
        store.write("large", CONTENT, only_if=ABSENT)
    store.write("large", b"", only_if=store.size("large").etag)
    assert store.size("large").size == 0


def test_names_and_folders(bucket_url: str) -> None:
    store = open_store(bucket_url)
    names = [f"f{i % 3}/{i:04}" for i in range(1100)] + ["top", "f1"]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.write(name, b"x"), names))
    assert sorted(one.name for one in store.names()) == sorted(names)
    assert {one.name for one in store.names("f1")} == {name for name in names if name.startswith("f1")}
    assert {one.name for one in store.names("f1/")} == {name for name in names if name.startswith("f1/")}
    assert {one.name for one in store.names("f1/00")} == {name for name in names if name.startswith("f1/00")}
    assert list(store.names("nothing")) == []
    folders, objects = store.folders()
    assert (folders, [one.name for one in objects]) == (["f0", "f1", "f2"], ["f1", "top"])
    folders, objects = store.folders("f2")
    assert (folders, len(objects)) == ([], 366)
    store.delete([name for name in names if name.startswith("f2/")])
    assert store.folders("f2") == ([], [])
    store.delete([])


def test_conditions(bucket_url: str) -> None:
    store = open_store(bucket_url)
    first = store.write("x", b"one", only_if=ABSENT)
    with pytest.raises(ObjectChanged, match="exists"):
        store.write("x", b"two", only_if=ABSENT)
    second = store.write("x", b"two!", only_if=first)
    assert second != first
    with pytest.raises(ObjectChanged, match="replaced"):
        store.write("x", b"three", only_if=first)
    with pytest.raises(ObjectChanged, match="replaced"):
        store.read("x", 0, 2, etag=first)
    assert bytes(store.read("x", 0, 2, etag=second)) == b"tw"


def test_only_one_of_many_writes_what_was_absent(bucket_url: str) -> None:
    store = open_store(bucket_url)

    def write(number: int) -> bool:
        try:
            store.write("x", b"%d" % number, only_if=ABSENT)
        except ObjectChanged:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(16))) == 1


def test_what_is_not_there(bucket_url: str) -> None:
    store = open_store(bucket_url)
    for act in (store.size, store.read):
        with pytest.raises(NoObject) as caught:
            act("absent")
        assert str(caught.value).startswith(f"{bucket_url}/absent: no such object")
    with pytest.raises(StorageError, match="there is no such bucket"):
        open_store("s3://no-such-bucket-of-ours/x").read("y")
    store.write("short", b"1234")
    with pytest.raises(StorageError):
        store.read("short", 2, 9)
    with pytest.raises(StorageError):
        store.read("short", 10, 12)


def test_wrong_keys_are_said_without_them(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrongsecret9876")
    store = open_store(bucket_url)
    for act in (lambda: store.read("x"), lambda: store.write("x", b""), lambda: list(store.names()), store.folders):
        with pytest.raises(StorageError, match="access denied") as caught:
            act()
        text = f"{caught.value!r} {caught.value} {caught.value.__cause__} {pickle.dumps(store)!r}"
        assert KEY not in text and "wrongsecret9876" not in text


def test_profile_files(
    seaweedfs: StoreServer, bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(bucket_url).write("x", b"1")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    config, credentials = tmp_path / "config", tmp_path / "credentials"
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    config.write_text(
        f"[default]\nregion=us-east-1\nendpoint_url={seaweedfs.endpoint}\n"
        f"[profile lab]\nregion=us-east-1\nendpoint_url={seaweedfs.endpoint}\n"
    )
    credentials.write_text(f"[default]\n{keys}[lab]\n{keys}[bad]\n{keys.replace(SECRET, 'no')}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    assert bytes(open_store(bucket_url).read("x")) == b"1"
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert bytes(open_store(bucket_url).read("x")) == b"1"
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(UsageError, match="absent"):
        open_store(bucket_url)
    monkeypatch.setenv("AWS_PROFILE", "bad")
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.endpoint)
    with pytest.raises(StorageError, match="access denied"):
        open_store(bucket_url).read("x")


def test_endpoints_by_the_name_of_the_service(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    open_store(bucket_url).write("x", b"1")
    for allowed in ("true", "1"):
        monkeypatch.setenv("AWS_ALLOW_HTTP", allowed)
        assert bytes(open_store(bucket_url).read("x")) == b"1"


def test_a_forked_child_says_so_and_does_not_hang(bucket_url: str) -> None:
    program = (
        "import os, sys\nfrom packer.stores import open_store\nfrom packer.errors import UsageError\n"
        f"store = open_store({bucket_url!r}); store.write('x', b'1'); pid = os.fork()\n"
        "if pid == 0:\n"
        "    for made in (lambda: store, lambda: open_store(store.url)):\n"
        "        try: made().read('x')\n"
        "        except UsageError as error: print('refused:', error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("refused:") == 2 and "forkserver" in done.stdout


# -- not quite S3


def test_rclone_reads_and_writes(rclone_url: str, tmp_path: Path) -> None:
    store = open_store(rclone_url)
    (tmp_path / "large").write_bytes(CONTENT * 20)
    store.write("large", tmp_path / "large")
    assert bytes(store.read("large")) == CONTENT * 20
    with pytest.raises(StorageError, match="does not answer requests for parts of objects"):
        store.read("large", 5, 2_000_000)  # the bytes are right, the status is 200
    store.write("f/small", CONTENT)
    assert [one.name for one in store.names("f/")] == ["f/small"]
    assert store.folders()[0] == ["f"]
    with pytest.raises(NoObject):
        store.read("absent")
    store.delete(["f/small"])
    assert [one.name for one in store.names()] == ["large"]


# -- faults


def test_requests_pass_through_the_proxy(bucket_url: str, proxy: FaultProxy, tmp_path: Path) -> None:
    store = open_store(bucket_url)
    (tmp_path / "large").write_bytes(CONTENT * 20)
    etag = store.write("large", tmp_path / "large")
    store.write("x y", b"", only_if=ABSENT)
    assert bytes(store.read("large", 3, 9, etag)) == CONTENT[3:9]
    assert {one.name for one in store.names()} == {"large", "x y"}
    path = f"/{BUCKET}{bucket_url.removeprefix(f's3://{BUCKET}')}/large"
    assert proxy.reads("large") == {(path, 3, 9): 1}
    assert proxy.sent(path) >= 6
    store.delete(["large"])
    with pytest.raises(NoObject):
        store.size("large")


@pytest.mark.parametrize("kind", ["503", "close", "cut"])
def test_what_passes_is_tried_again(kind: str, bucket_url: str, proxy: FaultProxy) -> None:
    store = open_store(bucket_url)
    store.write("x", CONTENT)
    proxy.faults = [Fault(kind, times=2)]
    assert bytes(store.read("x", 0, 500_000)) == CONTENT[:500_000]
    assert proxy.struck() == {kind: 2}


def test_parts_whose_last_answer_is_lost_are_sent_again(bucket_url: str, proxy: FaultProxy, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(CONTENT * 20)
    proxy.faults = [Fault("lost", times=1, methods=("POST",), path="?uploadId=")]
    store = open_store(bucket_url)
    etag = store.write("large", tmp_path / "large")
    assert proxy.struck() == {"lost": 1}
    assert bytes(store.read("large", 0, 20 << 20, etag)) == CONTENT * 20


@pytest.mark.parametrize("kind", ["range", "whole", "replaced"])
def test_answers_to_another_question_are_errors(kind: str, bucket_url: str, proxy: FaultProxy) -> None:
    store = open_store(bucket_url)
    etag = store.write("x", CONTENT)
    proxy.faults = [Fault(kind)]
    with pytest.raises(StorageError) as caught:
        store.read("x", 1000, 2000, etag)
    assert isinstance(caught.value, ObjectChanged) == (kind == "replaced")
    assert str(caught.value).startswith(f"{bucket_url}/x: ")


def test_a_pack_is_read_as_the_local_one(
    bucket_url: str, proxy: FaultProxy, numbered_pack: Path, tmp_path: Path
) -> None:
    push(numbered_pack, bucket_url)
    proxy.clear()
    proxy.faults = [Fault("503", share=0.3, times=1), Fault("cut", share=0.3, times=1)]
    for _ in range(2):
        remote, local = (
            PackedLoader(data, 8, shuffle=True, seed=1, threads=2, cache_dir=cache)
            for data, cache in ((bucket_url, tmp_path / "cache"), (numbered_pack, None))
        )
        for (images, labels), (same_images, same_labels) in zip(remote, local, strict=True):
            assert torch.equal(images, same_images) and torch.equal(labels, same_labels)
    assert max(proxy.reads("shard").values()) == 1
    assert SECRET not in "".join(path.read_text("utf-8", "replace") for path in tmp_path.rglob("*.json"))
