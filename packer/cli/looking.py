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

from packer.cli.output import LocalPath, ProgressBar, as_typed, echo, table_text
from packer.cli.storing import cache_options
from packer.cli.values import PackPath
from packer.errors import UsageError, plural, printable

if TYPE_CHECKING:
    from packer.format.pack import Pack
    from packer.stats import BoxStats, ClassCounts, InstanceClass, MaskStats, PackStats, PartStats, SizeStats, Spread
    from packer.stats.near import NearDuplicates
    from packer.stats.problems import Problems


SHOWN_CLASSES = 30
SHOWN_GROUPS = 10
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
    for line in lines(found):
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


def lines(found: PackStats) -> Iterator[str]:
    """Return the lines of the report."""
    yield f"{printable(found.path)}: {plural(found.records, 'record')}"
    for counts in found.classes:
        yield ""
        yield from _classes(counts)
    yield ""
    yield from table_text([HEAD, *_rows(found)], right=range(1, len(HEAD)))
    yield ""
    yield from _common(found.sizes)
    if found.boxes is not None:
        yield from _boxes(found.boxes)
    if found.keypoints is not None:
        values = ", ".join(f"{value:g} ({many:,})" for value, many in found.keypoints.visibility[:SHOWN_GROUPS])
        yield f"visibility {values} of keypoints; COCO writes 0 not labelled, 1 hidden, 2 visible"
    for one in found.values:
        missing = f"; {plural(one.without, 'image')} without" if one.without else ""
        quantiles = ", ".join(f"{name} {_number(number)}" for name, number in one.quantiles.items())
        yield f"{one.name:<10} {quantiles}{missing}"
    for channels in found.channels:
        images = f"{plural(channels.images, 'image')} of {plural(channels.channels, f'{channels.dtype} channel')}"
        yield f"pixels     {images}, {plural(channels.pixels, 'pixel')} of equal weight, scaled to 0..1:"
        yield f"           mean=({_numbers(channels.mean)}), std=({_numbers(channels.std)})"
    if found.channels and found.padded:
        yield "           includes the padding of --fit pad"
    for masks in found.masks:
        yield ""
        yield from _masks(masks)
        yield ""
    if found.instances:
        yield ""
        yield from _instances(found.instances)
    yield from map(_part, found.parts)
    yield from _duplicates(found)


def _instances(found: Sequence[InstanceClass]) -> Iterator[str]:
    """Return the lines of the table of masks of objects."""
    rows = [
        (str(one.id), printable(one.name), f"{one.masks:,}", *(f"{area:,.0f}" for area in one.areas[::2]))
        for one in found
    ]
    head = ("id", "class", "masks of objects", "pixels: p10", "p50", "p90")
    yield from table_text([head, *rows], right=(0, *range(2, len(head))))
    yield ""


MASK_HEAD = ("id", "class", "pixels", "% of pixels", "images", "% of images", "% of image: p10", "p50", "p90")


def _masks(found: MaskStats) -> Iterator[str]:
    """Return the lines of the table of classes in masks."""
    rows = [
        (
            str(one.id), printable(one.name), f"{one.pixels:,}", f"{100 * one.pixels / max(1, found.pixels):.2f}",
            f"{one.images:,}", f"{100 * one.images / max(1, found.masks):.1f}",
            *([f"{100 * share:.2f}" for share in one.shares[::2]] or [""] * 3),
        )
        for one in found.classes
    ]  # fmt: skip
    ignored = f", {100 * found.ignored / max(1, found.pixels):.2f} % of the pixels ignored" if found.ignored else ""
    yield f"{found.part}: of {plural(found.masks, 'image')}{ignored}"
    yield from table_text([MASK_HEAD, *rows], right=(0, *range(2, len(MASK_HEAD))))


def _part(found: PartStats) -> str:
    """Return the line of maps or texts."""
    unknown = f", {100 * found.unknown:.2f} % of the values unknown" if found.unknown else ""
    of = plural(found.count, found.kind) + f" ({found.read:,} read)" * (found.read < found.count) + unknown
    low, first, _, median, _, last, high = map(_number, found.quantiles or (0,) * 7)
    what = "characters, " * (found.kind == "text")
    return f"{found.part:<10} {of}: {what}lowest {low}, p10 {first}, p50 {median}, p90 {last}, highest {high}"


HEAD = ("", "count", "lowest", "median", "mean", "highest")


def _rows(found: PackStats) -> Iterator[tuple[str, ...]]:
    sizes = found.sizes
    yield _row("image width, px", sizes.width)
    yield _row("image height, px", sizes.height)
    yield _row("image width / height", sizes.aspect)
    yield _row("bytes per record", sizes.record_bytes)
    if (boxes := found.boxes) is not None:
        yield _row("boxes per image", boxes.per_image)
        if boxes.boxes:
            yield _row("box width, px", boxes.width)
            yield _row("box height, px", boxes.height)
            yield _row("box width / height", boxes.aspect)
            yield _row("box area / image area", boxes.area_share)
    if found.landmarks is not None:
        yield _row("landmarks per image", found.landmarks)
    if found.keypoints is not None:
        yield _row("keypoints per box", found.keypoints.per_box)
    yield from (_row(one.name, one.spread) for one in found.values)


def _row(name: str, spread: Spread) -> tuple[str, ...]:
    numbers = (spread.lowest, spread.median, spread.mean, spread.highest)
    return name, f"{spread.count:,}", *(_number(number) for number in numbers)


def _number(number: float) -> str:
    if number == int(number):
        return f"{int(number):,}"
    return f"{number:,.1f}" if abs(number) >= 100 else f"{number:.4g}"


def _classes(counts: ClassCounts) -> Iterator[str]:
    total = sum(counts.counts)
    order = sorted(range(len(counts.counts)), key=lambda i: (-counts.counts[i], i))
    rows = [
        (
            str(i),
            printable(counts.names[i]),
            f"{counts.counts[i]:,}",
            f"{counts.counts[i] / total:.1%}" if total else "",
        )
        for i in order[:SHOWN_CLASSES]
    ]
    yield from table_text([("id", "class", counts.of, "share"), *rows], right=(0, 2, 3))
    if len(order) > SHOWN_CLASSES:
        yield f"... and {len(order) - SHOWN_CLASSES} more (--json lists all)"
    parts = [plural(len(counts.names), "class")]
    if counts.imbalance is not None:
        parts.append(f"class imbalance {counts.imbalance:,.1f} : 1")
    if counts.empty:
        parts.append(f"{len(counts.empty)} without any: {', '.join(map(printable, counts.empty[:SHOWN_GROUPS]))}")
    if counts.unlabelled:
        one = "box" if counts.of == "boxes" else "image"
        parts.append(f"{plural(counts.unlabelled, one)} without class")
    yield "; ".join(parts)


def _common(sizes: SizeStats) -> Iterator[str]:
    common = ", ".join(f"{width}x{height} ({images:,})" for width, height, images in sizes.common)
    more = f" and {sizes.distinct - len(sizes.common):,} more" if sizes.distinct > len(sizes.common) else ""
    yield f"sizes      {common}{more}"


def _boxes(boxes: BoxStats) -> Iterator[str]:
    yield (
        f"boxes      {boxes.small:,} small (below 32x32 px), {boxes.medium:,} medium, {boxes.large:,} large "
        f"(96x96 and more), as COCO counts"
    )
    if boxes.images_without:
        yield f"           {plural(boxes.images_without, 'image')} without a box"
    if boxes.empty:
        yield f"           {plural(boxes.empty, 'box')} without area"
    if boxes.ignored:
        yield f"           {plural(boxes.ignored, 'ignored region')} among them"


def _numbers(values: tuple[float, ...]) -> str:
    """Return the items of a Python tuple; a single number has a trailing comma."""
    text = ", ".join(f"{value:.6f}" for value in values)
    return f"{text}," if len(values) == 1 else text


def _duplicates(found: PackStats) -> Iterator[str]:
    same = found.duplicates
    if same.groups:
        repeated = plural(same.groups, "file is", "files are")
        yield f"duplicates {plural(same.surplus, 'record')} too many: {repeated} packed more than once"
        for group in same.listed[:SHOWN_GROUPS]:
            yield f"           {_places(group)}"
        if same.groups > SHOWN_GROUPS:
            yield f"           ... and {same.groups - SHOWN_GROUPS:,} more (--json lists {len(same.listed):,})"
    else:
        yield "duplicates none: all records are from files with different bytes"
    if (both := found.leaks) is None:
        return
    if found.other_ids:
        ids = [f"{printable(name)} {here} (there {there})" for name, (here, there) in found.other_ids.items()]
        more = f" and {len(ids) - SHOWN_GROUPS:,} more" if len(ids) > SHOWN_GROUPS else ""
        yield f"class ids  differ from those of {printable(both.path)}: {', '.join(ids[:SHOWN_GROUPS])}{more}"
    yield f"in both    {plural(both.records, 'record is', 'records are')} also in {printable(both.path)}"
    for ours, theirs in both.listed[:SHOWN_GROUPS]:
        yield f"           {_places(ours)} = {_places(theirs)}"
    if len(both.listed) > SHOWN_GROUPS:
        yield f"           ... and {len(both.listed) - SHOWN_GROUPS:,} more (--json lists {len(both.listed):,})"


def _places(group: tuple[Any, ...]) -> str:
    names = [f"{place.key} ({printable(place.path)})" for place in group[:4]]
    return ", ".join(names) + (f" and {len(group) - 4} more" if len(group) > 4 else "")


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
