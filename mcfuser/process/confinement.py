"""The child's side of mcfuser.process.confined, which does one piece of work.

The request is a line of JSON on standard input; the messages (mcfuser.process.messages) are lines
of JSON on standard output. Whatever the work prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

from mcfuser.errors import InputError
from mcfuser.process.load import load
from mcfuser.process.messages import Answered, Exhausted, Message, Refused, Told, to_json


def main() -> None:
    """Does the work of the module named by the first argument."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(message: Message) -> None:
        answers.write(to_json(message))
        answers.flush()

    def tell(message: Mapping[str, Any]) -> None:
        say(Told(message))

    try:
        work = load(sys.argv[1])
    except MemoryError:
        say(Exhausted())
        _leave(0)
    request = json.loads(sys.stdin.buffer.readline() or "null")
    if request is None:
        return  # the parent has closed the pipe without a request
    try:
        last: Message = Answered(work.answer(request, tell))
    except InputError as error:
        last = Refused(type(error).__name__, str(error))
    except MemoryError:
        last = Exhausted()
    except Exception:
        traceback.print_exc()
        _leave(1)
    say(last)
    _leave(0)


def _leave(status: int) -> NoReturn:
    """Ends the process at once, without running destructors or waiting for threads of libraries."""
    sys.stderr.flush()
    os._exit(status)
