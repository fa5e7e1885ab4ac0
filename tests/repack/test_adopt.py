"""`packer adopt`: the pack that it makes, whatever the format; WebDataset tars are the example."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from drawn import image_file
from foreign_files import samples, write_tar
from running import good, refused
from xxhash import xxh3_128_digest

from packer import PackedDataset, PackedLoader, PackWriter, adopt, open_pack
from packer.cli.group import cli
from packer.errors import DamagedPack, TooManyBad, UsageError
from packer.format.lists import read_list
from packer.format.salvage import repair
from packer.format.verify import verify
from packer.images.decode import decode
from packer.model.annotation_columns import column
from packer.model.fields import label_arrays
from packer.packing.input_table import Inputs
from packer.repack.adopt_pack import _without_labels


@pytest.fixture
def tars(tmp_path: Path) -> list[Path]:
    return [write_tar(tmp_path / f"{k}.tar", samples(5, 5 * k)) for k in range(3)]


def test_the_pack_refers_to_the_files(tars: list[Path], tmp_path: Path) -> None:
    before = [tar.read_bytes() for tar in tars]
    report = adopt(tars, tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert [tar.read_bytes() for tar in tars] == before
    assert len(pack) == report.manifest.records == 15 and pack.classes == ["0", "1", "2"]
    assert pack.manifest.linked == {f"{k}.tar": f"../{k}.tar" for k in range(3)}
    assert sorted(os.listdir(tmp_path / "pack")) == ["pack.json", *(f"shard-0000{k}.index.arrow" for k in range(3))]
    assert [s.container.sha256 for s in pack.reader.shards] == [hashlib.sha256(data).hexdigest() for data in before]
    assert [origin.name for origin in pack.manifest.made_from] == ["0.tar", "1.tar", "2.tar"]
    for i in range(15):
        assert bytes(pack.record(i)) == image_file(i)
        assert pack.annotation(i).label == i % 3
        assert pack.paths[i] == f"{i:06}.jpg"
        assert pack.key(i) == f"{i // 5}{i % 5:08d}"
    assert (pack.column("source_xxh3")[3] == np.frombuffer(xxh3_128_digest(image_file(3)), np.uint8)).all()
    assert pack.manifest.shape == (30, 40, 3) and pack.manifest.encoding == "copy" and pack.manifest.mode == "rgb"
    assert verify(tmp_path / "pack", deep=True).problems == ()


def test_dataset_and_loader(tars: list[Path], tmp_path: Path) -> None:
    adopt(tars, tmp_path / "pack")
    image, target = PackedDataset(tmp_path / "pack")[4]
    expected = decode(image_file(4), "rgb")
    assert target == 1 and (np.asarray(image).transpose(1, 2, 0) == expected).all()
    batches = list(PackedLoader(tmp_path / "pack", batch_size=4, seed=0))
    assert sum(len(labels) for _, labels in batches) == 15
    assert torch_equal(batches[1][0][0], expected)


def torch_equal(tensor: Any, expected: np.ndarray) -> bool:
    return bool((tensor.numpy().transpose(1, 2, 0) == expected).all())


def test_a_file_elsewhere_is_named_by_its_absolute_path(tmp_path: Path) -> None:
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "near").mkdir()
    tar = write_tar(far / "a.tar", samples(2))
    adopt([tar], tmp_path / "near" / "pack")
    assert open_pack(tmp_path / "near" / "pack").manifest.linked == {"a.tar": str(tar)}
    shutil.move(tmp_path / "near", tmp_path / "moved")
    assert bytes(open_pack(tmp_path / "moved" / "pack").record(1)) == image_file(1)


def test_a_pack_moves_with_the_files_below_its_parent(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "shards").mkdir(parents=True)
    write_tar(home / "shards" / "a.tar", samples(2))
    adopt([home / "shards"], home / "pack")
    home.rename(tmp_path / "other")
    assert bytes(open_pack(tmp_path / "other" / "pack").record(1)) == image_file(1)


def test_files_of_one_name(tmp_path: Path) -> None:
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        write_tar(tmp_path / str(k) / "a.tar", samples(2, 2 * k))
    adopt([tmp_path / "0" / "a.tar", tmp_path / "1" / "a.tar"], tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert list(pack.manifest.linked) == ["00000-a.tar", "00001-a.tar"]
    assert [bytes(pack.record(i)) for i in range(4)] == [image_file(i) for i in range(4)]


def test_verify_notices_a_changed_file(tars: list[Path], tmp_path: Path) -> None:
    adopt(tars, tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    data = bytearray(tars[1].read_bytes())
    at = int(pack.reader.span(7)[0] - pack.reader._starts[1]) + 300
    data[at] ^= 1
    tars[1].write_bytes(data)
    problems = verify(tmp_path / "pack").problems
    assert {(p.file, p.record) for p in problems} == {("1.tar", None), ("1.tar", "100000002")}
    with pytest.raises(DamagedPack, match="100000002"):
        open_pack(tmp_path / "pack").record(7)
    tars[1].write_bytes(data[:-512])
    with pytest.raises(DamagedPack, match=r"1\.tar"):
        open_pack(tmp_path / "pack")
    tars[1].unlink()
    with pytest.raises(DamagedPack, match=r"1\.tar"):
        open_pack(tmp_path / "pack")


def test_repair_leaves_files_of_other_tools_alone(tars: list[Path], tmp_path: Path) -> None:
    adopt(tars, tmp_path / "pack")
    assert repair(tmp_path / "pack").records == 15
    tars[1].write_bytes(tars[1].read_bytes().replace(b"000006.jpg", b"000006.JPG"))
    with pytest.raises(UsageError, match=r"1\.tar.*restore the files"):
        repair(tmp_path / "pack")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.tar", "1.tar", "2.tar", "pack"]


def test_bad_images_are_listed(tmp_path: Path) -> None:
    members = [*samples(3), ("bad.jpg", b"no image at all"), ("bad.cls", b"1"), ("cut.jpg", image_file(1)[:60])]
    tar = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(TooManyBad) as error:
        adopt([tar], tmp_path / "pack")
    assert "bad.jpg: not an image" in error.value.line and not (tmp_path / "pack").exists()
    assert not (tmp_path / "pack.partial").exists()
    report = adopt([tar], tmp_path / "pack", max_bad="2")
    assert dict(report.manifest.counts) == {"found": 5, "packed": 3, "rejected": 2, "skipped": 0}
    rows = {row.path: row.reason for row in read_list(tmp_path / "pack", "rejected")}
    assert rows == {"bad.jpg": "not-an-image", "cut.jpg": "bad-image"}


def test_a_jpeg_like_the_last_ones_is_checked_as_any_other(tmp_path: Path) -> None:
    whole = cv2.imencode(".jpg", np.zeros((2000, 2000, 3), np.uint8))[1].tobytes()
    frame = whole.index(b"\xff\xc0")
    lossless = whole[:frame] + b"\xff\xc3" + whole[frame + 2 :]
    images = {"a": whole, "b": whole, "c": whole, "short": whole[:7000], "lossless": lossless, "d": whole}
    tar = write_tar(tmp_path / "a.tar", [(f"x.y/{name}.jpg", data) for name, data in images.items()])
    adopt([tar], tmp_path / "pack", max_bad="2")
    assert open_pack(tmp_path / "pack").paths[:] == [f"x.y/{name}.jpg" for name in "abcd"]
    problems = {row.path: row.problem for row in read_list(tmp_path / "pack", "rejected")}
    assert "2000x2000 pixels in 7000 bytes" in problems["x.y/short.jpg"]
    assert "lossless JPEG (SOF3)" in problems["x.y/lossless.jpg"]


@pytest.mark.parametrize(
    "header", [b"{'descr': '|u1', 'shape': (2, 3(3", b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"]
)
def test_npy_headers_that_numpy_cannot_read(header: bytes, tmp_path: Path) -> None:
    data = b"\x93NUMPY\1\0\x76\0" + header.ljust(117) + b"\n" + bytes(50)
    tar = write_tar(tmp_path / "a.tar", [*samples(1), ("b.npy", data), ("b.cls", b"1")])
    adopt([tar], tmp_path / "pack", max_bad="1")
    (tmp_path / "b.npy").write_bytes(data)
    with pytest.raises(UsageError, match="not an array"):
        adopt([tmp_path / "b.npy"], tmp_path / "other")


def test_raw_and_encoded_images_do_not_mix(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((4, 5, 3), np.uint8))
    tar = write_tar(tmp_path / "a.tar", [("a.jpg", image_file(1)), ("b.npy", file.getvalue())])
    with pytest.raises(UsageError, match="raw arrays and encoded"):
        adopt([tar], tmp_path / "pack")


@pytest.mark.parametrize("policy", ["error", "skip", "empty"])
def test_images_without_a_label(policy: str, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [*samples(3), ("x.jpg", image_file(7))])
    if policy == "error":
        with pytest.raises(TooManyBad, match=r"x.jpg: has no label"):
            adopt([tar], tmp_path / "pack")
        return
    adopt([tar], tmp_path / "pack", missing_labels=policy)
    pack = open_pack(tmp_path / "pack")
    assert [pack.annotation(i).label for i in range(len(pack))] == [0, 1, 2, None][: len(pack)]
    assert len(pack) == (4 if policy == "empty" else 3)
    assert [row.path for row in read_list(pack.path, "skipped")] == (["x.jpg"] if policy == "skip" else [])


def test_a_missing_class_beside_images_that_are_left_out() -> None:
    """Arrow leaves zeros below the nulls of the rows that stay, and readers take the number."""
    labels = label_arrays(np.array([-1, 2, -1], np.int32))[0]
    table = pa.table({"path": pa.array([b"a", b"b", b"c"], pa.binary()), "label": labels})
    kept = _without_labels(table, np.array([True, True, False]), "skip", Inputs(), False)
    assert np.asarray(column(kept, "label")).tolist() == [-1, 2]


def test_no_labels_at_all(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [(f"{i}.jpg", image_file(i)) for i in range(3)])
    adopt([tar], tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert pack.manifest.fields == () and pack.classes == [] and pack.annotation(1).label is None


def test_classes_of_a_file(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", samples(4))
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    adopt([tar], tmp_path / "pack", classes=str(tmp_path / "names.txt"))
    pack = open_pack(tmp_path / "pack")
    assert pack.classes == ["ant", "bee", "cat"] and pack.annotation(2).label == 2


@pytest.mark.parametrize("container", ["webdataset", "tfrecord"])
def test_classes_in_another_order_than_the_pack_has_them(container: str, tmp_path: Path) -> None:
    """Names in packer's own files decide, also those of boxes; a list without these names is of the numbers."""
    with PackWriter(tmp_path / "a", format=container, encode="jpeg", classes=["cat", "dog"]) as writer:
        writer.write(np.zeros((9, 9, 3), np.uint8), label="dog", boxes=[[1, 1, 5, 5]], box_labels=["cat"])
    shard = next(path for path in (tmp_path / "a").iterdir() if path.suffix in (".tar", ".tfrecord"))
    for number, (names, expected) in enumerate((("dog\ncat\n", ("dog", "cat")), ("chat\nchien\n", ("chien", "chat")))):
        (tmp_path / "names.txt").write_text(names)
        adopt([shard], tmp_path / f"b{number}", classes=str(tmp_path / "names.txt"))
        pack = open_pack(tmp_path / f"b{number}")
        found = pack.annotation(0)
        assert (pack.classes[found.label], pack.classes[found.box_labels[0]]) == expected
    (tmp_path / "names.txt").write_text("dog\nbird\n")
    with pytest.raises(TooManyBad, match="class cat is not in the class list"):
        adopt([shard], tmp_path / "c", classes=str(tmp_path / "names.txt"))


def test_names_of_classes_are_sorted_over_all_files(tmp_path: Path) -> None:
    for k, name in enumerate((b"dog", b"ant ")):
        write_tar(tmp_path / f"{k}.tar", [("a.jpg", image_file(k)), ("a.cls", name)])
    adopt([tmp_path / "0.tar", tmp_path / "1.tar"], tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert pack.classes == ["ant", "dog"] and [pack.annotation(i).label for i in (0, 1)] == [1, 0]


def test_an_upright_image_is_what_counts(tmp_path: Path) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[274] = 6
    data = image_file(1, exif=exif)
    adopt([write_tar(tmp_path / "a.tar", [("a.jpg", data)])], tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    assert pack.reader.shape_of(0) == (40, 30, 3) and pack.image(0).shape == (40, 30, 3)
    assert verify(pack.path, deep=True).problems == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello, world" * 100, "begins with"),
        (b"\x1f\x8b\x08" + bytes(100), "compressed by gzip"),
        (b"PK\x03\x04" + bytes(100), "zip archive"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        adopt([tmp_path / "a.tar"], tmp_path / "pack")
    write_tar(tmp_path / "b.tar", samples(2))
    adopt([tmp_path], tmp_path.parent / f"{tmp_path.name}-pack")  # in a folder, others are skipped
    (skipped,) = read_list(tmp_path.parent / f"{tmp_path.name}-pack", "skipped")
    assert skipped.path.endswith("a.tar") and message in skipped.reason


def test_usage(tars: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        adopt([tmp_path / "none.tar"], tmp_path / "pack")
    with pytest.raises(UsageError, match="not a role"):
        adopt(tars, tmp_path / "pack", columns={"color": "x"})
    with pytest.raises(UsageError, match="max_bad"):
        adopt(tars, tmp_path / "pack", max_bad="many")
    adopt(tars, tmp_path / "pack")
    with pytest.raises(UsageError, match="exists"):
        adopt(tars, tmp_path / "pack")
    with pytest.raises(UsageError, match="is a pack already"):
        adopt([tmp_path / "pack"], tmp_path / "other")
    adopt(tars[:1], tmp_path / "pack", overwrite=True)
    assert len(open_pack(tmp_path / "pack")) == 5


def test_the_extension_of_another_format(tars: list[Path], tmp_path: Path) -> None:
    line = refused(2, "adopt", *tars, "-o", tmp_path / "all.zip")
    problem = "all.zip: .zip is not the extension of a format that packer writes"
    assert line.endswith(f"{problem}; write --out {tmp_path}/all") and not list(tmp_path.glob("all*"))


def test_command_line(tars: list[Path], tmp_path: Path) -> None:
    runner = CliRunner()
    out = str(tmp_path / "pack")
    result = runner.invoke(cli, ["adopt", *map(str, tars), "-o", out])
    assert result.exit_code == 0, result.output
    assert "15 found = 15 packed + 0 rejected + 0 skipped, in 3 files of" in result.output
    for command in (["info"], ["verify"], ["stats"]):
        done = runner.invoke(cli, [*command, out])
        assert done.exit_code == 0, done.output
    again = runner.invoke(cli, ["adopt", str(tars[0]), "-o", out, "--overwrite", "--json"])
    assert json.loads(again.output)["counts"]["packed"] == 5
    assert isinstance(runner.invoke(cli, ["adopt", str(tars[0]), "-o", out, "--columns", "x"]).exception, UsageError)


def test_the_same_files_give_the_same_pack(tars: list[Path], tmp_path: Path) -> None:
    digests = set()
    for workers in (1, 2):
        adopt(tars, tmp_path / "pack", workers=workers, overwrite=True)
        digests.add(open_pack(tmp_path / "pack").manifest.digest)
    assert len(digests) == 1


def test_in_worker_processes(tars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt(tars, tmp_path / "pack")
    before = open_pack(tmp_path / "pack").manifest.digest
    monkeypatch.setattr("packer.repack.adopt.READ_HERE_BYTES", 0)
    adopt(tars, tmp_path / "pack", overwrite=True, workers=1)
    assert open_pack(tmp_path / "pack").manifest.digest == before


def test_packs_in_a_folder_are_not_its_files(tars: list[Path], tmp_path: Path) -> None:
    folder = tars[0].parent
    for _ in range(2):  # the second time, the pack is there
        adopt([folder], folder / "pack", overwrite=True)
    assert len(open_pack(folder / "pack")) == sum(5 for _ in tars)
    (skipped,) = read_list(folder / "pack", "skipped")
    assert skipped.path.endswith("pack") and skipped.reason == "is a pack already"


def test_a_file_is_not_replaced(tars: list[Path]) -> None:
    with pytest.raises(UsageError, match="would replace a file that it is made from"):
        adopt(tars, tars[0], overwrite=True)


@pytest.mark.parametrize(("roles", "said"), [
    ({"label": "cls2"}, 'no image has a label in "cls2"'),
    ({"boxes": "xyxy"}, "webdataset has no role boxes"),
])  # fmt: skip
def test_columns_that_mean_nothing(roles: dict[str, str], said: str, tars: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        adopt(tars, tmp_path / "pack", columns=roles)
    assert not (tmp_path / "pack").exists()


def test_labels_for_files_that_have_their_own(tars: list[Path], tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.arange(5))
    with pytest.raises(UsageError, match="webdataset holds its own labels"):
        adopt(tars[:1], tmp_path / "pack", labels=(str(tmp_path / "y.npy"),))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(tars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa, "OSFile", lambda path, mode, real=pa.OSFile: real("/dev/full", mode))
    line = refused(3, "adopt", *tars, "-o", tmp_path / "pack")
    assert line.endswith("cannot write: No space left on device; free some space, or choose another --out")


def test_what_to_do_if_a_file_is_missing_or_damaged(tars: list[Path], tmp_path: Path) -> None:
    adopt(tars[:1], tmp_path / "pack")
    data = bytearray(tars[0].read_bytes())
    data[600] ^= 255
    tars[0].write_bytes(data)
    line = refused(4, "convert", tmp_path / "pack", tmp_path / "out.lmdb", "--workers", "1")
    assert "restore the file, adopt it again, or leave 00000000 out with --exclude" in line
    tars[0].unlink()
    assert f"0.tar: is not at {tars[0]}; put it back, or adopt it again" in good("info", tmp_path / "pack").out
