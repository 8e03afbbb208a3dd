"""The messages of a confined process to its parent, one line of JSON each.

The parent sends one object, the request, which the work's own module reads. The process answers
with any number of `Told` and then with one of the other messages, unless it dies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never


@dataclass(frozen=True, slots=True)
class Told:
    """A message of the work before its answer."""

    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of the work."""

    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The work raised an InputError: the name of its class in mcfuser.errors, and its message."""

    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The work ran out of memory, and could still say so."""


Message = Told | Answered | Refused | Exhausted


def to_json(message: Message) -> bytes:
    """A message as a line of JSON, with the line end."""
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
    """The message in a line of JSON; raises ValueError where it is none."""
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
