"""Settings of S3 that obstore does not read by itself: the profile of the AWS command line."""

from __future__ import annotations

import configparser
import os
from importlib.util import find_spec
from typing import Any

from packer.errors import NotInstalled, UsageError

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
