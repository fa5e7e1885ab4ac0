"""Zips and tars as sources: what is in them, and where its bytes are."""
