"""What is drawn of the predictions of one record: boxes, its class, and where its mask differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from packer.errors import printable
from packer.format.pack import Pack
from packer.model.annotation import PartSpec
from packer.stats.comparison import compared

MOST_DRAWN = 300
EQUAL = "(equal)"
DIFFERENCE = "_difference"
"""After the name of predicted masks: where they differ from the labels."""


def named_predictions(pack: Pack) -> list[dict[str, str]]:
    """Return name and kind of the predictions of a pack that can be compared with its labels."""
    return [{"name": name, "kind": pack.sidecars[name].kind} for name in compared(pack)]


def predicted_facts(pack: Pack, record: int, region: tuple[int, int, int, int] | None = None) -> dict[str, Any]:
    """Return what is drawn of the predicted boxes and classes of a record; {} if there are none.

    Returns:
        ``predictions``: of each its name, and boxes, scores, labels and names of other classes than the pack's; or
        label, score and name.
    """
    found = []
    for name, facts in pack.sidecars.items():
        if facts.kind == "boxes":
            found.append({"name": name, **_boxes(pack, record, name, region)})
        elif facts.kind == "labels":
            row = pack.part(record, name)
            said = printable(facts.classes[int(row[0])])
            found.append({"name": name, "label": _id_in(pack, said), "said": said, "score": round(float(row[1]), 4)})
    return {"predictions": found} if found else {}


def _boxes(pack: Pack, record: int, name: str, region: tuple[int, int, int, int] | None) -> dict[str, Any]:
    value, classes = pack.part(record, name), pack.sidecars[name].classes
    order = np.argsort(-value["scores"], kind="stable")
    boxes, scores, labels = (value[what][order] for what in ("boxes", "scores", "labels"))
    if region is not None:
        x, y, width, height = region
        boxes = boxes - np.array([x, y, x, y], np.float32)
        seen = (boxes[:, :2] < [width, height]).all(axis=1) & (boxes[:, 2:] > 0).all(axis=1)
        boxes, scores, labels = boxes[seen], scores[seen], labels[seen]
    said = [printable(classes[number]) for number in labels[:MOST_DRAWN].tolist()]
    return {
        "boxes": np.round(boxes[:MOST_DRAWN].astype(np.float64), 2).tolist(),
        "scores": np.round(scores[:MOST_DRAWN].astype(np.float64), 4).tolist(),
        "labels": [_id_in(pack, one) for one in said],
        "said": said,
    }


def _id_in(pack: Pack, name: str) -> int:
    return pack.classes.index(name) if name in pack.classes else -1


def equal_id(spec: PartSpec) -> int:
    """Return the value of EQUAL in the picture of a difference."""
    return len(spec.classes) - 1


def difference_specs(pack: Pack) -> dict[str, PartSpec]:
    """Return the specs of pictures of differences: name of predicted masks -> that of what they differ in."""
    masks = pack.manifest.masks
    if not masks:
        return {}
    of = masks["mask" if "mask" in masks else next(iter(masks))]
    found = {}
    for name, facts in pack.sidecars.items():
        classes = facts.classes or of.classes or tuple(map(str, range(256 if facts.dtype == "uint8" else 0)))
        if facts.kind == "mask" and classes:
            found[name] = PartSpec(name + DIFFERENCE, "mask", "uint16", (*classes, EQUAL))
    return found


def differences(pack: Pack, record: int) -> Iterator[tuple[PartSpec, Any]]:
    """Yield the spec and the pixels of each predicted mask where it differs; elsewhere they are EQUAL."""
    masks = pack.manifest.masks
    for name, spec in difference_specs(pack).items():
        of = "mask" if "mask" in masks else next(iter(masks))
        truth, said = pack.part(record, of), pack.part(record, name)
        if truth is None or said is None:
            continue
        equal, own = equal_id(spec), pack.sidecars[name].classes
        table = np.arange(max(65536, equal))
        if own and masks[of].classes:
            ids = {one: number for number, one in enumerate(masks[of].classes)}
            table[: len(own)] = [ids.get(one, -1) for one in own]
        same = table[said] == truth
        if masks[of].ignore is not None:
            same |= truth == masks[of].ignore
        yield spec, np.where(same, equal, np.minimum(said.astype(np.uint16), equal - 1))
