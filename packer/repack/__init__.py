"""Packs of packs, and of files of other tools: adopt, convert, edit, merge, split; extract leads back to files."""
