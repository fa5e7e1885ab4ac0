"""The rows of docs/reliability.md: what each does, what must hold, and how scripts/torture.py runs its cases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence"


@dataclass(frozen=True)
class Row:
    """A row of the page."""

    name: str
    what: str
    must_hold: str
    file: str = ""
    """The file in tests/torture that has its cases; empty for rows of other scripts, and for those of the past."""
    tests: str = ""
    """Which tests of the file, as pytest's -k."""

    @property
    def can_run(self) -> bool:
        """Whether it has cases; rows of the past are replaced by other tests."""
        return bool(self.file) or ":" in self.name

    @property
    def group(self) -> str:
        """The table that it stands in: what comes before the colon of its name, or the folder of its test."""
        group, colon, _ = self.name.partition(":")
        return group if colon else "stores" if "remote" in self.file else "packs"

    @property
    def evidence(self) -> str:
        """The file of its runs."""
        return f"{self.name.partition(':')[0]}.jsonl"


BUILDS, PACKS = "test_torture_builds.py", "test_torture_packs.py"
LOADER, PARSERS, REMOTE = "test_torture_loader.py", "test_torture_parsers.py", "test_torture_remote.py"
RESUMED = "0 unreadable, 0 complete but wrong, resumed bytes equal"
HONEST = "0 false successes, 0 crashes, 0 hangs"
NOTICED = "all found by `verify`; read as an error, or exactly as packed"
READ = "an image or BadImage, and the process lives"
RIGHT = "right images, or an error"
PARSED = "a result or one of packer's errors, in less than 1 s"

PAGE_ROWS = [
    Row("kills", "SIGKILL at any mutating system call of a build of three shards, with `--overwrite` too; then resume",
        RESUMED, BUILDS, "test_a_fault_at_any_call and kill"),
    Row("random-kills", "SIGKILL of the process group of a parallel build at random times, and while it resumes",
        RESUMED, BUILDS, "test_random_kills"),
    Row("faults", "ENOSPC, EIO, EDQUOT or EROFS at any call that creates, writes, syncs, names or closes, once or ever",
        f"{HONEST}; no fsync is retried", BUILDS, "test_a_fault_at_any_call and error"),
    Row("short-writes", "writes that take half of the bytes, at each writing call of a build", HONEST,
        BUILDS, "test_short_writes"),
    Row("power-cuts",
        "power cut at any mutating system call: unsynced bytes lost, cut or zeroed, unsynced renames undone", RESUMED,
        BUILDS, "test_a_fault_at_any_call and power"),
    Row("identity", "workers {1, 2, 4} x locales x hash seeds x order of folders x interruptions", "one SHA-256"),
    Row("flips", "every single-bit flip of every file of a small pack", NOTICED, PACKS, "test_damage and flips"),
    Row("truncations", "every truncation of every file, and appended bytes", NOTICED,
        PACKS, "test_damage and truncations"),
    Row("changes", "blocks, images and files zeroed, copied, exchanged, renamed, doubled", NOTICED,
        PACKS, "test_damage and changes"),
    Row("hostile",
        "packs with changed columns and manifests, all digests right: each is opened, and goes on to one of 38 uses "
        "(commands, page, loader); of those refused when opened, one in ten",
        "an exit code or error of packer, less than 10 s, nothing written elsewhere",
        PACKS, "test_hostile_packs"),
    Row("bombs", "a JPEG of 937 bytes and 30000x30000 pixels; giant PNG, GIF, WebP, TIFF, BMP; XML entities; deep JSON",
        "refused in less than 10 ms and 5 MiB"),
    Row("workers", "deaths of workers of a DataLoader: fork, spawn, forkserver, persistent or not",
        "0 hangs, one type of error", LOADER, "test_worker_deaths"),
    Row("resume", "resume positions of a loader of 97 records x threads {1, 2, 4} x world sizes 1 to 8", "exact order",
        LOADER, "test_resume_positions"),
    Row("left-early",
        "20 epochs left at random places by break, close, an error, next(iter()), while OpenCV works in all threads",
        "the process lives; the next whole epoch is as if nothing had been", LOADER, "test_epochs_left_early"),
    Row("leaks", "40 openings of a pack; 20 epochs of a DataLoader",
        "no descriptor left, no memory that grows; workers grow less than 2 %",
        LOADER, "test_opening_leaves_nothing or test_workers_take_no_more_memory"),
    Row("images", "mutated images of each format through the decode path", READ, PARSERS, "test_mutations and decode"),
    Row("image-flips", "every single-bit flip of a small image of each variant through the decode path", READ,
        PARSERS, "test_flipped_bits_of_images"),
    Row("labels", "mutated labels, lists, archives, manifests and indexes", PARSED,
        PARSERS, "test_mutations and not decode and not header"),
    Row("fuzz", "coverage-guided fuzzing (atheris) of manifest, index, YOLO, list, VOC and image headers", PARSED),
    Row("cache-kills", "SIGKILL of a process that fills a cache, with another beside it; then a third",
        "right images, no hang, nothing whole fetched again", REMOTE, "test_kills_while_filling"),
    Row("block-flips", "a flipped bit in every block of a pack: in the first answer, in every answer, in the cache",
        "right images, or an error that names the record", REMOTE, "test_flipped_bits_of_every_block"),
    Row("cache-disk", "ENOSPC, EIO, EDQUOT at each write of a cache, once and from then on",
        f"{RIGHT}; all right afterwards", REMOTE, "test_a_full_disk"),
    Row("evictions", "100 evictions or more while two processes of two threads read at random what hardly fits",
        "right images; only files of the cache are removed", REMOTE, "test_evictions_while_reading"),
    Row("store-replaced", "a shard becomes another object at each block",
        "an error that names it, if it is read afterwards", REMOTE, "test_an_object_that_is_replaced"),
    Row("store-faults",
        "503, closed connections, cut answers, flipped bits, other bytes and ranges, alone and together",
        RIGHT, REMOTE, "test_a_store_at_its_worst"),
]  # fmt: skip

FUZZ = {
    "list": "lists", "coco": "COCO", "labelme": "LabelMe", "createml": "Create ML", "vott": "VoTT",
    "widerface": "WIDER FACE", "yolo": "YOLO", "config": "`--config`", "pts": "PTS",
    "cvat": "CVAT (images and video)", "dlib": "dlib", "lists": "lists of a pack", "rle": "run lengths of COCO",
    "selection": "`--include`, `--exclude`", "voc": "VOC", "yaml": "data.yaml", "archive": "zips and tars as sources",
    "members": "members of zips and tars", "manifest": "manifests", "index": "indexes", "header": "headers of images",
    "decode": "images",
}  # fmt: skip
"""Parsers that are fuzzed with their source."""

CORE = {
    "pts": "PTS", "list-row": "a line of a list, by its columns", "list-columns": "`--columns`",
    "list-layout": "separator, header and columns of a list", "list-blocks": "lines by pyarrow, and one by one",
    "coco-object": "images, categories and annotations of COCO", "coco-map": "the places of them in the file",
    "rle": "run lengths of COCO", "yolo": "YOLO rows", "yaml": "data.yaml", "voc": "VOC", "cvat": "CVAT",
    "dlib": "dlib", "labelme": "LabelMe", "createml": "Create ML", "vott": "VoTT", "widerface": "WIDER FACE",
    "members": "members of zips and tars", "selection": "`--include`, `--exclude`", "config": "`--config`",
    "lists": "lists of a pack", "adopt-webdataset": "WebDataset tars of others",
    "adopt-tfrecord": "TFRecords of others",
    "adopt-parquet": "Parquet of others", "adopt-npy": "`.npy` of others", "adopt-idx": "IDX of others",
}  # fmt: skip
"""Parsers that are fuzzed alone."""

NODES = {
    "ray": "Ray, a node killed with its processes",
    "dask": "dask, a worker killed with SIGKILL",
}

TRAINERS = {
    "bare": "a loop of one's own",
    "torchrun": "torchrun, DistributedDataParallel, 2 processes",
    "lightning": "Lightning",
    "lightning-ddp": "Lightning, ddp, 2 processes",
    "lightning-workers": "Lightning, torchdata with 2 workers",
    "accelerate": "accelerate",
    "accelerate-2": "accelerate, 2 processes",
    "torchdata": "torchdata",
    "torchdata-workers": "torchdata, 2 workers",
    "transformers": "transformers.Trainer",
}

OTHERS = {
    "fuzz": (FUZZ, PARSED),
    "core": (CORE, PARSED),
    "nodes": (NODES, "every file has the SHA-256 of the local build"),
    "trainers": (TRAINERS, "the parts before and after a kill are the undisturbed run, batch for batch"),
}

ROWS = {row.name: row for row in PAGE_ROWS} | {
    f"{group}:{name}": Row(f"{group}:{name}", what, must_hold)
    for group, (names, must_hold) in OTHERS.items()
    for name, what in names.items()
}
