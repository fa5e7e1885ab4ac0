"""The rooms of the house: which may import which, what nobody may call, and how large things grow."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "packer").rglob("*.py"))

FLOORS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("bench",),
    ("view",),
    ("stats",),
    ("loading",),
    ("repack",),
    ("packing",),
    ("samplers",),
    ("format",),
    ("sources",),
    ("images",),
    ("containers",),
    ("files",),
    ("stores",),
    ("types",),
    ("model",),
    ("system",),
    ("errors",),
)
"""The rooms from the top; each may import from the floors below its own, and from itself."""
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
ADAPTERS = {"dali", "libreyolo", "lightning", "rfdetr", "timm", "ultralytics"}
"""Modules for other projects' trainers, above all rooms; each imports its project, and nothing imports it."""
ONLY_IN = {
    "pickle": ("packer/system/",),  # between its own processes, in pipes that only they hold
    "subprocess": ("packer/system/",),
    "torch": ("packer/loading/", "packer/bench/", "packer/dali.py", "packer/rfdetr.py", "packer/timm.py"),
    "lmdb": ("packer/containers/", "packer/files/"),
    "h5py": ("packer/containers/", "packer/files/", "packer/repack/formats/hdf5_format.py"),
    "tarfile": ("packer/containers/",),
    "zipfile": ("packer/files/", "packer/containers/stored_zip.py"),
    "google": (),
    "tfrecord": (),
    "webdataset": (),
    "tensorflow": (),
    "PIL": ("packer/bench/", "packer/images/"),
    "cv2": ("packer/images/", "packer/loading/", "packer/sources/synthetic.py", "packer/stats/", "packer/bench/"),
    "simplejpeg": ("packer/images/", "packer/loading/", "packer/bench/"),
    "jpeg4py": ("packer/images/",),
    "defusedxml": ("packer/sources/",),
    "yaml": ("packer/sources/",),
    "click": ("packer/cli/group.py", "packer/cli/main.py", "packer/cli/"),
    "tqdm": ("packer/cli/",),
    "werkzeug": ("packer/view/",),
    "obstore": ("packer/stores/",),
    "fsspec": ("packer/stores/",),
    "pycocotools": ("packer/model/rle.py",),
    "umap": ("packer/stats/projection.py",),
    "boto3": ("packer/stores/",),
    "socket": ("packer/packing/engines/",),
}
"""Library -> where it may be imported."""
NOWHERE = {"cPickle", "marshal", "shelve", "dill", "cloudpickle", "urllib", "http", "requests"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "cv2.imread", "torch.load", "os.system", "os.popen",
    "subprocess.run", "subprocess.Popen", "multiprocessing.Pool", "tempfile.mktemp",
}  # fmt: skip
LONGEST_FILE = 500
LONGEST_FUNCTION = 80
MOST_PARAMETERS = 6


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Every module that is imported, at the top or inside a function; `from packer import x` as packer.x."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes(), str(file))


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """All of a file: walking takes longer than what most tests then look at."""
    return tuple(ast.walk(parsed(file)))


@cache
def calls(file: Path) -> tuple[tuple[ast.Call, str], ...]:
    """The calls in a file, and what each calls."""
    return tuple((node, ast.unparse(node.func)) for node in nodes(file) if isinstance(node, ast.Call))


def in_every_file(check: Callable[[Path], None]) -> Callable[[], None]:
    """One test of all files, which names each that fails: thousands of tests of a millisecond take their time, too."""

    def test() -> None:
        wrong = []
        for file in FILES:
            try:
                check(file)
            except AssertionError as error:
                wrong.append(f"{file.relative_to(ROOT)}: {error}")
        assert not wrong, "\n".join(wrong)

    return test


def module_of(file: Path) -> str:
    """packer.format.index of packer/format/index.py."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


@cache
def imports_of(module: str) -> set[str]:
    """Modules of packer that a module imports, at its top, inside functions, or for types only."""
    found = set()
    for name in imported(nodes(MODULES[module])):
        known = name if name in MODULES else name.rpartition(".")[0]  # or a name in a module
        if known in MODULES and known != module:
            found.add(known)
    # `from packer.images import header` names the package too, but runs nothing of it but its __init__
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def test_a_newcomer_sees_all_rooms_at_once() -> None:
    entries = {path.name for path in (ROOT / "packer").iterdir() if path.name != "__pycache__"}
    entries -= {f"{name}.py" for name in ADAPTERS}
    rooms = {name.removesuffix(".py") for name in entries} - {"__init__", "__main__", "py.typed"}
    assert rooms == set(FLOOR)


def test_no_two_files_or_classes_have_one_name() -> None:
    """Whoever looks for `Layout`, or opens a file by its name, finds one."""
    files = Counter(file.name for file in FILES if file.name != "__init__.py")
    classes = Counter(
        node.name for file in FILES for node in nodes(file) if isinstance(node, ast.ClassDef)
    )  # fmt: skip
    assert not [name for name, count in (files | classes).items() if count > 1]


@in_every_file
def test_imports_go_downwards_only(file: Path) -> None:
    module = module_of(file)
    if module in ("packer", "packer.__main__"):  # the doors
        return
    room = module.split(".")[1]
    assert not {f"packer.{name}" for name in ADAPTERS} & imports_of(module)
    if room in ADAPTERS:
        return
    upwards = {
        name
        for name in imports_of(module) - {"packer"}
        if name.split(".")[1] != room and FLOOR[name.split(".")[1]] <= FLOOR[room]
    }
    assert not upwards


def test_no_import_goes_in_a_circle() -> None:
    graph = {module: imports_of(module) - {"packer"} for module in MODULES if module != "packer"}
    while leaves := {module for module, others in graph.items() if not others & graph.keys()}:
        for module in leaves:
            del graph[module]
    assert not graph, f"in circles, or above one: {sorted(graph)}"


@in_every_file
def test_libraries_stay_in_their_rooms(file: Path) -> None:
    name = str(file.relative_to(ROOT))
    used = {module.partition(".")[0] for module in imported(nodes(file))}
    assert not used & NOWHERE
    wrong = {lib for lib in used if lib in ONLY_IN and not name.startswith(ONLY_IN[lib])}
    assert not wrong


POSIX_ONLY = {
    "fcntl", "resource", "pwd", "grp", "fork", "forkpty", "register_at_fork", "flock", "lockf", "posix_fadvise",
    "posix_fallocate", "pread", "preadv", "pwrite", "sched_getaffinity", "sysconf", "statvfs", "getloadavg", "geteuid",
    "getuid", "getpgrp", "setpgid", "setpgrp", "setsid", "killpg", "pthread_sigmask", "SIGHUP", "SIGKILL",
    "O_DIRECTORY", "O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "mkfifo", "uname", "madvise", "mincore", "mlock", "munlock",
    "renameat2", "memfd_create", "MAP_PRIVATE", "MAP_SHARED", "MAP_ANON", "PROT_READ", "CDLL",
}  # fmt: skip
SEAM = {"packer/system/__init__.py", "packer/system/locks.py", "packer/system/storage.py"}


@in_every_file
def test_what_only_posix_has_stands_behind_one_seam(file: Path) -> None:
    used = {node.attr for node in nodes(file) if isinstance(node, ast.Attribute)} | set(imported(nodes(file)))
    assert str(file.relative_to(ROOT)) in SEAM or not used & POSIX_ONLY


@in_every_file
def test_nothing_runs_what_it_reads(file: Path) -> None:
    for node, called in calls(file):
        if called == "yaml.load" and "Loader=yaml.BaseLoader" in ast.unparse(node):
            continue  # makes nothing but text
        if called == "subprocess.Popen" and "system" in file.parts:
            continue  # workers
        assert called not in FORBIDDEN_CALLS, f"line {node.lineno}: {called}"
        options = {k.arg: ast.unparse(k.value) for k in node.keywords}
        assert options.get("allow_pickle") in (None, "False"), f"line {node.lineno}"
        assert options.get("shell") in (None, "False"), f"line {node.lineno}"
        if called.endswith("np.load"):
            assert options.get("allow_pickle") == "False", f"line {node.lineno}"


@in_every_file
def test_files_and_signatures_stay_small(file: Path) -> None:
    assert len(file.read_text("utf-8").splitlines()) <= LONGEST_FILE
    lines = file.read_text("utf-8").splitlines()
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"
            if "noqa: PLR0913" in lines[node.lineno - 1]:
                continue  # an exception that gives its reason there
            arguments = node.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            if names[:1] in (["self"], ["cls"]):
                del names[0]
            assert len(names) <= MOST_PARAMETERS, f"{node.name} takes {len(names)}"


def test_most_functions_fit_on_a_screen() -> None:
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for file in FILES
        for node in nodes(file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert lengths[len(lengths) * 95 // 100] <= 30


FIELDS_BY_HAND = {
    "sources/auto.py", "sources/by_name.py", "sources/coco_source.py", "sources/cvat.py", "sources/landmarks.py",
    "sources/list_columns.py", "sources/list_source.py", "sources/parquet_source.py", "sources/small_formats.py",
    "sources/voc.py", "sources/yolo_source.py",  # find them
    "loading/coco_labels.py", "loading/collate.py", "loading/dataset.py", "loading/detr_batches.py",
    "loading/loader.py", "loading/targets.py", "loading/yolo_data.py", "loading/yolo_labels.py",
    "libreyolo.py", "rfdetr.py", "ultralytics.py",  # make targets of them
    "repack/layouts/builtin.py", "repack/layouts/table.py", "view/export.py",  # write, draw
}  # fmt: skip
"""Files that may name three or more fields of an annotation; all others ask packer/model/fields.py."""


@in_every_file
def test_fields_are_named_in_one_table(file: Path) -> None:
    name = str(file.relative_to(ROOT / "packer"))
    fields = {"landmarks", "polygons", "keypoints", "tags", "box_labels", "box_fields"}
    named = fields & set(re.findall(r"[a-z_]+", file.read_text("utf-8")))
    assert len(named) < 3 or name.startswith("model/") or name in FIELDS_BY_HAND, sorted(named)


@in_every_file
def test_modules_say_what_they_are_for(file: Path) -> None:
    tree = parsed(file)
    assert not tree.body or ast.get_docstring(tree)


NAMES_OPTIONS = {"packer/errors.py"}
"""It has the function that makes the names."""


@in_every_file
def test_only_the_command_line_writes_options_as_they_are_typed(file: Path) -> None:
    """Elsewhere `packer.errors.option` and `words_of` make them: Python users read the names of parameters."""
    name = str(file.relative_to(ROOT))
    if name.startswith("packer/cli/") or name in NAMES_OPTIONS:
        return
    texts = {id(node.value) for node in nodes(file) if isinstance(node, ast.Expr)}  # of docstrings
    for node in nodes(file):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            assert not node.value.startswith("--"), f"line {node.lineno}: {node.value}"


WRITES = {"os.truncate", "shutil.rmtree", "shutil.copyfile", "shutil.copy", "shutil.copy2", "shutil.move"}
"""Calls that follow a link, or remove more than one; packer/system/atomic.py has what takes their place."""
WRITES_AS_THEY_ARE = {
    "packer/system/atomic.py",
    "packer/system/child.py",  # counters, in a temporary file that was made for them
    "packer/bench/demo.py",  # damages a copy in a folder of its own
    "packer/cli/group.py",  # the start file of a shell may be the user's link
}


@in_every_file
def test_what_writes_follows_no_link(file: Path) -> None:
    """A file is made by a mode with x, opened by `open_own`, or replaced by `replacing`."""
    if str(file.relative_to(ROOT)) in WRITES_AS_THEY_ARE:
        return
    for node, called in calls(file):
        assert called not in WRITES and not called.endswith((".write_text", ".write_bytes")), f"line {node.lineno}"
        if called != "open" or len(node.args) < 2 or not isinstance(node.args[1], ast.Constant):
            continue
        mode = str(node.args[1].value)
        is_ours = ast.unparse(node.args[0]).startswith("open_own(")
        assert "x" in mode or is_ours or set(mode).isdisjoint("wa+"), f"line {node.lineno}: {mode}"


HEAVY = ("torch", "cv2", "lmdb", "h5py", "numpy", "pyarrow", "simplejpeg", "jpeg4py", "google.protobuf", "defusedxml")


@in_every_file
def test_named_tuples_have_no_other_base(file: Path) -> None:
    """Python 3.10 refuses more, when the module is imported."""
    for node in nodes(file):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "NamedTuple" for base in node.bases):
            assert len(node.bases) == 1, node.name


@pytest.mark.parametrize(
    "statement",
    [
        "import packer",
        "import packer.cli.group",
        "from packer.__main__ import main; assert main(['--help']) == 0",
        "from packer.__main__ import main; assert main(['build', '--help']) == 0",
        "from packer.__main__ import main; assert main(['--version']) == 0",
        "from packer.__main__ import main; assert main(['build', 'absent', '--format', 'zip']) == 2",
    ],
)
def test_help_loads_no_heavy_library(statement: str) -> None:
    program = f"{statement}\nimport sys, json; print(); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & set(HEAVY)


def test_info_needs_neither_torch_nor_a_container_library(tmp_path: Path) -> None:
    program = (
        "from packer.__main__ import main; assert main(['info', sys.argv[1]]) == 2; "
        "assert not {'torch', 'cv2', 'lmdb', 'h5py'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", f"import sys; {program}", str(tmp_path / "absent")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
