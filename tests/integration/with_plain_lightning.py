"""Lightning's Trainer with torch's own DataLoader around our samplers: no state in the middle of an epoch."""

from __future__ import annotations

from runs import data_loader
from with_lightning import fit

__all__ = ["data_loader", "fit"]
