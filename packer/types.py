"""The value types that other packages import: sources, containers and formats of their own."""

from packer.model.annotation import Annotation, Image, Progress, RawAnnotation, Record, Sample

__all__ = ["Annotation", "Image", "Progress", "RawAnnotation", "Record", "Sample"]
