"""Measuring on a GPU, as far as a machine without one shows: refusals, requests, values."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mcfuser.backend import Kernel
from mcfuser.backends.cuda.backend import CUDA, CudaBackend
from mcfuser.backends.cuda.builder import compiled
from mcfuser.chain import gemm
from mcfuser.codegen.cuda.cubin import Binary
from mcfuser.codegen.triton import from_record, generate
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.measure.case import Case
from mcfuser.measure.request import Inputs, Measured, MeasureRequest
from mcfuser.measure.worker import Worker
from mcfuser.process.child import Child
from mcfuser.space.prune import distinct, prune, space
from tests.support.driver import has_driver

H200 = CATALOGUE["nvidia/h200"]
CHAIN = gemm(1, 64, 64, 32, 32, "float16")


PLAIN = TritonKnobs(4, 2)


def kernel(lowering: TritonKnobs = PLAIN) -> Kernel:
    found = distinct(prune(space(CHAIN), H200)[0])
    plan, tiles = found.tables[0]
    schedule = plan.schedule(dict(zip(plan.axes, (int(n) for n in tiles[0]), strict=True)))
    source = generate(schedule, "kernel", lowering)
    return compiled(CHAIN, source, Binary(b"\x7fELF", "kernel", 1024, 40, 0, 128))


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
    with Worker(CUDA, H200) as worker:
        worker.warm()
        assert worker.refused() == "no NVIDIA GPU is at hand: its driver is not installed"
        found = worker.measure(CHAIN, [[kernel()], [kernel()]], 0)
    assert [f.failed for f in found] == [worker.refused()] * 2


def test_a_kernel_holds_what_a_launch_needs() -> None:
    one = kernel()
    request = MeasureRequest(CHAIN, Inputs(3, 1e-2, 1e9, {"A": 10.0}), ((one,),), together=True)
    again = MeasureRequest.from_json(json.loads(json.dumps(request.to_json())))
    assert again == request
    pytest.importorskip("cuda.core")
    from mcfuser.backends.cuda.runner import read

    source = read(again.programs[0][0])
    assert source.launches[0].arguments == ("A", "B", "D", "E")
    assert (source.threads, again.programs[0][0].resources["shared"]) == (128, 1024)


def test_a_child_that_cannot_open_the_gpu_refuses_in_one_sentence(monkeypatch) -> None:
    monkeypatch.setattr(CudaBackend, "missing", lambda self: None)
    with Worker(CUDA, H200, cores=1) as worker:
        worker._child = Child("timeit", ["raise ImportError('libcuda is too old')"])
        found = worker.measure(CHAIN, [[kernel()], [kernel()]], 0)
    why = "could not be opened: the measuring process died with status 1: ImportError: libcuda"
    assert [f.failed for f in found] == [f"nvidia/h200 {why} is too old"] * 2


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
        from mcfuser.backends.cuda.runner import GpuRunner
        from mcfuser.measure.child import _checked

        crowd(monkeypatch, 0, 143771)
        runner = GpuRunner(gpus.Gpu(Crowded("NVIDIA H200"), None, {}))
        found = _checked(runner, Case(CHAIN, 0, {}, 1e-2), runner.build([kernel()]))
        assert isinstance(found, Measured) and found.unusable and not found.fatal
        assert found.failed.startswith("NVIDIA H200 has 0 of its 143771 MiB left")

    def test_the_gpu_holds_the_inputs_of_one_case(self, monkeypatch) -> None:
        from mcfuser.backends.cuda import driver as gpus
        from mcfuser.backends.cuda.runner import GpuRunner

        sent: list[int] = []
        monkeypatch.setattr(gpus, "upload", lambda gpu, array: sent.append(array.size))
        runner = GpuRunner(gpus.Gpu(Crowded("NVIDIA H200"), None, {}))
        cases = [Case(CHAIN, seed, {}, 1e-2) for seed in (0, 1)]
        for case in (cases[0], cases[0], cases[1], cases[0]):
            runner._placed(case)
        assert len(sent) == 3 * len(CHAIN.inputs)

    def test_constants_lie_on_the_gpu_more_often_than_its_cache_holds(self, monkeypatch) -> None:
        from mcfuser.backends.cuda import driver as gpus
        from mcfuser.backends.cuda.runner import GpuRunner

        monkeypatch.setattr(gpus, "upload", lambda gpu, array: object())
        fixed = tuple(replace(t, constant=t.name == "D") for t in CHAIN.tensors)
        size = CHAIN.size("n") * CHAIN.size("h") * 2
        gpu = gpus.Gpu(Crowded("NVIDIA H200"), None, {})
        runner = GpuRunner(gpu, cache=3 * size)
        placed = runner._placed(Case(replace(CHAIN, tensors=fixed), 0, {}, 1e-2))
        assert len({id(one["D"]) for one in placed}) == len(placed) == 7
        for name in {*CHAIN.inputs} - {"D"}:
            assert len({id(one[name]) for one in placed}) == 1, "written by the kernel before"
        assert len(runner._placed(Case(CHAIN, 0, {}, 1e-2))) == 1

    def test_the_runs_of_a_graph_read_the_copies_in_turns(self, monkeypatch) -> None:
        from mcfuser.backends.cuda import timing

        class Stream:
            """A stream, and a graph that is built: it keeps what was launched on it."""

            def __init__(self) -> None:
                self.seen: list[str] = []
                self.upload = self.begin_building = lambda *stream: None
                self.create_graph_builder = self.end_building = self.complete = lambda: self

        class Launch(str):
            def on(self, stream: Stream) -> None:
                stream.seen.append(str(self))

        stream = Stream()
        turns = [[Launch(f"{kernel}{copy}") for kernel in "pq"] for copy in range(3)]
        timing._captured(SimpleNamespace(stream=stream), turns, 4)
        assert stream.seen == ["p0", "q0", "p1", "q1", "p2", "q2", "p0", "q0"]

    @pytest.mark.parametrize(
        ("nbytes", "count"), [(0, 1), (1, 64), (10, 21), (100, 3), (200, 2), (10**9, 2)]
    )
    def test_copies_are_as_many_as_push_one_out_of_the_cache(self, nbytes, count) -> None:
        from mcfuser.backends.cuda.runner import copies

        assert copies(nbytes, 100) == count


def test_a_gpu_that_there_was_no_time_for_is_not_given_up(monkeypatch) -> None:
    monkeypatch.setattr(CudaBackend, "missing", lambda self: None)
    with Worker(CUDA, H200, cores=1) as worker:
        worker._child = Child("timeit", ["import time; time.sleep(60)"])
        assert worker.refused(time.monotonic()) == "no time was left to open the device"
        greeting = "import json, time; print(json.dumps({'failed': None}), flush=True)"
        worker._child = Child("timeit", [f"{greeting}; time.sleep(60)"])
        assert worker.refused() is None


def test_tensor_maps_travel_with_a_kernel() -> None:
    one = kernel(TritonKnobs(tma=True))
    again = Kernel.from_json(json.loads(json.dumps(one.to_json())))
    names = {t.name: t.name for t in CHAIN.tensors}, {a.name: a.name for a in CHAIN.axes}
    (launch,) = from_record(again.launch, again.source, *names).launches
    assert launch.arguments == ("E",)
    assert {m.tensor for m in launch.maps} == {*CHAIN.inputs}
    assert all(m.start == 0 and m.dtype == "float16" for m in launch.maps)


def test_a_tensor_map_is_passed_by_value() -> None:
    """128 bytes, then shape and strides, as a kernel takes them; other arguments as they are."""
    driver = pytest.importorskip("cuda.bindings.driver")
    from mcfuser.backends.cuda.driver import _packed

    m = driver.CUtensorMap()
    m.opaque = list(map(driver.cuuint64_t, range(16)))
    assert _packed(m).view(np.uint64).tolist() == list(range(16))
    assert _packed(np.int32(-7)).view(np.int32).tolist() == [-7]
    assert _packed(SimpleNamespace(handle=1 << 40)).view(np.uint64).tolist() == [1 << 40]
