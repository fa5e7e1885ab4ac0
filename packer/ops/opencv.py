"""OpenCV as packer uses it: without its own threads and without its own words on the terminal."""

from __future__ import annotations

import cv2

# The build and the loader bring their own processes and threads: OpenCV's would fight them for the cores,
# and a child forked while its thread pool is at work can hang.
cv2.setNumThreads(0)
# What OpenCV logs of a broken image, the error that packer raises says, once and with the file's name.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

__all__ = ["cv2"]
