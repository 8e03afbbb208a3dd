"""Parses the precision of a float32 model's products, for the command, zoos and HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from mcfuser.arguments.words import shortened
from mcfuser.errors import InputError

PRECISIONS: Mapping[str, str] = {"fp16": "float16", "bf16": "bfloat16", "tf32": "tf32"}
"""The types of narrow operands, by the names that users write; TF32's are stored in float32."""


def narrow_type(name: str | None) -> str | None:
    """The type of a name; None for None, which leaves a model's types as they are. Raises
    InputError for any other name."""
    if name is None:
        return None
    if name not in PRECISIONS:
        *others, last = PRECISIONS
        known = f"{', '.join(others)} or {last}"
        raise InputError(f"precision '{shortened(name)}' is not known; use {known}")
    return PRECISIONS[name]


def check_precision(name: str | None) -> str | None:
    """The name itself. Raises InputError where it is not known."""
    narrow_type(name)
    return name
