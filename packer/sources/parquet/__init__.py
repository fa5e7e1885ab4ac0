"""Parquet files with images in them, as of Hugging Face."""
