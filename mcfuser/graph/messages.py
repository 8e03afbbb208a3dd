"""Finds all parts of one type in an ONNX model, wherever the format allows them.

The places are derived from the format's own description (protobuf's descriptors), so that none is
forgotten: tensors, for example, are in initializers, attributes, sparse tensors, function bodies,
training graphs and nested graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any


def inside(message: Any, kind: Any) -> Iterator[Any]:
    """All messages of type `kind` in `message`, itself included, in the order of the file."""
    left: list[Any] = [message]
    while left:
        at = left.pop()
        if isinstance(at, kind):
            yield at
        below: list[Any] = []
        for name, repeated in _leading_fields(at.DESCRIPTOR, kind.DESCRIPTOR):
            if repeated:
                below.extend(getattr(at, name))
            elif at.HasField(name):
                below.append(getattr(at, name))
        left.extend(reversed(below))


@cache
def _leading_fields(start: Any, kind: Any) -> tuple[tuple[str, bool], ...]:
    """The fields of a message type that may hold a message of type `kind`, and whether each is
    repeated."""
    return tuple(
        (f.name, bool(f.is_repeated))
        for f in start.fields
        if f.message_type is not None and kind.full_name in _reached(f.message_type)
    )


def _reached(descriptor: Any) -> frozenset[str]:
    """The names of all message types that a type may hold at any depth, its own included."""
    reached: set[str] = set()
    left = [descriptor]
    while left:
        at = left.pop()
        if at.full_name not in reached:
            reached.add(at.full_name)
            left += [f.message_type for f in at.fields if f.message_type is not None]
    return frozenset(reached)
