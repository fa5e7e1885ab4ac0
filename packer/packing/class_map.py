"""Classes with other names, merged, or left out: the options of all commands become one mapping.

It is from the names in labels to those of the pack: first ``--map``, then ``--drop-class`` or ``--only-class``, which
name what that gives, then ``--single-class``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import NoLabel, PackerError, UsageError, option, plural, printable
from packer.model.annotation import RawAnnotation
from packer.model.fields import FIELDS
from packer.sources.paths import MOST_CLASSES, as_bytes, as_text
from packer.sources.tree import MIB, lines_of, read_file
from packer.sources.yolo_config import parse_yaml

FORMS = "write OLD,OLD=NEW, or name a file with such lines, or a YAML file of OLD: NEW"
NOTHING_LEFT = "only objects of dropped classes"
NOTHING_LEFT_STEP = "pack it as an image without objects with --missing-labels=empty, or leave it out with skip"
SHOWN = 5
_PER_BOX = (*(f.name for f in FIELDS if f.per_box and f.kind.is_numeric), "box_lines", "box_texts")
_SAYS = tuple(field.name for field in FIELDS if field.says and field.name != "boxes")


@dataclass(frozen=True, slots=True)
class ClassChange:
    """What became of a class of the labels."""

    name: str
    becomes: str | None
    """Its new name; None: it is dropped."""
    labels: int
    """The number of objects and images that are labelled with it."""


@dataclass(frozen=True, slots=True)
class ClassMap:
    """New names of classes.

    Args:
        pairs: Name in the labels -> new name.
        drop: Classes to leave out.
        only: The classes to keep. Empty: all.
        single: The name of all. None: each keeps its own.
        listed: The names of ``--classes``, which labels may number. Empty: there are none.
    """

    pairs: Mapping[str, str]
    drop: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    single: str | None = None
    listed: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Any, listed: Sequence[str] | None = None) -> ClassMap | None:
        """Return what the CLASS_OPTIONS among the attributes of `options` say; None if they say nothing.

        Raises:
            UsageError: They contradict each other.
        """
        pairs: dict[str, str] = {}
        for text in options.map:
            for old, new in _pairs_in(text):
                if pairs.setdefault(old, new) != new:
                    problem = f"gives {printable(old)} two names: {printable(pairs[old])} and {printable(new)}"
                    raise UsageError(option("map"), problem, "give one")
        drop, only = (
            frozenset(name for text in texts for name in _names_in(text))
            for texts in (options.drop_class, options.only_class)
        )
        if drop and only:
            raise UsageError(option("drop-class"), "excludes --only-class", "leave out one of them")
        if options.single_class is not None and not options.single_class.strip():
            raise UsageError(option("single-class"), "is empty", "name the class of all objects")
        single = options.single_class and options.single_class.strip()
        return cls(pairs, drop, only, single, tuple(listed or ())) if pairs or drop or only or single else None

    @property
    def option(self) -> str:
        """The first option that says something, as an error names it."""
        given = {"map": self.pairs, "drop-class": self.drop, "only-class": self.only}
        return option(next((name for name, value in given.items() if value), "single-class"))

    def name_of(self, name: str) -> str:
        """Return the name of a class: a number that is no name itself is one in the list of ``--classes``."""
        number = int(name) if self.listed and name.isascii() and name.isdigit() and len(name) < 10 else MOST_CLASSES
        if number >= len(self.listed) or name in self.listed or name in self.pairs:
            return name
        return self.listed[number]

    def new_name(self, name: str) -> str | None:
        """Return the new name of a class, None if it is dropped."""
        new = self.pairs.get(name := self.name_of(name), name)
        if new in self.drop or (self.only and new not in self.only):
            return None
        return self.single or new

    def new_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the new names of classes, in the order in which they are first met."""
        return tuple(dict.fromkeys(new for name in names if (new := self.new_name(name)) is not None))

    def ids(self, names: Sequence[str], new_names: Sequence[str]) -> NDArray[np.int64]:
        """Return the id among `new_names` of each class, int64 (n,); that of a dropped one is -1."""
        order = {name: number for number, name in enumerate(new_names)}
        return np.array([-1 if (new := self.new_name(name)) is None else order[new] for name in names], np.int64)

    def names_any(self, names: Collection[str]) -> bool:
        """Return whether an option names one of these classes."""
        mapped = {self.pairs.get(name, name) for name in names}
        return not {*self.pairs}.isdisjoint(names) or not (self.drop | self.only).isdisjoint(mapped)

    def applies_to_masks(self, classes: Collection[str], are_alone: bool) -> bool:
        """Return whether classes of masks get new names: those beside other labels only if one of them is named.

        Raises:
            UsageError: The options cannot mean pixels.
        """
        if are_alone and not classes:
            step = "write the names to class_names.txt beside the masks, or give --mask-values=map:FILE"
            raise UsageError(self.option, "is for names, but the masks have no names of classes", step)
        applies = are_alone or self.names_any(classes)
        if applies and self.single is not None:
            step = f"merge classes by name: {option('map', 'cat,dog=animal')}"
            raise UsageError(option("single-class"), "would give the background of masks that name, too", step)
        return applies

    def check(self, known: Collection[str]) -> None:
        """Raise UsageError if an option names a class that is not among those that labels have."""
        mapped = {self.pairs.get(name, name) for name in known}
        for given, wanted, there in (
            ("map", self.pairs, known), ("drop-class", self.drop, mapped), ("only-class", self.only, mapped),
        ):  # fmt: skip
            for name in sorted({*wanted}.difference(there)):
                near, every = get_close_matches(name, there, 3), sorted(there)
                have = ", ".join(map(printable, every[:SHOWN])) + ", ..." * (len(every) > SHOWN)
                step = (
                    f"did you mean {' or '.join(map(printable, near))}?"
                    if near
                    else f"labels have {have or 'no classes'}"
                )
                raise UsageError(option(given), f"names the class {printable(name)}, which no label has", step)

    def raw(self, raw: RawAnnotation) -> RawAnnotation:
        """Return an annotation with the new names of its classes, and without the objects of those that are dropped."""
        changes: dict[str, Any] = {} if raw.label is None else {"label": self.new_name(raw.label)}
        if raw.box_labels is not None:
            names = [self.new_name(name) for name in raw.box_labels]
            keep = [number for number, name in enumerate(names) if name is not None]
            if len(keep) < len(names):
                there = ((name, getattr(raw, name)) for name in _PER_BOX)
                changes |= {name: tuple(value[i] for i in keep) for name, value in there if value is not None}
                changes["box_fields"] = {n: tuple(values[i] for i in keep) for n, values in raw.box_fields.items()}
            changes["box_labels"] = tuple(names[i] for i in keep)
        return replace(raw, **changes) if changes else raw

    def of_image(
        self, raws: Sequence[RawAnnotation], path: bytes, counts: Counter[str]
    ) -> tuple[list[RawAnnotation], NoLabel | None, str]:
        """Return the annotations of an image with the new names of their classes.

        Args:
            raws: The annotations.
            path: The image.
            counts: Receives the number of labels of each class.

        Returns:
            The annotations; the error of an image of which no label is left; and why the image is left out, or "".
        """
        new = [self.raw(raw) for raw in raws]
        for raw, mapped in zip(raws, new, strict=True):
            counts.update(map(self.name_of, raw.box_labels or ()))
            if raw.label is not None:
                counts[self.name_of(raw.label)] += 1
                if mapped.label is None:
                    return [], None, dropped_reason(self.name_of(raw.label))
        emptied = any(raw.boxes and not mapped.boxes for raw, mapped in zip(raws, new, strict=True))
        if not emptied or any(raw.boxes or any(getattr(raw, n) is not None for n in _SAYS) for raw in new):
            return new, None, ""
        return new, NoLabel(path, f"has {NOTHING_LEFT}", NOTHING_LEFT_STEP), ""

    def changes(self, counts: Mapping[str, int]) -> tuple[ClassChange, ...]:
        """Return what becomes of the classes that change, of which `counts` has the numbers of labels."""
        new = ((name, self.new_name(name), count) for name, count in sorted(counts.items()))
        return tuple(ClassChange(*change) for change in new if change[0] != change[1])


def dropped_reason(name: str) -> str:
    """Return why an image of a dropped class is left out."""
    return f"class {printable(name)} is dropped"


def changes_notes(changes: Iterable[ClassChange]) -> list[str]:
    """Return a note on what became of classes, if they changed: ``classes: bus, car to vehicle (12 labels)``."""
    of_new: dict[str | None, list[ClassChange]] = {}
    for change in changes:
        of_new.setdefault(change.becomes, []).append(change)
    texts = []
    for new in sorted(of_new, key=lambda name: (name is None, name or "")):
        names = [printable(one.name) for one in of_new[new]]
        shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        count = sum(one.labels for one in of_new[new])
        labels = f" ({plural(count, 'label')})" if count else ""
        texts.append(f"{shown} {'dropped' if new is None else f'to {printable(new)}'}{labels}")
    return [f"classes: {'; '.join(texts)}"] if texts else []


def _split(text: str, mark: str) -> list[str]:
    """Return the parts of a text between marks, of which one behind a backslash is part of a name."""
    return re.split(rf"(?<!\\){mark}", text)


def _names_in(text: str) -> list[str]:
    """Return the names in a text, between commas."""
    return [name for part in _split(text, ",") if (name := _plain(part))]


def _plain(text: str) -> str:
    return re.sub(r"\\([,=])", r"\1", text).strip()


def _pairs_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and new name of each class in ``old,old=new``. Raise UsageError if it is another text."""
    olds, *news = _split(text, "=")
    names = _names_in(olds)
    if len(news) != 1 or not names or not (new := _plain(news[0])):
        step = f"leave classes out with {option('drop-class')}" if names and news == [""] else FORMS
        raise UsageError(option("map"), f"{printable(text)} is not of the form OLD,OLD=NEW", step)
    yield from ((name, new) for name in names)


def map_texts(given: Sequence[str]) -> tuple[str, ...]:
    """Return ``--map`` with what its files hold in place of their names: texts of the form ``old,old=new``.

    Raises:
        UsageError: A file cannot be read, or a text is of another form.
    """
    texts: list[str] = []
    for text in given:
        texts += [text] if len(_split(text, "=")) > 1 and not os.path.isfile(text) else _texts_in(text)
    for text in texts:
        _ = [*_pairs_in(text)]
    return tuple(texts)


def _texts_in(file: str) -> list[str]:
    """Return the lines of a file, or what they would be if it is YAML of ``old: new`` or ``new: [old, old]``."""
    try:
        data = read_file(b"/", os.path.abspath(as_bytes(file)), MIB)
    except PackerError as error:
        raise UsageError(file, error.problem, FORMS) from None
    lines = [as_text(line).strip() for line in lines_of(data)]
    lines = [line for line in lines if line and not line.startswith("#")]
    if any(len(_split(line, "=")) > 1 for line in lines):
        return lines
    texts = []
    for key, value in parse_yaml(data, as_bytes(file)).items():
        new, olds = (key, value) if isinstance(value, list) else (value, [key])
        if not all(isinstance(name, str) and name.strip() for name in (new, *olds)):
            raise UsageError(file, f"gives {printable(key)} no name", FORMS)
        texts.append(f"{','.join(map(_escaped, olds))}={_escaped(new)}")
    if not texts:
        raise UsageError(file, "maps no class", FORMS)
    return texts


def _escaped(name: str) -> str:
    return re.sub("([,=])", r"\\\1", name)
