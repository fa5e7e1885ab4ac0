"""Faults that `scripts/torture.py` makes outside of the tests: fuzzed inputs, killed nodes and trainers."""
