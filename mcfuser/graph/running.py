"""Runs a compiled module in a fresh process (mcfuser.runtime.runner), and times its runs."""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mcfuser.devices.catalogue import HOST
from mcfuser.errors import InputError, KilledError, LimitError
from mcfuser.graph.npz import read_unnamed, write_arrays
from mcfuser.measure.lease import lease
from mcfuser.process.death import Death
from mcfuser.process.supervised import Supervised
from mcfuser.runtime import runner

_ROUNDS = 5
_REST = 0.3  # seconds after which another's spinning threads are asleep
_WARM = 0.05  # seconds of uncounted runs in each round: threads wake, clocks rise
_COUNTED = 0.1  # seconds of counted runs in each round, at least _FEW of them
_FEW = 3
_KILLED = "the process that ran the module was killed; try again"
_OUTPUTS = "outputs.npz"
_LIMIT = 300.0  # seconds that a process may take in all

RunMode = Literal["host", "kernels", "graph"]
"""How a module runs: on all cores; on the GPU, kernel by kernel; on the GPU, as a CUDA graph."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The outputs of a module by name, and its median time, in seconds a run."""

    outputs: Mapping[str, NDArray[np.generic]]
    seconds: float


@dataclass(frozen=True, slots=True)
class TimedFunction:
    """A function of a running module: its seconds in a run, in all calls together, one after
    another, and how often it is called. `tuned` ones are kernels of chains; others are TVM's, or
    the machine's own work."""

    name: str
    seconds: float
    calls: float

    @property
    def tuned(self) -> bool:
        return self.name.startswith("chain_")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tuned": self.tuned}


@dataclass(frozen=True, slots=True)
class RunningModule:
    """A process that has run a module once, and the outputs; it may take until `until`
    (time.monotonic), and works in `folder`."""

    process: Supervised
    until: float
    outputs: tuple[NDArray[np.generic], ...]
    folder: Path

    def again(self) -> float:
        """Has the process run the module again; the seconds that this took, as it measured them."""
        return self._asked("again")

    def on(self, feeds: Mapping[str, NDArray[np.generic]]) -> tuple[NDArray[np.generic], ...]:
        """Has the process run the module on other inputs; the outputs. Raises InputError where it
        does not run on them, LimitError where that takes too long."""
        given, results = self.folder / "more.npz", self.folder / "found.npz"
        write_arrays(given, feeds)
        self._asked(f"{given}\t{results}")
        return read_unnamed(results)

    def functions(self) -> tuple[TimedFunction, ...] | None:
        """The module's functions, those that take longest first; None where a GPU's driver does not
        tell their times."""
        spent = json.loads(self._line(runner.FUNCTIONS))
        if spent is None:
            return None
        found = (TimedFunction(name, *numbers) for name, numbers in spent.items())
        return tuple(sorted(found, key=lambda f: -f.seconds))

    def _asked(self, words: str) -> float:
        return float(self._line(words))

    def _line(self, words: str) -> bytes:
        line: Death | bytes | None = self.process.write(f"{words}\n".encode(), self.until)
        if line is None:
            line = self.process.line(self.until)
        if not isinstance(line, Death):
            return line
        if line.why == "time":
            raise LimitError("running the module again took too long")
        if line.outside:
            raise KilledError(_KILLED)
        last = f": {line.last}" if line.last else "; compile it again"
        raise InputError(f"the module ran once and then ended{last}")


def ran(
    module: Path,
    feeds: Mapping[str, NDArray[np.generic]],
    names: Sequence[str],
    mode: RunMode,
) -> Ran:
    """Runs and times a module whose outputs have these `names`; the other arguments and the errors
    are those of `running`."""
    with running(module, feeds, mode) as child:
        (seconds,) = timed([child.again])
        return Ran(named(child.outputs, names, module), seconds)


def named(
    outputs: Sequence[NDArray[np.generic]], names: Sequence[str], module: Path
) -> dict[str, NDArray[np.generic]]:
    """The outputs by name. Raises InputError where the module has another number of them."""
    if len(outputs) != len(names):
        raise InputError(
            f"the module in '{module}' has {len(outputs)} outputs, where {len(names)} are named; "
            "compile the model again"
        )
    return dict(zip(names, outputs, strict=True))


def library_at(module: Path) -> Path:
    """The library, which may be named by its folder. Raises InputError where there is none."""
    library = module / "module.so" if module.is_dir() else module
    if not library.is_file():
        raise InputError(f"there is no compiled module at '{library}'; give a folder it is in")
    return library


@dataclass(frozen=True, slots=True)
class StartedModule:
    """A process that was started to run the module `library`. It may take until `until`
    (time.monotonic), `limit` seconds in all, and works in `folder`."""

    process: Supervised
    library: Path
    until: float
    limit: float
    folder: Path

    def ran(self) -> RunningModule:
        """Waits until the process has run the module. Raises InputError where it does not run,
        LimitError where that takes too long."""
        if (death := _ready(self.process, self.until)) is None:
            return RunningModule(
                self.process, self.until, read_unnamed(self.folder / _OUTPUTS), self.folder
            )
        if death.why == "time":
            raise LimitError(f"running the module '{self.library}' took more than {self.limit:g} s")
        if death.outside:
            raise KilledError(_KILLED)
        last = death.last or "it ended without a word"
        raise InputError(f"the module '{self.library}' does not run: {last}")


@contextmanager
def started(
    module: Path,
    feeds: Mapping[str, NDArray[np.generic]],
    mode: RunMode,
    limit: float = math.inf,
) -> Iterator[StartedModule]:
    """A process that loads a module and runs it on `feeds`, its inputs in order, while the caller
    does something else; it is ended with the block.

    `module` is the library, or a folder with module.so; the process may take `limit` seconds, or
    _LIMIT if that is less. Raises InputError where there is no module.
    """
    library = library_at(module)
    with tempfile.TemporaryDirectory() as name:
        given, results = Path(name) / "inputs.npz", Path(name) / _OUTPUTS
        write_arrays(given, feeds)
        limit = min(limit, _LIMIT)
        until = time.monotonic() + limit
        arguments = [*map(str, (library, given, results)), _how(mode)]
        without = {} if mode != "host" or _asks_compiler(library) else runner.WITHOUT_COMPILER
        child = Supervised(runner.__name__, arguments, environment=without)
        try:
            yield StartedModule(child, library, until, limit, Path(name))
        finally:
            child.end()


@contextmanager
def running(
    module: Path,
    feeds: Mapping[str, NDArray[np.generic]],
    mode: RunMode,
    limit: float = math.inf,
) -> Iterator[RunningModule]:
    """A process that has run a module on `feeds`; the arguments are those of `started`, the errors
    its and those of `StartedModule.ran`."""
    with started(module, feeds, mode, limit) as process:
        yield process.ran()


def _asks_compiler(library: Path) -> bool:
    """Whether a module calls functions that come with TVM's compiler alone (relax.run.assert_op,
    relax.run.nonzero): its bytecode has their names."""
    if library.stat().st_size == 0:
        return False
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as words:
        return words.find(b"relax.run.") >= 0


def _ready(child: Supervised, until: float) -> Death | None:
    """Waits for the line `ready`, and skips lines that libraries print before it. Gives the
    process's death where there is no such line."""
    line = child.line(until)
    while not isinstance(line, Death) and line.strip() != b"ready":
        line = child.line(until)
    return line if isinstance(line, Death) else None


def threads() -> int:
    """The number of threads that a module for the host runs on."""
    return os.cpu_count() or 1


def _how(mode: RunMode) -> str:
    """The runner's argument for a way to run."""
    if mode == "host":
        return str(threads())
    return runner.KERNELS if mode == "kernels" else runner.GRAPH


def timed_in_turns(
    modules: Sequence[Path],
    feeds: Mapping[str, NDArray[np.generic]],
    mode: RunMode,
    limit: float = math.inf,
) -> tuple[float, ...]:
    """The median seconds of a run of each module, which take turns, each in a process of its own;
    the arguments and the errors are those of `running`."""
    with ExitStack() as stack:
        children = [stack.enter_context(running(path, feeds, mode, limit)) for path in modules]
        return timed([child.again for child in children])


def timed(runs: Sequence[Callable[[], float]]) -> tuple[float, ...]:
    """The median seconds of each; they are timed alternately, so that other load affects all."""
    times: tuple[list[float], ...] = tuple([] for _ in runs)
    with lease(HOST, exclusive=True):
        for _ in range(_ROUNDS):
            for one, kept in zip(runs, times, strict=True):
                time.sleep(_REST)
                spent = 0.0
                while spent < _WARM:
                    spent += one()
                counted, total = 0, 0.0
                while total < _COUNTED or counted < _FEW:
                    kept.append(one())
                    counted, total = counted + 1, total + kept[-1]
    return tuple(map(statistics.median, times))
