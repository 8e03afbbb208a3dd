"""Facts about one schedule and about a plan's candidates: the same, from one definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from mcfuser.chain import Chain, attention, from_json, gemm
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.expr import Index
from mcfuser.lowering.triton.instructions import LEAST
from mcfuser.lowering.triton.layout import TileLayout
from mcfuser.lowering.triton.resources import TritonCandidates
from mcfuser.space.plan import Plan
from mcfuser.space.prune import distinct, parted, prune, space
from mcfuser.space.statement import Compute, Illegal, loops
from tests.support.hopper_chains import chain_of
from tests.support.triton_cases import scheduled

H200 = CATALOGUE["nvidia/h200"]
CHAINS = {
    "gemm": gemm(1, 512, 256, 64, 128, "float16"),
    "decode": attention(64, 1, 2048, 64, 64, "float16"),
    "ragged": attention(12, 197, 197, 80, 80, "float16"),
    "grouped": chain_of(
        "grouped_causal", {"b": 2, "g": 4, "m": 256, "n": 256, "k": 64, "h": 64}, "float16"
    ),
}


def lowered(plan: Plan, row: np.ndarray) -> TritonCandidates:
    one = np.ones(1, np.int64)
    return TritonCandidates(plan, row[None], 4 * one, 2 * one, one < 0)


def both(chain: Chain) -> Iterator[tuple[TileLayout, TritonCandidates]]:
    """Some candidates of a chain's space, each as the code generator and as the model see it."""
    tables = parted(distinct(prune(space(chain), H200)[0]), H200).tables or ()
    rng = np.random.default_rng(0)
    for plan, tiles in tables:
        row = tiles[rng.integers(len(tiles))]
        schedule = plan.schedule(dict(zip(plan.axes, row.tolist(), strict=True)))
        yield TileLayout(schedule), lowered(plan, row)


@pytest.mark.parametrize("name", CHAINS)
def test_models_and_code_generators_see_the_same(name: str) -> None:
    outs = 0
    for layout, made in both(CHAINS[name]):
        assert layout.dots == made.facts.products
        outs = max(outs, len(made.facts.products))
        assert layout.widths == {a: int(made.width(a)[0]) for a in layout.widths}
        assert layout.operands == made.facts.operands
        one_by_one = [x.kind == "serial" and layout.written_out(x)
                      for x in loops(layout.schedule.body)]  # fmt: skip
        assert one_by_one == [x.kind == "unrolled" for x in loops(made.facts.body)]
    assert outs == 2


def test_one_row_of_a_product_is_as_wide_as_its_instruction() -> None:
    chain = CHAINS["decode"]
    _, made = next(both(chain))
    axes = {a.name: chain.size(a.name) for a in chain.axes}
    assert axes["m"] == 1 and made.width("m")[0] == LEAST and made.asked("m")[0] == 1
    load = next(n for n in made.facts.operands if "m" in {a for d in made.facts.buffers[n].dims
                                                    for a in d.index.axes})  # fmt: skip
    assert made.held(load)[0] == LEAST * made.nbytes(load)[0]


@pytest.mark.parametrize("rows", [1024, 2048])
def test_a_tile_has_at_most_as_many_elements_as_triton_accepts(rows: int) -> None:
    sizes = {"m": rows, "n": 1024, "k": 16, "h": 16}
    schedule = scheduled(gemm(1, 2048, 1024, 16, 16, "float16"), "mh.nk", sizes)
    if rows * sizes["n"] > 2**20:
        with pytest.raises(Illegal, match="tile 'C' has more than 1048576 elements"):
            TileLayout(schedule)
    else:
        assert TileLayout(schedule).space("C") == ("m", "n")


def test_a_product_with_a_vector_is_none_for_the_tensor_cores() -> None:
    chain = from_json({
        "name": "vector",
        "axes": {"m": 256, "k": 128},
        "tensors": {t: {"shape": list(s), "dtype": "float16"} for t, s in
                    {"A": "mk", "B": "k", "C": "m"}.items()},
        "operators": ["C[m] = sum[k] A[m, k] * B[k]"],
    })  # fmt: skip
    for layout, made in both(chain):
        assert not layout.dots and not made.dots


@pytest.mark.parametrize(
    ("types", "exact"),
    [
        (("float32", "float32"), True),
        (("float16", "float32"), True),
        (("float16", "float16"), False),
        (("bfloat16", "bfloat16"), False),
        (("bfloat16", "float16"), True),
    ],
)
def test_threads_multiply_what_the_tensor_cores_would_round(
    types: tuple[str, str], exact: bool
) -> None:
    chain = from_json({
        "name": "product",
        "axes": {"m": 64, "n": 64, "k": 64},
        "tensors": {
            t: {"shape": list(s), "dtype": d}
            for t, s, d in zip("ABC", ("mk", "kn", "mn"), (*types, "float32"), strict=True)
        },
        "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]"],
    })  # fmt: skip
    for _, made in both(chain):
        assert made.facts.wide == (frozenset("C") if exact else frozenset())


def test_a_domain_that_one_side_cannot_hold_is_no_product() -> None:
    """`T` is computed, and may be infinite where its mask would hide it."""
    sizes = {"m": 64, "n": 64, "k": 32, "h": 32}
    schedule = scheduled(chain_of("lower", sizes, "float16"), "mh.nk", {**sizes, "n": 32})
    assert {*TileLayout(schedule).dots} == {"T", "E"}
    product = next(s for s in _computes(schedule.body) if s.buffer == "E")
    assert product.domain is not None
    outside = replace(product, domain=replace(product.domain, args=_columns(product)))
    moved = replace(schedule, body=_exchanged(schedule.body, product, outside))
    assert {*TileLayout(moved).dots} == {"T"}


def _computes(body):
    for s in body:
        if isinstance(s, Compute):
            yield s
        yield from _computes(getattr(s, "body", ())) if not isinstance(s, Compute) else ()


def _columns(product):
    """A domain's sides with the product's rows replaced by its columns."""
    return tuple(Index("h") if x == Index("m") else Index("m") for x in product.domain.args)


def _exchanged(body, old, new):
    return tuple(
        new if s is old
        else replace(s, body=_exchanged(s.body, old, new)) if hasattr(s, "kind") else s
        for s in body
    )  # fmt: skip
