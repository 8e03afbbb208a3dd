"""What commands print with --json: one JSON document on standard output.

A command that fails prints the document {"problem": {"kind", "detail", "status"}} instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mcfuser.errors import InputError
from mcfuser.finite import finite


def print_document(document: Mapping[str, Any]) -> None:
    """Prints a document. Infinite numbers and NaN, which JSON has not, become null."""
    sys.stdout.write(json.dumps(finite(document), allow_nan=False) + "\n")


def problem_document(error: Exception, detail: str, status: int) -> dict[str, Any]:
    """The document of a failure: its kind in a word, its sentence, and the command's status.

    The kind is "usage" where typer could not parse the command line, else that of the error's
    class: "input", "model", "device", "chain", "limit", "disagreement", ...; "system" for what the
    operating system refused.
    """
    kind = "system" if isinstance(error, OSError) else "usage"
    if isinstance(error, InputError):
        kind = type(error).__name__.removesuffix("Error").lower()
    return {"problem": {"kind": kind, "detail": detail, "status": status}}


def asked_for_json(words: Sequence[str]) -> bool:
    """Whether a command line has the option --json."""
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options
