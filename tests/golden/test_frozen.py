"""The order, crops and states of released versions stay what they were; docs/versioning.md promises it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import cv2
import frozen
import numpy as np
import pytest
import torch

from packer import __version__

FROZEN = json.loads(frozen.FILE.read_text("ascii"))
STATES = [(version, name) for version, states in FROZEN["states"].items() for name in states]


def test_nothing_is_missing() -> None:
    """A new sampler or crop is frozen with the version that brings it."""
    assert {*FROZEN["orders"]} == {f"{name} of {n}" for name in frozen.SAMPLERS for n in (frozen.RECORDS, frozen.MANY)}
    assert FROZEN["crops"].keys() == frozen.CROPS.keys()
    assert FROZEN["states"][__version__].keys() >= {*frozen.SAMPLERS, *frozen.LOADERS}, "run tests/golden/frozen.py"
    versions = {
        states["state"]["version"] for of_version in FROZEN["states"].values() for states in of_version.values()
    }
    assert versions == {1, 2}


@pytest.mark.parametrize(("name", "n"), [*itertools.product(frozen.SAMPLERS, (frozen.RECORDS, frozen.MANY))])
def test_the_order_of_a_seed(name: str, n: int) -> None:
    assert frozen.order_of(name, n) == FROZEN["orders"][f"{name} of {n}"]


@pytest.mark.parametrize("name", frozen.CROPS)
def test_the_crops_of_a_seed(name: str) -> None:
    for epoch, found in frozen.crop_of(name).items():
        wanted = FROZEN["crops"][name][epoch]
        for (number, *places), (same, *same_places) in zip(found["rows"], wanted["rows"], strict=True):
            assert number == same
            for place, same_place in zip(places, same_places, strict=True):
                assert np.allclose(place, same_place, rtol=0, atol=1e-3)
        if name in frozen.OF_PIXELS and cv2.__version__ == FROZEN["opencv"]:
            assert found["pixels"] == wanted["pixels"]


def loaded(state: dict[str, Any]) -> dict[str, Any]:
    """A state as a checkpoint gives it back: weights are a tensor."""
    return {name: torch.tensor(value) if name == "weights" and isinstance(value, list) else value
            for name, value in state.items()}  # fmt: skip


@pytest.mark.parametrize(("version", "name"), STATES)
def test_a_state_goes_on_where_it_was(version: str, name: str) -> None:
    state, rest = (FROZEN["states"][version][name][part] for part in ("state", "next"))
    if name in frozen.SAMPLERS:
        sampler = frozen.SAMPLERS[name](frozen.RECORDS)
        sampler.load_state_dict(loaded(state))
        assert [int(number) for number in sampler] == rest
    else:
        pack, options = frozen.LOADERS[name]
        loader = frozen.loader_of(pack, **options)
        loader.load_state_dict(state)
        assert [number for batch in loader for number in batch[-1].tolist()] == rest


@pytest.mark.parametrize("name", [*frozen.SAMPLERS, *frozen.LOADERS])
def test_the_members_of_a_state(name: str) -> None:
    """None is gone, and none has become of another kind: programs look at `epoch` and `position`."""
    wanted, found = FROZEN["states"][__version__][name], frozen.state_of(name)
    assert found == wanted
