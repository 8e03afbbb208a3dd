"""Chains built as a lock has them: equal sources, no search, and what differs where there is a
miss."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mcfuser.backend import Backend
from mcfuser.backends import backend_of
from mcfuser.backends.cpu.backend import CpuBackend
from mcfuser.chain import Chain, attention, gemm, unfused_cut
from mcfuser.devices.catalogue import CATALOGUE, device_named
from mcfuser.lock import DeviceLock, KernelPin, Lock
from mcfuser.measure.request import failure
from mcfuser.measure.worker import Worker
from mcfuser.process.child import NO_TIME
from mcfuser.tune.cover import Cover, Decision, pieces
from mcfuser.tune.locked import LockedKernels, LockMiss, _plan, model_pin
from mcfuser.tune.tuned import MemoryCache, Tuned, TuneOptions
from mcfuser.tune.tuner import tune
from tests.support.chains import renamed
from tests.support.workers import Away, StandIn

CPU = device_named("cpu")
H200 = CATALOGUE["nvidia/h200"]
SMALL = gemm(2, 32, 32, 16, 16)


@pytest.fixture(scope="module")
def device() -> Iterator[Worker]:
    backend = CpuBackend()
    backend.runner = "tests.support.hasty_cpu"
    with Worker(backend, CPU, limit=3600.0) as running:
        yield running


def decided(chain: Chain, cut: tuple[int, ...], worker: Worker) -> Decision:
    """The cover of a cut, each piece tuned."""
    options = TuneOptions(trials=2, timeout=3600.0)
    parts = pieces(chain, cut)
    kernels = [tune(p, worker.device, MemoryCache(), options, worker=worker) for p in parts]
    cover = Cover(cut, parts, tuple(kernels))
    return Decision(unfused_cut(chain), cover, (cover,), (), "")


def lock_of(worker: Worker, *decisions: tuple[Chain, Decision]) -> Lock:
    """A lock as it is read from its text."""
    made = model_pin(worker.device, worker.backend, {c.key: (c, d) for c, d in decisions}, None)
    there = DeviceLock(toolchain=made.toolchain, sources=made.sources, chains=made.chains)
    return Lock.model_validate_json(Lock(devices={worker.device.key: there}).text)


@pytest.fixture(scope="module")
def whole(device: Worker) -> Decision:
    return decided(SMALL, (len(SMALL.operators),), device)


@pytest.fixture(scope="module")
def lock(device: Worker, whole: Decision) -> Lock:
    return lock_of(device, (SMALL, whole))


def rebuilt(lock: Lock, worker: Worker, chain: Chain) -> Decision:
    return LockedKernels(lock, "mcfuser.lock", worker, 0, math.inf).decision(chain)


def candidate(tuned: Tuned) -> tuple[object, ...]:
    return tuned.expression, dict(tuned.tiles), tuned.split, tuned.parts, dict(tuned.lowering)


def test_a_kernel_is_rebuilt_and_checked(device: Worker, whole: Decision, lock: Lock) -> None:
    found = rebuilt(lock, device, SMALL)
    (searched,), (kernel,) = whole.kernels, found.kernels
    assert candidate(kernel) == candidate(searched)
    assert (kernel.source, kernel.binary, kernel.key) == (
        searched.source, searched.binary, searched.key,
    )  # fmt: skip
    assert kernel.measured is not None and kernel.error is not None and kernel.error < 1e-5
    assert kernel.trials == 0 and found.reason == "as mcfuser.lock has it"


def other_names() -> Chain:
    return renamed(SMALL, {"m": "x"}, {"A": "Left"})


def test_names_do_not_matter(device: Worker, whole: Decision, lock: Lock) -> None:
    """The source has those that it had, whoever asks for it."""
    (searched,), (kernel,) = whole.kernels, rebuilt(lock, device, other_names()).kernels
    assert other_names().key == SMALL.key and other_names() != SMALL
    assert kernel.chain == SMALL and kernel.error is not None
    assert (kernel.source, candidate(kernel)) == (searched.source, candidate(searched))


def test_a_kernel_that_was_tuned_under_other_names_keeps_them(
    device: Worker, whole: Decision
) -> None:
    locked = lock_of(device, (other_names(), whole))
    (kernel,) = rebuilt(locked, device, other_names()).kernels
    assert kernel.source == whole.kernels[0].source


def test_without_names_a_kernel_has_those_of_its_chain(
    device: Worker, whole: Decision, lock: Lock
) -> None:
    (kernel,) = rebuilt(changed(lock, edited("kernel", names=None)), device, other_names()).kernels
    assert kernel.chain == other_names() and kernel.error is not None
    assert kernel.tiles["x"] == whole.kernels[0].tiles["m"]
    assert "Left" in kernel.source


def test_the_cover_is_the_locks(device: Worker) -> None:
    cut = unfused_cut(SMALL)
    parted = decided(SMALL, cut, device)
    found = rebuilt(lock_of(device, (SMALL, parted)), device, SMALL)
    assert found.kept is not None and found.kept.cut == cut and len(cut) == 2
    assert [k.source for k in found.kernels] == [k.source for k in parted.kernels]


def test_what_was_left_to_tvm_stays_there(device: Worker) -> None:
    nothing = Decision(unfused_cut(SMALL), None, (), (), "left to TVM: it was too slow")
    found = rebuilt(lock_of(device, (SMALL, nothing)), device, SMALL)
    assert found.kept is None and found.reason == "left to TVM, as mcfuser.lock has it"


def test_a_split_into_as_many_parts_as_there_are_iterations_is_built(device: Worker) -> None:
    """Of 32 positions, in tiles of 16, there are two parts, and not three."""
    long = gemm(2, 32, 32, 16, 16)
    names = {a.name: a.name for a in long.axes}
    tiles = {"m": 16, "n": 16, "k": 16, "h": 16}
    pin = KernelPin(expression="m.nkh", tiles=tiles, split="n", parts=2, knobs={})
    plan, _ = _plan(device, long, pin, names)
    assert (plan.split, plan.parts) == ("n", 2)
    with pytest.raises(ValueError, match="axis n has no 3 parts"):
        _plan(device, long, pin.model_copy(update={"parts": 3}), names)


def changed(lock: Lock, edit) -> Lock:
    """The lock with an edit of its document's only device, or of the only kernel in it."""
    document = json.loads(lock.text)
    (there,) = document["devices"].values()
    (chain,) = there["chains"].values()
    edit(there, chain, chain["kernels"][0])
    return Lock.model_validate(document)


def edited(which: str, **values: object):
    def edit(there, chain, kernel) -> None:
        {"device": there, "chain": chain, "kernel": kernel}[which].update(values)

    return edit


def half(chain: Chain) -> Chain:
    """The chain with a narrow last input."""
    narrow = [replace(t, dtype="float16" if t.name == "D" else t.dtype) for t in chain.tensors]
    return replace(chain, tensors=tuple(narrow))


NAMES = {"chain": "x", "axes": list("bmnkh"), "tensors": list("ABDCE")}
BAD = {
    "a toolchain": (edited("device", toolchain={"llvm": "1"}), "llvm is .* here and 1 in the lock"),
    "sources": (edited("device", sources="0"), "sources that generate code are .* and 0 in the"),
    "a cut": (edited("chain", cut=[1]), "its cut .* does not fit"),
    "a cut of more": (edited("chain", cut=[1, 1]), "its cut .* does not fit"),
    "too few axes": (edited("chain", axes="b=2"), "it has 5 axes, and the lock b=2"),
    "other axes": (edited("chain", axes="a=2 c=2 d=2 e=2 f=2"), "is none here: no axis"),
    "no expression": (edited("kernel", expression="(("), "is none here: "),
    "an expression of other axes": (edited("kernel", expression="xyz"), "is none here: "),
    "an expression of brackets alone": (edited("kernel", expression="(" * 300), "is none here: "),
    "a huge tile": (
        edited("kernel", tiles={"m": 1 << 30, "n": 32, "k": 16, "h": 16}), "is not in the chain's",
    ),
    "a split of no axis": (edited("kernel", split="z", parts=2), "is none here: no axis 'z'"),
    "a split of the grid": (edited("kernel", split="m", parts=2), "axis m has no 2 parts"),
    "a split into too many": (edited("kernel", split="n", parts=1 << 30), "has no 1073741824 pa"),
    "tiles of too few axes": (edited("kernel", tiles={"m": 16}), "tiles of .* are expected"),
    "too few names": (edited("kernel", names=NAMES | {"axes": ["m"]}), "names are given for 1 and"),
    "a name that is code": (
        edited("kernel", names=NAMES | {"tensors": ["A", "B", "C", "D", "E=exit()"]}),
        "must be named by letters",
    ),
    "an unknown knob": (edited("kernel", knobs={"odd": 1}), "knobs .*odd.* are only in one of"),
    "a knob's unknown value": (
        edited("kernel", knobs={"rows": 7, "vectors": 2, "lanes": 16, "matrix": False,
                                  "winograd": 0, "dots": 0, "neighbours": 1}),
        "the device does not allow knobs rows=7",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_lock_that_does_not_fit_is_a_miss(what: str, device: Worker, lock: Lock) -> None:
    edit, words = BAD[what]
    with pytest.raises(LockMiss, match=words) as miss:
        rebuilt(changed(lock, edit), device, SMALL)
    assert f"chain '{SMALL.name}' cannot be built as mcfuser.lock has it" in str(miss.value)
    assert "--update-lock" in str(miss.value)


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        (gemm(2, 32, 64, 16, 16), "its extents are b=2 m=32 n=64 .* here and b=2 m=32 n=32"),
        (half(SMALL), "its tensors are .*float16.* here and .* in the"),
        (replace(attention(2, 32, 32, 16, 16), name=SMALL.name), "of this name has other operat"),
        (attention(2, 32, 32, 16, 16), "none of the 1 locked chains has its operators"),
    ],
)
def test_a_chain_that_is_not_locked_is_a_miss(
    chain: Chain, words: str, device: Worker, lock: Lock
) -> None:
    with pytest.raises(LockMiss, match=words):
        rebuilt(lock, device, chain)


def test_another_device_is_a_miss(lock: Lock) -> None:
    with pytest.raises(LockMiss, match=f"this device is nvidia/h200.* the lock is for {CPU.key}"):
        rebuilt(lock, Away(H200), SMALL)


class Failing(StandIn):
    """Every program fails, for this reason."""

    def __init__(self, why: str) -> None:
        super().__init__(CPU)
        self.why = why

    def measure(self, chain, programs, seed, **more):
        return [failure(self.why) for _ in programs]


def test_a_wrong_kernel_is_no_kernel(lock: Lock) -> None:
    with pytest.raises(LockMiss, match="its kernel failed: it is wrong by far"):
        rebuilt(lock, Failing("it is wrong by far"), SMALL)
    with pytest.raises(ValueError, match="was not checked in time; give it more"):
        rebuilt(lock, Failing(NO_TIME), SMALL)


def test_a_kernel_for_a_device_that_is_not_at_hand() -> None:
    chain, away = attention(4, 128, 128, 64, 64, "float16"), Away(H200)
    tuned = tune(chain, H200, MemoryCache(), TuneOptions(), worker=away)
    backend: Backend = backend_of(H200)
    cover = Cover((len(chain.operators),), (chain,), (tuned,))
    locked = lock_of(away, (chain, Decision(unfused_cut(chain), cover, (cover,), (), "")))
    assert away.backend is backend
    (kernel,) = rebuilt(locked, away, chain).kernels
    assert kernel.source == tuned.source and kernel.binary == tuned.binary
    assert kernel.measured is None
