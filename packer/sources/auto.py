"""``--labels auto``: asks every source whether the folder has its layout, and refuses to choose between two."""

from __future__ import annotations

from packer.errors import UsageError, printable
from packer.sources.base import Choice, SourceType, Tree
from packer.sources.paths import extension_of, folder_of
from packer.sources.unread import paired_folders, unread_labels


def choose(tree: Tree, types: dict[str, SourceType], only_lists: bool) -> Choice:
    """Return the only source that fits a tree.

    Args:
        tree: The tree.
        types: The sources to ask, by name.
        only_lists: Whether ``--columns`` is given, so that it must be a list.

    Raises:
        UsageError: No source fits, or several do; the error lists them.
    """
    asked = [types["list"]] if only_lists else types.values()
    fits = [choice for kind in asked for choice in kind.recognize(tree)]
    if only_lists and not fits:
        raise UsageError(tree.root, "--columns is given, but no list was found", "pass --labels list:FILE")
    if not only_lists and all(choice.spec == "folder" for choice in fits):
        _refuse_to_pass_over(tree, fits)
    if len(fits) > 1:
        what = "; ".join(f"--labels {printable(choice.spec)} ({choice.why})" for choice in fits)
        raise UsageError(tree.root, f"{len(fits)} kinds of labels fit", f"choose one, or pass several: {what}")
    if fits:
        return fits[0]
    others = sum(extension_of(path) == b".xml" for path in tree.files)
    hint = f"; {others} XML {'file fits' if others == 1 else 'files fit'} no image by name" if others else ""
    if any(folder_of(image) for image in tree.images):
        hint += " (--labels folder takes a folder as a class even if there is only one)"
    return Choice("none", f"there are no class folders, no label files that fit the images, and no list{hint}")


def _refuse_to_pass_over(tree: Tree, folders: list[Choice]) -> None:
    """Raise UsageError if there seem to be labels that no source reads, rather than silently ignore them."""
    problem, instead = paired_folders(tree), "the folder of the images alone as the source"
    if problem is None:
        problem, instead = unread_labels(tree), "--labels list:FILE (a list that you create from them)"
        problem = problem and f"there are labels that --labels auto cannot read: {problem}"
    if problem is not None:
        choices = ["--labels none (no labels)", instead]
        if any(map(folder_of, tree.images)):
            choices.insert(0, f"--labels folder ({folders[0].why if folders else 'the folders are classes'})")
        raise UsageError(tree.root, problem, f"choose one: {', '.join(choices[:-1])}, or {choices[-1]}")
