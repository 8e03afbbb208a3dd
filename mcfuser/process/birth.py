"""The start of every supervised child: `python -m mcfuser.process.birth BIRTH MODULE ARGUMENTS`.

The child ties its life to its parent's and sets its limits. Then it imports the module and calls
its function `main`, which reads `sys.argv[1:]` and returns the exit status, or None for success.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Self

from mcfuser.process.lifeline import end_group_with
from mcfuser.process.limits import Limits, limit_this_process
from mcfuser.process.load import load


@dataclass(frozen=True, slots=True)
class Birth:
    """The first argument of a child: the file descriptor of its lifeline
    (mcfuser.process.lifeline), and its limits."""

    lifeline: int
    limits: Limits

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        read = json.loads(text)
        return cls(read["lifeline"], Limits(**read["limits"]))


def main() -> None:
    birth, module = Birth.from_json(sys.argv[1]), sys.argv[2]
    end_group_with(birth.lifeline)
    limit_this_process(birth.limits)
    sys.argv[:3] = [module]
    sys.exit(load(module).main())


if __name__ == "__main__":
    main()
