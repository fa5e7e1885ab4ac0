"""flip_index: left and right points are exchanged in flipped images, by the argument or by what the build has found."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from packer import BuildOptions, PackedLoader, RandomResizedCrop, build_pack, open_pack
from packer.errors import DamagedPack, UsageError
from packer.format.manifest import digest_of
from packer.loading import targets as targets_module

FACE = (1, 0, 2, 4, 3)
POINTS = [[10, 6], [30, 7], [20, 10], [12, 15], [28, 16]]
NAMES = ["left_eye", "right_eye", "nose", "mouth_left", "mouth_right"]


def built(root, labels, columns=()):
    build_pack(BuildOptions(str(root / "src"), str(root / "pack"), workers=1, labels=labels, columns=columns))
    return root / "pack"


def faces(root, header=""):
    """Four images of 40x20 with five landmarks."""
    (root / "src").mkdir(parents=True)
    row = " ".join(f"{x} {y}" for x, y in POINTS)
    for i in range(4):
        Image.fromarray(np.full((20, 40, 3), i, np.uint8)).save(root / "src" / f"{i}.png")
    text = header + "".join(f"{i}.png {row}\n" for i in range(4))
    (root / "list.txt").write_text(text)
    return built(root, (f"list:{root / 'list.txt'}",), ("path (x y)*5",))


def poses(root, extra):
    """Two images of 40x20: one with two objects of five keypoints, one with none."""
    for folder in ("images/train", "labels/train"):
        (root / "src" / folder).mkdir(parents=True)
    points = " ".join(f"{x / 40} {y / 20} {i % 3}" for i, (x, y) in enumerate(POINTS))
    for name, rows in (("a", [f"0 0.5 0.5 1 1 {points}"] * 2), ("b", [])):
        Image.fromarray(np.zeros((20, 40, 3), np.uint8)).save(root / "src/images/train" / f"{name}.png")
        (root / "src/labels/train" / f"{name}.txt").write_text("\n".join(rows))
    (root / "src" / "data.yaml").write_text(f"names: [face]\nkpt_shape: [5, 3]\ntrain: images/train\n{extra}")
    return built(root, ("yolo",))


def mirrored(points=POINTS, index=FACE):
    return torch.tensor([[40.0 - points[i][0], points[i][1]] for i in index])


def landmarks(loader):
    return [target["landmarks"] for _, targets in loader for target in targets]


@pytest.mark.parametrize("cache", [None, "device"])
def test_landmarks_change_places_where_the_image_is_flipped(tmp_path, cache):
    pack = faces(tmp_path)
    options = {"flip_index": FACE, "cache": cache}
    assert all(torch.equal(found, mirrored()) for found in landmarks(PackedLoader(pack, 3, flip=1.0, **options)))
    plain = torch.tensor(POINTS, dtype=torch.float32)
    assert all(torch.equal(found, plain) for found in landmarks(PackedLoader(pack, 3, **options)))
    some = landmarks(PackedLoader(pack, 3, flip=True, seed=1, **options))
    kinds = [torch.equal(found, plain) + 2 * torch.equal(found, mirrored()) for found in some]
    assert set(kinds) == {1, 2}


def test_without_an_index_points_keep_their_places_with_one_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(targets_module, "_warned", set())
    pack = faces(tmp_path)
    with pytest.warns(UserWarning, match=r"flip mirrors landmarks.*pass flip_index, such as \(1, 0, 2, 4, 3\)") as seen:
        loaders = [PackedLoader(pack, 4, flip=1.0) for _ in range(3)]
    assert len(seen) == 1 and seen[0].filename == __file__
    assert torch.equal(landmarks(loaders[0])[0], mirrored(index=range(5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        targets_module._warned.clear()
        PackedLoader(pack, 4)
        assert torch.equal(landmarks(PackedLoader(pack, 4, flip=1.0, flip_index=range(5)))[0], mirrored(index=range(5)))


def test_a_header_with_names_gives_the_index_unasked(tmp_path):
    """CelebA's list begins so: no name for the path."""
    names = (
        "4\nlefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y rightmouth_x rightmouth_y\n"
    )
    pack = faces(tmp_path, names)
    assert open_pack(pack).manifest.flip_index == FACE
    assert torch.equal(landmarks(PackedLoader(pack, 4, flip=1.0))[0], mirrored())
    assert torch.equal(landmarks(PackedLoader(pack, 4, flip=1.0, flip_index=range(5)))[0], mirrored(index=range(5)))


@pytest.mark.parametrize("extra", [
    "flip_idx: [1, 0, 2, 4, 3]\n", f"kpt_names: {json.dumps({0: NAMES})}\n", f"kpt_names: {json.dumps(NAMES)}\n",
], ids=["flip_idx", "names by class", "names"])  # fmt: skip
def test_keypoints_of_yolo_change_places_with_their_visibility(tmp_path, extra):
    pack = poses(tmp_path, extra)
    assert open_pack(pack).manifest.flip_index == FACE
    ((_, (full, empty)),) = PackedLoader(pack, 2, flip=1.0)
    expected = torch.cat([mirrored(), torch.tensor([[float(i % 3)] for i in FACE])], dim=1)
    assert torch.allclose(full["keypoints"], expected.expand(2, 5, 3), atol=1e-5)
    assert empty["keypoints"].shape == (0, 5, 3)
    ((_, (full, _)),) = PackedLoader(pack, 2, flip=1.0, crop=RandomResizedCrop(30, scale=(0.9, 1.0)), seed=3)
    assert (full["keypoints"][0, 1, 0] > full["keypoints"][0, 0, 0]).all()  # the left eye stays the left one


@pytest.mark.parametrize("extra", ["", "kpt_names: [a, b, c, d, e]\n", "kpt_names: {0: [left, right]}\n"])
def test_names_without_sides_say_nothing(tmp_path, extra):
    assert open_pack(poses(tmp_path, extra)).manifest.flip_index is None


@pytest.mark.parametrize("value", ["[0, 1]", "[0, 0, 1, 2, 3]", "[0, 1, 2, 3, x]", "none"])
def test_a_wrong_flip_idx_stops_the_build(tmp_path, value):
    with pytest.raises(UsageError, match="flip_idx: does not have each number from 0 to 4 once"):
        poses(tmp_path, f"flip_idx: {value}\n")


def test_what_is_no_index_is_refused(tmp_path):
    pack = faces(tmp_path)
    for wrong in ((0, 1), (0, 0, 1, 2, 3), (1, 2, 3, 4, 5), "abcde", 5, (0.5, 1)):
        with pytest.raises(UsageError, match="flip_index"):
            PackedLoader(pack, 4, flip_index=wrong)
    (tmp_path / "plain" / "a").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "plain" / "a" / "0.png")
    build_pack(BuildOptions(str(tmp_path / "plain"), str(tmp_path / "out"), workers=1, labels=("folder",)))
    with pytest.raises(UsageError, match="but the pack has none"):
        PackedLoader(tmp_path / "out", 1, flip_index=FACE)


def test_a_manifest_without_it_is_as_before_and_a_wrong_one_is_damaged(tmp_path):
    pack = faces(tmp_path)
    text = (pack / "pack.json").read_text()
    assert "flip_index" not in text
    for value, good in (([4, 3, 2, 1, 0], True), ([0, 0, 1], False), ("x", False)):
        content = {**json.loads(text), "flip_index": value}
        keys = list(content)
        keys.insert(keys.index("packer"), keys.pop())  # in the order of the fields
        content = {key: content[key] for key in keys}
        content["digest"] = digest_of(content)
        (pack / "pack.json").write_text(json.dumps({k: content[k] for k in keys}, indent=1) + "\n")
        if good:
            assert open_pack(pack).manifest.flip_index == (4, 3, 2, 1, 0)
        else:
            with pytest.raises(DamagedPack):
                open_pack(pack)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((1, 0.5, 2, 4, 3), r"must have each number from 0 once, got \(1, 0.5, 2, 4, 3\)"),
        ("10243", "must have each number from 0 once, got '10243'"),
        ((1, 2, 0, 4, 3), "says that 0 becomes 1 in a flip, but 1 becomes 2; points change places in pairs"),
    ],
)
def test_points_change_places_in_pairs(tmp_path, index, message):
    with pytest.raises(UsageError, match=message):
        PackedLoader(faces(tmp_path), 4, flip=True, flip_index=index)


def test_a_flip_idx_without_pairs_stops_the_build(tmp_path):
    with pytest.raises(UsageError, match="flip_idx: points do not change places in pairs"):
        poses(tmp_path, "flip_idx: [1, 2, 0, 4, 3]\n")
