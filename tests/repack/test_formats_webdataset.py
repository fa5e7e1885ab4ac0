"""WebDataset tars: what is found in them, whoever wrote them, and whatever is wrong with them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from drawn import image_file
from drawn_masks import draw_mask, image_of, picture
from foreign_files import samples, write_tar

from packer import BuildOptions, adopt, build_pack, open_pack
from packer.errors import UsageError
from packer.files.tar_segments import tar_files
from packer.format.pack import Pack
from packer.repack.formats import ForeignFile


def adopted(tmp_path: Path, *tars: Path, **options: Any) -> Pack:
    adopt(tars, tmp_path / "pack", **options)
    return open_pack(tmp_path / "pack")


def found_in(path: Path) -> list[tuple[bytes, int, int]]:
    with ForeignFile(str(path)) as file:
        return list(tar_files(file.view, file.path))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("mtime", [0, 1.5])
@pytest.mark.parametrize("name", ["a{}.x", "long/{}" + "n" * 120 + ".x", "\u00e9{}.x", "{}/" + "d" * 90 + "/x.y"])
def test_members_are_those_of_tarfile(form: int, mtime: float, name: str, tmp_path: Path) -> None:
    if form == tarfile.USTAR_FORMAT and "n" * 120 in name:
        pytest.skip("ustar has no place for such a name")
    members = [(name.format(i), bytes([i + 1]) * size) for i, size in enumerate((1, 511, 512, 513, 0, 5000))]
    tar = write_tar(tmp_path / "a.tar", members, form, mtime)
    with tarfile.open(tar) as file:
        expected = [(m.name.encode(), m.offset_data, m.size) for m in file]
    assert found_in(tar) == expected


def test_segments_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [(f"{i:03d}.jpg", bytes([i]) * (37 * i)) for i in range(60)]
    for form in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT):
        tar = write_tar(tmp_path / "a.tar", members, form, 1.5)
        expected = found_in(tar)
        assert len(expected) == 60
        for blocks in (1, 2, 3, 7, 40):
            monkeypatch.setattr("packer.files.tar_segments.SEGMENT_BLOCKS", blocks)
            assert found_in(tar) == expected


def test_a_tar_in_a_tar_is_one_member(tmp_path: Path) -> None:
    inner = write_tar(tmp_path / "inner.tar", [("x.jpg", b"1" * 600), ("y.jpg", b"2" * 700)]).read_bytes()
    tar = write_tar(tmp_path / "a.tar", [("a.tar", inner), ("b.jpg", b"3")])
    assert [name for name, *_ in found_in(tar)] == [b"a.tar", b"b.jpg"]


def test_links_and_folders(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind in (("d", tarfile.DIRTYPE), ("d/a.jpg", tarfile.REGTYPE), ("b.jpg", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "d/a.jpg"
            info.size = 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"abc") if info.size else None)
    assert [(name, size) for name, _, size in found_in(tmp_path / "a.tar")] == [(b"d/a.jpg", 3), (b"b.jpg", -1)]


def test_webdatasets_own_writer(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for i in range(6):
            fields = {"source": f"{i}.png", "class_name": "bee" if i % 2 else "ant"}
            sample = {
                "__key__": f"part/{i:03d}",
                "jpg": image_file(i),
                "cls": i % 2,
                "json": fields,
                "txt": f"text {i}",
            }
            writer.write(sample)
    pack = adopted(tmp_path, tmp_path / "a.tar")
    assert pack.classes == ["ant", "bee"]
    for i in range(6):
        annotation = pack.annotation(i)
        assert annotation.label == i % 2
        assert annotation.extras == {"source": f"{i}.png", "txt": f"text {i}"}
        assert pack.paths[i] == f"part/{i:03}.jpg" and bytes(pack.record(i)) == image_file(i)


@pytest.mark.parametrize(
    ("members", "columns", "expected"),
    [
        ({"cls": b"2"}, {}, ("2", {})),
        ({"cls": b" cat\n"}, {}, ("cat", {})),
        ({"txt": b"1"}, {}, ("1", {})),
        ({"txt": b"a cat"}, {"label": "txt"}, ("a cat", {})),
        ({"txt": b"a cat", "cls": b"0"}, {}, ("0", {"txt": "a cat"})),
        ({"json": b'{"label": 1, "class_name": "bee", "k": [1]}'}, {}, ("bee", {"k": [1]})),
        ({"json": b'{"category": "bee"}'}, {}, ("bee", {})),
        ({"json": b'{"kind": "wasp", "label": 1}'}, {"label": "json:kind"}, ("wasp", {"label": 1})),
        ({"json": b'{"label": "3"}'}, {}, ("3", {})),
        ({"class": b"x"}, {"label": "class"}, ("x", {})),
    ],
)
def test_where_the_class_is(
    members: dict[str, bytes], columns: dict[str, str], expected: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    sample = [(f"a.{name}", data) for name, data in members.items()]
    tar = write_tar(tmp_path / "a.tar", [*sample[:1], ("a.jpg", image_file(1)), *sample[1:]])
    pack = adopted(tmp_path, tar, columns=columns)
    label = pack.annotation(0).label
    assert label is not None and (pack.classes[label], pack.annotation(0).extras) == expected


def test_several_images_of_a_sample(tmp_path: Path) -> None:
    members = [("a.left.jpg", image_file(1)), ("a.cls", b"1"), ("a.right.png", image_file(2, format="PNG"))]
    tar = write_tar(tmp_path / "a.tar", [*members, ("a.txt.gz", b"x"), ("nodot", b"y"), ("b.mp4", b"z")])
    pack = adopted(tmp_path, tar)
    assert pack.paths == ["a.left.jpg", "a.right.png"] and [pack.annotation(i).label for i in (0, 1)] == [1, 1]
    assert adopted(tmp_path, tar, columns={"image": "left.jpg"}, overwrite=True).paths == ["a.left.jpg"]


def test_a_sample_without_an_image(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("b.jpg", image_file(1)), ("b.cls", b"0"), ("c.txt", b"2")])
    assert adopted(tmp_path, tar).paths == ["b.jpg"]


@pytest.mark.parametrize("text", [b"{", b"[1]", b'{"label": [1]}', b'{"a": NaN, "label": 1}', b"[" * 100_000])
def test_bad_json_is_a_bad_label(text: bytes, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [*samples(2), ("x.jpg", image_file(1)), ("x.json", text)])
    pack = adopted(tmp_path, tar, max_bad="1")
    (rejected,) = pack.manifest.rejected
    assert (rejected.path, rejected.reason) == ("x.jpg", "bad-label")


@pytest.mark.parametrize("text", [b"-7", b"65536", b"99999999999999999"])
def test_a_number_that_is_no_class(text: bytes, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [*samples(2), ("x.jpg", image_file(1)), ("x.cls", text)])
    assert len(adopted(tmp_path, tar, max_bad="1")) == 2


def test_packers_own_tar_without_its_pack(tmp_path: Path) -> None:
    from packs import draw_kind

    options = draw_kind("boxes", tmp_path / "source")
    for encode in ("raw", "jpeg"):
        out = tmp_path / f"{encode}.webdataset"
        build_pack(BuildOptions(str(tmp_path / "source"), str(out), encode=encode, **options))  # type: ignore[arg-type]
        tars = sorted(out.glob("*.tar"))
        pack, old = adopted(tmp_path, *tars, overwrite=True), open_pack(out)
        assert len(pack) == len(old) and pack.manifest.encoding == ("raw" if encode == "raw" else "copy")
        for i in range(len(pack)):
            new, before = pack.sample(i), old.sample(i)
            assert (new.image == before.image).all()
            for name in ("boxes", "landmarks"):
                np.testing.assert_array_equal(getattr(new.annotation, name), getattr(before.annotation, name))
            names = [
                [p.classes[k] for k in a.box_labels] for p, a in ((pack, new.annotation), (old, before.annotation))
            ]  # type: ignore[union-attr]
            assert names[0] == names[1] and new.annotation.box_fields == before.annotation.box_fields


@pytest.mark.parametrize("ending", ["depth.png", "matte.jpg"])
def test_other_pictures_beside_images_are_left_out_with_a_note(ending: str, tmp_path: Path) -> None:
    image, mask = image_of(draw_mask(0), "JPEG"), picture(draw_mask(0))
    names = [(f"{i}.{end}", data) for i in range(3) for end, data in (("jpg", image), (ending, mask), ("cls", b"1"))]
    pack = adopted(tmp_path, write_tar(tmp_path / "a.tar", names))
    assert pack.paths == ["0.jpg", "1.jpg", "2.jpg"]
    assert any(note.startswith(f"left out: 3 {ending} of the samples") for note in pack.manifest.notes)
    alone = write_tar(tmp_path / "b.tar", [(f"{i}.{ending}", mask) for i in range(2)])
    adopt([alone], tmp_path / "masks")
    assert len(open_pack(tmp_path / "masks")) == 2


def test_a_damaged_tar_is_one_clear_error(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", samples(3))
    whole = tar.read_bytes()
    rng = np.random.default_rng(0)
    for kind in ("cut", "flip", "noise"):
        for _ in range(8):
            data = bytearray(whole)
            if kind == "cut":
                data = data[: int(rng.integers(1, len(data)))]
            elif kind == "flip":
                block = 512 * int(rng.integers(0, len(data) // 512))
                data[block + int(rng.integers(0, 160))] ^= 1 << int(rng.integers(0, 8))
            else:
                at = int(rng.integers(0, len(data) - 64))
                data[at : at + 64] = rng.bytes(64)
            tar.write_bytes(data)
            try:
                adopt([tar], tmp_path / "pack", max_bad="100%", missing_labels="empty", overwrite=True)
            except Exception as error:
                assert type(error).__module__ == "packer.errors", error
                assert "a.tar" in str(error)


def test_a_header_with_a_wrong_checksum(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", samples(3))
    data = bytearray(tar.read_bytes())
    second = found_in(tar)[1][1] - 512
    data[second + 2] ^= 1
    tar.write_bytes(data)
    with pytest.raises(UsageError, match=f"no valid header at byte {second}"):
        adopt([tar], tmp_path / "pack")
    tar.write_bytes(data[: second + 100])
    with pytest.raises(UsageError, match="truncated"):
        adopt([tar], tmp_path / "pack")


def test_members_of_a_json_survive(tmp_path: Path) -> None:
    text = json.dumps({"label": 0, "name": "\ud800", "deep": {"x": [None, True, 1.5]}}).encode()
    pack = adopted(tmp_path, write_tar(tmp_path / "a.tar", [("x.jpg", image_file(1)), ("x.json", text)]))
    assert pack.annotation(0).extras == {"name": "\ud800", "deep": {"x": [None, True, 1.5]}}
    assert os.path.isfile(tmp_path / "pack" / "pack.json")
