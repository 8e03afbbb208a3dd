"""A module captured into a CUDA graph: with a driver that only takes notes, and on a GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm.runtime.vm import VirtualMachine  # noqa: E402

from mcfuser.chain import attention  # noqa: E402
from mcfuser.codegen.cuda import module as cuda_module  # noqa: E402
from mcfuser.codegen.cuda.cubin import Binary  # noqa: E402
from mcfuser.codegen.llvm.module import build_library  # noqa: E402
from mcfuser.codegen.triton import TritonSource  # noqa: E402
from mcfuser.devices.catalogue import device_named  # noqa: E402
from mcfuser.devices.cpu import probe_cpu  # noqa: E402
from mcfuser.graph.assemble import install  # noqa: E402
from mcfuser.graph.load import load  # noqa: E402
from mcfuser.runtime.runner import (  # noqa: E402
    MACHINE,
    Captured,
    Driver,
    Marks,
    NotCapturedError,
    _on_gpu,
    arrays,
    by_function,
    by_function_on_gpu,
    gpu,
)
from mcfuser.space.reference import evaluate  # noqa: E402
from tests.support.cuda_modules import MISSING, PHYSICAL, compiled, module_with, split  # noqa: E402
from tests.support.one_node import one_node  # noqa: E402
from tests.support.paths import FIXTURES  # noqa: E402

__all__ = ["compiled", "split"]  # fixtures
MODEL = FIXTURES / "three_products.onnx"


def test_a_function_s_time_is_without_that_of_those_it_calls() -> None:
    clock = iter(float(i) for i in range(1000))

    class Machine:
        tell: Callable[..., None] | None = None

        def set_instrument(self, tell: Callable[..., None] | None) -> None:
            self.tell = tell

        def run(self) -> None:
            assert self.tell is not None
            for name, before in (
                ("outer", True), ("inner", True), ("inner", False), ("vm.builtin.reshape", True),
                ("vm.builtin.reshape", False), ("outer", False), ("inner", True), ("inner", False),
            ):  # fmt: skip
                self.tell(None, name, before, None)

    machine = Machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcfuser.runtime.runner.time.perf_counter", lambda: next(clock))
        found = by_function(machine, machine.run)  # type: ignore[arg-type]
    assert found == {"inner": (2.0, 2.0), MACHINE: (1.0, 1.0), "outer": (3.0, 1.0)}
    assert machine.tell is None


class Notes:
    """A driver whose graph is what main did, noted."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., str]:
        def note(*arguments: object) -> str:
            self.calls.append(name)
            return name

        return note


class Watched:
    """A machine that tells where each run's tensors lie, and when it runs."""

    def __init__(self, machine: Any, driver: Notes) -> None:
        self.machine, self.driver = machine, driver
        self.runs: list[set[int]] = []
        self.breaks = False

    def __getitem__(self, name: str) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            self.driver.calls.append("run")
            self.runs.append(set())
            if self.breaks and "begin" in self.driver.calls:
                raise RuntimeError("broken")
            return self.machine[name](*inputs)

        return run

    def set_instrument(self, told: Callable[..., object] | None) -> None:
        def tell(function: object, name: str, before: bool, result: Any, *rest: object) -> None:
            if not before and name.endswith("alloc_tensor"):
                self.runs[-1].add(np.from_dlpack(result).ctypes.data)
            if told is not None:
                told(function, name, before, result, *rest)

        self.machine.set_instrument(tell)


class Clock(Notes):
    """A driver whose events pass at given times: of two that follow each other `spans` has the
    seconds between, 1e-6 where it has none."""

    def __init__(self, spans: Mapping[int, float]) -> None:
        super().__init__()
        self.spans = spans

    def event(self) -> int:
        return sum(call == "mark" for call in self.calls)

    def between(self, first: int, second: int) -> float:
        assert second == first + 1
        return self.spans.get(first, 1e-6)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return watching(MODEL.read_bytes(), tmp_path)


def watching(model: bytes, tmp_path: Path) -> Watched:
    loaded = load(model, {})
    path = tmp_path / "module.so"
    path.write_bytes(build_library(install(loaded.module, []), probe_cpu()))
    machine = Watched(VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu()), Notes())
    rng = np.random.default_rng(0)
    machine.inputs = [
        tvm.runtime.tensor(rng.standard_normal(p.shape).astype(p.dtype)) for p in loaded.inputs
    ]
    return machine


def test_a_run_before_the_capture_loads_what_a_capture_must_not(watched: Watched) -> None:
    graph = Captured(watched, tvm.cpu(), watched.inputs, watched.driver)
    assert watched.driver.calls == ["run", "wait", "begin", "run", "end", "instantiate"]
    assert graph.replay() is graph.outputs
    assert watched.driver.calls[6:] == ["launch", "wait"]
    graph.close()
    assert watched.driver.calls[8:] == ["destroy"]


def test_what_a_graph_writes_is_taken_by_no_later_run(watched: Watched) -> None:
    graph = Captured(watched, tvm.cpu(), watched.inputs, watched.driver)
    _, own = watched.runs
    assert len(own) > 1

    def later() -> set[int]:
        watched.runs.clear()
        held = [watched["main"](*watched.inputs) for _ in range(4)]
        assert len(held) == 4
        return own & set().union(*watched.runs)

    assert not later()
    graph._storage.clear()
    assert later(), "the test would not see memory that is shared"


def test_what_finds_any_number_of_elements_is_not_captured(tmp_path: Path) -> None:
    """A graph would give later runs the extents that the captured one found."""
    x = np.zeros((3, 4), np.float32)
    model = one_node("NonZero", ["x"], 1, {"x": x}, dtypes=[np.int64])
    watched = watching(model.SerializeToString(), tmp_path)
    with pytest.raises(NotCapturedError, match="as many elements as it finds"):
        Captured(watched, tvm.cpu(), watched.inputs, watched.driver)
    assert watched.driver.calls == ["run", "wait"]


def test_a_run_that_breaks_leaves_no_capture_open(watched: Watched) -> None:
    watched.breaks = True
    with pytest.raises(RuntimeError, match="broken"):
        Captured(watched, tvm.cpu(), watched.inputs, watched.driver)
    assert watched.driver.calls == ["run", "wait", "begin", "run", "end"]


def test_the_time_of_each_function_is_that_between_its_events(watched: Watched) -> None:
    driver = watched.driver = Clock({i: 2e-6 * i + 1e-6 for i in range(1, 100, 2)})
    found = by_function_on_gpu(watched, tvm.cpu(), watched.inputs, driver)
    on_host = by_function(watched, lambda: watched["main"](*watched.inputs))  # type: ignore[arg-type]
    assert {n: calls for n, (_, calls) in found.items() if n != MACHINE} == {
        n: calls for n, (_, calls) in on_host.items() if n != MACHINE
    }
    captured = driver.calls[driver.calls.index("begin") : driver.calls.index("end")]
    assert len(found) > 3 and captured.count("mark") == 1 + 2 * (len(found) - 1)
    assert found.pop(MACHINE) == (0.0, 1.0)
    assert [seconds for seconds, _ in found.values()] == pytest.approx(
        [2e-6 * i for i in range(1, 2 * len(found), 2)]
    )
    assert "launch" in driver.calls and driver.calls.count("forget") == captured.count("mark")


def test_what_an_event_takes_is_in_no_function() -> None:
    marks = Marks(Clock({2: 5e-6, 4: 7e-6, 7: 0.5e-6}))
    for name, before in (
        ("outer", True), ("inner", True), ("inner", False), ("vm.builtin.reshape", True),
        ("vm.builtin.reshape", False), ("inner", True), ("inner", False), ("outer", False),
        ("short", True), ("short", False),
    ):  # fmt: skip
        marks.add(0, name, before)
    found = marks.by_function(marks.seconds())
    assert {n: calls for n, (_, calls) in found.items()} == {
        "outer": 1, "inner": 2, "short": 1, MACHINE: 1
    }  # fmt: skip
    seconds = {n: took for n, (took, _) in found.items()}
    assert seconds == pytest.approx({"outer": 0, "inner": 10e-6, "short": 0, MACHINE: 0}, abs=1e-12)


def test_a_driver_without_such_events_spoils_no_run(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    class Old(Notes):
        def mark(self, *arguments: object) -> None:
            raise RuntimeError("cuEventRecordWithFlags: CUDA_ERROR_NOT_SUPPORTED (801)")

    monkeypatch.setattr("mcfuser.runtime.runner.Driver", Old)
    np.savez(tmp_path / "inputs.npz", *[t.numpy() for t in watched.inputs])
    assert _on_gpu(watched, tvm.cpu(), str(tmp_path / "inputs.npz")) is None  # type: ignore[arg-type]
    assert "NOT_SUPPORTED (801)" in capsys.readouterr().err


def test_what_the_driver_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def cuGraphLaunch(self, *arguments: object) -> int:
            return 900

        def cuGetErrorName(self, status: int, words: Any) -> int:
            words._obj.value = b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
            return 0

    monkeypatch.setattr("ctypes.CDLL", lambda name: Library())
    with pytest.raises(RuntimeError, match=r"^cuGraphLaunch: CUDA_ERROR_STREAM_CAP\w+ \(900\)$"):
        Driver().launch(None, 0)  # type: ignore[arg-type]


# --- on a GPU -------------------------------------------------------------------------------


def no_gpu() -> str | None:
    """Why no module runs on a GPU here."""
    if MISSING:
        return f"the gpu extra is not installed: {MISSING}"
    try:
        gpu()
    except SystemExit as reason:
        return str(reason)
    return None


@pytest.fixture
def device() -> Any:
    if (why := no_gpu()) is not None:
        pytest.skip(why)
    return gpu()


def expected(q: Any, k: Any, v: Any) -> Any:
    """What `module_with` computes, in float64."""
    rng = np.random.default_rng(0)
    shift = rng.standard_normal(PHYSICAL["Q"]).astype(np.float16)
    scale = rng.standard_normal((2, 256, 128)).astype(np.float16)
    chain = attention(2, 64, 64, 32, 32, "float16")
    o = evaluate(chain, {"Q": (q + shift)[0], "K": k, "V": v})["O"]
    return o * (1 + np.vectorize(math.erf)(o / math.sqrt(2))) / 2 * float(scale.max())


def test_replays_follow_their_inputs(
    compiled: tuple[TritonSource, Binary], device: Any, tmp_path: Path
) -> None:
    replays_follow(compiled, device, tmp_path)


def test_replays_of_a_split_follow_their_inputs(
    split: tuple[TritonSource, Binary], device: Any, tmp_path: Path
) -> None:
    replays_follow(split, device, tmp_path)


def test_the_time_of_each_function_on_a_gpu(
    compiled: tuple[TritonSource, Binary], device: Any, tmp_path: Path
) -> None:
    machine = placed(compiled, device, tmp_path)
    tensors = [tvm.runtime.tensor(np.ones(PHYSICAL[n], np.float16), device) for n in "QKV"]
    found = by_function_on_gpu(machine, device, tensors)
    assert compiled[1].name in found and len(found) >= 4
    assert all(0 < took < 1e-3 for name, (took, _) in found.items() if name != MACHINE)
    graph = Captured(machine, device, tensors)
    once = min(seconds(graph) for _ in range(9))
    assert sum(took for took, _ in found.values()) < 3 * once


def seconds(graph: Captured) -> float:
    begun = time.perf_counter()
    graph.replay()
    return time.perf_counter() - begun


def placed(pair: tuple[TritonSource, Binary], device: Any, folder: Path) -> VirtualMachine:
    library = cuda_module.build(
        module_with(*pair), device_named("nvidia/h200"), [cuda_module.kernel(*pair)]
    )
    path = folder / "module.so"
    path.write_bytes(library)
    return VirtualMachine(tvm.runtime.load_module(str(path)), device)


def replays_follow(pair: tuple[TritonSource, Binary], device: Any, tmp_path: Path) -> None:
    machine = placed(pair, device, tmp_path)
    rng = np.random.default_rng(1)
    graph: Captured | None = None
    for _ in range(3):
        values = [rng.standard_normal(PHYSICAL[n]).astype(np.float16) for n in "QKV"]
        if graph is None:
            graph = Captured(machine, device, [tvm.runtime.tensor(a, device) for a in values])
        for tensor, value in zip(graph.inputs, values, strict=True):
            tensor.copyfrom(value)
        for _ in range(3):
            (found,) = arrays(graph.replay())
            assert np.abs(found - expected(*values)).max() < 2e-2
