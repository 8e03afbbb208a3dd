"""Changes of meaning that no test notices: `python -m tests.mutation --seed 0 --count 40`.

A sample of the mutants of Cosmic Ray (a comparison turned, a number off by one, an `and` for an
`or`), each in a copy of the checkout, judged by the tests of its module and then by the others of
its room. Prints those that survive, and the share that was killed. Mutants that are known to mean
the same (equivalents.toml) are told apart and counted neither way.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.mutation.equivalents import Equivalent, means_the_same, table
from tests.mutation.mutants import Mutant, sampled
from tests.support.mirror import ELSEWHERE
from tests.support.paths import ROOT

ROOMS = ("algebra", "space", "lowering", "measure", "tune")
COPIED = ("mcfuser", "db", "service", "tests", "deploy", "examples", "benchmarks", "pyproject.toml")
CASES = 100
"""Random chains that an oracle looks at for each mutant."""
PATIENCE, LEAST = 5.0, 60.0
"""A mutant whose tests take this many times as long as without it is killed, but not before so
many seconds."""


class Unready(Exception):
    """The tests of a room do not pass as it is."""


@dataclass(frozen=True)
class Verdict:
    """A mutant, and what became of it: "killed", "survived" or "the same"."""

    mutant: Mutant
    fate: str

    def __str__(self) -> str:
        m = self.mutant
        return f"{self.fate:8} {m.path.relative_to(ROOT)}:{m.line}: {m.before}  =>  {m.after}"


def main(words: list[str] | None = None) -> int:
    known = [r for r in ROOMS if (ROOT / "mcfuser" / r).is_dir()]
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40, help="mutants, over all rooms")
    parser.add_argument("--room", choices=known, action="append", help="this one alone; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="mutants judged at a time")
    asked = parser.parse_args(words)
    rooms = asked.room or known
    mutants = sampled([ROOT / "mcfuser" / r for r in rooms], asked.seed, asked.count)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        copies = [Path(name) / str(n) for n in range(max(asked.jobs, 1))]
        for folder in copies:
            folder.mkdir()
            copied(folder)
        try:
            verdicts = judged(mutants, copies, table())
        except Unready as error:
            print(error, file=sys.stderr)
            return 2
    print(summary(verdicts))
    return 1 if any(v.fate == "survived" for v in verdicts) else 0


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many of those that change the meaning are killed, and how many do not change it."""
    killed = sum(v.fate == "killed" for v in verdicts)
    counted = sum(v.fate != "the same" for v in verdicts)
    share = killed / counted if counted else 1.0
    line = f"{killed} of {counted} killed: {share:.0%}"
    same = len(verdicts) - counted
    return f"{line}; {same} that mean the same are left out" if same else line


def copied(folder: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        elif source.exists():
            shutil.copy(source, folder / name)


def judged(
    mutants: Sequence[Mutant], copies: Sequence[Path], known: Sequence[Equivalent] = ()
) -> list[Verdict]:
    """What becomes of each mutant, printed as soon as it is known; one at a time in each copy of
    the checkout. Those that are known to mean the same are not tried."""
    free = SimpleQueue[Path]()
    for folder in copies:
        free.put(folder)
    same = [m for m in mutants if means_the_same(m, known)]
    tried = [m for m in mutants if m not in same]
    rooms = sorted({_room(m) for m in tried})

    def ready(room: str) -> float:
        with _lent(free) as folder:
            return unchanged(room, folder)

    def tell(mutant: Mutant) -> Verdict:
        with _lent(free) as folder:
            return _said(Verdict(mutant, _fate(mutant, folder, patience[_room(mutant)])))

    verdicts = [_said(Verdict(m, "the same")) for m in same]
    with ThreadPoolExecutor(len(copies)) as pool:
        patience = dict(zip(rooms, pool.map(ready, rooms), strict=True))
        return [*verdicts, *pool.map(tell, tried)]


@contextmanager
def _lent(free: SimpleQueue[Path]) -> Iterator[Path]:
    folder = free.get()
    try:
        yield folder
    finally:
        free.put(folder)


def _room(mutant: Mutant) -> str:
    return mutant.path.relative_to(ROOT).parts[1]


def _said(verdict: Verdict) -> Verdict:
    print(verdict, flush=True)
    return verdict


def _fate(mutant: Mutant, folder: Path, limit: float) -> str:
    path = mutant.path.relative_to(ROOT)
    unchanged_text = (folder / path).read_text()
    (folder / path).write_text(mutant.text)
    passed = all(passes(some, folder, limit) for some in tests_of(path, folder))
    (folder / path).write_text(unchanged_text)
    return "survived" if passed else "killed"


def unchanged(room: str, folder: Path) -> float:
    """Seconds after which a mutant's tests have hung, from what the room's take as they are."""
    begun = time.monotonic()
    if not passes([f"tests/{room}"], folder, None):
        raise Unready(f"the tests of tests/{room} fail without any mutant")
    return max(LEAST, PATIENCE * (time.monotonic() - begun))


def tests_of(path: Path, folder: Path) -> list[list[str]]:
    """The arguments of two runs of pytest: the module's own tests (or those that look at it, where
    it has none), then the others of its room.

    One run does not do: pytest 9 drops a file whose folder it is given as well, and with it the
    order.
    """
    _, *inner, name = path.parts
    module = "/".join([*inner, path.stem])
    looks = ELSEWHERE.get(module, "/".join([*inner, f"test_{name}"]))
    own, room = f"tests/{looks}", f"tests/{inner[0]}"
    return [[own], [room, f"--ignore={own}"]] if (folder / own).exists() else [[room]]


def passes(tests: list[str], folder: Path, limit: float | None) -> bool:
    """Whether no test fails within so many seconds; whatever they started is ended. There may be no
    test at all, where what they need is not installed: pytest gives that a code of its own."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no",
               "--cases", str(CASES), *tests]  # fmt: skip
    packages = os.pathsep.join(str(folder / top) for top in ("", "db", "service"))
    environment = {**os.environ, "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        try:
            return running.wait(limit) in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, 9)
            return False


if __name__ == "__main__":
    sys.exit(main())
