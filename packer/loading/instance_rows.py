"""Decodes the masks of objects for batches: those that a crop shows, cut and turned as the images are."""

from __future__ import annotations

import numpy as np

from packer.format.pack import Pack
from packer.loading.affine import warp_rows
from packer.loading.annotations import BatchAnnotations, in_lists
from packer.loading.augmentation import CropParams
from packer.loading.decoding import sizes_of
from packer.loading.part_rows import places
from packer.model.annotation import Int64, Mask
from packer.model.fields import INSTANCES
from packer.model.rle import run_lengths, write


def read_instances(pack: Pack, records: Int64, found: BatchAnnotations, params: CropParams | None) -> list[Mask]:
    """Return the masks of the objects in images, uint8 (k, height, width) each, cut and turned as the images are.

    Args:
        pack: the pack.
        records: the numbers of the images.
        found: their annotations, with the boxes that are left; the counts of the masks are taken out.
        params: how their images are cut, flipped, turned and moved; None: not at all.

    Raises:
        DamagedPack: if a mask is not one of its image.
    """
    counts, column = found.columns["boxes"].counts.tolist(), found.columns.pop(INSTANCES.target)
    assert column.sizes is not None
    widths, heights = (sides.astype(np.int64) for sides in sizes_of(pack, records))
    try:
        lengths = run_lengths(column.values, column.sizes, np.repeat(widths * heights, column.counts))
    except ValueError:
        for record in records.tolist():
            pack.instance_masks(record)  # raises the error of the one that is damaged
        raise
    each = in_lists(lengths, column.counts.tolist())
    shapes = list(zip(heights.tolist(), widths.tolist(), strict=True))
    if params is None or params.is_whole:
        outputs = shapes
        cuts = [(np.arange(height), np.arange(width)) for height, width in shapes]
    else:
        outputs, cuts = [params.output] * len(shapes), list(zip(*shown(params, heights, widths), strict=True))
    masks = [np.zeros((count, *output), np.uint8) for count, output in zip(counts, outputs, strict=True)]
    for i, (out, objects, shape, (rows, columns)) in enumerate(zip(masks, each, shapes, cuts, strict=True)):
        for mask, one in zip(out, objects, strict=False):  # an image with boxes may have no masks
            write(one, shape, rows, columns, mask if params is None else params.view_before_turns(i, mask))
        if params is not None and params.affine is not None:
            warp_rows(out, np.broadcast_to(params.affine[i], (len(out), 2, 3)), nearest=True)
    return masks


def shown(params: CropParams, heights: Int64, widths: Int64) -> tuple[Int64, Int64]:
    """Return the rows and columns of images of these sizes that their crops show, (n, height) and (n, width).

    Columns are those of the flipped images, which are not upended and transposed yet.
    """
    height, width = params.output
    regions = params.regions
    if regions is None:
        regions = np.stack([np.zeros((2, len(widths))), [widths, heights]]).reshape(4, -1).T
    columns, rows = places(regions[:, 0], regions[:, 2], width), places(regions[:, 1], regions[:, 3], height)
    if params.flipped is not None:
        columns[params.flipped] = columns[params.flipped, ::-1]
    return rows, columns
