"""Convolutions as chains: a window of 3 x 3 over pictures whose lines lie element by element."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mcfuser.chain import Chain, from_json


def convolution(
    height: int, width: int, columns: int, channels: int = 5, groups: int = 1, pictures: int = 1,
    step: int = 1, last: bool = False,
) -> Chain:  # fmt: skip
    """With a bias for each column, and what a residual adds. A window's positions are `step` apart
    from the next window's; a line of the input is as long as the windows need. Channels are `last`,
    or planes."""
    line, lines = step * (width - 1) + 3, step * (height - 1) + 3
    every = groups * channels
    plane, unit = (1, every) if last else (line * lines, 1)
    picture, row = every * line * lines, line * unit
    laid = [picture, channels * plane, plane, step * row, step * unit, row, unit]
    return from_json({
        "axes": {"p": pictures, "g": groups, "m": height, "i": width, "n": columns,
                 "k": channels, "s": 3, "t": 3},
        "tensors": {
            "A": {"shape": ["p", "g", "k", "m", "i", "s", "t"], "strides": laid},
            "B": {"shape": ["g", "k", "s", "t", "n"], "constant": True},
            "D": {"shape": ["g", "n"]},
            "R": {"shape": ["p", "g", "m", "i", "n"]},
        },
        "operators": [
            "C[p, g, m, i, n] = sum[k, s, t] A[p, g, k, m, i, s, t] * B[g, k, s, t, n]",
            "E[p, g, m, i, n] = max(C[p, g, m, i, n] + D[g, n] + R[p, g, m, i, n], 0.0)",
        ],
    })  # fmt: skip


def depthwise(rows: int, columns: int, step: int = 1, reduce: str = "sum") -> Chain:
    """A depthwise convolution of four channels, or the largest products, over windows of 3 x 3
    that are `step` apart in each row."""
    row = step * (columns - 1) + 3
    return from_json({
        "axes": {"b": 4, "m": rows, "i": columns, "k": 3, "s": 3},
        "tensors": {
            "A": {"shape": ["b", "m", "i", "k", "s"],
                  "strides": [(rows + 2) * row, row, step, row, 1]},
            "B": {"shape": ["b", "k", "s"], "constant": True},
        },
        "operators": [
            f"C[b, m, i] = {reduce}[k, s] A[b, m, i, k, s] * B[b, k, s]",
            "E[b, m, i] = max(C[b, m, i], 0.0)",
        ],
    })  # fmt: skip


@dataclass(frozen=True)
class Windows:
    """Windows along one dimension of a picture: the picture's extent, the positions of a window,
    the steps between windows and within one, and the zeros around the picture."""

    extent: int
    taps: int
    step: int = 1
    apart: int = 1
    before: int = 0
    after: int = 0

    @property
    def places(self) -> int:
        """The windows that fit."""
        total = self.before + self.extent + self.after
        return (total - self.apart * (self.taps - 1) - 1) // self.step + 1


def padded(
    down: Windows, across: Windows, columns: int = 0, channels: int = 3, pictures: int = 1,
    dtype: str = "float32", value: float = 0.0, largest: bool = False, last: bool = False,
) -> Chain:  # fmt: skip
    """A convolution of pictures with zeros, or another number, around them; depthwise without
    columns. The largest element of each window, if that is wanted. Channels are `last`, or
    planes."""
    places = across.extent * down.extent
    plane, element = (1, channels) if last else (places, 1)
    line = across.extent * element
    laid = [channels * places, plane, down.step * line, down.apart * line, across.step * element,
            across.apart * element]  # fmt: skip
    padding = [
        {
            "dimensions": [d, d + 1],
            "extent": x.extent,
            "stride": unit,
            "before": x.before,
            "value": value,
        }
        for d, x, unit in ((2, down, line), (4, across, element))
        if x.before or x.after
    ]
    axes = {"p": pictures, "k": channels, "m": down.places, "s": down.taps, "i": across.places,
            "t": across.taps}  # fmt: skip
    data = {"shape": list("pkmsit"), "strides": laid, "padding": padding, "dtype": dtype}
    if columns:
        weights, sums = {"shape": list("kstn"), "constant": True}, "p, m, i, n"
        lines = [f"C[{sums}] = sum[k, s, t] A[p, k, m, s, i, t] * B[k, s, t, n]",
                 f"E[{sums}] = max(C[{sums}] + D[n], 0.0)"]  # fmt: skip
        axes["n"] = columns
    else:
        weights, sums = {"shape": list("kst"), "constant": True}, "p, k, m, i"
        lines = [f"C[{sums}] = sum[s, t] A[p, k, m, s, i, t] * B[k, s, t]",
                 f"E[{sums}] = max(C[{sums}] + D[k], 0.0)"]  # fmt: skip
    if largest:
        lines = [f"E[{sums}] = max[s, t] A[p, k, m, s, i, t]"]
        return from_json({"axes": axes, "tensors": {"A": data}, "operators": lines})
    bias = {"shape": ["n" if columns else "k"]}
    tensors = {"A": data, "B": weights, "D": bias}
    return from_json({"axes": axes, "tensors": tensors, "operators": lines})


def drawn_windows(rng: random.Random) -> Windows:
    """Windows of any kind that fit."""
    while True:
        taps, apart = rng.choice((1, 2, 3, 5)), rng.choice((1, 1, 1, 2, 4))
        found = Windows(rng.choice((1, 2, 5, 7, 8, 14, 17)), taps, rng.choice((1, 1, 2, 3)), apart,
                        rng.randint(0, 3), rng.randint(0, 3))  # fmt: skip
        if found.places > 0 and found.extent + found.before + found.after > apart * (taps - 1):
            return found
