"""Small programs as a stranger would write them, on a folder of images in two classes: what they print."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from drawn import image_file

import packer

PROGRAMS = {
    "pack a folder": ('packer.build("imgs", "new.lmdb", resize=16, fit="crop")', ""),
    "what was packed": (
        'print(packer.build("imgs", "new.lmdb"))',
        "[<BuildSummary new.lmdb: 6 found, 6 packed, 0 rejected, 0 skipped>]",
    ),
    "beside the source": ('packer.build("imgs", overwrite=True)\nprint(os.path.isdir("imgs.lmdb"))', "True"),
    "a path object": (
        'packer.build(Path("imgs"), Path("new.hdf5"))\nprint(len(packer.open_pack(Path("new.hdf5"))))',
        "6",
    ),
    "a square": (
        'packer.build("imgs", "new.lmdb", resize=(8, 8))\nprint(packer.open_pack("new.lmdb")[0].image.shape)',
        "(8, 8, 3)",
    ),
    "a share of bad images": (
        'open("imgs/ant/bad.jpg", "wb").close()\nprint(packer.build("imgs", "new.lmdb", max_bad=0.2))',
        "[<BuildSummary new.lmdb: 7 found, 6 packed, 1 rejected, 0 skipped>]",
    ),
    "a number of bad images": (
        'open("imgs/ant/bad.jpg", "wb").close()\nprint(packer.build("imgs", "new.lmdb", max_bad=1))',
        "[<BuildSummary new.lmdb: 7 found, 6 packed, 1 rejected, 0 skipped>]",
    ),
    "a third": ('packer.build("imgs", "new.lmdb", max_bad=1 / 3)', ""),
    "no share": ('packer.build("imgs", "new.lmdb", max_bad=0.0, on_bad="skip")', ""),
    "numbers of numpy": (
        'packer.build("imgs", "new.lmdb", resize=numpy.int64(8), overwrite=numpy.True_, quality=90.0)',
        "",
    ),
    "one kind of labels": (
        'packer.build("imgs", "new.lmdb", labels="folder")\nprint(packer.open_pack("new.lmdb").classes)',
        "['ant', 'bee']",
    ),
    "a list of labels": (
        'packer.build("imgs", "new.lmdb", labels=["folder"])\nprint(packer.open_pack("new.lmdb").classes)',
        "['ant', 'bee']",
    ),
    "how many": ("print(len(pack))", "6"),
    "the first one": ("print(pack[0].image.shape, pack[0].annotation.label)", "(30, 40, 3) 0"),
    "the last one": ("print(pack[-1].annotation.label)", "1"),
    "a slice": ("print([sample.annotation.label for sample in pack[2:5]])", "[0, 1, 1]"),
    "a slice from the end": ("print(len(pack[-2:]), len(pack[::2]), len(pack[99:]))", "2 3 0"),
    "a slice of a slice": ("print(pack[1:][0].annotation.label, pack[1:][-1].annotation.label)", "0 1"),
    "a slice reads nothing yet": ("print(pack[:2])", "<2 samples of <Pack PACK: 6 records, lmdb raw>>"),
    "all of them": ("for image, annotation in pack: pass\nprint(image.shape, annotation.label)", "(30, 40, 3) 1"),
    "numbered": ("print([i for i, sample in enumerate(pack) if sample.annotation.label == 1])", "[3, 4, 5]"),
    "of one class": (
        'print(pack.where(label="bee"), pack.where(label=0), pack.where(label=["ant", 1]))',
        "[3 4 5] [0 1 2] [0 1 2 3 4 5]",
    ),
    "of a path": (
        'print(pack.where(path="ant/*"), pack.where(label="bee", path="*/4.jpg"), pack.where(path="x"))',
        "[0 1 2] [4] []",
    ),
    "train on a class": (
        'loader = packer.PackedLoader(pack, 2, indices=pack.where(label="bee"), crop=packer.CenterCrop(8))\n'
        "print([labels.tolist() for _, labels in loader])",
        "[[1, 1], [1]]",
    ),
    "with": ('with packer.open_pack("imgs.lmdb") as p: print(p.classes[p[0].annotation.label])', "ant"),
    "several as one": (
        'both = packer.join_packs(["imgs.lmdb", "more.lmdb"])\nprint(len(both), both[-1].image.shape)',
        "12 (8, 11, 3)",
    ),
    "is it good": ('print(packer.verify("imgs.lmdb").problems)', "()"),
    "put it right": ('os.remove("imgs.lmdb/pack.json")\nprint(packer.repair("imgs.lmdb").records)', "6"),
    "are they equal": (
        'print(packer.diff("imgs.lmdb", "imgs.lmdb").equal, packer.diff("imgs.lmdb", "more.lmdb").equal)',
        "True False",
    ),
    "statistics": ('print(packer.stats("imgs.lmdb").classes[0].counts)', "(3, 3)"),
    "statistics of an open pack": ("print(packer.stats(pack, pixels=False).records)", "6"),
    "to a store and back": (
        'packer.push("imgs.lmdb", f"file://{os.getcwd()}/store")\npacker.pull(f"file://{os.getcwd()}/store", "back")\n'
        'print(packer.diff("back", "imgs.lmdb").equal)',
        "True",
    ),
    "another format": (
        'packer.convert("imgs.lmdb", "imgs.tfrecord")\nprint(packer.open_pack("imgs.tfrecord")[0].image.shape)',
        "(30, 40, 3)",
    ),
    "from a generator": (
        'with packer.PackWriter("new.lmdb") as w:\n'
        '  for n in range(3): w.write(numpy.full((4, 5, 3), n, "uint8"), label=n)\n'
        'print(packer.open_pack("new.lmdb")[2].image.max(), len(packer.open_pack("new.lmdb").classes))',
        "2 3",
    ),
    "catch an error": (
        'try: packer.build("nowhere")\nexcept packer.PackerError as error: print(error)',
        "nowhere: no such folder or archive; give the folder or archive that holds the images",
    ),
    "catch a missing pack": (
        'try: packer.open_pack("nowhere")\nexcept FileNotFoundError as error: print(type(error).__name__)',
        "PackNotFound",
    ),
}
WRONG = {
    'packer.build("imgs", resiz=64)': (TypeError, "unknown option 'resiz'; did you mean resize?"),
    'packer.build("imgs", resize=(640, 480))': (
        ValueError,
        'resize: must be a number of pixels, or width x height, got (640, 480); write resize=64, or resize="640x480"',
    ),
    'packer.build("imgs", resize="big")': (ValueError, "resize"),
    'packer.build("imgs", workers="2")': (
        ValueError,
        "workers: must be a whole number, got '2'; write it without quotes",
    ),
    'packer.build("imgs", classes=["ant", "bee"])': (
        ValueError,
        "classes: must be a file with a name per line, or a pack, got ['ant', 'bee']",
    ),
    'packer.build("imgs", labels=3)': (ValueError, "labels: must be a text, or a list of texts, got 3"),
    'packer.build("imgs", max_bad=1.0)': (
        ValueError,
        "max_bad: must be a number of images, or a share below 1, got 1.0",
    ),
    'packer.build("imgs", max_bad=3.5)': (
        ValueError,
        "max_bad: must be a number of images, or a share below 1, got 3.5",
    ),
    'packer.build("imgs", shuffle=True)': (
        ValueError,
        "shuffle: must be the seed of an order, a whole number, got True; write shuffle=0",
    ),
    'packer.build("imgs", overwrite="yes")': (ValueError, "overwrite: must be True or False, got 'yes'"),
    'packer.build("imgs", quality="90")': (ValueError, "quality: must be a whole number, got '90'"),
    'packer.build("imgs", mode=None)': (ValueError, "mode: must be text, got None"),
    "packer.build(3)": (TypeError, "expected str, bytes or os.PathLike object, not int"),
    'pack.where(label="be")': (ValueError, "has no class be; did you mean bee?"),
    "pack.where(label=2)": (ValueError, "has no class 2"),
    "pack[6]": (IndexError, "sample 6 of 6"),
    "pack[-7]": (IndexError, "sample -7 of 6"),
    'pack["a"]': (TypeError, "indices must be integers or slices"),
    "numpy.asarray(pack)": (TypeError, "a pack is not an array: pack[0].image is the image of a record"),
    "packer.join_packs(pack)": (ValueError, "packs: must be a list of packs"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a program in a folder with imgs/, the pack imgs.lmdb of it, which is open as `pack`, and more.lmdb."""
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        folder = tmp_path / "imgs" / ("ant" if number < 3 else "bee")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(image_file(number))
    packer.build("imgs", "imgs.lmdb", workers=1)
    packer.build("imgs", "more.lmdb", resize=8, workers=1)

    def program(text: str) -> str:
        out = io.StringIO()
        start = "import os, numpy, packer\nfrom pathlib import Path\npack = packer.open_pack('imgs.lmdb')\n"
        with contextlib.redirect_stdout(out):
            exec(start + text, {"__name__": "__main__"})
        return out.getvalue().strip().replace(str(tmp_path / "imgs.lmdb"), "PACK")

    return program


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, run) -> None:
    text, printed = PROGRAMS[name]
    assert run(text) == printed


def test_an_error_in_a_sample_ends_no_loop(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def annotation(self, i):
        raise IndexError

    monkeypatch.setattr(packer.Pack, "annotation", annotation)
    for text in ("list(pack)", "list(pack[:])"):
        with pytest.raises(IndexError):
            run(text)


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said(text: str, run) -> None:
    kind, message = WRONG[text]
    with pytest.raises(kind) as found:
        run(text)
    assert message in str(found.value)
