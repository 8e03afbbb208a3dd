"""Convolutions as chains: a window of 3 x 3 over pictures whose lines lie element by element."""

from __future__ import annotations

from mcfuser.chain import Chain, from_json


def convolution(
    height: int, width: int, columns: int, channels: int = 5, groups: int = 1, pictures: int = 1,
    step: int = 1,
) -> Chain:  # fmt: skip
    """With a bias for each column, and what a residual adds. A window's positions are `step` apart
    from the next window's; a line of the input is as long as the windows need."""
    line, lines = step * (width - 1) + 3, step * (height - 1) + 3
    plane = line * lines
    laid = [groups * channels * plane, channels * plane, plane, step * line, step, line, 1]
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
