"""Kernels that wait for those ahead of them, and those that do not."""

from __future__ import annotations

from mcfuser.codegen.triton.called import Called, waited


def test_only_kernels_that_are_dependent_wait() -> None:
    assert waited(Called(("A_ptr",))) == []


def test_the_next_kernel_may_start_only_when_this_one_has_waited() -> None:
    """A kernel then waits for one other at most, and with it for all before."""
    wait, let_start = waited(Called(("A_ptr",), dependent=True))
    assert "gdc_wait" in wait and "gdc_launch_dependents" in let_start
