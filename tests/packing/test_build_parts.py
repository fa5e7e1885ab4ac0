"""Parts of any kind, from files named like the images, through every container: --part NAME=WHERE:KIND."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from drawn import voc_xml
from drawn_masks import write_files
from running import good, refused

from packer import PackWriter
from packer.containers import container_names
from packer.errors import BadPart, TooManyBad, UsageError
from packer.format.pack import Pack
from packer.format.salvage import repair
from packer.model.annotation import MAP_DTYPES
from packer.packing import BuildOptions, build_pack
from packer.repack.attach import attach
from packer.repack.convert import convert
from packer.repack.extract import extract

COUNT, SIDES = 6, (36, 24)
PARTS = ("depth=depth:map", "far=far:map", "right=right:image", "code=code:array", "text=said:text", "more=more:json")
KINDS = {"depth": "map", "far": "map", "right": "image", "code": "array", "text": "text", "more": "json"}


def picture(pixels: Any, ending: str = ".png") -> bytes:
    return cv2.imencode(ending, pixels)[1].tobytes()


def as_npy(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def value_of(name: str, i: int) -> Any:
    """What the part of image i is, before it is resized."""
    random, (width, height) = np.random.default_rng(i), SIDES
    depth = random.integers(500, 5000, (height, width)).astype(np.uint16)
    depth[:5, : 3 + i] = 0
    far = random.random((height, width, 2), np.float32)
    far[7, 9] = np.nan
    right = random.integers(0, 256, (height, width, 3), np.uint8)
    return {
        "depth": depth, "far": far, "right": right, "code": random.random(7).astype(np.float16),
        "text": f"a drawing, Nr. {i}: ä", "more": {"captions": ["one", "two"][: i % 3], "n": i},
    }[name]  # fmt: skip


def files_of(name: str, i: int) -> tuple[str, bytes]:
    value = value_of(name, i)
    return {
        "depth": lambda: (f"depth/im{i}.png", picture(value)), "far": lambda: (f"far/im{i}.npy", as_npy(value)),
        "right": lambda: (f"right/im{i}.png", picture(value[..., ::-1])),
        "code": lambda: (f"code/im{i}.npy", as_npy(value)),
        "text": lambda: (f"said/im{i}.txt", value.encode() + b"\n"),
        "more": lambda: (f"more/im{i}.json", json.dumps(value).encode()),
    }[name]()  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = dict(files_of(name, i) for name in KINDS for i in range(COUNT))
    for i in range(COUNT):
        files[f"left/im{i}.png"] = picture(value_of("right", i)[..., ::-1])  # as the right one
    return write_files(tmp_path / "set", files)


def build(source: Path, out: str = "p.lmdb", **options: Any) -> Pack:
    given = {"part": PARTS, "labels": ("none",), "workers": 1, **options}
    build_pack(BuildOptions(str(source), out=str(source.parent / out), **given))
    return Pack(source.parent / out)


def same(a: Any, b: Any) -> bool:
    if isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=b.dtype.kind == "f")
    return type(a) is type(b) and bool(a == b)


def check(pack: Pack) -> None:
    assert pack.manifest.parts == KINDS and len(pack) == COUNT
    for row, path in enumerate(pack.paths):
        i = int(Path(path).stem[2:])
        for name in KINDS:
            assert same(pack.part(row, name), value_of(name, i)), name


@pytest.mark.parametrize("encode", ["raw", "png", "copy"])
def test_values_are_those_of_the_files(encode: str, source: Path) -> None:
    check(build(source, encode=encode))


@pytest.mark.parametrize("container", container_names())
def test_every_container_has_them(container: str, source: Path) -> None:
    pack = build(source, "p", format=container, encode="raw")
    check(pack)
    good("verify", source.parent / "p")
    other = "lmdb" if container != "lmdb" else "webdataset"
    convert(source.parent / "p", source.parent / "q", format=other)
    check(Pack(source.parent / "q"))


FORMS = [
    *((f"map{channels}{dtype}", "map", dtype, (channels,)[: channels - 1])
      for dtype in MAP_DTYPES for channels in (1, 2, 3)),
    *((f"image{dtype}", "image", dtype, (3,)) for dtype in ("uint8", "uint16")),
    *((f"mask{dtype}", "mask", dtype, ()) for dtype in ("uint8", "uint16")),
    *((f"array{dtype}", "array", dtype, ()) for dtype in ("int64", "float16", "float64", "complex64")),
]  # fmt: skip
"""Name, kind, dtype and further axes of parts: all that are stored as numbers."""


@pytest.mark.parametrize("encode", ["raw", "png"])
@pytest.mark.parametrize("container", container_names())
def test_parts_of_every_dtype_are_found_again_without_an_index(container: str, encode: str, tmp_path: Path) -> None:
    values = {
        (name, i): (np.random.default_rng(i).random((6, 5, *more)) * 250).astype(dtype)
        for name, _, dtype, more in FORMS for i in range(2)
    }  # fmt: skip
    for (name, i), value in values.items():  # of 16 bits
        values[name, i] = value * 257 if "16" in value.dtype.name and value.dtype.kind == "u" else value
    files = {f"left/{i}.png": picture(np.full((6, 5, 3), i, np.uint8)) for i in range(2)}
    for (name, i), value in values.items():
        as_picture = not name.startswith(("map", "array"))
        files[f"{name}/{i}.{'png' if as_picture else 'npy'}"] = (
            picture(value[..., ::-1] if value.ndim == 3 else value) if as_picture else as_npy(value)
        )
    part = tuple(f"{name}={name}:{kind}" for name, kind, *_ in FORMS)
    build(write_files(tmp_path / "set", files), "p", format=container, encode=encode, part=part, mode="unchanged")
    good("verify", "--deep", tmp_path / "p")
    (index,) = (tmp_path / "p").glob("*.arrow")
    index.unlink()
    repair(tmp_path / "p")
    pack = Pack(tmp_path / "p")
    assert all(same(pack.part(i, name), value) for (name, i), value in values.items())


def exact(values: Any, size: tuple[int, int], ignore: int | None) -> Any:
    """The map in another size, in plain float64: linear between centers, the nearest one beside what is unknown."""
    values = values.reshape(*values.shape[:2], -1)
    out = np.empty((size[1], size[0], values.shape[2]), values.dtype)
    for y in range(size[1]):
        for x in range(size[0]):
            places = []
            for i, old, new in ((y, len(values), size[1]), (x, values.shape[1], size[0])):
                center = (2 * i + 1) * old / (2 * new) - 0.5
                low = int(np.floor(center))
                places.append((max(low, 0), min(low + 1, old - 1), center - low, (2 * i + 1) * old // (2 * new)))
            (top, bottom, down, row), (left, right, across, column) = places
            for c in range(values.shape[2]):
                four = [float(values[j, i, c]) for j in (top, bottom) for i in (left, right)]
                if any(not np.isfinite(one) or one == ignore for one in four):
                    out[y, x, c] = values[row, column, c]
                    continue
                upper, lower = (four[n] * (1 - across) + four[n + 1] * across for n in (0, 2))
                found = upper * (1 - down) + lower * down
                out[y, x, c] = np.rint(found) if values.dtype.kind == "u" else found
    return out


@pytest.mark.parametrize("size", [(18, 12), (50, 31), (36, 24), (7, 40)])
def test_maps_are_resized_but_never_mixed_with_what_is_unknown(size: tuple[int, int], source: Path) -> None:
    pack = build(source, resize=f"{size[0]}x{size[1]}")
    for i in range(2):
        depth, wanted = pack.part(i, "depth"), exact(value_of("depth", i), size, 0)[..., 0]
        assert np.array_equal(depth == 0, wanted == 0)
        assert np.abs(depth.astype(int) - wanted.astype(int)).max() <= 1  # a half, rounded in float32
        assert (depth == wanted).mean() > 0.95
        far = pack.part(i, "far")
        np.testing.assert_allclose(far, exact(value_of("far", i), size, None), rtol=1e-4)
        assert same(pack.part(i, "right"), pack.image(i))  # which is the same picture
        assert same(pack.part(i, "code"), value_of("code", i))


def test_pad_and_crop_go_with_the_image(source: Path) -> None:
    padded = build(source, resize="40x40", fit="pad", part=(*PARTS, "zero=far:map:0"))
    depth = padded.part(0, "depth")
    assert depth.shape == (40, 40) and not depth[:6].any() and not depth[-6:].any() and depth[10:30].any()
    assert same(padded.part(0, "right"), padded.image(0))
    convert(source.parent / "p.lmdb", source.parent / "wide.lmdb", resize="80x40", fit="pad")
    wide = Pack(source.parent / "wide.lmdb")
    for pack, border in ((padded, np.s_[:6]), (wide, np.s_[:, :20])):
        assert np.isnan(pack.part(0, "far")[border]).all() and not pack.part(0, "zero")[border].any()
        assert np.isfinite(pack.part(0, "far")).sum() > 500
    cropped = build(source, "q.lmdb", resize="20x20", fit="crop")
    assert same(cropped.part(0, "right"), cropped.image(0))
    convert(source.parent / "q.lmdb", source.parent / "r.hdf5", resize="10x10")
    pack = Pack(source.parent / "r.hdf5")
    assert pack.part(0, "depth").shape == (10, 10) and same(pack.part(0, "right"), pack.image(0))


BAD = {
    "size": ("depth/im1.png", picture(np.ones((24, 35), np.uint16)), "has 35x24 pixels, but the image 36x24"),
    "dtype": ("far/im1.npy", as_npy(np.zeros((24, 36), np.int64)), "is an array of int64"),
    "channels": ("far/im1.npy", as_npy(np.zeros((24, 36, 3), np.float32)), "has 3 values of float32 for each pixel"),
    "too large": (
        "far/im1.npy",
        as_npy(np.full((24, 36, 2), -1e300)),
        "has values that float32 cannot hold: up to 1e+300",
    ),
    "pickle": ("code/im1.npy", as_npy(np.array([None])), "is an array of object in a .npy file, not of numbers"),
    "latin": ("said/im1.txt", b"\xe4", "is not UTF-8 text"),
    "no json": ("more/im1.json", b"{", "is not JSON"),
    "lossy": ("depth/im1.png", picture(np.zeros((24, 36, 3), np.uint8), ".jpg"), "is a JPEG, which changes values"),
    "cut short": ("right/im1.png", picture(np.zeros((24, 36, 3), np.uint8))[:-20], "truncated"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_named(case: str, source: Path) -> None:
    name, data, problem = BAD[case]
    (source / name).write_bytes(data)
    if case == "channels":  # the others have two
        (source / "far/im1.npy").write_bytes(data)
    with pytest.raises(TooManyBad) as caught:
        build(source)
    found = {bad.path: bad for bad in caught.value.rejected}
    if case == "channels":  # what most have is not known: all others are odd
        assert all(name in one.problem or "others" in one.problem for one in found.values())
        return
    assert [*found] == ["left/im1.png"] and found["left/im1.png"].reason == "bad-part"
    assert name in found["left/im1.png"].problem and problem in found["left/im1.png"].problem
    assert len(build(source, max_bad="1")) == COUNT - 1


def test_an_image_without_its_part_and_a_part_without_image(source: Path) -> None:
    (source / "said/im2.txt").rename(source / "said/other.txt")
    with pytest.raises(TooManyBad, match="has no text in said/") as caught:
        build(source)
    assert {bad.reason for bad in caught.value.rejected} == {"no-label", "no-image"}
    (source / "said/other.txt").unlink()
    pack = build(source, missing_labels="empty")
    assert pack.manifest.notes == ("no text in 1 image",) and "missing_labels" not in pack.manifest.counts
    assert pack.part(2, "text") is None and pack.part(3, "text") == value_of("text", 3)
    assert same(pack.part(2, "code"), value_of("code", 2))


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("depth=nothing:map", 'has no pictures in "nothing/"'), ("depth=depth:deep", "deep is no kind of part"),
        ("image_id=depth:map", "is not a name for a part"),
        ("depth=depth:map:x", "x is no kind of part"),
        ("depth", "write NAME=WHERE:KIND"), ("1/2", "write --job 1/2"), ("Depth=depth:map", "is not a name for a part"),
        ("depth={x}.png:map", "is not a pattern"), ("depth=far/{stem}.bin:array", "names no file"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_part_is_said(part: str, problem: str, source: Path) -> None:
    assert problem in refused(2, "build", source, "--labels", "none", "--part", part, "-o", source.parent / "p")


def test_a_part_with_the_name_of_a_field_of_boxes(tmp_path: Path) -> None:
    """It would replace the field in targets."""
    files = dict(files_of("depth", i) for i in range(COUNT))
    for i in range(COUNT):
        files[f"left/im{i}.png"] = picture(value_of("right", i))
        files[f"left/im{i}.xml"] = voc_xml(f"im{i}.png", [("dog", 1, 1, 9, 9)], SIDES).encode()
    given = ("--labels", "voc", "--part", "difficult=depth:map", "-o", tmp_path / "p")
    assert "'difficult' has another meaning" in refused(2, "build", write_files(tmp_path / "set", files), *given)


def test_where_the_files_of_parts_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the innermost folder of the image's; beside the images, if they are no pictures; never in an archive."""
    files = {f"set/rgb/{name}/0.png": picture(value_of("right", i)) for i, name in enumerate("ab")}
    files |= {f"set/rgb/{name}/0.txt": name.encode() for name in "ab"}
    files |= {f"set/far/{name}/0.npy": as_npy(value_of("far", i)) for i, name in enumerate("ab")}
    files |= {f"other/x/depth/{name}/0.png": picture(value_of("depth", i)) for i, name in enumerate("ab")}
    source = write_files(tmp_path, files | {"set/odd.exr": b""}) / "set"
    pack = build(source, part=("far=far:map", "depth=../other/x/depth:map", "said=.:text"))
    for i, name in enumerate("ab"):
        assert same(pack.part(i, "far"), value_of("far", i)) and same(pack.part(i, "depth"), value_of("depth", i))
        assert pack.part(i, "said") == name

    def said(part: str) -> str:
        with pytest.raises(UsageError) as caught:
            build(source, "q.lmdb", part=(part,))
        return str(caught.value)

    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(source / "rgb/a/0.png", "0.png")
    assert "is an archive, which only the source may be" in said("depth=../all.zip:map")
    assert "has no .json files; it has .exr, .npy, .png, .txt" in said(f"more={source}:json")
    assert "write a pattern of {dir}, {stem} and {name}, such as" in said("depth=.:map")
    monkeypatch.chdir(tmp_path)
    assert 'WHERE is relative to the source: "../other/x/depth"' in said("depth=other/x/depth:map")


def test_two_parts_of_one_name(source: Path) -> None:
    with pytest.raises(UsageError, match="depth is given twice"):
        build(source, part=("depth=depth:map", "depth=far:map"))
    with pytest.raises(UsageError, match="mask is given twice"):
        build(source, part=("mask=depth:mask",), mask="depth")


def test_patterns_and_folders_elsewhere(source: Path) -> None:
    (source / "far").rename(source.parent / "elsewhere")
    parts = ("depth={dir}/../depth/{stem}.png:map", "far=../elsewhere:map", "right=right:image")
    pack = build(source, part=parts)
    for i in range(COUNT):
        assert same(pack.part(i, "depth"), value_of("depth", i)) and same(pack.part(i, "far"), value_of("far", i))
    top = source.parent / "elsewhere"
    for far, depth in (
        ("../elsewhere/{stem}.npy", f"{source}/depth/{{stem}}.png"), (f"{top}/{{stem}}.npy", "depth/{stem}.png"),
    ):  # fmt: skip
        again = build(source, overwrite=True, part=(f"depth={depth}:map", f"far={far}:map", "right=right:image"))
        assert all(same(again.part(i, name), value_of(name, i)) for name in ("depth", "far") for i in range(COUNT))
    (top / "im3.npy").rename(top / "other.npy")
    with pytest.raises(TooManyBad, match=r"im3.png: has no far in ../elsewhere/"):
        build(source, "q", part=("far=../elsewhere/{stem}.npy:map", *parts[2:]))
    with pytest.raises(UsageError, match=rf"names no file: there is no {source.parent}/gone/im0.npy"):
        build(source, "q", part=("far=../gone/{stem}.npy:map", *parts[2:]))


def test_masks_of_other_names(source: Path) -> None:
    for i in range(COUNT):
        trimap = np.random.default_rng(i).integers(1, 4, SIDES[::-1]).astype(np.uint8)
        (source / "tri").mkdir(exist_ok=True)
        (source / f"tri/im{i}.png").write_bytes(picture(trimap))
        (source / "masks").mkdir(exist_ok=True)
        (source / f"masks/im{i}.png").write_bytes(picture(trimap % 2))
    pack = build(source, part=("tri=tri:mask", "mask=masks:mask", *PARTS))
    for i in range(COUNT):
        wanted = np.random.default_rng(i).integers(1, 4, SIDES[::-1]).astype(np.uint8)
        assert same(pack.part(i, "tri"), wanted) and same(pack.mask(i), wanted % 2)


def test_they_are_extracted_and_built_again(source: Path, tmp_path: Path) -> None:
    build(source, encode="png")
    extract(source.parent / "p.lmdb", tmp_path / "out", "folder")
    parts = tuple(part.replace("said", "text") for part in PARTS)
    check(build(tmp_path / "out", "again.lmdb", part=parts))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("names", [("seg",), ("mask", "seg"), ("seg", "more")])
def test_masks_of_other_names_are_extracted_and_built_again(
    names: tuple[str, ...], missing: bool, tmp_path: Path
) -> None:
    images = {f"left/im{i}.png": picture(value_of("right", i)) for i in range(COUNT)}
    source = write_files(tmp_path / "set", images | dict(files_of("more", i) for i in range(COUNT)))
    for number, name in enumerate(name for name in names if name != "more"):
        (source / name).mkdir(exist_ok=True)
        (source / name / "classes.txt").write_text(f"void\n{name}\nc\n")
        for i in range(COUNT - missing):
            ids = np.random.default_rng(9 * number + i).integers(0, 3, SIDES[::-1]).astype(np.uint8)
            (source / f"{name}/im{i}.png").write_bytes(picture(ids))
    parts = tuple("more=more:json" if name == "more" else f"{name}={name}:mask" for name in names)
    pack = build(source, encode="png", part=parts, missing_labels="empty", ignore_id=7)
    found = extract(pack.path, tmp_path / "out", "folder")
    assert ("--missing-labels" in found.build) == missing
    good(*found.build[1:], "-o", tmp_path / "again.lmdb")
    assert good("diff", pack.path, tmp_path / "again.lmdb").out.endswith(f"equal: {COUNT} records\n")
    assert Pack(tmp_path / "again.lmdb").manifest.masks == pack.manifest.masks


def test_maps_of_several_types(source: Path, tmp_path: Path) -> None:
    """Whole numbers beside floats have another unit, and another value that is unknown."""
    build(source)
    for i in range(2):
        (source / f"depth/im{i}.png").unlink()
        (source / f"depth/im{i}.npy").write_bytes(as_npy(value_of("depth", i).astype(np.float32) / 1000))
    problem = r"depth: has 2 files of float32 \(depth/im0.npy, ...\) and 4 files of uint16 \(depth/im2.png, ...\); save"
    with pytest.raises(UsageError, match=problem):
        build(source, "q.lmdb", workers=2)
    with pytest.raises(UsageError, match="has 2 files of float32"):
        attach(source.parent / "p.lmdb", source / "depth", "new", "map")
    with PackWriter(tmp_path / "w", parts={"m": "map"}) as writer:
        writer.write(np.zeros((4, 4, 3), np.uint8), parts={"m": np.ones((4, 4), np.float32)})
        with pytest.raises(BadPart, match="has 1 values of uint16 for each pixel, others 1 of float32"):
            writer.write(np.zeros((4, 4, 3), np.uint8), parts={"m": np.ones((4, 4), np.uint16)})
    for i in range(2):
        (source / f"depth/im{i}.npy").unlink()
        (source / f"depth/im{i}.png").write_bytes(picture(value_of("depth", i).astype(np.uint8)))
    ran = good("build", source, "--labels", "none", "--part", PARTS[0], "--part", PARTS[2], "-o", tmp_path / "r")
    assert (
        "warning: depth has 4 files of uint16 (depth/im2.png, ...) and 2 files of uint8 (depth/im0.png, ...)" in ran.out
    )
    assert same(Pack(tmp_path / "r").part(0, "depth"), value_of("depth", 0).astype(np.uint8).astype(np.uint16))


def test_what_is_unknown_in_a_map_is_said_for_each(source: Path, tmp_path: Path) -> None:
    """--ignore-id is for masks, also where packs are extracted and built again."""
    write_files(source, {f"masks/im{i}.png": picture(np.full(SIDES[::-1], i, np.uint8)) for i in range(COUNT)})
    part = ("depth=depth:map", "odd=depth:map:700", "far=far:map", "zero=far:map:0", "right=right:image")
    pack = build(source, part=part, mask="masks", ignore_id=9)
    wanted = {"depth": 0, "odd": 700, "far": None, "zero": 0}
    assert {name: one.ignore for name, one in pack.manifest.pixels.items() if name != "right"} == wanted
    step = extract(source.parent / "p.lmdb", tmp_path / "out", "folder").build[2:]
    assert "--ignore-id" in step and {"depth=depth:map", "odd=odd:map:700", "zero=zero:map:0"} <= {*step}
    good("build", tmp_path / "out", *step[1:], "-o", tmp_path / "again.lmdb")
    again = Pack(tmp_path / "again.lmdb").manifest
    assert (again.pixels, again.masks["mask"].ignore) == (pack.manifest.pixels, 9)
    text = refused(2, "build", source, "--labels", "none", "--part", part[0], "--ignore-id", "9", "-o", tmp_path / "q")
    assert "is for masks" in text and "NAME=WHERE:map:N" in text
    with pytest.raises(UsageError, match="65536 do not fit into depth"):
        build(source, "q.lmdb", part=("depth=depth:map:65536", "right=right:image"))


def decoded(data: bytes) -> Any:
    found: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    return found[..., ::-1] if found.ndim == 3 else found


def test_other_readers_find_them(source: Path) -> None:
    """In the forms of each format: members of a tar, columns and pictures of Parquet, arrays of HDF5."""
    for container in ("webdataset", "parquet", "hdf5"):
        build(source, container, format=container, encode="raw")
    (shard,) = (source.parent / "webdataset").glob("*.tar")
    with tarfile.open(shard) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    (table,) = map(pq.read_table, (source.parent / "parquet").glob("*.parquet"))
    with h5py.File(next((source.parent / "hdf5").glob("*.hdf5"))) as file:
        arrays = {name: file[name][:] for name in ("depth", "far", "right")}
    for i in range(COUNT):
        key, row = f"{i:08d}", table.slice(i, 1).to_pylist()[0]
        for name in ("depth", "right"):
            wanted = value_of(name, i)
            assert same(decoded(members[f"{key}.{name}.png"]), wanted) and same(decoded(row[name]["bytes"]), wanted)
            assert same(arrays[name][i], wanted)
        assert same(arrays["far"][i], value_of("far", i))
        for name in ("far", "code"):
            for data in (members[f"{key}.{name}.npy"], row[name]):
                assert same(np.load(io.BytesIO(data)), value_of(name, i))
        assert row["text"] == value_of("text", i) == members[f"{key}.text.txt"].decode()
        assert json.loads(row["more"]) == value_of("more", i) == json.loads(members[f"{key}.more.json"])
