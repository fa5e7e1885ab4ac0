"""Options from elsewhere: those that made a pack (``--like``), and those in a YAML file (``--config``)."""

from __future__ import annotations

import os
import shlex
from typing import Any

from packer.containers import container_of
from packer.errors import PackerError, UsageError, option, printable
from packer.format.lists import selection_file
from packer.format.manifest import Manifest, read_manifest
from packer.packing.build_options import DEFAULT_CONTAINER, DEFAULTS, KINDS, BuildOptions, default_encoding
from packer.packing.option_table import CLASS_OPTIONS, OPTIONS, TABLE, label_of
from packer.sources import NO_FILES
from packer.sources.paths import as_bytes, quoted_value
from packer.sources.tree import MIB, lines_of, read_file
from packer.sources.yolo_config import parse_yaml

BELOW_SOURCE = "SRC/"
RESIZED_TWICE = "resized_twice"
"""Member of a manifest's options: its images were resized before they were converted to the size that it records."""
HELP = "see packer build --help-all"


def options_like(pack: str | os.PathLike[str], source: str, **given: Any) -> BuildOptions:
    """Return the options that made a pack, for another source.

    Class ids are those of the pack. Options that do not affect its content (workers, max_bad, ...) are not recorded.

    Args:
        pack: The pack.
        source: The folder to pack.
        given: Options that differ, by the names of `BuildOptions`.

    Raises:
        UsageError: It is not a pack, or a file that it was made with is not recorded.
    """
    folder = os.fsdecode(pack)
    if not folder:
        raise UsageError(option("like"), "is empty", "name a pack")
    manifest = read_manifest(folder)
    names = [row.name for row in OPTIONS if row.recorded != "never" and row.name in manifest.options]
    recorded = {name: manifest.options[name] for name in names}
    out = given.get("out")
    if out is None or container_of(os.fspath(out)) is None:  # else the extension chooses
        recorded["format"] = manifest.container
    recorded["classes"] = folder if manifest.classes else None
    for name in ("include", "exclude"):
        if name in recorded:
            recorded[name] = manifest.path_of(folder, _file(manifest, name))
    if "labels" in given:
        kinds = sorted(spec.partition(":")[0] for spec in given["labels"])
        if kinds != sorted(manifest.options["labels"]):  # else they are the same lists elsewhere
            recorded.pop("columns", None)
    else:
        recorded["labels"] = tuple(_labels(manifest, folder, os.fspath(source)))
    return BuildOptions(**{**recorded, **given, "source": source, "like": folder})


def options_from(config: str | os.PathLike[str], **given: Any) -> BuildOptions:
    """Return the options in a YAML file, as ``--config`` does.

    Args:
        config: The file; relative paths in it refer to the working directory.
        given: Options that take precedence, by the names of `BuildOptions`.

    Raises:
        UsageError: It cannot be read, or an option in it is unknown or invalid.
    """
    merged = {**read_config(os.fsdecode(config)), **given}
    if "source" not in merged:
        raise UsageError(config, "names no source", "add it: source: FOLDER")
    return merged_options(merged)


def merged_options(given: dict[str, Any]) -> BuildOptions:
    """Return the options `given`, else of the pack that is ``like`` of them, else the defaults."""
    others = dict(given)
    like = others.pop("like", None)
    return BuildOptions(**others) if like is None else options_like(like, **others)


def read_config(path: str) -> dict[str, Any]:
    """Return the options in a YAML file by the names of `BuildOptions`.

    Raises:
        UsageError: It cannot be read, or an option in it is unknown or of the wrong type.
    """
    try:
        data = read_file(b"/", os.path.abspath(as_bytes(path)), MIB)
        loaded = parse_yaml(data, as_bytes(path))
    except UsageError:
        raise
    except PackerError as error:
        raise UsageError(path, error.problem, "give a YAML file such as: resize: 256") from None
    if not loaded and any(line.strip() and not line.lstrip().startswith(b"#") for line in lines_of(data)):
        raise UsageError(path, "holds no options", "write each on a line of its own: resize: 256")
    flags = {row.flag: row.name for row in OPTIONS}
    options = {}
    for written, value in loaded.items():
        name = flags.get(written.replace("_", "-"), written.replace("-", "_"))
        if name not in TABLE:
            raise UsageError(path, f"has the option {quoted_value(written)}, which is not known", HELP)
        try:
            options[name] = _value(name, value)
        except ValueError as error:
            raise UsageError(path, f"{printable(written)} {error}", "correct it") from None
    return options


def _value(name: str, value: Any) -> Any:
    """Convert the text of a YAML value, or a list of them, to the type of an option."""
    kind, read = KINDS[name], TABLE[name].read
    if kind.startswith("tuple"):
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in values):
            raise ValueError("must be a text, or a list of texts")
        return tuple(values)
    if not isinstance(value, str) or value == "":
        raise ValueError("must be a single value")
    if read is not None:
        return read(value)
    if kind == "bool":
        if value.lower() not in ("true", "false"):
            raise ValueError(f"must be true or false, got {quoted_value(value)}")
        return value.lower() == "true"
    if kind.startswith("int"):
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"must be a whole number, got {quoted_value(value)}") from None
    return value


def as_config(options: BuildOptions) -> list[str]:
    """Return the lines of a YAML file with the options that are not the default."""
    lines = []
    for name, default in DEFAULTS.items():
        value = getattr(options, name)
        if value != default:
            row = TABLE[name]
            texts = [_yaml(row.text(item)) for item in (value if isinstance(value, tuple) else [value])]
            lines.append(f"{row.flag}: {texts[0] if len(texts) == 1 else '[' + ', '.join(texts) + ']'}")
    return lines


def command_of(manifest: Manifest, pack: str) -> str:
    """Return the command that made a pack, with SRC for its source, which is not recorded.

    Args:
        manifest: Its manifest.
        pack: Its path.
    """
    if manifest.made_from and manifest.made_from[0].command == "PackWriter":
        return f"packer.PackWriter({pack!r}, ...)"
    if manifest.made_from:
        first, *others = (origin.name for origin in manifest.made_from)
        words = ["packer", manifest.made_from[0].command, first]
        words += [option("labels-from"), *others] if words[1] == "edit" and others else others
        for name, value in manifest.options.get("repack", {}).items():
            if name == "source":
                words += [word for spec in _labels(manifest, pack, None) for word in (option("labels"), spec)]
                words += [option(name), str(value)]
            else:
                files = {"delete": manifest.path_of(pack, value), "classes": pack} if isinstance(value, str) else {}
                words += _words(name, files.get(name, value))
        if words[1] == "convert":
            return shlex.join([*words[:3], pack, option("format"), manifest.container]) + _conversion_options(
                manifest, pack
            )
        return shlex.join(words if words[1] == "split" else [*words, "-o", pack])
    from packer.packing.plan import default_shard_bytes

    words = ["packer", "build", "SRC"]
    for spec in _labels(manifest, pack, None):
        words += [option("labels"), spec]
    recorded: dict[str, Any] = {**manifest.options, "format": manifest.container}
    if "classes" in recorded:
        recorded["classes"] = pack
    recorded |= {n: manifest.path_of(pack, _file(manifest, n)) for n in ("include", "exclude") if n in recorded}
    if manifest.counts["rejected"]:
        recorded["max_bad"] = manifest.counts["rejected"]
    is_raw = recorded.get("resize") is not None or (manifest.shape is not None and "tile" not in recorded)
    if recorded.get("encode") == default_encoding(is_raw):
        del recorded["encode"]
    if recorded["format"] == DEFAULT_CONTAINER:
        del recorded["format"]
    if recorded.get("shard_bytes") == default_shard_bytes(sum(shard.container.bytes for shard in manifest.shards)):
        del recorded["shard_bytes"]
    for name, default in DEFAULTS.items():
        value, row = recorded.get(name, default), TABLE[name]
        if name == "labels" or value in (default, []):
            continue
        for item in value if isinstance(value, list) else [value]:
            words += [row.label] if item is True else [row.label, row.text(item)]
    return shlex.join([*words, "-o", pack])


def _words(name: str, value: Any) -> list[str]:
    """Return an option, with each of its values, as words of a command."""
    values = value if isinstance(value, list) else [value]
    return [word for one in values for word in ([label_of(name)] if one is True else [label_of(name), str(one)])]


def _conversion_options(manifest: Manifest, pack: str) -> str:
    """Return the options of a conversion, with a comment: a pack does not say which of them are those of its source."""
    options = manifest.options
    names = [*(("encode",) if options.get("encode") not in (None, "copy") else ())]
    names += ["quality"] if options.get("encode") == "jpeg" else []
    names += [n for n in ("resize", "fit", "pad_value", "interpolation") if n in options and options.get("resize")]
    words = [word for name in names for word in (label_of(name), str(options[name]))]
    for name in (n for n in ("include", "exclude") if n in options):
        words += [option(name), manifest.path_of(pack, _file(manifest, name))]
    for name, value in options.get("repack", {}).items():
        words += _words(name, value) if name in (*CLASS_OPTIONS, "missing_labels") else []
    return f" {shlex.join(words)}  # or so: {manifest.made_from[0].name} may have had some of these" if words else ""


def _labels(manifest: Manifest, pack: str, source: str | None) -> list[str]:
    """Return the ``--labels`` of a pack; with a source, for the files below it."""
    kinds = manifest.options["labels"]
    files = manifest.options.get("label_files") or ["FILE" if kind == "list" else "" for kind in kinds]
    specs = []
    for kind, file in zip(kinds, files, strict=True):
        if source is not None and file and kind not in NO_FILES:
            if not file.startswith(BELOW_SOURCE):
                made_with = option("labels", f"{kind}:{printable(file)}")
                every = (option("labels", f"{k}:FILE" if f else k) for k, f in zip(kinds, files, strict=True))
                problem = f"was made with {made_with}, which is not below its source"
                raise UsageError(pack, problem, f"pass {' '.join(every)} as well")
            specs.append(f"{kind}:{os.path.join(source, file.removeprefix(BELOW_SOURCE))}")
        else:
            specs.append(f"{kind}:{file}" if file else kind)
    return specs


def _file(manifest: Manifest, name: str) -> str:
    """Return the file name of the selection `name` of a pack."""
    return manifest.lists[name].name if name in manifest.lists else selection_file(name)


def _yaml(text: str) -> str:
    plain = text and text.isascii() and all(c.isalnum() or c in "._/%-" for c in text) and text[0] not in "-%"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return text if plain else f'"{printable(escaped)}"'
