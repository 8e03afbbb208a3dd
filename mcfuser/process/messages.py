"""What a confined process and its parent say to each other, a JSON line each.

The parent sends one object, the request, which the work's own module reads. The process answers
with any number of `Told` and then with one of the others, unless it dies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never


@dataclass(frozen=True, slots=True)
class Told:
    """What the work says on the way."""

    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """What the work came to."""

    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The work raised an InputError: its class in `mcfuser.errors`, and its sentence."""

    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The work was given no more memory, and says so itself."""


Message = Told | Answered | Refused | Exhausted


def to_json(message: Message) -> bytes:
    """One line, its end included."""
    match message:
        case Told():
            said: dict[str, Any] = {"tell": message.message}
        case Answered():
            said = {"answer": message.answer}
        case Refused():
            said = {"kind": message.kind, "error": message.sentence}
        case Exhausted():
            said = {"stopped": "memory"}
        case _:
            assert_never(message)
    return json.dumps(said).encode() + b"\n"


def from_json(line: bytes) -> Message:
    """Raises ValueError where the line is none of the messages."""
    match json.loads(line):
        case {"tell": message}:
            return Told(message)
        case {"answer": answer}:
            return Answered(answer)
        case {"kind": kind, "error": sentence}:
            return Refused(kind, sentence)
        case {"stopped": "memory"}:
            return Exhausted()
    raise ValueError(f"a confined process said what is no message: {line[:200]!r}")
