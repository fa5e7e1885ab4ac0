"""Writes the files of this repository that programs make.

    scripts/docs.py                        list them
    scripts/docs.py cli llms ...           write these; with --check only say whether they are up to date
    scripts/docs.py view [FOLDER [OUT]]    docs/images/view.png: `packer view` of a folder or drawn images in a browser
    scripts/docs.py release TAG            let the pages that people read elsewhere fit a release; not to be committed
    scripts/docs.py pins                   behind each pin of the constraints, the versions of Python that it wants

Those that are made from other files here:

    cli          docs/cli.md, from the help of the commands
    llms         docs/llms.txt, a list of all pages for language models (llmstxt.org), from the navigation in
                 mkdocs.yml; each page is linked as Markdown, with its first sentence
    reliability  the runs in the tables of docs/reliability.md, from docs/evidence, by scripts/torture.py; a row
                 has a line for its last run, and one for its largest if that is another; slices of a run are one
    peers        the figures in docs/peers, from docs/benchmarks.md, and those of README.md from docs/peers/trainers.md
    picture      that of README.md, docs/images/packer.svg: a folder, the pack of it, and images per second in training;
                 folder and pack are real, they are drawn and built, the figures are those of docs/benchmarks.md
"""

from __future__ import annotations

import base64
import io
import json
import posixpath
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torture import BLOCK, EVIDENCE, ROOT, ROWS, Row

sys.path.insert(0, str(ROOT))  # the pages are of the packer beside them, not of one that is installed
DOCS = ROOT / "docs"
BENCHMARKS, TRAINERS = DOCS / "benchmarks.md", DOCS / "peers" / "trainers.md"


# -- docs/cli.md

WIDTH = 78
HEAD = """# Command line

This page is generated from the help of the commands: `python scripts/docs.py cli`.

| exit code | meaning |
|---|---|
| 0 | good |
| 1 | bad data: more bad inputs than `--max-bad` allows, or lost records; of `diff`: the packs differ |
| 2 | usage: options or paths that do not go together; nothing was done |
| 3 | input or output: disk full, no permission, a worker process died |
| 4 | a damaged pack |
| 70 | a bug in packer; please report it with the output of `--debug` |
| 130 | interrupted (Ctrl-C); 143 by SIGTERM |

An error is one line: file, problem, next step. `packer --debug COMMAND ...` shows its traceback.
"""


def cli() -> dict[Path, str]:
    """Return the page of all commands."""
    from packer.cli.group import cli as group

    commands = {"packer": group, **{f"packer {name}": command for name, command in sorted(group.commands.items())}}
    return {DOCS / "cli.md": "\n".join([HEAD, *(section(command, name) for name, command in commands.items())])}


def section(command: Any, name: str) -> str:
    """Return the help of a command."""
    import click

    from packer.cli.values import HELP_ALL

    context = click.Context(
        command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH, help_option_names=["-h", "--help"]
    )
    context.meta[HELP_ALL] = True
    return f"## {name}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"


# -- docs/llms.txt


def llms() -> dict[Path, str]:
    """Return the list of all pages."""
    import yaml

    class Settings(yaml.SafeLoader):
        """YAML as mkdocs reads it; tags of other programs are texts."""

    Settings.add_multi_constructor("", lambda loader, suffix, node: suffix)
    settings = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Settings)
    parts = [f"# {settings['site_name']}\n", f"> {settings['site_description']}\n"]
    for part in settings["nav"]:
        for title, entries in part.items():
            parts += [f"## {title}\n", *(line_of(*item) for entry in entries for item in entry.items()), ""]
    return {DOCS / "llms.txt": "\n".join(parts).rstrip() + "\n"}


def line_of(title: str, path: str) -> str:
    """Return the line of a page."""
    source = ROOT / ("CHANGELOG.md" if path == "changelog.md" else f"docs/{path}")
    sentence = first_sentence(source.read_text("utf-8"))
    return f"- [{title}]({path})" + (f": {sentence}" if sentence else "")


def first_sentence(page: str) -> str:
    """Return the first sentence of the first paragraph of a page as plain text."""
    paragraphs = [part.strip() for part in re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL).split("\n\n")]
    texts = [part for part in paragraphs if part and not part.startswith(("#", "```", "|", "- ", "!", "--8<--"))]
    text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(texts[0].split())) if texts else ""
    return re.split(r"(?<=\.)\s", text)[0].replace("**", "")


# -- docs/reliability.md

FACTS, RUN = ("row", "what", "must hold"), ("run", "faults", "seeds", "commit")
Run = dict[str, Any]


def reliability() -> dict[Path, str]:
    """Return the page with the tables of all groups between their markers."""
    page, found = DOCS / "reliability.md", runs()
    text = page.read_text("utf-8")
    return {page: BLOCK.sub(lambda match: f"{match[1]}\n{evidence_table(match[2], found)}\n\n{match[4]}", text)}


def runs() -> list[Run]:
    """Return all runs that were kept, oldest first in each file."""
    files = sorted(EVIDENCE.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def joined(found: Iterable[Run]) -> list[Run]:
    """Return runs of one commit whose seeds follow one another as one: long ones are kept in slices."""
    whole: list[Run] = []
    for run in found:
        last = whole[-1] if whole else {}
        same = all(run.get(name) == last.get(name) for name in ("row", "commit", "of"))
        if same and run.get("first_seed", -1) == last.get("first_seed", 0) + last.get("runs", 0) and "outcomes" in run:
            outcomes: Counter[str] = Counter(last["outcomes"]) + Counter(run["outcomes"])
            sums = {name: last[name] + run[name] for name in ("runs", "faults", "seconds")}
            whole[-1] = {**run, **sums, "first_seed": last["first_seed"], "outcomes": dict(outcomes.most_common())}
        else:
            whole.append(run)
    return whole


def shown(row: Row, found: Iterable[Run]) -> list[Run]:
    """Return the last run of a row, and the largest one if that is another."""
    mine = joined(run for run in found if run["row"] == row.name)
    if not mine:
        return []
    largest = max(mine, key=lambda run: run["runs"])
    return [mine[-1]] if largest["runs"] == mine[-1]["runs"] else [mine[-1], largest]


def reached(run: Run) -> str:
    """Return what happened in a run, and how long it took."""
    if "reached" in run:
        text = run["reached"]
    else:
        of = f" of {run['of']:,}" if run["of"] else ""
        counts = ", ".join(f"{count:,} {name}" for name, count in run["outcomes"].items())
        text = counts if "executions" in run["outcomes"] else f"{run['runs']:,}{of}: {counts}"
    return f"{text}; {run['seconds']:,.0f} s" if run.get("seconds") else text


def seeds(run: Run) -> str:
    """Return the seeds of a run; of fuzzing there is one."""
    if "first_seed" not in run:
        return "not kept"
    first = run["first_seed"]
    return str(first) if "executions" in run["outcomes"] else f"{first:,} to {first + run['runs'] - 1:,}"


def evidence_table(group: str, found: list[Run]) -> str:
    """Return the table of a group of rows."""
    rows = [row for row in ROWS.values() if row.group == group]
    head = (*FACTS[: 1 + len(rows[0].facts)], *RUN)
    lines = [head, ("---",) * len(head)]
    for row in rows:
        first = (f"`{row.name}`", *row.facts)
        for run in shown(row, found):
            before = "before " if run.get("recorded", "").endswith("commit") else ""
            commit = f"{before}`{run['commit'][:7]}`, {run['date']}"
            lines.append((*first, reached(run), str(run["faults"]), seeds(run), commit))
            first = ("",) * len(first)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# -- docs/peers

PEERS = {
    "torchvision": ("ImageFolder of torchvision", "torchvision"),
    "ffcv": ("FFCV", "ffcv"),
    "webdataset": ("webdataset", "webdataset"),
    "streaming": ("Streaming", "mosaicml-streaming"),
    "litdata": ("LitData", "litdata"),
    "dali": ("DALI", "nvidia-dali-cuda120"),
}
"""By name in scripts/benchmarks/peers.py: what a reader calls it, and its distribution."""
HOW = "[How it is measured](../benchmarks.md#other-loaders-benchpy-peers), and what each loader does"


def peers() -> dict[Path, str]:
    """Return the pages with the figures of the benchmark between their markers."""
    page = BENCHMARKS.read_text("utf-8")
    pattern = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    paths = [ROOT / "README.md", DOCS / "index.md", *sorted((DOCS / "peers").glob("*.md"))]

    def table(match: re.Match[str]) -> str:
        name = match[2]
        text = trainer_table(TRAINERS.read_text("utf-8")) if name == "trainers" else peer_table(page, name)
        return f"{match[1]}{text}\n\n{match[3]}"

    return {path: pattern.sub(table, path.read_text("utf-8")) for path in paths}


def trainer_table(page: str) -> str:
    """Return the rates of the table of trainers, without its other columns."""
    rows = [line.split("|")[1:5] for line in block_of(page, "bench_trainers").splitlines() if line.startswith("|")]
    return "\n".join(f"|{'|'.join(cells)}|" for cells in rows)


def peer_table(page: str, peer: str) -> str:
    """Return the figures of packer and of one other loader, of the tables that the benchmark has put into the page."""
    block, rows, version = block_of(page, "bench_peers"), [], ""
    for table in re.findall(r"(?:^\|.*\n)+", block, re.MULTILINE):
        cells = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table.splitlines()]
        by_name = {row[0].strip("*"): row for row in cells}
        if peer in by_name:
            _, versions, _, ratio, rate = by_name[peer]
            version = re.findall(rf"{PEERS[peer][1]} (\S+)", versions)[0]
            median, spread = ratio.replace("*", "").split(" ", 1)
            ratio = f"**{median}** {spread}" if float(median) < 1 else f"{median} {spread}"
            rows.append(f"| {cells[0][0]} | {by_name['packer'][4]} | {rate} | {ratio} |")
    head = f"| images/s on two cores | packer | {PEERS[peer][0]} {version} | packer against it |\n|---|---|---|---|"
    facts = re.findall(r"^(\d{4}-\d\d-\d\d: [^;]+);", block, re.MULTILINE)[-1]
    return "\n".join([head, *rows, "", f"{facts}. {HOW}. Bold: packer is slower."])


def block_of(page: str, name: str) -> str:
    """Return what stands between the markers of a benchmark."""
    return page.partition(f"<!-- {name} -->")[2].partition("<!-- end -->")[0]


# -- the picture of README.md

PICTURE = DOCS / "images" / "packer.svg"
COUNT, SIDE = 1500, 64
MEASURED = "JPEG, against an ImageFolder-like loop"

# a card of its own color, so that it is readable on a white and on a black page
CARD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 330" fill="#1b2733"
 font-family="ui-sans-serif, system-ui, sans-serif">
<title>A folder, the pack of it, and images per second in training</title>
<rect x="1" y="1" width="1198" height="328" rx="14" fill="#f7f9fb" stroke="#9aa8b5"/>
<path d="M378 165h26m-8-8 8 8-8 8M778 165h26m-8-8 8 8-8 8" fill="none" stroke="#5b6b7a" stroke-width="3"/>
"""
GRAY, TEAL = "#8a97a5", "#00796b"
MONO, BOLD, DARK = 'font-family="ui-monospace, monospace"', 'font-weight="600"', 'fill="#44525f"'


def picture() -> dict[Path, str]:
    """Return the picture."""
    from packer import BuildOptions, build_pack
    from packer.sources.synthetic import draw_sample

    with tempfile.TemporaryDirectory() as home:
        source, pack = Path(home, "shapes"), Path(home, "shapes.lmdb")
        draw_sample(str(source), count=COUNT, size=SIDE)
        build_pack(BuildOptions(str(source), str(pack), resize=f"{SIDE}x{SIDE}"))
        panels = folder_panel(source) + pack_panel(pack)
    return {PICTURE: CARD + panels + figure_panel(BENCHMARKS.read_text("utf-8")) + "</svg>\n"}


def words(x: float, y: float, text: str, size: int = 15, more: str = "") -> str:
    """Return a line of text."""
    return f'<text x="{x}" y="{y}" font-size="{size}" {more}>{text}</text>\n'


def folder_panel(source: Path) -> str:
    """Draw the classes of a folder, each with its first images."""
    parts = [words(30, 42, "A folder", 20, BOLD)]
    parts.append(words(30, 66, f"{COUNT:,} files, opened and decoded in every epoch", 14, DARK))
    for row, name in enumerate(sorted(path.name for path in source.iterdir())):
        y = 88 + 56 * row
        parts.append(words(30, y + 30, f"{name}/", 15, MONO))
        for column, path in enumerate(sorted((source / name).iterdir())[:4]):
            image = base64.b64encode(path.read_bytes()).decode()
            where = f'x="{128 + 58 * column}" y="{y}" width="50" height="50"'
            parts.append(f'<image {where} href="data:image/jpeg;base64,{image}"/>\n')
    return "".join(parts)


def pack_panel(pack: Path) -> str:
    """Draw the files of a pack with their sizes."""
    from packer.errors import size_text

    parts = [words(430, 42, "A pack", 20, BOLD)]
    parts.append(words(430, 66, "decoded and resized once, checked, indexed", 14, DARK))
    parts.append(words(430, 112, f"packer build shapes --resize {SIDE}x{SIDE}", 14, MONO))
    for row, path in enumerate(sorted(pack.rglob("*.*"), key=lambda path: -path.stat().st_size)):
        y, name = 136 + 50 * row, path.relative_to(pack).as_posix()
        parts.append(f'<rect x="430" y="{y}" width="320" height="38" rx="6" fill="#d9efec" stroke="{TEAL}"/>\n')
        parts.append(words(444, y + 25, name, 15, MONO))
        parts.append(words(736, y + 25, size_text(path.stat().st_size), 14, 'text-anchor="end"'))
    return "".join(parts)


def figures(page: str) -> tuple[str, str, str, str]:
    """Return how many times, and the images/s of the pack and of the folder, and where that was measured."""
    block = block_of(page, "bench_loader")
    _, ratio, packed, plain = re.findall(rf"^\| {MEASURED} \|(.*)\|(.*)\|(.*)\|(.*)\|$", block, re.MULTILINE)[0]
    machine = re.findall(r"^\d{4}-\d\d-\d\d: ([^,]+, \d+ cores)", block, re.MULTILINE)[-1]
    return ratio.strip(), packed.strip(), plain.strip(), machine


def figure_panel(page: str) -> str:
    """Draw the images per second from a folder and from a pack, as bars from 0."""
    ratio, packed, plain, machine = figures(page)
    most = float(packed.replace(",", ""))
    parts = [words(830, 42, "Training", 20, BOLD)]
    parts.append(words(830, 66, "images/s, photos of 256 px (JPEG), random crop", 14, DARK))
    bars = (("folder, two workers", plain, GRAY), ("pack, two threads", packed, TEAL))
    for row, (name, rate, color) in enumerate(bars):
        y, width = 100 + 72 * row, 260 * float(rate.replace(",", "")) / most
        parts.append(words(830, y, name))
        parts.append(f'<rect x="830" y="{y + 8}" width="{width:.0f}" height="30" fill="{color}"/>\n')
        parts.append(words(838 + width, y + 29, rate, 16, BOLD))
    parts.append(words(830, 262, f"{ratio} times", 18, f'{BOLD} fill="{TEAL}"'))
    parts.append(words(830, 286, f"median (lowest to highest), {machine}", 13, DARK))
    return "".join(parts)


# -- what is not written from other files here


def view(folder: str = "", out: str = str(DOCS / "images" / "view.png")) -> None:
    """Make a picture of the page of `packer view` in a real browser."""
    sys.path.insert(1, str(ROOT / "tests" / "view"))
    import looking
    from PIL import Image

    from packer import BuildOptions, build_pack
    from packer.sources.synthetic import draw_sample

    if looking.missing():
        sys.exit(looking.missing())
    with tempfile.TemporaryDirectory() as home:
        source = Path(folder or f"{home}/shapes")
        if not folder:
            draw_sample(source, layout="voc", count=400, size=200)
        pack = Path(home, f"{source.name}.lmdb")
        build_pack(BuildOptions(str(source), str(pack), encode="jpeg", resize="320", boxes="drop", max_bad="5%"))
        with looking.served(pack) as served, looking.browser(1280, 680) as page:
            page.goto(served.url)
            page.wait_for_function(looking.FILLED)
            Path(out).parent.mkdir(parents=True, exist_ok=True)
            shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            shot.quantize(256).save(out, optimize=True)  # a third of the size
    print(out)


LINK = re.compile(r"(\]\(|^\[[^]\n]+\]: )(?![a-z]+://|#)([^)\s]+)", re.MULTILINE)
CLONED = re.compile(r"""pip install (--no-deps )?(?:\.|"\.(\[\w+\])")(?: +#.*$|(?=\n|`))""", re.MULTILINE)


def release(tag: str) -> None:
    """Rewrite the pages that people read elsewhere."""
    for page in ("README.md", "docs/index.md", "docs/install.md", "docs/llms.txt"):
        path = ROOT / page
        path.write_text(released(page, path.read_text("utf-8"), tag), "utf-8")


def released(page: str, text: str, tag: str) -> str:
    """Return a page, named by its path in the repository, as it is in the release of a tag.

    In the repository links are relative and packer is installed from a clone. On a package index, links lead to the
    files of that tag, at the address that pyproject.toml names, and packer is installed by name.
    """

    def absolute(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        return f"{link[1]}{address()}/{'raw' if path.endswith('.svg') else 'blob'}/{tag}/{path}"

    def by_name(command: re.Match[str]) -> str:
        name = f'"dataset-packer{command[2]}"' if command[2] else "dataset-packer"
        return f"pip install {command[1] or ''}{name}"

    text = CLONED.sub(by_name, text).replace(" packer is not on a package index yet; in a clone of it:", "")
    return LINK.sub(absolute, text) if page in ("README.md", "docs/llms.txt") else text


def address() -> str:
    """Return the address of the repository, which pyproject.toml holds for all."""
    (found,) = re.findall(r'^Homepage = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    return str(found)


def pins() -> None:
    """Rewrite the constraints. pip asks its index for the metadata of all pins; nothing is installed."""
    for file in sorted(Path(__file__).parent.glob("constraints*.txt")):
        lines = file.read_text().splitlines()
        named = [line.partition("#")[0].strip() for line in lines]
        wanted = wanted_pythons([pin.partition(";")[0] for pin in named if pin])
        new = [f"{pin}  # {wanted[key(pin)]}" if pin else line for pin, line in zip(named, lines, strict=True)]
        file.write_text("\n".join(new) + "\n")


def key(pin: str) -> tuple[str, str]:
    """Return the normalized name and the version of a pin."""
    name, _, version = pin.partition(";")[0].partition("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def wanted_pythons(named: list[str]) -> dict[tuple[str, str], str]:
    """Return the Requires-Python of each pin, by its `key`; "any" where it has none."""
    options = ("--dry-run", "--quiet", "--report=-", "--no-deps", "--ignore-requires-python", "--ignore-installed")
    found = {}
    while named:  # of a library with two pins, one at a time
        once = list({key(pin)[0]: pin for pin in named}.values())
        command = [sys.executable, "-m", "pip", "install", *options, *once]
        report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        for item in report["install"]:
            pin = f"{item['metadata']['name']}=={item['metadata']['version'].partition('+')[0]}"
            found[key(pin)] = item["metadata"].get("requires_python", "any").replace(" ", "")
        named = [pin for pin in named if pin not in once]
    return found


WRITTEN: dict[str, Callable[[], dict[Path, str]]] = {
    each.__name__: each for each in (cli, llms, reliability, peers, picture)
}
"""What makes files from others here: each returns the texts of its files."""
OTHER_NAMES: dict[str, Callable[..., None]] = {each.__name__: each for each in (view, release, pins)}


def main(arguments: list[str]) -> int:
    """Write what is asked for, or check it; return 1 if a file is not up to date."""
    names = [name for name in arguments if name != "--check"]
    if names[:1] and names[0] in OTHER_NAMES:
        OTHER_NAMES[names[0]](*names[1:])
        return 0
    if not names or set(names) - set(WRITTEN):
        print(__doc__)
        return 2 if names and "--help" not in names else 0
    old = []
    for name in names:
        for path, text in WRITTEN[name]().items():
            if "--check" not in arguments:
                path.write_text(text, "utf-8")
            elif not path.is_file() or path.read_text("utf-8") != text:
                old.append(f"{path.relative_to(ROOT)} is not up to date; run python scripts/docs.py {name}")
    print(*old, sep="\n", end="\n" if old else "", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
