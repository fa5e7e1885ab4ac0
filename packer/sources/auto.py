"""``--labels auto``: asks every source whether the folder has its layout, and refuses to choose between two."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from packer.errors import BadLabel, UsageError, option, plural, printable
from packer.sources.ade20k import is_ade20k
from packer.sources.file_names import known_expression
from packer.sources.folder import masks
from packer.sources.labelstudio import UPLOAD
from packer.sources.list_header import has_header_of_labels
from packer.sources.list_source import lists_near
from packer.sources.paths import (
    LABEL_FOLDERS,
    LIST_EXTENSIONS,
    as_bytes,
    extension_of,
    file_splits,
    folder_of,
    image_stem,
    is_number,
    is_of_split,
    quoted_value,
    some_paths,
    splits_of,
    spread,
    stem_of,
)
from packer.sources.source import HAVE_COLUMNS, BaseSource, Choice, SourceOptions, SourceType, Tree
from packer.sources.tree import MIB, lines_of, read_head
from packer.sources.yolo_config import is_not_a_list

TREES = frozenset(b".json .jsonl .ndjson .manifest .odgt .xml .yaml .yml".split())
TOOLS = {
    "Labelbox": b'"data_row"',
    "V7": b'"schema_ref"', "SuperAnnotate": b'"lastAction"', "Encord": b'"label_hash"',
    "FiftyOne": b'"_cls"', "Kili": b'"jsonResponse"', "Label Studio": b'"completed_by"',
}  # fmt: skip
"""Tools and sets -> what is in the first bytes of their files."""
OTHERS = frozenset(b".pts .mat .npy .npz .pkl .asf .cat .ann .anno .bbox .gt .label .lms".split())
LABEL_EXTENSIONS = LIST_EXTENSIONS | TREES | OTHERS
SIDECARS = LABEL_EXTENSIONS | {b""}
"""Extensions of label files that have an image's name; Stanford Dogs' XML files have none."""
SHEETS = frozenset(b".xlsx .xls .ods .h5 .hdf5 .pickle".split())
MATLAB = b".mat"
"""Many sets have their labels in such files, whatever they are called: mpii_human_pose_v1_u12_1.mat."""
CALLED_LABELS = re.compile(rb"labels?\Z|\Alabels?|annotations?\Z|ground[-_]?truth")
AFFIX = re.compile(rb"(?<=[A-Za-z])[-_.]|[-_.](?=[A-Za-z])")
"""Where a name may be divided into that of an image and an affix: gt_img_1.txt, 1_boxes.json."""
LOOKED_AT_A_FOLDER, MOST_LOOKED_AT = 4, 64
"""Maximum number of files to open: of one extension in one folder, and in total."""
MOST_LINES, MOST_CELLS = 4096, 128
SEVERAL = 2
"""Number of images that must be named: one may be an example in a text."""
ID_CHARACTERS = 6
"""A shorter stem may occur in any file: 1, 2007, cat."""
STRINGS = re.compile(rb"[^\"'<>\r\n\t]+")
CELL_ENDS = (re.compile(rb"[,;\t|]"), re.compile(rb"[,;\s|]+"))

NOT_LABELS = frozenset(b"readme license licence copying changelog requirements".split())
"""Stems of files that say nothing about images (compared in lower case)."""
ANNOTATION_FOLDERS = LABEL_FOLDERS | frozenset(
    b"anno annos ann anns annot annots gt groundtruth ground_truth ground-truth landmarks keypoints points bbox bboxes"
    b" boxes bounding_boxes labeltxt label_2 labels_2".split()
)
"""Folders whose files are labels, whatever is in them (compared in lower case)."""


def unread_labels(tree: Tree) -> str | None:
    """Describe the files that seem to be labels of several images, in a tree that no source fits; None without any.

    Look at names, and at the first MiB of a few files.
    """
    if not tree.files:
        return None
    stems = {stem_of(image) for image in tree.images}
    beside: dict[bytes, list[bytes]] = defaultdict(list)
    """Extension -> the files that have an image's name, such as 1.pts and 1.jpg.json."""
    for path in tree.files:
        # the inner stem is that of an image whose own extension was kept
        if (ending := extension_of(path)) in SIDECARS and {stem_of(path), image_stem(stem_of(path))} & stems:
            beside[ending].append(path)
    found = _with_an_affix(tree, stems)
    for ending, paths in sorted(beside.items()):
        if len(paths) >= SEVERAL:
            kind = f"{printable(ending)} files" if ending else "files without an extension"
            found.append(f"{len(paths)} {kind} have names of images ({some_paths(paths)}){_tool_of(tree, paths)}")
        else:
            del beside[ending]
    kept = [path for path in tree.files if _is_kept_as_label(path) and extension_of(path) not in beside]
    files = [path for path in _looked_at(tree) if extension_of(path) not in beside]
    naming = [path for path in files if extension_of(path) in LIST_EXTENSIONS and _is_table_of(tree, path, stems)]
    says = {path: _strings(tree, path, stems) for path in files if extension_of(path) in TREES}
    if _tell(set().union(*says.values()), stems):
        naming += [path for path, strings in says.items() if strings]
    if naming:
        found.append(f"{some_paths(naming)} {'names' if len(naming) == 1 else 'name'} images{_tool_of(tree, naming)}")
    elif kept and not beside:
        found.append(f"{some_paths(kept)} {'lies' if len(kept) == 1 else 'lie'} in a folder of annotations")
    return "; ".join(found) or None


def _tool_of(tree: Tree, paths: Sequence[bytes]) -> str:
    """Return the name of the tool that has written some files, to complete a message; "" if it is not known."""
    head = _read_whole(tree, paths[0])
    return next(
        (f", as {tool} writes {'it' if len(paths) == 1 else 'them'}" for tool, word in TOOLS.items() if word in head),
        "",
    )


def _with_an_affix(tree: Tree, stems: set[bytes]) -> list[str]:
    """Describe the files that are called as half of the images or more, but for one affix, as gt_img_1.txt."""
    groups: dict[tuple[bytes, bytes, bytes], list[bytes]] = defaultdict(list)
    for path in tree.files:
        stem, ending = stem_of(path), extension_of(path)
        if ending in LABEL_EXTENSIONS and stem not in stems:
            for match in AFFIX.finditer(stem):
                if stem[match.end() :] in stems:
                    groups[ending, stem[: match.end()], b""].append(path)
                if stem[: match.start()] in stems:
                    groups[ending, b"", stem[match.start() :]].append(path)
    return [
        f"{len(paths)} {printable(ending)} files have names of images ({some_paths(paths)})"
        for (ending, _, _), paths in sorted(groups.items())
        if len(paths) >= max(SEVERAL, len(stems) / 2)
    ]


def _is_kept_as_label(path: bytes) -> bool:
    """Return whether a file is in a folder called annotations or the like, and is neither a text nor class names."""
    folders = {part.lower() for part in folder_of(path).split(b"/")}
    is_label = extension_of(path) in LABEL_EXTENSIONS and not is_not_a_list(path)
    return is_label and bool(folders & ANNOTATION_FOLDERS) and stem_of(path).lower() not in NOT_LABELS


def called_labels(tree: Tree) -> list[bytes]:
    """Return the files that have a name of labels, labels.npy, ILSVRC2012_ground_truth.txt, or are MATLAB's."""
    endings = LABEL_EXTENSIONS | SHEETS
    return [
        path for path in tree.files
        if extension_of(path) == MATLAB
        or (extension_of(path) in endings and CALLED_LABELS.search(stem_of(path).lower()))
    ]  # fmt: skip


def strange_tables(tree: Tree) -> list[bytes]:
    """Return the tables near the root with a header of paths and labels: if no source reads them, they name no image.

    Those of pandas may have lost the zeros at the beginning of names.
    """
    return [path for path in lists_near(tree) if has_header_of_labels(_read_whole(tree, path))]


def _looked_at(tree: Tree) -> list[bytes]:
    """Return a few files of each folder and extension, those near the root first."""
    groups: dict[tuple[bytes, bytes], list[bytes]] = defaultdict(list)
    for path in tree.files:
        if extension_of(path) in LIST_EXTENSIONS | TREES and not is_not_a_list(path):
            groups[folder_of(path), extension_of(path)].append(path)
    few = [path for paths in groups.values() for path in spread(paths, LOOKED_AT_A_FOLDER)]
    return sorted(few, key=lambda path: path.count(b"/"))[:MOST_LOOKED_AT]


def _read_whole(tree: Tree, path: bytes, ends: bool = False) -> bytes:
    try:
        data = read_head(tree, path, MIB // 2, MIB // 2) if ends else read_head(tree, path, MIB)
    except BadLabel:
        return b""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").encode()
    return data


def _base(text: bytes) -> bytes:
    """Return the last part of a path with slashes or backslashes, without surrounding blanks."""
    return text.strip(b" \t\"'").replace(b"\\", b"/").rpartition(b"/")[2]


def _strings(tree: Tree, path: bytes, stems: set[bytes]) -> set[bytes]:
    """Return the names and stems of images in quotes or tags, or after a YAML key."""
    found = STRINGS.findall(_read_whole(tree, path, ends=True))  # COCO may put the names of its images last
    bases = {_base(text.rpartition(b": ")[2].removeprefix(b"- ")) for text in found}
    bases |= {UPLOAD.sub(b"", base) for base in bases}
    return {base for base in bases if image_stem(base) in stems}


def _images_of(words: Iterable[bytes], stems: set[bytes]) -> set[bytes]:
    """Return the stems of the images whose file names are among the words, whatever their extension."""
    return {stem for word in words if (stem := image_stem(word)) != word and stem in stems}


def _ids(words: set[bytes]) -> set[bytes]:
    """Return the words that can only be the name of one image."""
    return {word for word in words if len(word) >= ID_CHARACTERS and re.search(rb"\d", word)}


def _tell(strings: set[bytes], stems: set[bytes]) -> bool:
    """Return whether strings refer to images: several file names, several ids, or most stems that are words."""
    words = {word for word in strings & stems if not word.isdigit()}
    return (
        len(_images_of(strings, stems)) >= min(SEVERAL, len(stems))
        or len(_ids(strings & stems)) >= SEVERAL
        or len(words) >= max(SEVERAL, len(stems) / 2)
    )


def _is_table_of(tree: Tree, path: bytes, stems: set[bytes]) -> bool:
    """Return whether most lines are image labels: a file name in any column, or a stem in the first.

    A list of images without other columns is a split. A line of numbers belongs to the image in a line above it, as in
    the lists of WIDER FACE.
    """
    lines = [line for line in lines_of(_read_whole(tree, path))[:MOST_LINES] if line.strip()]
    by_name: set[bytes] = set()
    by_stem: set[bytes] = set()
    data = columns = 0
    for line in lines:
        splits = [[_base(cell) for cell in pattern.split(line.strip())[:MOST_CELLS]] for pattern in CELL_ENDS]
        whole = _base(line)
        files, firsts = _images_of([whole, *splits[0], *splits[1]], stems), {whole, splits[0][0], splits[1][0]} & stems
        by_name |= files
        by_stem |= firsts
        data += bool(files or firsts) or all(map(is_number, splits[1]))
        columns += len(splits[1]) > 1 and image_stem(whole) not in stems
    if 2 * data < len(lines) or 4 * columns < len(lines):
        return False
    return (
        len(by_name) >= min(SEVERAL, len(stems))
        or len(_ids(by_stem)) >= SEVERAL
        or len(by_stem) >= max(SEVERAL + 1, len(stems) / 2)  # 1, 2, 3 may be classes as well
    )


MOST_PARTS = 16
"""Number of folders at the top of a source that are searched for class folders."""
NOUNS = ("image", "class", "box", "landmark", "value")


def choose(tree: Tree, types: dict[str, SourceType], options: SourceOptions) -> Choice:
    """Return the only source that fits a tree.

    Args:
        tree: The tree.
        types: The sources to ask, by name.
        options: ``--columns`` means that it must be a list; without ``--split`` the reason names the splits.

    Raises:
        UsageError: No source fits, or several do; the error lists them.
    """
    only_lists = options.columns is not None
    fits = _fitting(tree, types, options)
    if only_lists and not fits:
        raise UsageError(tree.root, f"{option('columns')} is given, but no list was found", "pass --labels=list:FILE")
    if not only_lists and all(choice.spec == "folder" for choice in fits):
        _refuse_to_pass_over(tree, fits)
        if not fits:
            _refuse_a_wrapper(tree, types["folder"])
    if options.split and all(choice.spec.startswith(("list:", "coco:")) for choice in fits):
        wanted = as_bytes(options.split)  # train/metadata.csv, not test/metadata.csv
        chosen = [c for c in fits if is_of_split(tree.below(as_bytes(c.spec[5:])), wanted)]
        if len(chosen) == 1 and _splits_of_files(tree, fits):
            chosen = [chosen[0]._replace(others=tuple(c.spec for c in fits if c not in chosen))]
        fits = chosen or fits
    if any(
        choice.spec in ("widerface", "pts", "supervisely") for choice in fits
    ):  # their folders are events, parts, sets
        fits = [choice for choice in fits if choice.spec != "folder"]
    if any(choice.spec == "openimages" for choice in fits):  # it reads the lists of boxes, too
        from packer.sources.open_images import files_in

        read = files_in(tree)
        fits = [c for c in fits if c.spec != "folder" and tree.below(as_bytes(c.spec.partition(":")[2])) not in read]
    if len(fits) > 1:
        what = "; ".join(f"{option('labels', printable(choice.spec))} ({choice.why})" for choice in fits)
        step = f"choose one, or pass several that label the same images: {what}"
        raise UsageError(tree.root, f"{len(fits)} kinds of labels fit", step)
    choice = fits[0] if fits else _none(tree)
    splits = [] if options.split or choice.spec == "folder" else splits_of(tree)
    if splits:
        together = f"{some_paths([split + b'/' for split in splits], 10)} are packed together"
        choice = choice._replace(why=f"{choice.why}; {together} (--split {printable(splits[0])} packs one)")
    return choice


def splits_by_file(tree: Tree, types: dict[str, SourceType], options: SourceOptions) -> tuple[str, ...]:
    """Return the splits after which the lists are named that `choose` would ask to choose from; () for another tree."""
    fits = _fitting(tree, types, options)
    return _splits_of_files(tree, fits) if len(fits) > 1 else ()


def _splits_of_files(tree: Tree, fits: Sequence[Choice]) -> tuple[str, ...]:
    if not all(choice.spec.startswith("list:") for choice in fits):
        return ()
    found = file_splits([tree.below(as_bytes(choice.spec[5:])) for choice in fits])
    return found if len(found) == len(fits) else ()


def _fitting(tree: Tree, types: dict[str, SourceType], options: SourceOptions) -> list[Choice]:
    """Return the choices of all sources; with ``--columns``, of lists only."""
    only_lists = options.columns is not None
    asked = [types[name] for name in HAVE_COLUMNS if name in types] if only_lists else types.values()
    return [choice for kind in asked for choice in kind.recognize(tree)]


def what_was_read(counts: Sequence[int], unread: str | None) -> str:
    """Return what was read and what was not, to complete the note that says what was chosen.

    Args:
        counts: The numbers of images, classes, boxes and landmarks, and of values, which are named if there are any.
        unread: What `left_unread` says.
    """
    text = ", ".join(plural(count, noun) for count, noun in zip(counts, NOUNS, strict=True) if count or noun != "value")
    return f"; {text}" if unread is None else f"; {text}; {unread}"


def left_unread(tree: Tree, sources: Sequence[BaseSource]) -> str | None:
    """Return how many files besides the images were not read, and the first of them; None if a source does not tell."""
    if any(source.label_files is None for source in sources):
        return None
    read = {file for source in sources for file in source.label_files or ()}
    unread = [file for file in tree.files if file not in read]
    return f"{plural(len(unread), 'file')} left unread{f' ({some_paths(unread)})' if unread else ''}"


def _none(tree: Tree) -> Choice:
    others = sum(extension_of(path) == b".xml" for path in tree.files)
    hint = f"; {plural(others, 'XML file fits', 'XML files fit')} no image by name" if others else ""
    if any(folder_of(image) for image in tree.images):
        hint += " (--labels folder takes a folder as a class even if there is only one)"
    return Choice("none", f"there are no class folders, no label files that fit the images, and no list{hint}")


def _refuse_to_pass_over(tree: Tree, folders: list[Choice]) -> None:
    """Raise UsageError if there seem to be labels that no source reads, rather than silently ignore them."""
    problem, instead = masks(tree), "the folder of the images alone as the source"
    if problem is None:
        problem, instead = unread_labels(tree), f"{option('labels', 'list:FILE')} (a list that you create from them)"
        if problem is None and not folders and (tables := strange_tables(tree)):
            problem = f"{some_paths(tables)} {'has a header' if len(tables) == 1 else 'have headers'} of labels, but"
            problem += f" {'its' if len(tables) == 1 else 'their'} lines name none of the images, such as"
            problem += f" {quoted_value(tree.images[0])}"
        elif problem is None and not folders and (called := called_labels(tree)):
            problem = f"{some_paths(called)} {'seems' if len(called) == 1 else 'seem'} to be labels"
        problem = problem and f"there are labels that --labels=auto cannot read: {problem}"
    if problem is None and is_ade20k(tree, tree.images):
        problem = "it is ADE20K, whose masks say the class and the object by one color"
    if problem is not None:
        from packer.sources.instances import suggested  # which needs numpy

        choices = [f"{option('labels', 'none')} (no labels)", instead]
        if any(map(folder_of, tree.images)):
            why = folders[0].why if folders else "the folders are classes"
            choices.insert(0, f"{option('labels', 'folder')} ({why})")
        if (pictures := suggested(tree)) is not None:
            what = f"a mask of each object: {quoted_value(pictures.where)}"
            choices.insert(0, f"{option('labels', 'instances')} ({what})")
        raise UsageError(tree.root, problem, f"choose one: {', '.join(choices[:-1])}, or {choices[-1]}")


def _refuse_a_wrapper(tree: Tree, folder: SourceType) -> None:
    """Raise UsageError if class folders are below the only folder, as in many archives, or below one of a few parts."""
    parts = {folder_of(image).split(b"/")[0] for image in tree.images}
    if b"" in parts or len(parts) > MOST_PARTS:
        return
    for part in sorted(parts, key=lambda part: (b"train" not in part.lower(), part)):
        inside = _below(tree, part)
        if inside is not None and (found := folder.recognize(inside)):
            source, top = printable(inside.root), quoted_value(tree.below(inside.root) + b"/")
            others = ", ".join(quoted_value(other + b"/") for other in sorted(parts - {part}))
            problem = f"its images are all below {top}" if len(parts) == 1 else f"{top} and {others} are not classes"
            spec = known_expression(tree)
            named = "" if spec is None else f'{option("labels")}="{spec}", '
            choices = f"{named}{source} as the source ({found[0].why}), --labels=folder, or --labels=none (no labels)"
            raise UsageError(tree.root, problem, f"choose one: {choices}")


def _below(tree: Tree, part: bytes) -> Tree | None:
    """Return the deepest folder that has all images of a part of the tree."""
    images = [image for image in tree.images if image.startswith(part + b"/")]
    top = os.path.commonpath([b"/" + folder_of(image) for image in images])[1:]

    def below(paths: Sequence[bytes]) -> list[bytes]:
        return [path[len(top) + 1 :] for path in paths if path.startswith(top + b"/")]

    return Tree(os.path.join(tree.root, top), below(images), below(tree.files), below(tree.folders))
