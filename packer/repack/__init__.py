"""Packs made from packs, and from files of other tools: adopt, convert, edit, merge, split; extract leads back to files."""
