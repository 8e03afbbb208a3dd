"""Kernels that wait for those ahead of them, and when they let the next one start."""

from __future__ import annotations

import pytest

from mcfuser.codegen.triton import generate
from mcfuser.codegen.triton.called import NEXT, Called, handover, waited
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.statement import Init, Loop, Store
from tests.support.triton_cases import chain_named, scheduled

DEPENDENT = Called(("A_ptr",), dependent=True)
STORE = Store("C", "C")
LOOP = Loop("k", "serial", ())


def test_only_kernels_that_are_dependent_wait() -> None:
    assert waited(Called(("A_ptr",))) == []
    (line,) = waited(DEPENDENT)
    assert "gdc_wait" in line


def test_the_next_kernel_may_start_before_the_first_store_behind_all_loops() -> None:
    other = Store("E", "E")
    body = (Init("C", 0.0), LOOP, STORE, other)
    assert handover(DEPENDENT, body) is STORE
    assert handover(DEPENDENT, (Init("C", 0.0), STORE)) is STORE
    assert handover(DEPENDENT, (STORE, LOOP, other)) is other
    assert handover(Called(("A_ptr",)), body) is None


def test_a_block_that_stores_in_a_loop_lets_the_next_kernel_start_as_it_ends() -> None:
    assert handover(DEPENDENT, (Init("C", 0.0), Loop("k", "serial", (STORE,)))) is None
    assert handover(DEPENDENT, (STORE, LOOP)) is None


@pytest.mark.parametrize("combine", ["kernel", "last"])
def test_parts_of_a_split_let_the_next_kernel_start_as_they_end(combine: str) -> None:
    """The block that combines ends long after the others."""
    chain = chain_named("attention", {"b": 2, "m": 1, "n": 256, "k": 64, "h": 64}, "float16")
    tiles = {"m": 1, "n": 64, "k": 64, "h": 64}
    split = scheduled(chain, "mh.nk", tiles, "n", 4)
    text = generate(split, "kernel", TritonKnobs(combine=combine), dependent=True).text
    assert "gdc_wait" in text and NEXT.strip() not in text


def test_a_kernel_says_once_that_the_next_may_start_and_then_stores() -> None:
    chain = chain_named("gemm", {"b": 2, "m": 64, "n": 256, "k": 64, "h": 64}, "float16")
    schedule = scheduled(chain, "mh.nk", {"m": 64, "n": 64, "k": 64, "h": 64})
    before, after = generate(schedule, "kernel", dependent=True).text.split(f"{NEXT}\n")
    assert "tl.store" not in before and "for n_start" in before
    assert after.lstrip().startswith("tl.store") and "for " not in after
