"""Prices are asked for once, and are those of a kernel with its epilogue."""

from __future__ import annotations

import math

import pytest
from tvm import relax

from mcfuser.chain import Chain
from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.load import load
from mcfuser.graph.price import NEVER, Prices, with_epilogue
from mcfuser.graph.selection import Selection
from mcfuser.graph.views import Unliftable
from tests.support.paths import FIXTURES


def selection(name: str) -> Selection:
    module = load((FIXTURES / f"{name}.onnx").read_bytes(), {}).module
    return Selection(dataflow(module["main"]))


def product(chosen: Selection) -> relax.Var:
    return chosen.flow.products[0]


def test_a_product_is_priced_with_its_epilogue_and_once() -> None:
    chosen, asked = selection("feed_forward_relu"), list[Chain]()

    def price(chain: Chain) -> float:
        asked.append(chain)
        return 3e-6

    prices = Prices(chosen, price)
    first = product(chosen)
    assert prices.of((first,), "one") == prices.of((first,), "one") == 3_000_000
    assert len(asked) == 1 and len(asked[0].operators) == 2  # the product, and its bias and relu
    assert "max" in str(asked[0].operators[-1]) and asked[0].name == "one"


def test_equal_chains_are_priced_once() -> None:
    chosen, asked = selection("attention_split"), list[str]()

    def price(chain: Chain) -> float:
        asked.append(chain.key)
        return 1.0

    prices = Prices(chosen, price)
    for v in chosen.flow.products:
        prices.of((v,), "one")
    assert len(asked) == len(set(asked)) == len(prices.known)


def test_a_chain_without_a_kernel_has_the_highest_price() -> None:
    chosen = selection("feed_forward_relu")
    assert Prices(chosen, lambda _: math.inf).of((product(chosen),), "one") == NEVER


def test_what_cannot_be_lifted_has_no_price_and_says_why() -> None:
    chosen = selection("double")
    prices = Prices(chosen, lambda _: 1.0)
    for _ in range(2):
        with pytest.raises(Unliftable, match="its result is float64"):
            prices.of((product(chosen),), "one")
    assert not prices.known


def test_the_longest_epilogue_is_taken() -> None:
    chosen = selection("feed_forward_relu")
    first = product(chosen)
    members, lifted = with_epilogue(chosen, (first,), "named")
    assert members[0].same_as(first) and len(members) > 1 and lifted.chain.name == "named"
    assert Prices(chosen, lambda _: 1.0).written((first,))
