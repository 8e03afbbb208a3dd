"""Recurrences that no ONNX node has, and what they are by definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np
from tvm import IRModule, relax

from mcfuser.chain.recurrence import Recurrence, RecurrentStage
from mcfuser.expr import Read, parse
from mcfuser.space.reference import value

Arrays = Mapping[str, np.ndarray]
PLAIN = RecurrentStage("h", ("sum",), (("next", parse("tanh(x[j] + sum[j] * scale[j])")),))
FIRST = RecurrentStage(
    "h", ("sum_u", "sum_v"),
    (("u", parse("x[j] + sum_u[j] * 0.5")), ("v", parse("max(sum_v[j] * c[j], y[j])"))),
)  # fmt: skip
SECOND = RecurrentStage(
    "v", ("sum_w",),
    (("next_c", parse("u[j] - 0.25 * sum_w[j]")), ("next", parse("tanh(next_c[j]) + h[j] / 4.0"))),
)  # fmt: skip


def cells(backward: tuple[bool, ...], lengths: bool) -> list[Recurrence]:
    plain = Recurrence(("x",), ("scale",), (("h", "next"),), (PLAIN,), backward, lengths)
    states = (("h", "next"), ("c", "next_c"))
    return [plain, Recurrence(("x", "y"), (), states, (FIRST, SECOND), backward, lengths)]


CELLS = [
    cell
    for backward in ((False,), (True,), (False, True))
    for lengths in (False, True)
    for cell in cells(backward, lengths)
]
"""A cell of one stage and one of two, by directions and lengths."""


def cell(stages: tuple[int, ...], directions: int = 1) -> Recurrence:
    """A cell whose stages have so many products."""
    operands = ("h", *(f"v{i}" for i in range(1, len(stages))))
    made = tuple(
        RecurrentStage(o, tuple(f"{o}{s}" for s in range(n)), ())
        for o, n in zip(operands, stages, strict=True)
    )
    return Recurrence((), (), (("h", "next"),), made, (False, True)[:directions])


def called_by_name(module: IRModule) -> list[str]:
    """The functions that `main` calls by name."""
    names: list[str] = []

    def visit(e: relax.Expr) -> None:
        if isinstance(e, relax.ExternFunc):
            names.append(str(e.global_symbol))

    relax.analysis.post_order_visit(module["main"], visit)
    return names


@dataclass(frozen=True)
class Walked:
    """A recurrence, and what it is given: input products [steps x batch, directions x given x
    hidden], matrices [directions, hidden, sums x hidden], constants [directions, constants,
    hidden], lengths [batch], and the states before the first step [states, directions, batch,
    hidden]."""

    recurrence: Recurrence
    given: np.ndarray
    square: np.ndarray
    fixed: np.ndarray
    lengths: np.ndarray
    first: np.ndarray

    @property
    def arguments(self) -> list[np.ndarray]:
        """What a loop is given behind its input products and its matrices."""
        cell = self.recurrence
        arguments = [self.fixed] if cell.constants else []
        return [*arguments, *([self.lengths] if cell.lengths else []), *self.first]


def random_walk(
    cell: Recurrence, steps: int, batch: int, hidden: int, dtype: str = "float32"
) -> Walked:
    """Random numbers for a recurrence; some of the lengths are 0, or more than the steps."""
    random = np.random.default_rng(hidden)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))

    def numbers(*shape: int, most: float = 1.0) -> np.ndarray:
        return random.uniform(-most, most, shape).astype(np.float32).astype(kind)

    directions = cell.directions
    return Walked(
        cell,
        numbers(steps * batch, directions * len(cell.given) * hidden),
        numbers(directions, hidden, cell.sums * hidden, most=2 / hidden**0.5),
        numbers(directions, len(cell.constants), hidden),
        random.integers(0, steps + 2, batch).astype(np.int32),
        numbers(len(cell.states), directions, batch, hidden),
    )


def named(known: Arrays, r: Read) -> np.ndarray:
    return known[r.tensor]


def walked_over(w: Walked) -> tuple[np.ndarray, np.ndarray]:
    """What the steps show and the last states [states, directions, ..], by the definition."""
    cell = w.recurrence
    _, directions, batch, hidden = w.first.shape
    steps = len(w.given) // batch
    out = np.zeros((steps, directions, batch, hidden))
    last = w.first.astype(np.float64)
    lengths = w.lengths if cell.lengths else np.full(batch, steps)
    by_sum = w.square.astype(np.float64).reshape(directions, hidden, cell.sums, hidden)
    by_given = w.given.astype(np.float64).reshape(steps, batch, directions, -1, hidden)
    fixed = w.fixed.astype(np.float64)
    for d, backward in enumerate(cell.backward):
        for t in range(steps)[:: -1 if backward else 1]:
            known = {n: by_given[t, :, d, i] for i, n in enumerate(cell.given)}
            known |= {n: fixed[d, i] for i, n in enumerate(cell.constants)}
            known |= {state: last[i, d] for i, (state, _) in enumerate(cell.states)}
            begun = 0
            for stage in cell.stages:
                for name in stage.sums:
                    known[name] = known[stage.operand] @ by_sum[d, :, begun]
                    begun += 1
                for name, e in stage.values:
                    known[name] = value(e, partial(named, known), str)
            there = (t < lengths)[:, None]
            for i, (_, after) in enumerate(cell.states):
                last[i, d] = np.where(there, known[after], last[i, d])
            out[t, d] = np.where(there, last[0, d], 0)
    return out, last
