"""Kernels that are compiled side by side, for the device at hand."""

from __future__ import annotations

import pytest

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.backends.cuda.builder import CudaBuilder
from mcfuser.chain import gemm
from mcfuser.codegen.triton import from_record
from mcfuser.devices.catalogue import device_named
from mcfuser.lowering.triton.knobs import TritonKnobs
from tests.support.triton_cases import scheduled


@pytest.mark.parametrize(
    ("device", "waits"), [("nvidia/a100", False), ("nvidia/l4", False), ("nvidia/h100", True)]
)
def test_kernels_wait_where_the_architecture_can(device: str, waits: bool) -> None:
    chain = gemm(1, 32, 32, 32, 32, "float16")
    schedule = scheduled(chain, "mh.nk", dict.fromkeys("mnkh", 32))
    builder = CudaBuilder(device_named(device), 1)
    try:
        kernel = builder.begin(chain, schedule, "kernel", TritonKnobs()).kernel()
    finally:
        builder.stop()
    same = {t.name: t.name for t in chain.tensors}, {a.name: a.name for a in chain.axes}
    assert from_record(kernel.launch, kernel.source, *same).dependent is waits
    assert ("gdc_wait" in kernel.source) is waits
    occupancy = CUDA.occupancy(kernel, device_named(device))
    assert occupancy is not None and occupancy.threads == 32 * TritonKnobs().warps
    assert occupancy.blocks > 1 and 0 < occupancy.fraction <= 1


def test_what_is_begun_ahead_is_made_once_and_never_abandoned() -> None:
    chain = gemm(1, 32, 32, 32, 32, "float16")
    schedule = scheduled(chain, "mh.nk", dict.fromkeys("mnkh", 32))
    builder = CudaBuilder(device_named("h100"), 2)
    try:
        builder.ahead(chain, schedule, "kernel", TritonKnobs())
        assert builder.foreseen("kernel") and not builder.foreseen("another")
        builder.abandon()
        begun = builder.begin(chain, schedule, "kernel", TritonKnobs())
        assert not builder.foreseen("kernel") and not builder.compilers.processes
        builder.abandon()
        assert begun.kernel().source == begun.source.text
        builder.ahead(chain, schedule, "kernel", TritonKnobs())
        other = builder.begin(chain, schedule, "kernel", TritonKnobs(warps=2))
        assert other.source.warps == 2 and other.kernel().binary != begun.kernel().binary
        assert builder.foreseen("kernel"), "that is another one"
    finally:
        builder.stop()
    assert not builder.early.processes
