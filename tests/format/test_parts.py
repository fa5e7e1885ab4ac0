"""Records of several parts, through all that reads, verifies, repairs and rewrites packs."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from damage import edit_index, vouch
from packs import WIDE, MakePack, needs_cache
from part_packs import PARTS, add_parts, bytes_of, change, damage_part
from running import good, refused, run

from packer import Pack, PackedDataset, PackedLoader, join_packs, merge, open_pack
from packer.containers import CONTAINERS, open_container
from packer.errors import DamagedPack, UsageError
from packer.format.content import content_digest, deep_digest
from packer.format.manifest import read_manifest
from packer.format.salvage import repair
from packer.format.verify import verify
from packer.model.annotation import COLUMNS, MOST_PARTS, RESERVED, check_name

every_container = pytest.mark.parametrize("container", CONTAINERS)
wide = pytest.mark.parametrize("container", WIDE)


def check_parts(pack: Pack, numbers: list[int] | None = None) -> None:
    """Each record has the parts of the number that it had in the first pack."""
    for i, number in enumerate(range(len(pack)) if numbers is None else numbers):
        found = {name: pack.part(i, name) for name in pack.manifest.parts}
        assert {name: data for name, data in found.items() if data is not None} == bytes_of(number), i


@pytest.fixture
def pack(container: str, make_pack: MakePack, tmp_path: Path) -> Path:
    return add_parts(make_pack("boxes", container), tmp_path / "pack")


@every_container
def test_parts_are_read_and_images_stay(pack: Path, container: str, make_pack: MakePack) -> None:
    opened, before = open_pack(pack), open_pack(make_pack("boxes", container))
    check_parts(opened)
    assert opened.manifest.parts == PARTS and len(opened) == len(before)
    for i in range(len(before)):
        assert bytes(opened.record(i)) == bytes(before.record(i)) and opened.key(i) == before.key(i)
        assert (opened.image(i) == before.image(i)).all()
    records = np.arange(len(opened))
    opened.reader.check(records, ("image", "aux", "zed"))
    starts, sizes = opened.reader.places(records, "zed")
    assert (sizes >= 0).tolist() == ["zed" in bytes_of(i) for i in range(len(opened))]
    assert opened.reader.region.data[int(starts[1]) : int(starts[1] + sizes[1])] == bytes_of(1)["zed"]
    with pytest.raises(UsageError, match=r"has no part depth.*its records have aux, zed"):
        opened.part(0, "depth")
    assert "parts      image, aux (bytes), zed (bytes)" in good("info", pack).out


@every_container
def test_an_image_without_parts_has_the_index_that_it_had(container: str, make_pack: MakePack) -> None:
    manifest = read_manifest(make_pack("boxes", container))
    assert b'"parts"' not in (make_pack("boxes", container) / "pack.json").read_bytes() and not manifest.parts


@every_container
def test_verify(pack: Path) -> None:
    for deep in (False, True):
        assert not verify(pack, deep=deep).problems
    row, key = damage_part(pack)
    report = verify(pack)
    (problem,) = [one for one in report.problems if one.record is not None]
    assert (problem.record, problem.problem) == (key, "has a zed that does not match its checksum")
    opened = open_pack(pack)
    with pytest.raises(DamagedPack, match=rf"record {key} \(row {row}\) has a zed that does not match"):
        opened.part(row, "zed")
    opened.image(row)
    others = [i for i in range(len(opened)) if i != row]
    opened.reader.check(np.array(others), ("aux", "zed"))


@wide
def test_repair_keeps_all_but_the_record_with_the_damaged_part(pack: Path) -> None:
    row, key = damage_part(pack)
    report = repair(pack)
    assert [lost.key for lost in report.lost] == [key]
    saved = open_pack(str(report.out))
    assert not verify(str(report.out), deep=True).problems
    check_parts(saved, [i for i in range(len(saved) + 1) if i != row])


@wide
@pytest.mark.parametrize("file", ["index", "container", "manifest"])
def test_a_lost_file_is_made_again(pack: Path, file: str, tmp_path: Path) -> None:
    manifest = read_manifest(pack)
    shutil.copytree(pack, tmp_path / "whole")
    if file == "container":  # a byte of its format, which no record has: the records are written again
        path = pack / manifest.shards[0].container.name
        with open(path, "ab") as content:
            content.write(b"more")
    else:
        (pack / (manifest.shards[0].index.name if file == "index" else "pack.json")).unlink()
    report = repair(pack)
    saved = Path(report.out or report.path)
    assert not report.lost
    check_parts(open_pack(saved))
    assert open_pack(saved).manifest.parts == PARTS
    if file != "manifest":
        assert report.out is None and not verify(pack, deep=True).problems


@wide
def test_parts_that_were_swapped_are_found(pack: Path, make_pack: MakePack) -> None:
    from packer.format.index import read_index, write_index

    manifest = read_manifest(pack)
    shard = manifest.shards[0]
    (batch,) = read_index(pack / shard.index.name).to_batches()
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for what in ("offset", "size", "crc32c"):  # of two parts of one record
        columns[f"aux_{what}"], columns[f"zed_{what}"] = columns[f"zed_{what}"], columns[f"aux_{what}"]
    (pack / shard.index.name).unlink()
    swapped = write_index(pack / shard.index.name, type(batch).from_arrays([*columns.values()], schema=batch.schema))
    change(pack, shards=(replace(shard, index=swapped), *manifest.shards[1:]))
    with pytest.raises(DamagedPack, match=r"has a (aux|zed) that does not match its checksum"):
        open_pack(pack).reader.check(np.arange(shard.records), ("aux", "zed"))


@wide
@pytest.mark.parametrize("target", CONTAINERS)
def test_convert(pack: Path, target: str, tmp_path: Path) -> None:
    good("convert", pack, tmp_path / "new", "--format", target)
    converted = open_pack(tmp_path / "new")
    check_parts(converted)
    assert not verify(tmp_path / "new", deep=True).problems
    assert content_digest(converted.reader.indexes, converted.manifest) == content_digest(*_content(pack))
    assert deep_digest(converted) == deep_digest(open_pack(pack))


def _content(pack: Path) -> tuple[object, object]:
    opened = open_pack(pack)
    return opened.reader.indexes, opened.manifest


@wide
def test_convert_some_with_other_images(pack: Path, tmp_path: Path) -> None:
    opened = open_pack(pack)
    (tmp_path / "not").write_text(opened.paths[1] + "\n")
    good("convert", pack, tmp_path / "new", "--resize", "8x8", "--encode", "png", "--exclude", tmp_path / "not")
    kept = [i for i in range(len(opened)) if i != 1]
    check_parts(open_pack(tmp_path / "new"), kept)


@wide
def test_convert_finds_a_damaged_part(pack: Path, tmp_path: Path) -> None:
    _, key = damage_part(pack)
    said = refused(4, "convert", pack, tmp_path / "new", "--format", "tfrecord")
    assert f"record {key}" in said and "has a zed that does not match its checksum" in said


@wide
def test_merge_join_and_split(pack: Path, container: str, make_pack: MakePack, tmp_path: Path) -> None:
    bare = make_pack("boxes", container)
    second = add_parts(bare, tmp_path / "second", first=100)
    count = len(open_pack(pack))
    numbers = [*range(count), *range(100, 100 + count)]
    merge([pack, second], tmp_path / "all")
    check_parts(open_pack(tmp_path / "all"), numbers)
    assert not verify(tmp_path / "all").problems
    joined = join_packs([pack, second])
    check_parts(joined, numbers)
    joined.reader.check(np.arange(2 * count), ("aux", "zed"))
    for wrong in (lambda: merge([pack, bare], tmp_path / "no"), lambda: join_packs([pack, bare])):
        with pytest.raises(UsageError, match=r"image.*image, aux \(bytes\), zed \(bytes\).*leave one of the packs out"):
            wrong()
    good("split", tmp_path / "all", "--parts", "a=0.5,b=0.5")
    halves = [open_pack(path) for path in sorted(tmp_path.glob("all-*"))]
    assert len(halves) == 2
    parts = [{name: half.part(i, name) for name in PARTS} for half in halves for i in range(len(half))]
    found = [{name: data for name, data in of_record.items() if data is not None} for of_record in parts]
    assert sorted(map(repr, found)) == sorted(repr(bytes_of(number)) for number in numbers)


@wide
def test_extract_writes_them_beside_the_images(pack: Path, tmp_path: Path) -> None:
    opened = open_pack(pack)
    good("extract", pack, tmp_path / "files", "--layout", "voc")
    written = sorted(path.read_bytes() for path in (tmp_path / "files").rglob("*.bin"))
    assert written == sorted(data for i in range(len(opened)) for data in bytes_of(i).values())


@wide
def test_diff_and_hash_see_a_part(pack: Path, container: str, make_pack: MakePack, tmp_path: Path) -> None:
    other = add_parts(make_pack("boxes", container), tmp_path / "other", first=1)
    assert "equal" in good("diff", pack, pack).out
    said = run("diff", pack, other, "--json", "--limit", 100)
    assert said.code == 1 and {name for row in json.loads(said.out)["labels"]["first"] for name in row["fields"]} == {
        "aux",
        "zed",
    }
    hashes = {good("hash", path).out.split()[0] for path in (pack, other, make_pack("boxes", container))}
    deep = {good("hash", "--deep", path).out.split()[0] for path in (pack, other, make_pack("boxes", container))}
    assert len(hashes) == len(deep) == 3


@needs_cache
@wide
def test_at_a_url(pack: Path, tmp_path: Path) -> None:
    good("push", pack, f"file://{tmp_path}/bucket/pack")
    for cache_bytes in (None, 0):
        remote = open_pack(f"file://{tmp_path}/bucket/pack", cache_dir=tmp_path / "cache", cache_bytes=cache_bytes)
        check_parts(remote)
    good("pull", f"file://{tmp_path}/bucket/pack", tmp_path / "pulled")
    check_parts(open_pack(tmp_path / "pulled"))
    good("cache", "--verify", "--cache-dir", tmp_path / "cache")


@wide
def test_loaders_do_not_mind_them(pack: Path, container: str, make_pack: MakePack) -> None:
    with_parts, without = PackedDataset(pack), PackedDataset(make_pack("boxes", container))
    assert all((with_parts[i][0] == without[i][0]).all() for i in range(len(without)))
    batches = [images for images, _ in PackedLoader(pack, 4, shuffle=False)]
    assert sum(map(len, batches)) == len(without)


def test_names() -> None:
    for name in ("mask", "left_eye", "depth2"):
        check_name(name)
    for name in (*sorted(RESERVED), "", "Mask", "2nd", "a b", "x" * 32, "box_offsets", "aux_size", "bin", "ä"):
        with pytest.raises(ValueError, match="is not a name for a part"):
            check_name(name)


def test_a_manifest_that_names_other_parts_than_the_index(make_pack: MakePack, tmp_path: Path) -> None:
    pack = add_parts(make_pack("raw", "tfrecord"), tmp_path / "pack")
    manifest = read_manifest(pack)
    change(pack, parts={"aux": "bytes"})
    with pytest.raises(DamagedPack, match=r"has the parts image, aux, zed, but the pack has image, aux"):
        open_pack(pack).record(0)
    for parts, message in (
        ({"../x": "bytes"}, "is not a name for a part"),
        ({"jpg": "bytes"}, "is not a name for a part"),
        ({"aux": "video"}, "of an unknown kind"),
        ({f"a{n}": "bytes" for n in range(MOST_PARTS + 1)}, "33 parts"),
    ):
        (pack / "pack.json").write_bytes(replace(manifest, parts=parts).to_json())
        with pytest.raises(DamagedPack, match=message):
            open_pack(pack)


def test_extensions_and_datasets_are_no_names(make_pack: MakePack) -> None:
    from packer.containers.container import IMAGE_EXTENSIONS

    assert IMAGE_EXTENSIONS <= RESERVED
    for container in ("hdf5", "zarr", "pth"):
        pack = make_pack("boxes", container)
        content = (pack / read_manifest(pack).shards[0].container.name).read_bytes()
        arrays = set(re.findall(rb"([a-z_]+)_offsets", content))
        assert arrays and {name.decode() for name in arrays} <= RESERVED


@every_container
def test_parts_in_another_order_are_stored_in_theirs(container: str, make_pack: MakePack, tmp_path: Path) -> None:
    pack = add_parts(make_pack("boxes", container), tmp_path / "pack", order=-1)
    assert not verify(pack, deep=True).problems
    check_parts(open_pack(pack))


def test_a_missing_part_is_not_read(make_pack: MakePack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packer.format import records

    pack = open_pack(add_parts(make_pack("boxes", "tfrecord"), tmp_path / "pack"))
    read: list[int] = []
    monkeypatch.setattr(records, "crc32c", lambda data, *start: read.append(len(data)) or 0)
    pack.reader.check(np.array([0, 2]), ("zed",))
    assert read in ([], [8, 8])  # keys only


PLACES = ((0, 1 << 40), (0, 1 << 62), (-1, 5), ((1 << 63) - 1, 5), (-(1 << 63), 5), (7, (1 << 63) - 1))


@wide
@pytest.mark.parametrize(("offset", "size"), PLACES)
def test_places_that_no_file_has(pack: Path, offset: int, size: int) -> None:
    index = pack / read_manifest(pack).shards[0].index.name
    for name, value in (("zed_offset", offset), ("zed_size", size)):
        edit_index(index, name, lambda old, value=value: [old[0], value, *old[2:]])  # type: ignore[misc]
    vouch(pack)
    for deep in (False, True):
        found = verify(pack, deep=deep).problems
        assert any("has a zed that is outside its file" in one.problem for one in found)
    assert [lost.key for lost in repair(pack).lost] == ["00000001"]
    with pytest.raises(DamagedPack):
        open_pack(pack).part(1, "zed")


@pytest.mark.parametrize("names", [["aux", "aux"], ["../zed"], ["z\xe9d"], [""], ["key"]])
def test_parts_that_no_index_has(names: list[str], make_pack: MakePack, tmp_path: Path) -> None:
    pack = add_parts(make_pack("boxes", "tfrecord"), tmp_path / "pack")
    index = pack / read_manifest(pack).shards[0].index.name
    batch = pa.ipc.open_file(pa.py_buffer(index.read_bytes())).get_batch(0)
    kept = {name: column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name[:4] != "zed_"}
    columns = [*kept.items(), *((f"{n}_{what}", batch.column(f"aux_{what}")) for n in names for what in COLUMNS)]
    fields = [batch.schema.field(name) for name in kept]
    fields += [pa.field(name, values.type, nullable=False) for name, values in columns[len(kept) :]]
    schema = pa.schema(fields, metadata=batch.schema.metadata)
    with pa.OSFile(str(index), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column for _, column in columns], schema=schema))
    vouch(pack)
    with pytest.raises(DamagedPack):
        open_pack(pack).record(0)
    assert verify(pack, deep=True).problems
    with pytest.raises(DamagedPack):
        repair(pack)
    (pack / "pack.json").unlink()
    assert not verify(str(repair(pack).out), deep=True).problems


BAD_JSON = (
    "5", "[]", '{"aux": {}}', '{"aux": []}', '{"aux": {"encoding": "bytes", "bytes": Infinity}}',
    '{"aux": {"encoding": "bytes", "bytes": -5}}', '{"aux": {"encoding": "bytes", "bytes": null}}',
    '{"aux": {"encoding": "bytes", "bytes": 99999999999999999999}}', '{"\\u00e9": {"encoding": "bytes", "bytes": 3}}',
    '{"aux": ', '{"aux": ' + "[" * 20_000,
)  # fmt: skip


@every_container
@pytest.mark.parametrize("parts", BAD_JSON, ids=range(len(BAD_JSON)))
def test_annotations_that_list_no_parts(
    container: str, parts: str, make_pack: MakePack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = make_pack("boxes", container)  # which other tests use, too
    written_by = "arrays" if container in ("hdf5", "zarr", "n5", "pth") else container
    module = importlib.import_module(f"packer.containers.{written_by}")
    write = module.annotation_json
    monkeypatch.setattr(module, "annotation_json", lambda *about: f'{write(*about)[:-1]}, "parts": {parts}}}')
    pack = add_parts(bare, tmp_path / "pack", specs=())
    monkeypatch.undo()
    path = pack / read_manifest(pack).shards[0].container.name
    try:
        assert list(open_container(container).scan(str(path)))
    except DamagedPack:
        pass
    else:
        assert not parts.startswith('{"aux')
    assert verify(pack, deep=True).problems
    said = run("adopt", path, "-o", tmp_path / "adopted")
    assert said.code in (0, 1, 2), said


@wide
def test_images_of_one_stem_keep_their_parts(pack: Path, tmp_path: Path) -> None:
    index = pack / read_manifest(pack).shards[0].index.name
    edit_index(index, "path", lambda old: [b"a.jpg", b"a.png", *old[2:]])
    vouch(pack)
    good("extract", pack, tmp_path / "files", "--layout", "list")
    written = sorted(path.read_bytes() for path in (tmp_path / "files").rglob("*.bin"))
    assert written == sorted(data for i in range(len(open_pack(pack))) for data in bytes_of(i).values())
