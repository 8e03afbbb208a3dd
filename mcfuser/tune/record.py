"""Checks the record of a stored kernel before code is generated from it.

Launch code is written from its words and numbers, so a record that holds anything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,499}")
_EXPRESSION = re.compile(r"[a-z0-9(),.]{1,10000}")
_KEY = re.compile(r"[0-9a-z]{1,64}")


def check(document: Mapping[str, Any]) -> None:
    """Raises ValueError naming the fields whose values are of the wrong kind; TypeError or KeyError
    where the document has another form."""
    wrong = [
        *(f"tiles[{a}]" for a, n in document["tiles"].items() if type(n) is not int or n < 1),
        *(f"resources[{a}]" for a, n in document.get("resources", {}).items() if not _number(n)),
        *(f"lowering[{a}]" for a, n in document["lowering"].items() if not _plain(n)),
    ]
    split, parts = document.get("split"), document.get("parts", 1)
    if split is not None and not _is(_IDENTIFIER, split):
        wrong.append("split")
    if type(parts) is not int or parts < 1:
        wrong.append("parts")
    if not _is(_EXPRESSION, document["expression"]):
        wrong.append("expression")
    if not _is(_KEY, document["key"]):
        wrong.append("key")
    if wrong:
        raise ValueError(f"its {', '.join(wrong)} is not what a kernel has there")


def _number(value: object) -> bool:
    return type(value) in (int, float)


def _plain(value: object) -> bool:
    """Whether a value is a number, a bool, an identifier, None, or a list of such."""
    if isinstance(value, list):
        return all(map(_plain, value))
    return value is None or isinstance(value, (bool, int, float)) or _is(_IDENTIFIER, value)


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
