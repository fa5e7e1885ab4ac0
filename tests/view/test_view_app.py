"""The answers to the page, compared with brute force over the pack; and who gets answers at all."""

from __future__ import annotations

import base64
import io
import json
import math
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw, draw_classes, draw_landmarks, draw_plain, pixels, voc_xml
from hypothesis import given, settings
from hypothesis import strategies as st
from large_packs import labeled_pack, random_labels
from packs import WIDE
from PIL import Image
from running import good, refused, until
from werkzeug.test import Client, TestResponse

from packer import PackedLoader, RandomResizedCrop, join_packs, open_pack
from packer.format.pack import Pack
from packer.sources.synthetic import draw_sample
from packer.stats.pixels import channel_stats
from packer.view.app import App
from packer.view.catalog import BOX_RANGES, SORTS, Catalog, Query, RecordSet
from packer.view.image_figures import IMAGE_FIGURES

TOKEN = "a-token-that-nobody-guesses"


def get(pack: Pack | Path, address: str, host: str = "127.0.0.1:8123", method: str = "GET") -> TestResponse:
    """An answer of the page of a pack."""
    app = App(pack if isinstance(pack, Pack) else open_pack(pack), TOKEN)
    return Client(app).open(address, method=method, headers={"Host": host})


def ask(pack: Pack | Path, what: str, **given: Any) -> Any:
    query = "&".join(f"{key.rstrip('_')}={value}" for key, value in given.items())
    said = get(pack, f"/{TOKEN}/api/{what}?{query}")
    assert said.status_code == 200, said.text
    return json.loads(said.text)


def seen(uri: str) -> np.ndarray:
    """The pixels of a data: address, as Pillow decodes them."""
    head, _, data = uri.partition(",")
    assert head in {"data:image/png;base64", "data:image/jpeg;base64"}
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


# -- who may ask


@pytest.mark.parametrize("host", ["example.org", "example.org:8123", "127.0.0.1.example.org", "10.0.0.1:8123", ""])
def test_another_host_is_refused(sixty: Pack, host: str) -> None:
    """A page of another site whose name leads to this machine."""
    said = get(sixty, f"/{TOKEN}/api/pack", host=host)
    assert said.status_code == 403 and "class" not in said.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9999"])
def test_this_machine_may_ask(sixty: Pack, host: str) -> None:
    assert get(sixty, f"/{TOKEN}/api/pack", host=host).status_code == 200


@pytest.mark.parametrize("path", ["/", "/index.html", "/api/pack", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/", "/%ff/api/pack"])
def test_without_the_token_nothing_is_said(sixty: Pack, path: str) -> None:
    said = get(sixty, path)
    assert said.status_code == 403 and sixty.classes[0] not in said.text


def test_a_token_that_can_be_guessed_is_a_bug(sixty: Pack) -> None:
    with pytest.raises(ValueError, match="16"):
        App(sixty, "short")


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "static", "api", "x.js"])
def test_only_the_files_of_the_page(sixty: Pack, name: str) -> None:
    assert get(sixty, f"/{TOKEN}/{name}").status_code == 404


def test_only_reading(sixty: Pack) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert get(sixty, f"/{TOKEN}/api/pack", method=method).status_code == 405


@pytest.mark.parametrize("path", ["", "style.css", "app.js", "api/pack", "api/nothing"])
def test_every_answer_forbids_what_comes_from_elsewhere(sixty: Pack, path: str) -> None:
    said = get(sixty, f"/{TOKEN}/{path}")
    policy = said.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert said.headers["X-Content-Type-Options"] == "nosniff" and said.headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in said.headers


def test_the_page_names_nothing_elsewhere() -> None:
    for path in (Path(__file__).parents[2] / "packer" / "view" / "static").iterdir():
        assert "://" not in path.read_text().replace("http://www.w3.org/2000/svg", ""), path


@pytest.mark.parametrize(
    "question",
    [
        "tiles?start=-1", "tiles?count=65", "tiles?count=9e9", "tiles?side=100000", "tiles?sort=size", "tiles?boxes=x",
        "tiles?class=1.5", "tiles?class=1,x", "tiles?boxes=3", "tiles?boxes=5..2", "tiles?width=nan..",
        "tiles?set=problem:3", "tiles?match=some", "tiles?class=99999999999999999999999", "record?record=60",
        "record?record=-1", "place?at=60", "place?record=60", "batch?crop=best", "batch?batch=4",
        "batch?samples=0", "batch?side=0", "batch?seed=²",
    ],
)  # fmt: skip
def test_a_senseless_question_gets_one_line(sixty: Pack, question: str) -> None:
    said = get(sixty, f"/{TOKEN}/api/{question}")
    problem = json.loads(said.text)["error"]
    assert said.status_code == 400 and "\n" not in problem and question.partition("?")[2].partition("=")[0] in problem


# -- records


@pytest.mark.parametrize("container", WIDE)
@pytest.mark.parametrize("encode", ["raw", "png"])
def test_tiles_show_the_records(tmp_path: Path, container: str, encode: str) -> None:
    """Small images are shown exactly; their order, names and places are those of the pack."""
    draw_classes(tmp_path / "src")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--format", container, "--encode", encode)
    pack = open_pack(tmp_path / "pack")
    found = ask(pack, "tiles", start=3, count=8)
    assert found["count"] == len(pack) and [tile["record"] for tile in found["tiles"]] == list(range(3, 11))
    for tile in found["tiles"]:
        i = tile["record"]
        assert np.array_equal(seen(tile["picture"]), pack.image(i))
        assert (tile["key"], tile["label"]) == (pack.key(i), pack.annotation(i).label)
        assert (tile["height"], tile["width"]) == pack.image(i).shape[:2]


@pytest.mark.parametrize("encode", ["raw", "jpeg"])
@pytest.mark.parametrize("size", [(700, 300), (300, 701), (900, 2)])
def test_large_images_become_small(tmp_path: Path, encode: str, size: tuple[int, int]) -> None:
    (tmp_path / "src").mkdir()
    Image.fromarray(pixels(1)).resize(size).save(tmp_path / "src" / "0.jpg")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--encode", encode, "--labels", "none")
    (tile,) = ask(tmp_path / "pack", "tiles", side=100)["tiles"]
    scale = 100 / max(size)
    small = seen(tile["picture"])
    assert small.shape[1::-1] == tuple(max(1, round(side * scale)) for side in size)
    with Image.open(tmp_path / "src" / "0.jpg") as image:
        expected = np.asarray(image.resize(small.shape[1::-1], Image.Resampling.BOX), np.float64)
    assert np.abs(small - expected).mean() < 8


@pytest.mark.parametrize("mode", ["LA", "RGBA", "I;16", "L"])
def test_other_pixels_are_shown_too(tmp_path: Path, mode: str) -> None:
    plain = Image.fromarray(np.tile(np.arange(40, dtype=np.uint8) * 6, (30, 1)))
    made = plain.convert("I;16") if mode == "I;16" else plain.convert(mode)
    (tmp_path / "src").mkdir()
    made.save(tmp_path / "src" / "0.png")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--mode", "unchanged", "--labels", "none")
    (tile,) = ask(tmp_path / "pack", "tiles")["tiles"]
    printable = seen(tile["picture"])
    assert printable.dtype == np.uint8 and printable.shape[:2] == (30, 40)
    if mode == "I;16":
        assert printable.max() == 255  # brightened: as it is it would be black
    else:
        assert np.array_equal(printable.reshape(30, 40, -1)[..., 0], plain)


SETS = {"even": range(0, 60, 2), "sixty": [59, 3, 4], "none": []}


def brute(pack: Pack, query: Query) -> list[int]:
    """The records of a query, the slow way."""
    found, paths = [], sorted(range(len(pack)), key=lambda i: bytes(pack.column("path")[i]))
    for i in range(len(pack)):
        annotation = pack.annotation(i)
        labels = [] if annotation.box_labels is None else annotation.box_labels.tolist()
        boxes = [] if annotation.boxes is None else annotation.boxes.tolist()
        classes = {*labels, *([] if annotation.label is None else [annotation.label])} or {-1}
        text = f"{pack.key(i)}\n{bytes(pack.column('path')[i]).decode()}".lower()
        wanted = not query.classes or (all if query.all_classes else any)(c in classes for c in query.classes)
        height, width, _ = pack.reader.shape_of(i)
        share = max((100 * (x2 - x1) * (y2 - y1) / (width * height) for x1, y1, x2, y2 in boxes), default=-1)
        values = {"boxes": len(boxes), "box": share, "width": width, "height": height, "aspect": width / height}
        values["square"] = math.sqrt(width * height)
        for name, low, high in query.ranges:
            wanted &= name not in values or (values[name] >= 0 and low <= values[name] <= high)
        of = [box for box, label in zip(boxes, labels, strict=True) if not query.classes or label in query.classes]
        of = [box for box in of if all(inside(box, (width, height), *one) for one in query.ranges)]
        wanted &= bool(of) or not any(name in BOX_RANGES for name, *_ in query.ranges)
        wanted &= not classes.intersection(query.without)
        wanted &= all(i in SETS[name.partition(":")[2]] for name in query.sets)
        wanted &= any(query.text.lower() in line for line in text.split("\n"))
        if wanted:
            found.append(
                (
                    i,
                    first_of(
                        query.sort, of, (width, height), len(boxes), paths.index(i) if "path" in query.sort else i
                    ),
                )
            )
    return [i for i, value in sorted(found, key=lambda row: (row[1] is None, row[1] or 0, row[0]))]


def inside(box: list[float], size: tuple[int, int], name: str, low: float, high: float) -> bool:
    """Whether a box is in a range; those that are not of boxes hold all."""
    if name not in BOX_RANGES:
        return True
    x1, y1, x2, y2 = box
    wide, high_px = x2 - x1, y2 - y1
    values = {
        "box_width": wide, "box_height": high_px, "box_area": wide * high_px, "box_aspect": wide / high_px,
        "box_x": 50 * (x1 + x2) / size[0], "box_y": 50 * (y1 + y2) / size[1],
    }  # fmt: skip
    return low <= values[name] <= high


def first_of(sort: str, boxes: list[list[float]], size: tuple[int, int], count: int, i: int) -> float | None:
    """The number by which a record is sorted, the lowest first; None: at the end."""
    what, _, of = sort.partition("-")
    if of == "value":
        return None
    if "path" in sort:
        return -i if of else i
    if of == "boxes":
        return -count if what == "most" else count
    if of == "box":
        sides = [(np.float32(x2) - np.float32(x1), np.float32(y2) - np.float32(y1)) for x1, y1, x2, y2 in boxes]
    else:
        sides = [size]
    areas = [float(np.float32(w) * np.float32(h)) for w, h in sides]
    aspects = [float(w) / float(h) for w, h in sides]
    values = {"largest": [-a for a in areas], "smallest": areas, "widest": [-a for a in aspects], "tallest": aspects}
    return {"packed": i, "last": -i}[sort] if not of else min(values[what], default=None)


@given(
    st.builds(
        Query,
        classes=st.lists(st.integers(-1, 4), max_size=3).map(tuple),
        all_classes=st.booleans(),
        without=st.lists(st.integers(-1, 4), max_size=2).map(tuple),
        ranges=st.sampled_from(
            [
                (),
                (),
                (("boxes", 0, 2),),
                (("boxes", 1, math.inf), ("box", 20.5, 60)),
                (("box", -math.inf, 30),),
                (("width", 48, 48), ("height", 0, math.inf)),
                (("aspect", 1.5, math.inf),),
                (("square", 30, 47.5), ("box_width", 10, 30)),
                (("box_area", 100, 500), ("box_aspect", 0.5, 1.25)),
                (("box_x", 0, 40), ("box_y", 50, 100), ("boxes", 2, 5)),
            ]
        ),
        sets=st.sampled_from([(), (), ("test:even",), ("test:even", "test:sixty"), ("test:none",)]),
        text=st.sampled_from(["", "1", "00", "IMAGES/", "train", "nothing", ".jp", "é"]),
        sort=st.sampled_from([sort for sort, (of, _) in SORTS.items() if of != "set" and of not in IMAGE_FIGURES]),
    )
)
@settings(max_examples=120, deadline=None)
def test_filters_and_orders(sixty: Pack, query: Query) -> None:
    catalog = Catalog(sixty)
    catalog.add_sets("test", lambda name: RecordSet(name.title(), np.array(SETS[name], np.int64)))
    assert catalog.find(query).tolist() == brute(sixty, query)
    assert catalog.titles(query.sets) == {name: name.partition(":")[2].title() for name in query.sets}


def test_a_set_that_changes(sixty: Pack) -> None:
    """What was found earlier is not what the set is now, as when a record is marked."""
    catalog, marked = Catalog(sixty), [7]
    catalog.add_sets("mark", lambda name: RecordSet("Marked", np.array(marked, np.int64)))
    query = Query(sets=("mark:all",))
    assert catalog.find(query).tolist() == [7]
    marked.append(2)
    assert catalog.find(query).tolist() == [2, 7]


def test_one_pack_of_several(sixty: Pack, tmp_path: Path) -> None:
    """Packs that are shown together can be told apart by a filter."""
    draw_sample(tmp_path / "src", layout="yolo", count=5, size=48, seed=9)
    good("build", tmp_path / "src", "-o", tmp_path / "val", "--labels", "yolo", "--split", "all")
    joined = join_packs([sixty, open_pack(tmp_path / "val")])
    assert ask(joined, "place", at=0, set="pack:1") == {"record": 60, "at": 0}
    shown = ask(joined, "tiles", set="pack:0", sort="last", count=1)
    assert shown["count"] == 60 and shown["sets"] == {"pack:0": "pack"} and shown["tiles"][0]["record"] == 59
    assert ask(joined, "tiles", set="pack:0,pack:1", count=0)["count"] == 0
    assert get(joined, f"/{TOKEN}/api/tiles?set=pack:2").status_code == 400


def test_places(sixty: Pack) -> None:
    found = brute(sixty, Query(sort="largest-box"))
    asked = {"sort": "largest-box"}
    assert ask(sixty, "place", at=3, **asked) == {"record": found[3], "at": 3}
    assert ask(sixty, "place", record=found[5], **asked) == {"record": found[5], "at": 5}
    without = brute(sixty, Query(ranges=(("boxes", 0, 0),)))[0]
    assert ask(sixty, "place", record=without, boxes="1..") == {"record": without, "at": None}


def test_places_without_a_match(sixty: Pack) -> None:
    assert ask(sixty, "place", at=0, text="nothing") == {"record": None, "at": None}


def test_search_does_not_run_over_two_names(tmp_path: Path) -> None:
    """All names are searched as one text; an end and the next beginning are no match."""
    for name in ("ab", "cd", "xabx"):
        draw(tmp_path / "src" / f"{name}.jpg", 1)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "none")
    for text, count in (("ab.jpgcd", 0), ("ab.jpg", 1), ("ab", 2), (".JPG", 3)):
        assert ask(tmp_path / "pack", "tiles", text=text)["count"] == count


def test_a_record_with_all_that_is_known(tmp_path: Path) -> None:
    draw(tmp_path / "src" / "one.jpg", 5, 80, 60)
    boxes = [("dog", 5, 6, 40, 50), ("&lt;b>cat", 1, 1, 9, 9)]
    (tmp_path / "src" / "one.xml").write_text(voc_xml("one.jpg", boxes, (80, 60)))
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "voc")
    pack = open_pack(tmp_path / "pack")
    said = get(pack, f"/{TOKEN}/api/record?record=0")
    facts = json.loads(said.text)
    stored = dict(facts["stored"])
    assert stored["source"] == "one.jpg" and stored["image"] == "80 x 60, 3 x uint8"
    assert stored["shard"] == "data.mdb, row 0"
    assert facts["boxes"] == pack.annotation(0).boxes.tolist() and facts["box_count"] == 2
    assert np.array_equal(seen(facts["picture"]).shape, (60, 80, 3))
    assert facts["box_fields"]["voc_bndbox"] and "<" not in get(pack, f"/{TOKEN}/api/pack").text
    assert ask(pack, "place", at=0) == {"record": 0, "at": 0}


@pytest.mark.parametrize("container", WIDE)
def test_a_damaged_record_shows_its_error_and_the_others_their_image(tmp_path: Path, container: str) -> None:
    draw_plain(tmp_path / "src", 4)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--format", container, "--labels", "none")
    pack = open_pack(tmp_path / "pack")
    path = Path(pack.path, pack.reader.shards[0].container.name)
    data = bytearray(path.read_bytes())
    data[pack.reader.span(2)[0] + 100] ^= 1
    path.write_bytes(data)
    tiles = ask(tmp_path / "pack", "tiles")["tiles"]
    assert ["error" in tile for tile in tiles] == [False, False, True, False]
    assert pack.key(2) in tiles[2]["error"] and "checksum" in tiles[2]["error"]
    assert "checksum" in ask(tmp_path / "pack", "record", record=2)["error"]


# -- the other pages


def test_charts_count_everything(sixty: Pack) -> None:
    facts = ask(sixty, "charts")
    annotations = [sixty.annotation(i) for i in range(len(sixty))]
    boxes = np.concatenate([a.boxes for a in annotations])
    lengths = [len(a.boxes) for a in annotations]
    assert facts["images"] == len(sixty) and facts["boxes"] == len(boxes)
    assert facts["without_boxes"] == lengths.count(0) > 0 and facts["equal"] == 0
    assert facts["boxes_per_image"]["counts"] == np.bincount(lengths).tolist()
    sizes = Counter(sixty.reader.shape_of(i)[1::-1] for i in range(len(sixty)))
    assert facts["image_sizes"]["distinct"] == len(sizes) and sum(facts["image_sizes"]["size"]["counts"]) == len(sixty)
    assert all(sizes[width, height] == many for width, height, many in facts["image_sizes"]["common"])
    area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    assert facts["box_sizes"] == [int((area < 1024).sum()), int((area >= 1024).sum()), 0]
    (classes,) = facts["classes"]
    of_images = [set(a.box_labels.tolist()) for a in annotations]
    labels = np.concatenate([a.box_labels for a in annotations])
    assert {row["id"]: row["count"] for row in classes["rows"]} == dict(enumerate(np.bincount(labels).tolist()))
    assert all(row["images"] == sum(row["id"] in ids for ids in of_images) for row in classes["rows"])
    together = facts["together"]
    for a, row in zip(together["ids"], together["counts"], strict=True):
        assert row == [sum({a, b} <= ids for ids in of_images) for b in together["ids"]]
    expected = {(a, b): n for a in range(4) for b in range(a + 1, 4) if (n := sum({a, b} <= i for i in of_images))}
    assert {(a, b): n for a, b, n in together["pairs"]} == expected
    centers, density = np.zeros((32, 32), int), np.zeros((32, 32), int)
    x, y = facts["box_density"]["x"], facts["box_density"]["y"]
    owners = np.repeat(np.arange(len(sixty)), lengths).tolist()
    for i, (x1, y1, x2, y2) in zip(owners, boxes.tolist(), strict=True):
        height, width, _ = sixty.reader.shape_of(i)
        centers[int((y1 + y2) / 2 / height * 32), int((x1 + x2) / 2 / width * 32)] += 1
        column, row = (sum(edge <= side for edge in edges[1:-1]) for side, edges in ((x2 - x1, x), (y2 - y1, y)))
        density[row, column] += 1
    assert np.abs(np.array(facts["centers"]["counts"]) - centers).sum() <= 4
    assert np.abs(np.array(facts["box_density"]["counts"]) - density).sum() <= 4


def test_mean_and_std_in_the_background(sixty: Pack) -> None:
    client = Client(App(sixty, TOKEN))

    def facts(more: str = "") -> Any:
        return json.loads(client.get(f"/{TOKEN}/api/pixels{more}").text)

    assert facts() == {"begun": False, "done": 0, "images": len(sixty), "stage": ""}
    facts("?start=1")
    until(lambda: "channels" in facts(), 30)
    [found], [expected] = facts()["channels"], channel_stats(sixty)
    assert (tuple(found["mean"]), tuple(found["std"])) == (expected.mean, expected.std) and facts()["done"] == len(
        sixty
    )


def test_mean_and_std_that_fail_for_any_reason(sixty: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page would ask forever how far a thread is that has ended."""

    def fails(*given: Any) -> Any:
        raise MemoryError("no memory")

    client = Client(App(sixty, TOKEN))
    monkeypatch.setattr("packer.view.charts.channel_stats", fails)
    client.get(f"/{TOKEN}/api/pixels?start=1")
    until(lambda: client.get(f"/{TOKEN}/api/pixels").json.get("error") == "MemoryError: no memory", 10)


def test_few_of_many_classes_need_no_memory(tmp_path: Path) -> None:
    facts = random_labels(40, 4, 5)
    pack = open_pack(labeled_pack(tmp_path / "pack", facts, [str(i) for i in range(2000)]))
    tracemalloc.start()
    try:
        together = ask(pack, "charts")["together"]
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    of_images = [set(pack.annotation(i).box_labels.tolist()) for i in range(40)]
    for a, row in zip(together["ids"], together["counts"], strict=True):
        assert row == [sum({a, b} <= ids for ids in of_images) for b in together["ids"]]


def test_the_mean_shape(tmp_path: Path) -> None:
    draw_landmarks(tmp_path / "src")
    labels = ("--labels", f"list:{tmp_path / 'src' / 'landmarks.txt'}", "--columns", "path x*5 y*5")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", *labels)
    pack = open_pack(tmp_path / "pack")
    shapes = []
    for i in range(len(pack)):
        height, width, _ = pack.reader.shape_of(i)
        shapes.append(pack.annotation(i).landmarks / (width, height))
    facts = ask(pack, "charts")["mean_shape"]
    assert np.allclose(facts["mean"], np.mean(shapes, axis=0), atol=1e-4) and facts["records"] == len(pack)
    assert np.allclose(facts["spread"], np.std(shapes, axis=0), atol=1e-4)


def test_boxes_of_which_some_have_no_class(tmp_path: Path) -> None:
    """Rows of box_labels are not those of boxes then."""
    without, known = random_labels(5, 3, 2, 1), random_labels(6, 3, 2, 2)
    del without["box_labels"]
    packs = [labeled_pack(tmp_path / "a", without, ()), labeled_pack(tmp_path / "b", known, ("ant", "bee"))]
    pack = join_packs(packs)
    classes = [pack.annotation(i).box_labels for i in range(len(pack))]
    ids = [[-1] * len(pack.annotation(i).boxes) if of is None else of.tolist() for i, of in enumerate(classes)]
    for class_id in (-1, 0, 1):
        wanted = [(i, n) for i, of in enumerate(ids) for n, one in enumerate(of) if one == class_id]
        catalog = Catalog(pack)
        records, rows = catalog.crops(Query(classes=(class_id,)))
        numbers = [catalog.box_number(*pair) for pair in zip(records.tolist(), rows.tolist(), strict=True)]
        assert list(zip(records.tolist(), numbers, strict=True)) == wanted
        if class_id >= 0:
            assert catalog.find(Query(classes=(class_id,))).tolist() == sorted({i for i, _ in wanted})
    images = {row["id"]: row["images"] for row in ask(pack, "charts")["classes"][0]["rows"]}
    assert images == {i: len(Catalog(pack).find(Query(classes=(i,)))) for i in (0, 1)}


def test_rejected_inputs_with_reasons(tmp_path: Path) -> None:
    draw_plain(tmp_path / "src", 3)
    (tmp_path / "src" / "bad\x1b[31m.jpg").write_bytes(b"\xff\xd8\xff nothing")
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "none", "--max-bad", "1")
    facts = ask(tmp_path / "pack", "rejected")
    (row,) = facts["rejected"]
    assert facts["total"] == 1 and row["path"] == "bad\\x1b[31m.jpg" and row["reason"] == "bad-image" and row["problem"]


def test_a_batch_is_what_a_training_loop_gets(sixty: Pack) -> None:
    facts = ask(sixty, "batch", batch=2, epoch=1, seed=7, samples=12, side=32, crop="random", flip=1)
    loader = PackedLoader(sixty, 12, shuffle=True, seed=7, crop=RandomResizedCrop(32), flip=True)
    loader.set_epoch(1)
    images, targets = list(loader)[2]
    assert facts["batches"] == len(loader)
    for sample, image, target in zip(facts["samples"], images, targets, strict=True):
        assert np.array_equal(seen(sample["picture"]), image.permute(1, 2, 0))
        assert np.allclose(np.reshape(sample["boxes"], (-1, 4)), target["boxes"], atol=0.01)
        assert sample["box_labels"] == target["labels"].tolist()
        before = sample["before"]
        assert np.array_equal(seen(before["picture"]), sixty.image(sample["record"]))
        assert np.allclose(np.reshape(before["boxes"], (-1, 4)), sixty.annotation(sample["record"]).boxes, atol=0.01)
    for crop in ("center", "resize"):
        assert len(ask(sixty, "batch", crop=crop, side=20)["samples"]) == 16


@pytest.fixture(scope="module")
def of_one_size(sixty: Pack, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    out = tmp_path_factory.mktemp("one size") / "it's one.lmdb"
    good("convert", sixty.path, out, "--resize", "40x32")
    return open_pack(out)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("one", {"batch": 2, "epoch": 1, "seed": 7, "samples": 12, "side": 32}),
        ("relative", {"crop": "center", "side": 20, "flip": 0, "batch": 3}),
        ("joined", {"crop": "resize", "side": 24, "batch": 6, "epoch": 2}),
        ("of one size", {"crop": "none", "flip": 0, "samples": 7, "batch": 8, "epoch": 3}),
    ],
)
def test_the_code_makes_the_batch_that_is_shown(
    sixty: Pack, of_one_size: Pack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    """It is run as it is, and in another folder than that of the page."""
    pack = sixty
    if kind == "joined":
        pack = join_packs([sixty, of_one_size])
    elif kind == "of one size":
        pack = of_one_size
    elif kind == "relative":
        monkeypatch.chdir(Path(sixty.path).parent)
        pack = open_pack("pack")
    facts = ask(pack, "batch", **options)
    monkeypatch.chdir(tmp_path)
    made: dict[str, Any] = {}
    exec(facts["code"], made)
    assert len(made["images"]) == len(facts["samples"]) == len(made["targets"])
    for sample, image, target in zip(facts["samples"], made["images"], made["targets"], strict=True):
        assert np.array_equal(seen(sample["picture"]), image.permute(1, 2, 0))
        assert sample["box_labels"] == target["labels"].tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("batch", 4), ("batch", -1), ("batch", "x"), ("side", 0), ("side", 1025), ("samples", 65), ("epoch", -1)),
        *(("seed", ""), ("crop", "x")),
    ],
)
def test_an_error_names_its_field(sixty: Pack, name: str, value: Any) -> None:
    said = get(sixty, f"/{TOKEN}/api/batch?{name}={value}")
    assert said.status_code == 400 and said.json["where"] == name and said.json["error"].startswith(f"{name}: must be")


def test_a_batch_of_different_sizes_needs_a_crop(tmp_path: Path) -> None:
    draw(tmp_path / "src" / "0.jpg", 0, 40, 30)
    draw(tmp_path / "src" / "1.jpg", 1, 50, 30)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "none")
    said = get(tmp_path / "pack", f"/{TOKEN}/api/batch?crop=none&samples=2")
    assert said.status_code == 400 and said.json["where"] == "crop"
    assert len(ask(tmp_path / "pack", "batch", samples=2)["samples"]) == 2


def test_a_batch_without_a_crop(tmp_path: Path) -> None:
    for i in range(5):
        draw(tmp_path / "src" / f"{i}.jpg", i)
    good("build", tmp_path / "src", "-o", tmp_path / "pack", "--labels", "none")
    samples = ask(tmp_path / "pack", "batch", crop="none", flip=0, samples=5)["samples"]
    pack = open_pack(tmp_path / "pack")
    assert sorted(sample["record"] for sample in samples) == list(range(5))
    for sample in samples:
        assert np.array_equal(seen(sample["picture"]), pack.image(sample["record"]))


def test_problems(tmp_path: Path) -> None:
    """Each kind has a count, a set of records and examples; a box is shown large, alone."""
    source = tmp_path / "src"
    for i in range(40):
        draw(source / f"JPEGImages/{i:02d}.jpg", i, 300, 200)
        boxes = [("cell", 10 + i, 20, 40 + i, 50)]
        boxes += [("dot", 11 + i, 20, 40 + i, 50)] if i == 7 else []
        (source / "Annotations").mkdir(exist_ok=True)
        (source / f"Annotations/{i:02d}.xml").write_text(voc_xml(f"{i:02d}.jpg", boxes, (300, 200)))
    good("build", source, "-o", tmp_path / "pack")
    pack = open_pack(tmp_path / "pack")
    problem, near, rare = ask(pack, "problems")["problems"]
    assert near["kind"] == "near-duplicate"  # the drawn waves look alike
    assert (
        rare["kind"] == "rare-class"
        and problem["kind"] == "two-classes"
        and problem["records"] == 1
        and problem["level"] == "wrong"
    )
    found = ask(pack, "tiles", set_="problem:two-classes")
    assert [tile["record"] for tile in found["tiles"]] == [7]
    assert found["sets"] == {"problem:two-classes": "One object with two classes"}
    [example] = ask(pack, "problem", kind="two-classes")["examples"]
    assert example["detail"] == "cell and dot" and example["record"] == 7
    assert seen(example["picture"]).shape[:2] == (example["height"], example["width"]) == (96, 96)
    boxes = pack.annotation(7).boxes
    left, top = boxes[0][:2] - example["boxes"][0][:2]
    assert np.array_equal(np.asarray(example["boxes"]) + np.array([left, top] * 2), boxes)
    crop = pack.image(7)[int(top) : int(top) + 96, int(left) : int(left) + 96].astype(int)
    assert np.abs(seen(example["picture"]).astype(int) - crop).mean() < 4
    assert get(pack, f"/{TOKEN}/api/tiles?set=problem:leak").status_code == 400


def test_several_packs(tmp_path: Path) -> None:
    """One numbering for both, names of both, and the images that both have."""
    for name, first in (("train", 0), ("val", 8)):
        for i in range(10):
            draw(tmp_path / name / ("cat", "dog")[i % 2] / f"{i}.png", first + i, format="PNG")
        good("build", tmp_path / name, "-o", tmp_path / f"{name}.pack")
    pack = join_packs([tmp_path / "train.pack", tmp_path / "val.pack"])
    facts = ask(pack, "pack")
    assert facts["name"] == "train.pack + val.pack" and facts["records"] == 20 and facts["rejected"] == 0
    assert facts["packs"] == [{"name": "train.pack", "records": 10}, {"name": "val.pack", "records": 10}]
    leak, *near = ask(pack, "problems")["problems"]
    assert [one["kind"] for one in near] == ["near-leak", "near-label-conflict"]  # the drawn waves look alike
    assert leak["kind"] == "leak" and leak["objects"] == 2
    found = ask(pack, "tiles", set_="problem:leak")["tiles"]
    assert len(found) == 4 and len({tile["picture"] for tile in found}) == 2
    beside = [tile["picture"] for tile in ask(pack, "tiles", set_="problem:leak", sort="set")["tiles"]]
    assert beside[0] == beside[1] != beside[2] == beside[3]
    assert ["pack", str(tmp_path / "val.pack")] in ask(pack, "record", record=15)["stored"]
    assert ask(pack, "rejected")["total"] == 0 and ask(pack, "charts")["images"] == 20
    said = refused(2, "view", tmp_path / "train.pack", tmp_path / "val.pack", "--export-marks", tmp_path / "marks.txt")
    assert "writes the list of one pack" in said
    sheet = tmp_path / "sheet.html"
    good("view", tmp_path / "train.pack", tmp_path / "val.pack", "--export", sheet)
    assert sheet.read_text().count("<figure>") == 20
