"""The child's side of `mcfuser.process.confined`: it does one piece of work.

The request is a JSON line on standard input, the answers are JSON lines on standard output
(`mcfuser.process.messages`). What the work prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

from mcfuser.errors import InputError
from mcfuser.process.messages import Answered, Exhausted, Message, Refused, Told, to_json


def main() -> None:
    """Does the work of the module that the first argument names."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(message: Message) -> None:
        answers.write(to_json(message))
        answers.flush()

    def tell(message: Mapping[str, Any]) -> None:
        say(Told(message))

    try:
        work = import_module(sys.argv[1])
    except MemoryError:
        say(Exhausted())
        _leave(0)
    request = json.loads(sys.stdin.buffer.readline() or "null")
    if request is None:
        return  # the parent had nothing to ask
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
    """Libraries' threads and destructors have nothing to say any more."""
    sys.stderr.flush()
    os._exit(status)
