"""Every part of one kind in an ONNX model, wherever the format allows one.

The format's own description says where that is, so that no place is forgotten: tensors are in
initializers, attributes, sparse tensors, function bodies, training graphs and nested graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any


def inside(message: Any, kind: Any) -> Iterator[Any]:
    """Each message of that kind in `message`, itself included, in the order of the file."""
    left: list[Any] = [message]
    while left:
        at = left.pop()
        if isinstance(at, kind):
            yield at
        below: list[Any] = []
        for name, repeated in _ways(at.DESCRIPTOR, kind.DESCRIPTOR):
            if repeated:
                below.extend(getattr(at, name))
            elif at.HasField(name):
                below.append(getattr(at, name))
        left.extend(reversed(below))


@cache
def _ways(start: Any, kind: Any) -> tuple[tuple[str, bool], ...]:
    """The fields of a message, and whether each is repeated, through which a kind is reached."""
    return tuple(
        (f.name, bool(f.is_repeated))
        for f in start.fields
        if f.message_type is not None and kind.full_name in _reached(f.message_type)
    )


def _reached(descriptor: Any) -> frozenset[str]:
    """The names of all types that a message of this type can hold, its own included."""
    found: set[str] = set()
    left = [descriptor]
    while left:
        at = left.pop()
        if at.full_name not in found:
            found.add(at.full_name)
            left += [f.message_type for f in at.fields if f.message_type is not None]
    return frozenset(found)
