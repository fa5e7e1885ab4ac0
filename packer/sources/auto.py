"""``--labels auto``: asks every source whether the folder has its layout, and refuses to choose between two."""

from __future__ import annotations

import os
from collections.abc import Sequence

from packer.errors import UsageError, option, plural, printable
from packer.sources.base import BaseSource, Choice, SourceOptions, SourceType, Tree
from packer.sources.masks import masks
from packer.sources.paths import as_bytes, extension_of, folder_of, named, quoted, splits_of
from packer.sources.splits import file_splits, is_of_split
from packer.sources.unread import called_labels, unread_labels

MOST_PARTS = 16
"""Number of folders at the top of a source that are searched for class folders."""
NOUNS = ("image", "class", "box", "landmark")


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
    if any(choice.spec in ("widerface", "pts") for choice in fits):  # their folders are events and parts
        fits = [choice for choice in fits if choice.spec != "folder"]
    if len(fits) > 1:
        what = "; ".join(f"{option('labels', printable(choice.spec))} ({choice.why})" for choice in fits)
        step = f"choose one, or pass several that label the same images: {what}"
        raise UsageError(tree.root, f"{len(fits)} kinds of labels fit", step)
    choice = fits[0] if fits else _none(tree)
    splits = [] if options.split or choice.spec == "folder" else splits_of(tree)
    if splits:
        together = f"{named([split + b'/' for split in splits], 10)} are packed together"
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
    asked = [types[name] for name in ("list", "parquet") if name in types] if only_lists else types.values()
    return [choice for kind in asked for choice in kind.recognize(tree)]


def what_was_read(counts: Sequence[int], unread: str | None) -> str:
    """Return what was read and what was not, to complete the note that says what was chosen.

    Args:
        counts: The numbers of images, classes, boxes and landmarks.
        unread: What `left_unread` says.
    """
    text = ", ".join(plural(count, noun) for count, noun in zip(counts, NOUNS, strict=True))
    return f"; {text}" if unread is None else f"; {text}; {unread}"


def left_unread(tree: Tree, sources: Sequence[BaseSource]) -> str | None:
    """Return how many files besides the images were not read, and the first of them; None if a source does not tell."""
    if any(source.label_files is None for source in sources):
        return None
    read = {file for source in sources for file in source.label_files or ()}
    unread = [file for file in tree.files if file not in read]
    return f"{plural(len(unread), 'file')} left unread{f' ({named(unread)})' if unread else ''}"


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
        if problem is None and not folders and (called := called_labels(tree)):
            problem = f"{named(called)} {'has' if len(called) == 1 else 'have'} a name of labels"
        problem = problem and f"there are labels that --labels=auto cannot read: {problem}"
    if problem is not None:
        choices = [f"{option('labels', 'none')} (no labels)", instead]
        if any(map(folder_of, tree.images)):
            why = folders[0].why if folders else "the folders are classes"
            choices.insert(0, f"{option('labels', 'folder')} ({why})")
        raise UsageError(tree.root, problem, f"choose one: {', '.join(choices[:-1])}, or {choices[-1]}")


def _refuse_a_wrapper(tree: Tree, folder: SourceType) -> None:
    """Raise UsageError if class folders are below the only folder, as in many archives, or below one of a few parts."""
    parts = {folder_of(image).split(b"/")[0] for image in tree.images}
    if b"" in parts or len(parts) > MOST_PARTS:
        return
    for part in sorted(parts, key=lambda part: (b"train" not in part.lower(), part)):
        inside = _below(tree, part)
        if inside is not None and (found := folder.recognize(inside)):
            source, top = printable(inside.root), quoted(tree.below(inside.root) + b"/")
            others = ", ".join(quoted(other + b"/") for other in sorted(parts - {part}))
            problem = f"its images are all below {top}" if len(parts) == 1 else f"{top} and {others} are no classes"
            choices = f"{source} as the source ({found[0].why}), --labels=folder, or --labels=none (no labels)"
            raise UsageError(tree.root, problem, f"choose one: {choices}")


def _below(tree: Tree, part: bytes) -> Tree | None:
    """Return the deepest folder that has all images of a part of the tree."""
    images = [image for image in tree.images if image.startswith(part + b"/")]
    top = os.path.commonpath([b"/" + folder_of(image) for image in images])[1:]

    def below(paths: Sequence[bytes]) -> list[bytes]:
        return [path[len(top) + 1 :] for path in paths if path.startswith(top + b"/")]

    return Tree(os.path.join(tree.root, top), below(images), below(tree.files), below(tree.folders))
