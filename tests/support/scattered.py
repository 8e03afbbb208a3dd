"""What scattering means, by NumPy: one slice or element after the other."""

from __future__ import annotations

import numpy as np

UFUNCS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def put(out: np.ndarray, place: tuple[object, ...], one: np.ndarray, reduction: str) -> None:
    """Changes what is at a place."""
    out[place] = one if reduction == "update" else UFUNCS[reduction](out[place], one)


def slices_put(x: np.ndarray, at: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    """The array with slices at the places [.., k] along its first k dimensions."""
    out, k = x.copy(), at.shape[-1]
    for place, one in zip(at.reshape(-1, k), updates.reshape(-1, *x.shape[k:]), strict=True):
        put(out, tuple(place), one, reduction)
    return out
