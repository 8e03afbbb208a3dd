"""What libraries raise over a model becomes the one error that its user is shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mcfuser.errors import InputError, ModelError

log = logging.getLogger(__name__)


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turns whatever is raised inside into a ModelError that begins with `what`.

    For calls of onnx, TVM and their like alone: what they raise over a wrong model differs with
    their version, and is seldom one of the types that they document. A lack of memory or of space
    on a disk is left as it is.
    """
    try:
        yield
    except (InputError, MemoryError, OSError):
        raise
    except Exception as error:
        log.debug("a library raised", exc_info=True)
        raise ModelError(f"{what}: {sentence(error)}") from error


def sentence(error: BaseException) -> str:
    """The first line of an error's text, and the next where that ends in a colon, without the
    full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if isinstance(error, LookupError):  # of its own it says no more than what was looked up
        return f"{lines[0]} is missing"
    more = lines[1:2] if lines[0].endswith(":") else []
    return " ".join([lines[0], *more]).rstrip(".:")
