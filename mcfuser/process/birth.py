"""The start of every supervised child: `python -m mcfuser.process.birth BIRTH MODULE ARGUMENTS`.

The child ties its life to its parent's, sets its limits and its niceness, and leaves out torch.
Then it imports the module and calls its function `main`, which reads `sys.argv[1:]` and returns the
exit status, or None for success.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from mcfuser.process.lifeline import end_group_with
from mcfuser.process.limits import Limits, limit_this_process
from mcfuser.process.load import leave_out_torch, load

_AUTOGROUP = Path("/proc/self/autogroup")
_TRIES, _BETWEEN = 10, 0.1
"""Of a user who is not root, Linux lets one process in a tenth of a second write there, and refuses
others: as often, and with so many seconds in between, it is tried."""


@dataclass(frozen=True, slots=True)
class Birth:
    """The first argument of a child: the file descriptor of its lifeline
    (mcfuser.process.lifeline), its limits, and by how much it is nicer than its parent."""

    lifeline: int
    limits: Limits
    niceness: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        read = json.loads(text)
        return cls(read["lifeline"], Limits(**read["limits"]), read["niceness"])


def be_nice(more: int) -> None:
    """Makes this process nicer by `more`, and the session that it leads, if it leads one, as nice
    as that: where Linux shares the processor between sessions first (sched(7), autogroups), the
    niceness of a process counts only within its own."""
    niceness = os.nice(more)
    if niceness == 0 or os.getsid(0) != os.getpid():
        return  # a new session is as nice as that
    with suppress(OSError):  # no Linux, or one without autogroups
        for _ in range(_TRIES):
            try:
                _AUTOGROUP.write_text(str(niceness))
                return
            except BlockingIOError:
                time.sleep(_BETWEEN)


def main() -> None:
    birth, module = Birth.from_json(sys.argv[1]), sys.argv[2]
    end_group_with(birth.lifeline)
    be_nice(birth.niceness)
    limit_this_process(birth.limits)
    leave_out_torch()
    sys.argv[:3] = [module]
    sys.exit(load(module).main())


if __name__ == "__main__":
    main()
