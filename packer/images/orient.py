"""Turns an image upright, as its Exif orientation says."""

from __future__ import annotations

import numpy as np

from packer.images.opencv import cv2
from packer.types import Image

_TURNS = {3: cv2.ROTATE_180, 6: cv2.ROTATE_90_CLOCKWISE, 8: cv2.ROTATE_90_COUNTERCLOCKWISE}
_FLIPS = {2: 1, 4: 0}  # 1: left and right change places, 0: top and bottom


def orient(image: Image, orientation: int) -> Image:
    """The upright image of a stored one; C-contiguous, (height, width, channels).

    Args: (height, width, channels), any dtype; Exif orientation 1..8 (1: returned as it is).
    """
    if orientation == 1:
        return np.ascontiguousarray(image)
    if orientation in _TURNS:
        turned = cv2.rotate(image, _TURNS[orientation])  # ten times as fast as numpy's views and a copy
    elif orientation in _FLIPS:
        turned = cv2.flip(image, _FLIPS[orientation])
    elif orientation == 5:
        turned = cv2.transpose(image)
    elif orientation == 7:
        turned = cv2.rotate(cv2.transpose(image), cv2.ROTATE_180)
    else:
        raise ValueError(f"orientation must be 1..8, got {orientation}")
    return np.ascontiguousarray(turned.reshape(turned.shape[0], turned.shape[1], image.shape[2]))
