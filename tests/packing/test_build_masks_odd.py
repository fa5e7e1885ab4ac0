"""Masks of sets as strangers have them: folders in several places, colors and classes that disagree, packs joined."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from drawn_masks import COLORS, draw_mask, image_of, pairs, picture, write_files
from running import good
from test_build_masks import COLOR_FILES, build, drawn, masks_of, same

import packer
from packer import BuildOptions, PackedLoader, build_pack
from packer.errors import BadImage, BadMask, UsageError
from packer.format.content import deep_digest
from packer.format.salvage import repair
from packer.images.masks import decode_stored, encode_mask


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_black_and_white_in_three_channels(kind: str, tmp_path: Path) -> None:
    masks = {name: (np.kron(mask, np.ones((8, 8), np.uint8)) > 0) * np.uint8(255) for name, mask in drawn().items()}
    files = {f"images/{name}.png": picture(np.dstack([mask] * 3)) for name, mask in masks.items()}
    files |= {f"masks/{name}.{kind.lower()}": picture(np.dstack([mask] * 3), kind) for name, mask in masks.items()}
    pack = build(write_files(tmp_path / "set", files))
    assert same(masks_of(pack), {name: mask > 0 for name, mask in masks.items()})
    assert pack.classes == ["background", "foreground"]


def test_black_and_white_where_few_masks_have_white(tmp_path: Path) -> None:
    """White is not taken for the id to ignore because the masks that are looked at have none."""
    files = {f"images/{i:02}.png": picture(np.full((8, 8, 3), i, np.uint8)) for i in range(40)}
    files |= {f"masks/{i:02}.png": picture(np.full((8, 8), 255 * (i == 13), np.uint8)) for i in range(40)}
    pack = build(write_files(tmp_path / "set", files))
    assert {name: int(mask.max()) for name, mask in masks_of(pack).items() if mask.any()} == {"13": 1}
    assert pack.classes == ["background", "foreground"]


PLACES = [("ground_truth/{}", "_mask"), ("ground_truth/{}", ""), ("{}/masks", "")]


@pytest.mark.parametrize(("folder", "ending"), PLACES)
def test_the_note_on_masks_of_few_images_names_what_packs_them(folder: str, ending: str, tmp_path: Path) -> None:
    """MVTec AD has masks of damaged parts only; as in its loaders, those of good ones are background."""
    files = {}
    for number, kind in enumerate(("broken", "crack", *["good"] * 5)):
        for seed in (2 * number, 2 * number + 1):
            files[f"{kind}/{seed:03}.png"] = image_of(mask := draw_mask(seed, ids=2))
            if kind != "good":
                files[f"{folder.format(kind)}/{seed:03}{ending}.png"] = picture(mask * np.uint8(255))
    source = write_files(tmp_path / "set" / "bottle", files)
    ran = good("build", source, "-o", tmp_path / "classes")
    (note,) = (line for line in ran.out.splitlines() if "4 masks in " in line)
    command = note.partition("not packed: ")[2].partition(" packs them")[0]
    good("build", source, "-o", tmp_path / "masks", *shlex.split(command))
    plain, pack = packer.open_pack(tmp_path / "classes"), packer.open_pack(tmp_path / "masks")
    assert plain.paths == pack.paths and len(pack) == 14
    assert plain.classes == pack.classes == ["broken", "crack", "good"]
    for _, targets in PackedLoader(pack, 4):
        for target in targets:
            record = target["image_id"]
            assert plain.annotation(record).label == target["label"]
            seed = int(Path(os.fsdecode(pack.paths[record])).stem)
            assert np.array_equal(target["mask"], draw_mask(seed, ids=2) if seed < 4 else np.zeros((30, 40)))


@pytest.mark.parametrize("other", ["train", "val", "validation"])
def test_class_folders_of_another_split_with_masks(other: str, tmp_path: Path) -> None:
    """A split without masks of its own: the names of its folders are no classes of this one."""
    files = {}
    for split, kind, seed in (("test", "cat", 0), ("test", "dog", 1), (other, "cat", 2)):
        files[f"{split}/{kind}/{seed}.png"] = image_of(draw_mask(seed))
        if split == "test":
            files[f"masks/{kind}/{seed}.png"] = picture(draw_mask(seed))
    source = write_files(tmp_path / "set", files)
    for split, count in (("test", 2), (other, 1)):
        pack = build(source, mask="masks", missing_labels="empty", split=split, overwrite=True)
        assert len(pack) == count and pack.classes == ["cat", "dog"]


@pytest.mark.parametrize("masks", ["{}/masks", "{}_masks", "{}/masks/deeper"])
def test_folders_of_masks_in_several_places_are_one_set(masks: str, tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for number, place in enumerate(("a", "b", "c")):
        images = place if "_" in masks else f"{place}/images"
        for seed in range(number + 2):
            mask = draw_mask(10 * number + seed)
            files[f"{images}/{place}{seed}.png"] = image_of(mask)
            files[f"{masks.format(place)}/{place}{seed}.png"] = picture(mask)
    pack = build(write_files(tmp_path / "set", files))
    wanted = {f"{place}{s}": draw_mask(10 * n + s) for n, place in enumerate(("a", "b", "c")) for s in range(n + 2)}
    assert same(masks_of(pack), wanted)


@pytest.mark.parametrize(
    "names, ids",
    [
        ("cat bee ant background", [3, 2, 1, 0]),
        ("void cat bee ant background", [4, 3, 2, 1]),
        ("a b c d", [0, 1, 2, 3]),
    ],
)
def test_classes_keep_the_pixels_of_their_colors(names: str, ids: list[int], tmp_path: Path) -> None:
    files = pairs() | {f"masks/{name}.png": picture(COLORS[mask]) for name, mask in drawn().items()}
    source = write_files(tmp_path / "set", files | {"masks/label_colors.txt": COLOR_FILES["label_colors.txt"].encode()})
    (tmp_path / "classes.txt").write_text("\n".join(names.split()))
    pack = build(source, classes=str(tmp_path / "classes.txt"))
    assert pack.classes == names.split()
    assert same(masks_of(pack), {name: np.array(ids)[mask] for name, mask in drawn().items()})


def test_classes_that_colors_do_not_have(tmp_path: Path) -> None:
    files = pairs() | {f"masks/{name}.png": picture(COLORS[mask]) for name, mask in drawn().items()}
    source = write_files(tmp_path / "set", files | {"masks/label_colors.txt": COLOR_FILES["label_colors.txt"].encode()})
    (tmp_path / "classes.txt").write_text("background\nant\n")
    with pytest.raises(UsageError, match="background, ant, bee, cat"):
        build(source, classes=str(tmp_path / "classes.txt"))


@pytest.mark.parametrize("pattern", ["{stem.x}", "{stem[a]}", "{dir", "{0}", "{other}"])
def test_patterns_that_are_none(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a pattern"):
        build(write_files(tmp_path / "set", pairs()), mask=pattern)


def test_colors_beside_masks_of_a_pattern(tmp_path: Path) -> None:
    files = pairs() | {f"masks/{name}.png": picture(COLORS[mask]) for name, mask in drawn().items()}
    source = write_files(tmp_path / "set", files | {"masks/label_colors.txt": COLOR_FILES["label_colors.txt"].encode()})
    assert same(masks_of(build(source, mask="masks/{stem}.png")), drawn())


def two_packs(folder: Path, **more: dict[str, Any]) -> list[packer.Pack]:
    """Packs of other images, built with the options of `more`."""
    made = []
    for number, (name, options) in enumerate(more.items()):
        masks = {f"{name}{seed}": draw_mask(10 * number + seed) for seed in range(3)}
        files = {f"images/{one}.png": image_of(mask) for one, mask in masks.items()}
        most = 1 if options.get("mask_values") == "binary" else 255
        files |= {f"masks/{one}.png": picture(np.minimum(mask, most)) for one, mask in masks.items()}
        made.append(build(write_files(folder / name, files), **options))
    return made


@pytest.mark.parametrize("options", [{"ignore_id": 9}, {"ignore_id": 300}, {"mask_values": "binary"}])
def test_packs_whose_masks_mean_other_things_are_not_joined(options: dict[str, Any], tmp_path: Path) -> None:
    packs = two_packs(tmp_path, a={}, b=options)
    with pytest.raises(UsageError, match="has masks of "):
        packer.join_packs(packs)
    with pytest.raises(UsageError, match="has masks of "):
        packer.merge([pack.path for pack in packs], tmp_path / "all.lmdb")


def test_packs_with_masks_are_joined(tmp_path: Path) -> None:
    packs = two_packs(tmp_path, a={}, b={})
    wanted = masks_of(packs[0]) | masks_of(packs[1])
    assert same(masks_of(packer.join_packs(packs)), wanted)
    packer.merge([pack.path for pack in packs], tmp_path / "all.lmdb")
    assert same(masks_of(packer.open_pack(tmp_path / "all.lmdb")), wanted)


def test_the_digest_of_content_holds_what_masks_mean(tmp_path: Path) -> None:
    source = write_files(tmp_path / "set", pairs())
    one = deep_digest(build(source))
    assert one == deep_digest(build(source, overwrite=True)) != deep_digest(build(source, overwrite=True, ignore_id=9))


@pytest.mark.parametrize("options", [{"ignore_id": 300}, {"mask_classes": [f"c{i}" for i in range(300)]}])
def test_a_writer_of_masks_with_many_ids(options: dict[str, Any], tmp_path: Path) -> None:
    with packer.PackWriter(tmp_path / "written.lmdb", **options) as writer:
        writer.write(image_of(draw_mask(0)), mask=draw_mask(0), path="im0.png")
    pack = packer.open_pack(tmp_path / "written.lmdb")
    assert same(masks_of(pack), drawn(1))
    assert pack.mask(0).dtype == np.uint16  # type: ignore[union-attr]


def test_a_writer_whose_first_mask_is_refused(tmp_path: Path) -> None:
    with packer.PackWriter(tmp_path / "written.lmdb", mask_classes=["one"]) as writer:
        with pytest.raises(BadMask):
            writer.write(image_of(draw_mask(0)), mask=draw_mask(0))
        writer.write(image_of(draw_mask(0)))
    assert not packer.open_pack(tmp_path / "written.lmdb").manifest.masks


@pytest.mark.parametrize("where", ["SegmentationClass", "SegmentationClass/{stem}.png", "elsewhere"])
def test_masks_that_are_named_beside_others(where: str, tmp_path: Path) -> None:
    """Pictures of the other set are neither images nor in the way."""
    files = pairs("JPEGImages/{}.png", "SegmentationClass/{}.png")
    files |= {f"SegmentationObject/{name}.png": picture(mask + 7) for name, mask in drawn().items()}
    source = write_files(tmp_path / "set", files)
    if where == "elsewhere":
        write_files(tmp_path / where, {f"{name}.png": picture(mask) for name, mask in drawn().items()})
        where = str(tmp_path / where)
    pack = build(source, mask=where, mask_values="ids", labels=("none",))
    assert same(masks_of(pack), drawn())
    assert all(path.startswith("JPEGImages") for path in pack.paths)


def test_masks_of_16_bits_in_a_store(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="needs obstore (packer[remote])")
    files = pairs() | {f"masks/{name}.png": picture(mask.astype(np.uint16) * 300) for name, mask in drawn().items()}
    source = write_files(tmp_path / "set", files)
    build_pack(BuildOptions(f"file://{source}", str(tmp_path / "pack.lmdb"), workers=1))
    found = masks_of(packer.open_pack(tmp_path / "pack.lmdb"))
    assert same(found, {name: mask.astype(np.uint16) * 300 for name, mask in drawn().items()})


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"labels": ("masks:masks", "masks:nope")}, "at masks and at nope"),
        ({"labels": ("masks:masks",), "mask": "nope"}, "at nope and at masks"),
        ({"mask_values": "colors:nope.txt"}, "--mask-values=colors:nope.txt: there is no such file|mask_values"),
    ],
)
def test_options_that_contradict(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        build(write_files(tmp_path / "set", pairs()), **options)


def test_a_folder_of_masks_beside_classes_is_no_class(tmp_path: Path) -> None:
    files = pairs("ant/{}.png", "masks/ant/{}.png", count=2)
    files |= {name.replace("ant", "zebra").replace("im", "ze"): data for name, data in files.items()}
    pack = build(write_files(tmp_path / "set", files), missing_labels="empty")
    assert pack.classes == ["ant", "zebra"]
    assert [pack.annotation(i).label for i in range(len(pack))] == [0, 0, 1, 1]


def test_a_lost_manifest_says_that_masks_are_bytes_now(tmp_path: Path) -> None:
    path = Path(build(write_files(tmp_path / "set", pairs())).path)
    (path / "pack.json").unlink()
    repair(path, str(tmp_path / "repaired.lmdb"))
    assert "unknown: whether mask are masks" in " ".join(packer.open_pack(tmp_path / "repaired.lmdb").manifest.notes)


@pytest.mark.parametrize("place", [16, 33])
def test_a_length_in_a_stored_mask_takes_no_memory(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV, which would take gigabytes for a width or the length of a chunk, does not see the file."""
    data = bytearray(encode_mask(draw_mask(0), "png"))
    assert decode_stored(bytes(data), "png", (30, 40), "uint8").shape == (30, 40)
    data[place : place + 4] = (1 << 29).to_bytes(4, "big")
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("is decoded"))
    with pytest.raises(BadImage, match=r"truncated PNG|is not a gray PNG of 40x30"):
        decode_stored(bytes(data), "png", (30, 40), "uint8")


def test_colors_with_an_ignored_id_above_255(tmp_path: Path) -> None:
    files = pairs() | {f"masks/{name}.png": picture(COLORS[mask]) for name, mask in drawn().items()}
    source = write_files(tmp_path / "set", files | {"masks/label_colors.txt": COLOR_FILES["label_colors.txt"].encode()})
    pack = build(source, ignore_id=300)
    assert same(masks_of(pack), drawn()) and pack.mask(0).dtype == np.uint16
