"""A YAML file -> texts, lists and mappings: nothing is executed, and neither depth nor aliases nor size is a bomb."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from packer.errors import UsageError, printable
from packer.sources.numerals import MOST_CLASSES
from packer.sources.paths import quoted

DEEPEST = 32
MOST_NODES = 4 * MOST_CLASSES
"""Texts, lists and mappings in a file: enough for a number and a name a class, each twice."""
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # ten times as fast, but not in every installation
_OPENING = (yaml.SequenceStartEvent, yaml.MappingStartEvent)
_CLOSING = (yaml.SequenceEndEvent, yaml.MappingEndEvent)


class _Refused(ValueError):
    """What is YAML, and too much of it or unclear."""


def parse_yaml(data: bytes, path: bytes) -> dict[str, Any]:
    """The mapping in a YAML file, {} where it holds something else; every scalar is text, as written.

    What stands behind an alias is the same object each time: it is shared, never copied. Raises UsageError, naming
    the line, where it is no YAML, deeper than 32 levels, of too many parts, or says a key twice.
    """
    try:
        loaded = _build(yaml.parse(data, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{printable(path)}:{line}", f"is not YAML: {error.problem}", "fix the line") from None
    except _Refused as error:
        problem, line = error.args
        raise UsageError(f"{printable(path)}:{line}", problem, "fix the line") from None
    except (yaml.YAMLError, ValueError) as error:
        problem = str(error).splitlines()[0] if str(error) else "damaged"
        raise UsageError(path, f"is not YAML: {printable(problem)}", "fix the file") from None
    return loaded if isinstance(loaded, dict) else {}


def _build(events: Iterator[Any]) -> Any:
    """What the only document says. PyYAML's own composer calls itself for each level, and so may crash."""
    anchors: dict[str, Any] = {}
    root: list[Any] = []
    into: list[_Place] = [_Place(root)]
    nodes = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, _CLOSING):
            into.pop()
            continue
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise _Refused(f"is not YAML: *{printable(event.anchor or '')} stands for nothing", line)
            node = anchors[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            node = event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            node = []
        elif isinstance(event, yaml.MappingStartEvent):
            node = {}
        else:
            if isinstance(event, yaml.DocumentStartEvent) and root:
                raise _Refused("holds a second document", line)
            continue
        nodes += 1
        if nodes > MOST_NODES:
            raise _Refused(f"has more than {MOST_NODES} values", line)
        if getattr(event, "anchor", None) and not isinstance(event, yaml.AliasEvent):
            anchors[event.anchor] = node
        into[-1].put(node, line)
        if isinstance(event, _OPENING):
            into.append(_Place(node))
            if len(into) > DEEPEST:
                raise _Refused(f"is deeper than {DEEPEST} levels", line)
    return root[0] if root else None


class _Place:
    """A list or mapping that is being filled."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._key: str | None = None

    def put(self, node: Any, line: int) -> None:
        """The next item; in a mapping in turns a key and its value."""
        if isinstance(self._node, list):
            self._node.append(node)
        elif self._key is not None:
            self._node[self._key] = node
            self._key = None
        elif not isinstance(node, str):
            raise _Refused("has a key that is no text", line)
        elif node in self._node:
            raise _Refused(f"the key {quoted(node)} stands twice", line)
        else:
            self._key = node
