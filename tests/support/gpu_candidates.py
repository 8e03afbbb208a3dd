"""The candidates that a search for a GPU has, and what the model says of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.device import Device
from mcfuser.space.candidates import Candidates, candidates
from mcfuser.space.knobs import KnobTable
from mcfuser.space.plan import Floats, Ints
from mcfuser.space.prune import Space


def every(found: Space, device: Device, measured: bool = True) -> Candidates:
    """The candidates of a pruned space, those that are only for measuring if wanted."""
    return candidates(found, KnobTable(CUDA.knobs, device), CUDA.feasible, measured)


def times(found: Candidates, rows: Ints | None = None) -> Floats:
    """Seconds that the model predicts of candidates, or of all of them."""
    return found.estimates(found.rows if rows is None else rows, CUDA.estimate)


def settings(found: Candidates, name: str) -> Any:
    """The values of a knob, one for each candidate."""
    return found.table.columns(found.rows[:, -1])[name]


def with_groups(found: Candidates) -> Ints:
    """The rows of candidates with warp groups."""
    chosen: Ints = found.rows[np.asarray(settings(found, "groups"))]
    return chosen
