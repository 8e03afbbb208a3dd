"""How long a module takes to build is told by its import, its chains, and what is known of them."""

from __future__ import annotations

import math

import pytest

from mcfuser.backend import Backend
from mcfuser.backends import backend_of
from mcfuser.building import AGAIN, EACH, ModuleToBuild
from mcfuser.devices.catalogue import device_named

CPU, GPU = (backend_of(device_named(name)) for name in ("cpu", "h200"))


def left(took: float, worked: float, chains: int = 5, backend: Backend = CPU) -> float:
    """Seconds before the end at which tuning stops, by what the import took."""
    module = ModuleToBuild(took, worked, chains, backend, 1000.0, 100.0)
    return 100.0 - module.tuned_by(module.seconds())


def test_a_busy_machine_and_many_chains_leave_more_time_to_build() -> None:
    assert left(1.0, 1.0) < left(4.0, 4.0) < left(4.0, 1.0)
    assert left(1.0, 1.0, 50) > 9.0, "EfficientNet-B0 has 50, and is built in 9 seconds"
    quicker = 4.0 * (CPU.building - GPU.building)
    started = left(4.0, 1.0, 0, GPU) - left(4.0, 1.0, 0) + quicker
    assert started == pytest.approx(4 * GPU.starting), "as many times slower as the import"
    assert left(1.0, 1.0, 50, GPU) < left(1.0, 1.0, 50), "their kernels are there"
    assert left(1.0, 1.0, 22, GPU) > 6.1, "what a network of bottlenecks was built in"
    assert left(3.0, 3.0, 121) > 15.0, "DenseNet-121 has as many, and took so long"


def test_large_weights_leave_more_time_to_check_the_module() -> None:
    """However quickly they were imported: a U-Net's check takes as long as its import."""
    few, many = (ModuleToBuild(took, took, 5, CPU, weights=860_000_000) for took in (1.0, 10.0))
    assert 22.0 < few.seconds() < 30.0
    assert many.seconds() - few.seconds() == pytest.approx(9.0 * CPU.building)
    busy = ModuleToBuild(20.0, 10.0, 5, CPU, weights=860_000_000)
    assert busy.seconds() > 2 * few.seconds()


def test_a_transformer_of_half_a_billion_weights_leaves_its_searches_time() -> None:
    """Stable Diffusion 3 with six layers was imported in 15 seconds, built in 8.8 and checked in
    10.2 on an H200's host; on two cores in 23.9 and 21.8."""
    host, cores = (ModuleToBuild(took, took, 19, GPU, weights=499_000_000) for took in (15.0, 23.9))
    assert 8.8 + 10.2 < host.seconds() < 30.0
    assert 21.8 + 10.0 < cores.seconds() < 36.0


def test_only_chains_that_there_is_time_for_are_counted() -> None:
    busy = ModuleToBuild(20.0, 10.0, 56, CPU, left=40.0).seconds()
    assert 32.0 < busy < 40.0, "a UNet's import takes a third of a minute: few of its chains' turn"
    soon, never = (ModuleToBuild(4.0, 4.0, 20, CPU, left=left) for left in (50.0, math.inf))
    assert soon.seconds() == never.seconds()


def test_no_chain_is_left_where_the_rest_is_built_slower_than_kernels_are_chosen() -> None:
    late = {b: ModuleToBuild(20.0, 20.0, 56, b, left=10.0) for b in (CPU, GPU)}
    assert late[CPU].leaves and late[CPU].seconds() == late[CPU].module
    assert not late[GPU].leaves
    assert late[GPU].seconds() == pytest.approx(late[GPU].module + 56 * GPU.installing)


def test_tuning_ends_when_it_is_wanted_or_early_enough_to_build() -> None:
    module = ModuleToBuild(1.0, 1.0, 5, CPU, 60.0)
    assert module.tuned_by(20.0) == 60.0, "without an end all is tuning's"
    for end, deadline in ((1000.0, 60.0), (70.0, 50.0)):
        assert ModuleToBuild(1.0, 1.0, 5, CPU, 60.0, end).tuned_by(20.0) == deadline


def test_what_kernels_took_to_compile_tells_what_the_others_take() -> None:
    module = ModuleToBuild(0.5, 0.5, 24, CPU)
    before = module.module + 24 * CPU.installing
    assert module.seconds() == before
    assert module.seconds([0.1]) == pytest.approx(module.module + 24 * (AGAIN * 0.1 + EACH))
    assert module.seconds([9.0] * 24) == pytest.approx(before), "none takes more than the most"
    twice = ModuleToBuild(1.0, 0.5, 24, CPU)
    assert twice.seconds([0.1] * 24) - twice.module == pytest.approx(
        2 * (module.seconds([0.1] * 24) - module.module)
    )
