"""Mutants of the small models: of their bytes, and of the fields of their messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import onnx

from .seeds import seeds

SEED = 13
_INTEGERS = (0, 1, -1, 2, 3, 7, 16, 127, 255, 1000, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32,
             999_999_999, (1 << 63) - 1, -(1 << 31), -(1 << 63), -2)  # fmt: skip
_FLOATS = (0.0, -1.0, math.inf, -math.inf, math.nan, 1e38, 1e-45)
_TEXTS = ("", "x", "y", "w", "ai.onnx", "com.microsoft", "Loop", "If", "Scan", "MatMul", "Relu",
          "Shape", "Attention", "Einsum", "line\nbreak", "\x1b[31m", "'", "../../etc/passwd",
          "é" * 9, "long" * 3000)  # fmt: skip


def mutant(number: int) -> bytes:
    """The mutant of that number; the same each time."""
    random = Random(f"{SEED}:{number}")
    model = random.choice(seeds())
    kind = random.choices((_bits, _chunk, _fields, _texts), (3, 1, 6, 1))[0]
    return kind(model, random)


def _bits(model: bytes, random: Random) -> bytes:
    """Some bits are flipped, mostly where the structure is, which is at the start."""
    data = bytearray(model)
    for _ in range(random.choice((1, 1, 2, 8))):
        end = len(data) if random.random() < 0.3 else min(len(data), 1500)
        data[random.randrange(end)] ^= 1 << random.randrange(8)
    return bytes(data)


def _chunk(model: bytes, random: Random) -> bytes:
    """Some bytes are left out, written twice, or replaced by others of the same model."""
    start = random.randrange(len(model))
    size = min(random.choice((1, 2, 8, 100, 10_000)), len(model) - start)
    other = random.randrange(len(model))
    chunk = random.choice((b"", model[start : start + size] * 2, model[other : other + size]))
    return model[:start] + chunk + model[start + size :]


def _texts(model: bytes, random: Random) -> bytes:
    """A name loses its encoding."""
    proto = onnx.ModelProto.FromString(model)
    names = [t.encode() for m in _messages(proto) for t in _strings(m) if 2 < len(t) < 40]
    name = random.choice(names or [b"x"])
    bad = bytearray(name)
    bad[random.randrange(len(bad))] = random.choice((0x80, 0xFF, 0xC0, 0xED))
    return model.replace(name, bytes(bad), random.choice((1, -1)))


def _fields(model: bytes, random: Random) -> bytes:
    """One to three fields of messages get other values."""
    proto = onnx.ModelProto.FromString(model)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        messages = _messages(proto)
        message = random.choice(messages)
        field = random.choice(list(message.DESCRIPTOR.fields))
        if random.random() < 0.8 and (present := message.ListFields()):
            field = random.choice(present)[0]
        try:
            _mutate(message, field, messages, random)
        except (ValueError, TypeError):
            continue  # the library itself does not write such a value
    return bytes(proto.SerializePartialToString())


def _mutate(message: Any, field: Any, messages: list[Any], random: Random) -> None:
    if random.random() < 0.15:
        message.ClearField(field.name)
    elif field.is_repeated:
        _mutate_repeated(getattr(message, field.name), field, messages, random)
    elif field.message_type is not None:
        other = _like(field, messages, random)
        if other is not None:
            getattr(message, field.name).CopyFrom(other)
        else:
            getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _value(field, random))


def _mutate_repeated(values: Any, field: Any, messages: list[Any], random: Random) -> None:
    choice = random.randrange(4)
    at = random.randrange(len(values)) if values else None
    if choice == 0 and at is not None:
        del values[at]
    elif field.message_type is not None:
        other = _like(field, messages, random)
        if other is None:
            values.add()
        elif choice == 1 and at is not None:
            values[at].CopyFrom(other)
        else:
            values.add().CopyFrom(other)
    elif choice == 1 and at is not None:
        values[at] = _value(field, random)
    elif choice == 2 and at is not None:
        values.extend([values[at]] * random.choice((1, 1, 100)))
    else:
        values.append(_value(field, random))


def _like(field: Any, messages: list[Any], random: Random) -> Any:
    """A copy of a message of the field's type from elsewhere in the model."""
    like = [m for m in messages if m.DESCRIPTOR is field.message_type]
    if not like:
        return None
    chosen = random.choice(like)
    copy = type(chosen)()
    copy.CopyFrom(chosen)  # on its own, for protobuf crashes where a message goes into itself
    return copy


def _value(field: Any, random: Random) -> Any:
    makers: dict[int, Callable[[], Any]] = {
        field.CPPTYPE_STRING: lambda: random.choice(_TEXTS),
        field.CPPTYPE_FLOAT: lambda: random.choice(_FLOATS),
        field.CPPTYPE_DOUBLE: lambda: random.choice(_FLOATS),
        field.CPPTYPE_ENUM: lambda: random.choice(list(field.enum_type.values)).number,
    }
    if field.type == field.TYPE_BYTES:
        return random.randbytes(random.choice((0, 1, 4, 64)))
    return makers.get(field.cpp_type, lambda: random.choice(_INTEGERS))()


def _messages(root: Any) -> list[Any]:
    """Every message in it, itself included."""
    found, left = [], [root]
    while left:
        at = left.pop()
        found.append(at)
        for field, value in at.ListFields():
            if field.message_type is not None:
                left.extend(value if field.is_repeated else [value])
    return found


def _strings(message: Any) -> list[str]:
    found: list[str] = []
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            found.extend(value if field.is_repeated else [value])
    return found
