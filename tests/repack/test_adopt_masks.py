"""`packer adopt` reads masks beside the images where they are: the ids are those that Pillow finds in the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_masks import draw_mask, image_of, picture
from foreign_files import write_tar, write_tfrecord
from PIL import Image
from running import good, refused

from packer import BuildOptions, PackedLoader, adopt, build_pack, convert, merge, open_pack, split
from packer.errors import TooManyBad, UsageError
from packer.format.lists import read_list
from packer.format.pack import Pack
from packer.format.verify import verify

Row = tuple[bytes, bytes | None, int | None]
"""An image, its mask, its class."""


def webdataset(path: Path, rows: Sequence[Row], field: str) -> Path:
    return write_tar(path, webdataset_members(rows, field))


def webdataset_members(rows: Sequence[Row], field: str = "mask.png") -> list[tuple[str, bytes]]:
    members: list[tuple[str, bytes]] = []
    for i, (image, mask, label) in enumerate(rows):
        members += [(f"{i}.jpg", image), *([] if mask is None else [(f"{i}.{field}", mask)])]
        members += [] if label is None else [(f"{i}.cls", b"%d" % label)]
    return members


def tfrecord(path: Path, rows: Sequence[Row], field: str) -> Path:
    """As TensorFlow's DeepLab writes it (research/deeplab/datasets/build_data.py), where field is its name."""
    examples: list[dict[str, Any]] = []
    for i, (image, mask, label) in enumerate(rows):
        one = {"image/encoded": image, "image/filename": f"{i}.jpg", "image/format": "jpeg", "image/channels": 3}
        one |= {} if mask is None else {field: mask, "image/segmentation/class/format": "png"}
        examples.append(one | ({} if label is None else {"image/class/label": label}))
    return write_tfrecord(path, examples)


def table(rows: Sequence[Row], field: str) -> pa.Table:
    columns: dict[str, Any] = {"image": [{"bytes": image, "path": f"{i}.jpg"} for i, (image, _, _) in enumerate(rows)]}
    columns[field] = [None if mask is None else {"bytes": mask, "path": None} for _, mask, _ in rows]
    if rows[0][2] is not None:
        columns["category"] = [label for *_, label in rows]
    return pa.table(columns)


def parquet(path: Path, rows: Sequence[Row], field: str) -> Path:
    pq.write_table(table(rows, field), path, compression="none", use_dictionary=False, row_group_size=2)
    return path


def arrow(path: Path, rows: Sequence[Row], field: str) -> Path:
    whole = table(rows, field)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=2)
    return path


FIELDS = {
    webdataset: ("mask.png", "seg.png", "segmentation.png", "label.png"),
    tfrecord: ("image/segmentation/class/encoded", "segmentation_mask", "label"),
    parquet: ("mask", "annotation", "label", "segmentation_mask"),
    arrow: ("mask", "label"),
}
Writer = Callable[[Path, Sequence[Row], str], Path]
EACH = [pytest.param(write, fields[0], id=write.__name__) for write, fields in FIELDS.items()]
EVERY = [pytest.param(write, field, id=f"{write.__name__}-{field}") for write in FIELDS for field in FIELDS[write]]


def drawn(count: int, label: bool = False, **how: Any) -> list[Row]:
    """Images with masks; `how` is for `picture`."""
    masks = map(draw_mask, range(count))
    return [(image_of(m, "JPEG"), picture(m, **how), i % 3 if label else None) for i, m in enumerate(masks)]


def expected(mask: bytes) -> np.ndarray:
    import io

    return np.asarray(Image.open(io.BytesIO(mask)))


def adopted(tmp_path: Path, file: Path, **options: Any) -> Pack:
    adopt([file], tmp_path / "pack", **options)
    return open_pack(tmp_path / "pack")


@pytest.mark.parametrize(("write", "field"), EVERY)
def test_masks_are_read_in_place(write: Writer, field: str, tmp_path: Path) -> None:
    rows = drawn(5, palette=True)
    file = write(tmp_path / "file", rows, field)
    pack = adopted(tmp_path, file)
    assert len(pack) == 5 and pack.manifest.parts == {"mask": "mask"} and pack.manifest.fields == ()
    assert f"masks are those of {field}" in pack.manifest.notes
    facts = pack.manifest.masks["mask"]
    assert (facts.dtype, facts.classes, facts.ignore) == ("uint8", (), 255)
    for i, (image, mask, _) in enumerate(rows):
        assert mask is not None and bytes(pack.record(i)) == image and bytes(pack.reader.part(i, "mask") or b"") == mask
        found = pack.mask(i)
        assert found is not None and found.dtype == np.uint8
        assert (found == expected(mask)).all() and (found == draw_mask(i)).all()
    assert verify(tmp_path / "pack", deep=True).problems == ()
    assert sorted(path.name for path in (tmp_path / "pack").iterdir()) == ["pack.json", "shard-00000.index.arrow"]
    images, masks = next(iter(PackedLoader(tmp_path / "pack", batch_size=5)))
    assert tuple(images.shape) == (5, 3, 30, 40)
    assert all((masks[i].numpy() == draw_mask(i)).all() for i in range(5))


@pytest.mark.parametrize(("write", "field"), EACH)
def test_classes_and_masks(write: Writer, field: str, tmp_path: Path) -> None:
    column = {"columns": {"label": "category"}} if write in (parquet, arrow) else {}
    pack = adopted(tmp_path, write(tmp_path / "file", drawn(4, label=True), field), **column)
    assert [pack.annotation(i).label for i in range(4)] == [0, 1, 2, 0] and pack.manifest.fields == ("label",)
    assert all((pack.mask(i) == draw_mask(i)).all() for i in range(4))


@pytest.mark.parametrize(("write", "field"), EACH)
def test_names_and_the_ignored_id(write: Writer, field: str, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("background\ncircle\nsquare\nother\n")
    file = write(tmp_path / "file", drawn(3), field)
    pack = adopted(tmp_path, file, classes=str(tmp_path / "names.txt"), ignore_id=3)
    facts = pack.manifest.masks["mask"]
    assert facts.classes == ("background", "circle", "square", "other") and facts.ignore == 3
    assert tuple(pack.classes) == facts.classes


@pytest.mark.parametrize(
    ("how", "ids"),
    [
        ({"bits": 1}, 2),  # pixels of one bit: 0 and 1, not black and white
        ({"bits": 4}, 4),
        ({"palette": True, "bits": 2}, 4),
    ],
)
def test_pngs_of_few_bits(how: dict[str, Any], ids: int, tmp_path: Path) -> None:
    masks = [draw_mask(i, ids=ids) for i in range(3)]
    rows: list[Row] = []
    for mask in masks:
        data = picture(mask, **how) if how.get("palette") else gray_png(mask, how["bits"])
        assert data[24] == how["bits"]
        rows.append((image_of(mask, "JPEG"), data, None))
    pack = adopted(tmp_path, webdataset(tmp_path / "file", rows, "mask.png"))
    assert all((pack.mask(i) == mask).all() for i, mask in enumerate(masks))


def gray_png(mask: np.ndarray, bits: int) -> bytes:
    """A gray PNG of few bits for each pixel, which Pillow does not write."""
    import struct
    import zlib

    high, wide = mask.shape
    each = 8 // bits
    rows = b""
    for row in mask:
        padded = np.pad(row, (0, -len(row) % each)).reshape(-1, each)
        rows += b"\0" + bytes((padded << np.arange(8 - bits, -1, -bits)).sum(axis=1).astype(np.uint8))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", wide, high, bits, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    chunks.append((b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def test_ids_of_16_bits_beside_those_of_8(tmp_path: Path) -> None:
    deep = draw_mask(1).astype(np.uint16) * 300
    rows = [*drawn(1), (image_of(draw_mask(1), "JPEG"), picture(deep), None)]
    pack = adopted(tmp_path, webdataset(tmp_path / "file", rows, "mask.png"))
    assert pack.manifest.masks["mask"].dtype == "uint16"
    assert (pack.mask(0) == draw_mask(0)).all() and (pack.mask(1) == deep).all()
    assert next(iter(PackedLoader(pack, batch_size=2)))[1].numpy().max() == 900


COLORS = np.array([(0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255)], np.uint8)
OBSTACLES = {
    "colors": (lambda m: picture(COLORS[m]), "picture in colors"),
    "black and white": (lambda m: picture((m > 0).astype(np.uint8) * 255), "black and white, 0 and 255"),
    "jpeg": (lambda m: picture(np.where(m > 0, 255, 0).astype(np.uint8), "JPEG"), "JPEG file"),
    "tiff": (lambda m: picture(m, "TIFF"), "TIFF file"),
    "photo": (lambda m: picture(np.arange(m.size, dtype=np.uint16).reshape(m.shape)), "do not look like masks"),
    "other size": (lambda m: picture(m[:20]), "do not look like masks"),
}


@pytest.mark.parametrize("what", OBSTACLES)
@pytest.mark.parametrize(("write", "field"), EACH)
def test_masks_that_cannot_be_read_in_place_are_left_out(write: Writer, field: str, what: str, tmp_path: Path) -> None:
    encode, problem = OBSTACLES[what]
    rows = [(image_of(draw_mask(i), "JPEG"), encode(draw_mask(i)), None) for i in range(4)]
    file = write(tmp_path / "file", rows, field)
    pack = adopted(tmp_path, file)
    assert len(pack) == 4 and not pack.manifest.parts
    (note,) = pack.manifest.notes
    assert note.startswith("left out: ") and field in note and problem in note
    if "look like" not in problem:
        with pytest.raises(UsageError, match=problem):
            adopt([file], tmp_path / "other", mask=field)


def test_the_note_says_how_many(tmp_path: Path) -> None:
    rows = [(image_of(draw_mask(i), "JPEG"), picture(COLORS[draw_mask(i)]), None) for i in range(4)]
    pack = adopted(tmp_path, webdataset(tmp_path / "file", rows, "seg.png"))
    assert pack.manifest.notes[0].startswith("left out: 4 seg.png of the samples: a mask is a picture in colors")


def test_255_is_ignored_if_the_user_says_so(tmp_path: Path) -> None:
    rows = [
        (image_of(draw_mask(i), "JPEG"), picture((draw_mask(i) > 0).astype(np.uint8) * 255), None) for i in range(3)
    ]
    pack = adopted(tmp_path, webdataset(tmp_path / "file", rows, "mask.png"), ignore_id=255)
    assert set(np.unique(pack.mask(0))) == {0, 255}


@pytest.mark.parametrize(("write", "field"), EACH)
def test_bad_and_missing_masks_are_listed(write: Writer, field: str, tmp_path: Path) -> None:
    rows = drawn(12)
    rows[3] = (rows[3][0], picture(draw_mask(3)[:20]), None)
    rows[5] = (rows[5][0], picture(COLORS[draw_mask(5)]), None)
    rows[7] = (rows[7][0], b"\x89PNG\r\n\x1a\n no picture", None)
    rows[9] = (rows[9][0], None, None)
    file = write(tmp_path / "file", rows, field)
    with pytest.raises(TooManyBad):
        adopt([file], tmp_path / "pack")
    pack = adopted(tmp_path, file, max_bad="4")
    assert len(pack) == 8
    found = {row.path: (row.reason, row.problem) for row in read_list(tmp_path / "pack", "rejected", pack.manifest)}
    assert [path.removesuffix(".jpg").lstrip("0") for path in found] == ["3", "5", "7", "9"]
    problems = [problem for _, problem in found.values()]
    assert "40x20 pixels, but the image 40x30" in problems[0] and "picture in colors" in problems[1]
    assert "has no mask" in problems[3]
    for policy, count in (("skip", 8), ("empty", 9)):
        adopt([file], tmp_path / policy, max_bad="3", missing_labels=policy)
        assert len(open_pack(tmp_path / policy)) == count
    kept = open_pack(tmp_path / "empty")
    assert [kept.mask(i) is None for i in range(9)] == [False] * 6 + [True] + [False] * 2 or write is webdataset


@pytest.mark.parametrize(("write", "field"), EACH)
def test_the_field_of_the_masks(write: Writer, field: str, tmp_path: Path) -> None:
    own = {webdataset: "png", tfrecord: "mine", parquet: "mine", arrow: "mine"}[write]  # type: ignore[index]
    file = write(tmp_path / "file", drawn(3), own)
    pack = adopted(tmp_path, file, mask=own)
    assert all((pack.mask(i) == draw_mask(i)).all() for i in range(3))
    assert pack.manifest.options["columns"] == [f"mask={own}"]
    with pytest.raises(UsageError, match="absent is not a field of pictures; there are: .*" + own):
        adopt([file], tmp_path / "other", mask="absent")
    adopt([write(tmp_path / "again", drawn(3), field)], tmp_path / "none", mask="none")
    assert not open_pack(tmp_path / "none").manifest.parts


def test_formats_without_masks_say_so(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(UsageError, match="npy has no role mask"):
        adopt([tmp_path / "a.npy"], tmp_path / "pack", mask="seg")


def test_files_with_and_without_masks(tmp_path: Path) -> None:
    good_one = webdataset(tmp_path / "a.tar", drawn(3), "mask.png")
    rows = [(image_of(draw_mask(i), "JPEG"), picture(COLORS[draw_mask(i)]), None) for i in range(3)]
    in_colors = webdataset(tmp_path / "b.tar", rows, "mask.png")
    with pytest.raises(UsageError, match=r"b\.tar: mask\.png: a mask is a picture in colors.*; masks of other files"):
        adopt([good_one, in_colors], tmp_path / "pack")
    none = webdataset(tmp_path / "c.tar", [(image, None, None) for image, *_ in drawn(2)], "")
    adopt([good_one, none], tmp_path / "pack", missing_labels="empty")
    pack = open_pack(tmp_path / "pack")
    assert [pack.mask(i) is None for i in range(5)] == [False] * 3 + [True] * 2


def test_one_mask_and_two_images_of_a_sample(tmp_path: Path) -> None:
    (image, mask, _), *_ = drawn(1)
    assert mask is not None
    members = [
        ("0.jpg", image),
        ("0.mask.png", mask),
        ("1.left.jpg", image),
        ("1.mask.png", mask),
        ("1.right.jpg", image),
    ]
    with pytest.raises(TooManyBad, match=r"1\.right\.jpg: has no mask"):
        adopt([write_tar(tmp_path / "a.tar", members)], tmp_path / "pack")


def test_a_mask_without_an_image(tmp_path: Path) -> None:
    mask = picture(draw_mask(1))
    file = write_tar(tmp_path / "a.tar", [*webdataset_members(drawn(1)), ("7.mask.png", mask), ("8.mask.png", mask)])
    with pytest.raises(TooManyBad, match=r"7\.mask\.png: is a mask without an image"):
        adopt([file], tmp_path / "pack")
    assert len(adopted(tmp_path, file, max_bad="2")) == 1


def test_a_depth_map_beside_a_mask_is_left_out(tmp_path: Path) -> None:
    depth = picture(np.arange(1200, dtype=np.uint16).reshape(30, 40))
    rows = drawn(3)
    members = [
        member
        for i, (image, mask, _) in enumerate(rows)
        for member in ((f"{i}.depth.png", depth), (f"{i}.jpg", image), (f"{i}.mask.png", mask))
    ]
    pack = adopted(tmp_path, write_tar(tmp_path / "a.tar", members))  # type: ignore[arg-type]
    assert len(pack) == 3 and (pack.mask(2) == draw_mask(2)).all()
    assert pack.manifest.notes == (
        "masks are those of mask.png",
        "left out: 3 depth.png of the samples: not the masks that are read",
    )


@pytest.mark.parametrize("name", ["lmdb", "hdf5", "tfrecord", "parquet", "webdataset"])
def test_commands_on_packs_of_masks_of_others(name: str, tmp_path: Path) -> None:
    pack = adopted(tmp_path, webdataset(tmp_path / "file", drawn(6, palette=True), "mask.png"))
    out = tmp_path / f"new.{name}"
    convert(tmp_path / "pack", out, format=name)
    convert(tmp_path / "pack", tmp_path / f"small.{name}", format=name, resize="20x15")
    new, small = open_pack(out), open_pack(tmp_path / f"small.{name}")
    for i in range(6):
        assert (new.mask(i) == draw_mask(i)).all() and (small.mask(i) == draw_mask(i)[1::2, 1::2]).all()
    split(tmp_path / "pack", "a=0.5,b=0.5")
    merge([tmp_path / "pack-a", tmp_path / "pack-b"], tmp_path / "c")
    both = open_pack(tmp_path / "c")
    assert sorted(both.mask(i).tobytes() for i in range(6)) == sorted(draw_mask(i).tobytes() for i in range(6))  # type: ignore[union-attr]
    assert pack.manifest.masks == both.manifest.masks == new.manifest.masks


@pytest.mark.parametrize("name", ["webdataset", "tfrecord", "parquet"])
@pytest.mark.parametrize("encode", ["raw", "jpeg"])
def test_packers_own_files_with_masks(name: str, encode: str, tmp_path: Path) -> None:
    from drawn_masks import pairs, write_files

    write_files(tmp_path / "source", pairs(count=3))
    out = tmp_path / f"own.{name}"
    build_pack(BuildOptions(str(tmp_path / "source"), str(out), encode=encode, workers=1, no_fingerprints=True))
    files = [path for path in out.iterdir() if not path.name.endswith((".arrow", ".json"))]
    adopt(files, tmp_path / "pack")
    pack, old = open_pack(tmp_path / "pack"), open_pack(out)
    assert len(pack) == 3
    for i in range(3):
        assert (pack.image(i) == old.image(i)).all() and (pack.mask(i) == old.mask(i)).all()


def test_on_the_command_line(tmp_path: Path) -> None:
    file = webdataset(tmp_path / "a.tar", drawn(3), "seg.png")
    pack = str(tmp_path / "pack")
    assert "3 packed" in good("adopt", str(file), "-o", pack, "--mask", "seg.png", "--ignore-id", "3").out
    assert open_pack(pack).manifest.masks["mask"].ignore == 3
    assert "mask" in good("stats", pack).out
    text = refused(2, "adopt", str(file), "-o", str(tmp_path / "b"), "--ignore-id", "70000")
    assert "--ignore-id" in text
