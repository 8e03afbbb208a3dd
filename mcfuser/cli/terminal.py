"""Runs a command and turns its errors into one sentence and an exit status."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable

from mcfuser.errors import DisagreementError, InputError, LimitError, SignatureError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
MISTAKE, FAILURE = 2, 1


def ended(command: Callable[[], object]) -> int:
    """Runs a command; gives its exit status.

    The status is 2 for a user's mistake (InputError); 1 where a limit was reached (LimitError), a
    module disagrees with onnxruntime (DisagreementError), files are not those that were signed
    (SignatureError), a disk is full or a file cannot be opened. Each gives one sentence on standard
    error. Where the reader of standard output has gone, the status is 1 without a sentence.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        if isinstance(stream, io.TextIOWrapper):  # escapes characters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _status(command)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except (LimitError, DisagreementError, SignatureError) as error:
        tell(str(error))
        return FAILURE
    except InputError as error:
        tell(str(error))
        return MISTAKE
    except BrokenPipeError:
        return FAILURE
    except OSError as error:
        if error.errno in _FULL:
            where = f"'{error.filename}'" if error.filename else "the output"
            tell(f"{where} cannot be written: {error.strerror}; free some space and try again")
        elif error.filename is not None:
            tell(f"'{error.filename}' cannot be used: {error.strerror}")
        else:
            raise
        return FAILURE
    finally:
        _discard()


def tell(sentence: str) -> None:
    """Writes a sentence to standard error, if that is still possible."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"mcfuser: {' '.join(sentence.splitlines())}\n")
        sys.stderr.flush()


def _status(command: Callable[[], object]) -> int:
    try:
        command()
    except SystemExit as ends:
        return ends.code if isinstance(ends.code, int) else int(ends.code is not None)
    return 0


def _discard() -> None:
    """Flushes the standard streams; where that fails, drops their contents, so that Python prints
    no error at its end."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
