"""Measuring on a GPU, as far as a machine without one shows: refusals, requests, values."""

from __future__ import annotations

import io
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from mcfuser.backends.cuda.worker import GpuKernel, GpuWorker, _request
from mcfuser.chain import gemm
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.triton import Lowering, generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.measure.worker import measured
from mcfuser.process.child import WAITS, WORKS, Child
from mcfuser.space.prune import distinct, prune, space
from tests.support.driver import has_driver

H200 = CATALOGUE["nvidia/h200"]
CHAIN = gemm(1, 64, 64, 32, 32, "float16")


def kernel(split: bool = False) -> GpuKernel:
    found = distinct(prune(space(CHAIN), H200)[0])
    plan, tiles = found.tables[0]
    schedule = plan.schedule(dict(zip(plan.axes, (int(n) for n in tiles[0]), strict=True)))
    source = generate(schedule, "kernel", Lowering(4, 2))
    return GpuKernel(CHAIN, source, Binary(b"\x7fELF", "kernel", 1024, 40, 0, 128))


class Crowded:
    """A GPU that another process fills."""

    arch, uuid = "90", "GPU-0"

    def __init__(self, name: str) -> None:
        self.name = name
        self.memory_resource = SimpleNamespace(allocate=self.refuse)

    def refuse(self, *arguments: object, **options: object) -> None:
        raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: the API call failed, no memory")

    set_current = create_stream = refuse


def crowd(monkeypatch: pytest.MonkeyPatch, free: int, total: int) -> None:
    """So many MiB, as the GPU's own library tells."""
    from cuda.bindings import nvml

    from mcfuser.backends.cuda import driver as gpus

    left = SimpleNamespace(free=free << 20, total=total << 20)
    told = SimpleNamespace(
        NvmlError=nvml.NvmlError,
        init_v2=lambda: None,
        device_get_handle_by_uuid=lambda uuid: 0,
        device_get_memory_info_v2=lambda handle: left,
    )
    monkeypatch.setattr(gpus, "nvml", told)


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_without_a_driver_every_program_is_refused_in_one_sentence() -> None:
    with GpuWorker(H200) as worker:
        worker.warm()
        assert worker.refused() == "no NVIDIA GPU is at hand: its driver is not installed"
        found = worker.measure(CHAIN, [[kernel()], [kernel()]], 0)
    assert [f.failed for f in found] == [worker.refused()] * 2


def test_a_request_holds_what_a_launch_needs() -> None:
    one = kernel()
    request = json.loads(json.dumps(_request(CHAIN, [[one]], 3, True, {"A": 10.0}, False)))
    (made,) = request["programs"][0]
    assert made["launches"][0]["arguments"] == ["A", "B", "D", "E"]
    assert made["launches"][0]["blocks"] == list(one.source.grid)
    assert (made["threads"], made["shared"]) == (128, 1024)
    assert request["whole"] and request["offsets"] == {"A": 10.0} and request["seed"] == 3


def test_a_child_that_cannot_open_the_gpu_refuses_in_one_sentence(monkeypatch) -> None:
    monkeypatch.setattr(GpuWorker, "_refuse_missing", lambda self: False)
    with GpuWorker(H200, cores=1) as worker:
        worker._child = Child("timeit", ["raise ImportError('libcuda is too old')"])
        found = worker.measure(CHAIN, [[kernel()], [kernel()]], 0)
    why = "no GPU could be opened: the measuring process died with status 1: ImportError: libcuda"
    assert [f.failed for f in found] == [f"{why} is too old"] * 2


class TestOnTheGpuSide:
    """What needs cuda-core, but no GPU."""

    @pytest.fixture(autouse=True)
    def needs_cuda_core(self) -> None:
        pytest.importorskip("cuda.core")

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
        from mcfuser.backends.cuda.driver import is_device

        known = CATALOGUE[f"nvidia/{device}"]
        assert is_device(name, known.arch, known) is same
        assert not is_device(name, "sm_75", known)

    def test_a_driver_too_old_is_told_before_it_is_asked_for_more(self, monkeypatch) -> None:
        from mcfuser.backends.cuda import driver as gpus

        monkeypatch.setattr(gpus, "driver", SimpleNamespace(cuDriverGetVersion=lambda: (0, 11080)))
        with pytest.raises(gpus.Unusable) as told:
            gpus.find(H200)
        assert str(told.value) == (
            "the NVIDIA driver offers CUDA 11.8, and measuring needs 12.0; update the driver"
        )

    @pytest.mark.parametrize(
        ("handles", "told"),
        [
            ([], "no NVIDIA GPU is at hand"),
            (["NVIDIA L4"], "the GPU at hand is NVIDIA L4 (sm_90), not nvidia/h200"),
            (
                ["NVIDIA H200"],
                "NVIDIA H200 has 7 of its 143771 MiB left, too few for what measuring needs: "
                "end the process that fills it, or wait until it is done",
            ),
        ],
    )
    def test_a_gpu_that_cannot_be_opened_is_one_sentence(self, handles, told, monkeypatch) -> None:
        from mcfuser.backends.cuda import driver as gpus

        crowd(monkeypatch, 7, 143771)
        monkeypatch.setattr(
            gpus, "driver",
            SimpleNamespace(cuDriverGetVersion=lambda: (0, 13000), cuInit=lambda flags: (0,)),
        )  # fmt: skip
        made = SimpleNamespace(get_all_devices=lambda: [Crowded(n) for n in handles])
        monkeypatch.setattr(gpus, "Handle", made)
        with pytest.raises(gpus.Unusable) as caught:
            gpus.find(H200)
        assert str(caught.value) == told

    @pytest.mark.parametrize(
        ("total", "told"),
        [
            (143771, "has 100 of its 143771 MiB left, too few for the 512 MiB that measuring"),
            (256, "has 256 MiB, and 512 are needed"),
        ],
    )
    def test_tensors_that_find_no_room_are_one_sentence(self, total, told, monkeypatch) -> None:
        from mcfuser.backends.cuda import driver as gpus

        crowd(monkeypatch, 100, total)
        one = gpus.Gpu(Crowded("NVIDIA H200"), None, {})
        with pytest.raises(gpus.Unusable, match=f"^NVIDIA H200 {told}"):
            gpus.allocate(one, 512 << 20)

    def test_a_full_gpu_is_no_fault_of_the_program(self, monkeypatch) -> None:
        from mcfuser.backends.cuda import driver as gpus
        from mcfuser.backends.cuda.problem import Problem
        from mcfuser.backends.cuda.runner import _checked
        from mcfuser.measure.case import Case

        crowd(monkeypatch, 0, 143771)
        problem = Problem(gpus.Gpu(Crowded("NVIDIA H200"), None, {}), Case(CHAIN, 0, {}, 1e-2))
        request = _request(CHAIN, [[kernel()]], 0, True, {}, False)
        answer = _checked(problem, request["programs"][0])
        found = measured(answer)
        assert found.unusable and not answer["over"]
        assert found.failed.startswith("NVIDIA H200 has 0 of its 143771 MiB left")

    def test_what_is_announced_is_prepared_and_not_answered(self, monkeypatch) -> None:
        from mcfuser.backends.cuda import runner as child

        prepared = list[tuple[int, bool]]()

        def of(problem: child.Problem) -> tuple[int, bool]:
            return problem.case.seed, problem.case.budget == child.WHOLE

        def prepare(problem: child.Problem) -> None:
            prepared.append(of(problem))
            problem.__dict__["buffers"] = problem.case.seed

        def answers(problem: child.Problem, request: object) -> list[dict[str, object]]:
            held = {p.case.seed for p in known if "buffers" in p.__dict__}
            done = {"seed": problem.case.seed, "held": sorted(held), "over": False}
            return [WAITS, WORKS, done]

        known = list[child.Problem]()
        made = child.Problem
        monkeypatch.setattr(
            child, "Problem", lambda *given: known.append(made(*given)) or known[-1]
        )
        monkeypatch.setattr(made, "prepare", prepare)
        monkeypatch.setattr(child, "_answers", answers)
        asked = [_request(CHAIN, (), seed, seed == 1, {}, seed == 1) for seed in (0, 1, 2, 3)]
        ahead = [request | {"ahead": True} for request in asked[:2]]
        lines = [*ahead, *asked, asked[0]]
        told = io.BytesIO()
        child.serve(None, io.BytesIO(b"".join(json.dumps(x).encode() + b"\n" for x in lines)), told)
        found = [json.loads(line) for line in told.getvalue().splitlines()]
        assert found[:2] == [WAITS, WORKS], "a child that waits for the GPU says so"
        found = [x for x in found if x not in (WAITS, WORKS)]
        assert [x["seed"] for x in found] == [0, 1, 2, 3, 0]
        assert prepared == [(0, False), (1, True)]
        assert [of(p) for p in known] == [
            (0, False), (1, True), (2, False), (3, False), (0, False),
        ]  # fmt: skip
        assert all(x["held"] in ([], [x["seed"]]) for x in found[1:])


def test_a_gpu_that_there_was_no_time_for_is_not_given_up(monkeypatch) -> None:
    monkeypatch.setattr(GpuWorker, "_refuse_missing", lambda self: False)
    with GpuWorker(H200, cores=1) as worker:
        worker._child = Child("timeit", ["import time; time.sleep(60)"])
        assert worker.refused(time.monotonic()) == "no time was left to open the GPU"
        greeting = "import json, time; print(json.dumps({'failed': None}), flush=True)"
        worker._child = Child("timeit", [f"{greeting}; time.sleep(60)"])
        assert worker.refused() is None


def test_tensor_maps_travel_with_a_request() -> None:
    one = kernel()
    found = distinct(prune(space(CHAIN), H200)[0])
    plan, tiles = found.tables[0]
    schedule = plan.schedule(dict(zip(plan.axes, (int(n) for n in tiles[0]), strict=True)))
    source = generate(schedule, "kernel", Lowering(tma=True))
    program = [GpuKernel(CHAIN, source, one.binary)]
    request = json.loads(json.dumps(_request(CHAIN, [program], 0, False, {}, False)))
    (launch,) = request["programs"][0][0]["launches"]
    assert launch["arguments"] == ["E"]
    for told, m in zip(launch["maps"], source.launches[0].maps, strict=True):
        assert (told["tensor"], told["start"], told["dtype"]) == (m.tensor, 0, "float16")
        assert [tuple(told[n]) for n in ("shape", "strides", "part")] == [
            m.shape,
            m.strides,
            m.part,
        ]
        assert told["swizzle"] == m.swizzle


def test_a_tensor_map_is_passed_by_value() -> None:
    """128 bytes, then shape and strides, as a kernel takes them; other arguments as they are."""
    driver = pytest.importorskip("cuda.bindings.driver")
    from mcfuser.backends.cuda.driver import _packed

    m = driver.CUtensorMap()
    m.opaque = list(map(driver.cuuint64_t, range(16)))
    assert _packed(m).view(np.uint64).tolist() == list(range(16))
    assert _packed(np.int32(-7)).view(np.int32).tolist() == [-7]
    assert _packed(SimpleNamespace(handle=1 << 40)).view(np.uint64).tolist() == [1 << 40]
