"""The budget of a search, and whether the search used it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StopReason = Literal["settled", "trials", "time"]
"""Why a search ended. "settled": it converged, or measured every candidate. "trials" and "time":
that part of its budget was used up. The words are stored."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a search, and why it ended.

    `trials` is the largest number of candidates that it might measure (None: any number), `seconds`
    its nominal share of the time.
    """

    trials: int | None = None
    seconds: float = 60.0
    ended: StopReason = "settled"

    def covers(self, measured: int, trials: int | None, seconds: float) -> bool:
        """Whether the search would find nothing better if it were given `trials` and `seconds`.

        `measured` is the number of candidates that it measured.
        """
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
