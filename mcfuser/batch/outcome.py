"""The outcome of an entry of a zoo."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

EntryState = Literal[
    "passed", "unchecked", "slower", "disagreed", "failed", "unreachable", "not run"
]  # fmt: skip
"""`unchecked`: compiled for a device that is not at hand. `slower`: right, and slower than its
baseline in mcfuser.lock. `unreachable`: its server does not answer. `not run`: no time
was left, or the batch was interrupted; a part that was done is not kept."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state and, unless it is `passed`, the reason in a sentence.

    `seconds` is the time of compiling and checking. `error` is the norm-wise relative error against
    onnxruntime, None where it is not known or not finite, and `tolerance` the largest that passes.
    The times are of one run of the module and of onnxruntime, in seconds; the latter's is None
    where the module ran on another device than it. `baseline_seconds` is the time in mcfuser.lock
    that the module's was compared with, if it was. `chains` counts the
    chains found, `fused` those that became one kernel. `module` is the hash of module.so, and
    `external` has those of the files that the weights were read from, by their paths in the model's
    folder.
    """

    state: EntryState
    reason: str | None = None
    seconds: float = 0.0
    error: float | None = None
    tolerance: float | None = None
    mcfuser_seconds: float | None = None
    onnxruntime_seconds: float | None = None
    baseline_seconds: float | None = None
    chains: int = 0
    fused: int = 0
    module: str | None = None
    external: Mapping[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether the model compiled, and no check failed."""
        return self.state in ("passed", "unchecked")

    @property
    def compiled(self) -> bool:
        """Whether there is a module, whatever was found of it."""
        return self.state in ("passed", "unchecked", "disagreed", "slower")

    @property
    def bad(self) -> bool:
        return self.state in ("failed", "disagreed", "slower")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Outcome:
        """Raises TypeError or ValueError where the document has another form."""
        outcome = Outcome(**document)
        numbers = (
            outcome.seconds,
            outcome.error,
            outcome.tolerance,
            outcome.mcfuser_seconds,
            outcome.onnxruntime_seconds,
            outcome.baseline_seconds,
            outcome.chains,
            outcome.fused,
        )
        if outcome.state not in get_args(EntryState) or not all(_number(n) for n in numbers):
            raise ValueError("no outcome of this version's")
        if not all(w is None or isinstance(w, str) for w in (outcome.reason, outcome.module)):
            raise ValueError("no outcome of this version's")
        if not all(isinstance(w, str) for pair in outcome.external.items() for w in pair):
            raise TypeError("no outcome of this version's")
        return outcome


def _number(value: object) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (real and math.isfinite(value))  # type: ignore[arg-type]
