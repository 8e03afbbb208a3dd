"""Runs a command and turns its errors into one sentence and an exit status."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence

from typer import Abort, Typer, TyperException

from mcfuser.cli.documents import asked_for_json, print_document, problem_document
from mcfuser.cli.mistakes import NAME, is_help, usage_sentence
from mcfuser.errors import (
    DisagreementError,
    InputError,
    LimitError,
    RegistryError,
    SignatureError,
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
MISTAKE, FAILURE = 2, 1


def ended(app: Typer, words: Sequence[str] | None = None) -> int:
    """Runs the command of a command line (`words`, those of this process if None); gives its exit
    status.

    The status is 2 for a user's mistake (InputError, and words that typer cannot parse); 1 where a
    limit was reached (LimitError), a module disagrees with onnxruntime (DisagreementError), files
    are not those that were signed (SignatureError), a registry fails (RegistryError), a question
    was not answered, a disk is full or a file cannot be opened. Each gives one sentence on standard
    error, and with --json also a problem on standard output. Where the reader of standard output
    has gone, the status is 1 without a sentence.
    """
    words = sys.argv[1:] if words is None else words
    for stream in filter(None, (sys.stdout, sys.stderr)):
        if isinstance(stream, io.TextIOWrapper):  # escapes characters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _status(app, words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except TyperException as error:
        if is_help(error):
            _show(error.message)
            return MISTAKE
        return _failed(error, str(InputError(usage_sentence(error, app, words))), MISTAKE, words)
    except Abort as error:
        return _failed(error, "nothing was done: the question was not answered", FAILURE, words)
    except (LimitError, DisagreementError, RegistryError, SignatureError) as error:
        return _failed(error, str(error), FAILURE, words)
    except InputError as error:
        return _failed(error, str(error), MISTAKE, words)
    except BrokenPipeError:
        return FAILURE
    except OSError as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        return _failed(error, sentence, FAILURE, words)
    finally:
        _discard()


def _failed(error: Exception, sentence: str, status: int, words: Sequence[str]) -> int:
    """Tells why a command failed; gives its status."""
    tell(sentence)
    if asked_for_json(words):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print_document(problem_document(error, sentence, status))
    return status


def _sentence(error: OSError) -> str | None:
    """What the operating system has refused; None where it names no file."""
    if error.errno in _FULL:
        where = f"'{error.filename}'" if error.filename else "the output"
        return f"{where} cannot be written: {error.strerror}; free some space and try again"
    if error.filename is not None:
        return f"'{error.filename}' cannot be used: {error.strerror}"
    return None


def tell(sentence: str) -> None:
    """Writes a sentence to standard error, if that is still possible."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"mcfuser: {' '.join(sentence.splitlines())}\n")
        sys.stderr.flush()


def _show(words: str) -> None:
    """Writes a help to standard error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{words.rstrip()}\n" if words.strip() else "")


def _status(app: Typer, words: Sequence[str]) -> int:
    try:
        result = app(list(words), prog_name=NAME, standalone_mode=False)
    except SystemExit as ends:
        return ends.code if isinstance(ends.code, int) else int(ends.code is not None)
    return result if isinstance(result, int) else 0  # typer.Exit gives its status so


def _discard() -> None:
    """Flushes the standard streams; where that fails, drops their contents, so that Python prints
    no error at its end."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
