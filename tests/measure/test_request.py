"""Requests and answers of the process that measures travel as JSON and come back equal."""

from __future__ import annotations

import json

import pytest

from mcfuser.backend import Kernel
from mcfuser.chain import from_json, gemm, to_json
from mcfuser.measure.request import (
    Inputs,
    Measured,
    MeasureRequest,
    at_extents,
    failure,
    smaller_extents,
)

CHAIN = gemm(2, 32, 32, 16, 16)
KERNEL = Kernel(CHAIN, "def kernel(): ...", {"name": "kernel"}, b"\x00\xff", {"shared": 1024})
RUN_TIME = from_json({
    "axes": {"m": [1, 32], "n": 48}, "tensors": {"A": {"shape": ["m", "n"]}},
    "operators": ["Y[m] = sum[n] A[m, n]"],
})  # fmt: skip


@pytest.mark.parametrize(
    "request_",
    [
        MeasureRequest(CHAIN, Inputs(3, 1e-5, 2e8)),
        MeasureRequest(CHAIN, Inputs(3, 1e-5, 2e8, {"A": 1e4}, True), ((KERNEL, KERNEL), (KERNEL,)),
                {"m": 7}, True, 1, 12.5, True),
    ],
)  # fmt: skip
def test_a_request_comes_back_equal(request_: MeasureRequest) -> None:
    assert MeasureRequest.from_json(json.loads(json.dumps(request_.to_json()))) == request_


@pytest.mark.parametrize(
    "answer",
    [
        failure("it crashed"),
        Measured(1e-6, 1e-7, None, (1e-6, 2e-6), {"in_turns": 2}),
        Measured(None, None, "the GPU is full", unusable=True),
        Measured(None, None, "an illegal address", fatal=True),
    ],
)
def test_an_answer_comes_back_equal(answer: Measured) -> None:
    assert Measured.from_json(json.loads(json.dumps(answer.to_json()))) == answer


def test_a_document_of_another_form_is_told() -> None:
    with pytest.raises(KeyError):
        MeasureRequest.from_json({"chain": {}})
    with pytest.raises(TypeError):
        Measured.from_json({"times": [], "seconds": 1.0, "speed": 2})


def test_extents_that_are_not_given_are_at_their_upper_bounds() -> None:
    assert at_extents(RUN_TIME, {}).size("m") == 32
    assert at_extents(RUN_TIME, {"m": 5}).size("m") == 5
    assert at_extents(CHAIN, {}) is CHAIN


def test_kernels_are_checked_at_the_least_extents_and_between() -> None:
    assert smaller_extents(RUN_TIME) == ({"m": 1}, {"m": 17})
    odd = from_json({**to_json(RUN_TIME), "axes": {"m": [1, 33], "n": 48}})
    assert smaller_extents(odd) == ({"m": 1}, {"m": 17})
    assert smaller_extents(CHAIN) == ()
