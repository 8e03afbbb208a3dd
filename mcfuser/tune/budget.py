"""How long a search was allowed to go on, and whether it needed all of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StopReason = Literal["settled", "trials", "time"]
"""Why a search ended: nothing better was found for a while, or its budget was spent."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search was given: `trials`, the most candidates it might measure (None: any number),
    and `seconds`, its nominal share of the time; and what ended it."""

    trials: int | None = None
    seconds: float = 60.0
    ended: StopReason = "settled"

    def covers(self, measured: int, trials: int | None, seconds: float) -> bool:
        """Whether a search under this budget, in which so many candidates were measured, would
        find no more if it were given `trials` and `seconds` instead."""
        if self.ended == "settled" or (trials is not None and measured >= trials):
            return True
        if self.ended == "trials":
            return trials is not None and self.trials is not None and trials <= self.trials
        return seconds <= self.seconds

    def __str__(self) -> str:
        if self.ended == "trials":
            return f"cut short by trials={self.trials}"
        if self.ended == "time":
            return f"cut short after {self.seconds:g} s"
        return "went on until nothing better was found"
