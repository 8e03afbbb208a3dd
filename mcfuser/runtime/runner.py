"""Runs a compiled module. It needs only tvm and numpy, and may be copied as an example.

    python runner.py module.so inputs.npz outputs.npz [threads | cuda | graph]

`inputs.npz` has the inputs in the order of the model. A module for a CPU runs on `threads` cores;
one for a GPU runs kernel by kernel (`cuda`), or is captured into a CUDA graph, which is replayed
(`graph`). After the first run, each line on standard input asks for another run, whose seconds are
printed: `again` on the same inputs, or `inputs.npz`, a tab and `outputs.npz` on others, which may
have other shapes where the module takes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
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
REPLAYS = 21
WARM = 0.05
"""Seconds of replays that are not counted: clocks rise."""

READS = "vm.builtin.tensor_to_shape"
"""What a machine calls to read an extent that elements decide."""

GIVES = "mcfuser_constant"
"""The function of a module that gives it a large constant (mcfuser.codegen.apart)."""

RELAXED = 2
"""CUDA's capture mode in which memory may be allocated during a capture."""
EXTERNAL = 1
"""CUDA's flag of an event that becomes a node of the graph."""


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
        name = MACHINE if _is_machine(name) else name
        seconds[name] = seconds.get(name, 0.0) + took
        calls[name] += 1

    machine.set_instrument(tell)
    try:
        for _ in range(FUNCTION_RUNS):
            run()
    finally:
        machine.set_instrument(None)
    return {n: (seconds[n] / FUNCTION_RUNS, calls[n] / FUNCTION_RUNS) for n in seconds}


def _is_machine(function: str) -> bool:
    """Whether a function that a machine calls is a part of what the machine does itself."""
    return function.startswith("vm.") or function == GIVES


def _on_device(inputs: Sequence[NDArray[np.generic]], device: Any) -> list[Any]:
    return [tvm.runtime.tensor(np.asarray(value, order="C"), device) for value in inputs]


def _placed_on_gpu(machine: VirtualMachine, device: Any, graph: bool) -> Place:
    """A module on a GPU, whose runs are a CUDA graph if `graph` and it can be captured. The inputs
    are in the GPU's memory, and a run ends when the GPU is done."""

    def place(inputs: Sequence[NDArray[np.generic]]) -> Run:
        tensors = _on_device(inputs, device)
        if graph:
            with contextlib.suppress(NotCapturedError):
                return Captured(machine, device, tensors).replay
        main = machine["main"]

        def run() -> object:
            result = main(*tensors)
            device.sync()
            return result

        return run

    return place


def by_function_on_gpu(
    machine: Any, device: Any, inputs: Sequence[Any], driver: Any = None
) -> dict[str, tuple[float, float]]:
    """The seconds that the GPU takes for each function which the machine calls in a run, and how
    often it is called.

    They are those of a graph in which an event stands before and after each function: the host
    is in none of them, and functions follow each other. In a run without events the next kernel may
    begin while the last one ends, so the functions together may take longer than a run. What an
    event itself takes is left out: the usual time between two events with no function between.
    """
    driver = driver or Driver()
    marks = Marks(driver)
    graph = Captured(machine, device, inputs, driver, marks.add)
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        graph.replay()
    rounds = []
    for _ in range(REPLAYS):
        graph.replay()
        rounds.append(marks.seconds())
    graph.close()
    marks.close()
    return marks.by_function([statistics.median(times) for times in zip(*rounds, strict=True)])


class Marks:
    """Events in a graph, before and after each function that a machine calls while it is
    captured."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._events: list[Any] = []
        self._owners: list[str] = []  # what goes on after each event
        self._open: list[str] = []
        self._calls = Counter[str]()

    def add(self, stream: int, name: str, before: bool) -> None:
        """Puts an event on the stream, where a function begins or has ended."""
        if _is_machine(name):
            return
        if not self._events:
            self._put(stream)  # so that two events have nothing between
        if before:
            self._open.append(name)
        else:
            self._calls[self._open.pop()] += 1
        self._put(stream)

    def seconds(self) -> list[float]:
        """The seconds between each event and the next one, in the last replay of the graph."""
        return [self._driver.between(first, second) for first, second in pairwise(self._events)]

    def by_function(self, seconds: Sequence[float]) -> dict[str, tuple[float, float]]:
        """The seconds and calls of each function, given those between the events."""
        spans = list(zip(self._owners, seconds, strict=False))  # nothing follows the last event
        event = statistics.median(took for owner, took in spans if owner == MACHINE)
        found = dict.fromkeys(self._calls, 0.0)
        for owner, took in spans:
            found[owner] = found.get(owner, 0.0) + took - event
        calls = {MACHINE: 1, **self._calls}
        return {name: (max(0.0, took), float(calls[name])) for name, took in found.items()}

    def close(self) -> None:
        """Frees the events."""
        for event in self._events:
            self._driver.forget(event)

    def _put(self, stream: int) -> None:
        self._events.append(self._driver.event())
        self._driver.mark(self._events[-1], stream)
        self._owners.append(self._open[-1] if self._open else MACHINE)


class NotCapturedError(RuntimeError):
    """A module cannot be captured into a graph."""


class Captured:
    """A module's `main` as a CUDA graph on fixed tensors.

    `replay` reads the present contents of `inputs` (`inputs[0].copyfrom(array)` changes them),
    writes `outputs`, and waits. The graph keeps its intermediate memory, which no other run in this
    process uses. Replays of one graph must not overlap. `launch` is a replay that does not wait:
    it is put on `stream` (a handle of CUDA's). `told` hears of each function that is captured:
    the stream, the function's name, and whether it begins. Raises NotCapturedError for a module
    whose outputs have as many elements as are found: a graph would keep those of one run.
    """

    def __init__(
        self,
        machine: Any,
        device: Any,
        inputs: Sequence[Any],
        driver: Any = None,
        told: Callable[[int, str, bool], None] | None = None,
    ) -> None:
        self.inputs = list(inputs)
        self._driver = driver or Driver()
        self._machine, self._device = machine, device  # the graph reads the machine's constants
        self.stream = device.create_raw_stream()
        with tvm_ffi.use_raw_stream(device, self.stream):
            self.outputs, self._storage, graph = self._captured(told)
        self._graph = self._driver.instantiate(graph)

    def replay(self) -> Any:
        """Runs the graph once; gives the outputs, which the next run overwrites."""
        self.launch()
        self._driver.wait(self.stream)
        return self.outputs

    def launch(self) -> None:
        """Begins one run; work that is put on `stream` later sees what it writes."""
        self._driver.launch(self._graph, self.stream)

    def _captured(
        self, told: Callable[[int, str, bool], None] | None
    ) -> tuple[Any, list[Any], Any]:
        """The outputs, all memory allocated for them and in between, and the graph."""
        storage: list[Any] = []
        capturing = reads = False

        def keep(_: object, name: str, before: bool, result: object, *rest: object) -> None:
            nonlocal reads
            reads = reads or name == READS
            if not before and name.endswith("alloc_storage"):
                storage.append(result)
            if capturing and told is not None:
                told(self.stream, name, before)

        main = self._machine["main"]
        self._machine.set_instrument(keep)
        try:
            main(*self.inputs)  # loads binaries and allocates memory before the capture
            self._driver.wait(self.stream)
            if reads:
                raise NotCapturedError(
                    "the module's outputs have as many elements as it finds, which no CUDA graph "
                    "can change; run its main kernel by kernel"
                )
            storage.clear()
            self._driver.begin(self.stream)
            capturing = True
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

    def event(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(made), 0)
        return made

    def mark(self, event: ctypes.c_void_p, stream: int) -> None:
        """Makes an event a node of the graph that is captured on a stream."""
        self._call("cuEventRecordWithFlags", event, ctypes.c_void_p(stream), EXTERNAL)

    def between(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> float:
        """The seconds between two events that have passed."""
        found = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(found), first, second)
        return found.value / 1e3

    def forget(self, event: ctypes.c_void_p) -> None:
        self._call("cuEventDestroy_v2", event)

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
    _load_functions()
    if how in (KERNELS, GRAPH):
        device = gpu()
        machine = VirtualMachine(tvm.runtime.load_module(module), device)
        place = _placed_on_gpu(machine, device, how == GRAPH)
    else:
        device, machine = None, machine_on_host(Path(module), int(how))
        place = _placed(machine)
    run = place(stored(source))
    np.savez(target, *arrays(run()))
    print("ready", flush=True)
    for line in sys.stdin:
        if line == f"{FUNCTIONS}\n":
            spent = (
                by_function(machine, run) if device is None else _on_gpu(machine, device, source)
            )
            print(json.dumps(spent), flush=True)
            continue
        given, _, target = line.rstrip("\n").partition("\t")
        if target:
            source = given
            run = place(stored(source))
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        if target:
            np.savez(target, *arrays(result))
        print(seconds, flush=True)


def _on_gpu(
    machine: VirtualMachine, device: Any, source: str
) -> dict[str, tuple[float, float]] | None:
    """The time of each function; None where the driver does not tell, which spoils no run."""
    try:
        return by_function_on_gpu(machine, device, _on_device(stored(source), device))
    except RuntimeError as reason:
        print(f"the time of each function is not known: {reason}", file=sys.stderr)
        return None


if __name__ == "__main__":
    main()
