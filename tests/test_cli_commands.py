"""The commands that an issue, a README or a help text shows, typed as they stand there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from drawn import draw_landmarks, draw_plain, draw_shots, draw_voc, pixels, voc_xml
from running import good, run, run_apart

from packer.cli.output import counts_text
from packer.errors import plural
from packer.format.pack import Pack, open_pack

FORMATS = ("lmdb", "hdf5", "tfrecord", "webdataset")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with imgs, VOC, faces and shots in it."""
    root = tmp_path_factory.mktemp("desk")
    draw_plain(root / "imgs", 6)
    draw_voc(root / "VOC", 6)
    draw_landmarks(root / "faces", 6)
    draw_shots(root / "shots", 6)
    return root


@pytest.fixture(autouse=True)
def at_desk(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)


def images_are_as_drawn(pack: Pack, tolerance: float) -> None:
    for i, path in enumerate(pack.paths):
        drawn = pixels(int(path[-7:-4])).astype(np.int16)
        assert np.abs(pack.image(i) - drawn).mean() < tolerance


@pytest.mark.parametrize("encode", ["raw", "jpeg", "png", "bmp", "copy"])
@pytest.mark.parametrize("format", FORMATS)
def test_folder(format: str, encode: str) -> None:
    ran = good("build", "./imgs", "--format", format, "--encode", encode, "--overwrite")
    before, after = ran.out.splitlines()  # nothing is said twice, and nothing that there is none of
    assert before.startswith("plan: 6 images (--labels none: ") and f" -> imgs.{format}: " in before
    assert after.startswith("packed 6 images: ") and after.endswith(f"; look at it: packer view imgs.{format}")
    images_are_as_drawn(open_pack(f"imgs.{format}"), 4)
    assert f"container  {format}\n" in good("info", f"imgs.{format}").out
    assert ": good: 6 records in 4 files" in good("verify", f"imgs.{format}").out


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
@pytest.mark.parametrize("format", FORMATS)
def test_voc_padded(format: str, encode: str) -> None:
    out = f"voc-{encode}.{format}"
    good(
        "build", "./VOC", "--labels", "voc", "--resize", "300x300", "--fit", "pad", "--format", format,
        "--encode", encode, "-o", out,
    )  # fmt: skip
    pack = open_pack(out)
    assert pack.manifest.shape == (300, 300, 3) and pack.classes == ["bird", "dog"]
    boxes = pack.annotation(2).boxes
    assert boxes is not None
    # image 2: 40x30 becomes 300x225 below 37 black rows
    expected = [[(3 + 0) * 7.5, 2 * 7.5 + 37, 14 * 7.5, 20 * 7.5 + 37], [3 * 7.5, 3 * 7.5 + 37, 14 * 7.5, 150 + 37]]
    np.testing.assert_allclose(boxes, expected, atol=1e-3)
    assert pack.annotation(2).box_labels.tolist() == [1, 0]  # type: ignore[union-attr]
    assert pack.annotation(0).boxes.shape == (0, 4)  # type: ignore[union-attr]
    assert len(open_pack(out)) == 6
    good("verify", out)


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
@pytest.mark.parametrize("format", FORMATS)
def test_list_of_landmarks(format: str, encode: str) -> None:
    out = f"faces-{encode}.{format}"
    good(
        "build", "./faces", "--labels", "list:faces/landmarks.txt", "--columns", "path x*5 y*5", "--format", format,
        "--encode", encode, "-o", out,
    )  # fmt: skip
    pack = open_pack(out)
    expected = [[-1.5, 1], [13, 5], [20, 3], [30, 4], [35, 5.5]]
    np.testing.assert_array_equal(pack.annotation(3).landmarks, np.array(expected, np.float32))
    good("verify", out)


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
@pytest.mark.parametrize("format", FORMATS)
def test_voc_and_list_merge(format: str, encode: str) -> None:
    out = f"shots-{encode}.{format}"
    good(
        "build", "./shots", "--labels", "voc", "--labels", "list:shots/landmarks.txt", "--columns",
        "path (x y)*5 label", "--format", format, "--encode", encode, "-o", out,
    )  # fmt: skip
    pack = open_pack(out)
    assert pack.classes == ["bird", "day", "dog", "night"]
    a = pack.annotation(5)
    assert pack.classes[a.label or 0] == "night"
    np.testing.assert_array_equal(a.landmarks, np.array([[6, 2], [3, 9], [5, 6], [7, 8], [9.5, 10]], np.float32))
    np.testing.assert_array_equal(a.boxes, np.array([[6, 2, 17, 20], [6, 3, 17, 20]], np.float32))
    assert a.box_labels is not None and [pack.classes[c] for c in a.box_labels] == ["dog", "bird"]
    assert {"label", "boxes", "box_labels", "landmarks"} <= set(pack.manifest.fields)
    good("verify", out)


def test_as_its_own_program(desk: Path) -> None:
    ran = run_apart("build", "./imgs", "--format", "lmdb", "-o", "apart.lmdb", cwd=desk)
    assert ran.code == 0 and ran.err == ""
    assert ran.out.splitlines()[-1].endswith("; look at it: packer view apart.lmdb")
    assert run_apart("verify", "apart.lmdb", cwd=desk).code == 0
    assert "records    6 in 1 shard" in run_apart("info", "apart.lmdb", cwd=desk).out


LIST_OF_BOXES = "path (xmin ymin xmax ymax class)*"


@pytest.mark.parametrize(
    ("columns", "line", "problem"),
    [
        (LIST_OF_BOXES, "JPEGImages/{:03d}.jpg 1 2 3 4 dog", "gives boxes, and so does Annotations/000.xml"),
    ],
)
def test_two_that_give_boxes_are_refused(tmp_path: Path, columns: str, line: str, problem: str) -> None:
    draw_voc(tmp_path / "src", 3)
    (tmp_path / "boxes.txt").write_text("".join(line.format(i) + "\n" for i in range(3)))
    ran = run(
        "build", tmp_path / "src", "--labels", "voc", "--labels", f"list:{tmp_path}/boxes.txt", "--columns", columns,
    )  # fmt: skip
    assert ran.code == 1
    assert problem in ran.err and "boxes.txt:1" in ran.err
    assert sorted(os.listdir(tmp_path)) == ["boxes.txt", "src"]


def test_two_lists_of_which_each_says_something_else(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 3)
    (tmp_path / "a.txt").write_text("".join(f"{i:03d}.jpg {'xy'[i % 2]}\n" for i in range(3)))
    (tmp_path / "b.csv").write_text("".join(f"{i:03d}.jpg,{i},{i + 1}\n" for i in range(3)))
    columns = ["--columns", "path label", "--columns", "path x y"]
    lists = ["--labels", f"list:{tmp_path}/a.txt", "--labels", f"list:{tmp_path}/b.csv"]
    good("build", tmp_path / "src", *lists, *columns, "-o", tmp_path / "p")
    pack = open_pack(tmp_path / "p")
    assert [pack.annotation(i).label for i in range(3)] == [0, 1, 0]
    assert [pack.annotation(i).landmarks.tolist() for i in range(3)] == [[[i, i + 1]] for i in range(3)]  # type: ignore[union-attr]


def test_two_lists_that_contradict_each_other(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 3)
    (tmp_path / "a.txt").write_text("".join(f"{i:03d}.jpg x\n" for i in range(3)))
    (tmp_path / "b.txt").write_text("000.jpg x\n001.jpg y\n002.jpg x\n")
    lists = ["--labels", f"list:{tmp_path}/a.txt", "--labels", f"list:{tmp_path}/b.txt"]
    ran = run("build", tmp_path / "src", *lists, "--columns", "path label", "-o", tmp_path / "p")
    assert ran.code == 1 and "1 of 3 inputs is bad" in ran.err
    assert "001.jpg: b.txt:2: gives another label than a.txt:2" in ran.err


def classes_of(source: Path, out: Path, *options: str) -> tuple[list[str], list[int | None]]:
    good("build", source, "-o", out, "--labels", "folder", *options)
    pack = open_pack(out)
    return pack.classes, [pack.annotation(i).label for i in range(len(pack))]


def test_classes_file_gives_two_parts_the_same_ids(tmp_path: Path) -> None:
    from drawn import draw_classes

    draw_classes(tmp_path / "a", ("dog", "ant"), 1)
    draw_classes(tmp_path / "b", ("dog", "zebra"), 1)
    names = tmp_path / "names.txt"
    names.write_bytes(b"\xef\xbb\xbfzebra\r\ndog\r\nant\r\n")
    option = ["--classes", str(names)]
    assert classes_of(tmp_path / "a", tmp_path / "pa", *option) == (["zebra", "dog", "ant"], [2, 1])
    assert classes_of(tmp_path / "b", tmp_path / "pb", *option) == (["zebra", "dog", "ant"], [1, 0])
    assert classes_of(tmp_path / "b", tmp_path / "pc") == (["dog", "zebra"], [0, 1])


def test_class_outside_the_list_is_a_bad_label(tmp_path: Path) -> None:
    draw_voc(tmp_path / "src", 3)
    (tmp_path / "names.txt").write_text("bird\ncat\n")
    options: Sequence[str] = ["--classes", f"{tmp_path}/names.txt", "-o", f"{tmp_path}/p"]
    ran = run("build", tmp_path / "src", *options)
    assert ran.code == 1 and "2 of 3 inputs are bad" in ran.err
    assert "Annotations/001.xml: class dog is not in the class list of 2 names" in ran.err
    assert json.loads(good("build", tmp_path / "src", *options, "--max-bad", "2", "--json").out)["classes"] == [
        "bird", "cat"
    ]  # fmt: skip


def test_label_of_another_image_size_is_refused(tmp_path: Path) -> None:
    draw_voc(tmp_path / "src", 2)
    (tmp_path / "src/Annotations/001.xml").write_text(voc_xml("001.jpg", [("dog", 1, 1, 9, 9)], (80, 60)))
    ran = run("build", tmp_path / "src", "-o", tmp_path / "p")
    assert ran.code == 1 and "says that its image is 80x60, but the image is 40x30" in ran.err


@pytest.mark.parametrize("format", FORMATS)
def test_verify_names_what_is_damaged(tmp_path: Path, format: str) -> None:
    draw_plain(tmp_path / "src", 3)
    good("build", tmp_path / "src", "-o", tmp_path / "p", "--format", format)
    pack = open_pack(tmp_path / "p")
    file = tmp_path / "p" / pack.reader.shards[0].container.name
    data = bytearray(file.read_bytes())
    data[pack.reader.span(1)[0] + 5] ^= 1
    file.write_bytes(data)
    ran = run("verify", tmp_path / "p")
    assert ran.code == 4 and ran.out == ""
    assert "was altered" in ran.err and "record 00000001 does not match its checksum" in ran.err
    assert ran.err.endswith(f"try: packer repair {tmp_path / 'p'}\n")
    facts = json.loads(run("verify", tmp_path / "p", "--json").out)
    assert facts["good"] is False and {"file": file.name, "record": "00000001"}.items() <= facts["problems"][1].items()
    file.write_bytes(data[:-1])
    assert run("verify", tmp_path / "p").code == 4
    file.unlink()
    assert "is missing" in run("verify", tmp_path / "p").err
    manifest = tmp_path / "p" / "pack.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"records": 3', b'"records": 4'))
    ran = run("info", tmp_path / "p")
    assert ran.code == 4 and "does not match its own digest: it was altered" in ran.err


def test_info_lists_missing_files(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 3)
    good("build", tmp_path / "src", "-o", tmp_path / "p")
    assert "missing" not in good("info", tmp_path / "p").out
    assert json.loads(good("info", tmp_path / "p", "--json").out)["missing"] == []
    (tmp_path / "p" / "data.index.arrow").unlink()
    assert "\nmissing    data.index.arrow: packer repair " in good("info", tmp_path / "p").out
    assert json.loads(good("info", tmp_path / "p", "--json").out)["missing"] == ["data.index.arrow"]


def test_one_and_many() -> None:
    assert [plural(n, "image") for n in (0, 1, 2000)] == ["0 images", "1 image", "2,000 images"]
    assert [plural(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]
    assert [plural(n, "box is", "boxes are") for n in (1, 2)] == ["1 box is", "2 boxes are"]
    counts = {"found": 67000, "packed": 0, "rejected": 1000, "skipped": 66000}
    assert counts_text(counts) == "67,000 found = 0 packed + 1,000 rejected + 66,000 skipped"


def test_the_messages_of_a_single_image_have_no_plural(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 1)
    out = good("build", tmp_path / "src", "-o", tmp_path / "p", "--resize", "9").out
    out += "".join(good(command, tmp_path / "p").out for command in ("info", "verify", "stats"))
    out += repr(open_pack(tmp_path / "p"))
    assert "1 image, " in out and "1 record in 4 files" in out
    assert not re.findall(r"\b1 (?:\w+ )?(?:images|records|shards|files|classes|channels|are|have)\b", out)
