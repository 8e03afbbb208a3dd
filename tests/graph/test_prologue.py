"""Norms in the chains of the products that read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from mcfuser.chain import products
from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.load import load
from mcfuser.graph.partition import Partition
from mcfuser.graph.prologue import normed
from mcfuser.graph.regions import Region, gated_pairs, product_pairs
from mcfuser.graph.selection import Selection
from tests.support.blocks import bert, decoding
from tests.support.computed_naively import agreed
from tests.support.nets import Net


def regions(model: onnx.ModelProto) -> list[Region]:
    chosen = Selection(dataflow(load(model.SerializeToString(), {}).module["main"]))
    return list(normed(chosen, [*gated_pairs(chosen), *product_pairs(chosen)]))


def counted(found: Region, kinds: Selection | None = None) -> int:
    return len(found.members) - len(found.prologue)


def projection(norm: str, kept: bool = False, rows: int = 4) -> onnx.ModelProto:
    """A norm and the product after it; where it is `kept`, the norm is added to what that gives."""
    net, width = Net(), 48
    x = net.input("x", rows, width)
    if norm == "layer":
        h = net.op("LayerNormalization", x, net.weight(width), net.weight(width))
    elif norm == "softmax":
        h = net.op("Softmax", x, axis=-1)
    else:
        mean = net.op("ReduceMean", net.op("Mul", x, x), axes=[-1], keepdims=1)
        h = net.op("Div", x, net.op("Sqrt", net.op("Add", mean, net.const(1e-6))))
    y = net.op("MatMul", h, net.weight(width, width))
    return net.model(net.op("Add", y, h) if kept else y)


@pytest.mark.parametrize("norm", ["layer", "root mean square", "softmax"])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_norm_and_the_product_after_it_mean_the_same_in_one_chain(
    norm: str, rows: int, tmp_path: Path
) -> None:
    (match,) = agreed(projection(norm, rows=rows), tmp_path).matches
    assert len(products(match.chain)) == 1
    assert any(o.reduce != "none" and len(o.axes) < 2 for o in match.chain.operators[:-1])


def test_a_norm_that_is_stored_anyway_is_not_computed_again() -> None:
    assert regions(projection("layer")) != []
    assert regions(projection("layer", kept=True)) == []
    assert regions(bert(2)) == []  # its norms are residuals


def test_rows_are_computed_before_weights_only() -> None:
    """Keys that depend on the input are multiplied by normed queries."""
    net = Net()
    x, keys = net.input("x", 8, 32), net.input("keys", 32, 16)
    h = net.op("LayerNormalization", x, net.weight(32), net.weight(32))
    assert regions(net.model(net.op("MatMul", h, keys))) == []


def test_maps_alone_are_no_prologue_nor_is_what_a_product_computes() -> None:
    net = Net()
    x = net.op("Sigmoid", net.input("x", 8, 32))
    assert regions(net.model(net.op("MatMul", x, net.weight(32, 16)))) == []
    net = Net()
    x = net.op("MatMul", net.input("x", 8, 32), net.weight(32, 32))
    x = net.op("Add", x, net.weight(32))
    h = net.op("LayerNormalization", x, net.weight(32), net.weight(32))
    (region,) = regions(net.model(net.op("MatMul", h, net.weight(32, 16))))
    assert len(region.prologue) == 1  # the sum is the epilogue of the product before


def in_chains(parted: Partition) -> list[tuple[int, bool]]:
    """Of each chain, its products, and whether rows are reduced before them."""
    found = []
    for match in parted.matches:
        operators = match.chain.operators
        first = next((i for i, o in enumerate(operators) if o in products(match.chain)), None)
        before = operators[:first] if first is not None else ()
        found.append((len(products(match.chain)), any(o.reduce == "sum" for o in before)))
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_decoding_step_has_its_norms_in_the_chains_of_their_products(
    dtype: type[np.generic], tmp_path: Path
) -> None:
    tolerance = 1e-5 if dtype is np.float32 else 2e-2
    parted = agreed(decoding(dtype=dtype), tmp_path, tolerance)
    assert (1, True) in in_chains(parted)  # queries, keys and values
    assert any(count >= 2 and before for count, before in in_chains(parted))  # gate and up
    assert (0, False) not in in_chains(parted)  # no norm stands alone


def test_both_readers_of_a_norm_may_compute_it_anew(tmp_path: Path) -> None:
    """In a parallel block, where a kernel costs so much that no norm should have one."""
    parted = agreed(decoding(parallel=True), tmp_path, price=lambda chain: 1.0)
    found = in_chains(parted)
    assert sum(before for _, before in found) == 2 and (0, False) not in found
    shared = [set(m.bindings) for m in parted.matches]
    assert any(a & b for i, a in enumerate(shared) for b in shared[:i])
