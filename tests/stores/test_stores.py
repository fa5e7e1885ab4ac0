"""Stores of folders, of memory and behind HTTP; those of S3 are in tests/integration/test_s3.py."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_proxy import Fault, FaultProxy

pytest.importorskip("obstore", reason="needs obstore (packer[remote])")
pytest.importorskip("fsspec", reason="needs fsspec (packer[remote])")

from obstore.exceptions import GenericError

from packer.errors import StorageError, UsageError
from packer.stores import clean_url, is_url, join_url, obstore, open_store
from packer.stores.obstore import ObstoreStore, _text, s3_settings
from packer.stores.store import ABSENT, NoObject, ObjectChanged, Store, upload

CONTENT = bytes(range(256)) * 64


@pytest.fixture(params=["file", "memory", "memory of fsspec"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store that can be written."""
    if request.param == "memory of fsspec":
        from packer.stores.fsspec import FsspecStore

        return FsspecStore(f"memory://{tmp_path.name}")
    return open_store(f"{request.param}://{tmp_path}")


def test_what_is_written_is_read(store: Store, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(CONTENT)
    store.write("a/b c.bin", CONTENT)
    upload(store, "a/file", str(tmp_path / "local"))
    for name in ("a/b c.bin", "a/file"):
        assert store.size(name).size == len(CONTENT)
        for start, stop in ((0, 1), (5, 700), (len(CONTENT) - 1, len(CONTENT)), (0, None), (9, None), (7, 7)):
            assert bytes(store.read(name, start, stop)) == CONTENT[start:stop]
    assert {one.name for one in store.names("a/")} == {"a/b c.bin", "a/file"}
    assert [one.name for one in store.names("a/b")] == ["a/b c.bin"]
    assert store.folders()[0] == ["a"]
    assert [one.name for one in store.folders("a")[1]] == ["a/b c.bin", "a/file"]
    store.delete(["a/file"])
    for act in (store.size, store.read):
        with pytest.raises(NoObject, match="a/file: no such object"):
            act("a/file")


def test_only_if_absent(store: Store) -> None:
    store.write("x", b"1", only_if=ABSENT)
    with pytest.raises(ObjectChanged, match="x: exists"):
        store.write("x", b"2", only_if=ABSENT)
    assert bytes(store.read("x")) == b"1"
    with pytest.raises(StorageError):
        store.read("x", 0, 9)


# -- over HTTP, with faults


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultProxy]:
    """A web server of a folder with one file, `x y`."""
    (tmp_path / "x y").write_bytes(CONTENT)
    with FaultProxy(tmp_path) as made:
        yield made


def test_a_web_server_is_a_store(server: FaultProxy) -> None:
    store = open_store(server.url)
    found = store.size("x y")
    assert found.size == len(CONTENT) and found.etag
    assert bytes(store.read("x y", 10, 20, found.etag)) == CONTENT[10:20]
    assert server.reads() == {("/x y", 10, 20): 1}
    with pytest.raises(NoObject):
        store.read("absent")
    with pytest.raises(ObjectChanged):
        store.read("x y", 10, 20, '"another"')
    assert bytes(pickle.loads(pickle.dumps(store)).read("x y")) == CONTENT


def test_a_web_server_is_only_read() -> None:
    def put() -> None:  # what it says after many tries
        raise GenericError("Error performing PROPFIND http://h/x in 8s - Server returned: 501 Not Implemented")

    with pytest.raises(StorageError, match="http://h/x: is on a web server, which can only be read; choose a store"):
        ObstoreStore("http://h/x")._call("y", put)


@pytest.mark.parametrize("kind", ["503", "close", "cut"])
def test_what_passes_is_tried_again(kind: str, server: FaultProxy) -> None:
    server.faults = [Fault(kind, times=1)]
    assert bytes(open_store(server.url).read("x y", 0, 16_000)) == CONTENT[:16_000]
    assert server.struck() == {kind: 1}


@pytest.mark.parametrize(("kind", "problem"), [("range", "999"), ("whole", "does not answer requests for parts")])
def test_answers_to_another_question_are_errors(kind: str, problem: str, server: FaultProxy) -> None:
    server.faults = [Fault(kind)]
    with pytest.raises(StorageError, match=problem):
        open_store(server.url).read("x y", 1000, 2000)


def test_what_only_a_checksum_shows(server: FaultProxy) -> None:
    store = open_store(server.url)
    server.faults = [Fault("flip")]
    got = bytes(store.read("x y", 0, 1000))
    assert sum((a ^ b).bit_count() for a, b in zip(got, CONTENT, strict=False)) == 1
    server.faults = [Fault("shift")]
    assert bytes(store.read("x y", 10, 20)) == CONTENT[9:19]


def test_a_silent_server_is_an_error_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(obstore.TIMEOUTS, "read_timeout", "50ms")
    monkeypatch.setattr(obstore, "RETRY_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StorageError, match=f"{url}/x: cannot be reached"):
            open_store(url).read("x")


# -- URLs and settings


def test_urls() -> None:
    assert is_url("s3://b/x") and is_url(b"hf://datasets/x") and not is_url("/a/b") and not is_url("C://x")
    assert clean_url("S3://Bucket/Path//") == "s3://Bucket/Path"
    assert clean_url("s3://b//x///y") == "s3://b/x/y" and clean_url("file:///x//y/") == "file:///x/y"
    assert join_url("s3://b/x/", "y/z") == "s3://b/x/y/z"
    for url in ("s3://key:secret@b/x", "https://h/x?sig=secret", "https://h/x#secret", "s3://k:secret@b/x?y=secret"):
        with pytest.raises(UsageError) as caught:
            open_store(url)
        assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="nothing-like-it:// is not a kind of store"):
        open_store("nothing-like-it://x")


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)  # as ftp:// does
    with pytest.raises(StorageError, match="ftp://host/x: cannot be reached: Name or service not known; check the"):
        open_store("ftp://host/x")


def test_errors_name_no_keys() -> None:
    answer = (
        "Generic S3 error: GET https://b.s3/x?X-Amz-Credential=SECRET&sig=SECRET returned status code: 403 Forbidden: "
        '<?xml version="1.0"?><Error><Code>SignatureDoesNotMatch</Code><Message>It does not match.</Message>'
        "<AWSAccessKeyId>SECRET</AWSAccessKeyId></Error>\n\nDebug source: SECRET"
    )
    said = _text(RuntimeError(answer))
    assert said.endswith("403 Forbidden: SignatureDoesNotMatch: It does not match.")
    assert "SECRET" not in said
    answer = answer.replace(
        "returned status", "Error performing GET https://b.s3/x in 2ms - Server returned non-2xx status"
    )
    assert _text(RuntimeError(answer)) == "403 Forbidden: SignatureDoesNotMatch: It does not match."


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No settings but those of two files, with the profiles default, lab, sso and bare."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    keys = "aws_access_key_id=k%sx\naws_secret_access_key=s\n"
    config = "[default]\nregion=eu-west-1\n[profile lab]\nendpoint_url=http://lab\n[profile bare]\nregion=x-1\n"
    (tmp_path / "config").write_text(config + "[profile sso]\nsso_session=a\n")
    (tmp_path / "credentials").write_text(f"[default]\n{keys}[lab]\n{keys}aws_session_token=t\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


def test_profiles_of_the_aws_command_line(aws: pytest.MonkeyPatch) -> None:
    base = {"checksum_algorithm": "SHA256"}
    keys = {"access_key_id": "k%sx", "secret_access_key": "s"}
    assert s3_settings() == {**base, "region": "eu-west-1", **keys}
    aws.setenv("AWS_PROFILE", "lab")
    http = {"endpoint": "http://lab", "client_options": {"allow_http": True}}
    assert s3_settings() == {**base, "region": "us-east-1", **http, **keys, "session_token": "t"}
    aws.setenv("AWS_PROFILE", "bare")
    assert s3_settings() == {**base, "region": "x-1"}
    aws.setenv("AWS_PROFILE", "absent")
    with pytest.raises(UsageError, match="absent"):
        s3_settings()


def test_variables_come_before_files(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_ACCESS_KEY_ID", "mine")
    aws.setenv("AWS_REGION", "us-west-2")
    aws.setenv("AWS_ENDPOINT_URL", "https://one")
    assert s3_settings() == {"checksum_algorithm": "SHA256", "endpoint": "https://one"}
    aws.setenv("AWS_ENDPOINT_URL_S3", "https://two")
    assert s3_settings()["endpoint"] == "https://two"


def test_an_origin_has_the_server_and_no_keys(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_ACCESS_KEY_ID", "key")
    aws.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    amazon = open_store("s3://bucket/pack").origin
    aws.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert open_store("s3://bucket/pack/").origin == amazon and "key" not in amazon
    aws.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1/")
    mirror = open_store("s3://bucket/pack").origin
    assert mirror != amazon and pickle.loads(pickle.dumps(open_store("s3://bucket/pack"))).origin == mirror
    accounts = []
    for account in ("one", "two"):
        aws.setenv("AZURE_STORAGE_ACCOUNT_NAME", account)
        aws.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
        accounts.append(open_store("az://container/pack").origin)
    assert accounts[0] != accounts[1] and not any("c2Vj" in origin for origin in accounts)


def test_variables_of_the_client_are_read_beside_packers_own(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_READ_TIMEOUT", "5s")
    aws.setenv("AWS_ALLOW_HTTP", "true")
    assert obstore._given("s3") == {"read_timeout": "5s", "allow_http": "true"}
    assert obstore._given("az") == {}
    aws.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    aws.setenv("AWS_READ_TIMEOUT", "many")
    with pytest.raises(UsageError, match=r"cannot be used: .*many"):
        open_store("s3://bucket")


def test_an_endpoint_without_a_scheme(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_ENDPOINT_URL", "127.0.0.1:8333")
    with pytest.raises(UsageError, match=r"AWS_ENDPOINT_URL: must be a URL, got '127.0.0.1:8333'; write http"):
        open_store("s3://bucket/x")


def test_a_machine_without_credentials(aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    aws.setenv("AWS_CONFIG_FILE", os.devnull)
    aws.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    (tmp_path / "role").mkdir()
    with FaultProxy(tmp_path / "role") as role:  # it answers 404 or the like, as machines outside the cloud may
        aws.setenv("AWS_METADATA_ENDPOINT", role.url)
        with pytest.raises(StorageError, match=r"no credentials: .*AWS_SKIP_SIGNATURE"):
            open_store("s3://bucket/x").read("y")


def test_the_reason_why_nothing_is_reached() -> None:
    answer = (
        "Generic S3 error: Error performing GET http://h/x in 2s, after 10 retries, max_retries: 10, "
        "retry_timeout: 180s - HTTP error: error sending request\n\nDebug source:\n"
        'Os { code: 111, message: "Connection refused" }'
    )
    assert _text(RuntimeError(answer)) == (
        "Generic S3 error: Error performing GET http://h/x in 2s, after 10 retries - "
        "HTTP error: error sending request (Connection refused)"
    )


def test_a_file_of_settings_that_is_none(aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("no section=\n")
    with pytest.raises(UsageError, match="config: cannot be read"):
        s3_settings()
