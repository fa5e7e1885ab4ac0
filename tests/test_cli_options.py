"""What the command line refuses: exit code 2, one line that names the option, nothing written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click
import pytest
from drawn import draw_plain
from running import good, refused, run, run_apart

from packer.cli.group import cli
from packer.containers import CONTAINERS
from packer.packing import BuildOptions


@pytest.fixture
def there(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with packs: sub/a.lmdb, sub/b.lmdb, sub/c.tar."""
    (tmp_path / "sub").mkdir()
    for name in ("a.lmdb", "b.lmdb", "c.tar"):
        good("build", source, "-o", tmp_path / "sub" / name, "--labels", "none", "--encode", "png", "--workers", 1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_plain(tmp_path_factory.mktemp("options") / "src", 3)


WRONG = [
    (["--format", "zip"], f"--format: must be one of {', '.join(CONTAINERS)}; got zip"),
    (
        ["--out", "p.hdf5", "--format", "lmdb"],
        "--out: the extension of p.hdf5 means hdf5, but --format is lmdb; leave out --format, or choose another name",
    ),
    (["--encode", "tiff"], "--encode: must be one of raw, jpeg, png, bmp, copy; got tiff"),
    (["--mode", "bgr"], "--mode: must be one of rgb, gray, unchanged; got bgr"),
    (["--decoder", "pil"], "--decoder: must be one of auto, simplejpeg, opencv, jpeg4py, lenient; got pil"),
    (["--boxes", "keep"], "--boxes: must be one of fail, clip, drop; got keep"),
    (["--fit", "squash", "--resize", "9"], "--fit: must be one of stretch, short, long, crop, pad; got squash"),
    (["--fit", "pad"], "--fit: pad says how to resize, but there is no size; add --resize"),
    (["--pad-value", "114"], "--pad-value: is for images that are resized; add --resize and --fit pad"),
    (
        ["--resize", "9", "--pad-value", "0"],
        "--pad-value: is for --fit pad, not for short; leave it out, or add --fit pad",
    ),
    (["--resize", "9", "--fit", "pad", "--pad-value", "256"], "--pad-value: must be 0 to 255, got 256"),
    (["--interpolation", "area"], "--interpolation: is for images that are resized; add --resize"),
    (["--interpolation", "fast", "--resize", "9"], "--interpolation: must be one of area, bilinear; got fast"),
    (["--fit", "short", "--resize", "9x8"], "--fit: short needs one size, got 9x8"),
    (["--resize", "0"], "--resize: size must be 1 to 65535 pixels, got 0"),
    (["--resize", "-5"], "--resize: must be N or WIDTHxHEIGHT in pixels, got '-5'"),
    (["--resize", "12x"], "--resize: must be N or WIDTHxHEIGHT"),
    (["--resize", "3.5"], "--resize: must be N or WIDTHxHEIGHT"),
    (["--resize", "1x2x3"], "--resize: must be N or WIDTHxHEIGHT"),
    (["--resize", "99999999999999"], "--resize: "),
    (["--resize", "9", "--encode", "copy"], "--encode copy: keeps each file's bytes and cannot resize"),
    (["--quality", "0"], "--quality: must be 1 to 100, got 0"),
    (["--quality", "101"], "--quality: must be 1 to 100, got 101"),
    (["--quality", "high"], "Invalid value for '--quality': 'high' is not a valid integer; packer build --help"),
    (["--max-pixels", "0"], "--max-pixels: must be at least 1, got 0"),
    (["--shard-size", "big"], "--shard-size: must be a size such as 128MB, or none, got big"),
    (["--shard-size", "0"], "--shard-size: must be a size"),
    (["--shuffle", "x"], "Invalid value for '--shuffle'"),
    (["--shuffle", "-1"], "--shuffle: must be at least 0, got -1"),
    (["--workers", "0"], "--workers: must be at least 1, got 0"),
    (["--workers", "-3"], "--workers: must be at least 1, got -3"),
    (["--workers", "1000000"], "--workers: must be at most"),
    (["--max-bad", "many"], "--max-bad: must be a number or a percentage such as 0.5%, got many"),
    (["--max-bad", "-1"], "--max-bad: must be a number or a percentage"),
    (["--on-bad", "ignore"], "--on-bad: must be one of fail, skip; got ignore"),
    (
        ["--on-bad", "skip", "--max-bad", "5"],
        "--on-bad: skip allows any number of bad inputs, but --max-bad only 5; give one of the two",
    ),
    (["--decode-timeout", "0"], "--decode-timeout: must be more than 0 and at most 1000000 seconds, got 0"),
    (["--decode-timeout", "soon"], "--decode-timeout: must be a number of seconds, or none, got soon"),
    (["--decode-timeout", "nan"], "--decode-timeout: must be a number of seconds"),
    (["--decode-timeout", "-1"], "--decode-timeout: must be a number of seconds"),
    (["--decode-timeout", "9999999"], "--decode-timeout: must be more than 0 and at most"),
    (
        ["--labels", "coco3d"],
        "datumaro[:FORMAT]; got coco3d; write --labels coco",
    ),
    (["--labels", "list:"], "--labels: must be one of auto, none, folder, voc, yolo, yolo-obb, dota, coco[:FILE], "),
    (["--labels", "list:absent.txt"], "--labels list:absent.txt: there is no such file"),
    (["--labels", "auto", "--labels", "voc"], "--labels: auto and none cannot be combined with other kinds"),
    (["--labels", "voc", "--labels", "voc"], "--labels: names the same labels twice"),
    (["--labels", "voc", "--columns", "path x y"], "--columns: is for lists, but the labels include no list"),
    (["--columns", "path", "--columns", "path"], "--columns: is given 2 times for 0 lists"),
    (["--split", "val"], "--split val"),
    (["--classes", "absent.txt"], "absent.txt: cannot be read: No such file or directory"),
    (["--classes", "."], ".: cannot be read: Is a directory"),
    (["--out", ""], "--out: is empty"),
    (["--out", "absent/p.lmdb"], "no such folder for the pack; create it, or choose another --out"),
    (["--frobnicate"], "No such option '--frobnicate'"),
    (["more"], "Got unexpected extra argument (more); packer build --help"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[" ".join(options) for options, _ in WRONG])
def test_wrong_option(
    source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(2, "build", source, *(["-o", "p"] if "--out" not in options else []), *options)
    assert message in line and line.startswith("packer: error: ")
    assert os.listdir(tmp_path) == []


def test_wrong_option_with_json(source: Path) -> None:
    for options in (["--quality", "x"], ["--format", "zip"], ["--nonsense"], ["--labels", "foo"]):
        ran = run("build", source, "--json", *options)
        facts = json.loads(ran.out)
        assert ran.code == facts["exit_code"] == 2 and facts["error"] == "UsageError" and facts["problem"]
        assert set(facts) == {
            "error", "where", "problem", "next_step", "exit_code", "reasons", "rejected", "pack", "shard", "key",
        }  # fmt: skip


SUGGESTED = {
    "build src --format lmbd": "lmdb", "build src --format webdatset": "webdataset", "build src --encode pgn": "png",
    "build src --labels vox": "voc", "convert p q --fit padd": "pad", "sample x --layout yol": "yolo",
    "extract p q --layout cocoo": "coco", "adopt f -o p --boxes clp": "clip",
    "merge p q -o r --duplicates dorp": "drop", "bench src --format tfrecrod": "tfrecord",
    "build src --mode rbg": "rgb",
}  # fmt: skip


@pytest.mark.parametrize("words", SUGGESTED)
def test_a_misspelled_value_is_suggested(source: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.chdir(source.parent)
    line = refused(2, *words.split())
    assert line.endswith(f"; write {words.split()[-2]} {SUGGESTED[words]}")


ALIASES = {
    ("format", "h5"): "hdf5", ("format", "wds"): "webdataset", ("format", "LMDB"): "lmdb", ("encode", "jpg"): "jpeg",
    ("mode", "RGB"): "rgb", ("mode", "grayscale"): "gray", ("labels", "ImageFolder"): "folder",
    ("labels", "yolov8"): "yolo", ("labels", "yolo11"): "yolo", ("labels", "pascal_voc"): "voc",
    ("labels", "COCO:a.json"): "coco:a.json",
}  # fmt: skip


@pytest.mark.parametrize(("option", "name"), ALIASES)
def test_other_usual_names(source: Path, option: str, name: str) -> None:
    meant = ALIASES[option, name]
    given = {option: (name,) if option == "labels" else name}
    kept = getattr(BuildOptions("src", **given), option)  # type: ignore[arg-type]
    assert kept == ((meant,) if option == "labels" else meant)
    if option != "labels" and meant not in ("rgb", "lmdb"):  # defaults are not printed
        out = good("build", source, f"--{option}", name, "--dry-run").out
        assert re.search(rf"^  {option}: {meant}$", out, re.MULTILINE)


def test_options_without_effect_and_raw_photos_are_warned_of(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warnings(*options: str) -> list[str]:
        out = good("build", source, "--dry-run", *options).out
        assert json.loads(good("build", source, "--dry-run", "--json", *options).out)["warnings"] == [
            line.removeprefix("warning: ") for line in out.splitlines() if line.startswith("warning: ")
        ]
        return [line for line in out.splitlines() if line.startswith("warning: ")]

    quality = "warning: --quality 70 has no effect: it is for --encode jpeg, not for"
    assert warnings("--quality", "70") == [f"{quality} raw"]
    assert warnings("--quality", "70", "--encode", "png") == [f"{quality} png"]
    assert warnings("--quality", "70", "--encode", "jpeg") == warnings() == []
    monkeypatch.setattr("packer.packing.plan.LARGE_BYTES", 1000)
    (line,) = warnings()
    assert re.fullmatch(r"warning: raw pixels take \d+ times the space of the files; make them smaller with .*", line)
    assert warnings("--resize", "32") == warnings("--encode", "jpeg") == warnings("--encode", "copy") == []


@pytest.mark.parametrize("command", ["build", "info", "verify"])
def test_missing_argument(command: str) -> None:
    assert "Missing argument" in refused(2, command)


def test_no_command() -> None:
    assert "No such command 'pack'" in refused(2, "pack", "x")


TAKE_URLS = {
    *(f"build {name}" for name in ("source", "out", "like")),
    *(
        f"{name} pack"
        for name in ("convert", "edit", "split", "extract", "stats", "info", "hash", "verify", "repair", "index")
    ),
    *(f"{name} out" for name in ("convert", "adopt", "edit", "merge", "split")),
    *(f"{name} cache_dir" for name in ("info", "hash", "diff", "stats", "view", "bench", "extract", "cache")),
    *(
        "attach pack",
        "detach pack",
        "purge pack",
        "merge packs",
        "edit labels_from",
        "update pack",
        "update source",
        "log pack",
        "view packs",
        "push pack",
        "diff a",
        "log pack",
        "diff b",
        "stats against",
        "bench path",
    ),
}
"""Read or write there, or say what to do instead."""


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_paths_that_cannot_be_urls(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [param for param in cli.commands[name].params if isinstance(param, click.Argument)]
    for param in cli.commands[name].params:
        if isinstance(param.type, click.Path) and f"{name} {param.name}" not in TAKE_URLS:
            given = ["s3://bucket/x" if other is param else "x" for other in arguments]
            given += [param.opts[-1], "s3://bucket/x"] if param not in arguments else []
            assert "s3://bucket/x: is a URL, and this must be a path on this machine" in refused(2, name, *given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "problem"),
    [("absent", "no such folder"), ("src/000.jpg", "is one image; give the folder"), ("", "SRC: is empty")],
)
def test_source_that_is_none(source: Path, tmp_path: Path, name: str, problem: str) -> None:
    assert problem in refused(2, "build", source.parent / name if name else "", "-o", tmp_path / "p")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no class names"),
        (b"\n\n", "holds no class names"),
        (b"a\n\nb\n", "names.txt:2: is an empty line"),
        (b"a\nb\na\n", "names a twice"),
    ],
)
def test_class_file(source: Path, tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "names.txt").write_bytes(content)
    assert problem in refused(2, "build", source, "--classes", tmp_path / "names.txt", "-o", tmp_path / "p")


@pytest.mark.parametrize("command", ["info", "verify"])
def test_no_pack(source: Path, tmp_path: Path, command: str) -> None:
    assert "no such pack" in refused(2, command, tmp_path / "absent")
    assert "is not a pack: it has no pack.json" in refused(2, command, source)
    assert "a pack is a directory" in refused(2, command, source / "000.jpg")


def test_debug_shows_the_traceback(source: Path) -> None:
    ran = run_apart("--debug", "build", source, "--format", "zip")
    assert ran.code != 0 and "Traceback" in ran.err and "UsageError" in ran.err


@pytest.mark.parametrize("absolute", [False, True], ids=["relative", "absolute"])
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("convert {0}sub/a.lmdb {0}sub/new.hdf5", "{0}sub/new.hdf5: 3 records"),
        ("merge {0}sub/a.lmdb {0}sub/b.lmdb -o {0}sub/all", '"{0}sub/all"'),
        ("adopt {0}sub/c.tar/shard-00000.tar -o {0}sub/new", '"{0}sub/new"'),
        ("sample {0}sub/s --count 1", "{0}sub/s: 1 image"),
        ("split {0}sub/a.lmdb --parts a=0.5,b=0.5", " {0}sub/a-a.lmdb\n"),
        ("split {0}sub/a.lmdb --parts a=0.5,b=0.5 -o {0}.", " {0}a-a.lmdb\n"),
        ("extract {0}sub/a.lmdb {0}sub/x", "{0}sub/x: 3 images"),
        ("pull file://{1}sub/a.lmdb {0}sub/p", "{0}sub/p: 3 records"),
    ],
)
def test_reports_show_paths_as_they_were_typed(there: Path, command: str, shown: str, absolute: bool) -> None:
    before = f"{there}/"
    said = good(*command.format(before * absolute, before).split()).out
    assert shown.format(before * absolute) in said
    assert absolute or before not in said
