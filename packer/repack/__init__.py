"""Packs made from packs, and from files of other tools: adopt, convert, merge, split; extract leads back to files."""
