"""The table of a build's options: it agrees with `BuildOptions`, and what it says of each option is true."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from drawn import draw_classes
from PIL import Image
from running import digests, good

from packer.cli.making import build
from packer.errors import UsageError
from packer.format.manifest import read_manifest
from packer.packing import BuildOptions
from packer.packing.build_options import DEFAULTS, KINDS
from packer.packing.option_table import ARGUMENT, OPTIONS, TABLE, Option
from packer.packing.recorded import as_config, read_config
from packer.packing.resume import options_that_shape_bytes

OTHER: dict[str, Any] = {
    "source": "other", "labels": ("folder",), "columns": ("path label",), "fit": "pad", "resize": "20x20",
    "encode": "png", "missing_labels": "skip", "format": "hdf5", "job": "1/2", "max_bad": "3", "decode_timeout": 9.0,
    "part": ("depth=maps:map",),
    "mask": "masks", "mask_values": "ids", "ignore_id": 3, "engine": "dask", "scratch": ".",
    "tile": "12x10", "overlap": 0.5, "min_visible": 0.25,
    "interpolation": "bilinear", "map": ("ant=bee",), "only_class": ("bee",), "single_class": "bee",
}  # fmt: skip
"""Another value than the default, where `other_value` finds none that goes."""
NEEDS: dict[str, dict[str, Any]] = {
    "columns": {"labels": ("list:a.txt",)}, "fit": {"resize": "32x32"}, "interpolation": {"resize": "32x32"},
    "pad_value": {"resize": "32x32", "fit": "pad"}, "inventory": {"source": "s3://bucket/imgs", "out": "pack"},
    "overlap": {"tile": "12"}, "min_visible": {"tile": "12"},
    "scratch": {"out": "s3://bucket/pack"}, "recheck": {"out": "s3://bucket/pack"},
}  # fmt: skip
"""Option -> what it needs of others."""


def other_value(row: Option) -> Any:
    """A value of an option that is not its default."""
    if row.name in OTHER:
        return OTHER[row.name]
    if row.choices:
        return next(choice for choice in row.choices if choice != DEFAULTS[row.name])
    kind = KINDS[row.name]
    return True if kind == "bool" else 7 if kind.startswith("int") else ("other",) if "tuple" in kind else "other"


def both(row: Option) -> tuple[BuildOptions, BuildOptions]:
    """The options of a build, and the same but for one."""
    first = BuildOptions(**{"source": "imgs", **NEEDS.get(row.name, {})})
    return first, replace(first, **{row.name: other_value(row)})


every_option = pytest.mark.parametrize("row", OPTIONS, ids=lambda row: str(row.name))


# -- the table and the class


def test_the_table_has_the_fields_of_the_class() -> None:
    assert len(TABLE) == len(OPTIONS) and TABLE.keys() == KINDS.keys() == DEFAULTS.keys()
    arguments = (inspect.getdoc(BuildOptions) or "").partition("Raises:")[0]
    described = re.findall(r"^    (\w+): ", arguments, re.MULTILINE)
    assert described == list(KINDS)


@every_option
def test_a_default_is_of_its_type_and_allowed(row: Option) -> None:
    if row.section != ARGUMENT:
        default = DEFAULTS[row.name]
        assert row.checked(default) == default
        assert getattr(BuildOptions("imgs"), row.name) == default


def test_every_option_is_one_of_the_command() -> None:
    shown = {p.name: p for p in build.params if isinstance(p, click.Option)}
    assert [name for name in shown if name in TABLE] == [row.name for row in OPTIONS if row.section != ARGUMENT]
    assert shown.keys() - TABLE.keys() == {"config", "dry_run", "deep", "quiet", "as_json", "help_all"}


# -- what a resume compares


def digest(options: BuildOptions) -> str:
    return json.dumps(options_that_shape_bytes(options), sort_keys=True)


@every_option
def test_a_resume_compares_the_options_that_shape_a_shard(row: Option) -> None:
    first, other = both(row)
    assert getattr(first, row.name) != getattr(other, row.name)
    assert (digest(first) != digest(other)) == row.shapes_bytes


@pytest.mark.parametrize("row", [row for row in OPTIONS if row.takes == "file"], ids=lambda row: str(row.name))
def test_a_resume_compares_what_is_in_a_file(row: Option, tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("key\n")
    options = BuildOptions(**{"source": "imgs", **NEEDS.get(row.name, {}), row.name: file})
    before = digest(options)
    file.write_text("key\na.jpg\n")
    assert digest(options) != before


ELSEWHERE = {"out", "engine", "job", "finish", "scratch", "recheck", "like"}
"""Options of which other tests build: where a pack is made, and of what."""


@pytest.mark.parametrize(
    "row", [row for row in OPTIONS if not row.shapes_bytes and row.name not in ELSEWHERE], ids=lambda row: str(row.name)
)
def test_a_free_option_leaves_the_shards_as_they_are(row: Option, tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src", each=2)
    build_of = ["build", source, "--encode", "jpeg", "--shard-size", "4KB"]
    value = tmp_path / "other" if row.takes == "folder" else other_value(row)
    if row.name == "jpeg_index":
        pytest.importorskip("packer_fast")
    good(*build_of, "-o", tmp_path / "p")
    good(*build_of, "-o", tmp_path / "q", row.label if value is True else f"{row.label}={row.text(value)}")
    first, second = (
        {name: of for name, of in digests(pack).items() if name.startswith("shard-")}
        for pack in (tmp_path / "p", tmp_path / "q")
    )
    assert first == second and len(first) > 2


# -- what is written and read


@every_option
def test_an_option_survives_a_config(row: Option, tmp_path: Path) -> None:
    _, other = both(row)
    (tmp_path / "c.yaml").write_text("\n".join(as_config(other)))
    assert BuildOptions(**read_config(str(tmp_path / "c.yaml"))) == other


@pytest.mark.parametrize("seconds", [1e6, 123456.789, 0.5, 60.0, None])
def test_seconds_survive_a_config(seconds: float | None, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("\n".join(as_config(BuildOptions("src", decode_timeout=seconds))))
    assert BuildOptions(**read_config(str(tmp_path / "c.yaml"))).decode_timeout == seconds


def test_a_manifest_has_what_the_table_says(tmp_path: Path) -> None:
    source = draw_classes(tmp_path / "src", each=2)
    always = {row.name for row in OPTIONS if row.recorded == "always"}
    excluded = ("instance_masks", "drop_class")  # by --rle and --only-class
    changed = [row for row in OPTIONS if row.recorded == "changed" and row.name not in excluded]
    good("build", source, "-o", tmp_path / "p")
    assert read_manifest(tmp_path / "p").options.keys() == always
    texts = {"include": "*", "exclude": "bee/", "classes": "ant\nbee\ncat"}
    given: list[Any] = ["--resize", "9x9", "--fit", "pad"]
    for row in changed:
        (tmp_path / row.name).write_text(texts.get(row.name, ""))
        value = tmp_path / row.name if row.takes in ("file", "names") else other_value(row)
        value = value[0] if isinstance(value, tuple) else value
        given.append(row.label if value is True else f"{row.label}={value}")
    for image in sorted(source.rglob("*.*")):  # --mask and --part name them
        for folder in ("masks", "maps"):
            mask = source / folder / image.relative_to(source).with_suffix(".png")
            mask.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(image) as opened:
                Image.new("L", opened.size).save(mask)
    good("build", source, "-o", tmp_path / "q", *given)
    assert read_manifest(tmp_path / "q").options.keys() == always | {row.name for row in changed}
    words = shlex.split(good("info", tmp_path / "q", "--command").out)
    assert {row.label for row in changed} <= {*words}


@every_option
def test_a_value_of_a_wrong_type_names_its_option(row: Option) -> None:
    with pytest.raises(UsageError) as caught:
        BuildOptions(**{"source": "imgs", **NEEDS.get(row.name, {}), row.name: object()})
    assert caught.value.where == row.label
