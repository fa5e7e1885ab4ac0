"""The rooms of the house: which may import which, what nobody may call, and how large things grow."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "packer").rglob("*.py"))
NAMES = [str(file.relative_to(ROOT)) for file in FILES]

MAY_IMPORT: dict[str, set[str]] = {
    "processes": set(),
    "sources": set(),
    "ops": set(),
    "containers": set(),
    "samplers": set(),
    "drawing": set(),
    "stats": {"ops"},
    "build": {"sources", "ops", "containers", "processes"},
    "loading": {"ops", "samplers"},
    "checking": {"ops", "containers", "processes"},
    "repair": {"containers", "build", "checking", "processes"},
    "view": {"ops", "loading"},
    "bench": {"sources", "ops", "containers", "build", "samplers", "loading", "drawing", "processes"},
    "commands": {"sources", "ops", "containers", "build", "checking", "repair", "drawing", "stats", "view", "bench"},
}
"""Room -> the other rooms that it may import."""
ROOMS = tuple(MAY_IMPORT)
ONLY_IN = {
    "pickle": ("packer/processes/",),  # between its own processes, in pipes that only they hold
    "subprocess": ("packer/processes/",),
    "torch": ("packer/loading/", "packer/bench/"),
    "lmdb": ("packer/containers/",),
    "h5py": ("packer/containers/",),
    "tarfile": ("packer/containers/",),
    "google": ("packer/containers/",),
    "tfrecord": (),
    "webdataset": (),
    "tensorflow": (),
    "PIL": ("packer/bench/",),
    "cv2": ("packer/ops/", "packer/loading/", "packer/drawing/", "packer/stats/", "packer/bench/"),
    "simplejpeg": ("packer/ops/", "packer/loading/", "packer/bench/"),
    "jpeg4py": ("packer/ops/",),
    "defusedxml": ("packer/sources/",),
    "yaml": ("packer/sources/",),
    "click": ("packer/cli.py", "packer/command_line.py", "packer/commands/"),
    "tqdm": ("packer/commands/",),
    "werkzeug": ("packer/view/",),
}
"""Library -> where it may be imported."""
NOWHERE = {"cPickle", "marshal", "shelve", "dill", "cloudpickle", "socket", "urllib", "http", "requests"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "cv2.imread", "torch.load", "os.system", "os.popen",
    "subprocess.run", "subprocess.Popen", "multiprocessing.Pool", "tempfile.mktemp",
}  # fmt: skip
LONGEST_FILE = 300
MOST_PARAMETERS = 6


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported, at the top or inside a function; `from packer import x` as packer.x."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes(), str(file))


def room_of(name: str) -> str | None:
    parts = name.replace("/", ".").split(".")
    return parts[1] if parts[0] == "packer" and len(parts) > 1 and parts[1] in ROOMS else None


def test_every_folder_is_a_room() -> None:
    folders = {name.split("/")[1] for name in NAMES if name.count("/") > 1}
    assert len(FILES) > 100 and folders == set(ROOMS)


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_rooms_import_along_the_arrows(file: Path) -> None:
    room = room_of(str(file.relative_to(ROOT)))
    if room is None:
        return
    others = {other for name in imported(parsed(file)) if (other := room_of(name)) not in (None, room)}
    assert others <= MAY_IMPORT[room]


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_libraries_stay_in_their_rooms(file: Path) -> None:
    name = str(file.relative_to(ROOT))
    used = {module.partition(".")[0] for module in imported(parsed(file))}
    assert not used & NOWHERE
    wrong = {lib for lib in used if lib in ONLY_IN and not name.startswith(ONLY_IN[lib])}
    assert not wrong


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_nothing_runs_what_it_reads(file: Path) -> None:
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called == "yaml.load" and "Loader=yaml.BaseLoader" in ast.unparse(node):
            continue  # makes nothing but text
        if called == "subprocess.Popen" and room_of(str(file.relative_to(ROOT))) == "processes":
            continue  # workers
        assert called not in FORBIDDEN_CALLS, f"line {node.lineno}: {called}"
        options = {k.arg: ast.unparse(k.value) for k in node.keywords}
        assert options.get("allow_pickle") in (None, "False"), f"line {node.lineno}"
        assert options.get("shell") in (None, "False"), f"line {node.lineno}"
        if called.endswith("np.load"):
            assert options.get("allow_pickle") == "False", f"line {node.lineno}"


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_files_and_signatures_stay_small(file: Path) -> None:
    assert len(file.read_text("utf-8").splitlines()) <= LONGEST_FILE
    lines = file.read_text("utf-8").splitlines()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if "noqa: PLR0913" in lines[node.lineno - 1]:
                continue  # an exception that gives its reason there
            arguments = node.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            if names[:1] in (["self"], ["cls"]):
                del names[0]
            assert len(names) <= MOST_PARAMETERS, f"{node.name} takes {len(names)}"


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_modules_say_what_they_are_for(file: Path) -> None:
    tree = parsed(file)
    assert not tree.body or ast.get_docstring(tree)


HEAVY = ("torch", "cv2", "lmdb", "h5py", "numpy", "pyarrow", "simplejpeg", "jpeg4py", "google.protobuf", "defusedxml")


@pytest.mark.parametrize(
    "statement",
    [
        "import packer",
        "import packer.cli",
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
