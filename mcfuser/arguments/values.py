"""Parses the values that inputs are given."""

from __future__ import annotations

from collections.abc import Sequence

from mcfuser.arguments.words import shortened
from mcfuser.errors import InputError


def input_values(words: Sequence[str]) -> dict[str, str]:
    """The values by inputs, from words such as `use_cache=true`.

    Raises InputError where a word is of another form, or an input is named twice.
    """
    values: dict[str, str] = {}
    for word in words:
        name, _, value = word.rpartition("=")
        if not name or not value:
            raise InputError(
                f"'{shortened(word)}' does not give an input a value; write input=value, "
                "use_cache=true or scale=0.5,2.0 for example"
            )
        if name in values:
            raise InputError(f"input '{shortened(name)}' is given a value twice")
        values[name] = value
    return values
