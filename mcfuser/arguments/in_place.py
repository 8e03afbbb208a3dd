"""Parses which outputs are written into the memory of inputs, for the command, zoos and HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from mcfuser.arguments.words import shortened
from mcfuser.errors import InputError


def in_place_pairs(words: Sequence[str]) -> dict[str, str]:
    """The outputs by inputs, from words such as `past_key=present_key`.

    Raises InputError where a word is of another form, or an input or output is named twice.
    """
    pairs: dict[str, str] = {}
    for word in words:
        name, _, output = word.partition("=")
        if not name or not output:
            raise InputError(
                f"'{shortened(word)}' does not say what is updated in place; write "
                "input=output, past_key=present_key for example"
            )
        if name in pairs or output in pairs.values():
            what, one = ("input", name) if name in pairs else ("output", output)
            raise InputError(f"{what} '{shortened(one)}' is updated in place twice")
        pairs[name] = output
    return pairs


def check_in_place(words: Sequence[str]) -> list[str]:
    """The words themselves, sorted. Raises InputError as `in_place_pairs` does."""
    in_place_pairs(words)
    return sorted(words)
