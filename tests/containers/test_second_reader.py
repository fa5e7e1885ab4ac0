"""A reader that was written from docs/formats.md alone agrees with packer's, and finds what is changed."""

from __future__ import annotations

import ast
import io
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import independent_digest
import independent_reader as second
import numpy as np
import pyarrow as pa
import pytest
from packs import noise
from PIL import Image

from packer import BuildOptions, PackWriter, adopt, attach, build_pack, edit, merge, open_pack, purge
from packer.containers import container_names
from packer.format.content import content_digest, deep_digest
from packer.format.content_by_path import content_digest_by_path, deep_digest_by_path
from packer.format.pack import Pack

GOLDEN = sorted(path.parent for path in (Path(__file__).parents[1] / "golden").glob("*/*/pack.json"))
FIELDS = (
    "label", "boxes", "box_labels", "landmarks", "polygons", "keypoints", "box_fields", "extras", "tags", "value",
    "rles", "obb",
)  # fmt: skip
FLOATS = ("boxes", "landmarks", "polygons", "keypoints", "value", "obb")
PARTS = {"depth": "map", "far": "map", "right": "image", "code": "array", "said": "text", "more": "json"}
KINDS = ("raw", "alike", "ragged", "deep", "jpeg", "png", "bmp", "copy", "turned", "tagged")
"""raw, png: with all labels and parts, which some records lack. alike: with all parts, of one size. ragged: of many
sizes. deep: uint16. turned: oriented boxes."""
HEIGHT, WIDTH, COUNT = 9, 11, 7


def labels_of(kind: str, i: int) -> dict[str, Any]:
    """What image `i` has: everything, no object, or nothing at all."""
    if kind in ("alike", "ragged"):
        return {"label": i % 2}
    if kind == "turned":
        return {"obb": [[[k + 1, 2], [5.1, 1 + k], [7, 4.3], [2, 6]] for k in range(i % 3)], "label": i % 2}
    if i % 4 == 2:
        return {}
    count = i % 4
    boxes = [[0.1 + k, 1 / 3, 4.7, 5.25 + k] for k in range(count)]
    outlines: dict[str, Any] = {
        "polygons": [[[a, b], [c, b], [c, d]][: 3 * (k % 2)] for k, (a, b, c, d) in enumerate(boxes)],
        "masks": [(noise(9 * i + k, HEIGHT, WIDTH, 1)[..., 0] > 99).astype(np.uint8) for k in range(count)],
    }
    kept = "polygons" if kind in ("jpeg", "bmp") else "masks"  # a record has one of them
    return {
        "label": ("ant", "büg")[i % 2], "boxes": boxes, "box_labels": [k % 2 for k in range(count)],
        kept: outlines[kept],
        "keypoints": [[[a, b, 2], [c / 3, d, 0]] for a, b, c, d in boxes], "landmarks": [[1.5, -2.2], [30, 1e-3]],
        "box_fields": {"difficult": [k % 2 for k in range(count)], "pose": ["Left"] * count},
        "value": [0.1 * i, -3], "extras": {"night": True, "ä": [1, None, {"b": 0.1}]},
    }  # fmt: skip


def parts_of(i: int) -> dict[str, Any]:
    return {
        "depth": noise(i + 50, HEIGHT, WIDTH, 1, "uint16")[..., 0], "said": f"Nr. {i}: ä", "more": {"n": [i]},
        "far": noise(i + 70, HEIGHT, WIDTH, 2).astype(np.float32) / 7, "right": noise(i + 90, HEIGHT, WIDTH),
        "code": np.arange(i + 1, dtype=np.float16),
    }  # fmt: skip


def as_file(pixels: Any, kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def write_tagged(home: Path, container: str) -> Path:
    (home / "source").mkdir()
    rows = [f"{i}.png {i % 2} 1 {i // 4}" for i in range(COUNT)]
    (home / "source/list.txt").write_text("\n".join(rows) + "\n", "ascii")
    for i in range(COUNT + 1):  # the last is not in the list
        (home / f"source/{i}.png").write_bytes(as_file(noise(i, HEIGHT, WIDTH), "PNG"))
    labels = (f"list:{home / 'source/list.txt'}",)
    build_pack(BuildOptions(
        str(home / "source"), str(home / "pack"), container, shard_bytes=900, workers=1, labels=labels,
        columns=("path tag*3",), encode="copy", missing_labels="skip", no_fingerprints=True,
    ))  # fmt: skip
    return home / "pack"


def write(home: Path, container: str, kind: str) -> Path:
    """Write a pack of several shards."""
    if kind == "tagged":
        return write_tagged(home, container)
    with PackWriter(
        home / "pack", format=container, classes=["ant", "büg"], mask_classes=["a", "b"], shard_bytes=900,
        encode=kind if kind in ("jpeg", "png", "bmp") else "raw",
        parts=PARTS if kind in ("raw", "png", "alike") else {},
    ) as writer:  # fmt: skip
        for i in range(COUNT):
            dtype = "uint16" if kind == "deep" else "uint8"
            pixels: Any = noise(i, HEIGHT, WIDTH + i * (kind == "ragged"), 3, dtype)
            if kind == "copy":
                pixels = as_file(pixels, ("PNG", "JPEG", "GIF")[i % 3])
            given = labels_of(kind, i)
            if kind in ("raw", "png", "alike"):
                lacks = kind != "alike" and i % 4 == 2
                given["parts"] = {k: v for k, v in parts_of(i).items() if not lacks or k in ("code", "said")}
                given["mask"] = None if lacks else noise(i + 30, HEIGHT, WIDTH, 1)[..., 0] % 2
            writer.write(pixels, path=f"a/{i}\udcff.jpg", **given)
    return home / "pack"


def as_json(value: Any) -> Any:
    """Arrays and tuples as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return {name: as_json(item) for name, item in value.items()} if isinstance(value, dict) else value


def as_float32(value: Any) -> Any:
    return [as_float32(item) for item in value] if isinstance(value, list) else float(np.float32(value))


def rounded(note: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a record, whose numbers read back to the exact float32."""
    return note | {name: as_float32(note[name]) for name in FLOATS if name in note}


def said_by_packer(pack: Pack, i: int) -> dict[str, Any]:
    """The annotation of a record, as its JSON has it."""
    annotation, (height, width, channels) = pack.annotation(i), pack.reader.shape_of(i)
    found = {name: as_json(getattr(annotation, name)) for name in FIELDS}
    found = {name: value for name, value in found.items() if value is not None and value != {}}
    if annotation.rles is not None:
        found["rles"] = [counts.tobytes().decode("ascii") for counts in annotation.rles]
    if annotation.label is not None:
        found["class"] = pack.classes[annotation.label]
    if annotation.box_labels is not None:
        found["box_classes"] = [pack.classes[label] for label in annotation.box_labels]
    parts = {name: pack.reader.part(i, name) for name in pack.manifest.parts}
    if held := {name: len(data) for name, data in parts.items() if data is not None}:
        found["parts"] = held
    return found | {
        "key": pack.key(i), "path": pack.paths[i], "height": height, "width": width, "channels": channels,
        "dtype": pack.image(i).dtype.name, "encoding": pack.reader.encoding_of(i),
    }  # fmt: skip


def check(folder: Path, foreign: bool = True) -> None:
    """Compare all that both readers say. `foreign`: the container file has the pack's labels too."""
    second.check_files(folder)
    pack, found = open_pack(folder), list(second.records(folder))
    assert len(found) == len(pack)
    for i, (key, data, note, parts) in enumerate(found):
        source = note.pop("source_xxh3")
        assert data == bytes(pack.record(i))
        if note["encoding"] == "raw":
            shape = note["height"], note["width"], note["channels"]
            pixels = np.frombuffer(data, np.dtype(note["dtype"]).newbyteorder("<")).reshape(shape)
            assert np.array_equal(pixels, pack.image(i))
        assert second.crc32c(key.encode("ascii") + data) == pack.column("crc32c")[i]
        assert source == bytes(pack.column("source_xxh3")[i]).hex()
        sizes = {name: part["bytes"] for name, part in note.get("parts", {}).items()}
        assert {**note, **({"parts": sizes} if sizes else {})} == said_by_packer(pack, i)
        assert all(bytes(pack.reader.part(i, name)) == part for name, part in parts.items())
        note["source_xxh3"] = source
    if foreign:
        assert [(key, data, rounded(note), parts) for key, data, note, parts in second.foreign_records(folder)] == found
    for written, shallow, deep in (
        (independent_digest.plain, content_digest, deep_digest),
        (independent_digest.by_path, content_digest_by_path, deep_digest_by_path),
    ):
        assert written(folder, deep=False) == shallow(pack.reader.indexes, pack.manifest)
        assert written(folder, deep=True) == deep(pack)


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda path: "-".join(path.parts[-2:]))
def test_packs_of_each_version(folder: Path) -> None:
    check(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("container", container_names())
def test_new_packs(container: str, kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path, container, kind)
    assert len(second.manifest_of(folder)["shards"]) > 1
    check(folder)


def pixels_of(data: bytes, encoding: str, dtype: str, shape: tuple[int, ...]) -> Any:
    """Read a mask or map that is not a picture, as docs/formats.md says."""
    if encoding == "npy":
        return np.load(io.BytesIO(data), allow_pickle=False)
    kind = np.dtype(dtype).newbyteorder("<")
    if encoding == "zstd":
        size = int(np.prod(shape))
        data = pa.decompress(data, size * kind.itemsize, "zstd", asbytes=True)
        data = np.frombuffer(data, np.uint8).reshape(kind.itemsize, size).T.tobytes()
    return np.frombuffer(data, kind).reshape(shape)


@pytest.mark.parametrize(
    ("container", "kind"), [("lmdb", "raw"), ("lmdb", "png"), ("parquet", "raw"), ("hdf5", "alike")]
)
def test_values_of_parts(container: str, kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path, container, kind)
    facts, pack, read = second.manifest_of(folder), open_pack(folder), set()
    for i, (*_, note, parts) in enumerate(second.records(folder)):
        for name, data in parts.items():
            encoding, wanted = note["parts"][name]["encoding"], pack.part(i, name)
            if encoding in ("txt", "json"):
                assert (data.decode() if encoding == "txt" else json.loads(data)) == wanted
            elif encoding not in ("png", "jpeg"):
                of_part = (facts["masks"] | facts["pixels"]).get(name, {"dtype": ""})  # arrays say it themselves
                channels = -1 if PARTS.get(name) == "image" else of_part.get("channels", 1)
                shape = note["height"], note["width"], channels
                found = pixels_of(data, encoding, of_part["dtype"], shape)
                assert np.array_equal(found.reshape(wanted.shape), wanted) and found.dtype == wanted.dtype
            read.add((name, encoding))
    assert len(read) == len(PARTS) + 1


@pytest.mark.parametrize(("container", "kind"), [*((name, "raw") for name in container_names()), ("lmdb", "tagged")])
def test_a_changed_byte_is_found(container: str, kind: str, tmp_path: Path) -> None:
    """In every file, at its beginning, middle and end; in each record and part also by its own checksum."""
    folder = write(tmp_path, container, kind)
    assert (folder / "skipped.tsv").exists() == (kind == "tagged")
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for place in {0, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
            changed = bytearray(whole)
            changed[place] ^= 1
            path.write_bytes(changed)
            with pytest.raises(second.Damaged, match=path.name.partition(".")[0]):
                second.check_files(folder)
            if path.suffix in (".json", ".arrow"):
                with pytest.raises(second.Damaged, match=path.name):
                    list(second.records(folder))
        path.write_bytes(whole)
    second.check_files(folder)
    found, (shard, *_) = list(second.records(folder)), second.manifest_of(folder)["shards"]
    path = folder / shard["container"]["name"]
    whole = path.read_bytes()
    for key, image, _, parts in found[: shard["records"]]:
        for name, data in ((f"record {key}", image), *((f"{name} of {key}", part) for name, part in parts.items())):
            if whole.count(data) == 1:  # not a text such as 0
                changed = bytearray(whole)
                changed[whole.index(data) + len(data) // 2] ^= 0x80
                path.write_bytes(changed)
                with pytest.raises(second.Damaged, match=f"^{name}$"):
                    list(second.records(folder))


def test_a_manifest_in_another_form_is_found(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN[0], tmp_path / "pack") / "pack.json"
    path.write_bytes(path.read_bytes().replace(b'": ', b'":\t', 1))
    with pytest.raises(second.Damaged, match=r"pack\.json"):
        second.check_files(path.parent)


def test_sidecars(tmp_path: Path) -> None:
    folder = write(tmp_path, "lmdb", "jpeg")
    np.save(tmp_path / "code.npy", np.arange(3 * COUNT * 4000, dtype=np.float32).reshape(COUNT, -1, 3))
    (tmp_path / "said.jsonl").write_text("".join(f'{{"key": "{i:08d}", "said": "Nr. {i} ä"}}\n' for i in range(COUNT)))
    (tmp_path / "depth").mkdir()
    for i in range(COUNT):
        np.save(tmp_path / f"depth/{i}\udcff.npy", parts_of(i)["far"])
    attach(folder, tmp_path / "code.npy", "code")
    attach(folder, tmp_path / "said.jsonl", "said")
    attach(folder, tmp_path / "depth", "depth", kind="map")
    pack, found = open_pack(folder), second.sidecars(folder)
    assert found.keys() == {"code", "said", "depth"}
    facts = {one["name"]: one for one in second.manifest_of(folder, "sidecars.json")["sidecars"]}["depth"]
    shape = HEIGHT, WIDTH, facts["channels"]
    for i in range(COUNT):
        assert np.array_equal(found["code"][i], pack.part(i, "code")) and found["said"][i] == pack.part(i, "said")
        depth = pixels_of(found["depth"][i], facts["encoding"], facts["dtype"], shape)
        assert np.array_equal(depth, pack.part(i, "depth"))
    second.check_files(folder)
    for path in folder.glob("sidecar*"):
        whole = path.read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            for look in (second.check_files, second.sidecars):
                with pytest.raises(second.Damaged, match=path.name):
                    look(folder)
        path.write_bytes(whole)


def test_packs_from_packs(tmp_path: Path) -> None:
    """Their indexes count: of files of other tools, and of shards with the class ids of another pack."""
    folder = write(tmp_path, "webdataset", "copy")
    adopt(
        [folder / shard["container"]["name"] for shard in second.manifest_of(folder)["shards"]],
        tmp_path / "adopted",
        missing_labels="empty",
    )
    check(tmp_path / "adopted", foreign=False)
    with PackWriter(tmp_path / "other", format="webdataset", classes=["büg", "cat"]) as writer:
        for i in range(3):
            writer.write(
                as_file(noise(i + 20, HEIGHT, WIDTH), "PNG"), **labels_of("copy", 1) | {"label": 1}, path=f"b/{i}"
            )
    merge([folder, tmp_path / "other"], tmp_path / "merged")
    check(tmp_path / "merged", foreign=False)


@pytest.mark.parametrize("container", container_names())
def test_versions(container: str, tmp_path: Path) -> None:
    """The manifest of each version names files in the folder of the pack, also after one was purged."""
    folder = write(tmp_path, container, "copy")
    edit(folder, single_class="büg")
    edit(folder, delete=[1, 4])
    for last in (3, 4):
        for number in range(1, last + 1):
            shutil.copytree(folder, tmp_path / f"{last}-{number}")
            shutil.copy(folder / f"versions/{number}/pack.json", tmp_path / f"{last}-{number}")
            check(tmp_path / f"{last}-{number}", foreign=False)
            of_version = open_pack(f"{folder}@{number}")
            assert len([*second.records(tmp_path / f"{last}-{number}")]) == len(of_version)
        assert len(open_pack(f"{folder}@1")) == (7 if last == 3 else 5)
        purge(folder)


@pytest.mark.parametrize("module", [second, independent_digest])
def test_it_imports_nothing_of_packer(module: ModuleType) -> None:
    text = Path(str(module.__file__)).read_text("utf-8")
    modules = {alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert "json" in modules and not [name for name in modules if name.startswith(("packer", "cv2", "PIL"))]
    assert len(text.splitlines()) <= 300
