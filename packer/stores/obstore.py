"""Stores of obstore: S3 and what speaks its protocol, Google Cloud Storage, Azure, HTTP servers, folders, memory."""

from __future__ import annotations

import configparser
import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import MemoryStore, from_url

from packer.errors import NotInstalled, StorageError, UsageError
from packer.stores.store import (
    ABSENT,
    Content,
    CutAnswer,
    NoObject,
    NotReached,
    Object,
    ObjectChanged,
    Store,
    StoreFull,
    check_process,
    join_url,
)
from packer.stores.waiting import interruptible

if TYPE_CHECKING:
    from typing_extensions import Buffer


STATIC = ("aws_access_key_id", "aws_secret_access_key")


def s3_settings() -> dict[str, Any]:
    """Return arguments for obstore's S3Store, beyond the variables of the environment that it reads.

    Raises:
        UsageError: ``AWS_PROFILE`` names a profile that is not there.
        NotInstalled: The profile needs boto3 (single sign-on, roles).
    """
    profile = os.environ.get("AWS_PROFILE")
    known = _profile(profile or "default")
    if profile and not known:
        raise UsageError("AWS_PROFILE", f"names the profile {profile!r}, which is not there", "see ~/.aws/config")
    settings: dict[str, Any] = {"checksum_algorithm": "SHA256"}
    if "AWS_REGION" not in os.environ and "AWS_DEFAULT_REGION" not in os.environ:
        settings["region"] = known.get("region", "us-east-1")
    if endpoint := _endpoint(known):
        if not endpoint.startswith(("http://", "https://")):  # obstore would panic
            raise UsageError(
                "AWS_ENDPOINT_URL", f"must be a URL, got {endpoint!r}", "write http:// or https:// before it"
            )
        settings["endpoint"] = endpoint
        if endpoint.startswith("http://"):  # the user named it
            settings["client_options"] = {"allow_http": True}
    if profile or (known and "AWS_ACCESS_KEY_ID" not in os.environ):
        settings.update(_keys(profile, known))
    return settings


def s3_endpoint() -> str:
    """Return the URL of the server of S3 that the environment or the profile names; empty: Amazon's."""
    found = _endpoint(_profile(os.environ.get("AWS_PROFILE") or "default"))
    return (found or os.environ.get("AWS_ENDPOINT", "")).rstrip("/")  # obstore reads the last one by itself


def _endpoint(known: dict[str, str]) -> str | None:
    given = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return given or known.get("endpoint_url")


def _keys(profile: str | None, known: dict[str, str]) -> dict[str, Any]:
    if all(name in known for name in STATIC):
        keys = {"access_key_id": known[STATIC[0]], "secret_access_key": known[STATIC[1]]}
        return {**keys, "session_token": known["aws_session_token"]} if "aws_session_token" in known else keys
    if not {name for name in known if name.startswith(("sso_", "role_", "credential_", "source_", "web_"))}:
        return {}  # only a region or the like: the machine's own role
    if find_spec("boto3") is None:
        raise NotInstalled(f"AWS profile {profile or 'default'}", "needs boto3", "pip install boto3")
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    return {"credential_provider": Boto3CredentialProvider(boto3.Session(profile_name=profile))}


def _profile(name: str) -> dict[str, str]:
    """Return what the two files of the AWS command line say of a profile."""
    home = os.path.expanduser("~/.aws")
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.ConfigParser(interpolation=None)
        path = os.environ.get(variable) or os.path.join(home, file)
        try:
            parser.read(path, "utf-8")
        except (configparser.Error, OSError, UnicodeError):
            raise UsageError(path, "cannot be read as a file of AWS settings", "correct it") from None
        if parser.has_section(section):
            found.update(parser.items(section))
    return found


PART_BYTES = 8 << 20
"""Size of the parts in which a large file is sent."""
TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "10m"}
"""A request may take long on a slow line, but not be silent for long."""
RETRY_S = 60
"""For so long a request is made again."""
TRIES = 5
BACKOFF_S = 0.05
CLIENT_OPTIONS = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "pool_idle_timeout"),
    *("pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes", "read_timeout", "timeout"),
    "user_agent",
)
NO_SUCH = "check the URL, and which account the environment names"
AGAIN = "check the network and the store, and run it again"
RENAME = "rename that object (packer build can do without listing: --inventory)"
NO_RANGES = re.compile("non-partial response|Range request not supported")
REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
DENIED = re.compile(r"status code: 40[13]\b")
FULL = re.compile(rf"\(os error ({errno.ENOSPC}|{errno.EDQUOT})\)")
REFUSALS = re.compile(r"^4(?!08|25|29)\d\d |invalid peer certificate")
"""What waiting does not change: the request is wrong, or the server is not the one that it says."""
REASON = re.compile(r"<(?:Code|Message)>([^<]*)<")
NO_KEYS = re.compile("computeMetadata|/latest/api/token|/latest/meta-data|/metadata/identity")
"""Where a machine of a cloud asks for its own role, which obstore does if the environment has no credentials."""
ROLE = "set them as docs/remote.md says; for a public bucket, AWS_SKIP_SIGNATURE=true (or GOOGLE_, AZURE_)"
CAUSE = re.compile(r'(?:message|error): "([^"]*)"')
NO_FOLDER = "Unable to canonicalize filesystem root"
SERVER = re.compile("ENDPOINT|ACCOUNT_NAME|EMULATOR|BASE_URL")
"""In the names of variables that say which server or account answers for a URL."""
S3 = ("s3", "s3a")
NAME_SERVERS = ("http", "https", "file", "memory")
"""Schemes whose URLs name the server."""
T = TypeVar("T")


class ObstoreStore(Store):
    """The objects below a URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store: Any = None
        self.origin = f"{url} {_server_of(url)}"
        with suppress(FileNotFoundError):
            self._client  # noqa: B018 - wrong settings are errors now

    def __reduce__(self) -> tuple[Any, ...]:
        return ObstoreStore, (self.url,)  # settings come from the environment of the process

    @property
    def _client(self) -> Any:
        """The store of obstore. Raise FileNotFoundError if it is a folder that is not there."""
        return self._connected(make_folder=False)

    def _connected(self, make_folder: bool) -> Any:
        if self._store is None:
            try:
                self._store = _make_store(self.url, make_folder)
            except (exceptions.BaseError, ValueError, TypeError, OSError) as error:
                if NO_FOLDER in str(error) and not make_folder:
                    raise FileNotFoundError(self.url) from None
                raise UsageError(self.url, f"cannot be used: {_text(error)}", "see docs/remote.md") from None
        return self._store

    def size(self, name: str) -> Object:
        """Return what the store says of an object."""
        return _object(self._call(name, lambda: obstore.head(self._client, name)), name)

    def get(self, name: str, start: int = 0, stop: int | None = None, etag: str | None = None) -> tuple[Buffer, Object]:
        """Return the bytes from `start` to `stop`, exactly as many, and what the store says of the whole object."""
        until = time.monotonic() + RETRY_S
        for attempt in count(1):
            try:
                return self._get(name, start, stop, etag)
            except CutAnswer:
                if attempt == TRIES or time.monotonic() > until:
                    raise
            time.sleep(BACKOFF_S * 2**attempt)
        raise AssertionError

    def _get(self, name: str, start: int, stop: int | None, etag: str | None) -> tuple[Buffer, Object]:
        options: obstore.GetOptions = {}
        if stop is not None or start:
            options["range"] = {"offset": start} if stop is None else (start, stop)
        if etag:
            options["if_match"] = etag
        answer = self._call(name, lambda: obstore.get(self._client, name, options=options))
        data, found = self._call(name, answer.bytes), _object(answer.meta, name)
        if stop is not None and len(data) != stop - start:
            problem = f"has {len(data)} bytes from {start} to {stop}"
            if found.size < stop:
                raise ObjectChanged(join_url(self.url, name), problem, "it was replaced, or cut: read it again")
            raise CutAnswer(join_url(self.url, name), problem, AGAIN)
        return data, found

    def write(self, name: str, content: Content, only_if: str | None = None) -> str | None:
        """Write an object and return its ETag."""
        if only_if and self.url.startswith("file:"):  # which cannot do both in one step
            if self.size(name).etag != only_if:
                raise ObjectChanged(join_url(self.url, name), "was replaced by another version", "open it again")
            only_if = None
        mode: Any = "overwrite" if only_if is None else "create" if only_if == ABSENT else {"e_tag": only_if}
        parts = not isinstance(content, bytes)

        def put() -> str | None:
            client = self._connected(make_folder=True)
            answer = obstore.put(client, name, content, mode=mode, use_multipart=parts, chunk_size=PART_BYTES)
            return answer["e_tag"]

        return self._call(name, put)

    def names(self, prefix: str = "") -> Iterator[Object]:
        """Yield the objects whose names begin with `prefix`."""
        folder, _, start = prefix.rpartition("/")
        try:
            pages = self._call(prefix, lambda: iter(obstore.list(self._client, folder or None, chunk_size=1000)))
        except NoObject:  # a folder that is not there has no objects, as elsewhere
            return
        while (page := self._call(prefix, lambda: next(pages, None))) is not None:
            for meta in page:
                one = _object(meta, meta["path"])
                if not start or one.name.startswith(prefix):
                    yield one

    def folders(self, prefix: str = "") -> tuple[list[str], list[Object]]:
        """Return the folders directly in the folder `prefix`, and the objects."""
        try:
            found = self._call(prefix, lambda: obstore.list_with_delimiter(self._client, prefix or None))
        except NoObject:
            return [], []
        if "" in found["common_prefixes"]:  # obstore would list the same again, and read other names
            raise StorageError(join_url(self.url, prefix), "has objects whose names begin with a slash", RENAME)
        # an object "prefix/" of no bytes, which consoles and some servers make for a folder, is not in it
        there = [meta for meta in found["objects"] if meta["path"] != prefix or meta["size"]]
        objects = [_object(meta, meta["path"]) for meta in there]
        return sorted(path.rstrip("/") for path in found["common_prefixes"]), sorted(objects)

    def delete(self, names: list[str]) -> None:
        """Delete objects."""
        self._call(names[0] if names else "", lambda: obstore.delete(self._client, names))

    def _call(self, name: str, call: Callable[[], T]) -> T:
        check_process()
        where = join_url(self.url, name)
        try:
            return interruptible(call)
        except StorageError:  # nobody waits for it any more
            raise
        except FileNotFoundError as error:  # obstore's NotFoundError is one
            if "NoSuchBucket" in str(error):
                raise StorageError(self.url, "there is no such bucket", NO_SUCH) from None
            raise NoObject(where, "no such object", NO_SUCH) from None
        except (exceptions.PreconditionError, exceptions.NotModifiedError):
            raise ObjectChanged(where, "was replaced by another version", "open it again") from None
        except exceptions.AlreadyExistsError:
            raise ObjectChanged(where, "exists", "choose another URL") from None
        except ValueError as error:  # of a name that has //, . or .. in it, or control characters
            raise NoObject(where, f"no object can have this name: {_text(error)}", NO_SUCH) from None
        except (exceptions.BaseError, OSError) as error:
            text = _text(error)
            if NO_KEYS.search(str(error)):
                raise StorageError(
                    where, f"no credentials: the environment has none, this machine no role: {text}", ROLE
                ) from None
            if NO_RANGES.search(text):
                problem = "the server does not answer requests for parts of objects"
                raise StorageError(where, problem, "choose a store that does, or copy it: packer pull") from None
            if "PROPFIND" in str(error):
                raise StorageError(self.url, "is on a web server, which can only be read", "choose a store") from None
            if isinstance(error, REFUSED) or DENIED.search(str(error)):
                raise StorageError(where, f"access denied: {text}", NO_SUCH) from None
            if "NoSuchBucket" in str(error):
                raise StorageError(self.url, "there is no such bucket", NO_SUCH) from None
            if "body error" in text:
                raise CutAnswer(where, f"the answer was cut: {text}", AGAIN) from None
            if "invalid path" in text:  # of a name that has // or control characters, or is not UTF-8
                raise StorageError(where, f"has an object whose name cannot be used: {text}", RENAME) from None
            if self.url.startswith("file:") and (full := FULL.search(str(error))):
                step = "free some space, or choose another URL"
                raise StoreFull(where, f"cannot write: {os.strerror(int(full[1]))}", step) from None
            is_here = self.url.startswith("file:")  # a folder of this machine does not come back in a minute
            kind = StorageError if is_here or REFUSALS.search(text) else NotReached
            raise kind(where, f"cannot be reached: {text}", AGAIN) from None


def _make_store(url: str, make_folder: bool) -> Any:
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        return _memory(rest)
    if scheme == "file":
        return from_url(url, mkdir=make_folder, automatic_cleanup=True)
    settings = s3_settings() if scheme in S3 else {}
    options = {"allow_http": True} if scheme == "http" else settings.get("client_options", {})
    settings["client_options"] = {**TIMEOUTS, **_given(scheme), **options}
    return from_url(url, **settings, retry_config={"max_retries": 10, "retry_timeout": timedelta(seconds=RETRY_S)})


def _given(scheme: str) -> dict[str, str]:
    """Return the options of clients in the environment, which obstore does not look for if it is given any."""
    prefix = _prefix(scheme)
    return {name: os.environ[prefix + name.upper()] for name in CLIENT_OPTIONS if prefix + name.upper() in os.environ}


def _prefix(scheme: str) -> str:
    """Return how the names of a cloud's variables begin."""
    return "AWS_" if scheme in S3 else "GOOGLE_" if scheme == "gs" else "AZURE_"


def _server_of(url: str) -> str:
    """Return what the environment and profiles say of the server that answers for a URL; no keys."""
    scheme = url.partition("://")[0]
    if scheme in NAME_SERVERS:
        return ""
    if scheme in S3:
        return s3_endpoint()
    prefix = _prefix(scheme)
    found = [(name, os.environ[name]) for name in sorted(os.environ) if name.startswith(prefix)]
    return " ".join(f"{name}={value}" for name, value in found if SERVER.search(name))


@lru_cache(maxsize=16)
def _memory(_: str) -> Any:
    return MemoryStore()


def _object(meta: Any, name: str) -> Object:
    return Object(name, meta["size"], meta["e_tag"], meta["last_modified"].timestamp())


def _text(error: BaseException) -> str:
    """Return what is wrong in one line: obstore adds the whole answer, which may name keys, and how often it tried."""
    text, _, source = str(error).partition("\n\nDebug source")
    text = re.sub(r", max_retries: \S+ retry_timeout: \S+", "", text)
    reasons = REASON.findall(text)
    if text.endswith("error sending request") and (cause := CAUSE.search(source)):
        reasons = [f"({cause[1]})"]
    text = re.sub(r"\?\S+", "", re.split(r"<\?xml|<Error>", text)[0])  # queries may be signed
    text = text.rpartition("Server returned non-2xx status code: ")[2]  # before it are URL and time
    return " ".join(f"{text} {': '.join(reasons)}".split())[:300].rstrip(":")
