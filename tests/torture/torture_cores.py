"""All parsers alone, and among them those of lists."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import torture_held as texts
import torture_objects as objects
from torture_adopt import reader_of, seeds
from torture_archives import ARCHIVES, read_members
from torture_held import FINDER, refused
from torture_labels import Target, check_finite, check_named
from torture_seeds import EDITS, INSTANCE_SHAPES, INSTANCES, SEEDS_OF, STUDIO_TABLES, VIA_TABLES, WITH_MASKS
from torture_texts import read_masks, read_shapes, read_stored_instances

from packer.errors import UsageError
from packer.model.annotation import RawAnnotation
from packer.model.rle import lengths_of
from packer.sources import list_cells, list_columns, list_header, list_lines, text_rows
from packer.sources.paths import LONGEST


def read_columns(data: bytes) -> str:
    """The text of --columns."""
    try:
        found = list_columns.parse_columns(data.decode("utf-8", "surrogateescape"))
    except UsageError as error:
        return refused(error, "--columns")
    assert list_columns.parse_columns(found.text) == found
    return "read"


def read_list_layout(data: bytes) -> str:
    """The separator, header and columns of a few lines, behind --columns."""
    choice, (given, _, text) = data[0] if data else 0, data[1:].partition(b"\0")
    asked = given.decode("utf-8", "surrogateescape") if choice & 1 else None
    try:
        found = list_header.read_layout(list_lines.Lines(list_lines.as_lines(text, "a.txt")), FINDER, asked, "a.txt")
    except UsageError as error:
        check_named(error, {"a.txt", "--columns"})
        return "refused"
    assert found.separator in list_lines.SEPARATORS and list_columns.parse_columns(found.columns.text)
    for note in (*found.notes, *(found.tags or ())):
        note.encode("utf-8", "surrogateescape")
    return "read"


def read_list_row(data: bytes) -> str:
    """One line of a list."""
    choice, number, line = *(data + bytes(2))[:2], data[2:].replace(b"\n", b"")
    asked = COLUMNS[number % len(COLUMNS)]
    if choice & 8:
        asked = replace(asked, negative=bool(choice & 16))
    try:
        cells = list_lines.split_line(line, list_lines.SEPARATORS[choice % 5])
        path = asked.path(cells)
        assert path is None or path in line or b'""' in line
        asked.classes(cells)
        row = asked.read(cells)
        masks = [list_cells.read_runs(cell, (40, 30), bool(choice & 32)) for cell in row.masks or ()]
    except ValueError as error:
        assert str(error) and not isinstance(error, UnicodeError)
        return "refused"
    for (x1, y1, x2, y2), mask in masks:
        assert 0 <= x1 < x2 <= 40 and 0 <= y1 < y2 <= 30
        lengths_of([np.frombuffer(mask["counts"].encode(), np.uint8)], 40 * 30)
    check_finite(RawAnnotation(origin="", boxes=row.boxes, box_labels=row.box_labels, landmarks=row.landmarks))
    return "read"


def read_list_blocks(data: bytes) -> str:
    """Lines read by pyarrow, which must be as read one by one."""
    choice, number, text = *(data + bytes(2))[:2], data[2:].replace(b"\r", b"\n").removesuffix(b"\n")
    if not text:
        return "refused"
    separator, asked = list_lines.SEPARATORS[choice % 3], COLUMNS[number % len(COLUMNS)]
    plain = list_lines._plain_block(0, text.count(b"\n") + 1, text, separator, asked)
    each = list_lines._any_block(0, text, separator, asked)
    if plain is None:
        return "refused"
    found, expected = (
        sorted((line, block.names[code]) for line, code in zip(block.lines.tolist(), block.codes.tolist(), strict=True))
        for block in (plain, each)
    )
    codes = range(len(plain.paths)) if plain.path_codes is None else plain.path_codes.tolist()
    assert [plain.paths[code] for code in codes] == each.paths and found == expected, (plain, each)
    for line, numbers in zip(text.split(b"\n"), [] if plain.numbers is None else plain.numbers.tolist(), strict=False):
        if not np.isnan(numbers).any():
            check_numbers(asked, list_lines.split_line(line, separator), numbers)
    return "read"


def check_numbers(asked: list_columns.LineColumns, cells: list[bytes], numbers: list[float]) -> None:
    try:
        row = asked.read(cells)
    except ValueError as error:  # its class is missing, or a number has more digits than anybody writes
        assert "class is empty" in str(error) or max(map(len, cells)) > LONGEST, (cells, numbers)
        return
    assert row.boxes == (tuple(numbers[:4]),) and (row.image_size or ()) == tuple(numbers[4:]), (cells, numbers)


WRITTEN = [
    ("path label", b"a.jpg\tcat"),
    ("path class xmin ymin xmax ymax", b'"b\tc.jpg"\t"la""b"\t1\t2\t3\t4'),
    ("path label split _", b"a;b;c;d"),
    ("path (xmin ymin xmax ymax class)*", b"a.jpg,1,2,3,4,dog,5,6,7,8,cat"),
    ("path cx cy w h class difficult", b'"a ""b"" c.jpg" ; 1; 2 ;3;4;dog;0'),
    ("path (x y)*3 label", b"a.jpg 1 2  3 4 5 6e1 x"),
    ("path (xmin ymin w h class)*", b"a.jpg 1,2,3,4,dog 5,6,7,8,cat"),
    ("path tag*3 split", b"a.jpg\t-1\t1\t-1\ttrain"),
    ("label path text width height", b"x,a.jpg,\xc3\xa9 b,30,40"),
    ("path width height [xmin ymin w h] class", b'a.jpg,40,30,"[1, 2.5, 3, 4]",x'),
    ("path [class _ xmin ymin xmax ymax]", b"a.jpg;14 1 0 0 1 1 dog .5 1 2 3 4"),
    ("path [cx cy w h]", b"a.jpg,1 2 3 4"),
    ("path rle class", b"a.jpg,1 2 30 4 63 9,x"),
]
COLUMNS = [list_columns.parse_columns(given) for given, _ in WRITTEN]
ROWS = [bytes([separator, i]) + line for i, (_, line) in enumerate(WRITTEN) for separator in (0, 1, 2, 13, 29)]
BLOCKS = [
    b"\1\0a.jpg,cat\nb.jpg,dog\n,x\nc.jpg,",
    b"\1\0a.jpg,cat\n,\n\xff.jpg,\xfe\na.jpg,cat",
    b'\0\1a.jpg\tcat\t1\t2\t3\t4\n"b\tc.jpg"\t"lab"\t\t\t\t\n',
    b'\2\2a;b;c;d\n;;;\n\xff;"\xfe;";x;y\n',
    b'\1\x09a.jpg,40,30,"[1, 2.5, 3, 4]",x\na.jpg,40,30,"(5, 6, 7, 8)",\nb.jpg,,1.5,,y\n',
    b"\1\x0ba.jpg,1 2 3 4\na.jpg,\nb.jpg,1e3 -2 +3 .5\nc.jpg,1 2 3 4 5 6 7 8",
]


CORES: dict[str, tuple[Target, tuple[str, ...]]] = {
    "pts": (Target(texts.read_pts, SEEDS_OF["pts"]), ("sources.landmarks",)),
    "dota": (Target(texts.read_dota, SEEDS_OF["dota"]), ("sources.dota",)),
    "widerface": (Target(texts.read_widerface, SEEDS_OF["widerface"]), ("sources.small_formats", "sources.by_name")),
    "yolo": (Target(texts.read_yolo_rows, SEEDS_OF["yolo"]), ("sources.yolo_source",)),
    "yaml": (Target(texts.read_yolo_config, SEEDS_OF["yaml"]), ("sources.yolo_config", "sources.paths")),
    "list-layout": (
        Target(read_list_layout, SEEDS_OF["list"]),
        (
            "sources.list_header",
            "sources.list_meaning",
            "sources.list_columns",
            "sources.list_cells",
            "sources.list_lines",
        ),
    ),
    "list-columns": (Target(read_columns, [given.encode() for given, _ in WRITTEN]), ("sources.list_columns",)),
    "list-row": (Target(read_list_row, ROWS), ("sources.list_columns", "sources.list_cells", "sources.list_lines")),
    "list-blocks": (Target(read_list_blocks, BLOCKS), ("sources.list_lines", "sources.list_cells")),
    "coco-object": (
        Target(objects.read_coco_object, [*EDITS, *(b"\0" + json.dumps(thing).encode() for thing in objects.COCO)]),
        ("sources.coco_objects",),
    ),
    "coco-map": (Target(objects.read_coco_map, SEEDS_OF["coco"]), ("sources.coco_file",)),
    "labelme": (
        Target(objects.read_labelme, SEEDS_OF["labelme"]),
        ("sources.labelme", "sources.by_name"),
    ),
    "labelme-web": (Target(objects.read_labelme_web, SEEDS_OF["labelme-web"]), ("sources.labelme", "sources.by_name")),
    "via": (Target(objects.read_via, SEEDS_OF["via"]), ("sources.via", "sources.by_name")),
    "via-table": (Target(objects.read_via_table, VIA_TABLES), ("sources.via", "sources.by_name")),
    "labelstudio": (
        Target(objects.read_labelstudio, SEEDS_OF["labelstudio"]),
        ("sources.labelstudio", "sources.by_name"),
    ),
    "labelstudio-table": (
        Target(objects.read_studio_table, STUDIO_TABLES),
        ("sources.labelstudio", "sources.by_name"),
    ),
    "via-3": (Target(objects.read_via_3, SEEDS_OF["via-3"]), ("sources.via", "sources.by_name")),
    "sa1b": (Target(objects.read_sa1b, SEEDS_OF["sa1b"]), ("sources.sa1b", "sources.coco_objects")),
    "datumaro": (Target(objects.read_datumaro, SEEDS_OF["datumaro"]), ("sources.datumaro_json", "sources.by_name")),
    "supervisely": (
        Target(objects.read_supervisely, SEEDS_OF["supervisely"]),
        ("sources.supervisely", "sources.by_name"),
    ),
    "createml": (
        Target(objects.read_createml, SEEDS_OF["createml"]),
        ("sources.small_formats", "sources.by_name"),
    ),
    "jsonl": (
        Target(objects.read_jsonl, SEEDS_OF["jsonl"]),
        ("sources.json_lines", "sources.box_forms", "sources.by_name"),
    ),
    "vott": (Target(objects.read_vott, SEEDS_OF["vott"]), ("sources.small_formats", "sources.by_name")),
    "bdd100k": (Target(objects.read_bdd100k, SEEDS_OF["bdd100k"]), ("sources.json_sets", "sources.by_name")),
    "crowdhuman": (Target(texts.read_crowdhuman, SEEDS_OF["crowdhuman"]), ("sources.json_sets", "sources.by_name")),
    **{
        kind.kind: (Target(texts.rows_of(kind), SEEDS_OF[kind.kind]), ("sources.text_rows", "sources.by_name"))
        for kind in (text_rows.KittiSource, text_rows.VisDroneSource, text_rows.IcdarSource)
    },
    "dlib": (Target(texts.read_dlib, SEEDS_OF["dlib"]), ("sources.landmarks",)),
    "cvat": (Target(texts.read_cvat, SEEDS_OF["cvat"]), ("sources.cvat", "sources.by_name")),
    "voc": (Target(texts.read_voc, SEEDS_OF["voc"]), ("sources.voc",)),
    "rle": (Target(read_masks, SEEDS_OF["rle"]), ("sources.coco_objects", "model.rle")),
    "instances": (Target(read_stored_instances, INSTANCES), ("model.rle",)),
    **(
        {"instance-shapes": (Target(read_shapes, INSTANCE_SHAPES), ("model.rle", "sources.coco_objects"))}
        if WITH_MASKS
        else {}
    ),
    "selection": (Target(texts.read_selected, SEEDS_OF["selection"]), ("packing.input_table",)),
    "config": (
        Target(texts.read_options, SEEDS_OF["config"]),
        ("packing.recorded", "packing.build_options", "packing.option_table"),
    ),
    "lists": (Target(texts.read_pack_list, SEEDS_OF["lists"]), ("format.lists",)),
    **{
        f"adopt-{name}": (Target(reader_of(name), seeds(name)), (f"repack.formats.{module}", "repack.adopt_file"))
        for name, module in (
            ("webdataset", "keyed_formats"),
            ("tfrecord", "tfrecord_format"),
            ("parquet", "arrow_formats"),
            ("npy", "array_formats"),
            ("idx", "array_formats"),
        )
    },
    "members": (Target(read_members, ARCHIVES), ("files.tar_members", "files.zip_members")),
}
"""Parser -> its target, and the modules of packer whose coverage guides the mutations."""


def inputs_of(name: str) -> list[bytes]:
    """Return the seeds of a core, and the corpus of its source."""
    corpus = "" if name in ("list-columns", "list-row", "list-blocks") else name.partition("-")[0]
    return CORES[name][0].inputs(corpus)
