"""YOLO: a text file for each image, and data.yaml."""
