"""Pixels and geometry: headers, decoding, orientation, resizing, encoding. Works on bytes and arrays, not on files.

Importing this package loads no image library; `header`, `exif` and `geometry` need numpy at most.
"""
