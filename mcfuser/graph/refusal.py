"""Turns the errors that libraries raise for a model into ModelError, which its user sees."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mcfuser.errors import InputError, ModelError

log = logging.getLogger(__name__)


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turns every error that the block raises into a ModelError whose message begins with `what`.

    It is for calls of onnx, TVM and similar libraries: the errors that they raise for a wrong model
    change with their versions and are seldom documented. A lack of memory or disk space passes
    unchanged.
    """
    try:
        yield
    except (InputError, MemoryError, OSError):
        raise
    except Exception as error:
        log.debug("a library raised", exc_info=True)
        raise ModelError(f"{what}: {sentence(error)}") from error


def ort_reason(error: BaseException) -> str:
    """The reason in the message of one of onnxruntime's errors, without the codes before it."""
    return sentence(error).rpartition(" : ")[2]


def sentence(error: BaseException) -> str:
    """The first line of an error's message without its full stop, and the second one if the first
    ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if isinstance(error, KeyError):  # its message is only the key
        return f"{lines[0]} is missing"
    more = lines[1:2] if lines[0].endswith(":") else []
    return " ".join([lines[0], *more]).rstrip(".:")
