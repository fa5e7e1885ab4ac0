"""Commands of object stores: `packer cache`, `pull`, `push`, `clean`, and options of all that read packs there."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from packer.cli.output import LocalPath, ProgressBar, Told, as_typed, echo, echo_error, shortened, table_text, telling
from packer.cli.values import PackPath
from packer.errors import EXIT_DAMAGED_PACK, PackerError, UsageError, plural, printable, size_text, time_text

if TYPE_CHECKING:
    from packer.format.cached import CachedPack, CacheReport
    from packer.repack.url_packs import Unreferenced


SHOWN_PROBLEMS = 20
HEAD = ("pack", "here", "whole", "last read", "id")
F = TypeVar("F", bound=Callable[..., Any])


def cache_dir_option(command: F) -> F:
    """Add the option --cache-dir to a command."""
    text = "Cache folder of packs at URLs.  [default: $PACKER_CACHE, or ~/.cache/packer]"
    return click.option("--cache-dir", type=click.Path(), help=text)(command)


def cache_options(command: F) -> F:
    """Add the options of a command that reads packs at URLs: --cache-dir and --cache-bytes."""
    text = "Most bytes that the cache may hold, such as 500GB; 0: read into memory.  [default: what the disk has]"
    return cache_dir_option(click.option("--cache-bytes", metavar="SIZE", help=text)(command))


@click.command()
@click.argument("pack", required=False)
@click.option("--list", "action", flag_value="list", default=True, help="List the packs.  [default]")
@click.option("--verify", "action", flag_value="verify", help="Verify the records that are here; drop what is wrong.")
@click.option("--clear", "action", flag_value="clear", help="Remove the packs that no process uses.")
@click.option("--yes", is_flag=True, help="With --clear: do not ask.")
@cache_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cache(pack: str | None, action: str, yes: bool, cache_dir: str | None, as_json: bool) -> None:
    """Show or clear the cache of packs at URLs.

    PACK is the URL of one of them, or its id in the list. What is removed is fetched again when it is read. Nothing
    is removed but what packer has fetched, in folders that it has made.

    \b
    Examples:
      packer cache
      packer cache --verify
      packer cache --clear s3://bucket/imgs.lmdb --yes
    """
    from packer.format.cached import cached_packs
    from packer.stores.cache import cache_root

    if yes and action != "clear":
        raise UsageError("--yes", "needs --clear", "add it, or leave --yes out")
    root = cache_root(cache_dir)
    packs = cached_packs(root, pack)
    if action == "verify":
        _verify(packs, as_json)
    elif action == "clear":
        _clear(packs, root, yes, as_json)
    elif as_json:
        echo(json.dumps({"cache": root, "packs": [_facts(pack) for pack in packs]}))
    else:
        for line in _lines(packs, root):
            echo(line)


def _facts(pack: CachedPack) -> dict[str, Any]:
    facts = {"url": pack.url, "id": pack.id, "folder": pack.folder}
    return {**facts, "bytes": pack.here_bytes(), "of": pack.whole_bytes, "used_s": pack.used_s()}


def _lines(packs: list[CachedPack], root: str) -> Iterator[str]:
    facts = [_facts(pack) for pack in packs]
    if facts:
        rows = [
            (
                printable(fact["url"]),
                size_text(fact["bytes"]),
                size_text(fact["of"]),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(fact["used_s"])),
                fact["id"],
            )
            for fact in sorted(facts, key=lambda fact: -fact["used_s"])
        ]
        yield from table_text([HEAD, *rows], right=(1, 2))
    total = sum(fact["bytes"] for fact in facts)
    yield f"{printable(root)}: {plural(len(facts), 'pack')}, {size_text(total)}"


def _verify(packs: list[CachedPack], as_json: bool) -> None:
    from packer.format.cached import verify_cached

    reports: list[CacheReport] = []
    failed: list[PackerError] = []
    with ProgressBar(hidden=as_json) as progress:
        progress.stage("verifying", sum(pack.here_bytes() for pack in packs), "bytes")
        for pack in packs:
            try:
                reports.append(verify_cached(pack, progress))
            except PackerError as error:
                failed.append(error)
    if as_json:
        good = not failed and not any(report.problems for report in reports)
        echo(json.dumps({"packs": [asdict(r) for r in reports], "failed": [e.line for e in failed], "good": good}))
    else:
        for report in reports:
            name = printable(report.url)
            for line in shortened([f"{name}: {printable(one)}" for one in report.problems], SHOWN_PROBLEMS):
                echo_error(line)
            checked = f"{report.records:,} of {plural(report.of, report.what)} are here{_proof(report)}"
            if report.problems:
                in_use = f", {size_text(report.in_use_bytes)} is in use" if report.in_use_bytes else ""
                echo(f"{name}: {checked}; {size_text(report.dropped_bytes)} was dropped{in_use}, to be fetched again")
            else:
                echo(f"{name}: good: {checked}")
                if report.absent_bytes:
                    echo(f"to verify all by SHA-256: packer pull {printable(shlex.quote(report.url))} PACK")
        for failure in failed:
            echo_error(failure.line)
    if failed or any(report.problems for report in reports):
        sys.exit(EXIT_DAMAGED_PACK)


def _proof(report: CacheReport) -> str:
    """Return what was compared with what."""
    others = report.records - report.proved
    if report.problems or not report.records:
        return ""
    if not others:
        return ", in whole files that match their SHA-256"
    size, which = size_text(report.absent_bytes), ", which hold no record," if report.records == report.of else ""
    proved = f"; {report.proved:,} are proved by SHA-256, {others:,} only by CRC-32C, which shows damage but no forgery"
    return f"{proved}: {size} of their files{which} are not here"


def _clear(packs: list[CachedPack], root: str, yes: bool, as_json: bool) -> None:
    from packer.format.cached import clear_cached

    total = sum(pack.here_bytes() for pack in packs)
    if packs and not yes:
        if as_json or not sys.stdin or not sys.stdin.isatty():
            raise UsageError("--clear", f"would remove {plural(len(packs), 'pack')}", "pass --yes")
        question = f"remove {plural(len(packs), 'pack')}, {size_text(total)}, from {printable(root)}?"
        click.confirm(question, abort=True, err=True)
    removed: list[dict[str, Any]] = []
    failed: list[PackerError] = []
    for pack in packs:
        try:
            removed.append({"url": pack.url, "id": pack.id, "bytes": clear_cached(pack)})
        except PackerError as error:
            failed.append(error)
    if as_json:
        echo(json.dumps({"cache": root, "removed": removed, "failed": [error.line for error in failed]}))
    else:
        for done in removed:
            echo(f"{printable(done['url'])}: {size_text(done['bytes'])} removed")
        if not packs:
            echo(f"{printable(root)}: is empty")
        for failure in failed:
            echo_error(failure.line)
    if failed:
        sys.exit(failed[0].exit_code)


@click.command()
@click.argument("url")
@click.argument("out", metavar="PACK", type=LocalPath())
@click.option("--overwrite", is_flag=True, help="Replace an existing pack.")
@telling()
def pull(url: str, out: str, overwrite: bool, progress: ProgressBar) -> Told:
    """Copy the pack at URL to the new folder PACK.

    The digest of every file is verified before the pack gets its name. If it is interrupted, the same command
    resumes from PACK.partial.

    \b
    Examples:
      packer pull s3://bucket/imgs.lmdb imgs.lmdb
    """
    from packer.repack.url_packs import pull as pull_pack

    report = pull_pack(url, out, overwrite, progress)
    where, files = as_typed(printable(report.path), [out]), plural(report.files, "file")
    taken = f"{size_text(report.bytes)} in {time_text(report.seconds)}; every digest is good"
    return asdict(report), [f"{where}: {plural(report.records, 'record')} in {files}, {taken}"]


@click.command()
@click.argument("pack", type=PackPath())
@click.argument("url")
@telling()
def push(pack: str, url: str, progress: ProgressBar) -> Told:
    """Copy PACK to URL in an object store, where no pack may be.

    Each file is verified before it is sent, and pack.json is written last. If it is interrupted, the same command
    resumes. Files elsewhere that an adopted pack refers to are copied along.

    \b
    Examples:
      packer push imgs.lmdb s3://bucket/imgs.lmdb
    """
    from packer.repack.url_packs import push as push_pack

    report = push_pack(pack, url, progress)
    lines = []
    if report.linked:
        there = plural(report.linked, "file that lies elsewhere is", "files that lie elsewhere are")
        lines.append(f"note: {there} copied along, so the digest of the pack there is {report.digest[:12]}")
    sent = "it was there already" if not report.sent else f"{report.sent} sent in {time_text(report.seconds)}"
    lines.append(f"{report.url}: {plural(report.files, 'file')}, {size_text(report.bytes)}; {sent}")
    return asdict(report), [*lines, f'read it: packer.PackedDataset("{report.url}")']


SHOWN = 20


@click.command()
@click.argument("url")
@click.option("--yes", is_flag=True, help="Remove them, rather than only list them.")
@click.option(
    "--older-than", type=float, default=24.0, show_default=True, metavar="HOURS", help="Age of what may be removed."
)
@telling()
def clean(url: str, yes: bool, older_than: float, progress: ProgressBar) -> Told:
    """List and remove what builds have left at URL.

    Without --yes, they are only listed.

    Only objects with names that packer makes, which the pack at URL does not need, and which are older than a day.
    Whoever reads a pack that was replaced has a day, too.

    \b
    Examples:
      packer clean s3://bucket/imgs.lmdb
      packer clean s3://bucket/imgs.lmdb --yes
    """
    from packer.repack.url_packs import clean as remove
    from packer.repack.url_packs import find_unreferenced

    if older_than < 0:
        raise UsageError("--older-than", f"must be at least 0, got {older_than:g}")
    found = find_unreferenced(url, older_than * 3600)
    if yes:
        remove(found, progress)
    groups = {"objects": found.objects, "recent": found.recent, "unknown": found.unknown}
    names = {group: [one.name for one in objects] for group, objects in groups.items()}
    return {"url": found.url, "removed": yes, **names}, _left_over(found, yes, older_than)


def _left_over(found: Unreferenced, removed: bool, older_than: float) -> Iterator[str]:
    what = "removed" if removed else "left over"
    yield from shortened([f"{what}: {printable(one.name)}: {size_text(one.size)}" for one in found.objects], SHOWN)
    done = f"{_count(found.objects)} {'removed' if removed else 'left over; --yes removes them'}"
    yield f"{found.url}: {done if found.objects else 'nothing is left over'}"
    if found.recent:
        yield f"note: {_count(found.recent)} not needed, but newer than {older_than:g} h: see --older-than"
    if found.unknown:
        yield f"note: {_count(found.unknown)} of a pack whose pack.json is missing: kept, as the only copy"


def _count(objects: Sequence[tuple[str, int, str | None, float]]) -> str:
    return f"{plural(len(objects), 'object')} ({size_text(sum(one[1] for one in objects))})"
