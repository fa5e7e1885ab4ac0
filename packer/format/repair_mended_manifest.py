"""Mends a damaged pack.json: what its own digest vouches for is the original, however it was found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from packer.errors import PackerError
from packer.format.manifest import IndexEntry, Manifest, digest_of, parse_manifest

MOST_SEARCHED_BYTES = 8192
"""A larger manifest is not searched for a bit that was flipped: each is tried, in time that grows with the square."""
_NEAR = 2


def loaded(text: bytes) -> dict[str, Any]:
    """The members of a damaged manifest that can be read, nothing where none can; nothing vouches for them."""
    with suppress(ValueError, RecursionError):
        content = json.loads(text)
        if isinstance(content, dict):
            return content
    return {}


def checked(manifest: Manifest) -> Manifest | None:
    """The manifest as it reads back, None where it would be refused."""
    with suppress(PackerError, ValueError, TypeError, KeyError, AttributeError):
        return parse_manifest("", manifest.to_json())
    return None


def mend(text: bytes, files: Mapping[str, IndexEntry | None]) -> Manifest | None:
    """The original of a damaged manifest, None where it is not found; `files` are the shards' files as they are."""
    content = loaded(text)
    for candidate in (content, _with_files(content, files)):
        found = _vouched(candidate)
        if found is not None:
            return found
    if len(text) <= MOST_SEARCHED_BYTES:
        for changed in _one_bit(text):
            with suppress(PackerError):
                return parse_manifest("", changed)
    return None


def _vouched(content: dict[str, Any]) -> Manifest | None:
    """The manifest of these members, if the digest among them is right but for a bit."""
    with suppress(ValueError, TypeError, KeyError, PackerError, AttributeError, RecursionError):
        digest = digest_of(content)
        if sum(a != b for a, b in zip(content["digest"], digest, strict=True)) <= _NEAR:
            text = json.dumps({**content, "digest": digest}, indent=1, allow_nan=False) + "\n"
            return parse_manifest("", text.encode("ascii"))
    return None


def _with_files(content: dict[str, Any], files: Mapping[str, IndexEntry | None]) -> dict[str, Any]:
    """The members, with what the shards' files say about themselves."""
    with suppress(ValueError, TypeError, KeyError):
        shards = []
        for shard in content["shards"]:
            index = files[shard["index"]["name"]]
            container = files[shard["container"]["name"]]
            if index is None or container is None:
                return {}
            known = asdict(container)
            del known["crc32c"]
            shards.append({**shard, "container": known, "index": asdict(index)})
        return {**content, "shards": shards}
    return {}


def _one_bit(text: bytes) -> Iterator[bytes]:
    """Each text that differs in one bit and might be the original."""
    data = bytearray(text)
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            changed = bytes(data)
            content = loaded(changed)
            with suppress(ValueError, TypeError):
                if content and content.get("digest") == digest_of(content):
                    yield changed
            data[place] ^= 1 << bit
