"""Measures how fast images are read: a plain folder and packs, compared with the limits of the machine.

`compare` builds packs of a sample of a folder and reads all of them, `sweep` reads one pack with different settings,
`tune` looks for the settings that keep up with a training step, and `beside` measures a loader of the user's. All
rounds are interleaved, and every measurement runs in a fresh process.
"""

from __future__ import annotations

from packer.bench.measure import Figure
from packer.bench.report import BenchOptions, Report, Row
from packer.bench.sweep import beside, compare, sweep, tune

__all__ = ["BenchOptions", "Figure", "Report", "Row", "beside", "compare", "sweep", "tune"]
