"""Saves what can be saved of a damaged pack, and never changes the only copy of anything.

A file that is made again with the very digest that the manifest has is the original, and takes its place. What cannot
be made again so goes, with all good shards, into a new pack beside the old one.
"""

from packer.format.repair_report import LostRecord, RepairReport, Watcher
from packer.format.repair_run import repair

__all__ = ["LostRecord", "RepairReport", "Watcher", "repair"]
