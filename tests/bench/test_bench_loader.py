"""`packer bench --loader`: a loader of the user's, alone and beside a folder or a pack; its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import draw_plain
from running import good, refused

from packer.bench.own_loader import batch_text, images_in

QUICK = ["--rounds", 2, "--seconds", 0.05, "--threads", 1]
MODULE = """
import glob, os, sys
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

print("a module may print")
FILES = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "src", "*.jpg")))

class Files(Dataset):
    def __init__(self, bad=None):
        self.bad = bad
    def __len__(self):
        return len(FILES)
    def __getitem__(self, i):
        if i == self.bad:
            raise ValueError(f"image {i} is bad")
        return torch.from_numpy(np.array(Image.open(FILES[i]))).permute(2, 0, 1).float(), 0

def workers(): return DataLoader(Files(), 4, shuffle=True, num_workers=1, persistent_workers=True)
def plain(): return DataLoader(Files(), 4, shuffle=True)
def generator():
    for n in range(3):
        yield {"name": ["a"], "image": np.zeros((5, 8, 8, 3), np.uint8)}
def once():
    made.append(1)
    return iter([np.zeros((5, 2))] if len(made) == 1 else [])
made = []
def endless():
    while True: yield [torch.zeros(2, 3, 8, 8), torch.zeros(2)]
def bad(): return DataLoader(Files(bad=9), 4)
def bad_in_worker(): return DataLoader(Files(bad=9), 4, num_workers=1)
def empty(): return []
def strange(): return [object()]
def nothing(): return None
def needs(argument): return []
def leaves(): sys.exit("enough")
number = 3
"""
TRY = 'try it alone: python -c "import own; next(iter(own.{0}()))"'
MISTAKES = {
    "own:bad": "own:bad: batch 3 raised ValueError: image 9 is bad (own.py, line 18); " + TRY.format("bad"),
    "own:bad_in_worker": "own:bad_in_worker: batch 3 raised ValueError: image 9 is bad; " + TRY.format("bad_in_worker"),
    "own:empty": "own:empty: yields no batches; return an object that can be iterated again, as a DataLoader",
    "own:once": "own:once: yields batches only once (1 of them); return an object that can be iterated again",
    "own:strange": "own:strange: the number of images of a batch is unknown: batch 1 is object; yield tensors",
    "own:nothing": "own:nothing: returned NoneType, which cannot be iterated; return a DataLoader, or another iterable",
    "own:needs": "own:needs: raised TypeError: needs() missing 1 required positional argument: 'argument'",
    "own:leaves": "own:leaves: raised SystemExit: enough (own.py, line 38)",
    "own:number": "--loader: own:number is not callable, but int; name a function that returns the loader",
    "own:absent": "--loader: own has no 'absent'; name a function that returns the loader",
    "not_there.own:f": "--loader: module 'not_there' was not found in ",
    "imports:f": "imports:f: cannot be imported: ModuleNotFoundError: No module named 'not_there' (imports.py, line 1)",
    "broken:f": "broken:f: cannot be imported: SyntaxError: ",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loader")
    draw_plain(folder / "src", 16)
    (folder / "own.py").write_text(MODULE)
    (folder / "imports.py").write_text("import not_there")
    (folder / "broken.py").write_text("def f(:")
    return folder


@pytest.fixture(autouse=True)
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def rows_of(*arguments: Any) -> dict[str, Any]:
    facts = json.loads(good("bench", *arguments, *QUICK, "--json").out)
    assert facts["reliable"] is not facts["answer"].startswith("UNRELIABLE: ")
    return {row["name"]: row for row in facts["rows"]}


def test_a_loader_alone_with_a_step() -> None:
    rows = rows_of("--loader", "own:workers", "--step-ms", 4)
    assert list(rows) == ["your loader", "your loader + step", "perfect loader + step"]
    for one in rows["your loader"]["rounds"]:
        assert one["images"] % 4 == 0 and one["cpu_s"] > 0 and one["epochs"] >= 1 and one["waiting"] is None
        assert one["batch"] == {"images": 4, "size": [40, 30], "text": "a list of float32 4x3x30x40, int64 4"}
    perfect = rows["perfect loader + step"]["rounds"]
    assert max(one["waiting"] for one in perfect) < 0.5  # only a busy machine makes it wait
    assert max(one["images"] / one["seconds"] for one in perfect) <= 4 / 0.004


@pytest.mark.parametrize(("name", "images"), [("own:generator", 5), ("own:endless", 2)])
def test_generators_are_loaders(name: str, images: int) -> None:
    rows = rows_of("--loader", name)
    assert all(one["batch"]["images"] == images for one in rows["your loader"]["rounds"])


def test_beside_a_pack_and_beside_a_folder(folder: Path) -> None:
    good("build", folder / "src", "-o", folder / "pack", "--labels", "none", "--resize", "40x30")
    rows = rows_of(folder / "pack", "--loader", "own:plain")
    assert [*rows] == ["limit: memory copy, 1 thread", "your loader", "pack, raw"]
    assert rows["pack, raw"]["settings"]["batch_size"] == 4  # of the loader
    few = ["--format", "lmdb", "--encode", "jpeg"]
    text = good("bench", folder / "src", "--loader", "own:plain", *QUICK, *few, "--quiet").out
    assert {"your loader", "folder, cv2", "lmdb, jpeg"} <= {line.partition("  ")[0] for line in text.splitlines()}
    assert "size 40x30" in text and "a module may print" not in text


@pytest.mark.parametrize("loader", MISTAKES)
def test_mistakes_are_named(loader: str) -> None:
    code = 2 if MISTAKES[loader].startswith("--loader") else 1
    line = refused(code, "bench", "--loader", loader, *QUICK, "--seconds", 0.3)
    assert line.startswith(f"packer: error: {MISTAKES[loader]}")


def test_options_that_do_not_go_together() -> None:
    for words in (["--cold"], ["--tune", "pack"], ["--tune"]):
        line = refused(2, "bench", "--loader", "own:workers", *words)
        assert line == f"packer: error: {words[0]}: cannot be combined with --loader; leave one of them out"
    for name in ("own", "own:", "a-b:f"):
        said = refused(2, "bench", "--loader", name)
        assert said == f"packer: error: --loader: must be MODULE:FUNCTION, got {name!r}; such as my_module:make_loader"


IMAGE, BATCH, LABELS = torch.zeros(3, 4, 5), torch.zeros(7, 3, 4, 5), torch.zeros(7)
BATCHES: list[tuple[Any, int | None]] = [
    (BATCH, 7), (np.zeros((7, 4, 5, 3)), 7), ((BATCH, LABELS), 7), ([BATCH, LABELS], 7), ([LABELS, BATCH], 7),
    ({"path": "a", "image": BATCH}, 7), ([{"data": BATCH}, {"data": BATCH}], 14), ((([IMAGE] * 6), [{}] * 6), 6),
    ([IMAGE] * 6, 6), ([(IMAGE, 1)] * 6, 6), ([{"image": IMAGE}] * 6, 6), ((IMAGE, IMAGE), 2),
    (([b"1", b"2"], [1, 2]), 2), ((BATCH, [{"boxes": LABELS}] * 7), 7),
    (object(), None), (torch.tensor(1.0), None), ({}, None), ([], None), ({"a": 1}, None),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BATCHES)))
def test_images_in_a_batch(number: int) -> None:
    batch, images = BATCHES[number]
    assert images_in(batch) == images, batch_text(batch)


def test_kinds_of_batches_as_text() -> None:
    assert batch_text((BATCH.half(), LABELS)) == "a tuple of float16 7x3x4x5, float32 7"
    assert batch_text({"image": np.zeros((7, 2), np.uint8)}) == "a dict of image: uint8 7x2"
    assert batch_text([IMAGE] * 6) == "a list of float32 3x4x5, float32 3x4x5, float32 3x4x5, ... (6 in all)"
    assert batch_text(torch.tensor(1)) == "int64 scalar" and batch_text(None) == "NoneType"
