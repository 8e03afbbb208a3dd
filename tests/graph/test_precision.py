"""Which values of a float32 module are narrow, by operator and by what reads them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfuser.compile import compile_model
from mcfuser.devices.catalogue import device_named
from mcfuser.graph.dataflow import Dataflow, dataflow, extents
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from mcfuser.graph.precision import NARROW, Narrowing, Types, counted, fits, types
from mcfuser.tune.tuned import MemoryCache, TuneOptions
from tests.support.agreement import disagreement
from tests.support.blocks import MASKED, bert
from tests.support.nets import Net
from tests.support.paths import FIXTURES

CPU = device_named("cpu")
QUICK = TuneOptions(trials=1, timeout=3600.0)


def decided(net: Net, *outputs: str, narrow: str = "float16") -> tuple[Dataflow, Types]:
    main = load(net.model(*outputs).SerializeToString(), {}).module["main"]
    flow = dataflow(main)
    return flow, types(flow, tuple(main.params), narrow)


def narrow_names(found: tuple[Dataflow, Types]) -> set[str]:
    """The operators of the values that are stored narrow; inputs by name."""
    flow, kinds = found
    return {flow.operator(v) if v in flow.values else v.name for v in kinds.narrow}


def wide_names(found: tuple[Dataflow, Types]) -> set[str]:
    """The operators that are computed in float32."""
    flow, kinds = found
    return {flow.operator(v) for v in kinds.computed_wide}


def product(n: Net, x: str, depth: int = 8, columns: int = 8) -> str:
    return n.op("MatMul", x, n.weight(depth, columns))


def net() -> tuple[Net, str]:
    n = Net()
    return n, product(n, n.input("x", 4, 8))


def test_a_product_reads_and_writes_narrow_values() -> None:
    n, y = net()
    found = decided(n, product(n, y))
    assert narrow_names(found) == {"x", "matmul"} and wide_names(found) == set()


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("pad", [0, 1])
def test_maxima_over_windows_are_of_the_numbers_that_are_stored(
    narrow: str, pad: int, tmp_path: Path
) -> None:
    """Around them is the lowest number of the narrow type."""
    n = Net()
    y = n.op("Conv", n.input("x", 1, 4, 8, 8), n.weight(8, 4, 3, 3), pads=[1] * 4)
    y = n.op("Sub", n.op("Neg", n.op("Abs", y)), n.const(9.0))
    y = n.op("MaxPool", y, kernel_shape=[3, 3], pads=[pad] * 4, strides=[2, 2])
    model = n.model(n.op("Conv", y, n.weight(4, 8, 1, 1)))
    flow, kinds = decided(n, model.graph.output[0].name, narrow=narrow)
    (pool,) = (v for v in flow.order if flow.operator(v) == "nn.max_pool2d")
    assert pool in kinds.narrow and "nn.max_pool2d" not in wide_names((flow, kinds))
    made = compile_model(model.SerializeToString(), CPU, MemoryCache(), QUICK, {}, narrow=narrow)
    assert disagreement(made.module, model.SerializeToString(), tmp_path) <= 2e-2


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("normed", [True, False])
def test_a_convolution_with_its_bias_is_stored_narrow_where_a_norm_reads_it_twice(
    normed: bool, kernel: int
) -> None:
    """A mean alone is part of its kernel."""
    n = Net()
    y = n.op("Conv", n.input("x", 1, 4, 8, 8), n.weight(8, 4, kernel, kernel), n.weight(8))
    if normed:
        y = n.op("InstanceNormalization", y, n.weight(8), n.weight(8))
    else:
        y = n.op("GlobalAveragePool", y)
    flow, kinds = decided(n, y)
    biased = next(v for v in flow.order if flow.operator(v) == "add")
    assert (biased in kinds.narrow) == normed


@pytest.mark.parametrize("operator", ["Relu", "Neg", "Abs", "LeakyRelu"])
def test_maps_of_one_rounding_follow_their_operand(operator: str) -> None:
    n, y = net()
    found = decided(n, product(n, n.op(operator, y)))
    assert wide_names(found) == set() and len(narrow_names(found)) == 3


@pytest.mark.parametrize(
    ("operator", "relaxed"),
    [("Exp", "exp"), ("Erf", "erf"), ("Sqrt", "sqrt"), ("Sigmoid", "sigmoid"), ("Tanh", "tanh"),
     ("Log", "log"), ("Softmax", "nn.softmax"), ("Reciprocal", "divide"), ("Softplus", "exp")],
)  # fmt: skip
def test_what_rounds_more_than_once_is_computed_in_float32(operator: str, relaxed: str) -> None:
    n, y = net()
    found = decided(n, product(n, n.op(operator, y)))
    assert relaxed in wide_names(found)
    assert "matmul" in narrow_names(found), "its result is cast once, for the product"


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"])
def test_reductions_are_computed_in_float32(operator: str) -> None:
    n, y = net()
    axes = [n.ints(1)] if operator == "ReduceSum" else []
    given_axes = {} if axes else {"axes": [1]}
    found = decided(n, n.op(operator, y, *axes, keepdims=1, **given_axes))
    assert wide_names(found) & {"sum", "mean", "max"}
    assert narrow_names(found) == {"x", "matmul"}


def test_indices_and_comparisons_are_made_of_float32() -> None:
    n, y = net()
    at = n.op("Cast", n.op("ArgMax", y, axis=1, keepdims=1), to=1)
    chosen = n.op("Where", n.op("Less", y, n.const(0.5)), y, n.const(2))
    found = decided(n, at, product(n, chosen))
    assert {"argmax", "less", "astype"} <= wide_names(found)
    assert {"argmax", "less"}.isdisjoint(narrow_names(found))


def test_a_quotient_and_a_square_are_computed_in_float32() -> None:
    n, y = net()
    square = n.op("Mul", y, y)
    found = decided(n, product(n, n.op("Div", square, n.op("Add", square, n.const(1)))))
    assert {"multiply", "divide", "add"} <= wide_names(found)


@pytest.mark.parametrize("mask", [MASKED, -1e9, -1e4])
@pytest.mark.parametrize("operator", ["Add", "Where"])
def test_masked_scores_are_float32_up_to_the_softmax(mask: float, operator: str) -> None:
    n, y = net()
    scaled = n.op("Mul", y, n.const(0.25))
    if operator == "Add":
        hidden = n.op("Sub", n.const(1), n.input("shown", 1, 8))
        scores = n.op("Add", scaled, n.op("Mul", hidden, n.const(mask)))
    else:
        scores = n.op("Where", n.input("shown", 4, 8, dtype=np.bool_), scaled, n.const(mask))
    found = decided(n, product(n, n.op("Softmax", scores, axis=-1)))
    assert {"multiply", "nn.softmax"} <= wide_names(found)
    assert narrow_names(found) == {"x", "matmul", "nn.softmax"}, "the mask is not, nor the scores"


def test_the_sum_that_a_norm_reads_is_stored_narrow() -> None:
    """The first residual is a float32 input; the stream is narrow from the first sum on."""
    n = Net()
    x = n.input("x", 4, 8)
    scale, shift = n.weight(8), n.weight(8)
    for _ in range(2):
        h = n.op("LayerNormalization", x, scale, shift, axis=-1)
        x = n.op("Add", x, product(n, h))
    last = n.op("LayerNormalization", x, scale, shift, axis=-1)
    flow, kinds = decided(n, last)
    operators = [flow.operator(v) for v in flow.order if v in kinds.narrow]
    assert operators == ["nn.layer_norm", "matmul", "add"] * 2
    norms = {v for v in flow.order if flow.operator(v) == "nn.layer_norm"}
    assert norms <= kinds.computed_wide


def normed(n: Net, value: str) -> str:
    """A norm over rows as exporters write it out."""
    mean = n.op("ReduceMean", value, axes=[1], keepdims=1)
    apart = n.op("Sub", value, mean)
    spread = n.op("ReduceMean", n.op("Mul", apart, apart), axes=[1], keepdims=1)
    return n.op("Div", apart, n.op("Sqrt", n.op("Add", spread, n.const(1e-5))))


def test_a_product_plus_what_is_broadcast_is_stored_narrow_for_a_norm() -> None:
    """As the embedding of the time step is added in a diffusion model's blocks."""
    n, y = net()
    sums = n.op("Add", n.op("Add", y, n.weight(8)), n.input("embedding", 4, 1))
    flow, kinds = decided(n, product(n, normed(n, sums)))
    *_, embedded = [v for v in flow.order if flow.operator(v) == "add" and extents(v) == (4, 8)]
    assert embedded in kinds.narrow


def test_slices_of_what_is_stored_narrow_are_narrow_whatever_reads_them() -> None:
    """As the scales and shifts are that a diffusion transformer computes of its time step."""
    n, y = net()
    whole = product(n, y, columns=24)
    cut = [n.op("Slice", whole, n.ints(8 * i), n.ints(8 * i + 8), n.ints(1)) for i in range(3)]
    scaled = n.op("Mul", n.op("Exp", y), n.op("Add", cut[1], n.const(1.0)))
    flow, kinds = decided(n, product(n, scaled), product(n, cut[0]), n.op("Exp", cut[2]))
    slices = {v for v in flow.order if flow.operator(v) == "strided_slice"}
    assert len(slices) == 3 and slices <= kinds.narrow and not slices & kinds.computed_wide


def test_what_is_broadcast_onto_no_product_stays_float32() -> None:
    n, y = net()
    other = n.op("Exp", y)
    flow, kinds = decided(n, product(n, normed(n, n.op("Add", other, n.input("e", 4, 1)))))
    (first,) = [v for v in flow.order if flow.operator(v) == "add" and extents(v) == (4, 8)]
    assert first not in kinds.narrow


def test_scores_that_are_a_sum_of_two_are_not_taken_for_a_residual() -> None:
    n, y = net()
    scores = n.op("Add", y, product(n, n.input("z", 4, 8)))
    highest = n.op("ReduceMax", scores, axes=[1], keepdims=1)
    powers = n.op("Exp", n.op("Sub", scores, highest))
    shares = n.op("Mul", powers, n.op("ReduceSum", powers, n.ints(1), keepdims=1))
    flow, kinds = decided(n, product(n, shares))
    assert [flow.operator(v) for v in flow.order if v in kinds.computed_wide][:2] == ["add", "max"]


def test_a_weight_beyond_the_type_leaves_its_product_float32() -> None:
    n, y = net()
    last = n.op("MatMul", n.op("Relu", y), n.const(np.full((8, 8), 1e5)))
    flow, kinds = found = decided(n, last)
    assert counted(flow, kinds, "float16") == Narrowing("float16", 1, 1, 1)
    assert {"matmul", "nn.relu"} <= wide_names(found)
    flow, kinds = decided(n, last, narrow="bfloat16")
    assert counted(flow, kinds, "bfloat16") == Narrowing("bfloat16", 2, 0, 0)


def test_a_number_that_vanishes_leaves_its_map_float32() -> None:
    n, y = net()
    last = product(n, n.op("Max", y, n.const(1e-12)))
    assert "maximum" in wide_names(decided(n, last))
    assert "maximum" not in wide_names(decided(n, last, narrow="bfloat16"))


@given(st.floats(width=32, allow_nan=False), st.sampled_from(NARROW))
def test_a_constant_fits_where_the_type_has_a_number_near_it(value: float, narrow: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, narrow, narrow))
    step = 2.0 ** -(ml_dtypes.finfo(kind).nmant + 1)
    if not fits(np.array([value], np.float32), narrow):
        return
    with np.errstate(over="ignore"):
        kept = float(np.array(value, np.float32).astype(kind))
    assert kept == value or abs(kept - value) <= step * abs(value)


@pytest.mark.parametrize(
    ("values", "half", "brain"),
    [([65504.0, 1e-9], True, True), ([65505.0], False, True), ([-np.inf, 0.0], True, True),
     ([1e-12], False, True), ([0.0], True, True), ([MASKED], False, False), ([1e-30], False, True)],
)  # fmt: skip
def test_which_constants_fit(values: list[float], half: bool, brain: bool) -> None:
    array = np.array(values, np.float32)
    assert (fits(array, "float16"), fits(array, "bfloat16")) == (half, brain)


@pytest.mark.parametrize(
    ("narrow", "name", "products", "passes"),
    [("float16", "bert", 6, 2e-3), ("bfloat16", "attention_where", 3, 2e-2)],
)
def test_a_model_in_a_narrow_precision_computes_the_float32_model(
    narrow: str, name: str, products: int, passes: float, tmp_path: Path
) -> None:
    """It has the chains of the float32 model, under keys of their own, and every chain has kernels
    that pass narrow values."""
    small = FIXTURES / f"{name}.onnx"
    model = bert().SerializeToString() if name == "bert" else small.read_bytes()
    made = compile_model(model, CPU, MemoryCache(), QUICK, {}, narrow=narrow)
    assert 1e-6 < disagreement(made.module, model, tmp_path) < passes
    narrowing = {"dtype": narrow, "narrow_products": products, "float32_products": 0}
    assert narrowing.items() <= made.report["precision"].items()
    wide = partition(load(model, {}).module, CPU.throughput("float32"), CPU.bandwidth)
    chains = made.report["chains"]
    assert sum(len(c["places"]) for c in chains) == len(wide.matches)
    assert not {c["key"] for c in chains} & {m.chain.key for m in wide.matches}
    for chain in chains:
        assert chain["kernels"], chain["reason"]
        assert all(k["error"] < passes for k in chain["kernels"])
