"""Compares a compiled module with onnxruntime: their outputs, and their times."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from mcfuser.devices.catalogue import HOST
from mcfuser.errors import InputError
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.load import bound
from mcfuser.graph.session import session
from mcfuser.measure.lease import lease
from mcfuser.process.death import Death
from mcfuser.process.supervised import Supervised
from mcfuser.runtime import runner

_ROUNDS = 5
_REST = 0.3  # seconds after which the other's spinning threads are asleep
_WARM = 0.05  # seconds of uncounted runs in each round: threads wake, clocks rise
_COUNTED = 0.1  # seconds of counted runs in each round, at least _FEW of them
_FEW = 3
_LIMIT = 300.0  # seconds that a child may take in all
# The values of an input pass through these operators unchanged.
_CARRIES = frozenset({"Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten", "Slice"})

Feeds = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Checked:
    """The largest norm-wise relative error of the outputs, and the median times of the module and
    of onnxruntime, in seconds a run."""

    error: float
    seconds: float
    reference_seconds: float


RunMode = Literal["host", "kernels", "graph"]
"""How a module runs: on all cores; on the GPU, kernel by kernel; on the GPU, as a CUDA graph."""


def check(
    module: Path,
    model: bytes,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int = 0,
    mode: RunMode = "host",
    limits: ModelLimits = DEFAULTS,
    folder: DataFolder | None = None,
) -> Checked:
    """Runs a module in a fresh process on random inputs, and the ONNX model in onnxruntime.

    `module` is the library, or a folder with module.so; `folder` has the model's external data. The
    two are timed alternately, onnxruntime on all cores. On a GPU the inputs are in its memory, and
    a run ends when the GPU is done. Raises InputError where there is no module or it does not run.
    """
    library = module / "module.so" if module.is_dir() else module
    if not library.is_file():
        raise InputError(f"there is no compiled module at '{library}'; give a folder it is in")
    fixed = bound(model, shapes, limits, folder)
    feeds = inputs(fixed.proto, np.random.default_rng(seed))
    threads = os.cpu_count() or 1
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    reference = session(fixed, options)
    expected = reference.run(None, feeds)
    with tempfile.TemporaryDirectory() as name:
        np.savez(Path(name) / "inputs.npz", *feeds.values())
        with _running(library, Path(name), _how(mode, threads)) as child:
            with np.load(Path(name) / "outputs.npz") as stored:
                outputs = [stored[n] for n in stored.files]
            error = max(difference(a, b) for a, b in zip(outputs, expected, strict=True))
            with lease(HOST, exclusive=True):
                ours, theirs = _timed(
                    child.again, lambda: _seconds(lambda: reference.run(None, feeds))
                )
    return Checked(error, ours, theirs)


def _how(mode: RunMode, threads: int) -> str:
    """The runner's argument for a way to run."""
    if mode == "host":
        return str(threads)
    return runner.KERNELS if mode == "kernels" else runner.GRAPH


def difference(found: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """The norm of the difference divided by the norm of `expected`; infinite if shapes differ.

    NaN in both, or the same infinity, counts as equal. So does zero where NaN is expected: the
    softmax of an empty row is 0 here (docs/chains.md) and 0 / 0 in onnxruntime.
    """
    if found.shape != expected.shape:
        return float("inf")
    a, b = found.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(b) & (np.isnan(a) | (a == 0)))
    differences = a[~same] - b[~same]
    if not np.isfinite(differences).all():
        return float("inf")
    return float(np.linalg.norm(differences) / (np.linalg.norm(b[np.isfinite(b)]) or 1.0))


def inputs(proto: onnx.ModelProto, random: np.random.Generator) -> Feeds:
    """Random inputs by name: normally distributed floats, indices within their tables, and 0 or 1
    for other integers and bools.

    The first element of each row of zeros and ones is 1, so that no mask hides a whole row.
    """
    bounds = dict(_tables(proto))
    feeds: Feeds = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        shape = tuple(d.dim_value for d in tensor.shape.dim)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if value.name in bounds:
            feeds[value.name] = random.integers(0, bounds[value.name], shape).astype(dtype)
        elif dtype.kind in "iub":
            kept = np.asarray(random.random(shape) < 0.75)
            if kept.ndim:
                kept[..., :1] = True
            feeds[value.name] = kept.astype(dtype)
        else:
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
    return feeds


def _tables(proto: onnx.ModelProto) -> Iterator[tuple[str, int]]:
    """The inputs that index constant tables, each with the smallest extent of these tables."""
    extents = {w.name: tuple(w.dims) for w in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            extents[node.output[0]] = numpy_helper.to_array(node.attribute[0].t).shape
    for value in proto.graph.input:
        carried, sizes = {value.name}, []
        for node in proto.graph.node:
            if node.op_type in _CARRIES and node.input[0] in carried:
                carried |= set(node.output)
            table = extents.get(node.input[0]) if node.input else None
            if node.op_type == "Gather" and node.input[1] in carried and table:
                axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                sizes.append(table[axis])
        if sizes:
            yield value.name, min(sizes)


# --- the child ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Runner:
    """The runner (mcfuser.runtime.runner) in a process; `until` (time.monotonic) it may take."""

    process: Supervised
    until: float

    def answers(self, word: str) -> Death | None:
        """Waits for a line that is `word`, and skips lines that libraries print before it. Gives
        the process's death where there is no such line."""
        line = self.process.line(self.until)
        while not isinstance(line, Death) and line.strip() != word.encode():
            line = self.process.line(self.until)
        return line if isinstance(line, Death) else None

    def again(self) -> float:
        """Has the process run the module again; the seconds that this took, as it measured them."""
        line: Death | bytes | None = self.process.write(b"again\n", self.until)
        if line is None:
            line = self.process.line(self.until)
        if isinstance(line, Death):
            raise InputError("the module ran once and then ended; compile it again")
        return float(line)


@contextmanager
def _running(library: Path, folder: Path, how: str) -> Iterator[_Runner]:
    """A process that has run the module once; it is ended with the block."""
    files = [library, folder / "inputs.npz", folder / "outputs.npz"]
    child = _Runner(Supervised(runner.__name__, [*map(str, files), how]), time.monotonic() + _LIMIT)
    try:
        if (death := child.answers("ready")) is not None:
            late = f"it took longer than {_LIMIT:g} s"
            last = late if death.why == "time" else death.last or "it ended without a word"
            raise InputError(f"the module '{library}' does not run: {last}")
        yield child
    finally:
        child.process.end()


def _timed(ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[float, float]:
    """The median seconds of both, timed alternately, so that other load affects both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for one, kept in zip((ours, theirs), times, strict=True):
            time.sleep(_REST)
            spent = 0.0
            while spent < _WARM:
                spent += one()
            counted, total = 0, 0.0
            while total < _COUNTED or counted < _FEW:
                kept.append(one())
                counted, total = counted + 1, total + kept[-1]
    return statistics.median(times[0]), statistics.median(times[1])


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
