"""Pixels and geometry: headers, decoding, orientation, resizing, encoding; bytes in, arrays out, no files.

Importing this package loads no image library; `header`, `exif` and `geometry` need numpy at most.
"""
