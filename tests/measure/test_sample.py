"""A sample of a chain computes what the whole does at those positions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mcfuser.chain import attention, from_json, gemm
from mcfuser.measure.sample import sample_chain, thinned
from mcfuser.space.reference import evaluate
from tests.support.paths import CHAINS

EXAMPLES = CHAINS


def data(chain, seed=0):
    rng = np.random.default_rng(seed)
    return {
        n: rng.standard_normal(chain.shape(n))
        if "float" in chain.tensor(n).dtype
        else rng.integers(0, 2, chain.shape(n))
        for n in chain.inputs
    }


def close(found, expected) -> bool:
    """Equal but for what the order of sums makes of float64; an element near zero may be any."""
    assert found.shape == expected.shape
    return np.linalg.norm(found - expected) <= 1e-12 * np.linalg.norm(expected)


@pytest.mark.parametrize("chain", [attention(3, 150, 40, 16, 24), gemm(2, 130, 70, 16, 33)])
def test_sampled_rows_are_those_of_the_whole(chain) -> None:
    inputs = data(chain)
    part = sample_chain(chain, 1e5, seed=1)
    assert part.positions
    found, whole = evaluate(part.chain, part.inputs(inputs)), evaluate(chain, inputs)
    for name in chain.outputs:
        assert close(found[name], part.output(name, whole[name]))


def test_a_causal_sample_knows_where_its_rows_are() -> None:
    chain = from_json(json.loads((EXAMPLES / "causal_attention.json").read_text()))
    small = from_json(_shrunk(json.loads((EXAMPLES / "causal_attention.json").read_text()), 96))
    inputs = data(small)
    part = sample_chain(small, 1e5, seed=2)
    assert "m" in part.positions and "m" in thinned(chain)
    found, whole = evaluate(part.chain, part.inputs(inputs)), evaluate(small, inputs)
    (name,) = small.outputs
    assert close(found[name], part.output(name, whole[name]))


def _shrunk(document, extent):
    document["axes"] |= {"m": extent, "n": extent}
    return document


def test_the_edges_of_the_last_tiles_are_sampled() -> None:
    part = sample_chain(gemm(1, 1000, 64, 64, 64), 1e6, seed=0)
    rows = set(part.positions["m"].tolist())
    assert {0, 999, 767, 768, 895, 896} <= rows


def test_both_sides_of_the_start_of_a_last_tile_are_sampled_unless_it_is_the_first() -> None:
    """Of 17 positions 16 are taken: all ends, and the others at random."""
    for seed in range(30):
        rows = sample_chain(gemm(1, 17, 64, 64, 64), 1.0, seed).positions["m"].tolist()
        assert len(rows) == 16 and {0, 15, 16} <= {*rows} <= {*range(17)}


def test_what_fits_the_budget_is_whole() -> None:
    chain = gemm(1, 32, 32, 16, 16)
    assert sample_chain(chain, 1e9, 0).chain == chain


def test_one_row_is_thinned_for_the_matrix_that_it_meets() -> None:
    """Its products are few, but every element of the matrix is copied for them."""
    chain = gemm(1, 1, 4096, 512, 512)
    flops = 2.0 * (4096 * 512 + 4096 * 512)
    part = sample_chain(chain, 4 * flops, seed=0)
    assert 16 <= len(part.positions["h"]) < 512
    assert not sample_chain(chain, 20 * flops, seed=0).positions


def test_an_axis_read_at_other_positions_is_not_thinned() -> None:
    chain = from_json(
        {
            "axes": {"m": 64, "j": 3, "h": 16},
            "tensors": {"A": {"shape": [66, "h"]}, "W": {"shape": ["j", "h"]}},
            "operators": ["C[m, h] = sum[j] A[m + j, h] * W[j, h]"],
        }
    )
    assert thinned(chain) == ("h",)


def test_a_tensor_that_nothing_reads_stays_as_it_is() -> None:
    chain = from_json({
        "axes": {"m": 4096, "k": 4},
        "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", 3]}},
        "operators": ["C[m, k] = A[m, k] + 1.0"],
    })  # fmt: skip
    inputs = data(chain)
    part = sample_chain(chain, 1e4, seed=0)
    assert part.positions
    assert np.array_equal(part.inputs(inputs)["B"], inputs["B"])
    found, whole = evaluate(part.chain, part.inputs(inputs)), evaluate(chain, inputs)
    assert close(found["C"], part.output("C", whole["C"]))


def test_axes_of_a_tensor_that_is_read_transposed_are_not_thinned() -> None:
    """Positions that one read takes, the other would take of the other axis."""
    lines = ["Y[m, n, h] = A[m, n, h] * A[n, m, h]"]
    document = {"axes": {"m": 8, "n": 8, "h": 8}, "tensors": {"A": {"shape": ["m", "n", "h"]}},
                "operators": lines}  # fmt: skip
    assert thinned(from_json(document)) == ("h",)
