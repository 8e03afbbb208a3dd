"""Runs a compiled module; needs nothing but tvm and numpy, so copy it as an example.

    python runner.py module.so inputs.npz outputs.npz [threads]

`inputs.npz` holds the inputs in the order of the model's. After the first run, each line on
standard input asks for another one, whose seconds are printed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

Run = Callable[[], object]


def ready(module: Path, inputs: Sequence[NDArray[np.generic]], threads: int) -> Run:
    """A function that runs the module once on these inputs, on that many cores.

    Where it is not told, TVM takes half of the cores; in mode -3 its threads share those listed.
    """
    if threads:
        cores = sorted(os.sched_getaffinity(0))[:threads]
        names = [str(core) for core in cores]
        tvm.get_global_func("runtime.config_threadpool")(-3, len(names), names)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(module)), tvm.cpu())
    tensors = [tvm.runtime.tensor(np.asarray(value, order="C")) for value in inputs]
    main = machine["main"]
    return lambda: main(*tensors)


def arrays(result: object) -> list[NDArray[np.generic]]:
    """The outputs as numpy arrays, in order."""
    many = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)  # type: ignore[call-overload]
    return [np.asarray(one.numpy()) for one in many]


def main() -> None:
    module, source, target, *rest = sys.argv[1:]
    with np.load(source) as stored:
        inputs = [stored[name] for name in stored.files]
    run = ready(Path(module), inputs, int(rest[0]) if rest else 0)
    np.savez(target, *arrays(run()))
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        run()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
