"""What an examination of this installation finds: values, and checks that cannot fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["ok", "warning", "problem"]
"""A problem keeps models from being compiled; a warning takes something less away."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found of a subject (in a word or two), in one sentence; `remedy` is what to do about
    it, and `facts` are the same for programs."""

    subject: str
    level: Severity
    sentence: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def guarded(subject: str, check: Callable[[], Iterable[Diagnosis]]) -> tuple[Diagnosis, ...]:
    """The findings of a check. Whatever it raises becomes a problem: an installation is examined
    because it may be broken, and then any import may raise anything."""
    found: list[Diagnosis] = []
    try:
        found += check()
    except Exception as error:
        found.append(broken(subject, error))
    return tuple(found)


def broken(subject: str, error: Exception) -> Diagnosis:
    """That a check could not be made."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    remedy = "install mcfuser anew, in an environment of its own"
    if missing is not None and not missing.startswith("mcfuser"):
        return Diagnosis(
            subject, "problem", f"it cannot be examined without the module {missing}", remedy
        )
    if isinstance(error, OSError) and error.filename is not None:
        told = f"'{error.filename}' cannot be used: {error.strerror}"
        return Diagnosis(subject, "problem", told, "let this user read and write it")
    words = one_line(str(error)) or "without a word"
    return Diagnosis(
        subject, "problem", f"it cannot be examined: {type(error).__name__}: {words}", remedy
    )


def one_line(words: str, most: int = 300) -> str:
    """The words in one line, cut where they are very long."""
    line = re.sub(r"\s+", " ", words).strip()
    return line if len(line) <= most else f"{line[: most - 2]} …"
