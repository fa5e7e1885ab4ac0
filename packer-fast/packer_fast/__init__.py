"""Decodes regions of JPEGs into the rows of a batch, by a native library that holds no lock of Python."""

from packer_fast.decoder import Batch, Error, IndexNotPossible, decode_batch, decode_crops, make_index, version

__all__ = ["Batch", "Error", "IndexNotPossible", "decode_batch", "decode_crops", "make_index", "version"]
