"""Changes of meaning that no test notices: `python -m tests.mutation --seed 0 --count 40`.

A sample of the mutants of Cosmic Ray (a comparison turned, a number off by one, an `and` for an
`or`), each in a copy of the checkout, judged by the tests of its room alone. Prints those that
survive, and the share that was killed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.mutation.mutants import Mutant, sampled
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


def main(words: list[str] | None = None) -> int:
    known = [r for r in ROOMS if (ROOT / "mcfuser" / r).is_dir()]
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40, help="mutants, over all rooms")
    parser.add_argument("--room", choices=known, action="append", help="this one alone; repeatable")
    asked = parser.parse_args(words)
    rooms = asked.room or known
    mutants = sampled([ROOT / "mcfuser" / r for r in rooms], asked.seed, asked.count)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        copied(folder)
        try:
            survivors = judged(mutants, folder)
        except Unready as error:
            print(error, file=sys.stderr)
            return 2
    share = 1 - len(survivors) / len(mutants) if mutants else 1.0
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} killed: {share:.0%}")
    return 1 if survivors else 0


def copied(folder: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        elif source.exists():
            shutil.copy(source, folder / name)


def judged(mutants: list[Mutant], folder: Path) -> list[Mutant]:
    """Those that survive, each printed as soon as it is known."""
    survivors, patience = [], dict[str, float]()
    for mutant in mutants:
        path, room = mutant.path.relative_to(ROOT), mutant.path.relative_to(ROOT).parts[1]
        if room not in patience:
            patience[room] = unchanged(room, folder)
        (folder / path).write_text(mutant.text)
        passed = all(passes(some, folder, patience[room]) for some in tests_of(path, folder))
        (folder / path).write_text(mutant.path.read_text())
        if passed:
            survivors.append(mutant)
        fate = "survived" if passed else "killed"
        print(f"{fate:8} {path}:{mutant.line}: {mutant.before}  =>  {mutant.after}", flush=True)
    return survivors


def unchanged(room: str, folder: Path) -> float:
    """Seconds after which a mutant's tests have hung, from what the room's take as they are."""
    begun = time.monotonic()
    if not passes([f"tests/{room}"], folder, None):
        raise Unready(f"the tests of tests/{room} fail without any mutant")
    return max(LEAST, PATIENCE * (time.monotonic() - begun))


def tests_of(path: Path, folder: Path) -> list[list[str]]:
    """The arguments of two runs of pytest: the module's own tests, then the others of its room.

    One run does not do: pytest 9 drops a file whose folder it is given as well, and with it the
    order.
    """
    _, *inner, name = path.parts
    own, room = f"tests/{'/'.join(inner)}/test_{name}", f"tests/{inner[0]}"
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
