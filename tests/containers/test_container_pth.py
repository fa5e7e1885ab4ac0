"""What is torch's own: the tensors of a shard, and files that torch.save has written."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from container_records import ANNOTATIONS, CLASSES, IMAGES, picture, records_of, write_shard

from packer.containers.pth import pickled
from packer.errors import UsageError
from packer.files.torch_tensors import Tensor, read_pickle
from packer.model.annotation import Annotation
from packer.repack.formats import ForeignFile, FormatOptions, open_format


@pytest.mark.parametrize("kind", IMAGES)
def test_torch_reads_the_same_with_and_without_a_map(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    write_shard("pth", str(path), kind, records_of(kind, ANNOTATIONS.values()))
    mapped, read = (torch.load(path, weights_only=True, mmap=mmap) for mmap in (True, False))
    assert mapped.keys() == read.keys()
    for name, value in mapped.items():
        assert torch.equal(value, read[name]) if isinstance(value, torch.Tensor) else value == read[name]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    # torch writes it again, with its own headers
    torch.save(read, tmp_path / "again")
    again = torch.load(tmp_path / "again", weights_only=True, mmap=True)
    assert again.keys() == read.keys() and torch.equal(again["images"], mapped["images"])


def test_tensors(tmp_path: Path) -> None:
    notes = [ANNOTATIONS[name] for name in ("boxes", "none", "empty", "keypoints", "label")]
    path = tmp_path / "shard"
    (first, *_) = write_shard("pth", str(path), "raw", records_of("raw", notes))
    assert first.offset % 64 == 0
    file = torch.load(path, weights_only=True, mmap=True)
    assert file["images"].shape == (5, 8, 6, 3) and file["images"].dtype == torch.uint8
    assert file["labels"].tolist() == [-1, -1, 0, -1, 2]
    assert file["box_offsets"].tolist() == [0, 2, 2, 2, 4, 4] and file["boxes"].shape == (4, 4)
    assert file["classes"] == list(CLASSES) and file["encoding"] == "raw"
    assert all(value.data_ptr() % 8 == 0 for value in file.values() if isinstance(value, torch.Tensor))


def test_sixteen_bits(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    write_shard("pth", str(path), "raw16", records_of("raw16", [Annotation()] * 2))
    assert torch.load(path, weights_only=True)["images"].dtype == torch.uint16


def test_names_of_classes_of_any_text() -> None:
    content = {"classes": ["caf\u00e9", "\udcff", "", "\u2028"], "empty": Tensor("1", "float32", (0, 4))}
    assert read_pickle(pickled(content)) == content
    assert pickle.loads(pickled({"classes": content["classes"]})) == {"classes": content["classes"]}


def test_tensor_of_more_than_4_gb() -> None:
    tensor = Tensor("0", "uint8", (40_000, 224, 224, 3))
    assert read_pickle(pickled({"images": tensor}))["images"] == tensor
    assert tensor.bytes == 40_000 * 224 * 224 * 3


# -- files of other tools

IMAGES_4 = torch.from_numpy(np.stack([picture(i, 5, 4) for i in range(4)]))


def images_in(path: Path, content: Any, **options: Any) -> list[bytes]:
    """What is adopted of a file."""
    torch.save(content, path, **options)
    return read(path)


def read(path: Path) -> list[bytes]:
    with ForeignFile(str(path)) as file:
        return [file.view[at : at + size] for _, at, size, *_ in open_format("pth", FormatOptions())(file)]


@pytest.mark.parametrize(
    "content",
    [
        IMAGES_4,
        (IMAGES_4, torch.arange(4)),
        {"images": IMAGES_4, "labels": torch.arange(4), "epoch": 3, "names": ["a", ("b", 1.5, None, True)]},
        {"labels": [torch.arange(4)] * 2000, "images": torch.cat([IMAGES_4, IMAGES_4])[4:]},
        {"images": IMAGES_4.to(torch.int16).to(torch.uint8).unsqueeze(0).expand(1, 4, 5, 4, 3)[0]},
    ],
    ids=["tensor", "pair", "dict", "view", "unsqueezed"],
)
def test_images_of_one_shape(content: Any, tmp_path: Path) -> None:
    assert images_in(tmp_path / "f", content) == [image.numpy().tobytes() for image in IMAGES_4]


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        ({"images": [IMAGES_4[0], IMAGES_4[1]]}, {}, "no array at all"),
        ({"images": torch.nn.Parameter(IMAGES_4, requires_grad=False)}, {}, "no array at all"),
        ({"labels": torch.arange(4)}, {}, "no array of images"),
        ({"images": IMAGES_4.permute(0, 3, 1, 2)}, {}, "not contiguous"),
        ({"images": IMAGES_4[:, ::2]}, {}, "not contiguous"),
        ({"images": IMAGES_4.to(torch.bfloat16)}, {}, "BFloat16Storage"),
        (IMAGES_4, {"_use_new_zipfile_serialization": False}, "not a zip"),
    ],
    ids=["list", "parameter", "no images", "strides", "step", "bfloat16", "old"],
)
def test_files_that_are_refused(content: Any, options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        images_in(tmp_path / "f", content, **options)


def test_compressed_file_is_refused(tmp_path: Path) -> None:
    torch.save({"images": IMAGES_4}, tmp_path / "f")
    with (
        zipfile.ZipFile(tmp_path / "f") as source,
        zipfile.ZipFile(tmp_path / "g", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(UsageError, match="compressed"):
        read(tmp_path / "g")


class Malice:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    content = {"images": IMAGES_4, "more": Malice(tmp_path / "touched")}
    assert len(images_in(tmp_path / "f", content)) == 4
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x02", b"\x80\x02.", b"(t", b"h\5.", b"\x80\x02}(K\1u.", b"cos\nsystem\n)R."]
)
def test_pickles_that_are_refused(data: bytes) -> None:
    if data.endswith(b"R."):
        assert read_pickle(data) is None
        return
    with pytest.raises(ValueError):
        read_pickle(data)
