"""Commands that show a pack: `packer stats` and `packer view`."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from packer.cli.output import LocalPath, ProgressBar, as_typed, echo
from packer.cli.stats_text import SHOWN_GROUPS, stats_lines
from packer.cli.storing import cache_options
from packer.cli.values import PackPath
from packer.errors import UsageError, plural, printable

if TYPE_CHECKING:
    from packer.format.pack import Pack
    from packer.stats.near import NearDuplicates
    from packer.stats.problems import Problems


SHOWN_EXAMPLES = 3
SHOWN_MEMBERS = 6
MOST_RECORDS = 1000
TEXT_WIDTH = 96


@click.command()
@click.argument("pack", type=PackPath())
@click.option("--against", type=PackPath(), help="Another pack; list the images that are in both.")
@click.option(
    "--pixels/--no-pixels",
    default=True,
    help="Read all images for the mean and std of the channels, all masks, and some maps and texts.",
)
@click.option(
    "--duplicates",
    metavar="near[=BITS]|mirrored",
    help="List near duplicates, instead: images whose fingerprints differ in few of 64 bits (8), for mirrored also "
    "left to right.",
)
@click.option("--problems", is_flag=True, help="List what is probably wrong with images and labels, instead.")
@click.option(
    "--embedding",
    metavar="NAME",
    help="With --problems: outliers, and labels that neighbors contradict, by this sidecar of vectors, too.",
)
@click.option("--compare", metavar="NAME", help="Compare these predictions (packer attach) with the labels, instead.")
@click.option(
    "--iou",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Least overlap of boxes that are one object, for --compare.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    help="Least score of predicted boxes, for --compare; AP counts all.",
)
@click.option("--plot", type=LocalPath(), help="Plot to this file (.png, .svg, .pdf); needs matplotlib.")
@cache_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stats(pack: str, against: str | None, pixels: bool, plot: str | None, as_json: bool, **given: Any) -> None:
    """Show the statistics of PACK, a folder or a URL.

    Counts classes, boxes, sizes and duplicates, and computes the mean and std of the channels. Mean and std are
    exact, over all pixels, and ready to paste. Duplicates are records made from files with the same bytes.
    --against lists files that are in both packs (a leak of val into train).

    --problems lists equal images with different labels, boxes drawn twice, boxes that are odd for their class,
    and more, from the index alone; and masks that are empty, that have ids of no class or islands of a few pixels,
    or that disagree with boxes, and maps without content, which reads all of them (of a URL: 100). Blurred, dark,
    bright and blank images are told by their fingerprints. With --against, it looks at both packs together; with
    --embedding, it compares each record with those of the nearest vectors.

    --duplicates near lists groups of images that were resized, encoded again, slightly cropped or made brighter, by the
    fingerprints beside the pack; images without one are read. With --against, it lists those of both packs first.

    --compare says how good attached predictions are: AP of boxes (by faster-coco-eval or pycocotools), precision,
    recall, what is missed, spurious or confused, accuracy of images, IoU of masks.

    \b
    Examples:
      packer stats imgs.lmdb
      packer stats train.lmdb --against val.lmdb --no-pixels
      packer stats train.lmdb --against val.lmdb --problems
      packer stats train.lmdb --against val.lmdb --duplicates near
      packer stats train.lmdb --problems --embedding clip
      packer stats val.lmdb --compare pred --confidence 0.4
    """
    from packer.format.pack import open_pack
    from packer.stats import pack_stats

    problems, near, embedding, name = (given.pop(one) for one in ("problems", "duplicates", "embedding", "compare"))
    limits = {limit: given.pop(limit) for limit in ("iou", "confidence")}
    _check_one_of({"--problems": problems, "--duplicates": near, "--compare": name, "--plot": plot})
    if embedding is not None and not problems:
        raise UsageError("--embedding", "has no effect without --problems", "add --problems")
    if name is not None:
        if against is not None:
            raise UsageError("--against", "has no effect with --compare", "leave one of them out")
        _compare(open_pack(pack, **given), name, limits, as_json)
        return
    if near is not None:
        _near_duplicates([pack] if against is None else [pack, against], near, as_json, given)
        return
    if problems:
        names = [pack] if against is None else [pack, against]
        _problems([open_pack(name, **given) for name in names], names, pixels, as_json, embedding)
        return
    if plot is not None:
        from packer.stats.plots import figure_class

        figure_class("--plot")  # fail before the work, not after it
    with ProgressBar(hidden=as_json) as progress:
        opened = open_pack(pack, **given)
        other = None if against is None else open_pack(against, **given)
        found = pack_stats(opened, other, pixels, progress)
    if plot is not None:
        from packer.stats.plots import plot_stats

        plot_stats(found, plot, opened)
    if as_json:
        echo(json.dumps(asdict(found)))
        return
    for line in stats_lines(found):
        echo(as_typed(line, [pack, against or ""]))
    if plot is not None:
        echo(f"plot: {printable(plot)}")


def _check_one_of(asked: Mapping[str, Any]) -> None:
    """Raise UsageError if more than one of these options, which print something else instead, is given."""
    given = [name for name, value in asked.items() if value]
    if len(given) > 1:
        raise UsageError(given[0], f"has no effect with {given[1]}", "leave one of them out")


def _compare(pack: Pack, name: str, limits: Mapping[str, Any], as_json: bool) -> None:
    """Print how good predictions are."""
    from packer.cli.comparing import compared_lines
    from packer.stats.comparison import compare

    with ProgressBar(hidden=as_json) as progress:
        found = compare(pack, name, **limits, progress=progress)
    if as_json:
        echo(json.dumps(asdict(found)))
        return
    for line in compared_lines(found):
        echo(line)
    echo("")
    echo(f"see them: packer view {shlex.quote(pack.path)} (tab Predictions)")


def _near_duplicates(typed: Sequence[str], near: str, as_json: bool, given: dict[str, Any]) -> None:
    """Print the near duplicates of one or two packs."""
    from packer.format.pack import open_pack
    from packer.repack.near_duplicates import Nearness
    from packer.stats.near import near_duplicates

    wanted = Nearness.of("--duplicates", near)
    packs = [open_pack(name, **given) for name in typed]
    with ProgressBar(hidden=as_json) as progress:
        found = near_duplicates(packs, wanted, progress)
    if as_json:
        facts = {"near_duplicates": found.paths(), "near_leaks": found.paths(leaks=True)}
        echo(json.dumps({"packs": [pack.path for pack in packs], **asdict(found), **facts}))
        return
    for line in near_lines(found, len(packs) > 1):
        echo(as_typed(line, typed))


def near_lines(found: NearDuplicates, several: bool) -> Iterator[str]:
    """Return the lines of a list of near duplicates; `several` is whether their packs are named."""
    within = f"within {plural(found.bits, 'bit')}" + (", mirrored or not" if found.mirrored else "")
    groups = plural(found.groups, "group of near duplicates", "groups of near duplicates") if found.groups else "none"
    yield f"near duplicates {groups} {within}: {plural(found.records, 'record')}"
    if several:
        yield f"in both         {plural(found.leaks, 'group has', 'groups have')} records of both packs"
    for group in found.listed[:SHOWN_GROUPS]:
        yield ""
        for one in group[:SHOWN_MEMBERS]:
            where = f"{printable(one.pack)}: {printable(one.path)}" if several else printable(one.path)
            yield f"  {one.differ:2} bits  {one.key}  {where}"
        if len(group) > SHOWN_MEMBERS:
            yield f"           ... and {len(group) - SHOWN_MEMBERS:,} more"
    if found.groups > SHOWN_GROUPS:
        yield f"... and {plural(found.groups - SHOWN_GROUPS, 'more group')} (--json lists {len(found.listed):,})"
    for note in found.notes:
        yield f"note: {note}"


def _problems(packs: Sequence[Pack], typed: Sequence[str], pixels: bool, as_json: bool, embedding: str | None) -> None:
    """Print the problems of one or several packs, with their paths as they were typed."""
    from packer.format.pack import join_packs
    from packer.stats.problems import find_problems

    with ProgressBar(hidden=as_json) as progress:
        together = packs[0] if len(packs) == 1 else join_packs(packs)
        found = find_problems(together, None if pixels else 0, progress, embedding)
    if as_json:
        listed = [
            {
                **vars(one),
                "count": one.count,
                "records": one.records[:MOST_RECORDS].tolist(),
                "examples": [*map(vars, one.examples)],
            }
            for one in found.found
        ]
        names = [pack.path for pack in packs]
        echo(json.dumps({"packs": names, "records": sum(map(len, packs)), "problems": listed, "notes": found.notes}))
        return
    kinds = plural(len(found.found), "kind of problem", "kinds of problems") if found.found else "no problems found"
    echo(f"{' and '.join(map(printable, typed))}: {plural(sum(map(len, packs)), 'record')}; {kinds}")
    for line in problem_lines(found):
        echo(line)
    if found.found:
        echo("")
        echo(f"see them: packer view {shlex.join(typed)} (tab {'Map' if embedding else 'Problems'})")


def problem_lines(problems: Problems) -> Iterator[str]:
    """Return the lines of a list of problems."""
    for one in problems.found:
        yield ""
        count = f"{plural(one.count, 'record')}: " if one.count else ""
        yield f"{one.level:<6} {count}{one.title}"
        for line in textwrap.wrap(one.text, TEXT_WIDTH):
            yield f"       {line}"
        for example in one.examples[:SHOWN_EXAMPLES]:
            where = f"{example.pack}: {example.path}" if example.pack else example.path
            yield f"         {example.key}  {where}" + (f"  {example.detail}" if example.detail else "")
    for note in problems.notes:
        yield ""
        yield f"note   {note}"


@click.command()
@click.argument("packs", metavar="PACK...", nargs=-1, required=True, type=PackPath())
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: any free port]")
@click.option("--token", help="Secret part of the address, for one that stays the same.  [default: a random one]")
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@click.option(
    "--source",
    type=LocalPath(),
    help="Folder that the pack was built from, to compare images with their "
    "originals.  [default: the folder called like the pack, without its suffix]",
)
@click.option("--export", type=LocalPath(), help="Export a contact sheet (one HTML file) and exit.")
@click.option("--count", default=200, show_default=True, help="With --export: number of records.")
@click.option("--seed", type=click.IntRange(0), help="With --export: sample with this seed.  [default: take the first]")
@click.option("--export-marks", type=LocalPath(), metavar="FILE", help="Export the list of marked records and exit.")
@click.option("--tag", metavar="NAME", help="With --export-marks: records with this tag instead.")
@cache_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def view(packs: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Show PACK, a folder or a URL, in the browser.

    Images with their labels, filters, problems, charts, batches as in training, and marks: records to correct or to
    leave out of the next pack. Several packs are shown together, with the images that are in more than one.
    Listens on 127.0.0.1 only, at an address with a random token, until Ctrl-C.

    \b
    Examples:
      packer view imgs.lmdb
      packer view train.lmdb val.lmdb
      packer view imgs.lmdb --export sheet.html --count 100 --seed 0
      packer view imgs.lmdb --export-marks marks.txt
      packer view imgs.lmdb --export-marks night.txt --tag night
    """
    from packer.format.pack import join_packs, open_pack

    _check_together(given["export"], given["export_marks"])
    found = [open_pack(pack, given["cache_dir"], given["cache_bytes"]) for pack in packs]
    opened, names = found[0] if len(found) == 1 else join_packs(found), " + ".join(packs)
    if (out := given["export"] or given["export_marks"]) is not None:
        write = _sheet if given["export"] else _marks
        written, what = write(opened, out, given)
        facts = {"path": out, "records": written, "of": len(opened)}
        echo(json.dumps(facts) if as_json else f"{printable(out)}: {what}")
        return
    from packer.view.app import Server, opened_in_browser

    with Server(opened, given["port"], given["token"], source=given["source"]) as server:
        if as_json:
            echo(json.dumps({"url": server.url, "pack": names, "records": len(opened)}))
        else:
            echo(f"{printable(names)}: {plural(len(opened), 'record')} at {server.url}")
            echo("press Ctrl-C to stop")
        sys.stdout.flush()
        if given["no_browser"]:
            server.serve_forever()
        else:
            with opened_in_browser(server.url):
                server.serve_forever()  # returns at Ctrl-C


def _sheet(pack: Pack, out: str, given: Mapping[str, Any]) -> tuple[int, str]:
    from packer.view.export import export

    written = export(pack, out, given["count"], given["seed"])
    return written, f"{written:,} of {plural(len(pack), 'record')}"


def _marks(pack: Pack, out: str, given: Mapping[str, Any]) -> tuple[int, str]:
    from packer.view.export import writing_beside
    from packer.view.marks import Marks

    if len(pack.packs) > 1:
        raise UsageError("--export-marks", "writes the list of one pack", "name one pack")
    if (tag := given["tag"]) is not None:
        return _tagged(pack, out, tag)
    marks = Marks(pack)
    count = len(marks.all())
    if not count:
        raise UsageError("--export-marks", "no record is marked", f"mark some: packer view {printable(pack.path)}")
    with writing_beside([pack], out, "--export-marks") as file:
        file.write(marks.listing())
    return count, plural(count, "marked record")


def _tagged(pack: Pack, out: str, tag: str) -> tuple[int, str]:
    from packer.view.export import writing_beside
    from packer.view.record_tags import RecordTags

    kept = RecordTags(pack)
    found = kept.all()
    if tag not in found:
        there = f"choose one of {', '.join(found)}" if found else f"tag some: packer view {printable(pack.path)}"
        raise UsageError("--tag", f"no record has the tag {printable(tag)!r}", there)
    with writing_beside([pack], out, "--export-marks") as file:
        file.write(kept.listing(tag))
    return len(found[tag]), plural(len(found[tag]), "tagged record")


def _check_together(export: str | None, export_marks: str | None) -> None:
    """Raise UsageError for an option that would have no effect."""
    source = click.get_current_context().get_parameter_source
    if export is not None:
        other, chosen = {"export_marks", "tag", "port", "token", "no_browser", "source"}, "--export"
    elif export_marks is not None:
        other, chosen = {"count", "seed", "port", "token", "no_browser", "source"}, "--export-marks"
    else:
        other, chosen = {"count", "seed", "tag"}, ""
    for name in sorted(other):
        if str(getattr(source(name), "name", "")) == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            if not chosen:
                raise UsageError(option, "needs --export", "add --export FILE.html, or leave it out")
            raise UsageError(option, f"has no effect with {chosen}", "leave one of them out")
