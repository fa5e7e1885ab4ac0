"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a pack."""

    file: str
    record: str | None
    """Key of the record, None where it is about the whole file."""
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {'' if self.record is None else f'record {self.record} '}{self.problem}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` has found."""

    path: str
    files: int
    records: int
    bytes: int
    problems: tuple[Problem, ...]
    unknown_files: tuple[str, ...] = ()
    """Names in the pack's directory that the manifest does not list: no problem, readers never open them."""
