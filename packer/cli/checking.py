"""Commands that check packs or say what is in them: `packer verify`, `info`, `diff` and `hash`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from packer.cli.output import LocalPath, ProgressBar, counts_text, echo, echo_bytes, echo_error, echo_step, shortened
from packer.cli.storing import cache_options
from packer.cli.values import PackPath
from packer.errors import (
    EXIT_DAMAGED_PACK,
    EXIT_DIFFERENT,
    DamagedPack,
    UsageError,
    as_options,
    plural,
    printable,
    size_text,
)
from packer.stores import is_url

if TYPE_CHECKING:
    from packer.format.manifest import Manifest
    from packer.format.pack import Pack
    from packer.format.verify_part import VerifiedPart
    from packer.repack.diff import Differing, DiffReport


SHOWN_PROBLEMS = 20


@click.command()
@click.argument("pack", type=PackPath())
@click.option("--deep", is_flag=True, help="Also decode every image, and compare all records with the index.")
@click.option(
    "--subset",
    metavar="PART",
    help="Verify a part, such as 1/7, 5% or 10GB: the shards that were verified longest ago. Seven calls with 1/7 "
    "verify all; your state folder remembers what was verified when.",
)
@click.option(
    "--newer-than",
    metavar="AGE",
    help="Verify the files that were written in the last 12h, 7d or 2w, or since a date such as 2026-11-20.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print only problems.")
def verify(pack: str, deep: bool, as_json: bool, quiet: bool, **part: str | None) -> None:
    """Verify every byte of PACK, a folder or a URL, or a part of it.

    Checks the digests of files, the checksums of records, and containers against indexes. The exit code is 4 if
    anything is wrong; the affected records are listed. packer repair restores or saves what it can.

    \b
    Examples:
      packer verify imgs.lmdb
      packer verify imgs.lmdb --deep --json
      packer verify imgs.lmdb --subset 1/7 --quiet
    """
    from packer.format.sidecar_list import SIDECAR_FILE, SidecarList
    from packer.format.verify import verify as verify_folder
    from packer.format.verify_url import verify_url
    from packer.stores import is_url

    verify_pack = verify_url if is_url(pack) else verify_folder
    with ProgressBar(hidden=quiet or as_json) as progress:
        report = verify_pack(pack, progress, deep, **part)
    if as_json:
        echo(json.dumps({**asdict(report), "good": not report.problems}))
    else:
        name = printable(pack)
        for line in shortened([f"{name}: {printable(str(one))}" for one in report.problems], SHOWN_PROBLEMS):
            echo_error(line)
        if not quiet:
            for unknown in report.unknown_files:
                echo_error(f"{name}: {printable(unknown)}: is not part of the pack, but harmless")
            if report.part is not None:
                echo(f"{name}: {'' if report.problems else 'good: '}{part_text(report.part)}")
                for unchecked in report.part.unchecked:
                    echo(f"note: {printable(unchecked)}, is checked only without --subset, or with 100%")
            elif not report.problems:
                echo(f"{name}: good: {plural(report.records, 'record')} in {plural(report.files, 'file')}")
        if report.problems and not is_url(pack):
            attached = [one.file for one in report.problems if SIDECAR_FILE.fullmatch(one.file)]
            if len(attached) < len(report.problems):
                echo_step(f"packer repair {printable(shlex.quote(pack))}")
            for step in dict.fromkeys(SidecarList.again(pack, file) for file in attached):  # repair cannot make them
                echo_step(step)
    if report.problems:
        sys.exit(EXIT_DAMAGED_PACK)


def part_text(part: VerifiedPart) -> str:
    """Return which part of a pack was verified, and when the rest was.

    For example ``4 of 40 shards, 9.8 GB; all were verified since 2026-11-03``.
    """
    counts = {"shard": (part.shards, part.of_shards, part.left_shards)}
    if part.unchecked:
        counts = {"record": (part.records, part.of_records, part.left_records)}
    ((what, (done, of, left)),) = counts.items()
    parts = [f"{done:,} of {plural(of, what)}"]
    if part.other_files:
        parts.append(f"{plural(part.other_files, 'other file')}")
    text = f"{', '.join([*parts, size_text(part.bytes)])}"
    if part.since is not None:
        return f"{text}; all were verified since {part.since[:10]}"
    if part.left_bytes:
        return f"{text}; {plural(left, what)}, {size_text(part.left_bytes)}, are left"
    return f"{text}, {part.asked}"


@click.command()
@click.argument("a", type=PackPath())
@click.argument("b", type=PackPath())
@click.option("--limit", type=int, default=10, show_default=True, help="Number of records to list in each respect.")
@click.option(
    "--combined",
    metavar="FILE",
    type=LocalPath(),
    help="Write a line for each record to FILE, or - for standard output: = PATH (equal), - PATH (only in A), + PATH "
    "(only in B), * PATH (changed).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@cache_options
@click.option("--quiet", is_flag=True, help="Print nothing; the exit code says whether they differ.")
def diff(a: str, b: str, limit: int, combined: str | None, as_json: bool, quiet: bool, **cached: Any) -> None:
    """Show how the packs A and B differ.

    Either may be a URL. Compares classes, what the values of parts mean, records (by path, else by the digest of the
    source file), labels and pixels. Images are decoded only where their bytes differ. Other containers, options, shards
    and encodings without loss make no difference. The exit code is 0 if the packs are equal, and 1 if they differ.

    \b
    Examples:
      packer diff imgs.lmdb imgs.hdf5
      packer diff old.lmdb new.lmdb --limit 100 --json
      packer diff old.lmdb new.lmdb --combined records.txt
    """
    from packer.format.pack import open_pack
    from packer.repack.diff import diff as compare

    to_output = combined == "-"
    if to_output and as_json:
        raise UsageError("--combined -", "excludes --json: both write to standard output", "name a file")
    packs = open_pack(a, **cached), open_pack(b, **cached)
    with ProgressBar(hidden=quiet or as_json) as progress, ExitStack() as files:
        write: Callable[[bytes], object] | None = None if combined is None else echo_bytes
        if combined is not None and not to_output:
            from packer.view.export import writing_beside

            write = files.enter_context(writing_beside(packs, combined, "--combined")).write
        report = compare(*packs, limit, progress, write)
    if to_output:
        pass
    elif as_json:
        echo(json.dumps({**asdict(report), "equal": report.equal}))
    elif not quiet:
        for line in chain(lines(report), sidecar_lines(*packs)):
            echo(printable(line))
    if not report.equal:
        sys.exit(EXIT_DIFFERENT)


def sidecar_lines(a: Pack, b: Pack) -> Iterator[str]:
    """Return a line about what was attached to two packs, if it differs: the packs are equal all the same."""
    from packer.format.sidecar_list import attached

    with suppress(DamagedPack):  # packer verify says so
        differ = [name for name in attached([*a.sidecars, *b.sidecars]) if a.sidecars.get(name) != b.sidecars.get(name)]
        if differ:
            yield f"sidecars differ, which does not count: {', '.join(differ)}"


def lines(report: DiffReport) -> Iterator[str]:
    """Return the lines of the report."""
    for name, (before, now) in report.options.items():
        if name in ("include", "exclude"):  # the value is the name of a file in the pack
            lists = ["none" if value is None else "a list" for value in (before, now)]
            yield f"option {name}: {lists[0]}, now {'another list' if lists[0] == lists[1] else lists[1]}"
        else:
            yield f"option {name}: {_option(before)}, now {_option(now)}"
    for name, names in report.classes.items():
        what = "tags" if name.startswith("tags_") else "classes"
        kind = {"only_a": "only in A", "only_b": "only in B", "order": "in another order in B"}
        yield f"{what} {kind[name.removeprefix('tags_')]}: {', '.join(names)}"
    for name, (before, now) in report.parts.items():
        part, _, what = name.partition(".")
        yield f"part {part}: {what} {_option(before)}, now {_option(now)}"
    yield from _records(report.only_a, "only in A", lambda row: "")
    yield from _records(report.only_b, "only in B", lambda row: "")
    yield from _records(report.moved, "with another path", lambda row: f" -> {row['now']}")
    yield from _records(report.labels, "with other labels", lambda row: f": {', '.join(row['fields'])}")
    psnr = "" if report.psnr is None else " (PSNR {:.1f} to {:.1f} dB)".format(*report.psnr)
    yield from _records(report.pixels, f"with other pixels{psnr}", _pixels)
    if report.other_bytes:
        yield f"{plural(report.other_bytes, 'image')} with the same pixels in other bytes"
    first, second = report.records
    if report.equal:
        yield f"equal: {plural(first, 'record')}"
    else:
        yield f"different: A has {plural(first, 'record')}, B {second:,}"


def _records(found: Differing, what: str, more: Any) -> Iterator[str]:
    if found.count:
        yield f"{plural(found.count, 'record')} {what}:"
        yield from (f"  {row['path']}{more(row)}" for row in found.first)
        if found.count > len(found.first):
            yield f"  ... and {found.count - len(found.first):,} more"


def _pixels(row: dict[str, Any]) -> str:
    return ": of another shape" if row["psnr"] is None else f": {row['psnr']:.1f} dB"


def _option(value: Any) -> str:
    return "none" if value is None else str(value)


@click.command(name="hash")
@click.argument("pack", type=PackPath())
@click.option("--deep", is_flag=True, help="Read and verify every image, and digest the bytes themselves.")
@click.option("--by-path", is_flag=True, help="Take the records in the order of their paths, without their keys.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@cache_options
@click.option("--quiet", is_flag=True, help="Show no progress.")
def hash_command(pack: str, deep: bool, by_path: bool, as_json: bool, quiet: bool, **cached: Any) -> None:
    """Print one digest of the records of PACK, a folder or a URL.

    It is the same in any container: it covers the keys, the stored images, the labels and the names of their
    classes, and not how they are cut into shards. Without --deep it is computed from the checksums in the indexes,
    in moments, and is the "content" of packer info --json.

    With --by-path it covers the paths of the source files instead of the keys, and neither the order of the records
    nor the ids of their classes count: a pack that has grown equals one that was built at once. Digests of different
    kinds are not comparable.

    \b
    Examples:
      packer hash imgs.lmdb
      packer hash imgs.lmdb --deep
      packer hash imgs.lmdb --by-path
    """
    from packer.format.content import content_digest, deep_digest
    from packer.format.content_by_path import content_digest_by_path, deep_digest_by_path
    from packer.format.pack import open_pack

    opened = open_pack(pack, **cached)
    shallow, full = (content_digest_by_path, deep_digest_by_path) if by_path else (content_digest, deep_digest)
    with ProgressBar(hidden=quiet or as_json) as progress:
        digest = full(opened, progress) if deep else shallow(opened.reader.indexes, opened.manifest)
    if as_json:
        found = {"path": pack, "deep": deep, "by_path": by_path, "content": digest, "records": len(opened)}
        echo(json.dumps(found))
    else:
        echo(f"{digest}  {printable(pack)}")


INFO_CLASSES = 20


@click.command()
@click.argument("pack", type=PackPath())
@cache_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--rejected", is_flag=True, help="List the rejected inputs with their reasons.")
@click.option("--changed", is_flag=True, help="List the boxes that --boxes clipped or dropped, and damaged images.")
@click.option("--skipped", is_flag=True, help="List the skipped inputs with their reasons.")
@click.option("--command", is_flag=True, help="Print only the command that made it, with SRC for the source.")
def info(
    pack: str, as_json: bool, command: bool, cache_dir: str | None, cache_bytes: str | None, **lists: bool
) -> None:
    """Show what PACK, a folder or a URL, holds and how it was built.

    With --json, the indexes of a pack at a URL are fetched into the cache.

    \b
    Example:
      packer info imgs.lmdb
    """
    from packer.format.lists import as_json as list_as_json
    from packer.format.lists import read_list
    from packer.format.pack_objects import manifest_of
    from packer.packing.recorded import command_of

    manifest = manifest_of(pack)
    if as_json:
        asked = {name: list_as_json(read_list(pack, name, manifest)) for name, is_asked in lists.items() if is_asked}
        command_line = {"command": command_of(manifest, pack)}
        found: dict[str, Any] = {
            "missing": missing_files(pack, manifest),
            "content": content_digest_of(pack, manifest, cache_dir, cache_bytes),
        }
        found |= jpeg_index_facts(pack, manifest) | {"versions": versions_in(pack)}
        found["sidecars"] = sidecar_facts(pack, manifest)
        facts = {"path": pack, "bytes": manifest.shard_bytes, **asdict(manifest)}
        del facts["base"]
        echo(json.dumps({**facts, **found, **command_line, **asked}))
        return
    if command:
        echo(command_of(manifest, pack))
        return
    for name, value in rows(manifest):
        echo(f"{name:<10} {printable(value)}")
    if versions := versions_in(pack):
        echo(f"versions   {len(versions)}: {printable(versions[0])} to {printable(versions[-1])}; see packer log")
    for value in jpeg_index_facts(pack, manifest).values():
        echo(f"JPEG index {value['text']}")
    for sidecar in sidecar_facts(pack, manifest):
        echo(f"sidecar    {sidecar['text']}")
    for name in missing_files(pack, manifest):
        step = f"packer repair {printable(pack)} restores what it can"
        if is_url(pack):
            step = "restore the object, or push the pack again"
        if manifest.linked.get(name):  # a file of another tool
            path = os.path.normpath(manifest.path_of(pack, name))
            step = f"is not at {printable(path)}; put it back, or adopt it again"
        echo(f"missing    {printable(name)}: {step}")
    if lists["rejected"]:
        for entry in read_list(pack, "rejected", manifest):
            echo(f"{printable(entry.path)}: {entry.problem}")
    if lists["changed"]:
        for entry in read_list(pack, "changed", manifest):
            after = f" -> {printable(entry.after)}" if entry.after else ""
            where = printable(entry.path)
            if entry.box:
                where += f": {printable(entry.label)}: box {printable(entry.box)}"
            echo(f"{where}: {printable(entry.change)}: {printable(entry.before)}{after}")
    if lists["skipped"]:
        for entry in read_list(pack, "skipped", manifest):
            echo(f"{printable(entry.path)}: {printable(entry.reason)}")


def versions_in(pack: str) -> list[str]:
    """Return the names of the versions of a pack that was changed in place; none of others, and of a version."""
    from packer.format.pack_paths import numbers_in, own_folder

    return (
        []
        if is_url(pack) or own_folder(pack) != pack
        else [f"{pack.rstrip('/')}@{number}" for number in numbers_in(pack)]
    )


def content_digest_of(pack: str, manifest: Manifest, cache_dir: str | None, cache_bytes: str | None) -> str | None:
    """Return the digest of what the pack holds, as `packer hash`; None if an index is missing or damaged."""
    from packer.format.content import content_digest
    from packer.format.indexes import Indexes, IndexFiles
    from packer.format.pack import open_pack

    with suppress(DamagedPack):  # this command describes damaged packs, too
        if is_url(pack):
            return content_digest(open_pack(pack, cache_dir, cache_bytes).reader.indexes, manifest)
        return content_digest(Indexes(IndexFiles(pack, manifest.shards, manifest)), manifest)
    return None


def jpeg_index_facts(pack: str, manifest: Manifest) -> dict[str, Any]:
    """Return what is known of the index of a pack's JPEGs, as JSON values below ``jpeg_index``; nothing if it has none.

    That of a pack at a URL is not looked at.
    """
    from packer.cli.making import jpeg_index_facts as facts_of
    from packer.format.beside import read_beside
    from packer.format.jpeg_index_list import JpegIndexList

    try:
        found = None if is_url(pack) else read_beside(JpegIndexList, pack, manifest)
    except DamagedPack as error:
        return {"jpeg_index": {"text": as_options(f"{printable(error.problem)}; {printable(error.next_step)}")}}
    return {} if found is None else {"jpeg_index": facts_of(found, manifest)}


def sidecar_facts(pack: str, manifest: Manifest) -> list[dict[str, Any]]:
    """Return what was attached to a pack, as JSON values and as text."""
    from packer.format.beside import read_beside
    from packer.format.pack_objects import beside_at
    from packer.format.sidecar_list import SidecarList
    from packer.stores import open_store

    try:
        kind, at_url = SidecarList, is_url(pack)
        found = beside_at(kind, open_store(pack), manifest) if at_url else read_beside(kind, pack, manifest)
    except DamagedPack as error:
        return [{"text": as_options(f"{printable(error.problem)}; {printable(error.next_step)}")}]
    return [{name: getattr(one, name) for name in SHOWN_OF_SIDECARS} for one in (found.sidecars if found else ())]


SHOWN_OF_SIDECARS = ("name", "kind", "dtype", "shape", "bytes", "text")


def missing_files(pack: str, manifest: Manifest) -> list[str]:
    """Return the names of missing files."""
    from packer.format.pack_objects import missing_objects
    from packer.stores import open_store

    if is_url(pack):
        return missing_objects(open_store(pack), manifest.files)
    return [file.name for file in manifest.files if not os.path.isfile(manifest.path_of(pack, file.name))]


def rows(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the name and value of each line."""
    size = manifest.shard_bytes
    each = size_text(size / manifest.records) if manifest.records else "0 bytes"
    kinds = ", ".join(manifest.options["labels"])
    found = [
        ("records", f"{manifest.records:,} in {plural(len(manifest.shards), 'shard')}"),
        ("container", manifest.container),
        ("images", _images(manifest)),
        ("size", f"{size_text(size)} ({each} per record)"),
        ("labels", _fields(manifest) if _is_written(manifest) else f"{kinds}: {_fields(manifest)}"),
        ("inputs", counts_text(manifest.counts)),
    ]
    if manifest.classes:
        found.append(("classes", _classes_line(manifest)))
    if tags := manifest.tags:
        more = f" and {len(tags) - INFO_CLASSES} more" if len(tags) > INFO_CLASSES else ""
        found.append(("tags", f"{len(tags)}: {', '.join(map(printable, tags[:INFO_CLASSES]))}{more}"))
    if manifest.parts:
        found.append(("parts", manifest.parts_text))
    found += [("note", note) for note in manifest.notes]
    if manifest.made_from:
        found.append(("made from", f"{manifest.made_from[0].command}: {_origins(manifest)}"))
    found.append(("made by", f"packer {manifest.packer}: {_options(manifest)}"))
    return found


def _fields(manifest: Manifest) -> str:
    """Return the annotation fields, those of boxes last."""
    fields = sorted(manifest.fields, key=lambda name: "." in name)
    names = [name.removeprefix("box_fields.") for name in fields]
    return ", ".join([*names, *manifest.masks]) or "none"


def _images(manifest: Manifest) -> str:
    if manifest.shape is None:
        shape = "of different sizes"
    else:
        height, width, channels = manifest.shape
        shape = f"{width}x{height}, {plural(channels, 'channel')}"
    return f"{shape}, {manifest.dtype or 'uint8 and uint16'}, stored as {manifest.encoding}"


def _classes_line(manifest: Manifest) -> str:
    parts = []
    for i, name in enumerate(manifest.classes[:INFO_CLASSES]):
        numbers = [str(counts[i]) for counts in manifest.class_counts.values()]
        parts.append(f"{printable(name)} ({' / '.join(numbers)})" if numbers else printable(name))
    more = len(manifest.classes) - INFO_CLASSES
    unit = {"label": "images", "boxes": "boxes"}
    of = " / ".join(unit.get(name, printable(name)) for name in manifest.class_counts)
    of = of or ("masks" if manifest.masks else "")
    if more > 0:
        parts.append(f"and {more} more")
    return f"{len(manifest.classes):,}, with {of or 'none used'}: {', '.join(parts)}"


def _is_written(manifest: Manifest) -> bool:
    """Return whether a program has given the labels, which are then of no kind."""
    return bool(manifest.made_from) and manifest.made_from[0].command == "PackWriter"


def _origins(manifest: Manifest) -> str:
    names = [printable(origin.name) for origin in manifest.made_from]
    more = f" and {len(names) - INFO_CLASSES} more" if len(names) > INFO_CLASSES else ""
    return ", ".join(names[:INFO_CLASSES]) + more


def _options(manifest: Manifest) -> str:
    skipped = ("labels", "encode", "max_pixels", "columns", "repack")
    given = {k: v for k, v in manifest.options.items() if v is not None and k not in skipped}
    return ", ".join(f"{k} {printable(str(v))}" for k, v in given.items())
