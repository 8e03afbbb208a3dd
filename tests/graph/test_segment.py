"""Which regions are chosen: by prices, by what is close, and by bytes where there are too many."""

from __future__ import annotations

import onnx
import pytest

from mcfuser.chain import Chain, products
from mcfuser.graph import segment
from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.load import load
from mcfuser.graph.price import Price, Prices
from mcfuser.graph.prologue import normed
from mcfuser.graph.regions import gated_pairs, product_pairs
from mcfuser.graph.segment import Considered, ModelCover, model_cover
from mcfuser.graph.selection import Selection
from tests.support.blocks import bert, decoding
from tests.support.nets import Net


def covered(model: onnx.ModelProto, price: Price) -> ModelCover:
    chosen = Selection(dataflow(load(model.SerializeToString(), {}).module["main"]))
    regions = [*gated_pairs(chosen), *product_pairs(chosen)]
    return model_cover([*regions, *normed(chosen, regions)], Prices(chosen, price))


def count(chain: Chain) -> tuple[bool, int]:
    """Whether a chain reduces rows before its products, and the number of these."""
    first = products(chain)[:1]
    at = chain.operators.index(first[0]) if first else len(chain.operators)
    return any(o.reduce != "none" for o in chain.operators[:at]), len(products(chain))


def projection() -> onnx.ModelProto:
    net = Net()
    x = net.input("x", 4, 64)
    h = net.op("LayerNormalization", x, net.weight(64), net.weight(64))
    return net.model(net.op("MatMul", h, net.weight(64, 96)))


def priced(rows: float, product: float, both: float) -> Price:
    known = {(True, 0): rows, (False, 1): product, (True, 1): both}
    return lambda chain: known[count(chain)] * 1e-6


def only(cover: ModelCover) -> Considered:
    (considered,) = cover.considered
    assert (considered.region in cover.regions) == considered.chosen
    return considered


def test_a_norm_shares_the_kernel_of_its_product_where_that_is_cheaper() -> None:
    found = only(covered(projection(), priced(2, 8, 9)))
    assert found.verdict == "chosen"
    assert found.seconds == found.total == found.least == pytest.approx(9e-6)


def test_it_is_measured_beside_it_where_that_is_close() -> None:
    found = only(covered(projection(), priced(2, 8, 10.1)))
    assert found.verdict == "measured" and found.least == pytest.approx(10e-6)


def test_it_stands_alone_where_it_is_not() -> None:
    found = only(covered(projection(), priced(2, 8, 10.3)))
    assert found.verdict == "dearer"
    assert found.total == pytest.approx(10.3e-6) and found.least == pytest.approx(10e-6)


def test_a_norm_that_is_next_to_nothing_is_not_even_priced() -> None:
    """What is predicted for both raises KeyError."""
    known = {(True, 0): 1e-7, (False, 1): 1e-5}
    found = only(covered(projection(), lambda chain: known[count(chain)]))
    assert found.verdict == "cannot win" and found.reason == "its prologue is 1.0% of its time"


@pytest.mark.parametrize(
    ("whole", "verdicts"), [(9, ["chosen", "dearer"]), (29, ["measured", "inside"]),
                            (31, ["dearer", "chosen"])]
)  # fmt: skip
def test_products_are_measured_in_one_kernel_unless_that_is_far_dearer(
    whole: float, verdicts: list[str]
) -> None:
    """A gate's pair and the product after it take 6 + 4: three times that is tried."""
    net = Net()
    x = net.input("x", 8, 32)
    gate, up = (net.op("MatMul", x, net.weight(32, 64)) for _ in range(2))
    hidden = net.op("Mul", net.op("Sigmoid", gate), up)
    model = net.model(net.op("MatMul", hidden, net.weight(64, 32)))
    known = {1: 4e-6, 2: 6e-6, 3: whole * 1e-6}
    chosen = Selection(dataflow(load(model.SerializeToString(), {}).module["main"]))
    prices = Prices(chosen, lambda chain: known[len(products(chain))])
    found = model_cover([*gated_pairs(chosen)], prices)
    assert [c.verdict for c in found.considered] == verdicts
    assert [c.region for c in found.considered if c.chosen] == list(found.regions)


@pytest.mark.parametrize(
    ("second", "verdicts"), [(6.1, ["chosen", "close"]), (5.9, ["close", "chosen"]),
                             (8, ["chosen", "dearer"])]
)  # fmt: skip
def test_regions_that_cross_and_cost_about_the_same_are_close(
    second: float, verdicts: list[str]
) -> None:
    """Of three products in a row, the first two or the last two, whose result has 24 columns."""
    net = Net()
    x = net.input("x", 8, 16)
    for depth, columns in ((16, 48), (48, 40), (40, 24)):
        x = net.op("Tanh", net.op("MatMul", x, net.weight(depth, columns)))

    def price(chain: Chain) -> float:
        if len(products(chain)) == 1:
            return 4e-6
        return second * 1e-6 if any(a.extent == 24 for a in chain.axes) else 6e-6

    found = covered(net.model(x), price).considered
    assert [c.verdict for c in found] == verdicts
    assert len({c.key for c in found}) == 2


def test_regions_without_alternatives_are_chosen_without_a_price() -> None:
    net = Net()
    hidden = net.op("Relu", net.op("MatMul", net.input("x", 8, 32), net.weight(32, 64)))

    def never(chain: Chain) -> float:
        raise AssertionError(chain)

    found = covered(net.model(net.op("MatMul", hidden, net.weight(64, 32))), never)
    assert len(found.regions) == 1 and found.considered == ()


def test_what_is_too_much_to_price_is_chosen_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MOST_REGIONS", 0)
    found = covered(decoding(), priced(0, 0, 0))  # asked for a product's price, it raises KeyError
    assert found.considered == () and found.regions
    assert not any(r.prologue for r in found.regions)


def test_layers_share_their_prices() -> None:
    asked = [list[str](), list[str]()]
    for layers in (1, 3):
        chosen = asked[layers // 2]

        def price(chain: Chain, keys: list[str] = chosen) -> float:
            keys.append(chain.key)
            return 1e-6

        covered(bert(layers), price)
    assert asked[0] and sorted(asked[0]) == sorted(asked[1])


def test_the_choice_is_the_same_each_time() -> None:
    def price(chain: Chain) -> float:
        return len(chain.operators) ** 1.5 * 1e-6

    one, two = (covered(decoding(), price) for _ in range(2))
    assert [c.verdict for c in one.considered] == [c.verdict for c in two.considered]
    assert [[v.name for v in r.members] for r in one.regions] == [
        [v.name for v in r.members] for r in two.regions
    ]
