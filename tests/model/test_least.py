"""The least time of kernels: below everything the model says, and what it is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import attention, from_json, from_text, gemm, parts
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.expr import Call, Cast
from mcfuser.model.least import NEARER, least
from mcfuser.tune.expected import expected
from mcfuser.tune.tuned import TuneOptions
from workloads import ATTENTION, GEMM

H200 = CATALOGUE["nvidia/h200"]
WORDS = {**GEMM, **ATTENTION}


@pytest.mark.parametrize("name", sorted(WORDS)[::4])
def test_no_candidate_is_expected_to_be_faster(name: str) -> None:
    for piece in parts(from_text(WORDS[name], "float16")):
        assert least([piece], H200) < expected(piece, H200, TuneOptions(), CUDA)


def test_products_take_as_long_as_at_the_peak() -> None:
    c = gemm(1, 8192, 8192, 8192, 8192, "float16")
    first, second = parts(c)
    flops = 2 * 8192**3
    assert least([first], H200) == pytest.approx(flops / H200.throughput("float16"))
    assert least([first, second], H200) == pytest.approx(2 * least([first], H200))


def test_what_the_cache_cannot_hold_comes_from_memory() -> None:
    scores, softmax, _ = parts(attention(32, 4096, 4096, 64, 64, "float16"))
    written = 32 * 4096 * 4096 * 4
    held = H200.cache + 2 * 32 * 4096 * 64 * 2
    expected = (written - H200.cache + held / NEARER) / H200.bandwidth
    assert least([scores], H200) == pytest.approx(expected)
    assert least([softmax], H200) > expected  # reads them, and writes half as much


def test_a_domain_may_spare_reads_and_products_but_no_output() -> None:
    c = parts(gemm(1, 4096, 4096, 64, 64, "float16"))[0]
    o = c.operators[0]
    masked = replace(c, operators=(replace(o, domain=o.body),))
    written = 4096 * 4096 * 2
    assert least([masked], H200) == pytest.approx(written / NEARER / H200.bandwidth)


def test_without_a_known_cache_nothing_is_claimed() -> None:
    c = gemm(1, 8192, 8192, 8192, 8192, "float16")
    assert least([c], replace(H200, cache=0)) == 0.0


def test_what_is_cast_may_run_at_the_narrower_peak() -> None:
    c = parts(gemm(1, 4096, 4096, 4096, 4096))[0]
    o = c.operators[0]
    a, b = o.body.args  # type: ignore[union-attr]
    cast = replace(o, body=Call("mul", (Cast(a, "float16"), Cast(b, "float16"))))
    flops = 2 * 4096**3
    assert least([c], H200) == pytest.approx(flops / H200.throughput("float32"))
    narrow = replace(c, operators=(cast,))
    assert least([narrow], H200) == pytest.approx(flops / H200.throughput("float16"))


def test_a_chain_without_inputs_has_a_bound() -> None:
    c = from_json({"axes": {"m": 64, "k": 64}, "operators": ["A[m, k] = 1.0 * (m - k)"]})
    assert 0 < least([c], H200) < 1e-6


def test_only_what_is_read_of_an_input_counts() -> None:
    document = {"axes": {"m": 16, "k": 64}, "operators": ["Y[m, k] = A[m, k] * 2.0"]}
    whole = from_json({**document, "tensors": {"A": {"shape": [16, "k"]}}})
    part = from_json({**document, "tensors": {"A": {"shape": [1 << 24, "k"]}}})
    assert least([part], H200) < least([whole], H200)
