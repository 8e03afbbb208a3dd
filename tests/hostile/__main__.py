"""A longer run: `python -m tests.hostile --cases 100000`.

Loops are written out as far as a model may go. Every mutant is looked at, and those that pass are
imported; one in a hundred is posted to a real server, one in a thousand is compiled by its worker,
one in ten thousand goes through the command.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .kinds import KINDS, UNROLLED, hidden
from .live import command, complaints, serving
from .mutate import mutant
from .trial import What, tried

_LATE = 15.0  # s for an answer


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.hostile")
    options.add_argument("--cases", type=int, default=5000)
    options.add_argument("--processes", type=int, default=2)
    given = options.parse_args()
    found = [*_tried("kinds", range(len(KINDS)), 1)[1]]
    found += _tried("unrolled far", range(len(UNROLLED)), 1)[1]
    good, wrong = _tried("inspect", range(given.cases), given.processes)
    found += wrong + _tried("load", good, given.processes)[1]
    found += _posted(given.cases) + _commanded(given.cases)
    for complaint in found:
        print(complaint)
    print(f"{len(found)} complaints")
    return 1 if found else 0


def _tried(what: What, numbers: range | list[int], processes: int) -> tuple[list[int], list[str]]:
    """Those that passed, and what is wrong with others."""
    trials = tried(what, numbers, processes)
    print(f"{what}: {dict(Counter(t.how for t in trials))}", flush=True)
    wrong = [t for t in trials if t.how not in ("good", "refused")]
    return [t.number for t in trials if t.how == "good"], [f"{what} {t}" for t in wrong]


def _posted(cases: int) -> list[str]:
    found = []
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        answers = server.posted([(name, build()) for name, (build, _) in KINDS.items()])
        answers += server.posted(list(hidden().items()), "x=2x4")
        answers += server.posted([(str(i), mutant(i)) for i in range(0, cases, 100)])
        found += complaints(server, answers)
        found += [f"late: {a}" for a in answers if a.seconds > _LATE]
        print(f"posted: {dict(Counter(a.status for a in answers))}, the slowest took "
              f"{max(a.seconds for a in answers):.1f} s, the web process grew by "
              f"{server.growth() >> 20} MB", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), workers=1) as server:
        answers = server.posted([(str(i), mutant(i)) for i in range(0, cases, 1000)])
        found += server.failed() + complaints(server, answers)
    return found


def _commanded(cases: int) -> list[str]:
    found = []
    for i in range(0, cases, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            ended = command(Path(folder), mutant(i))
        if ended.status not in (0, 2) or "Traceback" in ended.errors:
            found.append(f"command {i}: {ended}")
    return found


if __name__ == "__main__":
    sys.exit(main())
