"""Measuring on a GPU, as far as a machine without one shows: refusals, requests, values."""

from __future__ import annotations

import ctypes
import json
from types import SimpleNamespace

import numpy as np
import pytest

from mcfuser.chain import gemm
from mcfuser.child import Child
from mcfuser.codegen.cubin import Binary
from mcfuser.codegen.triton import Lowering, generate
from mcfuser.device import CATALOGUE
from mcfuser.measure_gpu import GpuKernel, GpuWorker, _request
from mcfuser.space.prune import distinct, prune, space

H200 = CATALOGUE["nvidia/h200"]
CHAIN = gemm(1, 64, 64, 32, 32, "float16")


def kernel(split: bool = False) -> GpuKernel:
    found = distinct(prune(space(CHAIN), H200)[0])
    plan, tiles = found.tables[0]
    schedule = plan.schedule(dict(zip(plan.axes, (int(n) for n in tiles[0]), strict=True)))
    source = generate(schedule, "kernel", Lowering(4, 2))
    return GpuKernel(CHAIN, source, Binary(b"\x7fELF", "kernel", 1024, 40, 0, 128))


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_every_program_is_refused_in_one_sentence() -> None:
    with GpuWorker(H200) as worker:
        worker.warm()
        assert worker.refused() == "no NVIDIA GPU is at hand: its driver is not installed"
        found = worker.measure(CHAIN, [[kernel()], [kernel()]], 0)
    assert [f.failed for f in found] == [worker.refused()] * 2


def test_a_request_holds_what_a_launch_needs() -> None:
    one = kernel()
    request = json.loads(json.dumps(_request(CHAIN, [[one]], 3, True, {"A": 10.0})))
    (made,) = request["programs"][0]
    assert made["launches"][0]["arguments"] == ["A", "B", "D", "E"]
    assert made["launches"][0]["blocks"] == list(one.source.grid)
    assert (made["threads"], made["shared"]) == (128, 1024)
    assert request["whole"] and request["offsets"] == {"A": 10.0} and request["seed"] == 3


def test_answers_of_a_child_that_ends_say_so() -> None:
    child = Child("json.tool", ["--no-such-option"])
    child.start()
    (answer,) = child.ask({"a": 1}, 3, 10.0)
    assert "died" in str(answer)
    assert not child.alive


def test_a_child_that_is_late_is_stopped() -> None:
    child = Child("timeit", ["-n", "1", "-r", "1", "import time; time.sleep(60)"])
    child.start()
    assert child.line(0.5) == "it ran longer than 0.5 s"
    assert not child.alive


class TestOnTheGpuSide:
    """What needs cuda-core, but no GPU."""

    @pytest.fixture(autouse=True)
    def needs_cuda_core(self) -> None:
        pytest.importorskip("cuda.core")

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
    def test_values_survive_their_storage(self, dtype: str) -> None:
        from mcfuser.measure_gpu_child import decode, encode

        values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
        once = decode(encode(values, dtype), dtype)
        assert np.array_equal(decode(encode(once, dtype), dtype), once)
        limit = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 0.0}[dtype]
        assert np.abs(once - values).max() <= limit * np.abs(values).max()

    def test_poison_is_nan_in_bfloat16(self) -> None:
        from mcfuser.measure_gpu_child import decode

        assert np.isnan(decode(np.full(4, 0xFFFF, np.uint16), "bfloat16")).all()

    @pytest.mark.parametrize(
        ("name", "device", "same"),
        [
            ("NVIDIA H200", "h200", True),
            ("NVIDIA H100 80GB HBM3", "h100", True),
            ("NVIDIA H100 80GB HBM3", "h200", False),
            ("NVIDIA GeForce RTX 3080", "rtx3080", True),
            ("NVIDIA A100-SXM4-80GB", "a100", True),
            ("NVIDIA L40S", "l4", False),
        ],
    )
    def test_a_gpu_is_known_by_its_name(self, name: str, device: str, same: bool) -> None:
        from mcfuser.gpu import is_device

        known = CATALOGUE[f"nvidia/{device}"]
        assert is_device(name, known.arch, known) is same
        assert not is_device(name, "sm_75", known)

    def test_a_program_is_wrong_where_an_output_was_not_written(self, monkeypatch) -> None:
        from mcfuser import gpu as gpus
        from mcfuser.measure_gpu_child import Problem
        from mcfuser.space.reference import evaluate

        problem = Problem(SimpleNamespace(), CHAIN, 0, True, {})
        right = evaluate(CHAIN, {n: a.reshape(CHAIN.shape(n)) for n, a in problem.data.items()})
        stored = right["E"].astype(np.float16).reshape(-1)
        monkeypatch.setattr(gpus, "download", lambda gpu, buffer, array: buffer)
        assert problem.error({"E": stored}, 1e-2) < 1e-3
        holed = stored.copy()
        holed[7] = np.nan
        assert problem.error({"E": holed}, 1e-2) == "output 'E' is not finite"
        assert "more than 1e-02" in str(problem.error({"E": stored * np.float16(1.5)}, 1e-2))
