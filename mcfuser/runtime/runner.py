"""Runs a compiled module. It needs only tvm and numpy, and may be copied as an example.

    python runner.py module.so inputs.npz outputs.npz [threads | cuda | graph]

`inputs.npz` has the inputs in the order of the model. A module for a CPU runs on `threads` cores;
one for a GPU runs kernel by kernel (`cuda`), or is captured into a CUDA graph, which is replayed
(`graph`). After the first run, each line on standard input asks for another run, whose seconds are
printed: `again` on the same inputs, or `inputs.npz`, a tab and `outputs.npz` on others, which may
have other shapes where the module takes them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm.runtime.vm import VirtualMachine

Run = Callable[[], object]
Place = Callable[[Sequence[NDArray[np.generic]]], Run]
"""Makes the function that runs a module once on some inputs."""

KERNELS, GRAPH = "cuda", "graph"
"""How a module for a GPU runs: kernel by kernel, or captured."""

WITHOUT_COMPILER = {"TVM_USE_RUNTIME_LIB": "1"}
"""The environment in which TVM does not load its compiler, which few modules on the host need; its
import takes half the time then."""

FUNCTIONS = "functions"
"""The line that asks a process for the time of each function of its module."""
FUNCTION_RUNS = 5
MACHINE = "virtual machine"

RELAXED = 2
"""CUDA's capture mode in which memory may be allocated during a capture."""


def _load_functions() -> None:
    """Loads the functions that modules call (of sorting, of random numbers) unless they came with
    TVM's compiler."""
    if tvm.get_global_func("tvm.contrib.sort.sort", allow_missing=True) is not None:
        return
    folders = tvm.libinfo.package_lib_paths()
    tvm_ffi.libinfo.load_lib_ctypes("tvm", "tvm_runtime_extra", "RTLD_LOCAL", folders)


def ready(module: Path, inputs: Sequence[NDArray[np.generic]], threads: int) -> Run:
    """A function that runs the module once on these inputs, as `on_host` says."""
    return on_host(module, threads)(inputs)


def on_host(module: Path, threads: int) -> Place:
    """A module on the CPU, as `machine_on_host` says."""
    return _placed(machine_on_host(module, threads))


def machine_on_host(module: Path, threads: int) -> VirtualMachine:
    """The machine of a module on the CPU, on `threads` cores (0: TVM's default).

    By default TVM uses half of the cores; in mode -3 its threads share the listed ones.
    """
    if threads:
        cores = sorted(os.sched_getaffinity(0))[:threads]
        names = [str(core) for core in cores]
        tvm.get_global_func("runtime.config_threadpool")(-3, len(names), names)
    return VirtualMachine(tvm.runtime.load_module(str(module)), tvm.cpu())


def _placed(machine: VirtualMachine) -> Place:
    main = machine["main"]

    def place(inputs: Sequence[NDArray[np.generic]]) -> Run:
        tensors = [tvm.runtime.tensor(np.asarray(value, order="C")) for value in inputs]
        return lambda: main(*tensors)

    return place


def by_function(machine: VirtualMachine, run: Run) -> dict[str, tuple[float, float]]:
    """The seconds that each function takes which the machine calls in a run, and how often it is
    called, averaged over FUNCTION_RUNS runs. What the machine does itself (memory, shapes) is one
    function, MACHINE."""
    seconds, calls = dict[str, float](), Counter[str]()
    begun = list[float]()

    def tell(_: object, name: str, before: bool, *rest: object) -> None:
        now = time.perf_counter()
        if before:
            begun.append(now)
            return
        took = now - begun.pop()
        begun[:] = [start + took for start in begun]  # a caller's own time alone is its
        name = MACHINE if name.startswith("vm.") else name
        seconds[name] = seconds.get(name, 0.0) + took
        calls[name] += 1

    machine.set_instrument(tell)
    try:
        for _ in range(FUNCTION_RUNS):
            run()
    finally:
        machine.set_instrument(None)
    return {n: (seconds[n] / FUNCTION_RUNS, calls[n] / FUNCTION_RUNS) for n in seconds}


def on_gpu(module: Path, graph: bool) -> Place:
    """A module on the first GPU, whose runs are a CUDA graph if `graph`.

    The inputs are in the GPU's memory, and a run ends when the GPU is done. Ends the process with a
    message where there is no GPU.
    """
    device = gpu()
    machine = VirtualMachine(tvm.runtime.load_module(str(module)), device)

    def place(inputs: Sequence[NDArray[np.generic]]) -> Run:
        tensors = [tvm.runtime.tensor(np.asarray(value, order="C"), device) for value in inputs]
        if graph:
            return Captured(machine, device, tensors).replay
        main = machine["main"]

        def run() -> object:
            result = main(*tensors)
            device.sync()
            return result

        return run

    return place


class Captured:
    """A module's `main` as a CUDA graph on fixed tensors.

    `replay` reads the present contents of `inputs` (`inputs[0].copyfrom(array)` changes them),
    writes `outputs`, and waits. The graph keeps its intermediate memory, which no other run in this
    process uses. Replays of one graph must not overlap. `launch` is a replay that does not wait:
    it is put on `stream` (a handle of CUDA's).
    """

    def __init__(
        self, machine: Any, device: Any, inputs: Sequence[Any], driver: Any = None
    ) -> None:
        self.inputs = list(inputs)
        self._driver = driver or Driver()
        self._machine, self._device = machine, device  # the graph reads the machine's constants
        self.stream = device.create_raw_stream()
        with tvm_ffi.use_raw_stream(device, self.stream):
            self.outputs, self._storage, graph = self._captured()
        self._graph = self._driver.instantiate(graph)

    def replay(self) -> Any:
        """Runs the graph once; gives the outputs, which the next run overwrites."""
        self.launch()
        self._driver.wait(self.stream)
        return self.outputs

    def launch(self) -> None:
        """Begins one run; work that is put on `stream` later sees what it writes."""
        self._driver.launch(self._graph, self.stream)

    def _captured(self) -> tuple[Any, list[Any], Any]:
        """The outputs, all memory allocated for them and in between, and the graph."""
        storage: list[Any] = []

        def keep(_: object, name: str, before: bool, result: object, *rest: object) -> None:
            if not before and name.endswith("alloc_storage"):
                storage.append(result)

        main = self._machine["main"]
        self._machine.set_instrument(keep)
        try:
            main(*self.inputs)  # loads binaries and allocates memory before the capture
            self._driver.wait(self.stream)
            storage.clear()
            self._driver.begin(self.stream)
            try:
                outputs = main(*self.inputs)
            finally:
                graph = self._driver.end(self.stream)
        finally:
            self._machine.set_instrument(None)
        return outputs, storage, graph

    def close(self) -> None:
        """Frees the graph, which cannot be replayed afterwards."""
        self._driver.destroy(self._graph)
        self._device.free_raw_stream(self.stream)


class Driver:
    """The functions of the CUDA driver for graphs. Streams and graphs are the driver's handles.
    Each call raises RuntimeError with the driver's name of the error."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def begin(self, stream: int) -> None:
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), RELAXED)

    def end(self, stream: int) -> ctypes.c_void_p:
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return graph

    def instantiate(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        """An executable graph; the graph itself is destroyed."""
        made = ctypes.c_void_p()
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
        self._call("cuGraphDestroy", graph)
        return made

    def launch(self, graph: ctypes.c_void_p, stream: int) -> None:
        self._call("cuGraphLaunch", graph, ctypes.c_void_p(stream))

    def destroy(self, graph: ctypes.c_void_p) -> None:
        self._call("cuGraphExecDestroy", graph)

    def wait(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            words = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(words))
            raise RuntimeError(f"{name}: {(words.value or b'unknown').decode()} ({status})")


def gpu() -> Any:
    """TVM's device for the first GPU; ends the process with a message where there is none."""
    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        _load_runtime()
    device = tvm.cuda(0)
    if not device.exist:
        raise SystemExit("no NVIDIA GPU is at hand; run the module where the GPU is")
    return device


def _load_runtime() -> None:
    """Loads TVM's CUDA runtime; TVM does not where CUDA's own is not on the library path."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for library in sorted(p for place in places for p in Path(place).glob("*/lib/libcudart.so.*")):
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    folder = Path(str(tvm.__file__)).parent / "lib"
    try:
        for name in ("libtvm_runtime_cuda.so", "libtvm_runtime_extra.so"):
            ctypes.CDLL(str(folder / name))
    except OSError as error:
        raise SystemExit(
            f"TVM cannot use a GPU here: {error}; it needs NVIDIA's driver and its package "
            "nvidia-cuda-runtime"
        ) from None


def arrays(result: object) -> list[NDArray[np.generic]]:
    """The outputs as numpy arrays, in order."""
    many = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)  # type: ignore[call-overload]
    return [np.asarray(one.numpy()) for one in many]


def _typed(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """An array as it was before numpy stored it: bfloat16 is no type of numpy's."""
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def stored(path: str) -> list[NDArray[np.generic]]:
    """The arrays of a file, in order."""
    with np.load(path) as arrays_of_file:
        return [_typed(arrays_of_file[name]) for name in arrays_of_file.files]


def main() -> None:
    module, source, target, *rest = sys.argv[1:]
    how = rest[0] if rest else "0"
    gpu_alone = how in (KERNELS, GRAPH)
    _load_functions()
    machine = None if gpu_alone else machine_on_host(Path(module), int(how))
    place = on_gpu(Path(module), how == GRAPH) if machine is None else _placed(machine)
    run = place(stored(source))
    np.savez(target, *arrays(run()))
    print("ready", flush=True)
    for line in sys.stdin:
        if line == f"{FUNCTIONS}\n":
            spent = by_function(machine, run) if machine is not None else None
            print(json.dumps(spent), flush=True)
            continue
        source, _, target = line.rstrip("\n").partition("\t")
        if target:
            run = place(stored(source))
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        if target:
            np.savez(target, *arrays(result))
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
