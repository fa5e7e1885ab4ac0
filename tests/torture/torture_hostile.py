"""Packs that somebody made to do harm: good ones with other columns and manifests and right digests; every command."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from crc32c import crc32c

from packer.format.index import SCHEMA
from packer.format.manifest import digest_of

Files = dict[str, bytes]
Dice = random.Random
MOST_S = 10.0
"""Processor time of a case."""
MOST_BYTES = 8 << 30
"""Memory that a case may map."""
NUMBERS = (
    0, 1, -1, 2, 127, -128, 255, 2**15, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, -(2**63), 2**64,
    10**30, 10**400,
)  # fmt: skip
FLOATS = (0.0, -0.0, -1.0, 0.5, 1e-45, 3e38, -3e38, 1e300, math.inf, -math.inf, math.nan)
TEXTS = (
    "", "a", "..", "../x", "/etc/passwd", "a\0b", "\x1b[31m", "\ud800", "\udcff", "x" * 300, "9" * 5000, "a/" * 2000,
    "lenient", "raw", "yolo", "label", "boxes", "\n", "{}", "http://example.org/x", "~", "%s", "\u202e",
    "shard-00000.lmdb",
)  # fmt: skip
JSON_TEXTS = (
    "", "{", "[]", "null", "1", '"a"', '{"a": NaN}', '{"a": 1e999}', "[" * 5000, '{"a": ' + "[" * 90 + "]" * 90 + "}",
    '{"a": ' + "[" * 9000 + "]" * 9000 + "}", '{"a": ' + "9" * 5000 + "}", '{"a": ' + "9" * 4000 + "}",
    '{"a": "\\ud800"}',
    '{"difficult": 1}', '{"difficult": [1, "a", null]}', '{"iscrowd": [1e30]}', '{"area": [[]]}', '{"": {}}',
    '{"image_id": [1]}', '{"image_id": 1e300}', '{"text": 5}', '{"rle": ["x"]}', '{"voc_bndbox": ["a"]}',
    '{"category_id": [-1]}', '{"area": ["x"]}', '{"a\\u0000b": 1}',
)  # fmt: skip


NOT_WRITTEN = (pa.ArrowException, OSError, OverflowError, ValueError, TypeError, SystemError)
"""What Arrow says of a column that it cannot read or write: it stays as it was."""


def mutate(files: Files, dice: Dice) -> Files:
    """Return the files of a pack with changes in its columns, its manifest or its lists, and right digests."""
    made = dict(files)
    content = json.loads(made["pack.json"])
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        kind = dice.choices(("column", "bytes", "manifest", "list"), (6, 2, 4, 1))[0]
        shard = dice.choice(content["shards"]) if _has_shards(content) else None
        if kind == "column" and shard is not None:
            name = shard["index"]["name"]
            with contextlib.suppress(*NOT_WRITTEN):
                made[name] = _column(made[name], dice)
        elif kind == "bytes" and shard is not None:
            name = shard["index"]["name"]
            data = bytearray(made[name])
            for _ in range(dice.choice((1, 1, 4))):
                data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
            made[name] = bytes(data)
        elif kind == "list":
            _listed(made, content, dice)
        else:
            _vouch(made, content)
            _json(content, dice)
            made["pack.json"] = _text(content)
            return made
    _vouch(made, content)
    made["pack.json"] = _text(content)
    return made


def _has_shards(content: dict[str, Any]) -> bool:
    return bool(content.get("shards"))


def _text(content: dict[str, Any]) -> bytes:
    with contextlib.suppress(ValueError):
        content["digest"] = digest_of(content)
    try:
        return (json.dumps(content, indent=1) + "\n").encode("ascii")
    except ValueError:  # 10**400 in a text of digits
        return b"{}"


def _vouch(made: Files, content: dict[str, Any]) -> None:
    """Let the manifest say that all files are as they are now."""
    for shard in content["shards"]:
        for kind in ("container", "index"):
            file = shard[kind]
            data = made.get(file["name"], b"")
            if kind == "index":
                file["crc32c"] = crc32c(data)
                file.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    for file in content.get("lists", {}).values():
        data = made.get(file["name"], b"")
        file.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _column(data: bytes, dice: Dice) -> bytes:
    batch = pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)
    batch.validate(full=True)  # else Arrow may read beyond columns that an earlier change has broken
    k = dice.randrange(batch.num_columns)
    field = batch.schema.field(k)
    arrays = list(batch.columns)
    if pa.types.is_dictionary(field.type):
        codes = arrays[k].indices.to_pylist()
        codes[dice.randrange(len(codes))] = dice.choice((-1, 0, 1, 2, 6, 9, 100))
        arrays[k] = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), arrays[k].dictionary, safe=False)
    else:
        rows = arrays[k].to_pylist()
        text = JSON_TEXTS if field.name in ("extras", "box_fields") else TEXTS
        for _ in range(dice.choice((1, 1, len(rows)))):
            row = dice.randrange(len(rows))
            rows[row] = _value(rows[row], field.type, dice, text)
        arrays[k] = pa.array(rows, field.type)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=batch.schema))
    return bytes(sink.getvalue())


def _value(old: Any, kind: Any, dice: Dice, texts: tuple[str, ...]) -> Any:
    """Return another value of an Arrow type, near the old one or far from it."""
    if pa.types.is_floating(kind):
        return dice.choice((*FLOATS, (old or 0.0) + 1, -(old or 0.0)))
    if pa.types.is_integer(kind):
        return dice.choice((*NUMBERS[:-2], (old or 0) + 1, (old or 0) - 1))
    if pa.types.is_string(kind):
        return dice.choice((None, *texts))
    if pa.types.is_fixed_size_binary(kind):
        return dice.randbytes(kind.byte_width)
    if pa.types.is_binary(kind):
        return dice.choice((*(text.encode("utf-8", "surrogatepass") for text in texts), dice.randbytes(5)))
    items = list(old or [])
    if pa.types.is_fixed_size_list(kind) and not items:
        items = [None] * kind.list_size
    what = dice.choice(("item", "item", "drop", "add", "null", "empty", "many"))
    if items and (what == "item" or pa.types.is_fixed_size_list(kind)):
        place = dice.randrange(len(items))
        items[place] = _value(items[place], kind.value_type, dice, texts)
    elif what == "drop" and items:
        del items[dice.randrange(len(items))]
    elif what == "null":
        return None
    elif what == "empty":
        return []
    else:
        items += [_value(None, kind.value_type, dice, texts)] * (300 if what == "many" else 1)
    return items


def _listed(made: Files, content: dict[str, Any], dice: Dice) -> None:
    name = dice.choice(("rejected", "skipped", "changed", "include", "exclude"))
    head = {"rejected": b"path\treason\tproblem\n", "skipped": b"path\treason\n"}.get(name, b"")
    head = b"path\tchange\tlabel\tbox\tbefore\tafter\n" if name == "changed" else head
    cells = [b"a", b"", b"\\x", b"\\ud800", b"\xff", b"..", b"x" * 5000, b"\x1b[31m", b"\\n", b"*" * 50]
    lines = [b"\t".join(dice.choice(cells) for _ in range(dice.randrange(8))) for _ in range(dice.randrange(5))]
    ends = {"include": "include.txt", "exclude": "exclude.txt"}
    file = ends.get(name, f"{name}.tsv")
    made[file] = dice.choice((head, head, b"", b"\0")) + b"\n".join(lines) + dice.choice((b"\n", b""))
    content.setdefault("lists", {})[name] = {"name": file, "bytes": 0, "sha256": ""}


def _json(content: Any, dice: Dice) -> None:
    """Change a value somewhere in the manifest."""
    inside: Any = content
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not keys:
            break
        key = dice.choice(keys)
        if isinstance(inside[key], dict | list) and inside[key] and dice.random() < 0.8:
            inside = inside[key]
            continue
        if key == "digest":
            return
        inside[key] = _another(inside[key], dice) if dice.random() < 0.5 else dice.choice(JSON_VALUES)
        return


def _another(old: Any, dice: Dice) -> Any:
    if isinstance(old, bool) or old is None:
        return dice.choice((True, False, None, 1))
    if isinstance(old, int):
        return dice.choice((*NUMBERS, old + 1, old - 1))
    if isinstance(old, str):
        return dice.choice((*TEXTS, old + "x", old[:-1]))
    if isinstance(old, list):
        return dice.choice((old[:-1], old + old[:1], old[::-1], old * 1000 if len(old) < 9 else []))
    return dice.choice(({}, {**old, "x": 1}, {"x": old}))


DEEP: Any = []
for _ in range(50):
    DEEP = [DEEP]
JSON_VALUES = (None, True, 0, -1, 2**63, 10**400, 0.5, 1e300, "", "a", "\ud800", [], {}, [[]], [None], {"a": {}}, DEEP)

# -- the commands

QUERIES = (
    "api/pack", "api/rejected", "api/tiles", "api/tiles?sort=size", "api/record?record=0", "api/record?record=1",
    "api/original?record=0", "api/charts", "api/pixels", "api/problems", "api/marks", "marks.txt", "index.html", "",
    "api/place?record=0", "api/tiles?sort=area&side=64", "api/problem?kind=equal",
)  # fmt: skip


def _view(case: Path) -> None:
    from werkzeug.test import Client

    from packer.format.pack import open_pack
    from packer.view.app import App

    client = Client(App(open_pack(case / "pack"), "0123456789abcdef"))
    for query in QUERIES:
        answer = client.get(f"/0123456789abcdef/{query}", headers={"Host": "127.0.0.1:1"})
        assert answer.status_code < 500, (query, answer.text[:500])


def _dataset(case: Path) -> None:
    from packer import PackedDataset, collate

    data = PackedDataset(case / "pack")
    assert isinstance(data.keys, list)
    for i in range(len(data)):
        data[i]
    collate(data.__getitems__(list(range(len(data)))))


def _loader(case: Path) -> None:
    from packer import PackedLoader, RandomResizedCrop

    for _ in PackedLoader(case / "pack", 2, crop=RandomResizedCrop(8), flip=True, threads=1, seed=1):
        pass


def _opened(case: Path) -> None:
    from packer import open_pack

    open_pack(case / "pack").column("path")


def _pack(case: Path) -> None:
    from packer import open_pack

    pack = open_pack(case / "pack")
    for name in SCHEMA.names:
        pack.column(name)
    for i in range(len(pack)):
        pack.sample(i)


def _at_a_url(case: Path) -> None:
    from packer import open_pack

    pack = open_pack(f"file://{case / 'pack'}")
    for i in range(len(pack)):
        pack.sample(i)


def _line(*words: str) -> Callable[[Path], int]:
    def command(case: Path) -> int:
        from packer.cli.main import run

        places = {"pack": case / "pack", "good": case / "good", "out": case / "out", "new": case / "new"}
        return run([word.format(**places) for word in words])

    return command


COMMANDS: dict[str, Callable[[Path], Any]] = {
    "info": _line("info", "{pack}"),
    "info-json": _line("info", "{pack}", "--json"),
    "verify": _line("verify", "{pack}"),
    "verify-deep": _line("verify", "{pack}", "--deep", "--json"),
    "hash": _line("hash", "{pack}"),
    "extract": _line("extract", "{pack}", "{out}"),
    "extract-voc": _line("extract", "{pack}", "{out}", "--layout", "voc"),
    "extract-yolo": _line("extract", "{pack}", "{out}", "--layout", "yolo"),
    "extract-coco": _line("extract", "{pack}", "{out}", "--layout", "coco"),
    "extract-list": _line("extract", "{pack}", "{out}", "--layout", "list"),
    "convert-tar": _line("convert", "{pack}", "{out}.tar", "--workers", "1"),
    "convert-hdf5": _line("convert", "{pack}", "{out}.hdf5", "--workers", "1"),
    "convert-parquet": _line("convert", "{pack}", "{out}.parquet", "--workers", "1"),
    "convert-zarr": _line("convert", "{pack}", "{out}.zarr", "--workers", "1"),
    "convert-tfrecord": _line("convert", "{pack}", "{out}.tfrecord", "--workers", "1"),
    "convert-resize": _line("convert", "{pack}", "{out}.n5", "--resize", "8", "--encode", "png", "--workers", "1"),
    "merge": _line("merge", "{pack}", "{good}", "-o", "{out}"),
    "merge-drop": _line("merge", "{good}", "{pack}", "-o", "{out}", "--duplicates", "drop"),
    "split": _line("split", "{pack}", "--parts", "a=0.5,b=0.5", "--stratify", "-o", "{new}"),
    "split-group": _line("split", "{pack}", "--parts", "a=0.5,b=0.5", "--group", "text", "--lists", "-o", "{new}"),
    "diff": _line("diff", "{pack}", "{good}"),
    "diff-json": _line("diff", "{good}", "{pack}", "--json"),
    "stats": _line("stats", "{pack}"),
    "stats-problems": _line("stats", "{pack}", "--problems"),
    "stats-json": _line("stats", "{pack}", "--json"),
    "stats-against": _line("stats", "{pack}", "--against", "{good}"),
    "view-export": _line("view", "{pack}", "--export", "{out}.html"),
    "view": _view,
    "index": _line("index", "{pack}"),
    "index-remove": _line("index", "{pack}", "--remove"),
    "repair": _line("repair", "{pack}", "-o", "{out}"),
    "push": _line("push", "{pack}", "file://{out}"),
    "pull": _line("pull", "file://{pack}", "{out}"),
    "clean": _line("clean", "file://{pack}"),
    "pack-at-a-url": _at_a_url,
    "dataset": _dataset,
    "loader": _loader,
    "pack": _pack,
}


class Pen:
    """A folder for the cases of one process, and a watch over what is written elsewhere."""

    def __init__(self, home: Path) -> None:
        self.home = home / str(os.getpid())
        self.home.mkdir()
        self.outside: list[str] = []
        self.watching = False
        self._written: dict[bytes, tuple[Path, int]] = {}
        self._cleared = 0
        sys.addaudithook(self._hook)

    def fill(self, folder: Path, files: Files, base: Files) -> None:
        """Write the files of a pack; those that are as in its base are links to one copy, which nobody may change."""
        folder.mkdir(parents=True)
        for name, data in files.items():
            if base.get(name) is not data:
                (folder / name).write_bytes(data)
                continue
            copy, changed = self._written.get(data, (self.home / f"{len(self._written)}", 0))
            if not changed:
                copy.write_bytes(data)
                self._written[data] = copy, copy.stat().st_mtime_ns
            assert self._written[data][1] == copy.stat().st_mtime_ns, f"an earlier case has written to {name}"
            os.link(copy, folder / name)

    def clear(self, folder: Path) -> None:
        """Remove a folder, in which a thread of the command that has failed may still write: under another name."""
        self._cleared += 1
        gone = self.home / f"gone-{self._cleared}"
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Note in `outside` what is written elsewhere meanwhile."""
        self.watching, self.outside = True, []
        try:
            yield
        finally:
            self.watching = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            paths = [path] if writes or (isinstance(mode, str) and set(mode) & set("wax+")) else []
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "os.chmod"):
            paths = [arguments[0]] if len(arguments) < 2 or arguments[-1] in (-1, None) or event != "os.remove" else []
        elif event in ("os.rename", "os.link", "os.symlink", "shutil.move"):
            paths = list(arguments[:2]) if event != "os.symlink" else [arguments[1]]
        else:
            return
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike):
                full = os.path.realpath(os.path.abspath(os.fsdecode(path)))
                if os.path.isabs(os.fsdecode(path)) and not full.startswith((str(self.home), "/dev/null", "/proc/")):
                    self.outside.append(f"{event} {full}")


_pens: dict[int, Pen] = {}


def _inline(_self: Any, work: Any, jobs: Any, tick: Any = None) -> Iterator[tuple[int, Any]]:
    """Run jobs in this process: a worker would take a hundred times as long to start."""
    for number in range(len(jobs)):
        yield number, work(jobs[number], lambda done, bad: None, lambda row: contextlib.nullcontext())


@contextlib.contextmanager
def home_of_pens() -> Iterator[Path]:
    """A folder in memory, if possible, that is removed with what processes leave in it that ended themselves."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="packer-hostile-", dir=memory, ignore_cleanup_errors=True) as home:
        yield Path(home)


def attack(home: Path, files: Files, command: str, seed: str) -> str:
    """Run a command on a changed pack. Return what came of it; raise AssertionError if that must not be.

    A pack that is refused when it is opened goes on to the command in one of ten cases only: all commands open it in
    the same way.
    """
    pen = _pens.get(os.getpid()) or _pens.setdefault(os.getpid(), Pen(home))
    case = pen.home / "case"
    dice = Dice(seed)
    pen.fill(case / "pack", mutate(files, dice), files)
    started = time.process_time()
    try:
        with _surroundings(case), pen.watch():
            outcome = _outcome(_opened, case)
            if outcome != "exit 0" and dice.random() > 0.1:
                outcome = f"{outcome} when opened"
            else:
                pen.fill(case / "good", files, files)
                outcome = _outcome(COMMANDS[command], case)
    finally:
        pen.clear(case)
    took = time.process_time() - started
    assert took < MOST_S, f"took {took:.1f} s"
    assert not pen.outside, f"wrote {pen.outside}"
    return outcome


@contextlib.contextmanager
def _surroundings(case: Path) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()  # by what ran before
    most = mapped + MOST_BYTES if before[1] < 0 else min(mapped + MOST_BYTES, before[1])
    for folder in ("tmp", "new"):
        (case / folder).mkdir()
    environ = {"PACKER_CACHE": str(case / "cache"), "HOME": str(case / "home"), "TMPDIR": str(case / "tmp")}
    with (
        mock.patch.dict(os.environ, environ),
        mock.patch("packer.system.pool.Pool.run", _inline),
        mock.patch("tempfile.tempdir", str(case / "tmp")),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)
        resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


def _outcome(command: Callable[[Path], Any], case: Path) -> str:
    from packer.cli import error_reports
    from packer.errors import PackerError

    seen: list[str] = []
    report = error_reports.report

    def noted(error: BaseException, given: list[str]) -> int:
        seen.append("".join(traceback.format_exception(error)))
        return report(error, given)

    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    noting = mock.patch.object(error_reports, "report", noted)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), noting:
        try:
            code = command(case)
        except SystemExit as done:
            code = done.code
        except PackerError as error:
            code = error.exit_code
        except MemoryError:
            code = 70
            seen.append(traceback.format_exc())
    assert code in (None, 0, 1, 2, 3, 4), f"exit code {code}\n{''.join(seen)}"
    assert not any("not enough memory" in text or "MemoryError" in text for text in seen), seen[-1]
    return f"exit {code or 0}"
