"""Sources of samples: folders of images with annotations. `open_source` opens one by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from packer.errors import UsageError, as_options, option, plural, printable
from packer.model.annotation import PartSpec
from packer.sources.paths import as_text, folder_splits, some_paths
from packer.sources.source import HAVE_COLUMNS, BaseSource, Choice, SourceOptions, SourceType, Tree, with_defaults
from packer.system.registry import Registry, resolve_alias, suggestion

if TYPE_CHECKING:
    from packer.sources.instances import InstanceSource
    from packer.sources.mask_files import MaskSource

SOURCES = {
    "none": "packer.sources.folder:NoneSource",
    "voc": "packer.sources.voc:VocSource",
    "yolo": "packer.sources.yolo_source:YoloSource",
    "yolo-obb": "packer.sources.yolo_source:YoloObbSource",
    "dota": "packer.sources.dota:DotaSource",
    "folder": "packer.sources.folder:FolderSource",
    "coco": "packer.sources.coco_source:CocoSource",
    "pts": "packer.sources.landmarks:PtsSource",
    "dlib": "packer.sources.landmarks:DlibSource",
    "parquet": "packer.sources.parquet_source:ParquetSource",
    "list": "packer.sources.list_source:ListSource",
    "name": "packer.sources.file_names:NameSource",
    "cvat": "packer.sources.cvat:CvatSource",
    "labelme": "packer.sources.labelme:LabelMeSource",
    "via": "packer.sources.via:ViaSource",
    "labelstudio": "packer.sources.labelstudio:LabelStudioSource",
    "supervisely": "packer.sources.supervisely:SuperviselySource",
    "createml": "packer.sources.small_formats:CreateMlSource",
    "vott": "packer.sources.small_formats:VottSource",
    "widerface": "packer.sources.small_formats:WiderFaceSource",
    "kitti": "packer.sources.text_rows:KittiSource",
    "visdrone": "packer.sources.text_rows:VisDroneSource",
    "icdar": "packer.sources.text_rows:IcdarSource",
    "bdd100k": "packer.sources.json_sets:BddSource",
    "crowdhuman": "packer.sources.json_sets:CrowdHumanSource",
    "openimages": "packer.sources.open_images:OpenImagesSource",
    "sa1b": "packer.sources.sa1b:Sa1bSource",
    "jsonl": "packer.sources.json_lines:JsonLinesSource",
    "datumaro": "packer.sources.small_formats:DatumaroSource",
}
"""Name on the command line -> ``module:object`` of its `SourceType`, in the order of `recognize`."""
_REGISTRY = Registry(SOURCES, "packer.sources")
"""Entry points of this group add sources: a name, and the `SourceType`."""

CHOICES = (
    "auto", "none", "folder", "voc", "yolo", "yolo-obb", "dota", "coco[:FILE]", "parquet[:COLUMN]", "list:FILE",
    "name:REGEX", "pts", "dlib[:FILE]", "masks[:WHERE]", "instances[:WHERE]", "cvat[:FILE]", "labelme", "via[:FILE]",
    "labelstudio[:FILE]", "supervisely", "createml[:FILE]", "vott[:FILE]", "widerface[:FILE]", "kitti", "visdrone",
    "icdar", "bdd100k[:FILE]", "crowdhuman[:FILE]", "openimages", "sa1b", "jsonl[:FILE]", "datumaro[:FORMAT]",
)  # fmt: skip
"""The built-in values of ``--labels``."""
NO_FILES = frozenset(("datumaro", "parquet", "name"))
"""Sources for which a format, a column or an expression follows the colon."""

LISTING = frozenset(("coco", "folder", "instances", "masks", "none", "parquet", "yolo", "yolo-obb"))
"""Sources that list their classes in an order of their own (`BaseSource.classes`), which ids follow."""


def label_kinds() -> tuple[str, ...]:
    """Return all values of ``--labels``, with those of other packages last."""
    return (*CHOICES, *_REGISTRY.added)


def known_kind(spec: str) -> str:
    """Return a value of ``--labels`` by its own name: ``yolo`` for ``yolov8``, ``folder`` for ``ImageFolder``."""
    name, colon, file = spec.partition(":")
    return resolve_alias(name, ("auto", *_REGISTRY.names)) + colon + file


def recognize(tree: Tree, options: SourceOptions) -> Choice:
    """Return the source that fits a tree, including sources of other packages.

    Raises:
        UsageError: Several sources fit, or none can read the labels.
    """
    from packer.sources.auto import choose

    return choose(tree, {name: _type_of(name) for name in _REGISTRY.names}, options)


def open_source(spec: str, tree: Tree, options: SourceOptions) -> BaseSource:
    """Open the source ``--labels SPEC`` for a tree.

    For ``auto`` the first of its `notes` tells what was recognized and why.

    Raises:
        UsageError: The source does not exist, or the tree does not have its layout.
    """
    if spec == "auto":
        choice = recognize(tree, options)
        source = open_source(choice.spec, tree, replace(options, by_auto=True))
        source.notes.insert(0, f"{as_options(option('labels', choice.spec))}: {choice.why}")
        return source
    names = _REGISTRY.names  # also for a built-in name: another package may claim it too
    name, colon, file = spec.partition(":")
    opener = _type_of(name) if name in names else None
    takes_file = getattr(opener, "takes_file", False)
    if opener is None or (takes_file != "optional" and bool(colon) != takes_file) or (colon and not file):
        problem = f"must be one of {', '.join(label_kinds())}; got {printable(spec)}"
        if name in names:
            wanted = next((choice for choice in CHOICES if choice.startswith(f"{name}:")), f"{name}:FILE")
            step = f"write --labels={wanted if takes_file else name}"
        else:
            step = suggestion(option("labels"), name, ("auto", *names))
        raise UsageError(option("labels"), problem, step)
    return with_defaults(opener(tree, replace(options, file=file) if colon else options))


class BesideMasks(NamedTuple):
    """A source divided into its masks and the rest."""

    specs: list[str]
    """The values of ``--labels`` for the rest; none if it has no other labels."""
    tree: Tree
    """The source, in which masks are no images."""
    masks: MaskSource | None = None
    note: str = ""
    """On masks that are not packed."""
    instances: InstanceSource | None = None
    """Pictures with the numbers of objects."""


def with_masks(specs: Sequence[str], tree: Tree, options: SourceOptions, where: str | None = None) -> BesideMasks:
    """Return a source divided into its masks, the pictures of its objects, and the rest; as `_with_masks` does.

    Raises:
        UsageError: What is asked for is not there.
    """
    of_objects = [spec for spec in specs if spec.partition(":")[0] == "instances"]
    found = _with_masks([spec for spec in specs if spec not in of_objects], tree, options, where)
    if not of_objects:
        return found
    from packer.sources.instances import InstanceSource, find_instances
    from packer.sources.mask_files import without_masks

    if len(of_objects) > 1:
        raise UsageError(option("labels"), f"names several: {', '.join(of_objects)}", "name one folder of pictures")
    pictures = find_instances(tree, of_objects[0].partition(":")[2])
    source = InstanceSource(tree, options, pictures, alone=not found.specs)
    return found._replace(tree=without_masks(found.tree, pictures), instances=source)


def _with_masks(specs: Sequence[str], tree: Tree, options: SourceOptions, where: str | None = None) -> BesideMasks:
    """Return a source divided into its masks and the rest.

    For ``auto``, masks are looked for; where they fit fewer than half of the images, which have other labels, they are
    left out.

    Args:
        specs: The values of ``--labels``.
        tree: The source.
        options: How masks are read.
        where: The value of ``--mask``.

    Raises:
        UsageError: Masks that are asked for are not there, or it is not clear what their values mean.
    """
    others = [spec for spec in specs if spec.partition(":")[0] != "masks"]
    is_auto, is_asked = others == ["auto"], where is not None or len(others) < len(specs)
    if not (is_auto or is_asked or tree.members or any(spec.startswith("list:") for spec in others)):
        return BesideMasks(others, tree)
    from packer.sources.mask_columns import masks_in_lists, masks_in_parquet
    from packer.sources.mask_files import MaskSource, are_masks, find_masks, masks_at, without_masks

    places = (where, *(spec.partition(":")[2] for spec in specs if spec not in others))
    named = list(dict.fromkeys(filter(None, places)))
    if len(named) > 1:
        problem = f"masks are to be at {' and at '.join(map(printable, named))}"
        raise UsageError(option("mask"), problem, "name one place: an image has one mask")
    where = named[0] if named else None
    if in_columns := masks_in_parquet(tree, others, where):
        listed, tree, note = in_columns[0], without_masks(tree, in_columns[0]), ""
        column = as_text(listed.where)
        if where in (None, column) and (is_asked or others != ["none"]):
            if is_asked or are_masks(tree, listed):
                specs = [spec for spec in others if spec != "none"]
                return BesideMasks(specs, tree, MaskSource(tree, options, listed, not (specs and listed.has_labels)))
            note = (
                f"pictures in {printable(column)} not packed: {as_options(option('mask', column))} packs them as masks"
            )
        if where is None:
            return BesideMasks(others, tree, None, note)
    if where is None and (in_lists := masks_in_lists(tree, others, options)) is not None:
        alone = not in_lists.has_labels and (is_auto or len(others) == len(in_lists.lists))
        return BesideMasks(others, without_masks(tree, in_lists), MaskSource(tree, options, in_lists, alone))
    if not is_auto and not is_asked:
        return BesideMasks(others, tree)
    found = masks_at(tree, where) if where else find_masks(tree)
    if found is None:
        if is_asked:
            step = f"name their folder: {option('mask', 'FOLDER')}"
            raise UsageError(tree.root, "no masks were found that fit the images by their names", step)
        return BesideMasks(others, tree)
    rest, count = without_masks(tree, found), len(found.matches.label_of)
    kinds = [recognize(rest, options).spec] if is_auto else others
    alone = kinds in (["none"], [])
    if not is_asked and not alone and 2 * count < len(rest.images):
        name = printable(found.where)
        # names with a * are of several folders, or endings of files
        asked = [option("labels", kind) for kind in (*kinds, "masks")] if "*" in name else [option("mask", name)]
        packs = as_options(" ".join([*asked, option("missing-labels", "empty")]))
        note = f"{plural(count, 'mask', 'masks')} in {name} not packed: {packs} packs them"
        return BesideMasks(others, rest, None, note)
    return BesideMasks([] if alone else others, rest, MaskSource(tree, options, found, alone))


def open_parts(
    texts: Sequence[str], tree: Tree, options: SourceOptions, mask: str | None = None
) -> tuple[Tree, list[BaseSource]]:
    """Return a tree without the files of the parts that are asked for, and the sources of these.

    Args:
        texts: The values of ``--part``.
        tree: The source.
        options: How they are read.
        mask: The value of ``--mask``: the pictures there are no images, either.

    Raises:
        UsageError: One has no files.
    """
    from packer.images.parts import BY_KIND
    from packer.sources.mask_files import MaskSource, masks_among
    from packer.sources.part_files import MASK_PART, AskedPart, PartSource, facts_of_few, files_at, without

    if not (asked := [one for one in map(AskedPart.of, texts) if (one.name, one.kind) != MASK_PART]):
        return tree, []
    if twice := [name for name, count in Counter(one.name for one in asked).items() if count > 1]:
        raise UsageError(option("part"), f"{twice[0]} is given twice", "give each part a name of its own")
    found = [files_at(tree, one.where, BY_KIND[one.kind]) for one in asked]
    rest = without(tree, frozenset(path for files in found for path in files.paths))
    among = masks_among(rest.images)
    if mask is not None:
        with suppress(UsageError):  # a column of Parquet
            among |= frozenset(files_at(rest, mask, BY_KIND["mask"]).paths)
    images = [path for path in rest.images if path not in among]
    sources: list[BaseSource] = []
    for (name, _, kind_name, unknown), files in zip(asked, found, strict=True):
        kind, matches = BY_KIND[kind_name], files.matches(images)
        if not matches.fitting:
            problem = f"none of {some_paths(files.paths)} is named like an image"
            raise UsageError(option("part", f"{name}={as_text(files.where)}"), problem, "write a pattern as WHERE")
        if kind_name == "mask":
            sources.append(MaskSource.of_files(tree, options, name, files, matches))
            continue
        facts = facts_of_few(tree, kind, files.paths)
        dtypes = {one.dtype for one in facts}
        spec = PartSpec(
            name, kind_name, max(dtypes, default=""),
            ignore=unknown, channels=max([one.channels for one in facts], default=1),
        )  # fmt: skip
        sources.append(PartSource(tree, spec, files.where, files.paths, matches))
    return rest, sources


def splits_of_labels(
    specs: Sequence[str], tree: Tree, options: SourceOptions, where: str | None = None
) -> tuple[str, ...]:
    """Return the values of ``--split`` that make one pack each, if none is given; () if all is one pack.

    The arguments are those of `with_masks`.

    Raises:
        PackerError: The labels cannot be read.
    """
    specs, tree, masks, _, instances = with_masks(specs, tree, options, where)
    if not specs and (masks or instances) is not None:
        from packer.sources.voc import SEGMENTATION, listed_splits

        return listed_splits(tree, SEGMENTATION) or folder_splits(tree)
    if tuple(specs) == ("auto",):
        from packer.sources.auto import splits_by_file

        if found := splits_by_file(tree, {name: _type_of(name) for name in _REGISTRY.names}, options):
            return found
        specs = [recognize(tree, options).spec]
    there = {*_REGISTRY.names}
    for spec, more in joined(specs):
        name, colon, file = spec.partition(":")
        named = getattr(_type_of(name), "splits", None) if name in there else None  # opening it says what is wrong
        of_file = replace(options, file=file, more_files=more) if colon else options
        if named is not None and (found := tuple(named(tree, of_file))):
            return found
    return ()


def joined(specs: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return each source of ``--labels`` once, with the FILEs of further ones that it reads as well."""
    result: list[tuple[str, tuple[str, ...]]] = []
    for spec in specs:
        name, colon, file = spec.partition(":")
        first = next((i for i, (other, _) in enumerate(result) if other.startswith(name + ":")), None)
        if colon and first is not None and name in SOURCES and getattr(_type_of(name), "joins_files", False):
            result[first] = (result[first][0], (*result[first][1], file))
        else:
            result.append((spec, ()))
    return result


def check_options(specs: Sequence[str], options: SourceOptions) -> None:
    """Raise UsageError for ``--columns`` if no source can use it."""
    names = {spec.partition(":")[0] for spec in specs}
    if options.columns is not None and names.isdisjoint((*HAVE_COLUMNS, "auto")):
        raise UsageError("", f"{option('columns')} is for lists", "pass --labels=list:FILE, or leave out --columns")


def check_sources(sources: Sequence[BaseSource], split: str | None) -> None:
    """Raise UsageError for ``--split`` if no source can use it, or if several sources have tags."""
    if split is not None and not any(source.has_splits for source in sources):
        step = "write one list per split, or name the column of splits: split"
        raise UsageError("", f"{option('split', split)}: the list has no column of splits", step)
    if sum(bool(source.tags) for source in sources) > 1:
        raise UsageError("", "two lists have tag columns", "put them into one list")


def _type_of(name: str) -> SourceType:
    found: SourceType = _REGISTRY.load(name)
    return found
