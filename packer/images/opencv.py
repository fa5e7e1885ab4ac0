"""OpenCV as packer uses it: without its own threads and without its own words on the terminal."""

from __future__ import annotations

import cv2

# The build and the loader bring their own processes and threads: OpenCV's would fight them for the cores,
# and a child forked while its thread pool is at work can hang.
cv2.setNumThreads(0)
# What OpenCV logs of a broken image, the error that packer raises says, once and with the file's name.
_set_log_level = cv2.setLogLevel if hasattr(cv2, "setLogLevel") else cv2.utils.logging.setLogLevel  # 4, 5
_set_log_level(0)

__all__ = ["cv2"]
