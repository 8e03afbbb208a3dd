"""A recurrence: what each step over a sequence makes of the state that the step before it left.

A step multiplies vectors of the state by constant matrices, and computes everything else for each
unit of the state by itself. Its expressions read values of a unit, `x[j]`, by their names:

    i = 1.0 / (exp(-(given_i[j] + sum_i[j])) + 1.0)

LSTM, GRU and RNN are such steps; so is whatever else has this form.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from mcfuser.expr import Expr, parse, reads, text

_SYMBOL = "mcfuser.recurrence"
UNIT = "j"
"""The axis of the units of a state, over which no expression reaches."""


@dataclass(frozen=True, slots=True)
class RecurrentStage:
    """A part of a step: products of one vector, then what is computed of them for each unit.

    `operand` names the vector that is multiplied, a state or a value of an earlier stage. Each of
    the `sums` is a product of it with a square matrix. Each of the `values` may read those before
    it.
    """

    operand: str
    sums: tuple[str, ...]
    values: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A walk over a sequence, in one direction or in two that know nothing of each other.

    `given` are what a step has of the sequence, and `constants` what all steps have in common, a
    number for each unit. `states` are the state's vectors, each with the value that it is after a
    step; the first one is what a step shows. `backward` tells for each direction whether it begins
    at the sequence's end. Where sequences have `lengths` of their own, steps behind a sequence's
    end show zeros and leave the state as it is.
    """

    given: tuple[str, ...]
    constants: tuple[str, ...]
    states: tuple[tuple[str, str], ...]
    stages: tuple[RecurrentStage, ...]
    backward: tuple[bool, ...]
    lengths: bool = False

    @property
    def directions(self) -> int:
        return len(self.backward)

    @property
    def sums(self) -> int:
        """Products with a matrix, in all stages."""
        return sum(len(stage.sums) for stage in self.stages)

    @property
    def kept(self) -> tuple[str, ...]:
        """The values that a later stage reads or multiplies, and are no states."""
        found: list[str] = []
        for at, stage in enumerate(self.stages):
            later = self.stages[at + 1 :]
            read_later = {s.operand for s in later} | {
                r.tensor for s in later for _, e in s.values for r in reads(e)
            }
            found += [name for name, _ in stage.values if name in read_later]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class RecurrenceLimits:
    """The recurrences that a device's modules have as loops: of numbers of these `dtypes`.

    `sizes` has, by dtype and by the numbers of products of a step's stages, the most rows of a
    batch and the most units of a state, one of several such pairs; any size goes where it is None.
    """

    dtypes: tuple[str, ...]
    sizes: tuple[tuple[str, tuple[int, ...], int, int], ...] | None = None

    def hold(self, dtype: str, stages: tuple[int, ...], batch: int, hidden: int) -> bool:
        """Whether a recurrence is within them."""
        if self.sizes is None:
            return dtype in self.dtypes
        return any(
            (dtype, stages) == (t, s) and batch <= rows and hidden <= units
            for t, s, rows, units in self.sizes
        )


NO_RECURRENCES = RecurrenceLimits(())
"""Those of a device that has no such loops."""


def recurrence_symbol(recurrence: Recurrence) -> str:
    """The name of what a module calls for a recurrence until it has code for it, which says what it
    is."""
    document = {
        "given": recurrence.given,
        "constants": recurrence.constants,
        "states": recurrence.states,
        "stages": [
            {
                "operand": stage.operand,
                "sums": stage.sums,
                "values": [[name, text(e)] for name, e in stage.values],
            }
            for stage in recurrence.stages
        ],
        "backward": recurrence.backward,
        "lengths": recurrence.lengths,
    }
    return f"{_SYMBOL}:{json.dumps(document)}"


def is_recurrence(symbol: str) -> bool:
    """Whether a name is that of a recurrence."""
    return symbol.startswith(f"{_SYMBOL}:")


def recurrence_of(symbol: str) -> Recurrence:
    """The recurrence that has a name."""
    found = json.loads(symbol.removeprefix(f"{_SYMBOL}:"))
    stages = tuple(
        RecurrentStage(
            stage["operand"],
            tuple(stage["sums"]),
            tuple((name, parse(e)) for name, e in stage["values"]),
        )
        for stage in found["stages"]
    )
    return Recurrence(
        tuple(found["given"]),
        tuple(found["constants"]),
        tuple((name, after) for name, after in found["states"]),
        stages,
        tuple(found["backward"]),
        found["lengths"],
    )
