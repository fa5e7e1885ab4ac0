"""COCO: JSON files of images, objects and categories."""
