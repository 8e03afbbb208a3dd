"""Counts the parts of an ONNX file before protobuf reads it.

An empty node takes two bytes in the file and some hundred in memory. So messages, names, nodes and
their nesting are counted in the file's bytes. Names are checked to be UTF-8 here as well, because
protobuf accepts any bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from mmap import mmap
from typing import Any

import onnx

from mcfuser.errors import ModelError
from mcfuser.graph.limits import ModelLimits

ModelBytes = bytes | mmap
"""The bytes of a model, which may be those of a mapped file."""
LENGTH = 2
"""The kind of a field that says how many bytes it has."""
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_DEEPEST = 96  # messages inside messages; protobuf itself refuses more than 100
_PATIENCE = 20  # counting stops at this multiple of the nodes' limit; the message has the count


@dataclass(frozen=True, slots=True)
class _Table:
    """A message type, and those of its fields that are counted, by number.

    A field is a message (its table), text (the field's name), or repeated bytes (None).
    """

    name: str
    fields: dict[int, _Table | str | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Count:
    limits: ModelLimits
    fields: int = 0
    nodes: int = 0

    def check(self) -> None:
        """Raises ModelError where the counts exceed the limits already."""
        most, patient = self.limits.fields, self.limits.nodes * _PATIENCE
        if self.fields > most or self.nodes > patient:
            self.limits.check("nodes", self.nodes, "the model has {} nodes", more=True)
            self.limits.check("fields", self.fields, "the model has {} parts and names", more=True)


class DamagedError(Exception):
    """The bytes are no protobuf message."""


def scan(model: ModelBytes, limits: ModelLimits) -> bool:
    """Counts the parts of a model; tells whether its bytes are a protobuf message to their end.

    Raises ModelError where the model exceeds the limits, or a name is not UTF-8.
    """
    count = _Count(limits)
    try:
        _message(model, 0, len(model), _model(), count, 0, 0)
    except (DamagedError, IndexError):
        return False
    count.check()
    limits.check("nodes", count.nodes, "the model has {} nodes", more=True)
    return True


def _message(
    data: ModelBytes, at: int, end: int, table: _Table, count: _Count, depth: int, graphs: int
) -> None:
    """Counts the fields of the message in data[at:end]."""
    if table.name == "NodeProto":
        count.nodes += 1
        if count.nodes > count.limits.nodes:
            return  # there are too many already
    elif table.name == "GraphProto":
        count.limits.check("nesting", graphs, "the model has graphs nested {} deep")
        graphs += 1
    if depth > _DEEPEST:
        raise ModelError(f"the model's parts are nested more than {_DEEPEST} deep; flatten it")
    known = table.fields
    for _, tag, start, stop in fields(data, at, end):
        if tag & 7 == LENGTH and stop <= end and tag >> 3 in known:
            count.fields += 1
            if not count.fields & 0xFFFF:
                count.check()
            inner = known[tag >> 3]
            if isinstance(inner, _Table):
                _message(data, start, stop, inner, count, depth + 1, graphs)
            elif inner is not None:
                _check_text(data[start:stop], table.name, inner)


def fields(data: ModelBytes | memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of the message in data[at:end]: where each begins, its tag (its number and its
    kind), and where its bytes begin and end.

    Raises DamagedError or IndexError where the message does not end there.
    """
    while at < end:
        begin = at
        tag, start = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, start)
        elif kind == LENGTH:
            size, start = _varint(data, start)
            at = start + size
        elif kind in (_FIXED32, _FIXED64):
            at = start + (4 if kind == _FIXED32 else 8)
        else:
            raise DamagedError
        yield begin, tag, start, at
    if at > end:
        raise DamagedError


def _varint(data: ModelBytes | memoryview, at: int) -> tuple[int, int]:
    """The number of variable length at a position, and the position of its end."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise DamagedError


def _check_text(text: bytes, message: str, name: str) -> None:
    if text.isascii():
        return
    try:
        text.decode()
    except UnicodeDecodeError:
        what = message.removesuffix("Proto")
        raise ModelError(
            f"the field {name} of a {what} in the model is no UTF-8 text: {text[:24]!r}; "
            "export or download the model again"
        ) from None


@cache
def _model() -> _Table:
    """The table of ModelProto, with those of all messages that a model may hold."""
    tables: dict[str, _Table] = {}

    def made(descriptor: Any) -> _Table:
        if descriptor.full_name in tables:
            return tables[descriptor.full_name]
        table = tables[descriptor.full_name] = _Table(descriptor.name)
        for f in descriptor.fields:
            if f.message_type is not None:
                table.fields[f.number] = made(f.message_type)
            elif f.type == f.TYPE_STRING:
                table.fields[f.number] = f.name
            elif f.type == f.TYPE_BYTES and f.is_repeated:
                table.fields[f.number] = None
        return table

    return made(onnx.ModelProto.DESCRIPTOR)
