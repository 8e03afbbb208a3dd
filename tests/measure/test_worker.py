"""A program that crashes, hangs, is wrong or does not compile costs itself and nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from mcfuser.backend import Kernel
from mcfuser.backends.cpu import runner
from mcfuser.backends.cpu.backend import CPU
from mcfuser.backends.cpu.runner import _own_core
from mcfuser.chain import attention, from_json, parts
from mcfuser.codegen.tensorir import generate, to_record
from mcfuser.devices.catalogue import device_named
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.measure.lease import lease
from mcfuser.measure.request import COMPILED, Measured
from mcfuser.measure.worker import Worker
from mcfuser.process.child import NO_TIME
from mcfuser.space.expression import bind, loop_axes, tilings
from mcfuser.space.plan import Plan
from mcfuser.space.program import program

CHAIN = attention(2, 32, 32, 16, 16)


def kernel(chain=CHAIN) -> Kernel:
    ready = program(chain)
    expression = bind(ready.chain, tilings(ready.chain)[0])
    tiles = {a: min(16, chain.size(a)) for a in loop_axes(ready.chain)}
    dead = frozenset(a for a in tiles if tiles[a] >= chain.size(a))
    schedule = Plan(ready, expression, dead).schedule(tiles)
    source = generate(schedule, "kernel", TensorirKnobs())
    return Kernel(chain, source.text, to_record(source))


def altered(old: str, new: str) -> list[Kernel]:
    right = kernel()
    assert old in right.source
    return [replace(right, source=right.source.replace(old, new))]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(CPU, device_named("cpu"), limit=600.0) as running:
        yield running


def test_each_failure_costs_itself_alone(worker: Worker) -> None:
    right = [kernel()]
    wrong = altered("T.float32(0.36067376022224085)", "T.float32(0.37)")
    broken = altered("T.float32(0.36067376022224085)", "T.no_such_thing(0.36)")
    crash = altered("O_flat[", "O_flat[1000000000 + ")
    found = worker.measure(CHAIN, [right, wrong, crash, broken, right], 0)
    assert [f.failed is None for f in found] == [True, False, False, False, True]
    assert "error is" in str(found[1].failed)
    assert "died with status" in str(found[2].failed)
    assert "does not compile" in str(found[3].failed)
    for ok in (found[0], found[4]):
        assert ok.error is not None and ok.error < 1e-5
        assert ok.seconds is not None and 0 < ok.seconds < 1
        assert 0 < ok.conditions[COMPILED] < 60


def test_a_function_is_compiled_once_however_often_it_is_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, compiling = [], runner.compile_function

    def counted(text: str, name: str) -> Callable[..., None]:
        asked.append(text)
        return compiling(text, name)

    monkeypatch.setattr(runner, "compile_function", counted)
    device = runner.open_device("cpu")
    other = altered("T.float32(0.36067376022224085)", "T.float32(0.37)")
    built = [device.build(program)[0] for program in ([kernel()], other, [kernel()])]
    assert asked == [kernel().source, other[0].source]
    assert built[0].call is built[2].call is not built[1].call
    assert built[0].seconds == built[2].seconds > 0, "it is told, too, how long that took"


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="threads cannot be kept to cores here, or there is one core",
)
def test_the_caller_keeps_off_the_cores_that_pool_threads_are_bound_to() -> None:
    before = os.sched_getaffinity(0)
    core, done, bound = max(before), threading.Event(), threading.Event()

    def pool() -> None:
        os.sched_setaffinity(0, {core})
        bound.set()
        done.wait()

    thread = threading.Thread(target=pool)
    thread.start()
    bound.wait()
    try:
        with _own_core():
            assert os.sched_getaffinity(0) == before - {core}
        assert os.sched_getaffinity(0) == before
    finally:
        done.set()
        thread.join()


def test_many_programs_are_several_requests(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child builds a whole request before it answers: too large a one would seem to hang."""
    asked: list[int] = []
    ask = worker._child.ask
    monkeypatch.setattr(
        worker._child, "ask", lambda r, n, *at: (asked.append(n), ask(r, n, *at))[1]
    )
    right, wrong = [kernel()], altered("T.float32(0.36067376022224085)", "T.float32(0.37)")
    found = worker.measure(CHAIN, [right, right, wrong, right, right], 0, batch=2)
    assert [f.failed is None for f in found] == [True, True, False, True, True]
    assert asked == [2, 2, 1]
    asked.clear()
    worker.measure(CHAIN, [right, right, right], 0, together=True, batch=2)
    assert asked == [3]


@pytest.mark.parametrize(
    ("baseline", "told"), [(None, [None] * 3), (1, [1, None, None]), (3, [3, 1, None])]
)
def test_a_baseline_is_told_by_its_number_in_each_request(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    baseline: int | None,
    told: list[int | None],
) -> None:
    asked: list[int | None] = []

    def answers(request, count: int, limit: float, deadline: float):
        asked.append(request["baseline"])
        return [Measured(1e-3, 1e-7, None).to_json()] * count

    monkeypatch.setattr(worker._child, "ask", answers)
    worker.measure(CHAIN, [[kernel()]] * 5, 0, batch=2, baseline=baseline)
    assert asked == told


def test_the_error_is_that_of_the_worst_output(worker: Worker) -> None:
    """In float16 the first output is off by what that stores, the second by float32's rounding."""
    document = {
        "axes": {"m": 64, "n": 32},
        "tensors": {"X": {"shape": ["m", "n"]}, "A": {"shape": ["m", "n"], "dtype": "float16"},
                    "B": {"shape": ["m", "n"]}},
        "operators": ["A[m, n] = X[m, n] * 1.1", "B[m, n] = X[m, n] * 1.2"],
        "outputs": ["A", "B"],
    }  # fmt: skip
    chain = from_json(document)
    (found,) = worker.measure(chain, [[kernel(chain)]], 0)
    assert found.error is not None and found.error > 5e-5


def test_what_hangs_is_ended(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = altered(
        "for t in T.parallel(", "for forever in range(10000000000):\n          for t in range("
    )
    ask, limits = worker._child.ask, iter([2.0])
    monkeypatch.setattr(
        worker._child, "ask", lambda r, n, limit, end: ask(r, n, next(limits, limit), end)
    )
    found = worker.measure(CHAIN, [hang, [kernel()]], 0)
    assert found[0].failed == "it ran longer than 2 s"
    assert found[1].failed is None


def test_what_wants_too_much_memory_is_told(worker: Worker) -> None:
    found = worker.measure(CHAIN, [altered("R_tile = ", HOG), [kernel()]], 0)
    assert found[0].failed is not None
    assert found[1].failed is None


TORCH = """
import mmap
reserved = mmap.mmap(-1, 64 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
raise RuntimeError("a measuring process has no use for torch")
"""


def test_torch_beside_the_device_is_no_burden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM's ffi imports torch where it is installed, and torch with CUDA reserves more addresses
    than a measuring process may have of data."""
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Worker(CPU, device_named("cpu"), limit=600.0) as fresh:
        assert fresh.measure(CHAIN, [[kernel()]], 0)[0].failed is None
        process = fresh._child._process
        assert process is not None
        limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
    most = {line[:26].strip(): line[26:47].strip() for line in limits}
    assert most["Max data size"] == str(CPU.memory)
    assert most["Max address space"] == "unlimited"


HOG = (
    'hog = T.alloc_buffer((34359738368,), "float32")\n'
    "            for big in range(34359738):\n"
    "                hog[big * 1000] = T.float32(1)\n"
    "            R_tile = "
)


def test_unfused_parts_pass_tensors_by_name_and_are_timed_together(worker: Worker) -> None:
    unfused = [kernel(part) for part in parts(CHAIN)]
    assert len(unfused) == 3
    first, second = worker.measure(CHAIN, [[kernel()], unfused], 0, together=True)
    assert first.failed is None and second.failed is None
    assert len(first.times) == len(second.times) > 1


def test_after_a_fatal_answer_the_rest_is_asked_anew(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def answers(request, count: int, limit: float, deadline: float):
        asked.append(count)
        if len(asked) == 1:
            yield Measured(None, None, "the device is broken", fatal=True).to_json()
        for _ in range(count):
            yield Measured(1e-3, 1e-7, None).to_json()

    monkeypatch.setattr(worker._child, "ask", answers)
    found = worker.measure(CHAIN, [[kernel()]] * 3, 0)
    assert [f.failed for f in found] == ["the device is broken", None, None]
    assert asked == [3, 2]


def test_a_device_that_was_opened_stays_so_when_its_process_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Worker(CPU, device_named("cpu"), limit=600.0) as one:
        assert not one.opened and one.refused() is None and one.opened
        one._child.stop()
        monkeypatch.setattr(one._child, "greeting", lambda *_: NO_TIME)
        assert one.refused() == "no time was left to open the device"
        assert one.opened


def test_past_the_deadline_nothing_starts(worker: Worker) -> None:
    found = worker.measure(CHAIN, [[kernel()]], 0, deadline=time.monotonic() - 1)
    assert found[0].failed == "no time left"


def _hold(name: str, path: str) -> None:
    with lease(name, exclusive=True):
        Path(path).write_text("held")
        time.sleep(1.0)
        Path(path).write_text("released")


def test_the_lease_keeps_two_measurements_apart(tmp_path: Path) -> None:
    path = tmp_path / "state"
    other = get_context("spawn").Process(target=_hold, args=("test", str(path)))
    other.start()
    while not path.exists():
        time.sleep(0.01)
    with lease("test", exclusive=False):
        assert path.read_text() == "released"
    other.join()
